//! The cost of plans that come without a formula: counted on one walk in the domain of time.

use super::{Cost, Counts, Load, Rates, crowd};
use crate::algo::Algorithm;
use crate::collective::{Collective, Shape};
use crate::ids::{Place, Rank};
use crate::machine::clock::{Clock, Link};
use crate::machine::{Buffers, Case, Failure, Stage, walk};
use crate::plan::Plan;

/// What one pass of a plan takes, for each byte of S.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counted {
    collective: Collective,
    n: u32,
    messages: u64,
    moves: u64,
    moved: f64,
    folded: f64,
    /// Messages and Moves of all ranks.
    all: (u64, u64),
    /// Bytes that all ranks send and fold.
    all_bytes: (f64, f64),
    /// Slots' worth of bytes that one pass covers.
    pass_slots: u64,
}

impl Counted {
    /// Walks one pass. The critical path is that of long messages: bytes weigh more than latencies.
    ///
    /// # Errors
    ///
    /// What a walk fails with: the plan has not been verified.
    pub fn of(plan: &Plan) -> Result<Counted, Failure> {
        let n = plan.n();
        let program = plan.program(Place(0), Place(0));
        let whole = plan.collective().input() == Shape::Whole;
        let parts = if whole { program.chunks.of(n).max(1) } else { 1 };
        let case = Case {
            n,
            count: CHUNK * parts,
            channels: 1,
            chunk_count: CHUNK,
            grain_count: 1,
            slots: 8,
            root: Rank(0),
            buffers: Buffers::Apart,
            blocks: None,
        };
        let stage = Stage::new(plan, &case).map_err(|fault| Failure { at: None, fault })?;
        let link = |_, _| Link { alpha_ns: 1.0, beta_ns_per_byte: 1.0 };
        let walked = walk(&stage, Clock::new(link, 0.5, 1))?;
        let (path, spent) = (walked.domain.finish(), walked.domain.spent());
        let blocks = if whole { 1 } else { n as usize };
        let bytes = (case.count * blocks).max(1) as f64;
        let widest = program.check(n).map_or(1, |checked| checked.widest());
        Ok(Counted {
            collective: plan.collective(),
            n,
            messages: path.messages,
            moves: walked.steps.div_ceil(u64::from(n)),
            moved: path.moved_bytes as f64 / bytes,
            folded: path.folded_bytes as f64 / bytes,
            all: (spent.messages, walked.steps),
            all_bytes: (spent.moved_bytes as f64 / bytes, spent.folded_bytes as f64 / bytes),
            pass_slots: ((parts * blocks) as u64).div_ceil(widest as u64),
        })
    }

    /// The cost of a call of `bytes` over `channels` channels.
    pub fn cost(&self, bytes: u64, rates: &Rates, channels: u16) -> Cost {
        let pass_bytes = rates.chunk_bytes.max(1) * u64::from(channels.max(1)) * self.pass_slots;
        let load = Load { n: self.n, bytes, pass_bytes };
        let passes = load.passes(bytes);
        let bytes = bytes as f64;
        let path = Counts {
            messages: self.messages,
            moves: self.moves * passes,
            moved_bytes: self.moved * bytes,
            folded_bytes: self.folded * bytes,
        };
        let all = Counts {
            messages: self.all.0 * passes,
            moves: self.all.1 * passes,
            moved_bytes: self.all_bytes.0 * bytes,
            folded_bytes: self.all_bytes.1 * bytes,
        };
        let cost = Cost { path, all, waits: path.messages, bytes };
        match rates.turn_ns > 0.0 && rates.shares && !self.collective.rooted() {
            true => crowd::in_memory(self.collective, Algorithm::User, (self.n, rates.make), &cost, cost),
            false => cost,
        }
    }
}

/// Elements of one byte in a chunk: so many that bytes decide which way is the longest.
const CHUNK: usize = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::cost;
    use crate::{Algorithm, Collective};

    #[test]
    fn what_is_counted_is_what_formulas_say() {
        for (collective, algorithm) in [
            (Collective::AllReduce, Algorithm::Ring),
            (Collective::AllGather, Algorithm::Pat),
            (Collective::ReduceScatter, Algorithm::Bruck),
            (Collective::Broadcast, Algorithm::Binomial),
        ] {
            for n in [4, 7, 8] {
                let plan = Plan::new(collective, algorithm, n).unwrap();
                let (rates, bytes) = (Rates { shares: false, ..Rates::SHARED_MEMORY }, 56 << 10);
                let counted = Counted::of(&plan).unwrap().cost(bytes, &rates, 1).path;
                let formula = cost(collective, algorithm, n, bytes, &rates, 1).path;
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b;
                let text = alloc::format!("{collective}.{algorithm} n={n}: {counted:?} {formula:?}");
                assert_eq!(counted.messages, formula.messages, "{text}");
                assert!(near(counted.moved_bytes, formula.moved_bytes), "{text}");
                assert!(near(counted.folded_bytes, formula.folded_bytes), "{text}");
            }
        }
    }
}
