//! When to leave a socket alone for a moment.
//!
//! Who reads a stream of short messages is faster than who writes them: after each it looks in vain, and whenever it looks it holds
//! the socket's lock, for which the writer waits. A short rest lets several messages arrive, which one call reads. Where each
//! message is answered before the next one comes nothing rests, since there all wait for it.

use std::time::{Duration, Instant};

/// The rests of one socket's reader.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Messages read close to each other, with nothing written between them.
    streak: u32,
    last: Option<Instant>,
    /// What the rank had written by then.
    writes: u32,
    until: Option<Instant>,
    /// Whether there was a rest since.
    rested: bool,
}

impl Rest {
    /// Whether the socket should be left alone now.
    #[inline]
    pub(crate) fn goes_on(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let Some(until) = self.until else { return false };
        let goes_on = now() < until;
        if !goes_on {
            self.until = None;
        }
        goes_on
    }

    /// Something was read. The rank had written `writes` messages by then, to whomever.
    #[inline]
    pub(crate) fn found(&mut self, writes: u32, now: impl FnOnce() -> Instant) {
        if self.writes != writes {
            *self = Rest { writes, ..Rest::default() };
            return;
        }
        let now = now();
        let close = self.last.is_some_and(|last| now.saturating_duration_since(last) < CLOSE);
        self.streak = if close { self.streak.saturating_add(1) } else { 0 };
        (self.last, self.rested) = (Some(now), false);
    }

    /// Nothing was there. Rests once for each message found.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        if self.streak >= STREAK && !std::mem::replace(&mut self.rested, true) {
            self.until = self.last.map(|last| last + LENGTH);
        }
    }
}

/// Reads that make a stream.
const STREAK: u32 = 16;
/// Such reads are no further apart. A message that is answered takes longer to be followed by another.
const CLOSE: Duration = Duration::from_micros(8);
/// How long after a read.
const LENGTH: Duration = Duration::from_micros(4);

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(1);

    /// After as many reads as a stream needs, `apart` from each other, with `written` messages written between two; and when the
    /// last was.
    fn after_reads(apart: Duration, written: u32) -> (Rest, Instant) {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        for read in 0..STREAK + 2 {
            now += apart;
            rest.found(read * written, || now);
            assert!(!rest.goes_on(|| now));
        }
        rest.found_nothing();
        (rest, now)
    }

    #[test]
    fn a_stream_rests_once_for_each_message() {
        let (mut rest, now) = after_reads(SHORT, 0);
        assert!(rest.goes_on(|| now + SHORT));
        assert!(!rest.goes_on(|| now + LENGTH));
        rest.found_nothing();
        assert!(!rest.goes_on(|| now + SHORT), "the next message is awaited");
        let now = now + LENGTH + SHORT;
        rest.found(0, || now);
        rest.found_nothing();
        assert!(rest.goes_on(|| now + SHORT), "and the stream goes on");
    }

    #[test]
    fn what_is_answered_or_seldom_is_awaited() {
        for (apart, written) in [(SHORT, 1), (CLOSE, 0)] {
            let (mut rest, now) = after_reads(apart, written);
            assert!(!rest.goes_on(|| now), "{apart:?} {written}");
        }
    }

    #[test]
    fn a_pause_ends_a_stream() {
        let (mut rest, now) = after_reads(SHORT, 0);
        let now = now + CLOSE;
        rest.found(0, || now);
        rest.found_nothing();
        assert!(!rest.goes_on(|| now + SHORT));
    }
}
