//! Selection: which algorithm, over how many channels, for which sizes.
//!
//! [`Selection::new`] is a pure function of its [`Inputs`], so all ranks that agree on the inputs
//! (see [`Inputs::fingerprint`]) choose alike. It keeps for each collective a sorted list of (upper bound in
//! bytes → choice), made of the cost model when the collective is first asked for: most jobs use few of them.
//! [`Selection::choose`] is a search in that list. [`Selection::explain`] tells why the others lost.

mod advice;
mod allow;
mod rules;
mod user;

use alloc::vec::Vec;
use core::cell::OnceCell;
use core::fmt;

pub use self::advice::{Advice, Advised};
pub use self::allow::{Allow, AllowError};
pub use self::rules::Rule;
use self::rules::{bounds, ruling};
pub use self::user::{Refusal, UserAlgorithm};
use crate::algo::{Algorithm, algorithms};
use crate::collective::Collective;
use crate::cost::{Make, Nodes, Rates, Traffic, cost};
use crate::fingerprint::Fingerprint;
pub use crate::level::Level;
use crate::plan::Plan;

/// Everything that selection depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    /// Number of ranks.
    pub n: u32,
    /// The slowest link class between any two ranks: that between nodes, where there are several.
    pub rates: Rates,
    /// Which ranks are of one node, and what links cost there. `None` where they are all of one, or nobody knows; nodes of
    /// another number of ranks are as good as none.
    pub nodes: Option<Nodes>,
    /// Most channels.
    pub max_channels: u16,
    /// Most channels of a message: those of a group run side by side.
    pub max_message_channels: u16,
    /// Most peers that a rank may have edges with; algorithms that need more are out, unless no other is
    /// left for the collective.
    pub max_peers: u32,
    /// What results must not depend on.
    pub level: Level,
    /// The caller's wishes.
    pub allow: Allow,
    /// Programs of the user's for so many ranks, at most one for each collective.
    pub user: Vec<UserAlgorithm>,
    /// What was measured: stands above the cost model where it fits.
    pub rules: Vec<Rule>,
    /// What a tuner plugin says: stands above both where it fits.
    pub advice: Advice,
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
#[derive(Clone, Debug)]
pub struct Selection {
    inputs: Inputs,
    /// By the collective's discriminant; each list ends with `u64::MAX`. Made when first asked for.
    tables: [OnceCell<Vec<(u64, Choice)>>; Collective::ALL.len()],
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
    /// A rule names another.
    RuledOut,
    /// A tuner plugin advises another.
    AdvisedAgainst,
    /// The caller excluded it.
    NotAllowed,
    /// It needs edges with more peers than allowed.
    TooManyPeers,
    /// It does not serve so many ranks.
    TooManyRanks,
    /// Its bits depend on what they must not depend on.
    NotReproducible,
    /// It folds in another order than what serves other sizes, and bits must not depend on the size.
    OtherOrder,
    /// It folds in a tree, which is not asked for, and does not serve otherwise.
    TreeNotNeeded,
    /// It saves what leaves a node, and nobody says which ranks are one.
    NodesUnknown,
    /// It does not serve so many nodes of different sizes.
    TooManyNodes,
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
    /// Whether a switch copies what its ranks send to all others.
    pub multicast: bool,
    /// What became of it.
    pub standing: Standing,
}

impl Selection {
    /// Fails if the caller's wishes leave a collective without an algorithm.
    pub fn new(inputs: Inputs) -> Result<Selection, NothingAllowed> {
        let left = |collective: &Collective| {
            let fits = |algorithm| standing(&inputs, *collective, algorithm) == Standing::Slower;
            all_algorithms(&inputs, *collective).any(fits)
        };
        match Collective::ALL.into_iter().find(|collective| !left(collective)) {
            Some(collective) => Err(NothingAllowed { collective }),
            None => Ok(Selection { inputs, tables: Default::default() }),
        }
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
        self.tables[collective as usize].get_or_init(|| table(&self.inputs, collective))
    }

