//! Many ranks: as much of a plan as memory and time allow.
//!
//! A walk of all ranks has as many steps, and holds as many elements and edges, as all of them together: n² of each
//! where everybody has a block for everybody. Then one rank is walked for all ([`walk_turned`]), which takes
//! what one rank takes. If its text says the same to all ranks ([`turning`](super::turning)), that is a
//! proof for all; where folds go by absolute places, some ranks are walked, of every role and from everywhere, and must
//! send the same turned round.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::turning::{turning, turns};
use super::{Proof, Witness, cast_for, prove_cast};
use crate::algo::Algorithm;
use crate::collective::{Collective, Shape};
use crate::cursor::Cursor;
use crate::ids::{Channel, Rank};
use crate::machine::entered::Entered;
use crate::machine::provenance::{Provenance, Turning};
use crate::machine::tally::{Span, mix};
use crate::machine::{Blocks, Buffers, Case, Failure, Fault, Stage, walk_turned};
use crate::plan::{Cast, Plan};

/// The numbers of ranks at which plans are verified beyond those that are small: around powers of two, and some
/// that machines have.
pub const LARGE: [u32; 21] = [
    96, 127, 128, 129, 511, 512, 513, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 6144, 16_384, 24_575, 24_576,
    24_577, 65_536, 100_000,
];

/// How a plan was verified.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Method {
    /// All ranks were walked.
    All,
    /// One rank was walked, and its text says the same to all.
    One,
    /// Some ranks were walked.
    Some,
}

/// What was seen of a large plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeReport {
    /// How.
    pub method: Method,
    /// The smallest number of slots with which every case completes.
    pub slots: usize,
    /// Walks, of all ranks or of one.
    pub walks: u64,
    /// Their steps.
    pub steps: u64,
}

/// What a walk of all ranks may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Steps.
    pub steps: u64,
    /// Bytes for what elements and edges hold, roughly.
    pub bytes: u64,
}

/// Verifies a plan of many ranks. `Ok(None)` if it takes more than `budget` and no rank can stand for others.
pub fn verify_large(plan: &Plan, budget: Budget) -> Result<Option<LargeReport>, Box<Witness>> {
    let mut cases = cases(plan);
    let first = cast_for(plan, &cases[0])?;
    let effort = effort(plan, &first, &cases[0]);
    let method = match () {
        () if effort.steps <= budget.steps && effort.bytes <= budget.bytes => Method::All,
        () => match turning(plan, &first, &cases[0]) {
            Some(turning) if turns(plan.collective(), &first, turning) => Method::One,
            Some(_) if sends_to_all(plan.algorithm()) => Method::Some,
            _ => return Ok(None),
        },
    };
    if method == Method::All && effort.bytes > LONG_BYTES {
        // One pass; of vectors, and one element more.
        cases.drain(..cases.len() - 1);
        let blocks = plan.collective().input() != Shape::Whole;
        cases.iter_mut().filter(|_| blocks).for_each(|case| case.count = 1);
    }
    let mut report = LargeReport { method, slots: 1, walks: 0, steps: 0 };
    for case in cases {
        let mut walk = |slots| -> Result<(), Box<Witness>> {
            let case = Case { slots, ..case.clone() };
            let (walks, steps) = walked(plan, &case, method)?;
            (report.walks, report.steps) = (report.walks + walks, report.steps + steps);
            Ok(())
        };
        match walk(report.slots) {
            Err(witness) if report.slots == 1 && witness.is_deadlock() => {
                walk(2)?;
                report.slots = 2;
            }
            result => result?,
        }
    }
    Ok(Some(report))
}

/// Walks and steps of one case.
fn walked(plan: &Plan, case: &Case, method: Method) -> Result<(u64, u64), Box<Witness>> {
    let cast = cast_for(plan, case)?;
    if method == Method::All {
        let Proof { steps, .. } = prove_cast(plan, cast, case)?;
        return Ok((1, steps));
    }
    // The end of a ragged vector lies at one place.
    let Some(turning) = turning(plan, &cast, case) else { return Ok((0, 0)) };
    let ranks = if method == Method::One { [Rank(plan.n() / 3)].into() } else { samples(plan.n(), &cast) };
    let stage = staged(plan, case, cast)?;
    let failed = |failure| Witness::new(plan, case, Some(&stage), failure);
    let mut total = 0;
    let mut sent = None;
    for rank in &ranks {
        let (steps, theirs) = one_walked(&stage, *rank, turning).map_err(failed)?;
        total += steps;
        if *sent.get_or_insert_with(|| theirs.clone()) != theirs {
            let fault = Fault::Unlike { rank: *rank, other: ranks[0] };
            return Err(failed(Failure { at: None, fault }));
        }
    }
    Ok((ranks.len() as u64, total))
}

