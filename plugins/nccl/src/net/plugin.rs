//! A plugin whose table was read, that was initialised, and whose devices are known.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ccl_plugin::net::{Properties, init_by, table};
use ccl_plugin::{CclHostV1, CclNetV1, CclSettingV1, Code, Error, Result};

use super::calls::Calls;
use super::context::Network;
use super::layout::{self, CommConfig};
use super::logger::Slot;

/// A network plugin made for NCCL, ready to make contexts. Lives as long as the process.
pub struct Plugin {
    version: u32,
    name: String,
    pub(crate) calls: Calls,
    pub(crate) slot: Slot,
    /// NCCL's index of each device, and what it is.
    devices: Vec<(c_int, Properties)>,
    /// Held while the plugin makes or ends a context, which it may expect one at a time.
    turn: Mutex<()>,
}

impl Plugin {
    /// Reads the table of `version`, initialises the plugin and asks for its devices; or says why it cannot be used.
    ///
    /// Versions 6 to 10 are initialised here, once and for the life of the process. Later ones have a context
    /// for every communicator: here they get one to be asked for devices in, which ends at once.
    ///
    /// # Safety
    ///
    /// `table` is a table of `version` as NCCL declares it, whose library stays loaded, and which was not given
    /// to this function before.
    pub unsafe fn open(version: u32, table: *const c_void) -> Result<Plugin, String> {
        // SAFETY: the caller's contract.
        let read = unsafe { Calls::read(version, table) };
        let (calls, name) = read.map_err(|missing| format!("expected {missing}, found a null pointer"))?;
        // SAFETY: the caller's contract: a table's name.
        let name = unsafe { name_of(name) }?;
        let slot = Slot::take(&name);
        let mut plugin = Plugin { version, name, calls, slot, devices: Vec::new(), turn: Mutex::default() };
        plugin.devices = plugin.first_look().map_err(|error| error.message().to_string())?;
        Ok(plugin)
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
    pub fn table() -> &'static CclNetV1 {
        table::<Network>()
    }

    /// What the entry `init` does, for this plugin.
    ///
    /// # Safety
    ///
    /// As `ccl_net.h` asks of a host that calls `init`.
    pub unsafe fn init(
        &'static self,
        host: *const CclHostV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut *mut c_void,
    ) -> i32 {
        // SAFETY: the caller's contract; the host's table is valid until the context is finalised.
        unsafe { init_by(|settings| Network::start(self, settings, host), host, settings, count, out) }
    }

    /// NCCL's index of a device.
    pub(crate) fn device(&self, device: u32) -> Result<&(c_int, Properties)> {
        self.devices.get(device as usize).ok_or_else(|| Error::no_device(device))
    }

    /// Number of devices.
    pub(crate) fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// For failures to end an object, which nobody can do anything about.
    pub(crate) fn report(&self, ended: Result<()>) {
        if let Err(error) = ended {
            tracing::warn!(target: "ccl::plugin", plugin = self.name, "{error}");
        }
    }

    /// A context of version 11 or later; null in earlier ones.
    pub(crate) fn make_context(&self, communicator: u64, config: CommConfig) -> Result<*mut c_void> {
        if !self.calls.has_contexts() {
            return Ok(ptr::null_mut());
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.init_now(communicator, config)
    }

    /// Ends a context that [`Plugin::make_context`] made.
    pub(crate) fn end_context(&self, context: *mut c_void) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's, who does not use it again.
        self.outcome("finalize", unsafe { self.calls.finalize(context) })
    }

    /// The plugin's result as ccl's: an error names the call, the version and the result, and repeats what the
    /// plugin warned of.
    #[inline]
    pub(crate) fn outcome(&self, call: &'static str, result: c_int) -> Result<()> {
        if result == 0 { Ok(()) } else { Err(self.failed(call, result)) }
    }

    #[cold]
    fn failed(&self, call: &str, result: c_int) -> Error {
        let (name, code) = match result {
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
        Error::new(
            code,
            format!(
                "expected ncclSuccess from {call} of contract v{version}, found {name} ({result}){warned}"
            ),
        )
    }

    fn first_look(&self) -> Result<Vec<(c_int, Properties)>> {
        let context = self.init_now(0, CommConfig { traffic_class: layout::UNDEFINED })?;
        let devices = self.usable_devices();
        // Where there are contexts; the failure worth telling is the first.
        // SAFETY: a context that was just made, and is not used again.
        let ended = self.outcome("finalize", unsafe { self.calls.finalize(context) });
        devices.and_then(|devices| ended.map(|()| devices))
    }

    fn init_now(&self, communicator: u64, config: CommConfig) -> Result<*mut c_void> {
        let mut context = ptr::null_mut();
        // SAFETY: a table that was read; one call at a time, since this is the first or the turn is ours.
        let result = unsafe { self.calls.init(&mut context, communicator, config, self.slot.logger()) };
        self.outcome("init", result).map(|()| context)
    }

    /// Devices whose receives the host completes; an error if there is none.
    fn usable_devices(&self) -> Result<Vec<(c_int, Properties)>> {
        let mut count = 0;
        // SAFETY: the plugin is initialised.
        self.outcome("devices", unsafe { self.calls.devices(&mut count) })?;
        let mut found = Vec::new();
        for device in 0..count.max(0) {
            // SAFETY: the plugin is initialised, and has the device.
            let (result, facts) = unsafe { self.calls.properties(device) };
            self.outcome("getProperties", result)?;
            if facts.is_the_hosts() {
                let properties = facts.properties(self.calls.is_narrow(), self.calls.flushes());
                found.push((device, properties.map_err(Error::invalid)?));
            }
        }
        match (count, found.len()) {
            (..=0, _) => Err(no_devices(format!("found {count}"))),
            (_, 0) => Err(no_devices(format!("found {count} that need a program on a GPU to receive"))),
            _ => Ok(found),
        }
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plugin { name, version, devices, .. } = self;
        f.debug_struct("Plugin")
            .field("name", name)
            .field("version", version)
            .field("devices", devices)
            .finish()
    }
}

fn no_devices(found: String) -> Error {
    Error::new(Code::NO_DEVICE, format!("expected at least one device, {found}"))
}

/// # Safety
///
/// `name` is null or ends in NUL.
unsafe fn name_of(name: *const c_char) -> Result<String, String> {
    if name.is_null() {
        return Err("expected a name, found a null pointer".to_string());
    }
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_str() {
        Ok(name) if (1..64).contains(&name.len()) => Ok(name.to_string()),
        _ => Err(format!("expected a name of 1 to 63 bytes in UTF-8, found {name:?}")),
    }
}
