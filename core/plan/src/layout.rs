//! How user data is cut: channels, shares, passes, chunks and blocks.
//!
//! A **whole** vector of `count` elements is cut into one contiguous part for each channel and lane
//! share, on grain boundaries. A part is worked through in passes of k chunks of `chunk_count`
//! elements; in the last pass a chunk is the remaining elements divided by k, rounded up to the
//! grain, so late chunks may be short or empty.
//!
//! **Blocks** (one for each rank) are cut one by one in the same way, with k = 1: pass p covers
//! elements `p·chunk_count ..` of each block's part.

use core::ops::Range;

use crate::collective::{Collective, Shape};
use crate::ids::{Channel, Rank};
use crate::program::{Chunks, ExtentOf};

/// The data of one call as a rank sees it.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// What is computed.
    pub collective: Collective,
    /// Number of ranks.
    pub n: u32,
    /// This rank.
    pub rank: Rank,
    /// Elements of the vector, or of each block when `tables` is `None`.
    pub count: usize,
    /// Counts and offsets of each rank's block, for the v-collectives.
    pub tables: Option<Tables<'a>>,
    /// The rank at each place; `None` when they are equal.
    pub order: Option<&'a [Rank]>,
    /// Number of channels.
    pub channels: u16,
    /// Most elements that one Move moves.
    pub chunk_count: usize,
    /// Elements that boundaries between chunks are rounded to; at least 1.
    pub grain_count: usize,
}

/// Block tables of a v-collective, indexed by rank. A rank that does not know an entry has 0 there.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// Elements this rank sends to each rank, or contributes from each block.
    pub send_counts: &'a [usize],
    /// Where each block starts in the send buffer, in elements.
    pub send_offsets: &'a [usize],
    /// Elements this rank receives from each rank, or of each block.
    pub recv_counts: &'a [usize],
    /// Where each block starts in the receive buffer, in elements.
    pub recv_offsets: &'a [usize],
}

/// The part of a whole vector, or of every block, that one lane of one channel works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// This part's index.
    pub index: usize,
    /// Number of parts.
    pub parts: usize,
}

/// A whole vector's chunks in one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PassChunks {
    start: usize,
    end: usize,
    chunk_count: usize,
}

impl PassChunks {
    /// The elements of chunk `index`; empty if the pass ends before it.
    pub fn chunk(&self, index: usize) -> Range<usize> {
        let start = self.start.saturating_add(self.chunk_count.saturating_mul(index)).min(self.end);
        start..(start + self.chunk_count).min(self.end)
    }
}

