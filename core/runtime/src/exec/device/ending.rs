//! How a device's engine ends: kernels are told to, and nothing that they use goes before they have.

use std::time::Duration;

use ccl_cuda::Event;

use super::engine::DeviceEngine;
use crate::error::Error;

impl DeviceEngine {
    /// Ends all kernels and waits until none runs: no buffer is used once this returns. Every gate fails.
    pub(crate) fn abort(&mut self, error: &Error) {
        let _relaxed = self.leave_captures_alone();
        self.stop();
        for queued in self.queue.drain(..) {
            if let Some(gate) = queued.gate {
                gate.fail(error.clone());
            }
        }
    }

    /// Sets the abort flag and waits for kernels that run, and for copies of calls that were not launched.
    fn stop(&self) {
        self.windows.leases.silence();
        self.signals.abort();
        for event in self.queue.iter().filter_map(|queued| queued.event.as_ref()) {
            wait_for(event);
        }
        if let Err(error) = self.copy_stream.synchronize() {
            tracing::debug!(%error, "a copy ended badly");
        }
    }
}

impl Drop for DeviceEngine {
    fn drop(&mut self) {
        let _relaxed = self.leave_captures_alone();
        if !self.is_put_down {
            self.stop();
        }
        for stream in self.streams.values().chain([&self.own_stream]) {
            if let Err(error) = stream.synchronize() {
                tracing::debug!(%error, "a stream ended badly");
            }
        }
    }
}

/// Waits for a kernel that was told to end. Whoever called may free what it uses, so a driver that will not wait because of
/// somebody's capture is asked again.
fn wait_for(event: &Event) {
    while let Err(error) = event.synchronize() {
        if error.fault() != ccl_cuda::Fault::Capture {
            tracing::debug!(%error, "a kernel ended badly");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
