//! One collective call of all ranks together, and which data ends up where.

use ccl_plan::{Collective, Dtype, Rank, ReduceOp};

/// One collective call of all ranks together.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What is computed.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: Dtype,
    /// How contributions are combined, if they are.
    pub op: ReduceOp,
    /// Number of ranks.
    pub n: u32,
    /// The root, if there is one.
    pub root: Rank,
    /// What contributions to a pre-multiplied sum are multiplied by.
    pub scalar: f64,
    /// Lengths.
    pub counts: Counts<'a>,
}

/// Lengths in elements.
#[derive(Clone, Copy, Debug)]
pub enum Counts<'a> {
    /// Of the vector, or of every block.
    Even(usize),
    /// Of each rank's block, by rank.
    PerRank(&'a [usize]),
    /// Of an all-to-all's block from rank f to rank t, at `f * n + t`.
    PerPair(&'a [usize]),
}

/// A part of a receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Whose data it is.
    pub source: Source,
    /// Where it starts in the send buffer, in elements.
    pub start: usize,
    /// Its length in elements.
    pub count: usize,
}

/// Whose data a [`Piece`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A copy of one rank's.
    Rank(Rank),
    /// The reduction of every rank's.
    Every,
}

impl Case<'_> {
    /// The parts of a rank's receive buffer in order; `None` if the collective leaves it alone.
    /// Point-to-point calls and barriers leave all alone.
    pub fn pieces(&self, rank: Rank) -> Option<Vec<Piece>> {
        use Collective as C;

        if matches!(self.collective, C::Reduce | C::Gather | C::GatherV) && rank != self.root {
            return None;
        }
        let whole = |source, count| vec![Piece { source, start: 0, count }];
        let own_block = |source| {
            vec![Piece { source, start: self.offset(self.root, rank), count: self.count(self.root, rank) }]
        };
        let ranks = (0..self.n).map(Rank);
        match self.collective {
            C::AllReduce | C::Reduce => Some(whole(Source::Every, self.count(rank, rank))),
            C::Broadcast => Some(whole(Source::Rank(self.root), self.count(rank, rank))),
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => Some(
                ranks
                    .map(|from| Piece { source: Source::Rank(from), start: 0, count: self.count(from, from) })
                    .collect(),
            ),
            C::ReduceScatter | C::ReduceScatterV => Some(own_block(Source::Every)),
            C::Scatter | C::ScatterV => Some(own_block(Source::Rank(self.root))),
            C::AllToAll | C::AllToAllV => Some(
                ranks
                    .map(|from| Piece {
                        source: Source::Rank(from),
                        start: self.offset(from, rank),
                        count: self.count(from, rank),
                    })
                    .collect(),
            ),
            C::Send | C::Recv | C::Barrier => None,
        }
    }

    /// Elements of a rank's send buffer; 0 if the collective does not read it.
    pub fn send_count(&self, rank: Rank) -> usize {
        use Collective as C;

        match self.collective {
            C::Broadcast | C::Scatter | C::ScatterV if rank != self.root => 0,
            C::AllReduce | C::Reduce | C::Broadcast => self.count(rank, rank),
            C::AllGather | C::AllGatherV | C::Gather | C::GatherV => self.count(rank, rank),
            C::ReduceScatter | C::ReduceScatterV | C::Scatter | C::ScatterV | C::AllToAll | C::AllToAllV => {
                self.offset(rank, Rank(self.n))
            }
            C::Send | C::Recv | C::Barrier => 0,
        }
    }

    /// Elements of a rank's receive buffer; 0 if the collective leaves it alone.
    pub fn recv_count(&self, rank: Rank) -> usize {
        self.pieces(rank).map_or(0, |pieces| pieces.iter().map(|piece| piece.count).sum())
    }

    /// Elements of the block from one rank for another.
    fn count(&self, from: Rank, to: Rank) -> usize {
        match self.counts {
            Counts::Even(count) => count,
            Counts::PerRank(counts) => counts[to.index()],
            Counts::PerPair(counts) => counts[from.index() * self.n as usize + to.index()],
        }
    }

    /// Where that block starts in the send buffer.
    fn offset(&self, from: Rank, to: Rank) -> usize {
        (0..to.0).map(|before| self.count(from, Rank(before))).sum()
    }
}