/// The steps of one rank, and what it sent.
fn one_walked(stage: &Stage<'_>, rank: Rank, turning: Turning) -> Result<(u64, Sent), Failure> {
    let judged = |fault| Failure { at: None, fault };
    if stage.collective == Collective::Barrier {
        let walked = walk_turned(stage, rank, Entered::of_one(turning.n, rank))?;
        walked.domain.judge().map_err(judged)?;
        return Ok((walked.steps, Vec::new()));
    }
    let walked = walk_turned(stage, rank, Provenance::<Span>::of_one(stage, rank, turning))?;
    walked.domain.judge(stage).map_err(judged)?;
    Ok((walked.steps, walked.domain.sent()))
}

fn staged<'a>(plan: &'a Plan, case: &'a Case, cast: Cast) -> Result<Stage<'a>, Box<Witness>> {
    let unseated = |fault| Witness::new(plan, case, None, Failure { at: None, fault });
    Stage::with_cast(plan, case, cast).map_err(unseated)
}

/// Two passes, or as many as there are chunks and one element; with roots at both ends and between.
fn cases(plan: &Plan) -> Vec<Case> {
    let (n, collective) = (plan.n(), plan.collective());
    let base = Case {
        n,
        count: 2,
        channels: 1,
        chunk_count: 1,
        grain_count: 1,
        slots: 1,
        root: Rank(n - 1),
        buffers: Buffers::Apart,
        blocks: None,
    };
    match (collective.input(), collective.output()) {
        (Shape::Whole, _) => {
            let chunks = plan.program(plan.place_of(base.root), plan.place_of(base.root)).chunks.of(n);
            let even = |root| Case { count: 2 * chunks, root, ..base.clone() };
            let ragged = |root| Case { count: chunks + 1, root, ..base.clone() };
            match collective.rooted() {
                true => [Rank(0), Rank(n / 2), Rank(n - 1)].map(even).into(),
                false => [even(base.root), ragged(base.root)].into(),
            }
        }
        _ if collective.uneven() && n <= TABLE_RANKS => {
            let blocks = Blocks::uneven(collective, n, base.count, 0, base.root);
            [Case { blocks: Some(Arc::new(blocks)), ..base }].into()
        }
        _ => [base].into(),
    }
}

/// Whether all ranks send the same turned round, however they fold.
fn sends_to_all(algorithm: Algorithm) -> bool {
    let in_order = algorithm.without_tree().unwrap_or(algorithm);
    matches!(in_order, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct)
}

/// Ranks of every role, from both ends, from the middle and from anywhere.
fn samples(n: u32, cast: &Cast) -> Vec<Rank> {
    let mut ranks: BTreeSet<u32> = [0, 1, 2, n / 2, n - 2, n - 1].into();
    ranks.extend((0..2).map(|salt| (mix(u64::from(n) << 8 | salt) % u64::from(n)) as u32));
    for role in 0..cast.programs.len() {
        let place = cast.of_place.iter().position(|of_place| usize::from(*of_place) == role);
        ranks.extend(place.map(|place| place as u32));
    }
    ranks.into_iter().map(Rank).collect()
}

/// What a walk of all ranks takes, about.
fn effort(plan: &Plan, cast: &Cast, case: &Case) -> Budget {
    let n = u64::from(plan.n());
    let Ok(stage) = Stage::with_cast(plan, case, cast.clone()) else { return Budget { steps: 0, bytes: 0 } };
    let steps = |rank| {
        let (Some(seat), layout) = (stage.seat(rank), stage.layout(rank)) else { return 0 };
        let lane = |lane| {
            let mut cursor = Cursor::new(seat.program, lane, Channel(0), &layout, seat.root);
            core::iter::from_fn(|| cursor.next(seat.program, &layout)).count() as u64
        };
        (0..seat.program.lanes.len()).map(lane).sum::<u64>()
    };
    let rooted = plan.collective().rooted() || stage.source() != case.root;
    let cells = |rank| {
        let elements = stage.output_blocks(rank).iter().map(|(_, count)| *count as u64).sum::<u64>();
        elements + stage.seat(rank).map_or(0, |seat| u64::from(seat.program.scratch_chunks))
    };
    let (root, member) = (case.root, Rank(plan.n() / 2));
    let edges = if rooted { 1 } else { u64::from(plan.algorithm().peers(plan.n())) };
    let heard = if plan.collective() == Collective::Barrier { n / 8 } else { 0 };
    let each = edges * EDGE_BYTES + cells(member) * CELL_BYTES + 3 * heard;
    Budget { steps: steps(root) + n * steps(member), bytes: cells(root) * CELL_BYTES + n * each }
}

