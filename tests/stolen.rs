//! Time that a host which runs other machines too keeps from this one.

use std::time::Duration;

/// Counts from where it is made. A test that says how soon something must happen grants this on top: what the host
/// takes is no fault of the library.
pub struct Stolen(Duration);

impl Stolen {
    /// Starts to count.
    pub fn watch() -> Stolen {
        Stolen(total())
    }

    /// What was taken since, of all CPUs together: at least what any one thread lost to it.
    pub fn so_far(&self) -> Duration {
        // Counted in steps of a hundredth of a second, on either side.
        total().saturating_sub(self.0) + Duration::from_millis(20)
    }
}

/// As the kernel counts it; nothing where it does not.
fn total() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // cpu, user, nice, system, idle, iowait, irq, softirq, steal: hundredths of a second
    let steal = text.lines().next().and_then(|line| line.split_whitespace().nth(8));
    Duration::from_millis(10 * steal.and_then(|number| number.parse().ok()).unwrap_or(0))
}
