//! The entries of a profiler's table as they are: what it returns is looked at, and nothing is made up for.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_plugin::c::CclHostV1;
use ccl_plugin::profiler::StateKind;
use ccl_plugin::profiler::c::{
    CclProfilerCommV1, CclProfilerEventV1, CclProfilerOfV1, CclProfilerStateV1, CclProfilerSummaryV1,
};
use ccl_plugin_host::ProfilerPlugin;
use ccl_plugin_host::profiler::Interest;

use crate::breach::{Outcome, breach, expect};
use crate::pulse::Pulse;

/// A profiler under check, and who notes what is called.
pub(crate) struct Stage {
    pub(crate) plugin: ProfilerPlugin,
    pub(crate) pulse: Arc<Pulse>,
}

/// A context. Whoever does not end it leaves it open.
pub(crate) struct Context {
    plugin: ProfilerPlugin,
    pulse: Arc<Pulse>,
    raw: *mut c_void,
    mask: &'static Fenced,
    rank: u32,
    /// Ids given so far, which are the time as well.
    ids: u64,
}

// SAFETY: the contract asks for one call at a time, not for one thread.
unsafe impl Send for Context {}

/// A mask between two words that nobody may write.
#[repr(C)]
struct Fenced {
    before: AtomicU64,
    mask: AtomicU64,
    after: AtomicU64,
}

/// An event that was told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) id: u64,
    /// The plugin's; null if it refused.
    handle: *mut c_void,
    /// Its own, or that of the nearest ancestor that was not refused, and that one's kind.
    nearest: (*mut c_void, u32),
}

impl Stage {
    /// A context of rank `rank` of 4.
    pub(crate) fn context(&self, rank: u32) -> Outcome<Context> {
        match self.try_context(rank, size_of::<CclProfilerCommV1>()) {
            Ok(context) => Ok(context),
            Err(code) => breach(format!("expected a context from init, found {}", ccl_plugin::Code(code))),
        }
    }

    /// The same with a description that says it has so many bytes; the code of an init that fails.
    pub(crate) fn try_context(&self, rank: u32, comm_bytes: usize) -> Result<Context, i32> {
        // What later hosts append is there, and zero.
        #[repr(C)]
        struct Later(CclProfilerCommV1, [u64; 8]);
        let comm = CclProfilerCommV1 {
            size: comm_bytes as u32,
            rank,
            nranks: 4,
            nnodes: 1,
            comm_id: 0xC0FFEE,
            process: u64::from(std::process::id()),
            name: ptr::null(),
        };
        let (comm, mut raw) = (Later(comm, [0; 8]), ptr::null_mut());
        // Masks live as long as the process, by the contract.
        let fence = || AtomicU64::new(FENCE);
        let mask: &'static Fenced =
            Box::leak(Box::new(Fenced { before: fence(), mask: AtomicU64::new(0), after: fence() }));
        let (about, word) = ((&raw const comm).cast(), mask.mask.as_ptr());
        // SAFETY: the host's table is static, the mask lives on, and the description has at least the stated bytes.
        let code =
            self.pulse.during("init", || unsafe { self.plugin.init_raw(&HOST.0, about, word, &raw mut raw) });
        if code != 0 {
            return Err(code);
        }
        let (plugin, pulse) = (self.plugin, Arc::clone(&self.pulse));
        Ok(Context { plugin, pulse, raw, mask, rank, ids: 0 })
    }
}

impl Context {
    /// What it asks for.
    pub(crate) fn interest(&self) -> Interest {
        self.plugin.interest(&self.mask.mask)
    }

    /// Whether the words around the mask are as they were.
    pub(crate) fn expect_fences(&self) -> Outcome<()> {
        for (fence, place) in [(&self.mask.before, "before"), (&self.mask.after, "after")] {
            let found = fence.load(Ordering::Relaxed);
            expect(found == FENCE, || {
                format!(
                    "expected the plugin to write the 8 bytes of its mask, found those {place} it changed"
                )
            })?;
        }
        Ok(())
    }

    /// Tells of the start of an event of the kind with this number, now or at a given parent.
    pub(crate) fn start(&mut self, kind: u32, parent: Option<&Told>, of: CclProfilerOfV1) -> Told {
        self.start_sized(kind, parent, of, size_of::<CclProfilerEventV1>())
    }

