//! Selection: which algorithm, over how many channels, for which sizes.
//!
//! [`Selection::new`] is a pure function of its [`Inputs`], so all ranks that agree on the inputs
//! (see [`Inputs::fingerprint`]) choose alike. It evaluates the cost model once, at init, and keeps for
//! each collective a sorted list of (upper bound in bytes → choice); [`Selection::choose`] is a
//! search in that list. [`Selection::explain`] tells why the others lost.

mod allow;
mod user;

use alloc::vec::Vec;
use core::fmt;

pub use self::allow::{Allow, AllowError};
pub use self::user::{Refusal, UserAlgorithm};
use crate::algo::{Algorithm, algorithms};
use crate::collective::Collective;
use crate::cost::{Rates, cost};
use crate::fingerprint::Fingerprint;
pub use crate::level::Level;

/// Everything that selection depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    /// Number of ranks.
    pub n: u32,
    /// The slowest link class between any two ranks.
    pub rates: Rates,
    /// Most channels.
    pub max_channels: u16,
    /// Most peers that a rank may have edges with; algorithms that need more are out, unless no other is
    /// left for the collective.
    pub max_peers: u32,
    /// What results must not depend on.
    pub level: Level,
    /// The caller's wishes.
    pub allow: Allow,
    /// Programs of the user's for so many ranks, at most one for each collective.
    pub user: Vec<UserAlgorithm>,
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// How.
    pub algorithm: Algorithm,
    /// Over how many channels.
    pub channels: u16,
}

/// The decisions for every collective and size.
#[derive(Clone, PartialEq, Debug)]
pub struct Selection {
    inputs: Inputs,
    /// By the collective's discriminant; each list ends with `u64::MAX`.
    tables: Vec<Vec<(u64, Choice)>>,
}

/// No algorithm is left for a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NothingAllowed {
    /// Which collective.
    pub collective: Collective,
}

/// Why a candidate was or was not chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Standing {
    /// It was.
    Chosen,
    /// It takes longer.
    Slower,
    /// The caller excluded it.
    NotAllowed,
    /// It needs edges with more peers than allowed.
    TooManyPeers,
    /// It does not serve so many ranks.
    TooManyRanks,
    /// Its bits depend on what they must not depend on.
    NotReproducible,
    /// It folds in a tree, which is not asked for, and does not serve otherwise.
    TreeNotNeeded,
    /// It saves what leaves a node, and nobody says which ranks are one.
    NodesUnknown,
}

/// One algorithm in an explanation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The number of channels it would use.
    pub channels: u16,
    /// The time it would take.
    pub time_ns: f64,
    /// What became of it.
    pub standing: Standing,
}

impl Selection {
    /// Decides for every collective. Fails if the caller's wishes leave one without an algorithm.
    pub fn new(inputs: Inputs) -> Result<Selection, NothingAllowed> {
        let mut tables = Vec::new();
        for collective in Collective::ALL {
            tables.push(table(&inputs, collective)?);
        }
        Ok(Selection { inputs, tables })
    }

    /// What the selection was made from.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// The decision for one call. `bytes` is the larger of a rank's user buffers: the vector, or all
    /// n blocks.
    pub fn choose(&self, collective: Collective, bytes: u64) -> Choice {
        let table = self.table(collective);
        let index = table.partition_point(|(bound, _)| *bound < bytes);
        table.get(index).map_or(Choice { algorithm: algorithms(collective)[0], channels: 1 }, |(_, c)| *c)
    }

    /// The sorted list of (largest size in bytes, choice) of a collective.
    pub fn table(&self, collective: Collective) -> &[(u64, Choice)] {
        self.tables.get(collective as usize).map_or(&[], Vec::as_slice)
    }

