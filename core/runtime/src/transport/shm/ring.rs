//! The protocol of one edge: who may touch a slot, and when.
//!
//! The producer fills slot `k mod slots` with message k (counted from 0) and stores k+1 in the slot's
//! sequence word; the consumer, having read message k, stores k+1 in the edge's head word. A slot
//! is the producer's until its sequence word says k+1, the consumer's until the head says k+1.
//!
//! Generic over the shared words so that the tests explore every interleaving with loom's.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word that both sides see. The protocol names the orderings, so that loom judges them.
pub(super) trait Word {
    fn load(&self, ordering: Ordering) -> u64;
    fn store(&self, value: u64, ordering: Ordering);
}

/// The producer's private view of an edge.
#[derive(Debug)]
pub(super) struct Producer {
    /// The message to fill next.
    next: u64,
    /// Messages below this one have a free slot; a cache of head + slots.
    limit: u64,
    slot: usize,
    slots: usize,
}

/// The consumer's private view of an edge.
#[derive(Debug)]
pub(super) struct Consumer {
    /// The message to read next.
    next: u64,
    slot: usize,
    slots: usize,
}

impl Producer {
    pub(super) fn new(slots: usize) -> Producer {
        Producer { next: 0, limit: slots as u64, slot: 0, slots }
    }

    /// The slot to fill next, if it is free.
    #[inline]
    pub(super) fn free(&mut self, head: &impl Word) -> Option<usize> {
        if self.next == self.limit {
            // Acquire pairs with the consumer's store of head in `Consumer::release`: its reads of
            // the slot happen before our writes.
            self.limit = head.load(Ordering::Acquire).wrapping_add(self.slots as u64);
            if self.next == self.limit {
                return None;
            }
        }
        Some(self.slot)
    }

    /// Publishes the slot that `free` named.
    #[inline]
    pub(super) fn publish(&mut self, sequence: &impl Word) {
        self.next += 1;
        // Release pairs with the load in `Consumer::ready`: payload and tag are written before.
        sequence.store(self.next, Ordering::Release);
        self.slot = following(self.slot, self.slots);
    }

    /// Whether the consumer has given back every slot published so far.
    pub(super) fn all_released(&self, head: &impl Word) -> bool {
        // Acquire pairs with the store in `Consumer::release`: its reads happen before what we do next.
        head.load(Ordering::Acquire) == self.next
    }

    /// The slot that `free` last named.
    #[inline]
    pub(super) fn slot(&self) -> usize {
        self.slot
    }
}

impl Consumer {
    pub(super) fn new(slots: usize) -> Consumer {
        Consumer { next: 0, slot: 0, slots }
    }

    /// The slot to read next.
    #[inline]
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Whether the slot to read next is filled.
    #[inline]
    pub(super) fn ready(&self, sequence: &impl Word) -> bool {
        // Acquire pairs with the store in `Producer::publish`: payload and tag are visible after.
        sequence.load(Ordering::Acquire) == self.next + 1
    }

    /// Gives the slot back.
    #[inline]
    pub(super) fn release(&mut self, head: &impl Word) {
        self.next += 1;
        // Release pairs with the load in `Producer::free`: we no longer read the slot.
        head.store(self.next, Ordering::Release);
        self.slot = following(self.slot, self.slots);
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        AtomicU64::load(self, ordering)
    }

    #[inline]
    fn store(&self, value: u64, ordering: Ordering) {
        AtomicU64::store(self, value, ordering);
    }
}

#[inline]
fn following(slot: usize, slots: usize) -> usize {
    if slot + 1 == slots { 0 } else { slot + 1 }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    impl Word for AtomicU64 {
        fn load(&self, ordering: Ordering) -> u64 {
            AtomicU64::load(self, ordering)
        }

        fn store(&self, value: u64, ordering: Ordering) {
            AtomicU64::store(self, value, ordering);
        }
    }

    struct Edge {
        head: AtomicU64,
        slots: Vec<(AtomicU64, UnsafeCell<u64>)>,
    }

    /// Every interleaving of one producer and one consumer: loom fails on a data race, the
    /// assertion on a lost, repeated or stale message.
    fn explore(slots: usize, messages: u64) {
        loom::model(move || {
            let slot = |_| (AtomicU64::new(0), UnsafeCell::new(0));
            let edge = Arc::new(Edge { head: AtomicU64::new(0), slots: (0..slots).map(slot).collect() });
            let shared = Arc::clone(&edge);
            let producer = loom::thread::spawn(move || {
                let mut producer = Producer::new(slots);
                for message in 0..messages {
                    let slot = loop {
                        match producer.free(&shared.head) {
                            Some(slot) => break slot,
                            None => loom::thread::yield_now(),
                        }
                    };
                    // SAFETY: `free` says the slot is the producer's; loom checks it.
                    shared.slots[slot].1.with_mut(|payload| unsafe { *payload = 100 + message });
                    producer.publish(&shared.slots[slot].0);
                }
            });
            let mut consumer = Consumer::new(slots);
            for message in 0..messages {
                while !consumer.ready(&edge.slots[consumer.slot()].0) {
                    loom::thread::yield_now();
                }
                // SAFETY: `ready` says the slot is the consumer's; loom checks it.
                let found = edge.slots[consumer.slot()].1.with(|payload| unsafe { *payload });
                assert_eq!(found, 100 + message);
                consumer.release(&edge.head);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn one_slot_has_one_owner_in_every_interleaving() {
        explore(1, 3);
    }

    #[test]
    fn two_slots_have_one_owner_each_in_every_interleaving() {
        explore(2, 3);
    }
}