    /// The same with an event that says it has so many bytes.
    pub(crate) fn start_sized(
        &mut self,
        kind: u32,
        parent: Option<&Told>,
        of: CclProfilerOfV1,
        bytes: usize,
    ) -> Told {
        #[repr(C)]
        struct Later(CclProfilerEventV1, [u64; 8]);
        self.ids += 1;
        let nearest = parent.map_or((ptr::null_mut(), 0), |parent| parent.nearest);
        let event = CclProfilerEventV1 {
            size: bytes as u32,
            kind,
            id: self.ids,
            time_ns: self.ids,
            parent: nearest.0,
            parent_id: parent.map_or(0, |parent| parent.id),
            parent_kind: nearest.1,
            rank: self.rank,
            of,
        };
        let (event, mut handle) = (Later(event, [0; 8]), ptr::null_mut());
        let start = self.plugin.table().start_event.expect("a required entry, which was checked");
        let (context, told) = (self.raw, (&raw const event).cast());
        // SAFETY: a context that is open, an event with at least the stated bytes, and room for the handle.
        let code = self.pulse.during("startEvent", || unsafe { start(context, told, &raw mut handle) });
        let handle = if code == 0 { handle } else { ptr::null_mut() };
        let nearest = if handle.is_null() { nearest } else { (handle, kind) };
        Told { id: self.ids, handle, nearest }
    }

    /// Tells of its stop; nothing if it was refused.
    pub(crate) fn stop(&mut self, told: Told) {
        if told.handle.is_null() {
            return;
        }
        self.ids += 1;
        let stop = self.plugin.table().stop_event.expect("a required entry, which was checked");
        let (context, time_ns) = (self.raw, self.ids);
        // SAFETY: a context that is open, and a handle of it that is used no more.
        self.pulse.during("stopEvent", || unsafe { stop(context, told.handle, time_ns) });
    }

    /// Tells of a state, by its number; nothing if the event was refused.
    pub(crate) fn state(&mut self, told: &Told, state: u32) {
        if told.handle.is_null() {
            return;
        }
        self.ids += 1;
        let size = size_of::<CclProfilerStateV1>() as u32;
        let state = CclProfilerStateV1 { size, state, time_ns: self.ids, bytes: 64, count: 1 };
        let record = self.plugin.table().record_event_state.expect("a required entry, which was checked");
        let context = self.raw;
        // SAFETY: a context that is open, an open handle of it, and a whole struct.
        self.pulse.during("recordEventState", || unsafe { record(context, told.handle, &state) });
    }

    /// The states that a kind of ccl's has.
    pub(crate) fn states(&mut self, told: &Told, states: &[StateKind]) {
        states.iter().for_each(|state| self.state(told, *state as u32));
    }

    /// Ends it. No event is open.
    pub(crate) fn finalize(self, dropped_events: u64) {
        let summary = CclProfilerSummaryV1 {
            size: size_of::<CclProfilerSummaryV1>() as u32,
            reserved: 0,
            time_ns: self.ids + 1,
            started: self.ids,
            refused: 0,
            dropped_events,
            dropped_states: 0,
        };
        let finalize = self.plugin.table().finalize.expect("a required entry, which was checked");
        // SAFETY: a context that is open, and used no more.
        self.pulse.during("finalize", || unsafe { finalize(self.raw, &summary) });
    }
}

impl Told {
    /// Whether the plugin took it.
    pub(crate) fn is_taken(&self) -> bool {
        !self.handle.is_null()
    }
}

struct Host(CclHostV1);

// SAFETY: nothing in it but functions that any thread may call.
unsafe impl Sync for Host {}

/// A host that keeps no line.
static HOST: Host = Host(CclHostV1 {
    size: size_of::<CclHostV1>() as u32,
    version: 1,
    context: ptr::null_mut(),
    enabled: Some(none),
    log: Some(drop_line),
});

unsafe extern "C" fn none(_: *mut c_void, _: i32) -> i32 {
    0
}

unsafe extern "C" fn drop_line(_: *mut c_void, _: i32, _: *const c_char, _: u32, _: *const c_char) {}

const FENCE: u64 = 0xFE0C_E5ED_FE0C_E5ED;
