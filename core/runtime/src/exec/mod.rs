//! Executors: what turns a checked program into moved bytes.

pub(crate) mod engine;
pub(crate) mod host;
mod lending;
mod mapped;
pub(crate) mod plans;
pub mod reduce;
mod step;
mod straight;
mod tape;

pub use plans::{Reach, selection};
