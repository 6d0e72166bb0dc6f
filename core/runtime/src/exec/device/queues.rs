//! Whether the ranks of a process find queues enough on a device that they share.
//!
//! A device takes a process's work through few queues, over which streams are spread. In a queue what waits holds up what is behind
//! it, and kernels of one rank wait for those of another, so ranks whose streams share a queue may wait for each other for ever.
//! How many there are is set before the process starts: all that can be done later is to say so.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ccl_plan::Rank;

use crate::bootstrap::words;

/// What one rank of a communicator adds to the streams of its device, as long as this is there.
pub(super) struct Share {
    device: i32,
    /// The ranks of the communicator that are threads of this process and have the device: this one, too.
    ranks: Vec<Rank>,
    /// Streams of messages.
    messages: usize,
}

impl Share {
    pub(super) fn new(device: i32, ranks: Vec<Rank>) -> Share {
        lock().entry(device).or_default().ranks += 1;
        Share { device, ranks, messages: 0 }
    }

    /// Counts a stream for messages on host memory.
    pub(super) fn add_stream(&mut self) {
        self.messages += 1;
        self.warn_with(1);
    }

    /// Says if ranks of this process may wait for each other, once for each device.
    pub(super) fn warn(&self) {
        self.warn_with(0);
    }

    /// The same, with so many streams more.
    fn warn_with(&self, streams: usize) {
        let given = given(std::env::var(SETTING).ok().as_deref());
        let needed = {
            // At once: who comes first to need too many says so, and not how many others need in the meantime.
            let mut devices = lock();
            let load = devices.entry(self.device).or_default();
            load.messages += streams;
            let needed = needed(load.ranks, load.messages);
            if self.ranks.len() < 2 || needed <= given || load.is_told {
                return;
            }
            load.is_told = true;
            needed
        };
        let warning = warning(self.device, &self.ranks, needed, given);
        tracing::warn!(target: "ccl::exec", "{warning}");
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut devices = lock();
        let load = devices.entry(self.device).or_default();
        load.ranks -= 1;
        load.messages -= self.messages;
    }
}

/// How many queues give each stream of a device its own. Each rank of each communicator has one for calls that wait and, as far as
/// is known here, one of the caller's; one more for messages on host memory of each peer and direction; and all together
/// that of copies and the device's default one.
fn needed(ranks: usize, messages: usize) -> usize {
    2 + 2 * ranks + messages
}

/// How many the driver gives a process where the setting says so.
fn given(setting: Option<&str>) -> usize {
    let said = setting.and_then(|text| text.trim().parse().ok()).filter(|count| *count > 0);
    said.unwrap_or(USUAL).min(MOST)
}

fn warning(device: i32, ranks: &[Rank], needed: usize, given: usize) -> String {
    let ranks = words::ranks(ranks.iter().map(|rank| rank.0));
    let apart = "give each rank a process or a device of its own";
    let advice = match (given, needed) {
        (MOST, _) => format!("no device has more, so {apart}"),
        (_, ..=MOST) => format!("set {SETTING}={MOST} before the process starts, or {apart}"),
        _ => format!("set {SETTING}={MOST} before the process starts, which is the most, or {apart}"),
    };
    format!(
        "{ranks} share device {device} as threads of one process, whose streams there need {needed} queues and have {given}: ranks may wait for \
         each other for ever; {advice}"
    )
}

/// What there is on one device.
#[derive(Default)]
struct Load {
    /// Of all communicators.
    ranks: usize,
    messages: usize,
    is_told: bool,
}

fn lock() -> MutexGuard<'static, BTreeMap<i32, Load>> {
    LOADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By device.
static LOADS: Mutex<BTreeMap<i32, Load>> = Mutex::new(BTreeMap::new());
const SETTING: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// Where nothing is set.
const USUAL: usize = 8;
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_has_a_queue() {
        let golden = [(1, 0, 4), (2, 0, 6), (3, 0, 8), (4, 0, 10), (8, 0, 18), (15, 0, 32), (2, 4, 10)];
        for (ranks, messages, queues) in golden {
            assert_eq!(needed(ranks, messages), queues, "{ranks} ranks, {messages} streams of messages");
        }
    }

    #[test]
    fn the_setting_is_read_as_the_driver_does() {
        let golden =
            [(None, 8), (Some(""), 8), (Some("many"), 8), (Some("0"), 8), (Some("1"), 1), (Some("40"), 32)];
        for (setting, queues) in golden {
            assert_eq!(given(setting), queues, "{setting:?}");
        }
    }

    #[test]
    fn the_warning_says_what_to_set() {
        let said = |needed, given| warning(1, &[0, 1, 2, 5].map(Rank), needed, given);
        assert_eq!(
            said(10, 8),
            "ranks 0-2, 5 share device 1 as threads of one process, whose streams there need 10 queues and have 8: ranks may wait for each other for \
             ever; set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts, or give each rank a process or a device of its own"
        );
        assert!(
            said(34, 8)
                .contains("CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts, which is the most")
        );
        assert!(
            said(34, 32).ends_with("no device has more, so give each rank a process or a device of its own")
        );
    }

    #[test]
    fn what_is_gone_does_not_count() {
        // A device that no other test has.
        let load = || lock().get(&-1).map(|load| (load.ranks, load.messages, load.is_told));
        let mut one = Share::new(-1, vec![Rank(0)]);
        let other = Share::new(-1, vec![Rank(0), Rank(1)]);
        other.warn();
        (0..9).for_each(|_| one.add_stream());
        assert_eq!(load(), Some((2, 9, false)), "one rank alone waits for nobody here");
        drop(one);
        assert_eq!(load(), Some((1, 0, false)));
        drop(other);
        assert_eq!(load(), Some((0, 0, false)));
    }
}
