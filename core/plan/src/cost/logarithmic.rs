//! The costs of trees and of exchanges at distances 1, 2, 4 and so on.

use alloc::vec::Vec;

use super::work::with_bit;
use super::{Counts, Load};
use crate::algo::pairs::Pairs;
use crate::algo::{Algorithm, rounds};
use crate::collective::Collective;

/// The cost of an algorithm with logarithmically many rounds. n is at least 2.
pub(super) fn cost(collective: Collective, algorithm: Algorithm, load: &Load) -> Counts {
    match algorithm {
        Algorithm::Dissemination => {
            let rounds = u64::from(rounds(load.n));
            Counts { messages: rounds, moves: 2 * rounds, ..Counts::default() }
        }
        Algorithm::Binomial => match collective {
            Collective::Gather | Collective::Scatter => subtrees(load),
            Collective::AllReduce => {
                binomial(Collective::Reduce, load).and(&binomial(Collective::Broadcast, load))
            }
            _ => binomial(collective, load),
        },
        Algorithm::Bruck if collective == Collective::AllToAll => bruck_all_to_all(load),
        Algorithm::Bruck => bruck(collective.reduces(), load),
        Algorithm::Rabenseifner | Algorithm::Swing => bruck(true, load).and(&bruck(false, load)),
        Algorithm::DoubleTree => double_tree(load),
        Algorithm::Pat => pat(collective.reduces(), load, algorithm.bundle(load.n)),
        _ if collective == Collective::AllReduce => recursive_doubling(load),
        _ => doubling_blocks(collective.reduces(), load),
    }
}

/// Two trees of ⌈log2 n⌉ levels, up and down: a hop up carries a chunk once, one down twice, and behind
/// the first pass a rank sends four chunks for each.
fn double_tree(load: &Load) -> Counts {
    let (levels, half) = (u64::from(rounds(load.n)), load.bytes.div_ceil(2));
    let passes = load.passes(half);
    let (chunk, behind) = (half as f64 / passes as f64, (passes - 1) as f64);
    Counts {
        messages: 2 * levels,
        moves: 4 * passes,
        moved_bytes: ((3 * levels - 1) as f64 + 4.0 * behind) * chunk,
        folded_bytes: ((2 * levels - 1) as f64 + 2.0 * behind) * chunk,
    }
}

/// Each block once, in ranges of at most half of all.
fn bruck(reduces: bool, load: &Load) -> Counts {
    let rounds = u64::from(rounds(load.n));
    let block = load.bytes.div_ceil(u64::from(load.n));
    let widest = u64::from(load.n.next_power_of_two() / 2);
    let moved_bytes = load.bytes as f64 * f64::from(load.n - 1) / f64::from(load.n);
    Counts {
        messages: rounds,
        // In about every other round of a rank the places go round the end, and take a Move more.
        moves: (3 * rounds + 1) * load.passes(widest * block),
        moved_bytes,
        folded_bytes: if reduces { moved_bytes } else { 0.0 },
    }
}

/// In each round the blocks whose distance has its bit; all of them are copied before and behind.
fn bruck_all_to_all(load: &Load) -> Counts {
    let (n, rounds) = (u64::from(load.n), u64::from(rounds(load.n)));
    let block = load.bytes.div_ceil(n);
    let moved: u64 = (0..rounds as u32).map(|k| with_bit(n, k)).sum();
    Counts {
        messages: rounds,
        moves: (2 * rounds + 2) * load.passes(load.bytes),
        moved_bytes: (moved * block) as f64,
        folded_bytes: 0.0,
    }
}

/// Each block once, in groups of so many.
fn pat(reduces: bool, load: &Load, aggregation: u32) -> Counts {
    let block = load.bytes.div_ceil(u64::from(load.n));
    let (near, far) = (load.n.next_power_of_two() / aggregation, aggregation.ilog2());
    let near = near.min(load.n);
    let messages = u64::from(near - 1 + far);
    let moved_bytes = load.bytes as f64 * f64::from(load.n - 1) / f64::from(load.n);
    // Every other sum of a reduce-scatter begins with a copy, an all-gather with that of the own block.
    let copies = u64::from(if reduces && load.n > 2 { near.div_ceil(2) } else { u32::from(!reduces) });
    Counts {
        messages,
        moves: (2 * messages + copies) * load.passes(u64::from(aggregation) * block),
        moved_bytes,
        folded_bytes: if reduces { moved_bytes } else { 0.0 },
    }
}

