//! Profilers made for NCCL, versions 1 to 6 of its contract.
//!
//! A library exports one table for each version that it knows. [`Plugin::open`] takes one of them; [`Plugin::table`]
//! and [`Plugin::init`] then are what a profiler of ccl's is, see `ccl_plugin::profiler::c::CclProfilerV1`; its mask
//! is [`Plugin::wanted`]. All such plugins share one table, whose `init` would not know which is meant: hence a
//! function beside it.
//!
//! Such a plugin is told what a host has: no channels of kernels, no events of networks, no copy engines. Times are
//! its own affair, since its functions are told none.

mod calls;
mod context;
mod describe;
mod held;
mod layout;
mod plugin;
mod states;
mod words;

use std::ops::RangeInclusive;

pub use plugin::Plugin;

/// Versions of the contract that are adapted.
pub const VERSIONS: RangeInclusive<u32> = 1..=6;

/// The symbol of a profiler's table.
pub fn symbol(version: u32) -> String {
    format!("ncclProfiler_v{version}")
}
