//! Algorithms: pure functions that write programs.
//!
//! One file for each family. An algorithm says how data moves; what must come out is the
//! collective's business, and [`crate::verify`] never trusts the algorithm. Notation, as
//! everywhere: n ranks, S bytes per vector, b bytes per block, α, β, γ as in [`crate::cost`].

mod alone;
mod arc;
mod binomial;
mod binomial_blocks;
mod bruck;
mod bruck_all_to_all;
pub(crate) mod direct;
mod dissemination;
pub(crate) mod double_tree;
mod doubling_blocks;
mod in_order;
mod in_tree;
mod one_shot;
pub(crate) mod pairs;
pub(crate) mod pat;
mod rabenseifner;
mod recursive_doubling;
mod ring;
pub(crate) mod swing;
pub(crate) mod two_level;
mod two_shot;

use core::fmt;
use core::str::FromStr;

use self::pairs::{Pairs, Standing};
use crate::collective::Collective;
use crate::dtype::UnknownName;
use crate::ids::Place;
use crate::plan::Plan;
use crate::program::builder::{Index, LaneBuilder, Spot};
use crate::program::{ExtentOf, MAX_RANKS, Program};

/// A way to carry out a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Algorithm {
    /// Neighbours on a ring pass chunks on; the chain for broadcast and reduce.
    Ring = 0,
    /// Everybody sends everything to everybody and folds alone.
    OneShot = 1,
    /// Everybody folds one chunk for all, then shares it.
    TwoShot = 2,
    /// Each block goes straight to where it belongs.
    Direct = 3,
    /// Signals at distances 1, 2, 4 and so on.
    Dissemination = 4,
    /// A tree in which each rank serves the ranks at distances 1, 2, 4 and so on.
    Binomial = 5,
    /// Whole vectors, or ranges of blocks, are exchanged by pairs of ranks at distances 1, 2, 4 and so on.
    RecursiveDoubling = 6,
    /// Ranges of blocks travel at distances 1, 2, 4 and so on.
    Bruck = 7,
    /// A reduce-scatter at distances …, 4, 2, 1, then an all-gather at distances 1, 2, 4, ….
    Rabenseifner = 8,
    /// Two binary trees, each for half of the vector, up and down at the same time.
    DoubleTree = 9,
    /// Trees of blocks, of which many travel together, at distances 1, 2, 4 and so on.
    Pat = 10,
    /// As one-shot, folding in the canonical tree.
    OneShotTree = 11,
    /// As two-shot, folding in the canonical tree.
    TwoShotTree = 12,
    /// As direct, folding in the canonical tree.
    DirectTree = 13,
    /// A program of the user's: see [`Plan::of_program`].
    User = 14,
    /// A ring in each node, a ring of the ranks with one local rank, a ring in each node again.
    TwoLevel = 15,
    /// As two-level, but between nodes at distances …, 4, 2, 1 and then 1, 2, 4, ….
    TwoLevelHalving = 16,
    /// Halving and doubling at distances 1, 1, 3, 5, 11 and so on.
    Swing = 17,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 18] = [
        Algorithm::Ring,
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::Direct,
        Algorithm::Dissemination,
        Algorithm::Binomial,
        Algorithm::RecursiveDoubling,
        Algorithm::Bruck,
        Algorithm::Rabenseifner,
        Algorithm::DoubleTree,
        Algorithm::Pat,
        Algorithm::OneShotTree,
        Algorithm::TwoShotTree,
        Algorithm::DirectTree,
        Algorithm::User,
        Algorithm::TwoLevel,
        Algorithm::TwoLevelHalving,
        Algorithm::Swing,
    ];

    /// The name used in tables, texts and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::OneShot => "one_shot",
            Algorithm::TwoShot => "two_shot",
            Algorithm::Direct => "direct",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Binomial => "binomial",
            Algorithm::RecursiveDoubling => "recursive_doubling",
            Algorithm::Bruck => "bruck",
            Algorithm::Rabenseifner => "rabenseifner",
            Algorithm::DoubleTree => "double_tree",
            Algorithm::Pat => "pat",
            Algorithm::OneShotTree => "one_shot_tree",
            Algorithm::TwoShotTree => "two_shot_tree",
            Algorithm::DirectTree => "direct_tree",
            Algorithm::User => "user",
            Algorithm::TwoLevel => "two_level",
            Algorithm::TwoLevelHalving => "two_level_halving",
            Algorithm::Swing => "swing",
        }
    }

    /// The most peers that a rank has edges with among `n` ranks.
    pub const fn peers(self, n: u32) -> u32 {
        match self {
            Algorithm::Ring => 2,
            Algorithm::TwoLevel => 4,
            Algorithm::TwoLevelHalving => 2 + 2 * rounds(n),
            Algorithm::OneShot
            | Algorithm::TwoShot
            | Algorithm::Direct
            | Algorithm::OneShotTree
            | Algorithm::TwoShotTree
            | Algorithm::DirectTree
            | Algorithm::User => n.saturating_sub(1),
            Algorithm::Dissemination => 2 * rounds(n),
            Algorithm::Binomial | Algorithm::RecursiveDoubling | Algorithm::Swing => rounds(n) + 1,
            Algorithm::Bruck | Algorithm::Rabenseifner | Algorithm::Pat => 2 * rounds(n),
            Algorithm::DoubleTree => 5,
        }
    }

    /// The most ranks that it serves. A span of half of all blocks must fit a slot.
    pub const fn most_ranks(self, collective: Collective) -> u32 {
        match (self, collective) {
            // Here spans are up to all blocks.
            (Algorithm::Bruck, Collective::AllToAll)
            | (Algorithm::RecursiveDoubling, Collective::AllGather | Collective::ReduceScatter) => 512,
            // A part of n/g chunks must fit a slot.
            (Algorithm::Bruck | Algorithm::Rabenseifner | Algorithm::Swing, _)
            | (Algorithm::TwoLevel | Algorithm::TwoLevelHalving, _)
            | (Algorithm::Binomial, Collective::Gather | Collective::Scatter) => 4096,
            _ => MAX_RANKS,
        }
    }

    /// The algorithm that takes the same messages and folds in the order of places instead of the canonical
    /// tree.
    pub const fn without_tree(self) -> Option<Algorithm> {
        match self {
            Algorithm::OneShotTree => Some(Algorithm::OneShot),
            Algorithm::TwoShotTree => Some(Algorithm::TwoShot),
            Algorithm::DirectTree => Some(Algorithm::Direct),
            _ => None,
        }
    }

    /// How many blocks or ranks it takes together among `n` ranks, where a plan does not say: the
    /// aggregation of PAT, the ranks of a node in two-level algorithms. 1 for all others.
    pub const fn bundle(self, n: u32) -> u32 {
        match self {
            Algorithm::Pat => pat::aggregation(n),
            _ if self.is_two_level() => two_level::ranks_per_node(n),
            _ => 1,
        }
    }

    /// Whether it goes by nodes: see [`Plan::with_nodes`].
    pub const fn is_two_level(self) -> bool {
        matches!(self, Algorithm::TwoLevel | Algorithm::TwoLevelHalving)
    }

    /// Whether it can take so many together among `n` ranks.
    pub const fn takes_bundle(self, n: u32, bundle: u32) -> bool {
        match self {
            Algorithm::Pat => bundle.is_power_of_two() && bundle <= pat::aggregation(n),
            _ if self.is_two_level() => bundle > 0 && n.is_multiple_of(bundle),
            _ => bundle == 1,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Algorithm::ALL.iter().copied().find(|algorithm| algorithm.name() == text).ok_or(UnknownName)
    }
}

