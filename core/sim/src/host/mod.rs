//! Engine S1 where the ranks of a host share its cores: they take turns.
//!
//! The [sweep](mod@crate::sweep) gives every lane a clock, so that all of them work at the same time. Here a core has
//! the clock, and does one thing at a time: a step of a rank whose turn it is and that can go on, or nothing. A rank
//! that cannot go on lets the next one of its core look, which takes [`Rates::switch_ns`] each time, whether or not
//! that one has anything to do. So ranks wait for each other by taking turns, as those of the library do
//! where they are more than cores.
//!
//! What a step takes is taken from the cost model's [`Rates`]: the work on a message half by its sender and half by
//! its receiver, and β in equal parts by the ends of the way of a byte: the buffers and the slot. Calls follow each
//! other without a pause, as in measurements: a rank begins the next as soon as it is done with its part of one.
//!
//! ```
//! use ccl_plan::cost::Rates;
//! use ccl_plan::{Algorithm, Collective, Plan};
//! use ccl_sim::host::{Host, time};
//! use ccl_sim::{Job, even_case};
//!
//! let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 8).unwrap();
//! let job = Job::new(&plan, &even_case(8, 2), 4).unwrap();
//! let host = |cores| Host::new(Rates { cores, ..Rates::SHARED_MEMORY });
//! let (alone, two) = (time(&job, &host(0)).unwrap(), time(&job, &host(2)).unwrap());
//! assert!(two.finish_ns > 2.0 * alone.finish_ns);
//! ```

mod engine;
mod fit;

use ccl_plan::cost::{Rates, SHORT_BYTES};
use serde::Deserialize;

use self::engine::Engine;
pub use self::fit::{Sample, calibrate};
use crate::error::Result;
use crate::job::Job;
use crate::pass::Step;
use crate::sweep::Swept;

/// A host: its cores, and what work takes there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Host {
    /// As for the cost model, without what [`Rates::on`] adds. Each of [`Rates::cores`] has a block of consecutive
    /// ranks; 0 is a core for each. `far` is reached within two doublings around `far_bytes`. α is the time between
    /// two cores. The rates of one channel, its chunk and `workers` are not used: a rank has one core for all of its
    /// channels.
    pub rates: Rates,
    /// What a call takes on each rank besides its steps.
    pub call_ns: f64,
    /// What a message takes besides that is read out of the sender's memory.
    pub read_ns: f64,
    /// Time per byte of filling a slot or emptying it. Slots stay in caches, so this does not grow in long calls.
    pub slot_ns_per_byte: f64,
    /// What the first bytes of a message take besides, where it comes from another core: caches fetch ahead only
    /// once they see a stream.
    pub first_ns: f64,
    /// The message of which half of that is felt.
    pub first_bytes: f64,
    /// How long messages get from rank to rank.
    pub carried: Carried,
}

/// How messages of [`LENT_BYTES`] and more get from rank to rank; shorter ones are copied into slots and out of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carried {
    /// As shorter ones.
    #[default]
    Slots,
    /// All are read by the receiver where the sender has them.
    Lent,
}

/// From so many bytes on messages are lent where the rest of a call's are.
pub const LENT_BYTES: u64 = 32 << 10;

impl Host {
    /// A host of these rates where every message is copied, and calls take nothing but their steps.
    pub const fn new(rates: Rates) -> Host {
        Host {
            rates,
            call_ns: 0.0,
            read_ns: 0.0,
            slot_ns_per_byte: stream_ns_per_byte(&rates),
            first_ns: 0.0,
            first_bytes: 2e3,
            carried: Carried::Slots,
        }
    }

    fn cores(&self, n: u32) -> u32 {
        if self.rates.cores == 0 { n.max(1) } else { self.rates.cores.min(n.max(1)) }
    }

