//! The program: what one rank does in one collective, as data.
//!
//! A program has one data instruction, [`Move`], and a handful of control instructions. It names
//! no pointer, no count, no dtype and no reduce operation: those bind at launch. Peers and blocks
//! are [`Expr`]essions over the rank's place, the root, n and the loop variables, so the same text
//! serves every rank of a role and every size.
//!
//! ```text
//! all_reduce.ring      k = n chunks per pass; r = place in the ring order; i = loop index
//!                      send                           -> next   chunk r-1
//!   for i in 2..n      recv_reduce_send          prev -> next   chunk r-i
//!                      recv_reduce_copy_send     prev -> next   chunk r
//!   for i in 1..n-1    recv_copy_send            prev -> next   chunk r-i
//!                      recv                      prev ->        chunk r+1
//! ```
//!
//! **Execution.** A program has lanes; each lane is a sequential list of instructions over its own
//! share of the data, repeated once for each *pass*. A [`Move`] waits until each of its receive
//! edges holds a slot and each of its send edges has a free one, folds its inputs left to right,
//! stores the result to every output, then posts and releases. A Move of an empty range is skipped
//! by every rank that would take part in it: both ends of an edge agree on every length.

mod binary;
pub mod builder;
mod canonical;
mod check;
mod expr;
mod name;
mod text;

use alloc::string::String;
use alloc::vec::Vec;

pub use self::binary::{BinaryError, INSTRUCTION_BYTES, OPERAND_BYTES};
pub use self::check::{CheckError, Checked, MAX_BINARY_BYTES, MAX_EXPR_TERMS, MAX_RANKS};
pub use self::expr::{Bound, Expr, ExprId, Modulo, Vars};
pub use self::text::TextError;

use crate::collective::Collective;

/// One rank's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The algorithm's name with its collective, as in `all_reduce.ring`. Not part of the binary
    /// form.
    pub name: String,
    /// What the program computes.
    pub collective: Collective,
    /// Chunks per pass when the user buffers are whole vectors; 1 × n for blocks.
    pub chunks: Chunks,
    /// Chunk-sized cells of library memory that the program uses, for each lane.
    pub scratch_chunks: u16,
    /// The lanes, each a range of `instructions`.
    pub lanes: Vec<Lane>,
    /// All instructions, lane by lane.
    pub instructions: Vec<Instruction>,
    /// Operands, named by index.
    pub operands: Vec<Operand>,
    /// Expressions, named by index.
    pub exprs: Vec<Expr>,
}

/// k, the chunks that one pass of a whole vector is cut into: `constant + n × per_rank`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunks {
    /// Chunks whatever n is.
    pub constant: u16,
    /// Chunks for each rank.
    pub per_rank: u16,
}

impl Chunks {
    /// One chunk per pass.
    pub const ONE: Chunks = Chunks { constant: 1, per_rank: 0 };
    /// As many chunks per pass as there are ranks.
    pub const N: Chunks = Chunks { constant: 0, per_rank: 1 };

    /// k for `n` ranks.
    pub const fn of(self, n: u32) -> usize {
        self.constant as usize + self.per_rank as usize * n as usize
    }
}

/// A sequential part of a program, over its own share of each channel's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Index of the first instruction.
    pub start: u16,
    /// Index after the last instruction.
    pub end: u16,
    /// Which share of the channel's data the lane works on, `0..shares`.
    pub share: u8,
    /// How many shares the channel's data is cut into. Lanes of one share work on the same data.
    pub shares: u8,
}

/// One step of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instruction {
    /// Move data: the only instruction that touches it.
    Move(Move),
    /// Repeat the instructions up to the matching [`Instruction::EndLoop`] for `var` in `from..to`.
    Loop(Loop),
    /// The end of the innermost open loop.
    EndLoop,
    /// Post an empty slot to a send edge.
    Signal(OperandId),
    /// Consume an empty slot from a receive edge.
    Wait(OperandId),
    /// Wait until every lane of this rank's program has arrived here.
    Barrier,
    /// The end of the lane.
    End,
}

