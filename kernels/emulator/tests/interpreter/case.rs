//! Calls drawn from a seed.

use std::sync::Arc;

use ccl_kernels::shape::Protocol;
use ccl_kernels_emulator::{Options, Order, Report};
use ccl_plan::machine::traffic::Traffic;
use ccl_plan::machine::{Blocks, Buffers, Case, Stage, walk};
use ccl_plan::program::ExtentOf;
use ccl_plan::{Algorithm, Collective, Dtype, Plan, Rank, ReduceOp, Shape};

use crate::model::{Arithmetic, Memory, run};
use crate::world::{Wiring, World};

/// Draws numbers; equal seeds draw equal ones.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// One call of all ranks, and how its edges are.
pub(crate) struct Call {
    pub(crate) plan: Plan,
    pub(crate) case: Case,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) wiring: Wiring,
    pub(crate) options: Options,
    pub(crate) memory: Vec<Memory>,
}

impl Call {
    /// A call of this kind.
    pub(crate) fn drawn(
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        seed: u64,
    ) -> Option<Call> {
        Call::drawn_by(|n| Plan::new(collective, algorithm, n), protocol, seed)
    }

    /// A call of a plan for as many ranks as are drawn.
    pub(crate) fn drawn_by(
        plan: impl Fn(u32) -> Option<Plan>,
        protocol: Protocol,
        seed: u64,
    ) -> Option<Call> {
        let mut draw = Draw::new(seed);
        let draw = &mut draw;
        let n = 2 + draw.below(5) as u32;
        let plan = plan(n)?;
        let collective = plan.collective();
        let mut order: Vec<Rank> = (0..n).map(Rank).collect();
        if draw.below(3) == 0 {
            (1..n as usize).for_each(|i| order.swap(i, draw.below(i + 1)));
        }
        let plan = plan.with_order(&order)?;
        let (mut case, dtype) = (case(&plan, draw), draw.of(&Dtype::ALL));
        let op = if collective.reduces() { draw.of(&ReduceOp::ALL) } else { ReduceOp::Sum };
        case.slots = (1..=4).find(|slots| {
            let case = Case { slots: *slots, ..case.clone() };
            Stage::new(&plan, &case).is_ok_and(|stage| walk(&stage, Traffic::new()).is_ok())
        })?;
        let stage = Stage::new(&plan, &case).ok()?;
        let memory = (0..n).map(|rank| memory(&stage, Rank(rank), dtype, draw)).collect();
        let wiring = Wiring {
            protocol,
            slots: case.slots as u32 + draw.of(&[0, 0, 0, 1, 2]),
            spare_bytes: draw.of(&[0, 0, 8, 40, 1000]),
            sized: draw.below(4) == 0,
            lends: false,
            windows: false,
            shared_slots: 0,
            done: draw.of(&[0, 0, 5, (1 << 14) - 1, (1 << 32) - 2]),
            workers: draw.of(&[32, 32, 32, 64]),
        };
        let order = draw.of(&[Order::RoundRobin, Order::Random, Order::Random, Order::Adversarial]);
        let delays_stores = draw.below(2) == 0;
        let options = Options { seed, order, delays_stores, most_turns: 60_000_000, ..Options::default() };
        let arithmetic = Arithmetic { dtype, op, scalar: draw.of(&[0.5, 3.0, -1.25]), n };
        Some(Call { plan, case, arithmetic, wiring, options, memory })
    }

    /// Launches it twice, as a captured graph would, and compares all memory with the oracle's. The turns that took.
    pub(crate) fn check(&self) -> Result<u64, Failed> {
        Ok(self.checked()?.0)
    }

