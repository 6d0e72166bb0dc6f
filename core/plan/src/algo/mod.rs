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
mod direct;
mod dissemination;
mod double_tree;
mod in_order;
mod one_shot;
pub(crate) mod pairs;
mod rabenseifner;
mod recursive_doubling;
mod ring;
mod two_shot;

use core::fmt;
use core::str::FromStr;

use self::pairs::{Pairs, Standing};
use crate::collective::Collective;
use crate::dtype::UnknownName;
use crate::ids::Place;
use crate::program::{MAX_RANKS, Program};

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
    /// Whole vectors are exchanged at distances 1, 2, 4 and so on.
    RecursiveDoubling = 6,
    /// Ranges of blocks travel at distances 1, 2, 4 and so on.
    Bruck = 7,
    /// A reduce-scatter at distances …, 4, 2, 1, then an all-gather at distances 1, 2, 4, ….
    Rabenseifner = 8,
    /// Two binary trees, each for half of the vector, up and down at the same time.
    DoubleTree = 9,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 10] = [
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
        }
    }

    /// The most peers that a rank has edges with among `n` ranks.
    pub const fn peers(self, n: u32) -> u32 {
        match self {
            Algorithm::Ring => 2,
            Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct => n.saturating_sub(1),
            Algorithm::Dissemination => 2 * rounds(n),
            Algorithm::Binomial | Algorithm::RecursiveDoubling => rounds(n) + 1,
            Algorithm::Bruck | Algorithm::Rabenseifner => 2 * rounds(n),
            Algorithm::DoubleTree => 5,
        }
    }

    /// The most ranks that it serves. A span of half of all blocks must fit a slot.
    pub const fn most_ranks(self, collective: Collective) -> u32 {
        match (self, collective) {
            (Algorithm::Bruck | Algorithm::Rabenseifner, _)
            | (Algorithm::Binomial, Collective::Gather | Collective::Scatter) => 4096,
            _ => MAX_RANKS,
        }
    }

    /// Whether the order in which an element's contributions are folded depends on where the element
    /// lies, and so the bits of a result on counts, chunks and channels.
    pub const fn order_moves(self, collective: Collective) -> bool {
        // A chain folds all elements in one order; a ring starts each chunk elsewhere, two trees differ, and
        // where a block is folded on its way to its owner it is the owner's place that counts.
        let chain = matches!(self, Algorithm::Ring) && matches!(collective, Collective::Reduce);
        let moves = matches!(
            self,
            Algorithm::Ring | Algorithm::Bruck | Algorithm::Rabenseifner | Algorithm::DoubleTree
        );
        collective.reduces() && moves && !chain
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
                Algorithm::DoubleTree,
                Algorithm::Rabenseifner,
                Algorithm::RecursiveDoubling,
                Algorithm::OneShot,
                Algorithm::TwoShot,
            ];
            ALL_REDUCE
        }
        Collective::Reduce | Collective::Broadcast => {
            &[Algorithm::Ring, Algorithm::Binomial, Algorithm::Direct]
        }
        Collective::AllGather | Collective::ReduceScatter => {
            &[Algorithm::Ring, Algorithm::Bruck, Algorithm::Direct]
        }
        Collective::AllGatherV | Collective::ReduceScatterV => &[Algorithm::Ring, Algorithm::Direct],
        Collective::Gather | Collective::Scatter => &[Algorithm::Binomial, Algorithm::Direct],
        Collective::AllToAll
        | Collective::AllToAllV
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

/// The role of `place`.
pub(crate) fn role(collective: Collective, algorithm: Algorithm, n: u32, place: Place, root: Place) -> Role {
    let duty = duty(collective, algorithm, n, place, root);
    let folds = matches!(
        (collective, algorithm, duty),
        (Collective::AllReduce, Algorithm::OneShot | Algorithm::TwoShot, _)
            | (Collective::ReduceScatter | Collective::ReduceScatterV, Algorithm::Direct, _)
            | (Collective::Reduce, Algorithm::Direct, Duty::Root)
    );
    let position = if folds && n > 1 { in_order::position(n, place) } else { Position::Any };
    let children = match algorithm {
        Algorithm::Binomial => binomial::children(n, place, root),
        _ => 0,
    };
    let standing = match algorithm {
        Algorithm::RecursiveDoubling => Pairs::of(n).standing(place),
        _ => Standing::Single,
    };
    let nodes = match algorithm {
        Algorithm::DoubleTree if n > 1 => double_tree::nodes(n, place),
        _ => Default::default(),
    };
    Role { duty, position, children, standing, nodes }
}

/// The program of a role; the caller has made sure that the algorithm suits the collective.
pub(crate) fn program(collective: Collective, algorithm: Algorithm, n: u32, role: Role) -> Program {
    if n == 1 && !matches!(collective, Collective::Send | Collective::Recv) {
        return alone::program(collective, algorithm.name());
    }
    match algorithm {
        Algorithm::Ring => ring::program(collective, role.duty),
        Algorithm::OneShot => one_shot::program(n, role.position),
        Algorithm::TwoShot => two_shot::program(n, role.position),
        Algorithm::Direct => direct::program(collective, n, role),
        Algorithm::Dissemination => dissemination::program(n),
        Algorithm::Binomial => match collective {
            Collective::Gather | Collective::Scatter => binomial_blocks::program(collective, n, role),
            _ => binomial::program(collective, role),
        },
        Algorithm::RecursiveDoubling => recursive_doubling::program(n, role),
        Algorithm::Bruck => bruck::program(collective, n),
        Algorithm::Rabenseifner => rabenseifner::program(n),
        Algorithm::DoubleTree => double_tree::program(n, role.nodes),
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
        () if !collective.rooted() => Duty::Member,
        () if place == root => Duty::Root,
        () if chained && place.0 != far_end => Duty::Inner,
        () => Duty::Leaf,
    }
}
