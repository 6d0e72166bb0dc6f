//! Networks made for NCCL: which table of a library is taken, and that each is taken once.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Mutex;

use ccl_plugin::c::NET_SYMBOL;
use ccl_plugin_nccl::net::{Plugin, VERSIONS, collective_symbol, symbol};
use libloading::os::unix::Library;
use once_cell::sync::Lazy;

use crate::check::CheckedNet;
use crate::library::{Found, address};

/// Every symbol of NCCL's that a network library may have, adapted or not, to be named where it is met.
pub(crate) fn symbols() -> impl Iterator<Item = String> {
    MET.map(symbol).chain(MET.map(collective_symbol))
}

/// The newest table of `library` that is adapted. `versions` are the symbols that it has.
pub(crate) fn net_of(library: &Library, versions: &[String]) -> Result<Found, String> {
    let offered = |symbol: &String| versions.contains(symbol);
    let Some(version) = VERSIONS.rev().find(|version| offered(&symbol(*version))) else {
        let ours = NET_SYMBOL.to_string_lossy();
        let (first, last) = (symbol(*VERSIONS.start()), symbol(*VERSIONS.end()));
        return Err(match versions {
            [] => format!("exports neither {ours} nor one of {first} to {last}"),
            _ => format!("expected {ours}, or one of {first} to {last}, found only what it offers"),
        });
    };
    let plugin = opened(library, version).map_err(|why| format!("{}: {why}", symbol(version)))?;
    let mut how = format!("{} of NCCL's contract, the newest it offers", symbol(version));
    if MET.rev().any(|version| offered(&symbol(version)) && !VERSIONS.contains(&version)) {
        how = format!("{} of NCCL's contract, the newest of those that are adapted", symbol(version));
    }
    if MET.map(collective_symbol).any(|symbol| offered(&symbol)) {
        how.push_str("; its collectives (ncclCollNetPlugin) are not used");
    }
    let checked = CheckedNet { table: *Plugin::table(), name: plugin.name().to_string() };
    Ok(Found { checked, how, nccl: Some(plugin) })
}

/// The plugin of a table. A table that was refused once is refused again: it may have been initialised halfway.
fn opened(library: &Library, version: u32) -> Result<&'static Plugin, String> {
    let table = address(library, &symbol(version));
    let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // By the table's address, since a library may be reached by several names.
    let plugin = opened.entry(table as usize).or_insert_with(|| {
        // SAFETY: by NCCL's contract, what stands under this symbol; libraries are never closed, and this is the
        // only place that opens a table, once.
        unsafe { Plugin::open(version, table) }.map(|plugin| &*Box::leak(Box::new(plugin)))
    });
    plugin.clone()
}

/// Versions to look for: all that there were and some that may come.
const MET: RangeInclusive<u32> = 1..=20;

/// Every table of NCCL's that was opened, with what became of it: part of the table of loaded plugins.
static OPENED: Lazy<Mutex<HashMap<usize, Result<&'static Plugin, String>>>> = Lazy::new(Mutex::default);
