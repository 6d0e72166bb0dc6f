//! The collectives: what every rank holds before and after.

use core::fmt;
use core::str::FromStr;

use crate::dtype::UnknownName;

/// What is asked of the ranks of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Collective {
    /// Every rank gets the reduction of all vectors.
    AllReduce = 0,
    /// The root gets the reduction of all vectors.
    Reduce = 1,
    /// Every rank gets the root's vector.
    Broadcast = 2,
    /// Every rank gets every rank's block.
    AllGather = 3,
    /// Rank r gets the reduction of everybody's block r.
    ReduceScatter = 4,
    /// Rank r gets everybody's block r.
    AllToAll = 5,
    /// The root gets every rank's block.
    Gather = 6,
    /// Rank r gets the root's block r.
    Scatter = 7,
    /// All-gather with blocks of different lengths.
    AllGatherV = 8,
    /// Reduce-scatter with blocks of different lengths.
    ReduceScatterV = 9,
    /// All-to-all with blocks of different lengths.
    AllToAllV = 10,
    /// Gather with blocks of different lengths.
    GatherV = 11,
    /// Scatter with blocks of different lengths.
    ScatterV = 12,
    /// One message to a peer.
    Send = 13,
    /// One message from a peer.
    Recv = 14,
    /// Nobody leaves before everybody has entered.
    Barrier = 15,
}

/// How a user buffer is seen by a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// No buffer.
    None,
    /// One vector, cut into chunks.
    Whole,
    /// One block for each rank.
    PerRank,
    /// The rank's own block.
    Own,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Collective; 16] = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllGatherV,
        Collective::ReduceScatterV,
        Collective::AllToAllV,
        Collective::GatherV,
        Collective::ScatterV,
        Collective::Send,
        Collective::Recv,
        Collective::Barrier,
    ];

    /// The name used in tables, texts and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllGatherV => "all_gather_v",
            Collective::ReduceScatterV => "reduce_scatter_v",
            Collective::AllToAllV => "all_to_all_v",
            Collective::GatherV => "gather_v",
            Collective::ScatterV => "scatter_v",
            Collective::Send => "send",
            Collective::Recv => "recv",
            Collective::Barrier => "barrier",
        }
    }

    /// How the send buffer is seen.
    pub const fn input(self) -> Shape {
        match self {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => Shape::Whole,
            Collective::AllGather | Collective::AllGatherV => Shape::Own,
            Collective::Gather | Collective::GatherV | Collective::Send => Shape::Own,
            Collective::ReduceScatter | Collective::ReduceScatterV => Shape::PerRank,
            Collective::AllToAll | Collective::AllToAllV => Shape::PerRank,
            Collective::Scatter | Collective::ScatterV => Shape::PerRank,
            Collective::Recv | Collective::Barrier => Shape::None,
        }
    }

    /// How the receive buffer is seen.
    pub const fn output(self) -> Shape {
        match self {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => Shape::Whole,
            Collective::AllGather | Collective::AllGatherV => Shape::PerRank,
            Collective::Gather | Collective::GatherV => Shape::PerRank,
            Collective::AllToAll | Collective::AllToAllV => Shape::PerRank,
            Collective::ReduceScatter | Collective::ReduceScatterV | Collective::Recv => Shape::Own,
            Collective::Scatter | Collective::ScatterV => Shape::Own,
            Collective::Send | Collective::Barrier => Shape::None,
        }
    }

    /// Whether contributions are combined.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::Reduce
                | Collective::ReduceScatter
                | Collective::ReduceScatterV
        )
    }

    /// Whether it is one side of a message between two ranks, and no call that all ranks make.
    pub const fn is_message(self) -> bool {
        matches!(self, Collective::Send | Collective::Recv)
    }

    /// Whether one rank is distinguished.
    pub const fn rooted(self) -> bool {
        matches!(
            self,
            Collective::Reduce
                | Collective::Broadcast
                | Collective::Gather
                | Collective::Scatter
                | Collective::GatherV
                | Collective::ScatterV
        )
    }

    /// Whether blocks may have different lengths.
    pub const fn uneven(self) -> bool {
        matches!(
            self,
            Collective::AllGatherV
                | Collective::ReduceScatterV
                | Collective::AllToAllV
                | Collective::GatherV
                | Collective::ScatterV
        )
    }

    /// The collective with this discriminant.
    pub fn from_code(code: u8) -> Option<Collective> {
        Collective::ALL.iter().copied().find(|collective| *collective as u8 == code)
    }
}

impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Collective::ALL.iter().copied().find(|collective| collective.name() == text).ok_or(UnknownName)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
