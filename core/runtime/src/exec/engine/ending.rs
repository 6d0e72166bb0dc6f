//! How an engine ends: it is closed, or it fails.

use ccl_plan::Rank;

use super::Engine;
use crate::error::{Error, Fault};
use crate::transport::Visitors;

impl Engine {
    /// Leaves the communicator without waiting for anyone.
    pub(crate) fn close(mut self) {
        self.queue.clear();
        let _relaxed = self.device.as_ref().and_then(|device| device.leave_captures_alone());
        self.device = None;
        self.control.leave();
        self.fabric.close();
    }

    /// The communicator has failed: nothing more runs, and every gate opens.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        match &self.failed {
            Some(first) if self.asleep.is_none() => return first.clone(),
            _ => self.asleep = None,
        }
        let on_device = self.device.as_ref().and_then(|device| device.oldest());
        let bound =
            self.queue.front().map(|queued| &queued.operation.bound).or(on_device.map(|call| &call.bound));
        let operation = bound.map(|bound| bound.collective.name());
        let mut error = error.on(self.rank);
        if let Some(operation) = operation {
            error = error.during(operation);
        }
        self.failed = Some(error.clone());
        let messages = self.messages_under_way();
        self.fabric.abort();
        if let Some(device) = &mut self.device {
            device.abort(&error);
        }
        // From here on no rank uses the buffers of any operation, whose borrows end with the error.
        if self.fabric.await_visitors() == Visitors::Stopped {
            self.queue.iter().for_each(|queued| queued.operation.detach(self.n));
        }
        for mut queued in self.queue.drain(..) {
            if let Some(profile) = &mut self.profile {
                profile.end(&mut queued.operation.ticket);
            }
            if let Some(gate) = queued.gate {
                gate.fail(error.clone());
            }
        }
        self.flight.failed(&self.board, &messages);
        error
    }

    /// A transport failed under an operation: the root decides what the first cause was.
    pub(super) fn failed_path(&mut self, index: usize, error: Error) -> Error {
        if *error.fault() == Fault::Usage {
            return error;
        }
        let operation = &self.queue[index].operation;
        self.control.report(error.on(self.rank).during(operation.bound.collective.name()))
    }

    /// A peer is in another operation, or in this one with other arguments.
    pub(super) fn mismatched(&mut self, index: usize, peer: Rank, detail: String) -> Error {
        let operation = &self.queue[index].operation;
        if operation.is_message() {
            return Error::new(
                Fault::Remote { rank: peer },
                detail,
                "give the send and the matching receive the same count and dtype, in the same order",
            )
            .with_peer(peer);
        }
        self.control.diagnose(operation.sequence, Some(peer)).with_peer(peer)
    }

    /// The deadline passed.
    pub(super) fn overdue(&mut self) -> Error {
        if let Some(call) = self.device.as_ref().and_then(|device| device.oldest()) {
            return self.control.diagnose(call.sequence, None);
        }
        let Some(queued) = self.queue.front() else {
            return Error::new(
                Fault::Timeout,
                format!("expected the network to take what was sent within {:?}", self.deadline),
                "check the network, or raise CCL_TIMEOUT",
            );
        };
        let position = queued.operation.position();
        if let Some(peer) = position.waiting_for {
            self.board.wait(position.instruction, peer);
        }
        if queued.operation.is_message() {
            let peer = queued.operation.bound.root;
            return Error::new(
                Fault::Timeout,
                format!(
                    "expected rank {peer} to take part within {:?}, found no matching call",
                    self.deadline
                ),
                "check that the peer makes the matching call, or raise CCL_TIMEOUT",
            )
            .with_peer(peer);
        }
        self.control.diagnose(queued.operation.sequence, position.waiting_for)
    }
}
