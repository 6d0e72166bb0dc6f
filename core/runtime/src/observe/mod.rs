//! What a communicator is doing, for those who watch.

pub mod board;
pub(crate) mod flight;
pub(crate) mod profiler;

pub use board::{Board, Signature};
