//! Levels of determinism: how much may change without changing the bits of a result.

use crate::algo::{Algorithm, pairs};
use crate::collective::Collective;
use crate::plan::Plan;

/// How much may change without changing the bits of a result. Each level promises what those before it do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// Nothing: equal calls on equal ranks give equal bits.
    #[default]
    Run,
    /// Count, offset, channels and chunks.
    Size,
    /// The algorithm as well, and the number of ranks where each has folded as many contributions, a power of
    /// two of them, in the canonical tree.
    World,
}

impl Level {
    /// Every level, the weakest first.
    pub const ALL: [Level; 3] = [Level::Run, Level::Size, Level::World];

    /// The name used in settings and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Run => "run",
            Level::Size => "size",
            Level::World => "world",
        }
    }
}

impl Algorithm {
    /// What the results of a collective among `n` ranks promise. [`crate::verify`] checks it by the order
    /// in which every element was folded.
    pub const fn level(self, collective: Collective, n: u32) -> Level {
        if !collective.reduces() || n < 2 {
            return Level::World;
        }
        match self {
            // A chain folds all elements in one order; a ring starts each chunk elsewhere.
            Algorithm::Ring if matches!(collective, Collective::Reduce) => Level::Size,
            // Two trees differ, and where a block is folded on its way it is its owner's place that counts.
            Algorithm::Ring
            | Algorithm::Bruck
            | Algorithm::Rabenseifner
            | Algorithm::DoubleTree
            | Algorithm::TwoLevel
            | Algorithm::TwoLevelHalving
            | Algorithm::Swing
            | Algorithm::Pat => Level::Run,
            Algorithm::RecursiveDoubling if matches!(collective, Collective::ReduceScatter) => Level::Run,
            // Up to three contributions have one order and one tree.
            Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct if n > 3 => Level::Size,
            Algorithm::RecursiveDoubling if !pairs::in_tree(n) => Level::Size,
            // What a program of the user's promises is found by verifying it.
            Algorithm::User => Level::Run,
            // It counts from the root.
            Algorithm::Binomial if matches!(collective, Collective::Reduce) => Level::Size,
            _ => Level::World,
        }
    }
}

impl Plan {
    /// What its results promise. Places that are not ranks depend on the machine, which `World` does not.
    pub fn level(&self) -> Level {
        let level = self.algorithm().level(self.collective(), self.n());
        let by_place = self.collective().reduces() && self.order().is_some();
        if by_place { level.min(Level::Size) } else { level }
    }
}