/// The algorithms that carry out a collective, the safest choice for large sizes first.
pub const fn algorithms(collective: Collective) -> &'static [Algorithm] {
    match collective {
        Collective::AllReduce => {
            const ALL_REDUCE: &[Algorithm] = &[
                Algorithm::Ring,
                Algorithm::TwoLevel,
                Algorithm::TwoLevelHalving,
                Algorithm::DoubleTree,
                Algorithm::Swing,
                Algorithm::Rabenseifner,
                Algorithm::Binomial,
                Algorithm::RecursiveDoubling,
                Algorithm::OneShotTree,
                Algorithm::TwoShotTree,
                Algorithm::OneShot,
                Algorithm::TwoShot,
            ];
            ALL_REDUCE
        }
        Collective::Broadcast => &[Algorithm::Ring, Algorithm::Binomial, Algorithm::Direct],
        Collective::Reduce => {
            &[Algorithm::Ring, Algorithm::Binomial, Algorithm::DirectTree, Algorithm::Direct]
        }
        Collective::AllGather => {
            const ALL_GATHER: &[Algorithm] = &[
                Algorithm::Ring,
                Algorithm::Pat,
                Algorithm::Bruck,
                Algorithm::RecursiveDoubling,
                Algorithm::Direct,
            ];
            ALL_GATHER
        }
        Collective::ReduceScatter => {
            const REDUCE_SCATTER: &[Algorithm] = &[
                Algorithm::Ring,
                Algorithm::Pat,
                Algorithm::Bruck,
                Algorithm::RecursiveDoubling,
                Algorithm::DirectTree,
                Algorithm::Direct,
            ];
            REDUCE_SCATTER
        }
        Collective::AllGatherV => &[Algorithm::Ring, Algorithm::Direct],
        Collective::ReduceScatterV => &[Algorithm::Ring, Algorithm::DirectTree, Algorithm::Direct],
        Collective::Gather | Collective::Scatter => &[Algorithm::Binomial, Algorithm::Direct],
        Collective::AllToAll => &[Algorithm::Direct, Algorithm::Bruck],
        Collective::AllToAllV
        | Collective::GatherV
        | Collective::ScatterV
        | Collective::Send
        | Collective::Recv => &[Algorithm::Direct],
        Collective::Barrier => &[Algorithm::Dissemination],
    }
}