    /// The same selection with a tuner's advice, in place of what it had.
    #[must_use]
    pub fn advised(self, advice: Advice) -> Selection {
        Selection { inputs: Inputs { advice, ..self.inputs }, tables: Default::default() }
    }

    /// The advice behind the decision for one call, if it was made by advice.
    pub fn advice_on(&self, collective: Collective, bytes: u64) -> Option<&Advised> {
        let advised = self.inputs.advice.on(collective, bytes)?;
        (self.choose(collective, bytes).algorithm == advised.choice.algorithm).then_some(advised)
    }

    /// For each of these sizes what may serve it, and first what would without advice: whom a tuner may choose from. All
    /// are `Slower` but the first.
    pub fn usable(&self, collective: Collective, sizes: &[u64]) -> Vec<Vec<Candidate>> {
        let question = Question::new(&self.inputs, collective);
        sizes.iter().map(|bytes| question.usable(*bytes)).collect()
    }

    /// All algorithms of a collective for one size, the chosen one first, then by time.
    pub fn explain(&self, collective: Collective, bytes: u64) -> Vec<Candidate> {
        let chosen = self.choose(collective, bytes);
        let question = Question::new(&self.inputs, collective);
        let mut candidates = question.candidates(bytes);
        for candidate in &mut candidates {
            if candidate.algorithm == chosen.algorithm {
                candidate.standing = Standing::Chosen;
                candidate.channels = chosen.channels;
                candidate.time_ns = question.time_ns(chosen, bytes);
            }
        }
        let ruled = ruling(&self.inputs.rules, collective, bytes);
        let lost = match self.advice_on(collective, bytes) {
            Some(_) => Standing::AdvisedAgainst,
            None if ruled.is_some_and(|ruled| ruled.algorithm == chosen.algorithm) => Standing::RuledOut,
            None => Standing::Slower,
        };
        let others = candidates.iter_mut().filter(|candidate| candidate.standing == Standing::Slower);
        others.for_each(|candidate| candidate.standing = lost);
        let first = |candidate: &Candidate| candidate.standing != Standing::Chosen;
        candidates.sort_by(|a, b| first(a).cmp(&first(b)).then(a.time_ns.total_cmp(&b.time_ns)));
        candidates
    }
}

impl Inputs {
    /// A digest of all inputs. Ranks whose digests are equal make equal selections.
    pub fn fingerprint(&self) -> u64 {
        let Inputs { n, rates, nodes, max_channels, max_message_channels, .. } = self;
        let Inputs { max_peers, level, allow, user, rules, advice, .. } = self;
        let mut fingerprint = Fingerprint::new("selection");
        add_rates(&mut fingerprint, rates);
        let sizes = nodes.as_ref().map_or(&[][..], Nodes::sizes);
        let links = nodes.as_ref().map_or(0, Nodes::links);
        for word in [*n, (*max_channels).into(), *max_peers, links, sizes.len() as u32].iter().chain(sizes) {
            fingerprint.word(u64::from(*word));
        }
        if max_message_channels != max_channels {
            fingerprint.word((*max_message_channels).into());
        }
        if let Some(nodes) = nodes {
            add_rates(&mut fingerprint, nodes.near());
        }
        fingerprint.word(*level as u64);
        for collective in Collective::ALL {
            for algorithm in algorithms(collective).iter().chain([&Algorithm::User]) {
                fingerprint.word(u64::from(allow.permits(collective, *algorithm)));
            }
        }
        user.iter().for_each(|user| fingerprint.word(user.plan().fingerprint()));
        for Rule { collective, from, up_to, choice } in rules {
            let what = [*collective as u64, *up_to, choice.algorithm as u64, choice.channels.into()];
            what.into_iter().for_each(|word| fingerprint.word(word));
            if *from > 0 {
                fingerprint.word(*from);
            }
        }
        advice.add_to(&mut fingerprint);
        fingerprint.finish()
    }

