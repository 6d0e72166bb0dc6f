//! A profiler's context, and the events that are open in it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;

use ccl_plugin::profiler::Kind;
use ccl_plugin::profiler::c::{
    CclProfilerEventV1, CclProfilerOfV1, CclProfilerStateV1, CclProfilerSummaryV1,
};

use super::interest::Interest;
use super::plugin::ProfilerPlugin;
use crate::log::Host;

/// The communicator that a context is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Hosts that the ranks are on.
    pub nnodes: u32,
    /// The same on all ranks, different for other communicators.
    pub comm_id: u64,
}

/// An event that the plugin has taken: its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(u64);

/// A context. Dropping it finalises it without a summary of its own: see [`ProfilerContext::finalize`].
pub struct ProfilerContext {
    plugin: ProfilerPlugin,
    raw: *mut c_void,
    host: *mut Host,
    interest: Interest,
    rank: u32,
    /// The plugin's pointers, which need not differ.
    open: HashMap<Handle, *mut c_void>,
}

// SAFETY: the contract asks for one call at a time, not for one thread; calls borrow mutably.
unsafe impl Send for ProfilerContext {}

impl ProfilerContext {
    /// # Safety
    ///
    /// `raw` came from `init` of this plugin with the table of `host`, which came from `Host::leak`.
    pub(super) unsafe fn from_raw(
        plugin: ProfilerPlugin,
        raw: *mut c_void,
        host: *mut Host,
        interest: Interest,
        rank: u32,
    ) -> ProfilerContext {
        ProfilerContext { plugin, raw, host, interest, rank, open: HashMap::new() }
    }

    /// The plugin.
    pub fn plugin(&self) -> ProfilerPlugin {
        self.plugin
    }

    /// Which kinds it asks for.
    pub fn interest(&self) -> Interest {
        self.interest
    }

    /// Offers an event; `None` if the plugin refuses it.
    ///
    /// `id` is of no other event of the context; a parent that is not open counts as none. The strings of `of` must live as long as the process.
    pub fn start_event(
        &mut self,
        kind: Kind,
        (id, parent_id): (u64, u64),
        time_ns: u64,
        parent: Option<(Handle, Kind)>,
        of: CclProfilerOfV1,
    ) -> Option<Handle> {
        let start = self.plugin.table().start_event?;
        let parent = parent.and_then(|(handle, kind)| Some((*self.open.get(&handle)?, kind)));
        let event = CclProfilerEventV1 {
            size: size_of::<CclProfilerEventV1>() as u32,
            kind: kind as u32,
            id,
            time_ns,
            parent: parent.map_or(ptr::null_mut(), |(handle, _)| handle),
            parent_id,
            parent_kind: parent.map_or(0, |(_, kind)| kind as u32),
            rank: self.rank,
            of,
        };
        let mut made = ptr::null_mut();
        // SAFETY: a context that is not finalised, an event of the stated size, a writable pointer.
        let code = unsafe { start(self.raw, &event, &raw mut made) };
        if code != 0 || made.is_null() {
            return None;
        }
        self.open.insert(Handle(id), made);
        Some(Handle(id))
    }

    /// Stops an event; nothing happens if it is not open.
    pub fn stop_event(&mut self, handle: Handle, time_ns: u64) {
        let Some(stop) = self.plugin.table().stop_event else { return };
        if let Some(made) = self.open.remove(&handle) {
            // SAFETY: a context that is not finalised, and a handle of it that was not stopped before.
            unsafe { stop(self.raw, made, time_ns) };
        }
    }

    /// Records a state of an event; nothing happens if it is not open.
    pub fn record_event_state(&mut self, handle: Handle, state: &CclProfilerStateV1) {
        let Some(record) = self.plugin.table().record_event_state else { return };
        if let Some(made) = self.open.get(&handle) {
            // SAFETY: a context that is not finalised, an open handle of it, and a whole struct.
            unsafe { record(self.raw, *made, state) };
        }
    }

    /// Ends the context. Whoever ends it has stopped its events.
    pub fn finalize(mut self, summary: &CclProfilerSummaryV1) {
        self.end(summary);
    }

    fn end(&mut self, summary: &CclProfilerSummaryV1) {
        let host = std::mem::replace(&mut self.host, ptr::null_mut());
        if host.is_null() {
            return;
        }
        if let Some(finalize) = self.plugin.table().finalize {
            // SAFETY: a context that is not finalised, which `host` not being null says.
            unsafe { finalize(self.raw, summary) };
        }
        // SAFETY: from `Host::leak`, and of no use after `finalize`.
        drop(unsafe { Box::from_raw(host) });
    }
}

impl Drop for ProfilerContext {
    fn drop(&mut self) {
        self.end(&CclProfilerSummaryV1 {
            size: size_of::<CclProfilerSummaryV1>() as u32,
            reserved: 0,
            time_ns: 0,
            started: 0,
            refused: 0,
            dropped_events: 0,
            dropped_states: 0,
        });
    }
}

impl std::fmt::Debug for ProfilerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProfilerContext").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}
