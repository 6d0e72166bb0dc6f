//! What shared memory saves: that one slot serves several receivers, and that all ranks copy side by side.
//!
//! Of the four ends that a message's bytes have on their way (read, written to a slot, read there, written), the first two are
//! then those of the first message alone.

use super::{Cost, Load, Rates};
use crate::algo::{Algorithm, rounds};
use crate::collective::Collective;

/// The cost of a plan whose ranks tell all receivers of the same of one slot.
pub(super) fn shared(
    collective: Collective,
    algorithm: Algorithm,
    load: &Load,
    rates: &Rates,
    mut cost: Cost,
) -> Cost {
    let (n, whole) = (f64::from(load.n), cost.bytes);
    let block = whole / n;
    let message_bytes = match (collective, algorithm) {
        (Collective::AllGather | Collective::AllGatherV, _)
        | (_, Algorithm::TwoShot | Algorithm::TwoShotTree) => block,
        (_, Algorithm::DoubleTree) => whole / 2.0,
        _ => whole,
    };
    if load.n == 2 || message_bytes <= SHORT_BYTES as f64 {
        return cost;
    }
    let peers = n - 1.0;
    // Half of what so many messages take that only say where their bytes are.
    let (path, all) = match (collective, algorithm) {
        // The root fills a slot, and all read it side by side; those of other cores all from far away, but of more than a few that share
        // cores only the first of each (ADR 0128).
        (Collective::Broadcast, Algorithm::Direct) => {
            let from_near = if load.n > FEW { (n - f64::from(rates.cores)).max(0.0) / 2.0 } else { 0.0 };
            ((peers - 1.0) * whole, from_near.max((peers - 1.0) / 5.0) * whole)
        }
        // All but the root copy side by side.
        (Collective::Gather | Collective::Scatter, Algorithm::Direct) => ((peers - 1.0) / 2.0 * block, 0.0),
        (Collective::AllReduce, Algorithm::OneShot | Algorithm::OneShotTree) => {
            ((peers - 1.0) / 2.0 * whole, n * (peers - 1.0) / 2.0 * whole)
        }
        (Collective::AllGather | Collective::AllGatherV, Algorithm::Direct)
        | (Collective::AllReduce, Algorithm::TwoShot | Algorithm::TwoShotTree) => {
            ((peers - 1.0) / 2.0 * block, n * (peers - 1.0) / 2.0 * block)
        }
        (Collective::Broadcast | Collective::AllReduce, Algorithm::Binomial) => {
            (behind(load, whole), told_in_a_tree(load.n) / 2.0 * whole)
        }
        (Collective::AllReduce, Algorithm::DoubleTree) => (0.0, told_in_a_tree(load.n) / 2.0 * whole),
        _ => (0.0, 0.0),
    };
    // Cores that do all ranks' work wait for memory once calls leave the caches, and what is saved are ends in a cache.
    let near = 1.0 - rates.farness(whole);
    let (path_again, all_again) = again(algorithm, load.n, block);
    cost.path.moved_bytes += path_again - path;
    cost.all.moved_bytes += all_again - near * all;
    cost
}

/// What it adds that more contributions than one Move folds are added one by one: partial sums are read and written again,
/// which together is half of a message's way at the nearest cache's half of the price.
fn again(algorithm: Algorithm, n: u32, block: f64) -> (f64, f64) {
    if n <= 4 || !matches!(algorithm, Algorithm::TwoShot | Algorithm::TwoShotTree) {
        return (0.0, 0.0);
    }
    let again = f64::from(n - 1) * block / 4.0;
    (again, f64::from(n) * again)
}

/// Children of a binomial tree that are told of a slot that another child's message fills; about as many of one with two
/// children each.
fn told_in_a_tree(n: u32) -> f64 {
    // Every other place has children.
    f64::from(n - 1 - n / 2)
}

/// What the root of a binomial tree saves in passes behind the first: it fills a slot for all of its children.
fn behind(load: &Load, whole: f64) -> f64 {
    let passes = load.passes(load.bytes) as f64;
    let hops = f64::from(load.n.ilog2());
    f64::from(rounds(load.n)) * whole - (hops + passes - 1.0) * whole / passes
}

/// So many ranks read a slot no faster than a tree passes it on: measured with 3 to 16 on two cores.
const FEW: u32 = 4;
/// Longest payload in shared memory, in bytes, that lies in or beside its message's line and takes no slot. Longer ones are worth
/// a switch to another rank.
pub const SHORT_BYTES: u64 = 4096;
