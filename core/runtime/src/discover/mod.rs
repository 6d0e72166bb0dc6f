//! What is here: interfaces, this host, and what the launcher says about this process.
//!
//! Finding out and deciding are apart: what the system says is collected into values, and the choice among
//! them is a pure function, so that it can be tested on machines that do not exist.

pub mod cache;
pub mod host;
pub mod interfaces;
pub mod launcher;
pub(crate) mod placement;
pub(crate) mod processor;
pub mod topology;
