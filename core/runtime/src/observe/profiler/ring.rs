//! A bounded buffer of records: many may put, one takes, nobody waits.
//!
//! What may be put is promised beforehand: a credit is a record's place. The start of an event takes
//! the credit of its stop as well, so a stop always has a place, and what is dropped is dropped whole.
//!
//! Generic over the shared words so that the tests explore every interleaving with loom's.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word that several threads see.
pub(super) trait Word: Default {
    fn holding(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn add(&self, value: u64, order: Ordering) -> u64;
    /// Takes `value` away, unless less is there; whether it did. Acquire.
    fn take(&self, value: u64) -> bool;
}

/// The buffer, with `N` words in a record.
pub(super) struct Ring<const N: usize, W = AtomicU64> {
    slots: Box<[Slot<N, W>]>,
    /// Records put so far.
    tail: W,
    /// Places that are promised to nobody.
    credits: W,
}

struct Slot<const N: usize, W> {
    /// Number of the record in it + 1, once all of it is there.
    ready: W,
    words: [W; N],
}

impl<const N: usize, W: Word> Ring<N, W> {
    /// A ring of so many places.
    pub(super) fn new(places: usize) -> Ring<N, W> {
        let slot = || Slot { ready: W::default(), words: std::array::from_fn(|_| W::default()) };
        Ring {
            slots: (0..places).map(|_| slot()).collect(),
            tail: W::default(),
            credits: W::holding(places as u64),
        }
    }

    /// Places that are promised to nobody, as of late.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.credits.load(Ordering::Relaxed)
    }

    /// So many places there are.
    pub(super) fn places(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Promises so many places, all or none; whether it did.
    pub(super) fn promise(&self, places: u64) -> bool {
        self.credits.take(places)
    }

    /// Puts a record into a place that was promised to the caller.
    pub(super) fn put(&self, record: [u64; N]) {
        // AcqRel: who gets a number has seen the promises behind all earlier ones, and with them, by the
        // release in `take`, that the record `places` before was taken.
        let number = self.tail.add(1, Ordering::AcqRel);
        let slot = &self.slots[(number % self.slots.len() as u64) as usize];
        for (word, value) in slot.words.iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        // Pairs with the load in `take`: who sees the number sees the words.
        slot.ready.store(number + 1, Ordering::Release);
    }

    /// Record `number`, the next one after those taken before, if all of it is there. One caller.
    pub(super) fn take(&self, number: u64) -> Option<[u64; N]> {
        let slot = &self.slots[(number % self.slots.len() as u64) as usize];
        // Pairs with the store in `put`.
        if slot.ready.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let record = std::array::from_fn(|word| slot.words[word].load(Ordering::Relaxed));
        // Pairs with the acquire in `promise`: the words were read before their place is promised again.
        self.credits.add(1, Ordering::Release);
        Some(record)
    }

    /// A word of record `number`, which is not taken, if all of it is there.
    pub(super) fn peek(&self, number: u64, word: usize) -> Option<u64> {
        let slot = &self.slots[(number % self.slots.len() as u64) as usize];
        // Pairs with the store in `put`.
        let is_there = slot.ready.load(Ordering::Acquire) == number + 1;
        is_there.then(|| slot.words[word].load(Ordering::Relaxed))
    }

    /// Whether record `number` is there.
    pub(super) fn has(&self, number: u64) -> bool {
        let slot = &self.slots[(number % self.slots.len() as u64) as usize];
        slot.ready.load(Ordering::Acquire) == number + 1
    }
}

impl Word for AtomicU64 {
    fn holding(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    fn take(&self, value: u64) -> bool {
        let less = |held: u64| held.checked_sub(value);
        self.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;

    use super::*;

    type Loom = loom::sync::atomic::AtomicU64;

    impl Word for Loom {
        fn holding(value: u64) -> Loom {
            Loom::new(value)
        }

        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn add(&self, value: u64, order: Ordering) -> u64 {
            self.fetch_add(value, order)
        }

        fn take(&self, value: u64) -> bool {
            let less = |held: u64| held.checked_sub(value);
            self.fetch_update(Ordering::Acquire, Ordering::Relaxed, less).is_ok()
        }
    }

    /// Two threads put into two places while a third takes: every interleaving gives whole records, each
    /// once, and none over one that was not taken.
    #[test]
    fn no_interleaving_tears_loses_or_doubles_a_record() {
        loom::model(|| {
            let ring = Arc::new(Ring::<2, Loom>::new(2));
            let put = |ring: Arc<Ring<2, Loom>>, value: u64| {
                let promised = ring.promise(1);
                if promised {
                    ring.put([value, value + 100]);
                }
                promised
            };
            // One place is taken already, so that one of them may have to do without.
            assert!(ring.promise(1));
            ring.put([7, 107]);
            let other = loom::thread::spawn({
                let ring = Arc::clone(&ring);
                move || u64::from(put(ring, 1))
            });
            let taker = loom::thread::spawn({
                let ring = Arc::clone(&ring);
                move || ring.take(0).map(|record| record[0])
            });
            let mut promised = u64::from(put(Arc::clone(&ring), 2));
            promised += other.join().unwrap();
            let first = taker.join().unwrap();
            assert_eq!(first, Some(7));
            let mut seen = Vec::new();
            while let Some([value, check]) = ring.take(seen.len() as u64 + 1) {
                assert_eq!(check, value + 100);
                seen.push(value);
            }
            seen.sort_unstable();
            assert_eq!(seen.len() as u64, promised, "{seen:?}");
            assert!(promised >= 1 && seen.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
        });
    }

    #[test]
    fn a_full_ring_promises_nothing_and_goes_round() {
        let ring = Ring::<1>::new(4);
        assert!(ring.promise(3) && !ring.promise(2) && ring.promise(1) && !ring.promise(1));
        for number in 0..100 {
            ring.put([number]);
            assert!(ring.has(number) && !ring.has(number + 1));
            assert_eq!((ring.peek(number, 0), ring.peek(number + 1, 0)), (Some(number), None));
            assert_eq!(ring.take(number), Some([number]));
            assert_eq!(ring.take(number + 1), None);
            assert!(ring.promise(1), "the place that was taken");
        }
    }
}