    /// The nodes, if they are those of all ranks.
    pub fn known_nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref().filter(|nodes| nodes.n() == self.n)
    }

    /// Whether a switch copies what ranks of such a call send to all others.
    pub fn multicast_serves(&self, collective: Collective, algorithm: Algorithm, bytes: u64) -> bool {
        self.known_nodes().is_none() && self.rates.multicast.serves(collective, algorithm, self.n, bytes)
    }

    /// Most channels of a call.
    pub fn most_channels(&self, collective: Collective) -> u16 {
        let most = match collective {
            Collective::Send | Collective::Recv => self.max_message_channels,
            _ => self.max_channels,
        };
        most.max(1)
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
            Standing::RuledOut => "a rule of the tuning file or for mapped buffers names another",
            Standing::AdvisedAgainst => "the tuner plugin advises another",
            Standing::NotAllowed => "not allowed",
            Standing::TooManyPeers => "needs edges with too many peers",
            Standing::TooManyRanks => "does not serve so many ranks",
            Standing::NodesUnknown => "no nodes of several ranks are known",
            Standing::TooManyNodes => "does not serve so many nodes of different sizes",
            Standing::TreeNotNeeded => "does the same in a tree that nobody asked for",
            Standing::OtherOrder => "folds in another order than what serves other sizes",
            Standing::NotReproducible => "its bits depend on more than the level allows",
        }
    }
}

fn add_rates(fingerprint: &mut Fingerprint, rates: &Rates) {
    let Rates {
        alpha_ns,
        switch_ns,
        turn_ns,
        message_ns,
        move_ns,
        beta_ns_per_byte,
        channel_beta_ns_per_byte,
        gamma_ns_per_byte,
        far,
        far_bytes,
        workers,
        chunk_bytes,
        least_channel_bytes,
        cores,
        pulls,
        shares,
        multicast,
        make,
    } = rates;
    let steps = [alpha_ns, switch_ns, turn_ns, message_ns, move_ns];
    let bytes = [beta_ns_per_byte, channel_beta_ns_per_byte, gamma_ns_per_byte, far, far_bytes];
    steps.into_iter().chain(bytes).for_each(|rate| fingerprint.word(rate.to_bits()));
    let words = [(*workers).into(), *chunk_bytes, (*cores).into(), u64::from(*pulls), u64::from(*shares)];
    words.into_iter().for_each(|word| fingerprint.word(word));
    if *least_channel_bytes > 0 {
        fingerprint.word(*least_channel_bytes);
    }
    fingerprint.word(u64::from(*make == Make::Amd));
    for collective in Collective::ALL {
        let from = multicast.from(collective);
        fingerprint.word(u64::from(from.is_some()));
        fingerprint.word(from.unwrap_or(0));
    }
}

/// One decision for each power of two, each rule or advice and each size where costs jump, neighbours that agree merged.
fn table(inputs: &Inputs, collective: Collective) -> Vec<(u64, Choice)> {
    let mut table: Vec<(u64, Choice)> = Vec::new();
    let question = Question::new(inputs, collective);
    let jumps = inputs.rates.jumps(collective, inputs.n).filter_map(|bytes| bytes.checked_sub(1));
    let own = jumps.chain(inputs.advice.bounds(collective));
    let mut least = 0;
    for bound in bounds(&inputs.rules, collective, own, SMALLEST_POWER..=LARGEST_POWER - 1) {
        // The middle of the two powers of two that it lies between, or what of that is decided here.
        let power = bound.clamp(1 << SMALLEST_POWER, 1 << LARGEST_POWER).next_power_of_two();
        let bytes = (3 * (power >> 2)).max(least).min(bound);
        least = bound.saturating_add(1);
        // There is always one: see `Selection::new`.
        let Some(choice) = question.best(bytes, bound) else { continue };
        match table.last_mut() {
            Some((last, same)) if *same == choice => *last = bound,
            _ => table.push((bound, choice)),
        }
    }
    table
}

