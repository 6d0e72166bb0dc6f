//! The clauses, a folder for each kind of plugins.

pub(crate) mod env;
pub(crate) mod net;
pub(crate) mod profiler;
pub(crate) mod tuner;
