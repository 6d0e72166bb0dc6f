//! The time of collectives on machines that one does not have, to 100,000 ranks and beyond.
//!
//! What is simulated are the programs that the library runs ([`ccl_plan`]), over a model of a machine.
//!
//! | engine | what | takes |
//! |---|---|---|
//! | S0: [`formula`] and [`ccl_plan::cost`] | closed formulas | nothing |
//! | S1: [`mod@sweep`] | the clock of every rank, step by step; links are not shared | a nanosecond for a step of a ring, some for others |
//! | S2: [`mod@fluid`] | flows on shared links, event by event | about a microsecond for a message |
//!
//! Each is tested against the one before where both apply. [`Machine`] and [`Network`] make links and
//! routes from a few numbers, with [faults](Fault) in them; a [`Scenario`] is all of it as a file.
//!
//! ```
//! use ccl_plan::{Algorithm, Collective, Plan};
//! use ccl_sim::{Clocks, Costs, Job, Machine, Network, even_case, sweep};
//!
//! let summit = Machine::named("summit").unwrap();
//! let network = Network::new(&summit, &[], 1).unwrap();
//! let plan = Plan::new(Collective::AllReduce, Algorithm::DoubleTree, summit.ranks()).unwrap();
//! let job = Job::new(&plan, &even_case(summit.ranks(), 2), 4).unwrap();
//! let link = |from, to, channel| network.link(from, to, channel);
//! let swept = sweep(&job, &Costs { link, gamma_ns_per_byte: 0.0 }, Clocks::Full).unwrap();
//! assert!(swept.finish_ns < 200_000.0);
//! ```
//!
//! It moves no data, checks no plan ([`ccl_plan::verify`] does) and chooses nothing ([`ccl_plan::select`]
//! does). Packets, routing protocols, congestion control and the jitter of real machines are not in it.
#![forbid(unsafe_code)]

mod bootstrap;
mod error;
pub mod fluid;
pub mod formula;
pub mod host;
mod job;
mod machine;
mod network;
mod pass;
pub mod scenario;
pub mod sweep;

use ccl_plan::Rank;
use ccl_plan::machine::{Buffers, Case};

pub use bootstrap::Bootstrap;
pub use error::{Error, Result};
pub use fluid::{Route, fluid, fluid_by_switch};
pub use job::Job;
pub use machine::{Fabric, Fault, Machine, Reach};
pub use network::Network;
pub use scenario::{Engine, Point, Scenario};
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
