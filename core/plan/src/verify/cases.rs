//! Which plans and cases are walked.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use crate::algo::{Algorithm, algorithms};
use crate::collective::{Collective, Shape};
use crate::ids::{Place, Rank};
use crate::machine::{Blocks, Buffers, Case};
use crate::plan::Plan;
use crate::program::Chunks;

/// How many cases of each plan are walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// One case of each kind.
    Quick,
    /// Every value of each axis, with the others at their most telling.
    Each,
    /// Everything crossed with everything up to 12 ranks; as [`Depth::Each`] above.
    Full,
}

/// Every collective with each of its algorithms for each n of a range, smallest n first.
pub fn plans(ranks: RangeInclusive<u32>) -> impl Iterator<Item = Plan> {
    ranks.flat_map(|n| {
        Collective::ALL.into_iter().flat_map(move |collective| {
            algorithms(collective).iter().filter_map(move |a| Plan::new(collective, *a, n))
        })
    })
}

/// The cases of a plan, in the order of their size.
pub fn cases(plan: &Plan, depth: Depth) -> Vec<Case> {
    let collective = plan.collective();
    if plan.n() == 1 && collective.is_message() {
        return Vec::new();
    }
    let mut cases = match depth {
        Depth::Full if plan.n() <= CROSS_RANKS => crossed(plan),
        Depth::Each | Depth::Full => axes(plan),
        Depth::Quick => few(plan),
    };
    if collective.uneven() {
        // Empty blocks hide what a fused ring needs; none of them hides what skipping them does.
        let dense: Vec<Case> = cases.iter().map(|case| with_blocks(plan, case.clone(), 1)).collect();
        cases.extend(dense);
    }
    cases.sort_by_key(|case| (case.count, case.channels, case.slots));
    cases.dedup();
    cases
}

/// The most telling case with this root or peer.
pub fn case_at(plan: &Plan, root: Rank) -> Case {
    let counts = counts(plan);
    base(plan, counts.get(counts.len() / 2).copied().unwrap_or(0), root)
}

