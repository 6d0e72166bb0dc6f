//! Tuner plugins made for NCCL, versions 2 to 6 of its contract.
//!
//! A library exports one table for each version that it knows. [`Plugin::open`] takes one of them; [`Plugin::table`]
//! and [`Plugin::init`] then are what a tuner of ccl's is, see `ccl_plugin::tuner::c::CclTunerV1`. All such plugins
//! share one table, whose `init` would not know which is meant: hence a function beside it.
//!
//! NCCL's plugins are asked about five collectives, and write into a table of costs by algorithm and protocol.
//! The module `costs` says how our algorithms stand in that table. What they say of NVLS and CollNet, and of the constants of
//! NCCL's own cost model, is not used: there is nothing here that it could be about.

mod advisor;
mod calls;
mod costs;
mod layout;
mod plugin;

use std::ops::RangeInclusive;

pub use plugin::Plugin;

/// Versions of the contract that are adapted.
pub const VERSIONS: RangeInclusive<u32> = 2..=6;

/// The symbol of a tuner's table.
pub fn symbol(version: u32) -> String {
    format!("ncclTunerPlugin_v{version}")
}
