//! Launches that return when their kernel has ended.
//!
//! With `CUDA_LAUNCH_BLOCKING`, which people set to find the kernel that failed, the driver holds whoever launches until the kernel
//! has ended. That kernel may wait for messages that come through the host, which the same thread would move. So another
//! thread launches, and this one moves messages and looks at the clock meanwhile.

use std::time::{Duration, Instant};

use super::engine::DeviceEngine;
use super::failed;
use crate::error::{Error, Fault, Result};
use crate::transport::Fabric;

impl DeviceEngine {
    /// Launches by `run`, which may return when its kernel has ended, unless it is captured. Blocks as long as `run` does, at most
    /// until the deadline.
    ///
    /// # Errors
    ///
    /// Of the driver; of edges that the kernel waits for; the deadline. Kernels have been ended then.
    pub(super) fn launched(
        &mut self,
        run: impl FnOnce() -> ccl_cuda::Result<()> + Send,
        is_captured: bool,
        fabric: &mut Fabric,
    ) -> Result<()> {
        if !self.opened.launches_block || is_captured {
            return run().map_err(failed);
        }
        let limit = self.opened.deadline;
        let mut stopped = None;
        let launched = std::thread::scope(|scope| {
            let launching = scope.spawn(run);
            let mut since = Instant::now();
            while !launching.is_finished() {
                let moved = if stopped.is_none() { self.move_messages(fabric) } else { Ok(false) };
                match moved {
                    Ok(true) => since = Instant::now(),
                    Ok(false) if stopped.is_none() && since.elapsed() >= limit => stopped = Some(late(limit)),
                    Ok(false) => std::thread::sleep(PAUSE),
                    Err(error) => stopped = Some(error),
                }
                if stopped.is_some() {
                    self.signals.abort();
                }
            }
            launching.join()
        });
        match (stopped, launched) {
            (Some(error), _) => Err(error),
            (None, Ok(launched)) => launched.map_err(failed),
            (None, Err(_)) => Err(Error::bug("a launch panicked")),
        }
    }

    /// Moves what can be moved for a kernel that is under way; whether that was something.
    fn move_messages(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let moved = self.turn_pumps(fabric)?;
        fabric.progress()?;
        self.wait_for_what_ended(moved)?;
        Ok(moved)
    }
}

/// Whether the driver's setting has launches wait for their kernels.
pub(super) fn is_set(setting: Option<&str>) -> bool {
    setting.and_then(|text| text.trim().parse::<i64>().ok()).is_some_and(|number| number != 0)
}

#[cold]
fn late(limit: Duration) -> Error {
    Error::new(
        Fault::Timeout,
        format!("a launch that waits for its kernel ({SETTING}) stood still for {limit:?}"),
        "look at the ranks whose data it waits for; ranks of one thread cannot launch so: unset CUDA_LAUNCH_BLOCKING",
    )
}

/// The driver's.
pub(super) const SETTING: &str = "CUDA_LAUNCH_BLOCKING";
const PAUSE: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_read_as_the_driver_does() {
        let golden =
            [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true), (Some("yes"), false)];
        for (setting, blocks) in golden {
            assert_eq!(is_set(setting), blocks, "{setting:?}");
        }
    }
}
