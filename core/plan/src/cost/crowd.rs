//! What it changes for rooted collectives that ranks share cores.
//!
//! The ranks of a broadcast or a reduce run ahead of those behind them, so that on shared cores a chain of messages is no
//! longer than one: calls overlap, and the cores are busy all the time. What decides then is the work, of which messages to
//! a rank on the same core are the lesser part; launched ranks lie on cores in blocks of consecutive ones. Measured in shared
//! memory, and applied there alone.

use super::{Cost, Counts, Rates};
use crate::algo::Algorithm;

/// The cost of a rooted collective among `n` ranks, more than there are cores.
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

/// What a message between ranks of one core takes of one between cores: measured.
const NEAR: f64 = 0.4;
