//! Plugins made for NCCL behind ccl's own contracts.
//!
//! A plugin of NCCL exports a table for each version of its interface that it knows: of a network, a profiler, a tuner, or an environment.
//! This crate has the layouts of those tables, and makes of each a plugin of ccl, see `ccl-plugin`.
//!
//! What it does not do: look for libraries or open them, which `ccl-plugin-host` does.

pub mod env;
pub mod net;
pub mod profiler;
pub mod tuner;
