//! What makes the traces of several processes and hosts fit together.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The time of day, in nanoseconds since 1970, at which the clock of events was 0.
pub(crate) fn base_ns() -> u64 {
    let clock = clock_gettime(ClockId::Monotonic);
    let clock_ns = clock.tv_sec as u64 * 1_000_000_000 + clock.tv_nsec as u64;
    let day_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    day_ns.saturating_sub(clock_ns)
}

/// Names the host until it is started anew: ranks that have the same share the clock of events. Empty if the
/// system does not say.
pub(crate) fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
