//! What it changes for rooted collectives that ranks share cores.
//!
//! The ranks of a broadcast or a reduce run ahead of those behind them, so that on shared cores a chain of messages is no
//! longer than one: calls overlap, and the cores are busy all the time. What decides then is the work, of which messages to
//! a rank on the same core are the lesser part; launched ranks lie on cores in blocks of consecutive ones. Measured in shared
//! memory.
//!
//! Over sockets a message is the same work wherever its receiver is, and whoever sends or receives most decides.

use super::{Cost, Counts, Rates};
use crate::algo::{Algorithm, rounds};
use crate::collective::Collective;

/// The cost of a collective over sockets among `n` ranks, more than there are cores.
pub(super) fn over_sockets(collective: Collective, algorithm: Algorithm, n: u32, cost: Cost) -> Cost {
    match (collective, algorithm) {
        (Collective::Broadcast, _) => {
            let sent = match algorithm {
                Algorithm::Ring => 1,
                Algorithm::Binomial => rounds(n),
                _ => n - 1,
            };
            // A rank receives one, and half of a message's work is its sender's. Who is behind in a chain takes in
            // several at a time.
            let passes = cost.all.messages / u64::from(n - 1);
            let path = Counts {
                messages: u64::from(sent.div_ceil(2)) * passes,
                moves: u64::from(sent) * passes,
                moved_bytes: f64::from(sent) * cost.bytes,
                folded_bytes: 0.0,
            };
            let together = if algorithm == Algorithm::Ring { 2 } else { 1 };
            let all = Counts { messages: cost.all.messages.div_ceil(together), ..cost.all };
            Cost { path, all, waits: 0, ..cost }
        }
        // What is not sent from where the user has it is copied once more on either side.
        (Collective::AllGather, Algorithm::Bruck | Algorithm::RecursiveDoubling | Algorithm::Pat) => {
            with_bytes(COPIED_AGAIN, cost)
        }
        // A ring folds what has just come, and sends it on while it is near.
        (
            Collective::ReduceScatter | Collective::ReduceScatterV,
            Algorithm::Bruck | Algorithm::RecursiveDoubling | Algorithm::Pat,
        ) => with_bytes(FOLDED_APART, cost),
        (
            Collective::ReduceScatter | Collective::ReduceScatterV,
            Algorithm::Direct | Algorithm::DirectTree,
        ) if n > 4 => with_bytes(FOLDED_APART, cost),
        _ => cost,
    }
}

/// A cost with so many times as many bytes moved.
fn with_bytes(times: f64, cost: Cost) -> Cost {
    let more = |counts: Counts| Counts { moved_bytes: times * counts.moved_bytes, ..counts };
    Cost { path: more(cost.path), all: more(cost.all), ..cost }
}

/// The cost of a rooted collective in shared memory among `n` ranks, more than there are cores.
pub(super) fn crowded(algorithm: Algorithm, n: u32, rates: &Rates, cost: Cost) -> Cost {
    let cores = rates.cores.max(1);
    let chain = matches!(algorithm, Algorithm::Ring | Algorithm::Binomial);
    // A chain or a tree enters each block of ranks once.
    let near = if chain { n.saturating_sub(cores) } else { (n / cores).saturating_sub(1) };
    let worth = 1.0 - (1.0 - NEAR) * f64::from(near) / f64::from(n - 1);
    let all = Counts { messages: (cost.all.messages as f64 * worth) as u64, ..cost.all };
    // What is on the way in a chain or a tree never takes longer than what all cores do.
    let path = if chain { Counts::default() } else { cost.path };
    Cost { path, all, waits: cost.waits.min(1), ..cost }
}

/// What a byte takes that is sent out of scratch and received there, of one in user memory: measured.
const COPIED_AGAIN: f64 = 1.6;
/// What a byte takes that is folded in scratch or with those of many slots, of one that a ring folds: measured.
const FOLDED_APART: f64 = 1.4;
/// What a message between ranks of one core takes of one between cores: measured.
const NEAR: f64 = 0.4;