    /// How many times as long bytes take in calls of so many. Caches are left within two doublings: squares.
    fn far(&self, bytes: u64) -> f64 {
        let ratio = bytes as f64 / self.rates.far_bytes.max(1.0);
        1.0 + self.rates.far * ratio * ratio / (1.0 + ratio * ratio)
    }

    /// Whether a step lends what it sends.
    fn lends(&self, step: &Step) -> bool {
        let may = match self.carried {
            Carried::Slots => false,
            Carried::Lent => true,
        };
        may && step.sends > 0 && step.bytes >= LENT_BYTES
    }

    /// What a step takes on its core.
    fn step_ns(&self, step: &Step, how: How, far: f64) -> f64 {
        let Rates { message_ns, move_ns, gamma_ns_per_byte, .. } = self.rates;
        let (bytes, memory) = (step.bytes as f64, step.memory);
        let messages = f64::from(step.receives + step.sends);
        let shares = self.rates.shares && step.bytes > SHORT_BYTES;
        let filled = match (how.lends, shares) {
            (true, _) => 0.0,
            (false, true) => f64::from(step.fills),
            (false, false) => f64::from(step.sends),
        };
        let slots = f64::from(step.receives) - how.read + filled;
        // Who lends what it has, and keeps no other copy, does not touch it.
        let told = shares && step.sends > 0 && step.fills == 0;
        let untouched = (how.lends || told) && step.folds == 0 && memory.written() == 0;
        let own = if untouched { 0.0 } else { f64::from(memory.read() + memory.written()) };
        // What is folded where it was lent is read piece by piece into a buffer first.
        let bounced = if step.folds > 0 { how.read } else { 0.0 };
        let per_byte = far * stream_ns_per_byte(&self.rates) * (own + how.read)
            + self.slot_ns_per_byte * (slots + bounced)
            + gamma_ns_per_byte * f64::from(step.folds);
        let first = self.first_ns * bytes / (bytes + self.first_bytes.max(1.0));
        move_ns + messages * message_ns / 2.0 + how.read * self.read_ns + how.apart * first + bytes * per_byte
    }
}

/// Time per byte that a user's buffer is read or written: β is that of all ends on the way from one to another,
/// of which there are four if it goes through a slot, and two if it is read where it is.
const fn stream_ns_per_byte(rates: &Rates) -> f64 {
    rates.beta_ns_per_byte / if rates.pulls { 2.0 } else { 4.0 }
}

/// How a step gets its inputs and gives its outputs.
#[derive(Clone, Copy, Default)]
struct How {
    /// Whether it lends what it sends.
    lends: bool,
    /// Inputs that were lent.
    read: f64,
    /// Inputs that come from another core.
    apart: f64,
}

/// The time of a call among many that follow each other; steps are those of all that were run to find it.
///
/// Fails if the plan's ranks wait for each other for ever, and if it has too many steps to keep.
pub fn time(job: &Job, host: &Host) -> Result<Swept> {
    let engine = Engine::new(job, host)?;
    let calls = (STEPS / engine.steps_of_call().max(1)).clamp(LEAST_CALLS, MOST_CALLS);
    // The first calls find nobody in their way, and the last have nobody behind them.
    let (done_ns, steps) = engine.run(calls + 1)?;
    let first = calls / 4;
    let (from_ns, to_ns) = (done_ns[first - 1], done_ns[calls - 1]);
    Ok(Swept { finish_ns: (to_ns - from_ns) / (calls - first) as f64, steps })
}

/// When the last rank was done with each of so many calls that follow each other.
///
/// Fails as [`time`] does.
pub fn calls(job: &Job, host: &Host, calls: usize) -> Result<Vec<f64>> {
    Ok(Engine::new(job, host)?.run(calls)?.0)
}

/// Calls are run until they have made about so many steps together.
const STEPS: usize = 4_000;
const LEAST_CALLS: usize = 4;
const MOST_CALLS: usize = 512;
/// So many messages that need no slot may be under way on an edge.
const LINES: usize = 64;
