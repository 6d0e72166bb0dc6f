//! Visits: using the memory of other ranks directly, and keeping them out of one's own.
//!
//! A rank says that it is visiting, looks whether anybody has taken memory back, works for at most about
//! a millisecond, looks again and leaves. A rank that takes its memory back says so first and then waits
//! until nobody visits who might not have seen it. One of the two sees the other, so once
//! [`Neighbours::await_visitors`] has returned [`Visitors::Gone`] nobody reads or writes the memory any
//! more, and whoever was there knows that its work counts for nothing.

use std::time::{Duration, Instant};

use ccl_plan::Rank;

use super::neighbours::Neighbours;

/// Whether other ranks may still use this rank's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visitors {
    /// Nobody does, for good.
    Gone,
    /// A process that does not run, and has not ended, might finish a visit when it runs again.
    Stopped,
}

impl Neighbours {
    /// Runs `work`, which uses the memory of other ranks, unless one of them has taken it back; then
    /// nothing happens, or what happened does not count. The rank that did is the error.
    pub(crate) fn visit(&self, work: impl FnOnce()) -> Result<(), Rank> {
        self.own().begin_visit();
        let mut outcome = self.nobody_withdrew();
        if outcome.is_ok() {
            work();
            outcome = self.nobody_withdrew();
        }
        self.own().end_visit();
        outcome
    }

    /// Waits until nobody visits. Call it after [`Neighbours::withdraw`].
    ///
    /// Threads of this process are waited for however long they take, processes at most half a second.
    pub(crate) fn await_visitors(&self) -> Visitors {
        let until = Instant::now() + LONGEST_WAIT;
        let stopped = self.others().any(|local| !self.left(local, until));
        if stopped { Visitors::Stopped } else { Visitors::Gone }
    }

    fn left(&self, local: usize, until: Instant) -> bool {
        let Some(region) = self.region(local) else { return true };
        while region.is_visiting() {
            if !self.is_thread(local) {
                if self.has_ended(local) {
                    return true;
                }
                if Instant::now() >= until {
                    return false;
                }
            }
            std::thread::yield_now();
        }
        true
    }

    fn nobody_withdrew(&self) -> Result<(), Rank> {
        let withdrawn = |local: &usize| self.region(*local).is_some_and(|region| region.withdrawn());
        self.others().find(withdrawn).map_or(Ok(()), |local| Err(self.rank(local)))
    }
}

/// A visit takes about a millisecond; with many ranks on few cores, as many times that.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[test]
    fn nobody_visits_once_memory_was_taken_back() {
        let count = |value: &AtomicU32| {
            value.fetch_add(1, Ordering::Relaxed);
        };
        for round in 0..50 {
            let (owner, visitor) = Neighbours::pair_for_tests();
            let (value, ended) = (AtomicU32::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while visitor.visit(|| count(&value)).is_ok() {}
                    ended.store(true, Ordering::Relaxed);
                });
                std::thread::sleep(Duration::from_micros(10 * round));
                owner.withdraw();
                assert_eq!(owner.await_visitors(), Visitors::Gone);
                let last = value.load(Ordering::Relaxed);
                while !ended.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                assert_eq!(value.load(Ordering::Relaxed), last, "somebody came after");
            });
            assert_eq!(visitor.visit(|| unreachable!()), Err(Rank(0)));
        }
    }
}
