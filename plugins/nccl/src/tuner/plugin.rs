//! A plugin whose table was read.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use ccl_plugin::tuner::c::{CclTunerCommV1, CclTunerV1};
use ccl_plugin::tuner::{init_by, table};
use ccl_plugin::{CclHostV1, CclSettingV1, Code, Error, Result};

use super::advisor::Advisor;
use super::calls::{Calls, Told};
use crate::net::logger::Slot;

/// A tuner plugin made for NCCL, ready to make contexts. Lives as long as the process.
pub struct Plugin {
    version: u32,
    name: String,
    pub(crate) calls: Calls,
    pub(crate) slot: Slot,
}

impl Plugin {
    /// Reads the table of `version`, or says why it cannot be used.
    ///
    /// # Safety
    ///
    /// `table` is a table of `version` as NCCL declares it, whose library stays loaded.
    pub unsafe fn open(version: u32, table: *const c_void) -> Result<Plugin, String> {
        // SAFETY: the caller's contract.
        let read = unsafe { Calls::read(version, table) };
        let (calls, name) = read.map_err(|missing| format!("expected {missing}, found a null pointer"))?;
        // SAFETY: the caller's contract: a table's name.
        let name = unsafe { name_of(name) }?;
        let slot = Slot::take(&name);
        Ok(Plugin { version, name, calls, slot })
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
    pub fn table() -> &'static CclTunerV1 {
        table::<Advisor>()
    }

    /// What the entry `init` does, for this plugin.
    ///
    /// # Safety
    ///
    /// As `ccl_tuner.h` asks of a host that calls `init`.
    pub unsafe fn init(
        &'static self,
        (host, comm): (*const CclHostV1, *const CclTunerCommV1),
        settings: (*const CclSettingV1, u32),
        out: *mut *mut c_void,
    ) -> i32 {
        // SAFETY: the caller's contract; the host's table is valid until the context is finalised.
        unsafe { init_by(|comm, _| Advisor::start(self, comm, host), (host, comm), settings, out) }
    }

    /// Makes a context.
    pub(crate) fn make_context(&self, told: &Told) -> Result<*mut c_void> {
        let mut context = ptr::null_mut();
        // SAFETY: a table that was read.
        let result = unsafe { self.calls.init(told, self.slot.logger(), &mut context) };
        self.outcome("init", result).map(|()| context)
    }

    /// Ends a context that [`Plugin::make_context`] made; what fails is logged.
    pub(crate) fn end_context(&self, context: *mut c_void) {
        let call = if self.version < 5 { "destroy" } else { "finalize" };
        // SAFETY: a context of this plugin's, whose owner does not use it again.
        if let Err(error) = self.outcome(call, unsafe { self.calls.finalize(context) }) {
            tracing::warn!(target: "ccl::plugin", plugin = self.name, "{error}");
        }
    }

    /// The plugin wants an algorithm that does not exist here.
    pub(crate) fn say_not_offered(&self) {
        tracing::info!(
            target: "ccl::plugin", plugin = self.name,
            "asks for algorithms that were not offered to it (NVLS, CollNet, or of another collective): not heeded",
        );
    }

    /// The plugin's result as ccl's: an error names the call, the version and the result, and repeats what the plugin
    /// warned of.
    pub(crate) fn outcome(&self, call: &str, result: c_int) -> Result<()> {
        let (name, code) = match result {
            0 => return Ok(()),
            1 => ("ncclUnhandledCudaError", Code::SYSTEM),
            2 => ("ncclSystemError", Code::SYSTEM),
            3 => ("ncclInternalError", Code::INTERNAL),
            4 => ("ncclInvalidArgument", Code::INVALID),
            5 => ("ncclInvalidUsage", Code::INVALID),
            6 => ("ncclRemoteError", Code::REMOTE),
            7 => ("ncclInProgress, which is no answer of a plugin's", Code::INTERNAL),
            8 => ("ncclTimeout", Code::TIMEOUT),
            _ => ("a result that NCCL does not have", Code::INTERNAL),
        };
        let warned =
            self.slot.last_warning().map(|text| format!("; its last warning: {text}")).unwrap_or_default();
        let version = self.version;
        let words = format!(
            "expected ncclSuccess from {call} of contract v{version}, found {name} ({result}){warned}"
        );
        Err(Error::new(code, words))
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name).field("version", &self.version).finish()
    }
}

/// # Safety
///
/// `name` ends in NUL.
unsafe fn name_of(name: *const c_char) -> Result<String, String> {
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_str() {
        Ok(name) if (1..64).contains(&name.len()) => Ok(name.to_string()),
        _ => Err(format!("expected a name of 1 to 63 bytes in UTF-8, found {name:?}")),
    }
}
