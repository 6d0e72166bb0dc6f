//! Turns: the order in which ranks that share a core take turns.
//!
//! Ranks that wait on a shared core give it away, and the system gives it to them in a circle, whose order is chance and stays as it
//! is. Where each of them waits for another in the circle, as in a ring, that order decides how far a turn goes. If
//! whoever is waited for comes just before, all that it sent in its turn is there: a turn goes on as many messages as there
//! are ranks. If it comes just behind, a turn goes on one.
//!
//! So a rank looks who had the core last before it came back. Where that is for long not the rank on the core that it waits for, it does
//! not yield once, but sleeps until that rank gives the core away, which wakes it then: so it comes behind it in the circle.
//! Nothing relies on any of this; each word is a hint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ccl_plan::Rank;
use rustix::thread::futex;

use super::layout::Region;
use super::neighbours::Neighbours;
use super::presence::Presence;

/// The words in a region's header, in a line of their own, which only ranks of one core use.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct TurnLine {
    /// In the region of the first rank of a core: the place of the rank that gave the core away last, counted from 1.
    last: AtomicU32,
    /// Who sleeps until the owner gives its core away, as above; 0 for nobody.
    follower: AtomicU32,
    /// Not 0 if the owner is in its place: behind whoever it waits for, or that has another core.
    settled: AtomicU32,
}

/// What a rank knows of the circle that it belongs to.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// As this rank said where it was when it looked who else is there.
    seen: Option<Presence>,
    /// Turns until it looks again,
    left: u32,
    /// after which it looks half as often: at first others have not said yet where they are.
    interval: u32,
    /// Of the first rank of the core; none where no other rank has it.
    first: Option<Arc<Region>>,
    /// Whether that is this rank: where all wait for each other in a circle, it is the one to go by.
    is_first: bool,
    /// Whether each rank of the host has the same core.
    mates: Vec<bool>,
    patience: TurnPatience,
}

/// When to change places.
#[derive(Debug)]
pub(crate) struct TurnPatience {
    /// Turns in a row before which somebody else had the core than the rank that was waited for; below 0 after a change of places.
    late: i32,
    /// Turns after the next change of places in which there is no other.
    rest: i32,
}

impl TurnLine {
    /// The core is about to be given away by the owner: whoever wants to come behind it is woken.
    #[inline]
    pub(super) fn wake_follower(&self) {
        // Relaxed, here and below: hints, which order nothing.
        if self.follower.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.follower.store(0, Ordering::Relaxed);
        // Shared, not private: the sleeper may be another process. A failure only delays it.
        let _ = futex::wake(&self.follower, futex::Flags::empty(), 1);
    }

    fn settle(&self, settled: bool) {
        if (self.settled.load(Ordering::Relaxed) != 0) != settled {
            self.settled.store(u32::from(settled), Ordering::Relaxed);
        }
    }

