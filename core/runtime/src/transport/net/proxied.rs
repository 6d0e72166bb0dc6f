//! What a profiler hears of one network edge: its part in each operation, and the messages of that.

use std::collections::VecDeque;
use std::sync::Arc;

use ccl_plan::{Channel, Rank};

use crate::observe::profiler::{Body, Emitter, Kind, Span, StateKind};

/// Puts down the events of one end of an edge.
pub(super) struct Proxied {
    emitter: Arc<Emitter>,
    peer: Rank,
    channel: Channel,
    is_send: bool,
    /// The operation that `op` is a part of.
    of: Span,
    op: Span,
    /// Messages of `op` so far.
    steps: u64,
    /// Messages that are not over: number on the edge, event, bytes.
    open: VecDeque<(u64, Span, u64)>,
    /// Messages begun so far.
    begun: u64,
}

impl Proxied {
    pub(super) fn new(emitter: Arc<Emitter>, (peer, channel): (Rank, Channel), is_send: bool) -> Proxied {
        let (of, op) = (Span::default(), Span::default());
        let open = VecDeque::new();
        Proxied { emitter, peer, channel, is_send, of, op, steps: 0, open, begun: 0 }
    }

    /// A message of the operation that is being driven is ready to be sent.
    pub(super) fn posted(&mut self, message: u64, bytes: usize) {
        self.begin(message, bytes as u64, StateKind::SendPeerWait);
    }

    /// The network has all messages before this one.
    pub(super) fn given(&mut self, from: u64, before: u64) {
        for (message, span, bytes) in &self.open {
            if (from..before).contains(message) {
                self.emitter.state(*span, StateKind::SendWait, *bytes, 0);
            }
        }
    }

    /// The operation that is being driven looks for a message; once is enough.
    pub(super) fn awaits(&mut self, message: u64) {
        if message >= self.begun {
            self.begin(message, 0, StateKind::RecvWait);
        }
    }

    /// The message is there.
    pub(super) fn arrived(&mut self, message: u64, bytes: usize) {
        if let Some((_, span, _)) = self.open.iter().find(|(open, ..)| *open == message) {
            self.emitter.state(*span, StateKind::RecvDone, bytes as u64, 0);
        }
    }

    /// All messages before this one are over.
    pub(super) fn over(&mut self, before: u64) {
        while let Some((message, span, _)) = self.open.front_mut()
            && *message < before
        {
            self.emitter.stop(span);
            self.open.pop_front();
        }
    }

    fn begin(&mut self, message: u64, bytes: u64, state: StateKind) {
        self.begun = message + 1;
        let of = self.emitter.current();
        if of != self.of {
            self.end_op();
            self.of = of;
        }
        if !of.wants(Kind::ProxyOp) {
            return;
        }
        if self.steps == 0 {
            let (channel, peer, is_send) = (self.channel.0.into(), self.peer.0, self.is_send);
            let body = Body::ProxyOp { chunk_bytes: bytes, channel, peer, is_send };
            self.op = self.emitter.start(Kind::ProxyOp, of, body);
            self.emitter.state(self.op, StateKind::ProxyOpProgress, 0, 0);
        }
        let body = Body::ProxyStep { step: self.steps, bytes };
        self.steps += 1;
        let step = self.emitter.start(Kind::ProxyStep, self.op, body);
        if step.id() != 0 {
            self.emitter.state(step, state, bytes, 0);
            self.open.push_back((message, step, bytes));
        }
    }

    /// What the network still has of it ends with it, for the profiler.
    fn end_op(&mut self) {
        self.over(u64::MAX);
        self.emitter.stop(&mut self.op);
        self.steps = 0;
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        self.end_op();
    }
}
