//! Ranks as threads: every collective, dtype, reduce operation and placement against the oracle.

#![allow(clippy::unwrap_used)]

mod algorithms;
mod determinism;
mod device;
mod failing;
mod mapped;
mod matrix;
mod nodes;
mod order;
mod split;
mod tuner;
mod uneven;
mod user;
