//! The verifier: every rank of a plan, walked to its end and judged by the collective's contract.
//!
//! [`prove`] walks one case. [`verify`] walks a plan through the cases that can tell right from
//! wrong: counts below, at and above every boundary, one or several channels, in place or apart,
//! several roots, and every number of slots from the smallest that completes. A failure comes with
//! its [`Witness`]. All is deterministic and holds no state, so plans may be verified on many
//! threads at once and the reports added up.

mod cases;
mod large;
pub mod mutate;
mod turning;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::ops::AddAssign;

pub use self::cases::{Depth, case_at, cases, plans};
pub use self::large::{Budget, LARGE, LargeReport, Method, verify_large};
use crate::algo::Algorithm;
use crate::collective::Collective;
use crate::ids::Rank;
use crate::level::Level;
use crate::machine::entered::Entered;
use crate::machine::provenance::{Orders, Provenance};
use crate::machine::tally::{Exact, Nonce, Tally};
use crate::machine::{Case, Failure, Fault, Stage, Watch, last_touch, walk};
use crate::plan::{Cast, Plan};

/// What a walk showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Moves, signals and waits of all ranks.
    pub steps: u64,
    /// How elements were folded.
    pub orders: Orders,
}

/// A case in which a plan fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Witness {
    /// The program's name, as in `all_reduce.ring`.
    pub plan: String,
    /// The case.
    pub case: Case,
    /// What went wrong, and where.
    pub failure: Failure,
    /// The text of the instruction at fault, if there is one.
    pub instruction: Option<String>,
}

/// What was verified.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// Plans: collective, algorithm and n.
    pub plans: u64,
    /// Programs of distinct roles.
    pub programs: u64,
    /// Walks of one plan in one case.
    pub walks: u64,
    /// Steps of all walks.
    pub steps: u64,
    /// Programs that were damaged on purpose.
    pub mutations: u64,
    /// Of them, those refused by the checker or failed in a walk.
    pub rejected: u64,
    /// Of them, those that still compute the right numbers in every case.
    pub equivalent: u64,
    /// What the walks said about each collective and algorithm.
    pub findings: BTreeMap<(Collective, Algorithm), Finding>,
}

/// What the walks said about an algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The smallest number of slots with which every case completes.
    pub slots: usize,
    /// What the orders in which elements were folded promise: the weakest of all n and roots.
    pub level: Level,
}

/// Walks a plan in one case.
///
/// Up to 128 ranks contributions are followed exactly, above by nonces.
pub fn prove(plan: &Plan, case: &Case) -> Result<Proof, Box<Witness>> {
    prove_cast(plan, cast_for(plan, case)?, case)
}

/// As [`prove`], with programs of the caller's for the plan's places.
pub fn prove_cast(plan: &Plan, cast: Cast, case: &Case) -> Result<Proof, Box<Witness>> {
    let stage = Stage::with_cast(plan, case, cast)
        .map_err(|fault| Witness::new(plan, case, None, Failure { at: None, fault }))?;
    let proof = if plan.collective() == Collective::Barrier {
        heard(&stage)
    } else if case.n <= Exact::MAX_RANKS {
        judged::<Exact>(&stage)
    } else {
        judged::<Nonce>(&stage)
    };
    proof.map_err(|failure| Witness::new(plan, case, Some(&stage), failure))
}

/// Walks a plan through all its cases, finding the smallest number of slots that suffices.
pub fn verify(plan: &Plan, depth: Depth) -> Result<VerifyReport, Box<Witness>> {
    let mut report = VerifyReport { plans: 1, ..VerifyReport::default() };
    let mut casts: BTreeMap<Rank, Cast> = BTreeMap::new();
    let mut slots = 1;
    let mut orders: BTreeMap<Rank, Orders> = BTreeMap::new();
    for case in cases(plan, depth) {
        if case.slots < slots {
            continue;
        }
        let cast = casts.get(&case.root).cloned();
        let cast = match cast {
            Some(cast) => cast,
            None => {
                let cast = cast_for(plan, &case)?;
                report.programs = report.programs.max(cast.programs.len() as u64);
                casts.insert(case.root, cast.clone());
                cast
            }
        };
        report.walks += 1;
        match prove_cast(plan, cast, &case) {
            Ok(proof) => {
                report.steps += proof.steps;
                let of_root = orders.entry(case.root).or_insert(Orders::None);
                *of_root = of_root.and(proof.orders);
            }
            Err(witness) if case.slots == 1 && witness.is_deadlock() => slots = 2,
            Err(witness) => return Err(witness),
        }
    }
    let level = orders.values().map(|orders| orders.level(plan.n())).min().unwrap_or(Level::World);
    if let Some(case) = cases(plan, depth).last().filter(|_| level < plan.level()) {
        let fault = Fault::Level { stated: plan.level(), found: level };
        return Err(Witness::new(plan, case, None, Failure { at: None, fault }));
    }
    let finding = Finding { slots, level };
    report.findings.insert((plan.collective(), plan.algorithm()), finding);
    Ok(report)
}

/// Verifies every algorithm of every collective for every n up to `max_ranks`, calling `progress`
/// after each plan. Stops at the first, and so smallest, failure.
pub fn verify_all(
    max_ranks: u32,
    depth: Depth,
    mut progress: impl FnMut(&Plan, &VerifyReport),
) -> Result<VerifyReport, Box<Witness>> {
    let mut total = VerifyReport::default();
    for plan in plans(1..=max_ranks) {
        total += &verify(&plan, depth)?;
        progress(&plan, &total);
    }
    Ok(total)
}