    /// All algorithms of a collective for one size, the chosen one first, then by time.
    pub fn explain(&self, collective: Collective, bytes: u64) -> Vec<Candidate> {
        let chosen = self.choose(collective, bytes);
        let mut candidates = candidates(&self.inputs, collective, bytes);
        for candidate in &mut candidates {
            if candidate.algorithm == chosen.algorithm {
                candidate.standing = Standing::Chosen;
                candidate.channels = chosen.channels;
                candidate.time_ns = time_ns(&self.inputs, collective, chosen, bytes);
            }
        }
        let first = |candidate: &Candidate| candidate.standing != Standing::Chosen;
        candidates.sort_by(|a, b| first(a).cmp(&first(b)).then(a.time_ns.total_cmp(&b.time_ns)));
        candidates
    }
}

impl Inputs {
    /// A digest of all inputs. Ranks whose digests are equal make equal selections.
    pub fn fingerprint(&self) -> u64 {
        let Inputs { n, rates, max_channels, max_peers, level, allow, user } = self;
        let Rates {
            alpha_ns,
            move_ns,
            beta_ns_per_byte,
            channel_beta_ns_per_byte,
            gamma_ns_per_byte,
            workers,
            chunk_bytes,
            pulls,
        } = rates;
        let mut fingerprint = Fingerprint::new("selection");
        for rate in [alpha_ns, move_ns, beta_ns_per_byte, channel_beta_ns_per_byte, gamma_ns_per_byte] {
            fingerprint.word(rate.to_bits());
        }
        for word in
            [u64::from(*n), (*workers).into(), *chunk_bytes, (*max_channels).into(), (*max_peers).into()]
        {
            fingerprint.word(word);
        }
        fingerprint.word(u64::from(*pulls));
        fingerprint.word(*level as u64);
        for collective in Collective::ALL {
            for algorithm in algorithms(collective).iter().chain([&Algorithm::User]) {
                fingerprint.word(u64::from(allow.permits(collective, *algorithm)));
            }
        }
        user.iter().for_each(|user| fingerprint.word(user.plan().fingerprint()));
        fingerprint.finish()
    }

    /// The user's own program for a collective.
    pub fn user_algorithm(&self, collective: Collective) -> Option<&UserAlgorithm> {
        self.user.iter().find(|user| user.plan().collective() == collective)
    }
}

impl fmt::Display for NothingAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected an allowed algorithm for {}, found none; it has", self.collective)?;
        algorithms(self.collective).iter().try_for_each(|algorithm| write!(f, " {algorithm}"))
    }
}

impl core::error::Error for NothingAllowed {}

impl Standing {
    /// In words.
    pub const fn reason(self) -> &'static str {
        match self {
            Standing::Chosen => "chosen",
            Standing::Slower => "takes longer",
            Standing::NotAllowed => "not allowed",
            Standing::TooManyPeers => "needs edges with too many peers",
            Standing::TooManyRanks => "does not serve so many ranks",
            Standing::NodesUnknown => "no nodes are known",
            Standing::TreeNotNeeded => "does the same in a tree that nobody asked for",
            Standing::NotReproducible => "its bits depend on more than the level allows",
        }
    }
}

/// One decision for each power of two, neighbours that agree merged.
fn table(inputs: &Inputs, collective: Collective) -> Result<Vec<(u64, Choice)>, NothingAllowed> {
    let mut table: Vec<(u64, Choice)> = Vec::new();
    for power in SMALLEST_POWER..=LARGEST_POWER {
        let bound = if power == LARGEST_POWER { u64::MAX } else { 1 << power };
        let choice = best(inputs, collective, 3 << (power - 2)).ok_or(NothingAllowed { collective })?;
        match table.last_mut() {
            Some((last, same)) if *same == choice => *last = bound,
            _ => table.push((bound, choice)),
        }
    }
    Ok(table)
}

/// The fastest that may be used; among equals the last, whose bits depend on less.
fn best(inputs: &Inputs, collective: Collective, bytes: u64) -> Option<Choice> {
    let candidates = candidates(inputs, collective, bytes).into_iter().rev();
    let fit = candidates.filter(|candidate| candidate.standing == Standing::Slower);
    let best = fit.min_by(|a, b| a.time_ns.total_cmp(&b.time_ns))?;
    Some(Choice { algorithm: best.algorithm, channels: best.channels })
}