type Sent = Vec<crate::machine::provenance::Sent<Span>>;

/// With more than that, one pass has to do.
const LONG_BYTES: u64 = 1 << 29;
/// Tables of blocks of different lengths are four of n × n numbers.
const TABLE_RANKS: u32 = 1100;
/// An element of a buffer, and what is on its way with it.
const CELL_BYTES: u64 = 96;
/// An edge with its queues.
const EDGE_BYTES: u64 = 400;

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::program::Chunks;
    use crate::program::builder::{Builder, N, R, from, input, output, to};
    use crate::verify::plans;

    /// Nothing fits: no rank is walked but those that stand for others.
    const NOTHING: Budget = Budget { steps: 0, bytes: 0 };

    #[test]
    fn one_rank_says_what_all_would() {
        let mut seen = [0, 0];
        for plan in plans(5..=17) {
            let report = verify_large(&plan, NOTHING).unwrap_or_else(|witness| panic!("{witness}"));
            let all = Budget { steps: u64::MAX, bytes: u64::MAX };
            let whole = verify_large(&plan, all).unwrap_or_else(|witness| panic!("{witness}")).unwrap();
            assert_eq!(whole.method, Method::All);
            let Some(report) = report else { continue };
            seen[usize::from(report.method == Method::Some)] += 1;
            let name = (plan.collective(), plan.algorithm());
            assert_eq!(report.slots, whole.slots, "{name:?} n={}", plan.n());
        }
        let [one, some] = seen;
        assert!(one >= 9 * 13 && some == 6 * 13, "{seen:?}");
    }

    #[test]
    fn damage_shows_on_one_rank() {
        let ring = |from_chunk: i32, last: i32| {
            let mut b = Builder::new("mine", Collective::AllGather, Chunks::ONE);
            b.lane(|l| {
                l.fold([input()]).into([output(), to(R + 1)]).recv_block(R);
                l.each(1, N - 1, |l, i| {
                    l.fold([from(R - 1)]).into([output(), to(R + 1)]).recv_block(R - i + from_chunk);
                });
                l.fold([from(R - 1)]).into([output()]).recv_block(R + last);
            });
            verify_large(&Plan::of_program(b.finish(), 1000).unwrap(), NOTHING)
        };
        assert_eq!(ring(0, 1).unwrap().unwrap().method, Method::One);
        for (from_chunk, last) in [(1, 1), (0, 2), (2, 3)] {
            let text = ring(from_chunk, last).unwrap_err().to_string();
            assert!(text.contains("contributions of {") || text.contains("nothing"), "{text}");
        }
    }

    #[test]
    fn what_depends_on_the_place_is_seen() {
        let of = |collective, algorithm| {
            let plan = Plan::new(collective, algorithm, 24).unwrap();
            verify_large(&plan, NOTHING).unwrap().map(|report| report.method)
        };
        assert_eq!(of(Collective::AllReduce, Algorithm::Ring), Some(Method::One));
        assert_eq!(of(Collective::ReduceScatter, Algorithm::Pat), Some(Method::One));
        assert_eq!(of(Collective::Barrier, Algorithm::Dissemination), Some(Method::One));
        // Aggregated less, PAT has sums with gaps between their ranks.
        let pat = Plan::new(Collective::ReduceScatter, Algorithm::Pat, 100).unwrap().with_bundle(4).unwrap();
        assert_eq!(verify_large(&pat, NOTHING).unwrap().map(|report| report.method), Some(Method::One));
        assert_eq!(of(Collective::AllReduce, Algorithm::TwoShotTree), Some(Method::Some));
        assert_eq!(of(Collective::AllReduce, Algorithm::TwoLevel), None);
        assert_eq!(of(Collective::AllGather, Algorithm::Bruck), None);
        assert_eq!(of(Collective::Broadcast, Algorithm::Ring), None);
    }
}