    /// Sleeps until the owner gives its core away, if nobody else does.
    fn follow(&self, place: u32) {
        if self.follower.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return std::thread::yield_now();
        }
        if let Ok(limit) = LONGEST_SLEEP.try_into() {
            let _ = futex::wait(&self.follower, futex::Flags::empty(), place, Some(&limit));
        }
        let _ = self.follower.compare_exchange(place, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Turns {
    /// Gives the core to others, and waits for `peer`.
    pub(crate) fn give(&mut self, neighbours: &Neighbours, peer: Rank) {
        let own = neighbours.own();
        self.look(neighbours);
        let Some(first) = &self.first else { return own.presence().leave(std::thread::yield_now) };
        own.turns().wake_follower();
        let place = |local: usize| local as u32 + 1;
        first.turns().last.store(place(neighbours.me()), Ordering::Relaxed);
        let mate = neighbours.reachable(peer).filter(|(local, _)| self.mates.get(*local) == Some(&true));
        let Some((local, region)) = mate else {
            own.turns().settle(true);
            return own.presence().leave(std::thread::yield_now);
        };
        // Behind one that has yet to find its place there is none.
        let changes = self.patience.is_over() && region.turns().settled.load(Ordering::Relaxed) != 0;
        own.presence().leave(|| match changes {
            true => region.turns().follow(place(neighbours.me())),
            false => std::thread::yield_now(),
        });
        let is_behind = first.turns().last.load(Ordering::Relaxed) == place(local);
        self.patience.turn(is_behind, changes);
        own.turns().settle(is_behind || self.is_first);
    }

    /// Looks who else has the core, if that may have changed.
    fn look(&mut self, neighbours: &Neighbours) {
        let own = Presence::of(neighbours.own());
        let is_here = self.seen == Some(own);
        if is_here && self.left > 0 {
            self.left -= 1;
            return;
        }
        self.seen = Some(own);
        self.interval = if is_here { (self.interval * 2).min(LONGEST_INTERVAL) } else { FIRST_INTERVAL };
        self.left = self.interval;
        let has_it = |local: usize| {
            let found = neighbours.region(local).map(Presence::of);
            own.is_said() && found.is_some_and(|found| found.shares_with(own))
        };
        self.mates = (0..neighbours.count()).map(has_it).collect();
        let first = self.mates.iter().position(|mate| *mate);
        let alone = self.mates.iter().filter(|mate| **mate).count() < 2;
        self.is_first = first == Some(neighbours.me());
        self.first = first.filter(|_| !alone).and_then(|local| neighbours.shared_region(local));
        self.mates[neighbours.me()] = false;
    }
}

impl TurnPatience {
    /// Whether the next turn is given away by a sleep.
    pub(crate) fn is_over(&self) -> bool {
        self.late >= LATE
    }

    /// A turn came, behind that of whoever is waited for or not, and after a sleep or not.
    pub(crate) fn turn(&mut self, is_behind: bool, changed: bool) {
        if changed {
            // Sleeps that lead nowhere are made ever more seldom.
            self.rest = if is_behind { REST } else { (self.rest * 2).min(LONGEST_REST) };
            self.late = -self.rest;
        } else if is_behind {
            self.late = self.late.min(0);
        } else {
            self.late += 1;
        }
    }
}

impl Default for TurnPatience {
    fn default() -> TurnPatience {
        TurnPatience { late: 0, rest: REST }
    }
}

/// So many turns in the wrong place are no accident.
const LATE: i32 = 8;
/// So many turns at least are between two changes of places. Without any, ranks of a core would undo each other's; with many times as
/// many, a circle that a sleep did not mend stays wrong.
const REST: i32 = 16;
const LONGEST_REST: i32 = 64;
/// A rank that does not give its core away in so many microseconds computes.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_micros(100);
/// Ranks are at work within so many turns of each other,
const FIRST_INTERVAL: u32 = 8;
/// and move from core to core more seldom than this.
const LONGEST_INTERVAL: u32 = 4096;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::transport::shm::Bell;

    /// Says for both regions where this thread is, until that is the same core.
    fn on_one_core(neighbours: &[Neighbours; 2]) {
        let say = |one: &Neighbours| {
            one.own().presence().leave(|| {});
            Presence::of(one.own())
        };
        while say(&neighbours[0]) != say(&neighbours[1]) {}
    }

    #[test]
    fn a_rank_sleeps_for_the_one_it_waits_for_once_that_has_its_place() {
        let (zero, one) = Neighbours::pair_for_tests();
        let both = [zero, one];
        let mut turns = [Turns::default(), Turns::default()];
        let mut give = |me: usize| {
            on_one_core(&both);
            turns[me].give(&both[me], Rank(1 - me as u32));
            (turns[me].first.is_some(), turns[me].is_first, turns[me].patience.late)
        };
        let settled = |me: usize| both[me].own().turns().settled.load(Ordering::Relaxed) != 0;
        for late in 1..=2 * LATE {
            assert_eq!(give(1), (true, false, late), "rank 0 was never there");
        }
        assert!(!settled(0) && !settled(1));
        let (_, is_first, late) = give(0);
        assert!(is_first && settled(0), "it is the one to go by");
        assert_eq!(late, 1, "nobody else had the core meanwhile");
        assert_eq!(give(1), (true, false, -2 * REST), "it slept, and rank 0 did not come");
        assert_eq!(both[0].own().turns().follower.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranks_of_other_cores_are_not_followed() {
        let both = Neighbours::pair_for_tests();
        let mut turns = Turns::default();
        // Rank 0 has not said where it is.
        for _ in 0..3 * LATE {
            turns.give(&both.1, Rank(0));
        }
        assert!(turns.first.is_none() && turns.patience.late == 0);
    }

    #[test]
    fn places_are_changed_after_many_late_turns_and_then_not_for_a_while() {
        let mut patience = TurnPatience::default();
        let late = |patience: &mut TurnPatience| {
            (1..).find(|_| {
                patience.turn(false, false);
                patience.is_over()
            })
        };
        assert_eq!(late(&mut patience), Some(LATE));
        patience.turn(true, true);
        assert_eq!(late(&mut patience), Some(LATE + REST), "it came behind, and others moved it since");
        // Good turns end a row of late ones, and shorten no rest.
        patience.turn(true, true);
        for _ in 0..3 * LATE {
            patience.turn(false, false);
            patience.turn(true, false);
        }
        assert!(!patience.is_over());
        for rest in [2 * REST, LONGEST_REST, LONGEST_REST] {
            patience.turn(false, true);
            assert_eq!(late(&mut patience), Some(LATE + rest), "sleeps that lead nowhere");
        }
        (0..20).for_each(|_| patience.turn(false, true));
        assert_eq!(patience.rest, LONGEST_REST);
        patience.turn(true, true);
        assert_eq!(patience.rest, REST);
    }

    #[test]
    fn who_follows_is_woken_by_whoever_it_follows() {
        let region = Arc::new(Region::for_tests(2));
        let (line, bell) = (region.turns(), Bell::of(Arc::clone(&region)));
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                // Sleeps are bounded, so one may end before the other thread comes.
                (0..1000).any(|_| {
                    let begin = Instant::now();
                    line.follow(7);
                    begin.elapsed() < LONGEST_SLEEP
                })
            });
            while !follower.is_finished() {
                bell.yield_core();
            }
            assert!(follower.join().unwrap(), "no sleep was ended");
        });
        assert_eq!(line.follower.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_rank_follows_at_a_time_and_no_sleep_is_long() {
        let region = Region::for_tests(2);
        let line = region.turns();
        line.follower.store(3, Ordering::Relaxed);
        let begin = Instant::now();
        line.follow(7);
        assert_eq!(line.follower.load(Ordering::Relaxed), 3);
        line.follower.store(0, Ordering::Relaxed);
        line.follow(7);
        assert_eq!(line.follower.load(Ordering::Relaxed), 0);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}