fn cast_for(plan: &Plan, case: &Case) -> Result<Cast, Box<Witness>> {
    plan.cast(plan.place_of(case.root)).map_err(|error| {
        let fault = Fault::Unchecked { reason: format!("{error}").into() };
        Witness::new(plan, case, None, Failure { at: None, fault })
    })
}

fn judged<T: Tally>(stage: &Stage<'_>) -> Result<Proof, Failure> {
    let walked = walk(stage, Provenance::<T>::new(stage)).map_err(|failure| blamed::<T>(stage, failure))?;
    let judged = walked.domain.judge(stage).map_err(|fault| Failure { at: None, fault });
    let orders = judged.map_err(|failure| blamed::<T>(stage, failure))?;
    Ok(Proof { steps: walked.steps, orders })
}

/// A failure that showed at the end, with the step that led to it: the last one that wrote the element or filled
/// the edge, or the last of a rank that did not.
fn blamed<T: Tally>(stage: &Stage<'_>, failure: Failure) -> Failure {
    let watch = match &failure {
        Failure { at: Some(_), .. } => None,
        Failure { fault: Fault::Leftover { edge, .. }, .. } => Some(Watch::Edge(*edge)),
        Failure { fault: Fault::Disagree { rank, element }, .. } => Some(Watch::Element(*rank, *element)),
        Failure { fault: Fault::Wrong(wrong), .. } => {
            let blocks = stage.output_blocks(wrong.rank);
            let start = blocks.get(wrong.block as usize).map_or(0, |(offset, _)| *offset);
            Some(Watch::Element(wrong.rank, start + wrong.element))
        }
        Failure { fault: Fault::Deadlock { chain, .. }, .. } => {
            let at = chain.first().map(|waiting| waiting.at);
            return Failure { at, ..failure };
        }
        _ => None,
    };
    let at = watch.and_then(|watch| last_touch(stage, Provenance::<T>::new(stage), watch));
    Failure { at: failure.at.or(at), ..failure }
}

fn heard(stage: &Stage<'_>) -> Result<Proof, Failure> {
    let walked = walk(stage, Entered::new(stage.case.n))?;
    walked.domain.judge().map_err(|fault| Failure { at: None, fault })?;
    Ok(Proof { steps: walked.steps, orders: Orders::None })
}

impl Witness {
    fn new(plan: &Plan, case: &Case, stage: Option<&Stage<'_>>, failure: Failure) -> Box<Witness> {
        let instruction = failure.at.and_then(|at| {
            let program = stage?.seat(at.rank)?.program;
            Some(program.instruction_text(at.instruction))
        });
        let seat = stage.and_then(|stage| (0..case.n).find_map(|rank| stage.seat(Rank(rank))));
        let plan = match seat {
            Some(seat) => seat.program.name.clone(),
            None => format!("{}.{}", plan.collective(), plan.algorithm()),
        };
        Box::new(Witness { plan, case: case.clone(), failure, instruction })
    }

    /// Whether lanes wait for each other.
    pub fn is_deadlock(&self) -> bool {
        matches!(self.failure.fault, Fault::Deadlock { .. })
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fails with {}\n  {}", self.plan, self.case, self.failure)?;
        match &self.instruction {
            Some(text) => write!(f, "\n  in: {text}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for Witness {}

impl AddAssign<&VerifyReport> for VerifyReport {
    fn add_assign(&mut self, other: &VerifyReport) {
        self.plans += other.plans;
        self.programs += other.programs;
        self.walks += other.walks;
        self.steps += other.steps;
        self.mutations += other.mutations;
        self.rejected += other.rejected;
        self.equivalent += other.equivalent;
        for (key, theirs) in &other.findings {
            let ours = self.findings.entry(*key).or_insert(*theirs);
            ours.slots = ours.slots.max(theirs.slots);
            ours.level = ours.level.min(theirs.level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_plan_holds() {
        let mut seen = 0;
        let report =
            verify_all(4, Depth::Full, |_, _| seen += 1).unwrap_or_else(|witness| panic!("{witness}"));
        assert_eq!(report.plans, seen);
        let finding = |collective, algorithm| report.findings[&(collective, algorithm)];
        assert_eq!(finding(Collective::AllReduce, Algorithm::Ring).slots, 2);
        assert_eq!(finding(Collective::AllReduce, Algorithm::OneShot).slots, 1);
        assert_eq!(finding(Collective::AllReduce, Algorithm::TwoShotTree).level, Level::World);
        assert_eq!(finding(Collective::AllReduce, Algorithm::TwoShot).level, Level::Size);
        assert_eq!(finding(Collective::AllReduce, Algorithm::Ring).level, Level::Run);
    }

    #[test]
    fn a_fused_ring_needs_two_slots() {
        let plan = Plan::new(Collective::AllGather, Algorithm::Ring, 3).unwrap();
        let case =
            cases(&plan, Depth::Quick).into_iter().find(|case| case.slots == 1 && case.count > 4).unwrap();
        let witness = prove(&plan, &case).unwrap_err();
        assert!(witness.is_deadlock(), "{witness}");
        let text = alloc::format!("{witness}");
        assert!(text.contains("waits for 1 to take from 0 -> 1"), "{text}");
        assert!(prove(&plan, &Case { slots: 2, ..case }).is_ok());
    }
}
