//! Collectives on machines that one does not have.
//!
//! A plan is swept over a model of a machine, and what comes out is how long it would take. What is swept
//! are the programs that the library runs, not a formula for them.
//!
//! It does not move data, and it does not choose: [`ccl_plan::select`] does.
#![forbid(unsafe_code)]

mod error;
mod job;
mod pass;
pub mod sweep;

use ccl_plan::Rank;
use ccl_plan::machine::{Buffers, Case};

pub use error::{Error, Result};
pub use job::Job;
pub use sweep::{Clocks, Costs, Swept, sweep};

/// A case of one channel and one pass.
pub fn even_case(n: u32, count: usize) -> Case {
    Case {
        n,
        count,
        channels: 1,
        chunk_count: count.max(1),
        grain_count: 1,
        slots: 8,
        root: Rank(0),
        buffers: Buffers::Apart,
        blocks: None,
    }
}