/// What distinguishes a rank's program from the others' of its plan. Ranks of equal roles run the
/// same text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Role {
    duty: Duty,
    position: Position,
    /// Children in a tree.
    children: u8,
    /// Where powers of two are wanted.
    standing: Standing,
    /// In a double tree.
    nodes: [double_tree::Node; 2],
    /// The plan's bundle.
    bundle: u32,
    /// The node, where those differ, or the seat of a rank that has a text of its own.
    site: Option<u32>,
}

/// ⌈log2 n⌉.
pub(crate) const fn rounds(n: u32) -> u32 {
    n.next_power_of_two().trailing_zeros()
}

/// Relation to the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Duty {
    /// The collective has no root.
    Member,
    /// This rank is the root.
    Root,
    /// Neither at the root nor at the far end of its chain.
    Inner,
    /// At the far end of the root's chain, or any other rank where there is no chain.
    Leaf,
}

/// Where a rank's own contribution stands in a fold by absolute place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Position {
    /// It does not matter.
    Any,
    /// The one of a few ranks whose folds fit one Move.
    Fixed(u8),
    /// Place 0 of many.
    First,
    /// Neither first nor last of many.
    Middle,
    /// Place n−1 of many.
    Last,
}

/// How one rank folds what all have sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fold {
    /// In the order of places.
    InOrder,
    /// In the canonical tree.
    InTree,
}

fn fold_of(algorithm: Algorithm) -> Fold {
    if algorithm.without_tree().is_some() { Fold::InTree } else { Fold::InOrder }
}

impl Fold {
    /// Cells of scratch that it needs.
    fn cells(self, n: u32) -> u16 {
        match self {
            Fold::InOrder => in_order::cells(n),
            Fold::InTree => in_tree::cells(n),
        }
    }

    /// Folds the own input with one slot from every other rank into `outputs`.
    fn write(
        self,
        l: &mut LaneBuilder<'_>,
        (n, position): (u32, Position),
        outputs: &[Spot],
        of: ExtentOf,
        index: impl Into<Index>,
    ) {
        match self {
            Fold::InOrder => in_order::fold(l, n, position, outputs, of, index),
            Fold::InTree => in_tree::fold(l, n, position, outputs, (of, index.into())),
        }
    }
}