impl<'a> Layout<'a> {
    /// A layout of equal blocks or a whole vector, in rank order, on one channel.
    pub fn even(collective: Collective, n: u32, rank: Rank, count: usize, chunk_count: usize) -> Layout<'a> {
        Layout {
            collective,
            n,
            rank,
            count,
            tables: None,
            order: None,
            channels: 1,
            chunk_count,
            grain_count: 1,
        }
    }

    /// The rank at a place.
    pub fn rank_at(&self, place: i64) -> Rank {
        match self.order {
            None => Rank(place as u32),
            Some(order) => order.get(place as usize).copied().unwrap_or(Rank(u32::MAX)),
        }
    }

    /// The place of a rank.
    pub fn place_of(&self, rank: Rank) -> u32 {
        match self.order {
            None => rank.0,
            Some(order) => order.iter().position(|r| *r == rank).unwrap_or(0) as u32,
        }
    }

    /// The part that a share of a channel works on.
    pub fn part(&self, channel: Channel, share: u8, shares: u8) -> Part {
        let shares = usize::from(shares.max(1));
        Part {
            index: channel.index() * shares + usize::from(share),
            parts: usize::from(self.channels.max(1)) * shares,
        }
    }

    /// Passes that a lane makes over its part.
    pub fn passes(&self, part: Part, chunks: Chunks) -> usize {
        if self.is_whole() {
            let range = self.cut(self.count, part);
            return range.len().div_ceil((chunks.of(self.n) * self.chunk_count).max(1));
        }
        self.longest_part(part).div_ceil(self.chunk_count.max(1))
    }

    /// The chunks of pass `pass` of a whole vector.
    pub fn pass_chunks(&self, part: Part, chunks: Chunks, pass: usize) -> PassChunks {
        let range = self.cut(self.count, part);
        let k = chunks.of(self.n).max(1);
        let start = (range.start + pass * k * self.chunk_count).min(range.end);
        let remaining = range.end - start;
        let chunk_count = if remaining >= k * self.chunk_count {
            self.chunk_count
        } else {
            remaining.div_ceil(k).next_multiple_of(self.grain_count.max(1)).min(self.chunk_count)
        };
        PassChunks { start, end: range.end.min(start + k * self.chunk_count), chunk_count }
    }

    /// The elements of rank `rank`'s block that pass `pass` covers, relative to the block's start.
    pub fn block_pass(&self, of: ExtentOf, rank: Rank, part: Part, pass: usize) -> Range<usize> {
        let range = self.cut(self.block_count(of, rank), part);
        let start = (range.start + pass * self.chunk_count).min(range.end);
        start..(start + self.chunk_count).min(range.end)
    }

    /// Elements of a rank's block on the send or receive side.
    pub fn block_count(&self, of: ExtentOf, rank: Rank) -> usize {
        match (self.tables, of) {
            (None, _) => self.count,
            (Some(tables), ExtentOf::SendBlock) => entry(tables.send_counts, rank),
            (Some(tables), _) => entry(tables.recv_counts, rank),
        }
    }

    /// Where a rank's block starts in the send buffer.
    pub fn input_offset(&self, rank: Rank) -> usize {
        match (self.collective.input(), self.tables) {
            (Shape::PerRank, None) => rank.index() * self.count,
            (Shape::PerRank, Some(tables)) => entry(tables.send_offsets, rank),
            _ => 0,
        }
    }

    /// Where a rank's block starts in the receive buffer.
    pub fn output_offset(&self, rank: Rank) -> usize {
        match (self.collective.output(), self.tables) {
            (Shape::PerRank, None) => rank.index() * self.count,
            (Shape::PerRank, Some(tables)) => entry(tables.recv_offsets, rank),
            _ => 0,
        }
    }

    /// The offset `places` blocks on from one in a user buffer of even blocks, around the end of the order.
    pub fn blocks_on(&self, offset: usize, places: i64) -> usize {
        if places == 0 || self.count == 0 {
            return offset;
        }
        let (rank, within) = (offset / self.count, offset % self.count);
        let place = (i64::from(self.place_of(Rank(rank as u32))) + places).rem_euclid(i64::from(self.n));
        self.rank_at(place).index() * self.count + within
    }

    /// Whether user data is a whole vector rather than blocks.
    pub fn is_whole(&self) -> bool {
        matches!(self.collective.input(), Shape::Whole)
    }

    fn cut(&self, count: usize, part: Part) -> Range<usize> {
        if part.parts == 1 {
            return 0..count;
        }
        let grain = self.grain_count.max(1);
        let grains = count.div_ceil(grain);
        let edge = |index: usize| (grains * index / part.parts * grain).min(count);
        edge(part.index)..edge(part.index + 1)
    }

    /// The longest part that any block has.
    fn longest_part(&self, part: Part) -> usize {
        match self.tables {
            None => self.cut(self.count, part).len(),
            Some(tables) => tables.counts().map(|count| self.cut(count, part).len()).max().unwrap_or(0),
        }
    }
}

impl Tables<'_> {
    fn counts(&self) -> impl Iterator<Item = usize> {
        self.send_counts.iter().chain(self.recv_counts).copied()
    }
}

fn entry(table: &[usize], rank: Rank) -> usize {
    table.get(rank.index()).copied().unwrap_or(0)
}
