//! When to leave a socket alone for a moment.
//!
//! Who reads a stream of short messages is faster than who writes them: after each it looks in vain, and whenever it looks it holds
//! the socket's lock, for which the writer waits. A short rest lets several messages arrive, which one call reads and one
//! acknowledgement answers. Where each message is answered before the next one comes nothing rests, since there all wait for it; where
//! the answer goes another way, the single message that a rest finds tells (ADR 0095).

use std::time::{Duration, Instant};

/// The rests of one socket's reader.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Messages of a stream: close to each other, with nothing written between them,
    streak: u32,
    /// since then.
    since: Option<Instant>,
    /// What came with the last read.
    messages: u32,
    /// When that was, or when the rest after it ended.
    last: Option<Instant>,
    /// What the rank had written by the last read.
    writes: u32,
    until: Option<Instant>,
    /// Whether there was a rest since the last read,
    rested: bool,
    /// and one before it.
    had_rested: bool,
}

impl Rest {
    /// Whether the socket should be left alone now.
    #[inline]
    pub(crate) fn goes_on(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let Some(until) = self.until else { return false };
        let goes_on = now() < until;
        if !goes_on {
            (self.until, self.last) = (None, Some(until));
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
        let messages = std::mem::take(&mut self.messages);
        let close = self.last.is_some_and(|last| now.saturating_duration_since(last) < CLOSE);
        if close {
            self.streak = self.streak.saturating_add(messages);
        } else {
            (self.streak, self.since) = (0, Some(now));
        }
        (self.last, self.had_rested) = (Some(now), std::mem::take(&mut self.rested));
    }

    /// A message that was read begins.
    #[inline]
    pub(crate) fn begins(&mut self) {
        self.messages = self.messages.saturating_add(1);
    }

    /// Nothing was there. Rests once for each read that found something.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        if self.streak < STREAK || self.rested {
            return;
        }
        if self.had_rested && self.messages < 2 {
            // Whoever sent it had waited for this reader.
            (self.streak, self.since) = (0, self.last);
            return;
        }
        if let (Some(since), Some(last)) = (self.since, self.last) {
            self.rested = true;
            let each = last.saturating_duration_since(since) / self.streak;
            self.until = Some(last + (each * MESSAGES).min(LONGEST));
        }
    }
}

/// Messages that make a stream.
const STREAK: u32 = 128;
/// Reads of a stream are no further apart.
const CLOSE: Duration = Duration::from_micros(32);
/// A rest is as long as so many messages take,
const MESSAGES: u32 = 8;
/// but no longer than this.
const LONGEST: Duration = Duration::from_micros(32);

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(1);

    /// After as many messages as a stream needs, `apart` from each other, with `written` messages written between two; and when
    /// the last came.
    fn after_messages(apart: Duration, written: u32) -> (Rest, Instant) {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        for read in 0..STREAK + 2 {
            now += apart;
            rest.found(read * written, || now);
            rest.begins();
            assert!(!rest.goes_on(|| now));
        }
        rest.found_nothing();
        (rest, now)
    }

    #[test]
    fn a_stream_rests_once_for_each_read() {
        let (mut rest, now) = after_messages(SHORT, 0);
        let length = SHORT * MESSAGES;
        assert!(rest.goes_on(|| now + length - SHORT));
        assert!(!rest.goes_on(|| now + length));
        rest.found_nothing();
        assert!(!rest.goes_on(|| now + SHORT), "the next message is awaited");
        let now = now + length + SHORT;
        rest.found(0, || now);
        (0..MESSAGES).for_each(|_| rest.begins());
        rest.found_nothing();
        assert!(rest.goes_on(|| now + SHORT), "and the stream goes on");
    }

    #[test]
    fn who_rests_and_finds_one_message_was_awaited() {
        let (mut rest, mut now) = after_messages(SHORT, 0);
        for read in 0..STREAK {
            let rested = rest.goes_on(|| now + SHORT);
            assert_eq!(rested, read == 0, "{read}");
            now += LONGEST + SHORT;
            rest.goes_on(|| now);
            rest.found(0, || now);
            rest.begins();
            rest.found_nothing();
        }
    }

    #[test]
    fn rests_have_a_longest_length() {
        let (mut rest, now) = after_messages(CLOSE - SHORT, 0);
        assert!(rest.goes_on(|| now + LONGEST - SHORT));
        assert!(!rest.goes_on(|| now + LONGEST));
    }

    #[test]
    fn what_is_answered_or_seldom_is_awaited() {
        for (apart, written) in [(SHORT, 1), (CLOSE, 0)] {
            let (mut rest, now) = after_messages(apart, written);
            assert!(!rest.goes_on(|| now), "{apart:?} {written}");
        }
    }

    #[test]
    fn a_pause_ends_a_stream() {
        let (mut rest, now) = after_messages(SHORT, 0);
        let now = now + LONGEST + CLOSE;
        rest.goes_on(|| now);
        rest.found(0, || now);
        (0..MESSAGES).for_each(|_| rest.begins());
        rest.found_nothing();
        assert!(!rest.goes_on(|| now + SHORT));
    }
}
