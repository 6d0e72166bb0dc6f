//! Whether slots are better filled through the caches or around them, and how they are best emptied.
//!
//! Who fills a slot takes its lines from the cache of the core that emptied it last, and that core takes them back to
//! read. Between cores that share a cache this is the fastest way. Between others a line at a time crosses the machine, twice,
//! at a tenth of the speed, and stores that go around the caches (non-temporal ones) are the faster way. No table tells cores
//! apart in a virtual machine, whose processors move; but how long it takes to fill a slot does.
//!
//! On AMD processors results that are stored one by one are slow sooner than copies, whose long strings write whole lines: they are
//! computed aside and then copied (ADR 0089), and where that is slow as well, stored around the caches (ADR 0109). Nor does a far core's slot
//! come any faster than memory there: what is copied out of it is copied in several strings at once (ADR 0129).

use std::time::{Duration, Instant};

use crate::discover::processor::is_of_amd;

/// How the next slot is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filling {
    /// Through the caches.
    Cached,
    /// The same, and the edge is told how long it took.
    Timed,
    /// With stores that go around them.
    Streaming,
    /// From a block aside, in long strings.
    Aside,
    /// The same, and the edge is told how long it took.
    AsideTimed,
}

/// How the next slot is emptied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emptying {
    /// In one string.
    Whole,
    /// The same, and the edge is told how long it took.
    Timed,
    /// In several strings at once.
    Strings,
}

/// What a slot is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filler {
    /// A copy of the rank's own, whose time says how fast slots are filled.
    Copy,
    /// A result that goes to slots alone, as it is computed.
    Fold,
    /// Such a result that was computed aside.
    Aside,
    Other,
}

/// What one end of an edge knows of how fast its slots are filled.
#[derive(Debug)]
pub(super) struct Pace {
    /// Slots filled, or about to be.
    turn: u32,
    /// Timed ones in a row that took long.
    slow: u32,
    /// Since when slots are filled the other way, around the caches or from aside, or the last look at the usual one.
    streams: Option<Instant>,
    /// How long until the next look.
    pause: Duration,
    /// Fewer bytes in a nanosecond are slow.
    slow_bytes: u128,
}

impl Pace {
    /// Of copies.
    pub(super) fn new() -> Pace {
        Pace::of(if is_of_amd() { SLOW_BYTES_PER_NS_AMD } else { SLOW_BYTES_PER_NS })
    }

    /// Of results that are stored one by one.
    pub(super) const fn of_folds() -> Pace {
        Pace::of(SLOW_FOLD_BYTES_PER_NS)
    }

    /// Of those that are computed aside and then copied.
    pub(super) const fn of_folds_aside() -> Pace {
        Pace::of(SLOW_BYTES_PER_NS)
    }

    /// Of copies out of slots.
    pub(super) const fn of_emptying() -> Pace {
        Pace::of(SLOW_EMPTYING_BYTES_PER_NS)
    }

    const fn of(slow_bytes: u128) -> Pace {
        Pace { turn: 0, slow: 0, streams: None, pause: FIRST_PAUSE, slow_bytes }
    }

    /// How to fill the next slot; `timely`: with nothing but a copy of the rank's own, whose time says something.
    #[inline]
    pub(super) fn filling(&mut self, timely: bool, now: impl FnOnce() -> Instant) -> Filling {
        if !timely {
            return if self.streams.is_some() { Filling::Streaming } else { Filling::Cached };
        }
        self.turn = self.turn.checked_add(1).unwrap_or(FRESH);
        match self.streams {
            None if self.turn < FRESH => Filling::Cached,
            None if self.turn.is_multiple_of(if self.slow == 0 { TIMED } else { TIMED_AGAIN }) => {
                Filling::Timed
            }
            None => Filling::Cached,
            Some(since) if now() - since >= self.pause => Filling::Timed,
            Some(_) => Filling::Streaming,
        }
    }

    /// How to empty the next slot.
    #[inline]
    pub(super) fn emptying(&mut self) -> Emptying {
        match self.filling(true, Instant::now) {
            Filling::Timed => Emptying::Timed,
            Filling::Streaming => Emptying::Strings,
            _ => Emptying::Whole,
        }
    }

