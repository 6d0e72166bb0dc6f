//! What it changes that ranks share cores.
//!
//! In shared memory a short message lies in its line, which is little work beside the turn of a core that its receiver waits for;
//! and of the bytes of an all-reduce, which go through few slots, much is found in the caches of the core.
//!
//! Rooted collectives wait for no turns. The ranks of a broadcast or a reduce run ahead of those behind them, so that on shared
//! cores a chain of messages is no longer than one: calls overlap, and the cores are busy all the time. What decides then is the
//! work, of which messages to a rank on the same core are the lesser part; launched ranks lie on cores in blocks of consecutive
//! ones. Measured in shared memory.
//!
//! Over sockets a message is the same work wherever its receiver is, and whoever sends or receives most decides.

use super::{Cost, Counts, Make, Rates, SHORT_BYTES};
use crate::algo::{Algorithm, rounds};
use crate::collective::Collective;

/// What messages and bytes over sockets count in single algorithms, measured with 3, 4, 6 and 8 ranks on two cores (ADR 0094, 0127).
struct Factors {
    /// Quarters of a message that one takes which is under way with others of its rank, or waits for its rank's turn to pass on what
    /// came before.
    message_quarters: u64,
    /// What a byte takes that is sent out of scratch and received there, of one in user memory.
    copied_again: f64,
    /// The same for one that goes to all others at the same time, of one that goes round a ring.
    spread: f64,
    /// The same for one that is folded in scratch, of one that a ring folds,
    folded_apart: f64,
    /// and for one that is folded with those of many slots.
    folded_together: f64,
    /// The same for one that up to 4 ranks fold in a tree and send back in it, of one of an all-reduce in a ring.
    all_reduced_in_a_tree: f64,
}

impl Factors {
    /// Those among `n` ranks. Of up to 4, what each has fits the nearer caches.
    fn of(make: Make, n: u32) -> Factors {
        let of = |few: f64, many: f64| if n > 4 { many } else { few };
        match make {
            Make::Amd => Factors {
                message_quarters: 4,
                copied_again: 1.6,
                spread: of(1.02, 1.25),
                folded_apart: 1.4,
                folded_together: of(1.02, 1.4),
                all_reduced_in_a_tree: 1.1,
            },
            Make::Other => Factors {
                message_quarters: 5,
                copied_again: of(1.3, 1.5),
                spread: of(1.02, 1.15),
                folded_apart: of(1.0, 1.2),
                folded_together: of(0.9, 1.1),
                all_reduced_in_a_tree: 1.05,
            },
        }
    }

    /// A cost whose messages are in company.
    fn in_company(&self, cost: Cost) -> Cost {
        let more = |counts: Counts| Counts {
            messages: (self.message_quarters * counts.messages).div_ceil(4),
            ..counts
        };
        Cost { path: more(cost.path), all: more(cost.all), ..cost }
    }
}

/// The cost of a collective over sockets among `n` ranks, more than there are cores.
pub(super) fn over_sockets(
    collective: Collective,
    algorithm: Algorithm,
    n: u32,
    rates: &Rates,
    cost: Cost,
) -> Cost {
    let factors = Factors::of(rates.make, n);
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
        (Collective::Reduce, _) => in_a_reduce(algorithm, (n, rates.cores), cost),
        (Collective::AllReduce, Algorithm::Binomial) if n <= 4 => {
            factors.in_company(with_bytes(factors.all_reduced_in_a_tree, cost))
        }
        (Collective::AllReduce, _) => with_bytes(in_an_all_reduce(algorithm, n, cost.bytes), cost),
        // What is not sent from where the user has it is copied once more on either side.
        (Collective::AllGather, Algorithm::Bruck | Algorithm::RecursiveDoubling | Algorithm::Pat) => {
            with_bytes(factors.copied_again, cost)
        }
        (Collective::AllToAll, Algorithm::Bruck) => with_bytes(GATHERED, cost),
        (Collective::AllToAll, Algorithm::Direct) => with_bytes(SENT_AS_IT_LIES, cost),
        (Collective::AllGather, Algorithm::Direct) => factors.in_company(with_bytes(factors.spread, cost)),
        // A ring folds what has just come, and sends it on while it is near.
        (
            Collective::ReduceScatter | Collective::ReduceScatterV,
            Algorithm::Bruck | Algorithm::RecursiveDoubling | Algorithm::Pat,
        ) => with_bytes(factors.folded_apart, cost),
        (
            Collective::ReduceScatter | Collective::ReduceScatterV,
            Algorithm::Direct | Algorithm::DirectTree,
        ) => factors.in_company(with_bytes(factors.folded_together, cost)),
        (Collective::AllGather | Collective::ReduceScatter | Collective::ReduceScatterV, Algorithm::Ring) => {
            factors.in_company(cost)
        }
        _ => cost,
    }
}