/// The whole vector in each step.
fn recursive_doubling(load: &Load) -> Counts {
    let (rounds, whole) = (u64::from(load.n.ilog2()), load.bytes as f64);
    let (waits, sends, folds) = pair_steps(load.n);
    Counts {
        messages: rounds + waits,
        moves: (rounds + 1) * load.passes(load.bytes),
        moved_bytes: (rounds + sends) as f64 * whole,
        folded_bytes: (rounds + folds) as f64 * whole,
    }
}

/// Each block once, and before and behind it what pairs add: a block or all of them.
fn doubling_blocks(reduces: bool, load: &Load) -> Counts {
    let rounds = u64::from(load.n.ilog2());
    let (waits, pairs, _) = pair_steps(load.n);
    let (n, whole) = (f64::from(load.n), load.bytes as f64);
    let block = load.bytes.div_ceil(u64::from(load.n));
    let widest = if pairs > 0 { u64::from(load.n) } else { u64::from(load.n / 2) };
    let torn = if pairs > 0 { whole + block as f64 } else { 0.0 };
    let moved_bytes = whole * (n - 1.0) / n + torn;
    Counts {
        messages: rounds + waits,
        moves: (2 * rounds + u64::from(!reduces) + 2 * pairs) * load.passes(widest * block),
        moved_bytes,
        folded_bytes: if reduces { moved_bytes } else { 0.0 },
    }
}

/// What pairs of ranks add to recursive doubling: messages, vectors moved and folded.
///
/// Whether everybody has to wait for two messages more depends on whether the way from the last pair
/// through all steps ends at a pair.
fn pair_steps(n: u32) -> (u64, u64, u64) {
    let Pairs { count, rounds } = Pairs::of(n);
    match 2 * count {
        0 => (0, 0, 0),
        paired if paired > 1 << rounds => (2, 2, 1),
        _ => (1, 2, 1),
    }
}

/// All blocks but the root's own, subtree by subtree.
fn subtrees(load: &Load) -> Counts {
    let block = load.bytes.div_ceil(u64::from(load.n));
    let widest = u64::from(load.n.next_power_of_two() / 2);
    Counts {
        messages: u64::from(load.n.ilog2()),
        moves: u64::from(rounds(load.n) + 2) * load.passes(widest * block),
        moved_bytes: load.bytes as f64 * f64::from(load.n - 1) / f64::from(load.n),
        folded_bytes: 0.0,
    }
}

/// A tree in passes of a chunk: the first passes all hops, the others follow at the pace of the busiest
/// rank.
fn binomial(collective: Collective, load: &Load) -> Counts {
    let (n, passes) = (load.n, load.passes(load.bytes));
    let chunk = load.bytes as f64 / passes as f64;
    let (hops, root_children) = (u64::from(n.ilog2()), u64::from(rounds(n)));
    let behind = (passes - 1) as f64 * chunk;
    if collective == Collective::Broadcast {
        let moves = 1 + root_children.saturating_sub(3).div_ceil(4);
        let moved_bytes = (root_children * passes) as f64 * chunk;
        return Counts { messages: hops, moves: moves * passes, moved_bytes, folded_bytes: 0.0 };
    }
    let inner_folds = root_children.saturating_sub(1) as f64;
    Counts {
        messages: hops,
        moves: root_children.div_ceil(3) * passes,
        moved_bytes: hops as f64 * chunk + behind,
        folded_bytes: binomial_folds(n).1 as f64 * chunk + inner_folds * behind,
    }
}

/// Hops and folds on the way of the last contribution to the root of a binomial reduce.
fn binomial_folds(n: u32) -> (u64, u64) {
    // Of subtrees of 1, 2, 4, … ranks. A Move folds three children once all of them have arrived.
    let mut full: Vec<(u64, u64)> = Vec::new();
    for _ in 0..rounds(n) {
        full.push(joined(&full));
    }
    // Only the last child's subtree may be cut short, and in it again only the last.
    let rest = |n: u32| n - n.next_power_of_two() / 2;
    let cut: Vec<u32> = core::iter::successors(Some(n), |n| (*n > 1).then(|| rest(*n))).collect();
    cut.iter().rev().fold((0, 0), |last, n| {
        let mut children = full[..rounds(*n) as usize].to_vec();
        if let Some(child) = children.last_mut() {
            *child = last;
        }
        joined(&children)
    })
}

/// When a rank has folded all its children, in hops and folds.
fn joined(children: &[(u64, u64)]) -> (u64, u64) {
    children.chunks(3).fold((0, 0), |ready, group| {
        let arrivals = group.iter().map(|(hops, folds)| (hops + 1, *folds));
        let (hops, folds) = arrivals.fold(ready, core::cmp::Ord::max);
        (hops, folds + group.len() as u64)
    })
}
