//! The emitter: what operations put down, without ever waiting.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use ccl_plugin_host::profiler::{Interest, Kind, StateKind};

use super::record::{Body, Name, Record, WORDS};
use super::ring::Ring;
use super::thread::Bell;

/// Where one communicator's events are put down. Shared by its engine, its network edges and the
/// progress thread.
pub(crate) struct Emitter {
    pub(super) ring: Ring<WORDS>,
    interest: Interest,
    /// Ids given so far.
    ids: AtomicU64,
    pub(super) dropped_events: AtomicU64,
    pub(super) dropped_states: AtomicU64,
    /// The operation that the engine drives now, for what its edges put down.
    current: Current,
    pub(super) bell: Arc<Bell>,
    /// The communicator is closed: nothing more comes.
    pub(super) closed: AtomicBool,
}

#[derive(Default)]
struct Current {
    id: AtomicU64,
    nearest: AtomicU64,
    mask: AtomicU64,
}

/// An event as those know it who stop it and start its children. The default is no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    /// 0 if it was not put down.
    id: u64,
    /// The event itself, or the nearest ancestor that was put down; 0 for none.
    nearest: u64,
    /// The mask as it was when the launch began.
    mask: u64,
}

impl Span {
    /// Its id; 0 if it was not put down.
    pub(crate) fn id(self) -> u64 {
        self.id
    }

    /// Whether events of this kind are wanted of the launch.
    pub(crate) fn wants(self, kind: Kind) -> bool {
        self.mask & kind.wanted_by() != 0
    }

    /// Whether anything at all is wanted of it.
    pub(crate) fn is_wanted(self) -> bool {
        self.mask != 0
    }
}

impl Emitter {
    pub(super) fn new(interest: Interest, bell: Arc<Bell>, places: usize) -> Emitter {
        Emitter {
            ring: Ring::new(places),
            interest,
            ids: AtomicU64::new(0),
            dropped_events: AtomicU64::new(0),
            dropped_states: AtomicU64::new(0),
            current: Current::default(),
            bell,
            closed: AtomicBool::new(false),
        }
    }

    /// The mask.
    #[inline]
    pub(super) fn wanted(&self) -> u64 {
        self.interest.bits()
    }

    /// What everything descends from: the mask is looked at here, once for each launch.
    pub(crate) fn top(&self) -> Span {
        Span { id: 0, nearest: 0, mask: self.interest.bits() }
    }

    /// An event starts, if the mask wants it and there is room for it and its stop.
    pub(crate) fn start(&self, kind: Kind, parent: Span, body: Body) -> Span {
        self.start_at(kind, parent, now_ns(), body)
    }

    /// The same at a given time.
    pub(crate) fn start_at(&self, kind: Kind, parent: Span, time_ns: u64, body: Body) -> Span {
        let refused = Span { id: 0, ..parent };
        if !parent.wants(kind) {
            return refused;
        }
        if !self.ring.promise(2) {
            self.dropped_events.fetch_add(1, Ordering::Relaxed);
            return refused;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(Record::Start { kind, id, parent: parent.nearest, time_ns, body });
        Span { id, nearest: id, mask: parent.mask }
    }

    /// It stops, and is no event any more.
    pub(crate) fn stop(&self, span: &mut Span) {
        if span.id != 0 {
            self.stop_at(span, now_ns());
        }
    }

    /// The same at a given time.
    pub(crate) fn stop_at(&self, span: &mut Span, time_ns: u64) {
        let id = std::mem::take(span).id;
        if id != 0 {
            // Its place was promised at the start.
            self.put(Record::Stop { id, time_ns });
        }
    }

    /// Something happens to an event.
    pub(crate) fn state(&self, span: Span, state: StateKind, bytes: u64, count: u64) {
        if span.id != 0 {
            self.state_at(span, state, now_ns(), (bytes, count));
        }
    }

    /// The same at a given time.
    pub(crate) fn state_at(&self, span: Span, state: StateKind, time_ns: u64, (bytes, count): (u64, u64)) {
        let id = span.id;
        if id == 0 {
            return;
        }
        if !self.ring.promise(1) {
            self.dropped_states.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.put(Record::State { id, state, time_ns, bytes, count });
    }

    /// From here on edges work for `span`.
    pub(crate) fn enter(&self, span: Span) {
        // Relaxed: edges are driven by the thread that drives the engine.
        self.current.id.store(span.id, Ordering::Relaxed);
        self.current.nearest.store(span.nearest, Ordering::Relaxed);
        self.current.mask.store(span.mask, Ordering::Relaxed);
    }

    /// What edges work for.
    pub(crate) fn current(&self) -> Span {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Span {
            id: load(&self.current.id),
            nearest: load(&self.current.nearest),
            mask: load(&self.current.mask),
        }
    }

    fn put(&self, record: Record) {
        self.ring.put(record.to_words());
        // SeqCst, here and in `Bell::doze`: either the thread sees the record before it sleeps, or its
        // being asleep is seen here.
        fence(Ordering::SeqCst);
        self.bell.wake_if_asleep();
    }
}

/// Nanoseconds of the one clock of all events.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The C form of a text, which lives as long as the process: one for each text there is.
pub(crate) fn name(text: &str) -> Name {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_with(HashMap::new);
    if let Some(known) = names.get(text) {
        return Name(Some(known));
    }
    let Ok(owned) = CString::new(text) else { return Name(None) };
    let kept: &'static CStr = Box::leak(owned.into_boxed_c_str());
    names.insert(text.to_owned(), kept);
    Name(Some(kept))
}

/// Names of collectives, types and plans that profilers were told of: as few as there are plans.
static NAMES: Mutex<Option<HashMap<String, &'static CStr>>> = Mutex::new(None);