/// The role of `place`.
pub(crate) fn role(plan: &Plan, place: Place, root: Place) -> Role {
    let (collective, algorithm, n) = (plan.collective(), plan.algorithm(), plan.n());
    let duty = duty(collective, algorithm, n, place, root);
    let folds = matches!(
        (collective, algorithm, duty),
        (Collective::AllReduce, Algorithm::OneShot | Algorithm::TwoShot, _)
            | (Collective::AllReduce, Algorithm::OneShotTree | Algorithm::TwoShotTree, _)
            | (
                Collective::ReduceScatter | Collective::ReduceScatterV,
                Algorithm::Direct | Algorithm::DirectTree,
                _
            )
            | (Collective::Reduce, Algorithm::Direct | Algorithm::DirectTree, Duty::Root)
    );
    let position = match in_order::position(n, place) {
        _ if !folds || n == 1 => Position::Any,
        fixed @ Position::Fixed(_) => fixed,
        // In a tree all places take the same steps.
        _ if fold_of(algorithm) == Fold::InTree => Position::Any,
        of_many => of_many,
    };
    let children = match algorithm {
        Algorithm::Binomial if collective == Collective::AllReduce => binomial::children(n, place, Place(0)),
        Algorithm::Binomial => binomial::children(n, place, root),
        _ => 0,
    };
    let standing = match algorithm {
        Algorithm::RecursiveDoubling | Algorithm::Swing => Pairs::of(n).standing(place),
        _ => Standing::Single,
    };
    let nodes = match algorithm {
        Algorithm::DoubleTree if n > 1 => double_tree::nodes(n, place),
        _ => Default::default(),
    };
    let site = match algorithm {
        Algorithm::Swing if standing != Standing::Second => Some(swing::seat(n, place)),
        _ => plan.nodes().map(|sizes| two_level::node_of(sizes, place)),
    };
    Role { duty, position, children, standing, nodes, bundle: plan.bundle(), site }
}

/// The program of a role; the caller has made sure that the algorithm suits the collective.
pub(crate) fn program(plan: &Plan, role: Role) -> Program {
    let (collective, algorithm, n) = (plan.collective(), plan.algorithm(), plan.n());
    if n == 1 && !collective.is_message() {
        return alone::program(collective, algorithm.name());
    }
    match algorithm {
        Algorithm::Ring => ring::program(collective, role.duty),
        Algorithm::TwoLevel | Algorithm::TwoLevelHalving => two_levels(plan, role),
        Algorithm::OneShot | Algorithm::OneShotTree => one_shot::program(n, algorithm, role.position),
        Algorithm::TwoShot | Algorithm::TwoShotTree => two_shot::program(n, algorithm, role.position),
        Algorithm::Direct | Algorithm::DirectTree => direct::program(collective, algorithm, n, role),
        Algorithm::Dissemination => dissemination::program(n),
        Algorithm::Binomial => match collective {
            Collective::Gather | Collective::Scatter => binomial_blocks::program(collective, n, role),
            _ => binomial::program(collective, role),
        },
        Algorithm::RecursiveDoubling if collective == Collective::AllReduce => {
            recursive_doubling::program(n, role)
        }
        Algorithm::RecursiveDoubling => doubling_blocks::program(collective, n, role),
        Algorithm::Bruck if collective == Collective::AllToAll => bruck_all_to_all::program(n),
        Algorithm::Bruck => bruck::program(collective, n),
        Algorithm::Rabenseifner => rabenseifner::program(n),
        Algorithm::DoubleTree => double_tree::program(n, role.nodes),
        Algorithm::Swing => swing::program(n, role.standing, role.site.unwrap_or_default()),
        Algorithm::Pat => pat::program(collective, n, role.bundle),
        // Its plans hold their program.
        Algorithm::User => alone::program(collective, algorithm.name()),
    }
}

fn two_levels(plan: &Plan, role: Role) -> Program {
    let (name, n) = (plan.algorithm().name(), plan.n());
    let halving = plan.algorithm() == Algorithm::TwoLevelHalving;
    let rails = if halving { two_level::Rails::Halving } else { two_level::Rails::Ring };
    match (plan.nodes(), role.site) {
        (Some(sizes), Some(node)) => two_level::uneven(name, rails, sizes, node),
        // One node is a ring, and so are as many as ranks.
        _ if role.bundle == n || role.bundle == 1 && !halving => ring::all_reduce(name),
        _ => two_level::even(name, rails, n, role.bundle),
    }
}

fn duty(collective: Collective, algorithm: Algorithm, n: u32, place: Place, root: Place) -> Duty {
    let chained = algorithm == Algorithm::Ring;
    // Data runs away from the root of a broadcast and towards the root of a reduce.
    let far_end = match collective {
        Collective::Reduce => (root.0 + 1) % n,
        _ => (root.0 + n - 1) % n,
    };
    match () {
        // Trees of all-reduce have a root all the same.
        () if algorithm == Algorithm::Binomial && !collective.rooted() && place.0 == 0 => Duty::Root,
        () if !collective.rooted() || algorithm == Algorithm::User => Duty::Member,
        () if place == root => Duty::Root,
        () if chained && place.0 != far_end => Duty::Inner,
        () => Duty::Leaf,
    }
}
