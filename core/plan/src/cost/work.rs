//! What all ranks do together: what a plan costs where they share cores, however short its longest way.

use super::{Counts, Load, fold_moves};
use crate::algo::direct::root_moves;
use crate::algo::pairs::Pairs;
use crate::algo::{Algorithm, rounds};
use crate::collective::Collective;

/// The sums of an algorithm's plan. Messages are exact but for ranges of blocks that go round the end, bytes up
/// to the rounding of blocks, Moves within a third.
// long: an arm for each algorithm
pub(super) fn work(collective: Collective, algorithm: Algorithm, load: &Load) -> Counts {
    let (n, log, whole) = (f64::from(load.n), f64::from(rounds(load.n)), load.bytes as f64);
    let peers = n - 1.0;
    let block_passes = load.passes(load.bytes.div_ceil(u64::from(load.n))) as f64;
    let passes = load.passes(load.bytes) as f64;
    let all = peers * whole;
    let folds = fold_moves(u64::from(load.n), algorithm) as f64;
    let folded = |bytes: f64| if collective.reduces() { bytes } else { 0.0 };
    let (messages, moves, moved_bytes, folded_bytes) = match (collective, algorithm) {
        (_, Algorithm::User) => (0.0, 0.0, 0.0, 0.0),
        (Collective::Barrier, _) => (n * log, 2.0 * n * log, 0.0, 0.0),
        (Collective::Send | Collective::Recv, _) => (passes, 2.0 * passes, whole, 0.0),
        (Collective::Gather | Collective::Scatter, Algorithm::Binomial) => {
            (peers, 2.25 * n, subtrees(load.n) as f64 * whole / n, 0.0)
        }
        (Collective::Gather | Collective::Scatter | Collective::GatherV | Collective::ScatterV, _) => {
            (peers * block_passes, 2.0 * n * block_passes, all / n, 0.0)
        }
        (Collective::Reduce, Algorithm::Direct | Algorithm::DirectTree) => {
            (peers * passes, (peers + folds) * passes, all, all)
        }
        (Collective::Broadcast, Algorithm::Direct) => {
            (peers * passes, (peers + f64::from(root_moves(load.n))) * passes, all, 0.0)
        }
        (Collective::Broadcast | Collective::Reduce, _) => (peers * passes, n * passes, all, folded(all)),
        (Collective::AllReduce, Algorithm::Ring) => {
            (2.0 * n * peers * block_passes, n * (2.0 * n - 1.0) * block_passes, 2.0 * all, all)
        }
        (_, Algorithm::TwoLevel | Algorithm::TwoLevelHalving) => two_levels(load, algorithm),
        (_, Algorithm::OneShot | Algorithm::OneShotTree) => {
            (n * peers * passes, n * (peers + folds) * passes, n * all, n * all)
        }
        (_, Algorithm::TwoShot | Algorithm::TwoShotTree) => {
            let moves = 2.0 * peers + folds + if load.n <= 4 { 0.0 } else { peers };
            (2.0 * n * peers * block_passes, n * moves * block_passes, 2.0 * all, all)
        }
        (Collective::AllGather | Collective::ReduceScatter, Algorithm::RecursiveDoubling) => {
            let pairs = f64::from(Pairs::of(load.n).count);
            let (seats, rounds) = (n - pairs, f64::from(Pairs::of(load.n).rounds));
            let passes = load.passes(if pairs > 0.0 { load.bytes } else { halves(load) }) as f64;
            let messages = seats * rounds + 2.0 * pairs;
            let around = if collective.reduces() { 5.0 * pairs } else { n + 3.0 * pairs };
            let moved = all + pairs * whole / n;
            (messages * passes, (2.0 * seats * rounds + around) * passes, moved, folded(all))
        }
        (_, Algorithm::RecursiveDoubling) => {
            let pairs = f64::from(Pairs::of(load.n).count);
            let seats = n - pairs;
            let exchanges = seats * f64::from(Pairs::of(load.n).rounds);
            let (messages, moves) = (exchanges + 2.0 * pairs, exchanges + seats + 3.0 * pairs);
            (messages * passes, moves * passes, messages * whole, (exchanges + pairs) * whole)
        }
        (_, Algorithm::Swing) => {
            let pairs = f64::from(Pairs::of(load.n).count);
            let (seats, rounds) = (n - pairs, f64::from(Pairs::of(load.n).rounds));
            let passes = load.passes(halves(load)) as f64;
            let (messages, moves) = (2.0 * seats * rounds, 2.0 * seats * (2.0 * rounds + 1.0));
            ((messages + 2.0 * pairs) * passes, (moves + 3.0 * pairs) * passes, 2.0 * all, all)
        }
        (_, Algorithm::Rabenseifner) => {
            let passes = load.passes(halves(load)) as f64;
            (2.0 * n * log * passes, 2.0 * n * (2.0 * log + 1.0) * passes, 2.0 * all, all)
        }
        (_, Algorithm::Binomial) => (2.0 * peers * passes, 2.0 * n * passes, 2.0 * all, all),
        (_, Algorithm::DoubleTree) => {
            let passes = load.passes(load.bytes.div_ceil(2)) as f64;
            (4.0 * peers * passes, 4.0 * n * passes, 2.0 * all, all)
        }
        (Collective::AllToAll, Algorithm::Bruck) => {
            let moved: u64 = (0..rounds(load.n)).map(|k| with_bit(load.n.into(), k)).sum();
            (n * log * passes, n * (2.0 * log + 2.0) * passes, moved as f64 * whole, 0.0)
        }
        (_, Algorithm::Bruck) => {
            let passes = load.passes(halves(load)) as f64;
            (n * log * passes, n * (2.0 * log + 1.0) * passes, all, folded(all))
        }
        (_, Algorithm::Pat) => {
            let aggregation = algorithm.bundle(load.n);
            let near = (load.n.next_power_of_two() / aggregation).min(load.n);
            let messages = f64::from(near - 1 + aggregation.ilog2());
            let block = load.bytes.div_ceil(load.n.into());
            let passes = load.passes(u64::from(aggregation) * block) as f64;
            (n * messages * passes, n * (2.0 * messages + 1.0) * passes, all, folded(all))
        }
        (_, Algorithm::Ring) => (n * peers * block_passes, n * n * block_passes, all, folded(all)),
        (_, Algorithm::Direct | Algorithm::DirectTree | Algorithm::Dissemination) => {
            let moves = peers + if collective.reduces() { folds } else { n };
            (n * peers * block_passes, n * moves * block_passes, all, folded(all))
        }
    };
    Counts { messages: messages as u64, moves: moves as u64, moved_bytes, folded_bytes }
}

