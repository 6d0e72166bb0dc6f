//! What can be wrong with a plan, and where it showed.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::ids::{Channel, Rank};
use crate::level::Level;

/// A walk that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Where; `None` when the walk as a whole is at fault.
    pub at: Option<At>,
    /// What.
    pub fault: Fault,
}

/// A position in a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The rank.
    pub rank: Rank,
    /// The channel.
    pub channel: Channel,
    /// Index of the lane in the rank's program.
    pub lane: usize,
    /// Index of the instruction in the rank's program.
    pub instruction: usize,
    /// The pass over the data, from 0.
    pub pass: usize,
    /// The loop variables.
    pub loop_vars: [i64; 3],
}

/// An edge, by its ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EdgeName {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The channel.
    pub channel: Channel,
    /// Which of the parallel edges.
    pub tag: u8,
}

/// One lane of a deadlock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Who waits.
    pub at: At,
    /// On which edge; `None` at a barrier.
    pub on: Option<EdgeName>,
    /// For a filled slot rather than an empty one.
    pub for_slot: bool,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Lanes wait for each other.
    Deadlock {
        /// How many lanes cannot go on.
        blocked: usize,
        /// Who waits for whom, until it comes round; at most eight.
        chain: Vec<Waiting>,
    },
    /// A slot has another length than its receiver expects.
    Length {
        /// The edge.
        edge: EdgeName,
        /// Elements the receiver moves.
        expected: usize,
        /// Elements in the slot.
        found: usize,
    },
    /// Slots were filled that nobody emptied.
    Leftover {
        /// The edge.
        edge: EdgeName,
        /// How many.
        slots: usize,
    },
    /// Two lanes use the same side of an edge.
    SharedEdge {
        /// The edge.
        edge: EdgeName,
    },
    /// A peer that is the rank itself, or nobody.
    Peer {
        /// The peer.
        peer: Rank,
    },
    /// An instruction that needs an edge has none.
    NotAnEdge,
    /// A cell that the scratch does not have.
    Cell {
        /// Which.
        cell: usize,
    },
    /// A cell is read before it is written.
    UndefinedCell {
        /// Which.
        cell: usize,
    },
    /// A cell is read with another length than it was written with.
    CellLength {
        /// Which.
        cell: usize,
        /// Elements read.
        expected: usize,
        /// Elements written.
        found: usize,
    },
    /// Memory outside the blocks that the rank brings or gets.
    Range {
        /// `send` or `receive`.
        buffer: &'static str,
        /// First element of the access.
        offset: usize,
        /// Length of the access.
        count: usize,
    },
    /// Memory is read before anything was stored there.
    Undefined {
        /// First such element of the receive buffer.
        offset: usize,
    },
    /// Two lanes of a rank touch an element, one of them writing, with no barrier between.
    Race {
        /// The element's index in the buffer.
        offset: usize,
    },
    /// Two ranks that stand for all others do not send the same turned round.
    Unlike {
        /// One rank.
        rank: Rank,
        /// The other.
        other: Rank,
    },
    /// A contribution is folded in twice.
    Duplicate {
        /// What both sides hold.
        both: Box<str>,
    },
    /// Elements of different origin are folded.
    Origin {
        /// Block and element on the left.
        left: (u32, u64),
        /// Block and element on the right.
        right: (u32, u64),
    },
    /// The scalar was applied to none or to some of what is folded, or twice.
    Pre,
    /// A complete reduction is completed again or folded further.
    Post,
    /// An element of a result is not what the collective says.
    Wrong(Box<Wrong>),
    /// Ranks fold the same element in different orders, so their bits differ.
    Disagree {
        /// The rank that differs from the first.
        rank: Rank,
        /// The element.
        element: usize,
    },
    /// Elements are folded in orders that promise less than the algorithm states.
    Level {
        /// What it states.
        stated: Level,
        /// What the orders promise.
        found: Level,
    },
    /// The program could not be checked.
    Unchecked {
        /// Why.
        reason: Box<str>,
    },
}

/// An element that is not what the collective says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// The rank.
    pub rank: Rank,
    /// Block of the receive buffer.
    pub block: u32,
    /// Element of the block.
    pub element: usize,
    /// What it must be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}: {}", self.fault),
            None => self.fault.fmt(f),
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { rank, channel, lane, instruction, pass, loop_vars: [i, j, k] } = self;
        write!(f, "rank {rank}, channel {channel}, lane {lane}, instruction {instruction}, pass {pass}")?;
        write!(f, ", i={i} j={j} k={k}")
    }
}

impl fmt::Display for EdgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EdgeName { from, to, channel, tag } = self;
        write!(f, "{from} -> {to} (channel {channel}, tag {tag})")
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.on {
            None => write!(f, "{} waits at a barrier", self.at),
            Some(edge) if self.for_slot => write!(f, "{} waits for {} to send on {edge}", self.at, edge.from),
            Some(edge) => write!(f, "{} waits for {} to take from {edge}", self.at, edge.to),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { rank, block, element, expected, found } = self;
        write!(f, "rank {rank}, block {block}, element {element}: expected {expected}, found {found}")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Deadlock { blocked, chain } => {
                write!(f, "deadlock: {blocked} lanes cannot go on")?;
                chain.iter().try_for_each(|waiting| write!(f, "\n  {waiting}"))
            }
            Fault::Length { edge, expected, found } => {
                write!(f, "edge {edge}: expected a slot of {expected} elements, found {found}")
            }
            Fault::Leftover { edge, slots } => {
                write!(f, "edge {edge}: expected it empty at the end, found {slots} slots")
            }
            Fault::SharedEdge { edge } => write!(f, "edge {edge}: expected one lane, found a second"),
            Fault::Peer { peer } => write!(f, "expected another rank as peer, found {peer}"),
            Fault::NotAnEdge => f.write_str("expected an edge, found none"),
            Fault::Cell { cell } => write!(f, "expected a cell of the scratch, found cell {cell}"),
            Fault::UndefinedCell { cell } => write!(f, "cell {cell} is read before it is written"),
            Fault::CellLength { cell, expected, found } => {
                write!(f, "cell {cell}: expected {expected} elements, found {found}")
            }
            Fault::Range { buffer, offset, count } => {
                write!(f, "elements {offset}..{} are not the rank's in the {buffer} buffer", offset + count)
            }
            Fault::Undefined { offset } => {
                write!(f, "element {offset} of the receive buffer is read before it is written")
            }
            Fault::Race { offset } => write!(f, "two lanes touch element {offset}, one of them writing"),
            Fault::Unlike { rank, other } => {
                write!(
                    f,
                    "expected rank {rank} to send what rank {other} does turned round, found something else"
                )
            }
            Fault::Duplicate { both } => write!(f, "{both} folded in twice"),
            Fault::Origin { left, right } => write!(
                f,
                "element {} of block {} folded with element {} of block {}",
                left.1, left.0, right.1, right.0
            ),
            Fault::Pre => f.write_str("a contribution did not get its scalar exactly once"),
            Fault::Post => f.write_str("a complete reduction is folded or completed again"),
            Fault::Wrong(wrong) => wrong.fmt(f),
            Fault::Disagree { rank, element } => {
                write!(f, "element {element}: rank {rank} folds in another order than the first rank")
            }
            Fault::Level { stated, found } => write!(
                f,
                "expected an order of folds as determinism level {} wants it, found {}",
                stated.name(),
                found.name()
            ),
            Fault::Unchecked { reason } => f.write_str(reason),
        }
    }
}
