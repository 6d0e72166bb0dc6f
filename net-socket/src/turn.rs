//! When a look would be in vain.
//!
//! A rank that shares its core reads in its turn all that others wrote while they had the core. A read that found less than there was
//! room for has emptied the socket, and mostly nothing more comes until others had the core again: a look costs as much as a quarter
//! of sending a message, and the rank gives the core away after it anyway. So the first look after such a read is left out. A rank
//! that has its core for itself waits for whoever is at work on another, and looks on: it is back within no time.

use std::time::{Duration, Instant};

/// What one socket's reader knows of its turns.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Whether the last read emptied the socket.
    is_over: bool,
    /// When a look was left out, until the next one.
    since: Option<Instant>,
    /// Reads after which it looks on.
    looks_on: u32,
}

impl Turn {
    /// Something was read, `all` that there was or not.
    #[inline]
    pub(crate) fn found(&mut self, all: bool) {
        self.is_over = all && self.looks_on == 0;
        self.looks_on = self.looks_on.saturating_sub(1);
    }

    /// Whether not to look now. The next look is made in any case.
    #[inline]
    pub(crate) fn is_over(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if std::mem::take(&mut self.is_over) {
            self.since = Some(now());
            return true;
        }
        if let Some(since) = self.since.take()
            && now().saturating_duration_since(since) < SHORTEST
        {
            self.looks_on = READS;
        }
        false
    }
}

/// Another rank's turn takes longer.
const SHORTEST: Duration = Duration::from_micros(1);
/// Reads of a rank that has its core for itself until a look is left out again, to see whether that is still so.
const READS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a look is left out after a read of all, and how long until the next one.
    fn reads(turn: &mut Turn, away: Duration) -> bool {
        let now = Instant::now();
        turn.found(true);
        let left_out = turn.is_over(|| now);
        assert!(!turn.is_over(|| now + away), "the next look is made");
        left_out
    }

    #[test]
    fn who_shares_its_core_leaves_out_one_look_after_each_read_of_all() {
        let mut turn = Turn::default();
        assert!(!turn.is_over(Instant::now), "nothing was read");
        assert!((0..2 * READS).all(|_| reads(&mut turn, SHORTEST)));
        turn.found(false);
        assert!(!turn.is_over(Instant::now), "there may be more");
    }

    #[test]
    fn who_is_back_within_no_time_looks_on_for_many_reads() {
        let mut turn = Turn::default();
        let short = SHORTEST - Duration::from_nanos(1);
        for _ in 0..2 {
            assert!(reads(&mut turn, short));
            assert!((0..READS).all(|_| !reads(&mut turn, short)));
        }
        assert!(reads(&mut turn, SHORTEST), "it shares its core again");
        assert!(reads(&mut turn, SHORTEST));
    }
}
