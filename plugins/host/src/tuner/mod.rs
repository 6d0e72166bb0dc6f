//! Tuners, as safe types over the table.
//!
//! A [`TunerContext`] stays on the thread that made it and is finalised once, when it is dropped. What a tuner writes
//! is copied and says nothing that its host would have to believe: costs, numbers of channels, lengths.

mod context;
mod load;
mod nccl;
mod plugin;

pub use ccl_plugin::tuner::{Call, Candidate, Comm};
pub use context::TunerContext;
pub use plugin::{TunerError, TunerPlugin};