/// As many blocks as the largest message of halving and doubling holds, in bytes.
fn halves(load: &Load) -> u64 {
    u64::from(load.n.next_power_of_two() / 2) * load.bytes.div_ceil(u64::from(load.n))
}

/// How many of the distances 0 to n−1 have bit k.
pub(super) const fn with_bit(n: u64, k: u32) -> u64 {
    (n >> (k + 1) << k) + (n & ((2 << k) - 1)).saturating_sub(1 << k)
}

/// Ranks of all subtrees of a binomial tree but the whole: what gathering or scattering block by block sends.
///
/// Places whose lowest bit is k have subtrees of 2ᵏ ranks, but for the last of them, which may be cut off.
fn subtrees(n: u32) -> u64 {
    let last = u64::from(n - 1);
    let of_bit = |k: u32| {
        let places = (last >> k).div_ceil(2);
        let cut_off = if last >> k & 1 == 1 { (1 << k) - 1 - (last & ((1 << k) - 1)) } else { 0 };
        (places << k) - cut_off
    };
    (0..rounds(n)).map(of_bit).sum()
}

fn two_levels(load: &Load, algorithm: Algorithm) -> (f64, f64, f64, f64) {
    let (n, g) = (f64::from(load.n), algorithm.bundle(load.n));
    let nodes = load.n / g;
    let widest = if g == 1 || nodes == 1 { 1 } else { nodes };
    let block = load.bytes.div_ceil(load.n.into());
    let passes = load.passes(block * u64::from(widest)) as f64;
    let between = if algorithm == Algorithm::TwoLevelHalving { rounds(nodes) } else { nodes - 1 };
    let messages = f64::from(2 * (g - 1) + 2 * between);
    let all = (n - 1.0) * load.bytes as f64;
    (n * messages * passes, n * (messages + 3.0) * passes, 2.0 * all, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::algo::algorithms;
    use crate::cost::{Counted, Rates};
    use crate::plan::Plan;

    #[test]
    fn subtrees_are_summed_as_one_by_one() {
        for n in 1..=300u32 {
            let subtree = |place: u32| u64::from((place & place.wrapping_neg()).min(n - place));
            assert_eq!(subtrees(n), (1..n).map(subtree).sum::<u64>(), "{n} ranks");
        }
    }

    /// What is counted on a walk, for every algorithm: messages and bytes, and Moves within a third or so.
    #[test]
    fn sums_are_those_of_a_walk() {
        use Algorithm::{Bruck, Rabenseifner, TwoLevelHalving};
        let mut seen = 0;
        for collective in Collective::ALL {
            for algorithm in algorithms(collective) {
                for n in [2, 3, 4, 6, 7, 8, 12, 15, 16, 24] {
                    let Some(plan) = Plan::new(collective, *algorithm, n) else { continue };
                    let whole = collective.input() == Shape::Whole;
                    if collective.uneven() || collective == Collective::Recv {
                        continue;
                    }
                    let bytes = match collective {
                        Collective::Send => 240 * u64::from(n),
                        _ if whole => 1680,
                        _ => 240 * u64::from(n),
                    };
                    let rates = Rates { chunk_bytes: 1 << 30, ..Rates::SHARED_MEMORY };
                    let counted = Counted::of(&plan).unwrap().cost(bytes, &rates, 1).all;
                    let load = Load { n, bytes, pass_bytes: 1 << 30 };
                    // A message has the one size that counting takes for a block.
                    let load =
                        if collective == Collective::Send { Load { bytes: 240, ..load } } else { load };
                    let formula = work(collective, *algorithm, &load);
                    let text = alloc::format!("{collective}.{algorithm} n={n}: {formula:?} {counted:?}");
                    let near = |a: f64, b: f64, by: f64| (a - b).abs() <= by * b.max(1.0);
                    // What goes round the end of all blocks takes a message more.
                    let round =
                        if matches!(algorithm, Bruck | Rabenseifner | TwoLevelHalving) { 0.16 } else { 0.0 };
                    assert!(near(formula.messages as f64, counted.messages as f64, round), "{text}");
                    assert!(near(formula.moved_bytes, counted.moved_bytes, 0.02), "{text}");
                    assert!(near(formula.folded_bytes, counted.folded_bytes, 0.02), "{text}");
                    let few = if n < 4 { 1.0 } else { 0.41 };
                    assert!(near(formula.moves as f64, counted.moves as f64, few), "{text}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 200, "{seen}");
    }
}