/// The cost of a reduce, whose calls overlap.
fn in_a_reduce(algorithm: Algorithm, (n, cores): (u32, u32), cost: Cost) -> Cost {
    match algorithm {
        Algorithm::Direct | Algorithm::DirectTree => {
            // The root receives all messages on a core on which others send, and half of a message's work is its sender's.
            // Short ones it takes in several at a time.
            let (peers, beside) = (u64::from(n - 1), u64::from(n.div_ceil(cores).saturating_sub(1)));
            let short = cost.bytes <= SHORT_BYTES as f64;
            let sent = |counts: u64, ranks: u64| counts * ranks / (2 * peers);
            let there = peers + beside;
            let path = Counts {
                messages: sent(cost.all.messages, if short { beside } else { there }),
                moves: sent(cost.all.moves, there),
                moved_bytes: cost.all.moved_bytes * there as f64 / (2 * peers) as f64,
                ..cost.all
            };
            let all = Counts { messages: cost.all.messages / if short { 2 } else { 1 }, ..cost.all };
            Cost { path, all, waits: 0, ..cost }
        }
        // In a tree all cores have as much to do.
        Algorithm::Binomial => Cost { path: Counts::default(), waits: 0, ..cost },
        _ => Cost { waits: 0, ..cost },
    }
}

/// What a byte of an all-reduce takes of one in a ring, which sends on what has just come while it is near, in the shortest
/// messages of all: measured with 4 and 8 ranks on two cores. Two ranks on a core that pass short blocks around take turns for each.
fn in_an_all_reduce(algorithm: Algorithm, n: u32, bytes: f64) -> f64 {
    match algorithm {
        Algorithm::Ring if n <= 4 && bytes < TURNED_BLOCK_BYTES * f64::from(n) => 1.8,
        Algorithm::Binomial => 1.2,
        Algorithm::DoubleTree => 1.2,
        Algorithm::TwoShot | Algorithm::TwoShotTree if n <= 4 => 1.2,
        Algorithm::RecursiveDoubling => 1.3,
        Algorithm::OneShot | Algorithm::OneShotTree | Algorithm::TwoShot | Algorithm::TwoShotTree => 1.4,
        Algorithm::Swing => 1.4,
        Algorithm::Rabenseifner => 1.6,
        _ => 1.0,
    }
}

/// A cost with so many times as many bytes moved.
fn with_bytes(times: f64, cost: Cost) -> Cost {
    let more = |counts: Counts| Counts { moved_bytes: times * counts.moved_bytes, ..counts };
    Cost { path: more(cost.path), all: more(cost.all), ..cost }
}

/// The cost of a collective without a root in shared memory among more ranks than there are cores, of which `pushed` are all
/// messages that are copied in and out of slots.
pub(super) fn in_memory(
    collective: Collective,
    algorithm: Algorithm,
    (n, make): (u32, Make),
    pushed: &Cost,
    cost: Cost,
) -> Cost {
    let short = pushed.all.moved_bytes <= pushed.all.messages as f64 * SHORT_BYTES as f64;
    let together = if short { SHORT_TOGETHER } else { 1 };
    let times =
        if collective == Collective::AllReduce { of_a_byte_far_away(make, algorithm, n) } else { 1.0 };
    let worth = |counts: Counts| Counts {
        messages: counts.messages.div_ceil(together),
        moved_bytes: times * counts.moved_bytes,
        folded_bytes: times * counts.folded_bytes,
        ..counts
    };
    Cost { path: worth(cost.path), all: worth(cost.all), ..cost }
}

/// What a byte of an all-reduce in shared memory takes of one that goes to another core: ranks of one core find much in its
/// caches. Measured with 3 to 8 and 16 ranks on two cores; of up to 4 by make, since some of AMD's cores are much farther from each other than
/// others (ADR 0129).
fn of_a_byte_far_away(make: Make, algorithm: Algorithm, n: u32) -> f64 {
    match algorithm {
        Algorithm::RecursiveDoubling if n == 4 && make == Make::Amd => 0.235,
        Algorithm::TwoShot | Algorithm::TwoShotTree if n <= 4 && make == Make::Amd => 0.47,
        Algorithm::RecursiveDoubling if n == 4 => 0.24,
        Algorithm::RecursiveDoubling if n < 4 => 0.27,
        Algorithm::RecursiveDoubling => 0.3,
        Algorithm::Binomial if n <= 4 => 0.36,
        Algorithm::Binomial => 0.3,
        Algorithm::TwoShot | Algorithm::TwoShotTree if n <= 4 => 0.36,
        Algorithm::TwoShot | Algorithm::TwoShotTree if n <= 6 => 0.3,
        Algorithm::TwoShot | Algorithm::TwoShotTree => 0.53,
        Algorithm::OneShot | Algorithm::OneShotTree if n <= 4 => 0.55,
        Algorithm::OneShot | Algorithm::OneShotTree => 0.48,
        Algorithm::DoubleTree => 0.37,
        Algorithm::Ring | Algorithm::TwoLevel | Algorithm::TwoLevelHalving => 0.4,
        _ => 0.45,
    }
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

/// Short messages of which one that takes a slot is worth the work: measured in shared memory.
const SHORT_TOGETHER: u64 = 3;
/// What a byte takes that is gathered from several places before it is sent, and spread to them behind, of one in user memory: measured.
const GATHERED: f64 = 1.25;
/// The same for one that is sent from where the user has it, without a slot.
const SENT_AS_IT_LIES: f64 = 0.7;
/// Blocks of a ring from which on ranks of one core take one turn for each step: measured with 4 ranks.
const TURNED_BLOCK_BYTES: f64 = 192.0 * 1024.0;
/// What a message between ranks of one core takes of one between cores: measured.
const NEAR: f64 = 0.4;