/// Every algorithm with its best number of channels; those that may be used are `Slower` until
/// one is chosen.
fn candidates(inputs: &Inputs, collective: Collective, bytes: u64) -> Vec<Candidate> {
    let candidate = |algorithm: &Algorithm| {
        let channels = channels(inputs, collective, *algorithm, bytes);
        let choice = Choice { algorithm: *algorithm, channels };
        let time_ns = time_ns(inputs, collective, choice, bytes);
        Candidate {
            algorithm: *algorithm,
            channels,
            time_ns,
            standing: standing(inputs, collective, *algorithm),
        }
    };
    let own = inputs.user_algorithm(collective).map(|_| &Algorithm::User);
    algorithms(collective).iter().chain(own).map(candidate).collect()
}

fn standing(inputs: &Inputs, collective: Collective, algorithm: Algorithm) -> Standing {
    let fits = |algorithm: Algorithm| {
        inputs.n <= algorithm.most_ranks(collective)
            && algorithm.level(collective, inputs.n) >= inputs.level
            && inputs.allow.permits(collective, algorithm)
    };
    let other = |algorithm: &Algorithm| *algorithm != Algorithm::TwoLevel && fits(*algorithm);
    let few_peers = |algorithm: Algorithm| algorithm.peers(inputs.n) <= inputs.max_peers;
    let choice = || algorithms(collective).iter().any(|other| fits(*other) && few_peers(*other));
    match () {
        () if !inputs.allow.permits(collective, algorithm) => Standing::NotAllowed,
        () if inputs.n > algorithm.most_ranks(collective) => Standing::TooManyRanks,
        () if level(inputs, collective, algorithm) < inputs.level => Standing::NotReproducible,
        () if algorithm == Algorithm::TwoLevel && algorithms(collective).iter().any(other) => {
            Standing::NodesUnknown
        }
        // Who writes a program knows how many peers it has.
        () if algorithm == Algorithm::User => Standing::Slower,
        () if algorithm.without_tree().is_some_and(fits) => Standing::TreeNotNeeded,
        () if !few_peers(algorithm) && choice() => Standing::TooManyPeers,
        () => Standing::Slower,
    }
}

/// What an algorithm promises.
fn level(inputs: &Inputs, collective: Collective, algorithm: Algorithm) -> Level {
    match inputs.user_algorithm(collective) {
        Some(user) if algorithm == Algorithm::User => user.level(),
        _ => algorithm.level(collective, inputs.n),
    }
}

/// The smallest number of channels within 2.5 % of the best time.
fn channels(inputs: &Inputs, collective: Collective, algorithm: Algorithm, bytes: u64) -> u16 {
    let time = |channels| time_ns(inputs, collective, Choice { algorithm, channels }, bytes);
    let powers =
        || (0..16).map(|power| 1_u16 << power).take_while(|channels| *channels <= inputs.max_channels.max(1));
    let best = powers().map(time).fold(f64::INFINITY, f64::min);
    powers().find(|channels| time(*channels) <= best * 1.025).unwrap_or(1)
}

fn time_ns(inputs: &Inputs, collective: Collective, choice: Choice, bytes: u64) -> f64 {
    let Choice { algorithm, channels } = choice;
    let cost = match inputs.user_algorithm(collective) {
        Some(user) if algorithm == Algorithm::User => user.counted().cost(bytes, &inputs.rates, channels),
        _ => cost(collective, algorithm, inputs.n, bytes, &inputs.rates, channels),
    };
    inputs.rates.time_ns(&cost, channels)
}

/// The smallest bound is 8 bytes.
const SMALLEST_POWER: u32 = 3;
/// From half a tebibyte on nothing changes.
const LARGEST_POWER: u32 = 40;

#[cfg(test)]
mod tests;
