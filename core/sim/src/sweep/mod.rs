//! Engine S1: the clocks of all ranks, swept over the programs step by step.
//!
//! Time is that of [`ccl_plan::machine::clock`]: a step starts when its lane is free, its slots have
//! arrived and its credits are back; folding costs γ per byte, each slot sent keeps the lane for β per
//! byte and arrives α later, and so does the credit that goes back. Links are not shared: that is
//! [`fluid`](mod@crate::fluid)'s. The sweep gives the same numbers as the walk, to the last bit, and no more
//! than the numbers: it does not check a plan, and keeps no critical path.
//!
//! Two loops do the work. Rings have one text for all ranks and n² steps; they go through `ring`, which
//! keeps nothing but clocks. Every other plan is compiled once into the list of one pass's steps, in an
//! order in which each can run, and that list is repeated (`order`).

mod order;
mod ring;

use ccl_plan::machine::clock::Link;
use ccl_plan::{Channel, Rank};

use crate::error::Result;
use crate::job::Job;

/// What steps cost.
///
/// `link` gives the cost of an edge from one rank to another in a channel. It must be pure.
#[derive(Clone, Copy, Debug)]
pub struct Costs<L> {
    /// α and β of an edge.
    pub link: L,
    /// γ: time per byte folded.
    pub gamma_ns_per_byte: f64,
}

/// How many clocks a sweep of a ring keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clocks {
    /// One for each rank.
    Full,
    /// One for ranks that a turn of the ring maps to each other, links and all. The result is the same.
    Shared,
}

/// What a sweep found.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Swept {
    /// When the last lane was done.
    pub finish_ns: f64,
    /// Steps whose time was worked out.
    pub steps: u64,
}

impl Swept {
    /// The later of two, with the steps of both.
    fn and(self, other: Swept) -> Swept {
        Swept { finish_ns: later(self.finish_ns, other.finish_ns), steps: self.steps + other.steps }
    }
}

/// Sweeps all channels of a job.
///
/// Fails if the plan's ranks wait for each other for ever, and if it has too many steps to keep.
///
/// ```
/// use ccl_plan::machine::clock::Link;
/// use ccl_plan::{Algorithm, Collective, Plan, Rank};
/// use ccl_sim::{Clocks, Costs, Job, even_case, sweep};
///
/// let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 1000).unwrap();
/// let job = Job::new(&plan, &even_case(1000, 2), 4).unwrap();
/// let link = |_: Rank, _: Rank, _| Link { alpha_ns: 500.0, beta_ns_per_byte: 0.0 };
/// let swept = sweep(&job, &Costs { link, gamma_ns_per_byte: 0.0 }, Clocks::Shared).unwrap();
/// assert_eq!(swept.finish_ns, 2.0 * 999.0 * 500.0);
/// ```
pub fn sweep<L>(job: &Job, costs: &Costs<L>, clocks: Clocks) -> Result<Swept>
where
    L: Fn(Rank, Rank, Channel) -> Link,
{
    (0..job.channels()).map(Channel).try_fold(Swept::default(), |swept, channel| {
        let of_channel = match ring::Ring::new(job, costs, channel, clocks) {
            Some(ring) => ring.run(job, channel),
            None => order::run(job, costs, channel)?,
        };
        Ok(swept.and(of_channel))
    })
}

/// The later of two moments.
#[inline]
fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
