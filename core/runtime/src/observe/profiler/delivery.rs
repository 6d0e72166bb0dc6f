//! What the profiler's guarantees rest on: the one place that calls it.
//!
//! Whatever is put down, and in whatever order, the profiler hears of balanced events: of a stop the
//! first counts, children that are still open stop before their parent, and what is open when the
//! communicator closes stops then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ccl_plugin_host::profiler::{
    CclProfilerOfV1, CclProfilerStateV1, CclProfilerSummaryV1, Handle, Kind, ProfilerContext,
};

use super::emitter::{Emitter, now_ns};
use super::record::{TIME_WORD, Taken};
use super::share::Share;

/// One communicator's way to its profiler.
pub(super) struct Delivery {
    emitter: Arc<Emitter>,
    context: ProfilerContext,
    /// Records taken so far.
    taken: u64,
    open: HashMap<u64, Open>,
    started: u64,
    refused: u64,
    /// Everything is passed on so long after it happened; 0: as soon as may be.
    lag_ns: u64,
    /// The most of a core that this may take.
    share: Share,
}

/// An event that has started and not stopped.
struct Open {
    /// What the plugin made of it.
    handle: Option<Handle>,
    /// The same, or that of the nearest ancestor that the plugin took.
    nearest: Option<(Handle, Kind)>,
    parent: u64,
    children: Vec<u64>,
}

impl Delivery {
    /// `share` is the most of a core that it may take.
    pub(super) fn new(emitter: Arc<Emitter>, context: ProfilerContext, share: Share) -> Delivery {
        // A profiler made for NCCL takes times when it is called: so it is called at the distances of the events.
        let lag_ns = if context.plugin().is_made_for_nccl() { LAG_NS } else { 0 };
        Delivery { emitter, context, taken: 0, open: HashMap::new(), started: 0, refused: 0, lag_ns, share }
    }

    /// Passes on a few records; whether there were any.
    pub(super) fn deliver(&mut self) -> bool {
        let (before, turn) = (self.taken, self.share().turn());
        while self.taken - before < turn {
            if self.due_ns().is_some_and(|due| due > now_ns()) {
                break;
            }
            let Some(words) = self.emitter.ring.take(self.taken) else { break };
            self.taken += 1;
            match Taken::from_words(&words) {
                Some(Taken::Start { kind, id, parent, time_ns, of }) => {
                    self.start(kind, (id, parent), time_ns, of);
                }
                Some(Taken::Stop { id, time_ns }) => self.stop(id, time_ns),
                Some(Taken::State { id, state, time_ns, bytes, count }) => {
                    if let Some(handle) = self.open.get(&id).and_then(|open| open.handle) {
                        let size = size_of::<CclProfilerStateV1>() as u32;
                        let state = CclProfilerStateV1 { size, state: state as u32, time_ns, bytes, count };
                        self.context.record_event_state(handle, &state);
                    }
                }
                None => {}
            }
        }
        self.taken != before
    }

    /// When the next record is to be passed on, if there is one and that matters.
    pub(super) fn due_ns(&self) -> Option<u64> {
        if self.lag_ns == 0 {
            return None;
        }
        self.emitter.ring.peek(self.taken, TIME_WORD).map(|time_ns| time_ns + self.lag_ns)
    }

    /// The most of a core that the thread may take for it now: all of one once the communicator is closed, and where the
    /// profiler's times are when it is called.
    pub(super) fn share(&self) -> Share {
        let hurries = self.lag_ns > 0 || self.emitter.closed.load(Ordering::Acquire);
        if hurries { Share::ALL } else { self.share }
    }

    /// Whether something is there to be passed on.
    pub(super) fn has_news(&self) -> bool {
        self.emitter.closed.load(Ordering::Acquire) || self.emitter.ring.has(self.taken)
    }

    /// Whether the communicator is closed and everything was passed on.
    pub(super) fn is_over(&self) -> bool {
        // Acquire: pairs with the store in `Profile::drop`: what was put down before it is seen.
        self.emitter.closed.load(Ordering::Acquire) && !self.emitter.ring.has(self.taken)
    }

    /// Stops what is open and finalises.
    pub(super) fn finish(mut self) {
        let time_ns = now_ns();
        let mut ids: Vec<u64> = self.open.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.stop(id, time_ns));
        let dropped = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let (dropped_events, dropped_states) =
            (dropped(&self.emitter.dropped_events), dropped(&self.emitter.dropped_states));
        if dropped_events + dropped_states > 0 {
            let profiler = self.context.plugin().name();
            tracing::warn!(
                target: "ccl::profiler", profiler, dropped_events, dropped_states,
                "the profiler did not keep up: events were dropped",
            );
        }
        self.context.finalize(&CclProfilerSummaryV1 {
            size: size_of::<CclProfilerSummaryV1>() as u32,
            reserved: 0,
            time_ns,
            started: self.started,
            refused: self.refused,
            dropped_events,
            dropped_states,
        });
    }

    fn start(&mut self, kind: Kind, (id, parent): (u64, u64), time_ns: u64, of: CclProfilerOfV1) {
        // A parent that has stopped is none.
        let (parent, nearest) = match self.open.get_mut(&parent) {
            Some(open) => {
                open.children.push(id);
                (parent, open.nearest)
            }
            None => (0, None),
        };
        let handle = self.context.start_event(kind, (id, parent), time_ns, nearest, of);
        self.started += 1;
        self.refused += u64::from(handle.is_none());
        let nearest = handle.map(|handle| (handle, kind)).or(nearest);
        self.open.insert(id, Open { handle, nearest, parent, children: Vec::new() });
    }

    fn stop(&mut self, id: u64, time_ns: u64) {
        let Some(open) = self.open.remove(&id) else { return };
        for child in open.children {
            self.stop(child, time_ns);
        }
        if let Some(parent) = self.open.get_mut(&open.parent) {
            parent.children.retain(|child| *child != id);
        }
        if let Some(handle) = open.handle {
            self.context.stop_event(handle, time_ns);
        }
    }
}

/// Longer than the thread lets records gather, and sleeps too long.
const LAG_NS: u64 = 2_000_000;
