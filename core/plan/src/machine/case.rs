//! The setting of a walk: who runs what over which data.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::fault::Fault;
use super::tally::mix;
use crate::collective::{Collective, Shape};
use crate::ids::{Place, Rank};
use crate::layout::{Layout, Tables};
use crate::plan::{Cast, Plan};
use crate::program::{Checked, ExtentOf};

/// What a walk depends on besides the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Number of ranks.
    pub n: u32,
    /// Elements of the vector, or of each block.
    pub count: usize,
    /// Number of channels.
    pub channels: u16,
    /// Most elements that one Move moves.
    pub chunk_count: usize,
    /// Elements that boundaries between chunks are rounded to.
    pub grain_count: usize,
    /// Slots of each edge.
    pub slots: usize,
    /// The root's rank, or the receiver of a message.
    pub root: Rank,
    /// How the user's buffers lie.
    pub buffers: Buffers,
    /// Blocks of different lengths, for the v-collectives.
    pub blocks: Option<Arc<Blocks>>,
}

/// How a rank's send and receive buffers lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffers {
    /// Apart.
    Apart,
    /// Overlapping, as the collective allows.
    InPlace,
}

/// The block tables of all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocks {
    ranks: Vec<RankBlocks>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct RankBlocks {
    send_counts: Vec<usize>,
    send_offsets: Vec<usize>,
    recv_counts: Vec<usize>,
    recv_offsets: Vec<usize>,
}

/// The plan's programs, seated.
#[derive(Clone, Debug)]
pub struct Stage<'a> {
    /// The setting.
    pub case: &'a Case,
    /// What is computed.
    pub collective: Collective,
    plan: &'a Plan,
    cast: Cast,
    /// For a message, the sender and its program.
    sender: Option<(Rank, Checked)>,
}

/// A rank that takes part.
#[derive(Clone, Copy, Debug)]
pub struct Seat<'a> {
    /// Its program.
    pub program: &'a Checked,
    /// The root's rank, or the peer's of a message.
    pub root: Rank,
}

impl<'a> Stage<'a> {
    /// Casts a plan. A message goes from the rank after `case.root` to `case.root`, whichever of its two
    /// sides the plan is for.
    pub fn new(plan: &'a Plan, case: &'a Case) -> Result<Stage<'a>, Fault> {
        let cast = plan.cast(plan.place_of(case.root));
        let cast = cast.map_err(|e| Fault::Unchecked { reason: e.to_string().into() })?;
        Stage::with_cast(plan, case, cast)
    }

    /// As [`Stage::new`] with programs of the caller's, one for each place.
    pub fn with_cast(plan: &'a Plan, case: &'a Case, cast: Cast) -> Result<Stage<'a>, Fault> {
        let mut stage = Stage { case, collective: plan.collective(), plan, cast, sender: None };
        if plan.collective().is_message() {
            let sender = Rank((case.root.0 + 1) % case.n.max(1));
            let other =
                |collective| Plan::new(collective, plan.algorithm(), case.n).map(|p| p.cast(Place(0)));
            let (Some(Ok(send)), Some(Ok(recv))) = (other(Collective::Send), other(Collective::Recv)) else {
                return Err(Fault::Unchecked { reason: "no program for the other side".into() });
            };
            let (send, recv) = if plan.collective() == Collective::Send {
                (stage.cast.clone(), recv)
            } else {
                (send, stage.cast.clone())
            };
            stage.sender = send.program(Place(0)).map(|program| (sender, program.clone()));
            stage.cast = recv;
            stage.collective = Collective::Recv;
        }
        Ok(stage)
    }

    /// The rank's program, if it takes part.
    pub fn seat(&self, rank: Rank) -> Option<Seat<'_>> {
        match &self.sender {
            Some((sender, program)) if rank == *sender => Some(Seat { program, root: self.case.root }),
            Some((sender, _)) if rank == self.case.root => {
                Some(Seat { program: self.cast.program(self.plan.place_of(rank))?, root: *sender })
            }
            Some(_) => None,
            None => {
                Some(Seat { program: self.cast.program(self.plan.place_of(rank))?, root: self.case.root })
            }
        }
    }

    /// The rank's data.
    pub fn layout(&self, rank: Rank) -> Layout<'_> {
        Layout {
            collective: self.collective_of(rank),
            n: self.case.n,
            rank,
            count: self.case.count,
            tables: self.case.blocks.as_ref().and_then(|blocks| blocks.tables(rank)),
            order: self.plan.order(),
            channels: self.case.channels,
            chunk_count: self.case.chunk_count,
            grain_count: self.case.grain_count,
        }
    }

    /// Whose data counts as the root's: the sender's for a message.
    pub fn source(&self) -> Rank {
        self.sender.as_ref().map_or(self.case.root, |(sender, _)| *sender)
    }

    /// The blocks of a rank's send buffer that it brings: offset and length of each.
    pub fn input_blocks(&self, rank: Rank) -> Vec<(usize, usize)> {
        let collective = self.collective_of(rank);
        let brings = self.takes_part(rank) && collective.contributes(rank, self.source());
        if brings { self.blocks(rank, collective.input(), ExtentOf::SendBlock) } else { Vec::new() }
    }

    /// The blocks of a rank's receive buffer that it gets.
    pub fn output_blocks(&self, rank: Rank) -> Vec<(usize, usize)> {
        let collective = self.collective_of(rank);
        let gets = self.takes_part(rank) && collective.receives(rank, self.source());
        if gets { self.blocks(rank, collective.output(), ExtentOf::RecvBlock) } else { Vec::new() }
    }

    /// Where the receive buffer starts, in elements after the start of the send buffer, when they
    /// overlap; negative if it starts before.
    pub fn overlap(&self, rank: Rank) -> Option<isize> {
        if self.case.buffers == Buffers::Apart {
            return None;
        }
        let collective = self.collective_of(rank);
        let both = collective.contributes(rank, self.source()) && collective.receives(rank, self.source());
        let layout = self.layout(rank);
        both.then(|| match (collective.input(), collective.output()) {
            (Shape::Own, Shape::PerRank) => -(layout.output_offset(rank) as isize),
            (Shape::PerRank, Shape::Own) => layout.input_offset(rank) as isize,
            _ => 0,
        })
    }

    /// Everybody, or the two ends of a message.
    fn takes_part(&self, rank: Rank) -> bool {
        self.sender.as_ref().is_none_or(|(sender, _)| rank == *sender || rank == self.case.root)
    }

    fn collective_of(&self, rank: Rank) -> Collective {
        match &self.sender {
            Some((sender, _)) if rank == *sender => Collective::Send,
            _ => self.collective,
        }
    }

    fn blocks(&self, rank: Rank, shape: Shape, side: ExtentOf) -> Vec<(usize, usize)> {
        let layout = self.layout(rank);
        let offset = |r| match side {
            ExtentOf::SendBlock => layout.input_offset(r),
            _ => layout.output_offset(r),
        };
        match shape {
            Shape::None => Vec::new(),
            Shape::Whole => vec![(0, layout.count)],
            Shape::Own => vec![(0, layout.block_count(side, self.own_index(rank)))],
            Shape::PerRank => {
                (0..layout.n).map(Rank).map(|r| (offset(r), layout.block_count(side, r))).collect()
            }
        }
    }

    /// Whose entry of the tables tells the length of the own block.
    fn own_index(&self, rank: Rank) -> Rank {
        match self.collective {
            Collective::GatherV | Collective::ScatterV => self.case.root,
            _ => rank,
        }
    }
}