/// A counted loop, at most three deep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loop {
    /// Which loop variable counts, `0..3`; equals the nesting depth.
    pub var: u8,
    /// First value.
    pub from: Bound,
    /// First value that is not taken.
    pub to: Bound,
    /// Index of the matching [`Instruction::EndLoop`].
    pub end: u16,
}

/// Fold up to four inputs, store to up to four outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Read in order and folded left to right.
    pub inputs: Operands,
    /// All get the result.
    pub outputs: Operands,
    /// How many elements, and which.
    pub extent: Extent,
    /// Whether user inputs are read for the first time (a scalar is applied), and whether the
    /// result is complete (an average is divided).
    pub finish: Finish,
}

/// What is applied beside the fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Finish {
    /// Apply the reduce operation's scalar to every user-input operand of this Move.
    pub pre: bool,
    /// The result is the complete reduction: divide an average.
    pub post: bool,
}

/// Which range a [`Move`] covers.
///
/// With a span the Move covers the chunks or blocks from `index` up to `index + span`, cut at the
/// last one, one after the other: nothing if the span is not positive or the index lies behind the
/// last. In scratch they take consecutive cells. With a [`Stride`] it covers some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// What the index means.
    pub of: ExtentOf,
    /// The chunk of a whole vector, or the place whose block is meant.
    pub index: ExprId,
    /// How many chunks or blocks; one if `None`.
    pub span: Option<ExprId>,
    /// Which blocks of the span, if not all.
    pub stride: Option<Stride>,
}

/// Some blocks of a span: the first `run` of `every` so many.
///
/// The span is counted around the end of the order, so it is not cut there, but it has at most n blocks;
/// where `every` is negative it runs backwards. In a Move that reads and writes neither user buffer it is cells of
/// scratch that are chosen so; in others they are consecutive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stride {
    /// From the first block of a run to that of the next: its absolute value, at least 1.
    pub every: ExprId,
    /// The blocks of a run, from 1 up to all; one if `None`.
    pub run: Option<ExprId>,
}

/// Where a [`Move`]'s length comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ExtentOf {
    /// A chunk of the whole vector.
    Chunk = 0,
    /// The block of this rank's send side for a place.
    SendBlock = 1,
    /// The block of this rank's receive side for a place.
    RecvBlock = 2,
}

/// Index of an operand in [`Program::operands`].
pub type OperandId = u8;

/// Up to four operand indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operands {
    len: u8,
    ids: [OperandId; MOVE_OPERANDS],
}

impl Operands {
    /// The operands in order; `None` if there are more than four.
    pub fn new(ids: &[OperandId]) -> Option<Operands> {
        let mut operands = Operands { len: u8::try_from(ids.len()).ok()?, ids: [0; MOVE_OPERANDS] };
        operands.ids.get_mut(..ids.len())?.copy_from_slice(ids);
        Some(operands)
    }

    /// The operands in order.
    pub fn as_slice(&self) -> &[OperandId] {
        &self.ids[..usize::from(self.len)]
    }
}

/// A place that data comes from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The caller's send buffer: the block of a place, or the Move's own index when `None`.
    Input(Option<ExprId>),
    /// The caller's receive buffer, likewise.
    Output(Option<ExprId>),
    /// A chunk-sized cell of the lane's scratch.
    Scratch(ExprId),
    /// The receive side of the edge from a place.
    Receive(Edge),
    /// The send side of the edge to a place.
    Send(Edge),
}

/// The far end of an edge. Edges of one pair of ranks and one channel differ by tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The peer's place.
    pub peer: ExprId,
    /// Tells parallel edges apart.
    pub tag: u8,
}

/// Most inputs, and most outputs, of one Move.
pub(crate) const MOVE_OPERANDS: usize = 4;
/// At most this many loops may be nested.
pub const MAX_LOOP_DEPTH: usize = 3;
