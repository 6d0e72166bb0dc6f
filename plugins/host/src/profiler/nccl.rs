//! Profilers made for NCCL: which table of a library is taken, and that each is taken once.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Mutex;

use ccl_plugin::profiler::c::PROFILER_SYMBOL;
use ccl_plugin_nccl::profiler::{Plugin, VERSIONS, symbol};
use libloading::os::unix::Library;
use once_cell::sync::Lazy;

use crate::library::address;

/// Every symbol of NCCL's that a profiler's library may have, adapted or not, to be named where it is met.
pub(super) fn symbols() -> impl Iterator<Item = String> {
    MET.map(symbol)
}

/// The newest table of `library` that is adapted, and how it was chosen. `versions` are the symbols that it has.
pub(super) fn profiler_of(
    library: &Library,
    versions: &[String],
) -> Result<(&'static Plugin, String), String> {
    let offered = |version: &u32| versions.contains(&symbol(*version));
    let Some(version) = VERSIONS.rev().find(offered) else {
        let ours = PROFILER_SYMBOL.to_string_lossy();
        let (first, last) = (symbol(*VERSIONS.start()), symbol(*VERSIONS.end()));
        return Err(match versions {
            [] => format!("exports neither {ours} nor one of {first} to {last}"),
            _ => format!("expected {ours}, or one of {first} to {last}, found only what it offers"),
        });
    };
    let plugin = opened(library, version).map_err(|why| format!("{}: {why}", symbol(version)))?;
    let newer = MET.rev().any(|version| offered(&version) && !VERSIONS.contains(&version));
    let newest = if newer { "the newest of those that are adapted" } else { "the newest it offers" };
    Ok((plugin, format!("{} of NCCL's contract, {newest}", symbol(version))))
}

/// The plugin of a table: the same for the same table.
fn opened(library: &Library, version: u32) -> Result<&'static Plugin, String> {
    let table = address(library, &symbol(version));
    let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // By the table's address, since a library may be reached by several names.
    let plugin = opened.entry(table as usize).or_insert_with(|| {
        // SAFETY: by NCCL's contract, what stands under this symbol; libraries are never closed.
        unsafe { Plugin::open(version, table) }.map(|plugin| &*Box::leak(Box::new(plugin)))
    });
    plugin.clone()
}

/// Versions to look for: all that there were and some that may come.
const MET: RangeInclusive<u32> = 1..=20;

/// Every table of NCCL's that was opened, with what became of it: part of the table of loaded plugins.
static OPENED: Lazy<Mutex<HashMap<usize, Result<&'static Plugin, String>>>> = Lazy::new(Mutex::default);