/// Everything with everything.
fn crossed(plan: &Plan) -> Vec<Case> {
    let mut cases = Vec::new();
    for count in counts(plan) {
        for channels in CHANNELS {
            for slots in SLOTS {
                for grain_count in [1, 2] {
                    for root in roots(plan, true) {
                        for buffers in placements(plan).iter().copied() {
                            let case =
                                Case { channels, slots, grain_count, buffers, ..base(plan, count, root) };
                            cases.push(case);
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Every value of each axis, with the others at their most telling.
fn axes(plan: &Plan) -> Vec<Case> {
    let counts = counts(plan);
    let largest = counts.last().copied().unwrap_or(0);
    let middle = counts.get(counts.len() / 2).copied().unwrap_or(0);
    let roots = roots(plan, false);
    let root = roots.last().copied().unwrap_or_default();
    let at = |count| base(plan, count, root);
    let mut cases: Vec<Case> = counts.iter().map(|count| at(*count)).collect();
    cases.extend(CHANNELS.map(|channels| Case { channels, ..at(largest) }));
    cases.extend(SLOTS.map(|slots| Case { slots, channels: 3, ..at(largest) }));
    cases.extend(SLOTS.map(|slots| Case { slots, ..at(middle) }));
    cases.extend(roots.iter().map(|root| case_at(plan, *root)));
    cases.extend(placements(plan).iter().map(|buffers| Case {
        buffers: *buffers,
        channels: 2,
        ..at(largest)
    }));
    cases.extend(placements(plan).iter().map(|buffers| Case {
        buffers: *buffers,
        grain_count: 2,
        ..at(middle)
    }));
    cases
}

/// One of each kind.
fn few(plan: &Plan) -> Vec<Case> {
    let counts = counts(plan);
    let largest = counts.last().copied().unwrap_or(0);
    let root = Rank(plan.n() - 1);
    let mut cases: Vec<Case> =
        SLOTS[..2].iter().map(|slots| Case { slots: *slots, ..base(plan, largest, root) }).collect();
    cases.push(base(plan, 1, Rank(0)));
    cases.extend(placements(plan).iter().map(|buffers| Case {
        buffers: *buffers,
        channels: 2,
        ..base(plan, largest, root)
    }));
    cases
}

fn base(plan: &Plan, count: usize, root: Rank) -> Case {
    let case = Case {
        n: plan.n(),
        count,
        channels: 1,
        chunk_count: CHUNK_COUNT,
        grain_count: 1,
        slots: 2,
        root,
        buffers: Buffers::Apart,
        blocks: None,
    };
    if plan.collective().uneven() { with_blocks(plan, case, 0) } else { case }
}

fn with_blocks(plan: &Plan, case: Case, least: usize) -> Case {
    let blocks = Blocks::uneven(plan.collective(), case.n, case.count, least, case.root);
    Case { blocks: Some(Arc::new(blocks)), ..case }
}

/// Counts below, at and above what the layout treats differently, ascending.
fn counts(plan: &Plan) -> Vec<usize> {
    let n = plan.n() as usize;
    let chunks = match plan.collective().input() {
        _ if plan.collective() == Collective::Barrier => return [0].to_vec(),
        Shape::Whole => plan.program(Place(0), Place(0)).chunks,
        _ => Chunks::ONE,
    };
    let k = chunks.of(plan.n());
    let mut counts = [0, 1, CHUNK_COUNT - 1, CHUNK_COUNT + 1, 2 * k * CHUNK_COUNT + 3].to_vec();
    if k > 1 {
        counts.extend([n - 1, n, n + 1]);
        // Each place's chunk ends the data once, so that no two chunks are always of one length.
        counts.extend(0..if n <= TAIL_RANKS { n } else { 0 });
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn roots(plan: &Plan, all: bool) -> Vec<Rank> {
    let n = plan.n();
    let has_root = plan.collective().rooted() || plan.collective().is_message();
    let mut roots = match () {
        () if !has_root => [0].to_vec(),
        () if all && n <= 5 => (0..n).collect(),
        // Nobody else has tried the others. Where ranks are many each is tried when it is first used.
        () if plan.algorithm() == Algorithm::User && n <= EVERY_ROOT_RANKS => (0..n).collect(),
        () => [0, n / 2, n - 1].to_vec(),
    };
    roots.dedup();
    roots.into_iter().map(Rank).collect()
}

/// All-to-all is never in place, and what has one buffer cannot be.
fn placements(plan: &Plan) -> &'static [Buffers] {
    match plan.collective() {
        Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Send
        | Collective::Recv
        | Collective::Barrier => &[Buffers::Apart],
        _ => &[Buffers::Apart, Buffers::InPlace],
    }
}

/// Up to here every axis is crossed with every other.
const CROSS_RANKS: u32 = 12;
/// Up to here programs of the user's are walked from every root.
const EVERY_ROOT_RANKS: u32 = 32;
/// Up to here every count below n is walked.
const TAIL_RANKS: usize = 8;
/// So small that a few elements make several passes.
const CHUNK_COUNT: usize = 4;
const CHANNELS: [u16; 4] = [1, 2, 3, 8];
const SLOTS: [usize; 3] = [1, 2, 8];

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn programs_of_the_user_s_are_walked_from_every_root() {
        for (n, depth, walked) in [(7, Depth::Each, 7), (13, Depth::Full, 13), (33, Depth::Each, 3)] {
            let known = Plan::new(Collective::Broadcast, Algorithm::Ring, n).unwrap();
            let roots = |plan: &Plan| -> BTreeSet<Rank> {
                cases(plan, depth).into_iter().map(|case| case.root).collect()
            };
            assert_eq!(roots(&known).len(), 3, "{n}");
            let own = Plan::of_program(known.program(Place(0), Place(0)), n).unwrap();
            assert_eq!(roots(&own).len(), walked, "{n}");
            assert_eq!(case_at(&own, Rank(2)).root, Rank(2));
        }
    }
}