    /// A timed slot of `bytes` took so long.
    pub(super) fn took(&mut self, bytes: usize, elapsed: Duration, now: Instant) {
        let slow = (bytes as u128) < elapsed.as_nanos() * self.slow_bytes;
        match (self.streams, slow) {
            (None, false) => self.slow = 0,
            // A rank that was interrupted takes long, too, but not so often.
            (None, true) if self.slow + 1 < MOST_SLOW => self.slow += 1,
            (None, true) => (self.slow, self.streams) = (0, Some(now)),
            (Some(_), false) => (self.streams, self.pause) = (None, FIRST_PAUSE),
            (Some(_), true) => {
                self.streams = Some(now);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// So many first slots are not timed: memory that is touched for the first time is slow everywhere.
const FRESH: u32 = 64;
/// One slot of so many is timed: two looks at the clock take some 50 ns.
const TIMED: u32 = 16;
/// The same after one that took long.
const TIMED_AGAIN: u32 = 4;
/// So many timed slots in a row that took long.
const MOST_SLOW: u32 = 3;
/// Cores that share a cache fill slots at 8 GB/s and more, also out of memory; cores far apart at 1 to 3 (ADR 0055).
const SLOW_BYTES_PER_NS: u128 = 4;
/// On AMD processors, where stores around the caches fill 16 GB/s, cores that share a cache 30, and others 2 to 5 (ADR 0109).
const SLOW_BYTES_PER_NS_AMD: u128 = 10;
/// Sums are stored at 20 GB/s and more to slots of cores that share a cache, at 8 to 9 to those of cores far apart (ADR 0089). Where computing takes
/// longer than that, the way aside costs little.
const SLOW_FOLD_BYTES_PER_NS: u128 = 13;
/// Slots that a near core has filled are emptied at 34 GB/s and more, those of cores far apart at 16, in strings at 19.
const SLOW_EMPTYING_BYTES_PER_NS: u128 = 22;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills slots of 8 KiB for so long; the share that went around the caches.
    fn run(pace: &mut Pace, clock: &mut Instant, cached_ns: u64, span: Duration) -> f64 {
        let (end, mut slots, mut streamed) = (*clock + span, 0u32, 0u32);
        while *clock < end {
            let cached = Duration::from_nanos(cached_ns);
            slots += 1;
            match pace.filling(true, || *clock) {
                Filling::Cached => *clock += cached,
                Filling::Timed => {
                    *clock += cached;
                    pace.took(8192, cached, *clock);
                }
                Filling::Streaming | Filling::Aside | Filling::AsideTimed => {
                    *clock += Duration::from_nanos(800);
                    streamed += 1;
                }
            }
        }
        f64::from(streamed) / f64::from(slots)
    }

    #[test]
    fn cores_far_apart_are_noticed_and_so_is_their_return() {
        let (mut pace, mut clock) = (Pace::new(), Instant::now());
        let (near, far) = (600, 8000);
        assert_eq!(run(&mut pace, &mut clock, near, Duration::from_millis(50)), 0.0);
        assert!(run(&mut pace, &mut clock, far, Duration::from_millis(500)) > 0.999);
        run(&mut pace, &mut clock, near, LONGEST_PAUSE);
        assert_eq!(run(&mut pace, &mut clock, near, Duration::from_millis(50)), 0.0);
    }

    #[test]
    fn results_stored_one_by_one_are_slow_sooner_than_copies() {
        let (mut copies, mut folds, mut clock) = (Pace::new(), Pace::of_folds(), Instant::now());
        let far = 700;
        assert_eq!(run(&mut copies, &mut clock, far, Duration::from_millis(50)), 0.0);
        assert!(run(&mut folds, &mut clock, far, Duration::from_millis(500)) > 0.99);
        run(&mut folds, &mut clock, 400, LONGEST_PAUSE);
        assert_eq!(run(&mut folds, &mut clock, 400, Duration::from_millis(50)), 0.0);
    }

    #[test]
    fn slots_of_cores_far_apart_are_emptied_in_strings() {
        let (mut pace, bytes) = (Pace::of_emptying(), 128 << 10);
        let mut ways = |bytes_per_ns: u64| {
            let mut empty = || {
                let way = pace.emptying();
                if way == Emptying::Timed {
                    pace.took(bytes, Duration::from_nanos(bytes as u64 / bytes_per_ns), Instant::now());
                }
                way
            };
            (0..200).map(|_| empty()).filter(|way| *way == Emptying::Strings).count()
        };
        assert_eq!(ways(34), 0);
        assert!(ways(16) > 100);
    }

    #[test]
    fn an_interruption_changes_nothing() {
        let (mut pace, clock) = (Pace::new(), Instant::now());
        for turn in 0..1000u64 {
            let took = if turn % 3 == 0 { 1_000_000 } else { 600 };
            pace.took(8192, Duration::from_nanos(took), clock);
            assert_ne!(pace.filling(true, || clock), Filling::Streaming);
            assert_eq!(pace.filling(false, || clock), Filling::Cached);
        }
    }
}