impl Blocks {
    /// Tables of blocks from `least` to about twice `count` elements with gaps between them, for a
    /// v-collective.
    pub fn uneven(collective: Collective, n: u32, count: usize, least: usize, root: Rank) -> Blocks {
        let length = |from, to| length(from, to, count).max(least);
        let table = |len: &dyn Fn(u32) -> usize| (0..n).map(len).collect::<Vec<usize>>();
        let ranks = (0..n)
            .map(|rank| {
                let only = |peer: u32, length: usize| table(&|p| if p == peer { length } else { 0 });
                let zero = || vec![0; n as usize];
                let all = || table(&|p| length(p, 0));
                let own = length(rank, 0);
                let (send, recv) = match collective {
                    Collective::AllGatherV => (only(rank, own), all()),
                    Collective::ReduceScatterV => (all(), only(rank, own)),
                    Collective::AllToAllV => {
                        (table(&|p| length(rank, p + 1)), table(&|p| length(p, rank + 1)))
                    }
                    Collective::GatherV => (only(root.0, own), if rank == root.0 { all() } else { zero() }),
                    _ => (if rank == root.0 { all() } else { zero() }, only(root.0, own)),
                };
                RankBlocks {
                    send_offsets: offsets(&send, rank),
                    recv_offsets: offsets(&recv, rank + 1),
                    send_counts: send,
                    recv_counts: recv,
                }
            })
            .collect();
        Blocks { ranks }
    }

    fn tables(&self, rank: Rank) -> Option<Tables<'_>> {
        let RankBlocks { send_counts, send_offsets, recv_counts, recv_offsets } =
            self.ranks.get(rank.index())?;
        Some(Tables { send_counts, send_offsets, recv_counts, recv_offsets })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { n, count, channels, chunk_count, grain_count, slots, root, buffers, blocks } = self;
        write!(f, "n={n} count={count} channels={channels} slots={slots} chunk={chunk_count}")?;
        write!(f, " grain={grain_count} root={root}")?;
        if *buffers == Buffers::InPlace {
            f.write_str(" in place")?;
        }
        if blocks.is_some() { f.write_str(" uneven") } else { Ok(()) }
    }
}

/// The length of the block from one rank for another: 0, `count`, or something up to twice it.
fn length(from: u32, to: u32, count: usize) -> usize {
    let random = mix(u64::from(from) << 32 | u64::from(to)) as usize;
    match random % 4 {
        0 => 0,
        1 => count,
        _ => (random >> 8) % (2 * count + 1),
    }
}

/// Block offsets with a gap after every third block.
fn offsets(counts: &[usize], salt: u32) -> Vec<usize> {
    let mut at = (salt % 2) as usize;
    let place = |(index, count): (usize, &usize)| {
        let start = at;
        at += count + usize::from((index + salt as usize).is_multiple_of(3));
        start
    };
    counts.iter().enumerate().map(place).collect()
}
