//! Network plugins made for NCCL, versions 6 to 12 of its contract.
//!
//! A library exports one table for each version that it knows. [`Plugin::open`] takes one of them; [`Plugin::table`]
//! and [`Plugin::init`] then are what a network of ccl's is, see `ccl_plugin::c::CclNetV1`. All such plugins share
//! one table, whose `init` would not know which is meant: hence a function beside it.
//!
//! Not used of what they offer: devices that complete receives by themselves, virtual devices made of several, hints
//! of what is about to be sent, events of their own, and the collectives of `ncclCollNetPlugin`.

mod calls;
mod comm;
mod context;
mod device;
mod layout;
pub(crate) mod logger;
mod plugin;

use std::ops::RangeInclusive;

pub use plugin::Plugin;

/// Versions of the contract that are adapted.
pub const VERSIONS: RangeInclusive<u32> = 6..=12;

/// The symbol of a network's table.
pub fn symbol(version: u32) -> String {
    format!("ncclNetPlugin_v{version}")
}

/// The symbol of a table of collectives that a network carries out, which is recognised and not used.
pub fn collective_symbol(version: u32) -> String {
    format!("ncclCollNetPlugin_v{version}")
}