/// Which algorithm for a collective: its inputs, and what is found once for all sizes.
struct Question<'a> {
    inputs: &'a Inputs,
    collective: Collective,
    /// How the links between nodes and in them are used, where nodes are known.
    traffic: Vec<(Algorithm, Traffic)>,
}

impl Question<'_> {
    fn new(inputs: &Inputs, collective: Collective) -> Question<'_> {
        let of = |nodes: &Nodes, algorithm| (algorithm, nodes.traffic(collective, algorithm, &inputs.rates));
        let all = |nodes| algorithms(collective).iter().map(|algorithm| of(nodes, *algorithm)).collect();
        Question { inputs, collective, traffic: inputs.known_nodes().map_or_else(Vec::new, all) }
    }

    /// What a tuner or the rules say of sizes up to `bound`, or else the fastest that may be used for `bytes`; among
    /// equals the last, whose bits depend on less.
    fn best(&self, bytes: u64, bound: u64) -> Option<Choice> {
        self.best_of(&self.candidates(bytes), bound)
    }

    fn best_of(&self, candidates: &[Candidate], bound: u64) -> Option<Choice> {
        let Inputs { rules, advice, .. } = self.inputs;
        let most = self.inputs.most_channels(self.collective);
        let fit = |candidate: &&Candidate| candidate.standing == Standing::Slower;
        let advised = advice.on(self.collective, bound).map(|advised| advised.choice);
        for named in advised.into_iter().chain(ruling(rules, self.collective, bound)) {
            let channels = named.channels.clamp(1, most);
            if candidates.iter().filter(fit).any(|candidate| candidate.algorithm == named.algorithm) {
                return Some(Choice { channels, ..named });
            }
        }
        let best = candidates.iter().rev().filter(fit).min_by(|a, b| a.time_ns.total_cmp(&b.time_ns))?;
        Some(Choice { algorithm: best.algorithm, channels: best.channels })
    }

    /// What may serve `bytes`, first what the rules or the cost model choose.
    fn usable(&self, bytes: u64) -> Vec<Candidate> {
        let mut usable = self.candidates(bytes);
        usable.retain(|candidate| candidate.standing == Standing::Slower);
        let chosen = self.best_of(&usable, bytes);
        let first =
            usable.iter().position(|one| chosen.is_some_and(|chosen| chosen.algorithm == one.algorithm));
        if let (Some(first), Some(Choice { channels, .. })) = (first, chosen) {
            usable[..=first].rotate_right(1);
            usable[0].standing = Standing::Chosen;
            usable[0].channels = channels;
        }
        usable
    }

    /// Every algorithm with its best number of channels; those that may be used are `Slower` until
    /// one is chosen.
    fn candidates(&self, bytes: u64) -> Vec<Candidate> {
        let Question { inputs, collective, .. } = *self;
        let candidate = |algorithm: Algorithm| {
            let channels = self.channels(algorithm, bytes);
            let time_ns = self.time_ns(Choice { algorithm, channels }, bytes);
            let standing = standing(inputs, collective, algorithm);
            let multicast = inputs.multicast_serves(collective, algorithm, bytes);
            Candidate { algorithm, channels, time_ns, multicast, standing }
        };
        let mut all: Vec<Candidate> = all_algorithms(inputs, collective).map(candidate).collect();
        leave_one_order(inputs, collective, &mut all);
        all
    }

    /// The smallest number of channels within 2.5 % of the best time, of those that all have enough to do.
    fn channels(&self, algorithm: Algorithm, bytes: u64) -> u16 {
        let busy = bytes.checked_div(self.inputs.rates.least_channel_bytes).unwrap_or(u64::MAX);
        let most = u64::from(self.inputs.most_channels(self.collective)).min(busy.max(1)) as u16;
        let time = |channels| self.time_ns(Choice { algorithm, channels }, bytes);
        let powers = || (0..16).map(|power| 1_u16 << power).take_while(|channels| *channels <= most);
        let best = powers().map(time).fold(f64::INFINITY, f64::min);
        powers().find(|channels| time(*channels) <= best * 1.025).unwrap_or(1)
    }

    /// A program of the user's is taken to leave a node with every message.
    fn time_ns(&self, choice: Choice, bytes: u64) -> f64 {
        let Question { inputs, collective, .. } = *self;
        let Choice { algorithm, channels } = choice;
        let traffic = self.traffic.iter().find(|(known, _)| *known == algorithm);
        if let (Some(nodes), Some((_, traffic))) = (inputs.known_nodes(), traffic) {
            return nodes.time_ns((collective, algorithm, traffic), bytes, &inputs.rates, channels);
        }
        let cost = match inputs.user_algorithm(collective) {
            Some(user) if algorithm == Algorithm::User => user.counted().cost(bytes, &inputs.rates, channels),
            _ => cost(collective, algorithm, inputs.n, bytes, &inputs.rates, channels),
        };
        inputs.rates.time_ns(&cost, channels)
    }
}

