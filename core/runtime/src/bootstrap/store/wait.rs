//! Waiting until a deadline, and saying so when it has passed.

use std::thread;
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use crate::error::{Error, Fault};

/// What is left until `deadline`; nothing once it has passed.
pub(super) fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// Pauses that double up to a limit.
pub(super) struct Pauses {
    next: Duration,
}

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses { next: SHORTEST }
    }

    /// Sleeps, not past `deadline`. Says whether there is time left.
    pub(super) fn pause(&mut self, deadline: Instant) -> bool {
        let Some(left) = left(deadline) else { return false };
        thread::sleep(self.next.min(left));
        self.next = (self.next * 2).min(LONGEST);
        true
    }
}

/// A key that did not come, which `setter` was to set.
pub(super) fn key_missing(key: &str, setter: Rank, place: &str, last: &str) -> Error {
    let cause = format!(
        "expected key `{key}`, which rank {setter} sets, in {place}; found no such key by the deadline: {last}"
    );
    let advice = "see whether that rank runs and reached the same call, or raise CCL_INIT_TIMEOUT";
    Error::new(Fault::Timeout, cause, advice).with_peer(setter)
}

/// Ranks that did not come for a key.
pub(super) fn ranks_missing(key: &str, place: &str, missing: &[u32], others: usize) -> Error {
    let listed: Vec<_> = missing.iter().take(MOST_LISTED).map(u32::to_string).collect();
    let more = if missing.len() > MOST_LISTED { " and more" } else { "" };
    let cause = format!(
        "expected {others} other ranks to get key `{key}` from {place}; missing by the deadline: {}{more}",
        listed.join(", ")
    );
    let error = Error::new(
        Fault::Timeout,
        cause,
        "see whether they run, reached the same call and have the same settings, or raise CCL_INIT_TIMEOUT",
    );
    match missing {
        [one] => error.with_peer(Rank(*one)),
        _ => error,
    }
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);
const MOST_LISTED: usize = 16;
