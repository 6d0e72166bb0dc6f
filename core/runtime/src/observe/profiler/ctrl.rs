//! What the progress thread does for a communicator.

use std::sync::Arc;

use super::emitter::{Emitter, now_ns};
use super::record::Body;
use super::{Kind, StateKind};

/// A communicator in the hands of the progress thread; dropped when it lets go.
pub(crate) struct Ctrl(Arc<Emitter>);

impl Ctrl {
    /// The thread takes on so many operations.
    pub(crate) fn taken_on(emitter: &Arc<Emitter>, operations: usize) -> Ctrl {
        let ctrl = Ctrl(Arc::clone(emitter));
        let now = now_ns();
        ctrl.put(&[(StateKind::CtrlAppend, now, 0), (StateKind::CtrlAppendEnd, now_ns(), operations as u64)]);
        ctrl.put(&[(StateKind::CtrlActive, now_ns(), 0)]);
        ctrl
    }

    /// The thread has slept since then.
    pub(crate) fn slept(&self, since_ns: u64) {
        self.put(&[(StateKind::CtrlSleep, since_ns, 0), (StateKind::CtrlWakeup, now_ns(), 0)]);
    }

    /// One event with these states, each with its time and count.
    fn put(&self, states: &[(StateKind, u64, u64)]) {
        // The mask is looked at each time: what the thread does belongs to no launch.
        let (Some((_, first, _)), Some((_, last, _))) = (states.first(), states.last()) else { return };
        let mut span = self.0.start_at(Kind::ProxyCtrl, self.0.top(), *first, Body::Bare);
        for (state, time_ns, count) in states {
            self.0.state_at(span, *state, *time_ns, (0, *count));
        }
        self.0.stop_at(&mut span, *last);
    }
}

impl Drop for Ctrl {
    fn drop(&mut self) {
        self.put(&[(StateKind::CtrlIdle, now_ns(), 0)]);
    }
}
