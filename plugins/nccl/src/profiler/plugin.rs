//! A plugin whose table was read.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use ccl_plugin::profiler::c::{CclProfilerCommV1, CclProfilerV1};
use ccl_plugin::profiler::{Comm, Kind, init_by, table};
use ccl_plugin::{CclHostV1, Code, Error, Result};

use super::calls::{About, Calls};
use super::context::Listener;
use crate::net::logger::Slot;

/// A profiler made for NCCL, ready to make contexts. Lives as long as the process.
pub struct Plugin {
    version: u32,
    name: String,
    pub(crate) calls: Calls,
    pub(crate) slot: Slot,
    /// What it wants to hear of, for all communicators: the plugin writes, from any thread.
    mask: AtomicI32,
    /// Held while the plugin makes or ends a context, which it may expect one at a time.
    turn: Mutex<()>,
}

impl Plugin {
    /// Reads the table of `version`, or says why it cannot be used. Calls nothing.
    ///
    /// # Safety
    ///
    /// `table` is a table of `version` as NCCL declares it, whose library stays loaded.
    pub unsafe fn open(version: u32, table: *const c_void) -> Result<Plugin, String> {
        // SAFETY: the caller's contract.
        let read = unsafe { Calls::read(version, table) };
        let (calls, name) = read.map_err(|missing| format!("expected {missing}, found a null pointer"))?;
        if name.is_null() {
            return Err("expected a name, found a null pointer".to_string());
        }
        // SAFETY: the caller's contract: a table's name.
        let name = unsafe { CStr::from_ptr(name) };
        let name = match name.to_str() {
            Ok(text) if (1..64).contains(&text.len()) => text.to_string(),
            _ => return Err(format!("expected a name of 1 to 63 bytes in UTF-8, found {name:?}")),
        };
        let slot = Slot::take(&name);
        Ok(Plugin { version, name, calls, slot, mask: AtomicI32::new(0), turn: Mutex::default() })
    }

    /// What it calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of NCCL's contract that is used.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The table of every such plugin but for `init`, in whose place [`Plugin::init`] is called.
    pub fn table() -> &'static CclProfilerV1 {
        table::<Listener>()
    }

    /// What the entry `init` does, for this plugin; its mask stays as it is, see [`Plugin::wanted`].
    ///
    /// # Safety
    ///
    /// As `ccl_profiler.h` asks of a host that calls `init`.
    pub unsafe fn init(
        &'static self,
        host: *const CclHostV1,
        comm: *const CclProfilerCommV1,
        mask: *mut u64,
        out: *mut *mut c_void,
    ) -> i32 {
        // SAFETY: the caller's contract; the host's table is valid until the context is finalised.
        unsafe { init_by(|comm, _| Listener::start(self, comm, host), host, comm, mask, out) }
    }

    /// The kinds that it asks for now, as ccl's mask has them. One mask serves all of its contexts.
    pub fn wanted(&self) -> u64 {
        // Relaxed: a hint that nothing else hangs on.
        translated(self.version, self.mask.load(Ordering::Relaxed))
    }

    /// Whether events of this kind exist in its version.
    pub(crate) fn knows(&self, kind: Kind) -> bool {
        !matches!(kind, Kind::GroupApi | Kind::CollApi | Kind::P2pApi) || self.has_calls()
    }

    /// Whether calls are events, and the parents of their work.
    pub(crate) fn has_calls(&self) -> bool {
        self.version >= 5
    }

    /// A context for a communicator; null if the plugin wants none.
    pub(crate) fn make_context(&self, comm: &Comm) -> Result<*mut c_void> {
        let name = comm.name.as_deref().and_then(|name| CString::new(name).ok());
        let number = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
        let about = About {
            name: name.as_deref(),
            hash: comm.id,
            nnodes: number(comm.nnodes),
            nranks: number(comm.nranks),
            rank: number(comm.rank),
        };
        let mut context = ptr::null_mut();
        let result = {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a table that was read; the mask lives as long as the process, as all plugins do.
            unsafe { self.calls.init(&mut context, self.mask.as_ptr(), &about, self.slot.logger()) }
        };
        self.outcome("init", result).inspect_err(|error| self.warn(error.message()))?;
        if context.is_null() {
            self.warn("init gave no context: it hears nothing");
        }
        Ok(context)
    }

    /// Ends a context that [`Plugin::make_context`] made.
    pub(crate) fn end_context(&self, context: *mut c_void) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's, who does not use it again.
        if let Err(error) = self.outcome("finalize", unsafe { self.calls.finalize(context) }) {
            self.warn(error.message());
        }
    }

    fn warn(&self, words: &str) {
        tracing::warn!(target: "ccl::plugin", plugin = self.name, "{words}");
    }

    fn outcome(&self, call: &str, result: c_int) -> Result<()> {
        if result == 0 {
            return Ok(());
        }
        let warned =
            self.slot.last_warning().map(|text| format!("; its last warning: {text}")).unwrap_or_default();
        let version = self.version;
        Err(Error::new(
            Code::INTERNAL,
            format!("expected ncclSuccess (0) from {call} of contract v{version}, found {result}{warned}"),
        ))
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plugin { name, version, mask, .. } = self;
        let mut shown = f.debug_struct("Plugin");
        shown.field("name", name).field("version", version).field("mask", mask).finish()
    }
}

/// A mask of NCCL's in ccl's bits: what asks for events that hosts do not have asks for their parents, as with NCCL.
fn translated(version: u32, mask: c_int) -> u64 {
    let mask = u64::from(mask as u32);
    let asks = |bits: u64| mask & bits != 0;
    let work = Kind::Coll.bit() | Kind::P2p.bit();
    let mut wanted = mask & WORK;
    if version >= 3 && asks(KERNEL_CHANNEL) {
        wanted |= work;
    }
    if version >= 3 && asks(NETWORK_PLUGIN) {
        wanted |= Kind::ProxyStep.bit();
    }
    if version >= 5 {
        wanted |= mask & CALLS;
        if asks(KERNEL_LAUNCH) {
            wanted |= Kind::GroupApi.bit();
        }
    }
    if version >= 6 && asks(COPY_ENGINE) {
        wanted |= Kind::CollApi.bit();
    }
    wanted
}

/// Groups, their work, and what the progress thread does.
const WORK: u64 = 0x3f;
const KERNEL_CHANNEL: u64 = 1 << 6;
const NETWORK_PLUGIN: u64 = 1 << 7;
/// Launches and calls.
const CALLS: u64 = 0x700;
const KERNEL_LAUNCH: u64 = 1 << 11;
/// Collectives of a copy engine and their parts.
const COPY_ENGINE: u64 = 0x7000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_keep_what_a_version_and_a_host_have() {
        let work = Kind::Coll.bit() | Kind::P2p.bit();
        assert_eq!(translated(1, -1), 0x3f);
        assert_eq!(translated(2, 1 << 6), 0);
        assert_eq!(translated(3, 1 << 6), work);
        assert_eq!(translated(4, 1 << 7), Kind::ProxyStep.bit());
        assert_eq!(translated(4, 1 << 9), 0);
        assert_eq!(translated(5, -1), 0x73f);
        assert_eq!([translated(5, 1 << 12), translated(6, 1 << 12)], [0, Kind::CollApi.bit()]);
        assert_eq!(translated(6, 1 << 11), Kind::GroupApi.bit());
        assert_eq!(translated(6, 0), 0);
    }
}