    /// [`Call::check`], and how many payloads went to all at once.
    pub(crate) fn checked(&self) -> Result<(u64, u64), Failed> {
        let stage = Stage::new(&self.plan, &self.case).expect("it was drawn so");
        let mut expected = self.memory.clone();
        let mut world = World::new((&self.plan, &stage), self.arithmetic, self.wiring, &self.memory);
        let mut turns = 0;
        for launch in 0..2 {
            run(&stage, self.arithmetic, &mut expected);
            turns += world.run(&self.options).map_err(Failed::Stopped)?;
            if let Some(error) = world.errors().first() {
                return Err(Failed::Wrong(format!("{error:?}")));
            }
            for rank in (0..self.case.n).map(Rank) {
                let Some(found) = world.memory(rank) else { continue };
                let wanted = &expected[rank.index()].bytes;
                if let Some(at) = (0..found.len()).find(|at| found[*at] != wanted[*at]) {
                    let text =
                        format!("rank {rank}, launch {launch}, byte {at}: {} for {}", found[at], wanted[at]);
                    return Err(Failed::Wrong(text));
                }
            }
        }
        Ok((turns, world.shared()))
    }

    pub(crate) fn describe(&self) -> String {
        let plan = (self.plan.collective(), self.plan.algorithm());
        format!("{plan:?} {} {:?} {:?} seed {}", self.case, self.arithmetic, self.wiring, self.options.seed)
    }
}

/// How a call failed.
#[derive(Debug)]
#[expect(dead_code, reason = "read in failures")]
pub(crate) enum Failed {
    Stopped(Box<Report>),
    Wrong(String),
}

fn case(plan: &Plan, draw: &mut Draw) -> Case {
    let (collective, n) = (plan.collective(), plan.n());
    let chunk_count = draw.of(&[1, 3, 8, 17, 40, 130]);
    let channels = draw.of(&[1, 1, 2]);
    let pieces = if collective.input() == Shape::Whole { n as usize } else { 1 };
    let most = chunk_count * pieces * usize::from(channels) * 2;
    let any = draw.below(most + 1);
    let count = draw.of(&[any, any, 1, most, most - 1]);
    let root = Rank(draw.below(n as usize) as u32);
    let apart = matches!(collective, Collective::AllToAll | Collective::AllToAllV) || draw.below(2) == 0;
    Case {
        n,
        count,
        channels,
        chunk_count,
        grain_count: draw.of(&[1, 1, 4, 16]),
        slots: 1,
        root,
        buffers: if apart { Buffers::Apart } else { Buffers::InPlace },
        blocks: collective.uneven().then(|| Arc::new(Blocks::uneven(collective, n, count, 0, root))),
    }
}

/// Random bytes, buffers at odd elements.
fn memory(stage: &Stage<'_>, rank: Rank, dtype: Dtype, draw: &mut Draw) -> Memory {
    let size = dtype.size_bytes();
    let layout = stage.layout(rank);
    let length = |side, shape| match shape {
        Shape::None => 0,
        Shape::Whole => layout.count,
        _ => (0..layout.n)
            .map(|r| {
                let offset = if side == ExtentOf::SendBlock {
                    layout.input_offset(Rank(r))
                } else {
                    layout.output_offset(Rank(r))
                };
                offset + layout.block_count(side, Rank(r))
            })
            .max()
            .unwrap_or(0),
    };
    let program = stage.seat(rank).map_or(stage.collective, |seat| seat.program.collective);
    let input_count = length(ExtentOf::SendBlock, program.input());
    let output_count = length(ExtentOf::RecvBlock, program.output());
    let mut lead = || draw.of(&[0, 0, 16 / size, 1, 3]);
    let (first, gap) = (lead(), lead() + 1);
    let (input, output) = match stage.overlap(rank) {
        None => (first, (first + input_count + gap).next_multiple_of(draw.of(&[1, 16]))),
        Some(far) if far < 0 => (first + far.unsigned_abs(), first),
        Some(far) => (first, first + far.unsigned_abs()),
    };
    let end = (input + input_count).max(output + output_count) + 1;
    let bytes = (0..end * size).map(|_| draw.below(256) as u8).collect();
    Memory { bytes, input: input * size, output: output * size }
}
