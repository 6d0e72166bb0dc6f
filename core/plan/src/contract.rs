//! The contract of each collective: who brings what, and who must hold what afterwards.
//!
//! Algorithms never see this; the verifier judges them by it.

use crate::collective::{Collective, Shape};
use crate::ids::Rank;

/// What one block of a rank's receive buffer must become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// Whose contributions are in it.
    pub from: Contributors,
    /// Which block of their send buffers it is made of; 0 where those have only one.
    pub block: u32,
}

/// Whose contributions an element is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contributors {
    /// Every rank's, folded.
    All,
    /// One rank's alone.
    One(Rank),
}

impl Collective {
    /// Whether `rank` brings data. For [`Collective::Send`], `root` is the receiver and everybody
    /// else may be the sender; likewise for [`Collective::Recv`].
    pub fn contributes(self, rank: Rank, root: Rank) -> bool {
        match self {
            Collective::Broadcast | Collective::Scatter | Collective::ScatterV => rank == root,
            _ => self.input() != Shape::None,
        }
    }

    /// Whether `rank` gets a result.
    pub fn receives(self, rank: Rank, root: Rank) -> bool {
        match self {
            Collective::Reduce | Collective::Gather | Collective::GatherV => rank == root,
            _ => self.output() != Shape::None,
        }
    }

    /// What block `block` of `rank`'s receive buffer must become; `root` is the sender for
    /// [`Collective::Recv`]. Meaningless for a rank that receives nothing.
    pub fn due(self, rank: Rank, block: u32, root: Rank) -> Due {
        use Contributors::{All, One};
        match self {
            Collective::AllReduce | Collective::Reduce => Due { from: All, block: 0 },
            Collective::ReduceScatter | Collective::ReduceScatterV => Due { from: All, block: rank.0 },
            Collective::Broadcast | Collective::Recv | Collective::Send | Collective::Barrier => {
                Due { from: One(root), block: 0 }
            }
            Collective::AllGather | Collective::AllGatherV | Collective::Gather | Collective::GatherV => {
                Due { from: One(Rank(block)), block: 0 }
            }
            Collective::AllToAll | Collective::AllToAllV => Due { from: One(Rank(block)), block: rank.0 },
            Collective::Scatter | Collective::ScatterV => Due { from: One(root), block: rank.0 },
        }
    }
}
