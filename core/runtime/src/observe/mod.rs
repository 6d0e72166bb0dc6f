//! What a communicator is doing, for those who watch.

pub mod board;

pub use board::{Board, Signature};
