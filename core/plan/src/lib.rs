//! Plans for collective communication: what to move, never how.
//!
//! A collective is planned as a small program, a value. The same program is verified, costed,
//! simulated and executed; nothing outside this crate knows what an algorithm is.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod algo;
pub mod collective;
pub mod contract;
pub mod cost;
pub mod cursor;
pub mod dtype;
pub mod fingerprint;
pub mod ids;
pub mod layout;
pub mod level;
pub mod machine;
pub mod plan;
pub mod program;
pub mod select;
pub mod topology;
pub mod verify;

pub use algo::{Algorithm, algorithms};
pub use collective::{Collective, Shape};
pub use dtype::{Dtype, ReduceOp};
pub use ids::{Channel, Place, Rank};
pub use level::Level;
pub use plan::Plan;
