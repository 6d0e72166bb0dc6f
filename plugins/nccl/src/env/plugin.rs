//! A plugin whose table was read.

use std::env;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use ccl_plugin::CclHostV1;
use ccl_plugin::env::c::CclEnvV1;

use super::layout::{Finalize, GetEnv, InitV1, InitV2, Table};
use crate::net::logger::{Listening, Slot};

/// An env plugin made for NCCL. Lives as long as the process.
#[derive(Debug)]
pub struct Plugin {
    name: String,
    version: u32,
    init: Init,
    get_env: GetEnv,
    finalize: Option<Finalize>,
    slot: Slot,
}

/// The forms of `init`.
#[derive(Debug)]
enum Init {
    Plain(InitV1),
    Logged(InitV2),
}

/// What a context of [`Plugin::table`] points to.
struct Context {
    plugin: &'static Plugin,
    _listening: Listening,
}

impl Plugin {
    /// Reads the table of `version`, or says why it cannot be used.
    ///
    /// # Safety
    ///
    /// `table` is a table of `version`, 1 or 2, as NCCL declares it, whose library stays loaded.
    pub unsafe fn open(version: u32, table: *const c_void) -> Result<Plugin, String> {
        let (name, init, finalize, get_env) = match version {
            1 => {
                // SAFETY: the caller's contract.
                let table = unsafe { *table.cast::<Table<InitV1>>() };
                (table.name, table.init.map(Init::Plain), table.finalize, table.get_env)
            }
            _ => {
                // SAFETY: the caller's contract.
                let table = unsafe { *table.cast::<Table<InitV2>>() };
                (table.name, table.init.map(Init::Logged), table.finalize, table.get_env)
            }
        };
        let missing = |entry: &str| format!("expected the function {entry}, found a null pointer");
        let (init, get_env) =
            (init.ok_or_else(|| missing("init"))?, get_env.ok_or_else(|| missing("getEnv"))?);
        // SAFETY: the caller's contract: a table's name.
        let name = unsafe { name_of(name) }?;
        Ok(Plugin { slot: Slot::take(&name), name, version, init, get_env, finalize })
    }

    /// What it calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table of every such plugin, but for `init`, in whose place [`Plugin::init`] is called.
    pub fn table() -> CclEnvV1 {
        CclEnvV1 {
            name: c"a plugin made for NCCL".as_ptr(),
            get_env: Some(get_env),
            finalize: Some(finalize),
            ..CclEnvV1::EMPTY
        }
    }

    /// What the entry `init` does, for this plugin: its context, or why there is none.
    ///
    /// # Safety
    ///
    /// `host` is a host's table that stays valid until the context is finalised. The plugin has no context.
    pub unsafe fn init(&'static self, host: *const CclHostV1) -> Result<*mut c_void, String> {
        // SAFETY: the caller's contract.
        let listening = unsafe { self.slot.enter(host) };
        let (major, minor, patch) = RELEASE;
        let result = match self.init {
            // SAFETY: a table that was read, a text that ends in NUL.
            Init::Plain(init) => unsafe { init(major, minor, patch, c"".as_ptr()) },
            // SAFETY: as above; the logger lives as long as the process.
            Init::Logged(init) => unsafe { init(major, minor, patch, c"".as_ptr(), self.slot.logger()) },
        };
        if result == 0 {
            return Ok(Box::into_raw(Box::new(Context { plugin: self, _listening: listening })).cast());
        }
        let warned =
            self.slot.last_warning().map(|text| format!("; its last warning: {text}")).unwrap_or_default();
        let version = self.version;
        Err(format!("expected ncclSuccess from init of contract v{version}, found result {result}{warned}"))
    }
}

/// The entry `getEnv`. A setting for which the plugin has nothing keeps what a file says: to NCCL's plugins files are
/// part of the environment, which they look at themselves, and which ccl does not change.
unsafe extern "C" fn get_env(
    context: *mut c_void,
    name: *const c_char,
    found: *const c_char,
) -> *const c_char {
    // SAFETY: a context of `Plugin::init` that is not finalised; it is only ever shared.
    let plugin = unsafe { &*context.cast::<Context>() }.plugin;
    // SAFETY: a name that ends in NUL; the plugin is initialised.
    let answer = unsafe { (plugin.get_env)(name) };
    // SAFETY: as above.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    if answer.is_null() && env::var_os(name).is_none() { found } else { answer }
}

/// The entry `finalize`.
unsafe extern "C" fn finalize(context: *mut c_void) -> i32 {
    // SAFETY: a context of `Plugin::init`, used no more.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    // SAFETY: the plugin is initialised, and not called again.
    context.plugin.finalize.map_or(0, |finalize| unsafe { finalize() })
}

/// # Safety
///
/// `name` is null or ends in NUL. NCCL does not look at it, so it may be null.
unsafe fn name_of(name: *const c_char) -> Result<String, String> {
    if name.is_null() {
        return Ok("unnamed".to_owned());
    }
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_str() {
        Ok(name) if (1..64).contains(&name.len()) => Ok(name.to_string()),
        _ => Err(format!("expected a name of 1 to 63 bytes in UTF-8, found {name:?}")),
    }
}

/// The release of NCCL that plugins are told: that whose contracts these are.
const RELEASE: (u8, u8, u8) = (2, 30, 7);
