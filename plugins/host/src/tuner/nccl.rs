//! Tuners made for NCCL: which table of a library is taken.

use std::ops::RangeInclusive;

use ccl_plugin::tuner::c::TUNER_SYMBOL;
use ccl_plugin_nccl::tuner::{Plugin, VERSIONS, symbol};
use libloading::os::unix::Library;

use super::load::Found;
use crate::library::address;

/// Every symbol of NCCL's that a tuner library may have, adapted or not, to be named where it is met.
pub(super) fn symbols() -> impl Iterator<Item = String> {
    MET.map(symbol)
}

/// The newest table of `library` that is adapted. `versions` are the symbols that it has.
pub(super) fn tuner_of(library: &Library, versions: &[String]) -> Result<Found, String> {
    let offered = |version: &u32| versions.contains(&symbol(*version));
    let Some(version) = VERSIONS.rev().find(offered) else {
        let ours = TUNER_SYMBOL.to_string_lossy();
        let (first, last) = (symbol(*VERSIONS.start()), symbol(*VERSIONS.end()));
        return Err(match versions {
            [] => format!("exports neither {ours} nor one of {first} to {last}"),
            _ => format!("expected {ours}, or one of {first} to {last}, found only what it offers"),
        });
    };
    let symbol = symbol(version);
    // SAFETY: by NCCL's contract, what stands under this symbol; libraries are never closed.
    let plugin = unsafe { Plugin::open(version, address(library, &symbol)) };
    let plugin: &'static Plugin = Box::leak(Box::new(plugin.map_err(|why| format!("{symbol}: {why}"))?));
    let newest = !MET.rev().any(|met| offered(&met) && !VERSIONS.contains(&met) && met > version);
    let rank = if newest { "the newest it offers" } else { "the newest of those that are adapted" };
    Ok(Found {
        table: *Plugin::table(),
        name: plugin.name().to_string(),
        how: format!("{symbol} of NCCL's contract, {rank}"),
        nccl: Some(plugin),
    })
}

/// The symbol that a plugin was read from.
pub(super) fn symbol_of(plugin: &Plugin) -> String {
    symbol(plugin.version())
}

/// Versions to look for: all that there were and some that may come.
const MET: RangeInclusive<u32> = 1..=20;
