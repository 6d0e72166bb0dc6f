//! The table of an env plugin, found in a library and checked, and nothing of it called.

use std::ffi::{CString, c_void};
use std::ptr;

use ccl_plugin::__EnvModule;
use ccl_plugin::env::c::{CclEnvV1, ENV_SYMBOL, ENV_VERSION};
use ccl_plugin::{CclHostV1, Code};
use ccl_plugin_nccl::env::{Plugin, VERSIONS, symbol};
use libloading::os::unix::Library;

use crate::check::{all_there, check_layout, name_of, whole_table};
use crate::library::{address, open};
use crate::search::{directories, places_for};

/// An env plugin that was checked and has no context. Copies are the same plugin, of which there may be one context
/// at a time; [`EnvPlugin`](super::EnvPlugin) is the safe way to have it.
#[derive(Clone, Copy)]
pub struct EnvTable {
    table: CclEnvV1,
    pub(super) name: &'static str,
    pub(super) how: &'static str,
    nccl: Option<&'static Plugin>,
}

impl EnvTable {
    /// The first usable table that `spec` means, one name or file.
    ///
    /// # Errors
    ///
    /// There is none: a line for each candidate.
    pub fn open(spec: &str) -> Result<EnvTable, String> {
        let mut refusals = Vec::new();
        for place in places_for("env", spec, &directories()) {
            let found = open(&place).and_then(|library| EnvTable::of(&library, &versions_of(&library)));
            match found {
                Ok(table) => return Ok(table),
                Err(why) => refusals.push(format!("{}: {why}", place.name().display())),
            }
        }
        Err(refusals.join("; "))
    }

    /// What the plugin calls itself.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How it was checked, for the log.
    pub fn how(&self) -> &'static str {
        self.how
    }

    /// The entries, of which `init` is not to be called: see [`EnvTable::init`].
    pub fn entries(&self) -> &CclEnvV1 {
        &self.table
    }

    /// What the entry `init` does; the code and the words of a failure.
    ///
    /// # Safety
    ///
    /// As `ccl_env.h` asks of a host that calls `init`; there is no other context.
    pub unsafe fn init(&self, host: *const CclHostV1, release: &str) -> Result<*mut c_void, (i32, String)> {
        if let Some(nccl) = self.nccl {
            // SAFETY: the caller's contract.
            return unsafe { nccl.init(host) }.map_err(|why| (Code::INTERNAL.0, why));
        }
        let release = CString::new(release).unwrap_or_default();
        let (init, mut context) = (self.table.init, ptr::null_mut());
        let init = init.expect("a required entry, which was checked");
        // SAFETY: the caller's contract; the release lives through the call.
        match unsafe { init(host, release.as_ptr(), &raw mut context) } {
            0 => Ok(context),
            code => Err((code, format!("expected success from init, found {}", Code(code)))),
        }
    }

    /// The table of a library that offers `versions`: ours, else NCCL's newest that is adapted.
    pub(super) fn of(library: &Library, versions: &[String]) -> Result<EnvTable, String> {
        let ours = address(library, &ENV_SYMBOL.to_string_lossy());
        if !ours.is_null() {
            // First, because a table of another layout may have anything where its name should be.
            let how = check_layout::<__EnvModule>(library)?;
            // SAFETY: by the contract of the symbol; libraries are never closed.
            return unsafe { check(ours.cast()) }.map(|(table, name)| EnvTable {
                table,
                name,
                how,
                nccl: None,
            });
        }
        let newest = VERSIONS.rev().find(|version| versions.contains(&symbol(*version)));
        let Some(version) = newest else {
            let (first, last) = (symbol(*VERSIONS.start()), symbol(*VERSIONS.end()));
            return Err(format!(
                "exports neither {} nor one of {first} to {last}",
                ENV_SYMBOL.to_string_lossy()
            ));
        };
        // SAFETY: by NCCL's contract, what stands under this symbol; libraries are never closed.
        let plugin = unsafe { Plugin::open(version, address(library, &symbol(version)).cast()) };
        let plugin: &'static Plugin =
            Box::leak(Box::new(plugin.map_err(|why| format!("{}: {why}", symbol(version)))?));
        let how = format!("{} of NCCL's contract, the newest it offers", symbol(version));
        Ok(EnvTable { table: Plugin::table(), name: plugin.name(), how: how.leak(), nccl: Some(plugin) })
    }
}

impl std::fmt::Debug for EnvTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvTable").field("name", &self.name).field("how", &self.how).finish_non_exhaustive()
    }
}

/// Every table that a library has, ours and NCCL's, adapted or not.
pub(super) fn versions_of(library: &Library) -> Vec<String> {
    let ours = std::iter::once(ENV_SYMBOL.to_string_lossy().into_owned());
    ours.chain((1..=MET).map(symbol)).filter(|symbol| !address(library, symbol).is_null()).collect()
}

/// Reads and checks a table.
///
/// # Safety
///
/// `table` is aligned and readable for 8 bytes, and for as many as its first field says if that is plausible; what it
/// points to lives forever.
unsafe fn check(table: *const CclEnvV1) -> Result<(CclEnvV1, &'static str), String> {
    // SAFETY: the caller's contract; null entries are `None`.
    let (table, name) = unsafe {
        let table = whole_table(table, ENV_VERSION)?;
        (table, name_of(table.name)?)
    };
    all_there(&[
        ("init", table.init.is_none()),
        ("getEnv", table.get_env.is_none()),
        ("finalize", table.finalize.is_none()),
    ])?;
    Ok((table, name))
}

/// The last version of NCCL's to look for: all that there were and some that may come.
const MET: u32 = 9;
