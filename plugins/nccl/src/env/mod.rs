//! Env plugins made for NCCL, versions 1 and 2 of its contract.
//!
//! A library exports one table for each version that it knows. [`Plugin::open`] takes one of them; [`Plugin::table`]
//! and [`Plugin::init`] then are what an env plugin of ccl's is, see `ccl_plugin::env::c::CclEnvV1`.

mod layout;
mod plugin;

use std::ops::RangeInclusive;

pub use plugin::Plugin;

/// Versions of the contract that are adapted.
pub const VERSIONS: RangeInclusive<u32> = 1..=2;

/// The symbol of an env plugin's table.
pub fn symbol(version: u32) -> String {
    format!("ncclEnvPlugin_v{version}")
}
