//! What it saves that one slot serves several receivers.
//!
//! Of the four ends that a message's bytes have on their way (read, written to a slot, read there, written), the first two are
//! then those of the first message alone.

use super::{Cost, Load};
use crate::algo::{Algorithm, rounds};
use crate::collective::Collective;

/// The cost of a plan whose ranks tell all receivers of the same of one slot.
pub(super) fn shared(collective: Collective, algorithm: Algorithm, load: &Load, mut cost: Cost) -> Cost {
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
        // The root fills a slot, and all read it side by side.
        (Collective::Broadcast, Algorithm::Direct) => ((peers - 1.0) * whole, (peers - 1.0) / 2.0 * whole),
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
    cost.path.moved_bytes -= path;
    cost.all.moved_bytes -= all;
    cost
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

/// Longest payload in shared memory, in bytes, that lies in or beside its message's line and takes no slot. Longer ones are worth
/// a switch to another rank.
pub const SHORT_BYTES: u64 = 4096;