/// What a collective may be served by: what ccl has, and the user's own.
fn all_algorithms(inputs: &Inputs, collective: Collective) -> impl Iterator<Item = Algorithm> {
    let own = inputs.user_algorithm(collective).map(|_| Algorithm::User);
    algorithms(collective).iter().copied().chain(own)
}

/// At level `size` the bits must not tell which algorithm served a size: of those that fold in different orders
/// only those of one order may be used, the order of ranks if there is such a one.
fn leave_one_order(inputs: &Inputs, collective: Collective, all: &mut [Candidate]) {
    if inputs.level != Level::Size || !collective.reduces() {
        return;
    }
    let order =
        |candidate: &Candidate| match (candidate.algorithm, level(inputs, collective, candidate.algorithm)) {
            // The canonical tree, all of them.
            (_, Level::World) => (1, 0),
            (Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct, _) => (0, 0),
            (own, _) => (2, own as u32),
        };
    let fit = |candidate: &&mut Candidate| candidate.standing == Standing::Slower;
    let Some(kept) = all.iter_mut().filter(fit).map(|candidate| order(candidate)).min() else { return };
    for candidate in all.iter_mut().filter(fit).filter(|candidate| order(candidate) != kept) {
        candidate.standing = Standing::OtherOrder;
    }
}

fn standing(inputs: &Inputs, collective: Collective, algorithm: Algorithm) -> Standing {
    let fits = |algorithm: Algorithm| {
        inputs.n <= algorithm.most_ranks(collective)
            && algorithm.level(collective, inputs.n) >= inputs.level
            && inputs.allow.permits(collective, algorithm)
    };
    let other = |algorithm: &Algorithm| !algorithm.is_two_level() && fits(*algorithm);
    let few_peers = |algorithm: Algorithm| algorithm.peers(inputs.n) <= inputs.max_peers;
    let choice = || algorithms(collective).iter().any(|other| fits(*other) && few_peers(*other));
    match () {
        () if !inputs.allow.permits(collective, algorithm) => Standing::NotAllowed,
        () if inputs.n > algorithm.most_ranks(collective) => Standing::TooManyRanks,
        () if level(inputs, collective, algorithm) < inputs.level => Standing::NotReproducible,
        () if algorithm.is_two_level() && algorithms(collective).iter().any(other) => {
            match &inputs.known_nodes() {
                None => Standing::NodesUnknown,
                Some(nodes) if Plan::takes_nodes(nodes.sizes()) => Standing::Slower,
                Some(_) => Standing::TooManyNodes,
            }
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

/// The smallest bound is 8 bytes.
const SMALLEST_POWER: u32 = 3;
/// From half a tebibyte on nothing changes.
const LARGEST_POWER: u32 = 40;

#[cfg(test)]
mod tests;
