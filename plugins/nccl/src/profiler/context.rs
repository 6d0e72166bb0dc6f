//! A context of a plugin: what ccl tells of a communicator, as NCCL would.

use std::ffi::{CStr, c_void};
use std::ptr;

use ccl_plugin::profiler::{Comm, Event, Kind, Mask, Of, Profiler, State, Summary};
use ccl_plugin::{CclHostV1, Error, Result};

use super::describe::{Start, describe};
use super::held::Held;
use super::plugin::Plugin;
use super::states::states;
use crate::net::logger::Listening;

/// A plugin that listens to one communicator.
pub(crate) struct Listener {
    plugin: &'static Plugin,
    /// Null if the plugin wants none: then it hears nothing.
    raw: Raw,
    comm_hash: u64,
    held: Held<Raw>,
    /// Left after the context has ended.
    _listening: Listening,
}

/// A pointer of the plugin's; null for what it refused.
#[derive(Clone, Copy)]
struct Raw(*mut c_void);

// SAFETY: NCCL calls a profiler from many threads; here it is one at a time.
unsafe impl Send for Raw {}

/// An event that started, also one that the plugin refused: its children come all the same.
pub(crate) struct Kept {
    id: u64,
    kind: Kind,
    raw: Raw,
    /// Of work: the call that asked for it, its bytes, and what one step of a channel moves.
    call: Option<u64>,
    bytes: u64,
    chunk_bytes: u64,
}

impl Listener {
    /// A context; `host` hears what the plugin logs.
    ///
    /// # Safety
    ///
    /// `host` is null or a table that is valid until the context is finalised.
    pub(crate) unsafe fn start(
        plugin: &'static Plugin,
        comm: &Comm,
        host: *const CclHostV1,
    ) -> Result<Listener> {
        // SAFETY: the caller's contract: a context keeps it for as long as it lives, and no longer.
        let listening = unsafe { plugin.slot.enter(host) };
        let raw = Raw(plugin.make_context(comm)?);
        Ok(Listener { plugin, raw, comm_hash: comm.id, held: Held::new(), _listening: listening })
    }

    /// The plugin's handles that an event of this kind descends from: its parent's, and its group's.
    fn parents(&mut self, event: &Event<'_, Kept>) -> (*mut c_void, *mut c_void) {
        // A parent of another kind is a more distant ancestor, which NCCL does not name.
        let of_kind = |kinds: &[Kind]| {
            let found = event.parent.filter(|(_, kind)| kinds.contains(kind));
            found.map_or(ptr::null_mut(), |(kept, _)| kept.raw.0)
        };
        match event.kind {
            Kind::Coll | Kind::P2p if self.plugin.has_calls() => {
                let call = call_of(&event.of).and_then(|id| self.held.work_started(id));
                (call.map_or(ptr::null_mut(), |raw| raw.0), of_kind(&[Kind::Group]))
            }
            Kind::Coll | Kind::P2p => (of_kind(&[Kind::Group]), ptr::null_mut()),
            Kind::ProxyOp => (of_kind(&[Kind::Coll, Kind::P2p]), ptr::null_mut()),
            Kind::ProxyStep => (of_kind(&[Kind::ProxyOp]), ptr::null_mut()),
            Kind::CollApi | Kind::P2pApi => (of_kind(&[Kind::GroupApi]), ptr::null_mut()),
            _ => (ptr::null_mut(), ptr::null_mut()),
        }
    }

    fn stop(&self, raw: Raw) {
        if !raw.0.is_null() {
            // SAFETY: a handle of this plugin, which is not named again.
            unsafe { self.plugin.calls.stop_event(raw.0) };
        }
    }

    fn stop_what_is_free(&mut self) {
        while let Some(raw) = self.held.next_free() {
            self.stop(raw);
        }
    }
}

impl Profiler for Listener {
    const NAME: &'static CStr = c"nccl";
    type Handle = Kept;

    /// Nobody could say which plugin is meant; see [`Plugin::init`].
    fn init(_: &Comm, _: Mask) -> Result<Listener> {
        Err(Error::unsupported("init without a plugin of NCCL's"))
    }

    fn start_event(&mut self, event: &Event<'_, Kept>) -> Option<Kept> {
        if self.raw.0.is_null() || !self.plugin.knows(event.kind) {
            return None;
        }
        let (parent, group) = self.parents(event);
        let (steps, chunk_bytes) = messages(event);
        let (kind, rank, comm_hash) = (event.kind, event.rank, self.comm_hash);
        let start = Start { kind, parent, group, rank, comm_hash, steps, chunk_bytes };
        let mut descriptor = describe(self.plugin.version(), &start, &event.of);
        // SAFETY: a context of this plugin, and a descriptor of its version, whose parents are open.
        let raw = Raw(unsafe { self.plugin.calls.start_event(self.raw.0, &mut descriptor) });
        match kind {
            Kind::GroupApi => self.held.launch_started(event.id, raw),
            Kind::CollApi | Kind::P2pApi => {
                let work = if kind == Kind::CollApi { Kind::Coll } else { Kind::P2p };
                let expects_work = self.plugin.wanted() & work.wanted_by() != 0;
                self.held.call_started(event.id, event.parent_id.unwrap_or(0), raw, expects_work);
            }
            _ => {}
        }
        let (bytes, chunk_bytes) = match &event.of {
            Of::Call(call) => (call.bytes, call.chunk_bytes),
            _ => (0, 0),
        };
        Some(Kept { id: event.id, kind, raw, call: call_of(&event.of), bytes, chunk_bytes })
    }

    fn stop_event(&mut self, kept: Kept, _: u64) {
        match kept.kind {
            Kind::GroupApi | Kind::CollApi | Kind::P2pApi => self.held.stopped(kept.id),
            _ => self.stop(kept.raw),
        }
        if let (Kind::Coll | Kind::P2p, Some(call)) = (kept.kind, kept.call) {
            self.held.work_stopped(call);
        }
        self.stop_what_is_free();
    }

    fn record_event_state(&mut self, kept: &mut Kept, state: &State) {
        if kept.raw.0.is_null() {
            return;
        }
        for (code, args) in states(self.plugin.version(), state) {
            // SAFETY: a handle of this plugin that is open.
            unsafe { self.plugin.calls.record_event_state(kept.raw.0, code, args) };
        }
    }

    fn finalize(mut self, _: &Summary) {
        self.held.all_stopped();
        self.stop_what_is_free();
        if !self.raw.0.is_null() {
            self.plugin.end_context(self.raw.0);
        }
    }
}

fn call_of(of: &Of) -> Option<u64> {
    match of {
        Of::Call(call) => call.call_id,
        _ => None,
    }
}

/// Of a proxy operation: messages that it will have, by the bytes of the operation, and the bytes of one.
fn messages(event: &Event<'_, Kept>) -> (u64, u64) {
    let Of::ProxyOp(op) = &event.of else { return (0, 0) };
    let (bytes, chunk_bytes) = event.parent.map_or((0, 0), |(kept, _)| (kept.bytes, kept.chunk_bytes));
    // A receive does not know what will come.
    let chunk_bytes = if op.chunk_bytes == 0 { chunk_bytes } else { op.chunk_bytes };
    (bytes.div_ceil(chunk_bytes.max(1)).max(1), chunk_bytes)
}
