//! Builds programs from sentences.
//!
//! ```
//! use ccl_plan::Collective;
//! use ccl_plan::program::Chunks;
//! use ccl_plan::program::builder::{Builder, N, R, from, input, output, to};
//!
//! // Every rank passes its block on around a ring.
//! let mut b = Builder::new("ring", Collective::AllGather, Chunks::ONE);
//! b.lane(|l| {
//!     l.fold([input()]).into([output(), to(R + 1)]).recv_block(R);
//!     l.each(1, N - 1, |l, i| l.fold([from(R - 1)]).into([output(), to(R + 1)]).recv_block(R - i));
//!     l.fold([from(R - 1)]).into([output()]).recv_block(R + 1);
//! });
//! let program = b.finish();
//! assert_eq!(program.instructions.len(), 5);
//! ```
//!
//! Places, blocks and chunks are [`Term`]s. A term that is not a place by itself (a constant, r, the
//! root, n−1 or a loop variable) is taken modulo n. Equal expressions and operands are stored once.
//! The builder never fails: what does not fit the format is refused by [`Program::check`].

use alloc::format;
use alloc::vec::Vec;
use core::ops::{Add, Neg, Sub};

use super::{
    Bound, Chunks, Edge, Expr, ExprId, Extent, ExtentOf, Finish, Instruction, Lane, Loop, Modulo, Move,
    Operand, OperandId, Operands, Program, Stride,
};
use crate::collective::Collective;

/// A sum of place, root, n, loop variables and a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    constant: i32,
    rank: i8,
    root: i8,
    n: i8,
    vars: [i16; 3],
}

/// The rank's own place.
pub const R: Term = Term { rank: 1, ..ZERO };
/// The root's place, or the peer's of a send or receive.
pub const ROOT: Term = Term { root: 1, ..ZERO };
/// The number of ranks.
pub const N: Term = Term { n: 1, ..ZERO };

/// A place, block, chunk or cell: a term, or an expression made with [`Arithmetic`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// A term.
    Term(Term),
    /// An expression of the program being built.
    Expr(ExprId),
}

/// Where a Move's data comes from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot(Space);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Space {
    Input(Option<Index>),
    Output(Option<Index>),
    Scratch(Index),
    Receive(Index, u8),
    Send(Index, u8),
}

/// The send buffer, at the Move's own chunk or block.
pub const fn input() -> Spot {
    Spot(Space::Input(None))
}

/// The receive buffer, at the Move's own chunk or block.
pub const fn output() -> Spot {
    Spot(Space::Output(None))
}

/// A cell of scratch.
pub fn scratch(cell: impl Into<Index>) -> Spot {
    Spot(Space::Scratch(cell.into()))
}

/// The receive side of the edge from a place.
pub fn from(peer: impl Into<Index>) -> Spot {
    Spot(Space::Receive(peer.into(), 0))
}

/// The send side of the edge to a place.
pub fn to(peer: impl Into<Index>) -> Spot {
    Spot(Space::Send(peer.into(), 0))
}

impl Spot {
    /// The same buffer at the block of another place.
    pub fn block(self, place: impl Into<Index>) -> Spot {
        match self.0 {
            Space::Input(_) => Spot(Space::Input(Some(place.into()))),
            Space::Output(_) => Spot(Space::Output(Some(place.into()))),
            _ => self,
        }
    }

    /// A parallel edge.
    pub fn tag(self, tag: u8) -> Spot {
        match self.0 {
            Space::Receive(peer, _) => Spot(Space::Receive(peer, tag)),
            Space::Send(peer, _) => Spot(Space::Send(peer, tag)),
            _ => self,
        }
    }
}

/// A program under construction.
#[derive(Debug)]
pub struct Builder {
    program: Program,
}

impl Builder {
    /// An empty program named `<collective>.<algorithm>`.
    pub fn new(algorithm: &str, collective: Collective, chunks: Chunks) -> Builder {
        Builder {
            program: Program {
                name: format!("{collective}.{algorithm}"),
                collective,
                chunks,
                scratch_chunks: 0,
                lanes: Vec::new(),
                instructions: Vec::new(),
                operands: Vec::new(),
                exprs: Vec::new(),
            },
        }
    }

    /// Gives every lane this many cells of scratch.
    pub fn scratch_chunks(&mut self, cells: u16) {
        self.program.scratch_chunks = cells;
    }

    /// Adds a lane that works on all of the channel's data.
    pub fn lane(&mut self, build: impl FnOnce(&mut LaneBuilder<'_>)) {
        self.share(0, 1, build);
    }

    /// Adds a lane that works on one of `shares` parts of the channel's data.
    pub fn share(&mut self, share: u8, shares: u8, build: impl FnOnce(&mut LaneBuilder<'_>)) {
        let start = narrow(self.program.instructions.len());
        build(&mut LaneBuilder { program: &mut self.program, depth: 0 });
        let end = narrow(self.program.instructions.len());
        self.program.lanes.push(Lane { start, end, share, shares });
    }

    /// The program, in [`Program::canonical`] form.
    pub fn finish(self) -> Program {
        self.program.canonical()
    }
}

/// What makes expressions that a [`Term`] cannot say: a [`Builder`] or, where loop variables occur, a
/// [`LaneBuilder`].
pub trait Arithmetic {
    /// Stores an expression.
    fn expr(&mut self, expr: Expr) -> Index;

    /// The expression of an index.
    fn id(&mut self, index: Index) -> ExprId;

    /// A term as it stands, not modulo n.
    fn plain(&mut self, term: impl Into<Term>) -> Index {
        let Term { constant, rank, root, n, vars } = term.into();
        self.expr(Expr::Affine { constant, rank, root, n, vars, modulo: Modulo::None })
    }

    /// The lowest set bit.
    fn low_bit(&mut self, of: impl Into<Index>) -> Index {
        let of = self.id(of.into());
        self.expr(Expr::LowBit(of))
    }

    /// 2 to the power of a value.
    fn power_of_two(&mut self, exponent: impl Into<Index>) -> Index {
        let exponent = self.id(exponent.into());
        self.expr(Expr::Pow2(exponent))
    }

    /// The zero bits below the lowest set one.
    fn zeros(&mut self, of: impl Into<Index>) -> Index {
        let of = self.id(of.into());
        self.expr(Expr::Zeros(of))
    }

    /// The remainder by n, never negative.
    fn mod_n(&mut self, of: impl Into<Index>) -> Index {
        let of = self.id(of.into());
        self.expr(Expr::ModN(of))
    }

    /// A multiple.
    fn times(&mut self, of: impl Into<Index>, factor: i32) -> Index {
        let of = self.id(of.into());
        self.expr(Expr::Mul(of, factor))
    }

    /// The quotient rounded down.
    fn over(&mut self, of: impl Into<Index>, divisor: i32) -> Index {
        let of = self.id(of.into());
        self.expr(Expr::Div(of, divisor))
    }

    /// The remainder, never negative.
    fn modulo(&mut self, of: impl Into<Index>, divisor: i32) -> Index {
        let of = self.id(of.into());
        self.expr(Expr::Mod(of, divisor))
    }

    /// The sum of two.
    fn sum(&mut self, left: impl Into<Index>, right: impl Into<Index>) -> Index {
        let (left, right) = (self.id(left.into()), self.id(right.into()));
        self.expr(Expr::Add(left, right))
    }

    /// The first less the second.
    fn difference(&mut self, left: impl Into<Index>, right: impl Into<Index>) -> Index {
        let left = self.id(left.into());
        let minus = self.times(right, -1);
        self.sum(Index::Expr(left), minus)
    }

    /// The smaller of two.
    fn min(&mut self, left: impl Into<Index>, right: impl Into<Index>) -> Index {
        let (left, right) = (self.id(left.into()), self.id(right.into()));
        self.expr(Expr::Min(left, right))
    }

    /// The larger of two.
    fn max(&mut self, left: impl Into<Index>, right: impl Into<Index>) -> Index {
        let (left, right) = (self.id(left.into()), self.id(right.into()));
        self.expr(Expr::Max(left, right))
    }

    /// Bitwise exclusive or of two.
    fn xor(&mut self, left: impl Into<Index>, right: impl Into<Index>) -> Index {
        let (left, right) = (self.id(left.into()), self.id(right.into()));
        self.expr(Expr::Xor(left, right))
    }

    /// Bitwise and of two.
    fn and(&mut self, left: impl Into<Index>, right: impl Into<Index>) -> Index {
        let (left, right) = (self.id(left.into()), self.id(right.into()));
        self.expr(Expr::And(left, right))
    }
}

impl Arithmetic for Builder {
    fn expr(&mut self, expr: Expr) -> Index {
        Index::Expr(intern(&mut self.program.exprs, expr))
    }

    fn id(&mut self, index: Index) -> ExprId {
        expr(&mut self.program, index)
    }
}

impl Arithmetic for LaneBuilder<'_> {
    fn expr(&mut self, expr: Expr) -> Index {
        Index::Expr(intern(&mut self.program.exprs, expr))
    }

    fn id(&mut self, index: Index) -> ExprId {
        expr(self.program, index)
    }
}

/// A lane under construction.
#[derive(Debug)]
pub struct LaneBuilder<'a> {
    program: &'a mut Program,
    depth: u8,
}

impl LaneBuilder<'_> {
    /// Repeats `body` for a loop variable in `start..end`.
    pub fn each(
        &mut self,
        start: impl Into<Term>,
        end: impl Into<Term>,
        body: impl FnOnce(&mut LaneBuilder<'_>, Term),
    ) {
        let (from, to) = (start.into().bound(), end.into().bound());
        let mark = self.program.instructions.len();
        self.program.instructions.push(Instruction::EndLoop);
        let inner = &mut LaneBuilder { program: self.program, depth: self.depth.saturating_add(1) };
        body(inner, Term::var(self.depth));
        let end = narrow(self.program.instructions.len());
        self.program.instructions[mark] = Instruction::Loop(Loop { var: self.depth, from, to, end });
        self.program.instructions.push(Instruction::EndLoop);
    }

    /// Begins a Move that folds `inputs` from left to right.
    pub fn fold<const I: usize>(&mut self, inputs: [Spot; I]) -> Sentence<'_> {
        self.fold_all(&inputs)
    }

    /// Begins a Move that folds a list of inputs from left to right.
    pub fn fold_all(&mut self, inputs: &[Spot]) -> Sentence<'_> {
        let inputs = self.operands(inputs);
        Sentence {
            lane: self.program,
            inputs,
            outputs: Operands::default(),
            finish: Finish::default(),
            span: None,
            stride: None,
        }
    }

    /// Posts an empty slot.
    pub fn signal(&mut self, edge: Spot) {
        let id = operand(self.program, edge);
        self.program.instructions.push(Instruction::Signal(id));
    }

    /// Consumes an empty slot.
    pub fn wait(&mut self, edge: Spot) {
        let id = operand(self.program, edge);
        self.program.instructions.push(Instruction::Wait(id));
    }

    /// Meets the other lanes of the rank's program.
    pub fn barrier(&mut self) {
        self.program.instructions.push(Instruction::Barrier);
    }

    /// Ends the pass here.
    pub fn end(&mut self) {
        self.program.instructions.push(Instruction::End);
    }

    fn operands(&mut self, spots: &[Spot]) -> Operands {
        let ids: Vec<OperandId> = spots.iter().map(|spot| operand(self.program, *spot)).collect();
        Operands::new(&ids).unwrap_or_default()
    }
}

/// A Move under construction; ends with the data it covers.
#[derive(Debug)]
#[must_use = "a Move is added by saying which chunk or block it covers"]
pub struct Sentence<'a> {
    lane: &'a mut Program,
    inputs: Operands,
    outputs: Operands,
    finish: Finish,
    span: Option<ExprId>,
    stride: Option<Stride>,
}

impl Sentence<'_> {
    /// Applies the reduce operation's scalar to the user inputs.
    pub fn pre(mut self) -> Self {
        self.finish.pre = true;
        self
    }

    /// Completes the reduction.
    pub fn post(mut self) -> Self {
        self.finish.post = true;
        self
    }

    /// Applies what `finish` says.
    pub fn finish(mut self, finish: Finish) -> Self {
        self.finish = finish;
        self
    }

    /// Stores the result in each of `outputs`.
    pub fn into<const O: usize>(self, outputs: [Spot; O]) -> Self {
        self.into_all(&outputs)
    }

    /// Stores the result in each of a list of outputs.
    pub fn into_all(mut self, outputs: &[Spot]) -> Self {
        let ids: Vec<OperandId> = outputs.iter().map(|spot| operand(self.lane, *spot)).collect();
        self.outputs = Operands::new(&ids).unwrap_or_default();
        self
    }

    /// Covers as many chunks or blocks as `span` says, from the one that is named on.
    pub fn span(mut self, span: impl Into<Index>) -> Self {
        self.span = Some(expr(self.lane, span.into()));
        self
    }

    /// Of the span, counted around the end of the order, only the first of every so many blocks.
    pub fn every(mut self, every: impl Into<Index>) -> Self {
        self.stride = Some(Stride { every: expr(self.lane, every.into()), run: None });
        self
    }

    /// The first few of every so many.
    pub fn by(mut self, run: impl Into<Index>) -> Self {
        let run = expr(self.lane, run.into());
        self.stride = self.stride.map(|stride| Stride { run: Some(run), ..stride });
        self
    }

    /// For a chunk of the whole vector.
    pub fn chunk(self, chunk: impl Into<Index>) {
        self.cover(ExtentOf::Chunk, chunk.into());
    }

    /// For the send side's block of a place.
    pub fn send_block(self, place: impl Into<Index>) {
        self.cover(ExtentOf::SendBlock, place.into());
    }

    /// For the receive side's block of a place.
    pub fn recv_block(self, place: impl Into<Index>) {
        self.cover(ExtentOf::RecvBlock, place.into());
    }

    /// For any extent.
    pub fn cover(self, of: ExtentOf, index: Index) {
        let index = expr(self.lane, index);
        let Sentence { inputs, outputs, finish, span, stride, .. } = self;
        let extent = Extent { of, index, span, stride };
        self.lane.instructions.push(Instruction::Move(Move { inputs, outputs, extent, finish }));
    }
}

impl Term {
    const fn var(depth: u8) -> Term {
        let mut term = ZERO;
        if depth < 3 {
            term.vars[depth as usize] = 1;
        }
        term
    }

    /// As an expression, modulo n unless the term is a place by itself.
    fn expr(self) -> Expr {
        let Term { constant, rank, root, n, vars } = self;
        let loop_var = (0..3).any(|depth| self == Term::var(depth));
        let is_constant = constant >= 0 && self == Term::from(constant);
        let is_place = loop_var || is_constant || [R, ROOT, N - 1].contains(&self);
        let modulo = if is_place { Modulo::None } else { Modulo::N };
        Expr::Affine { constant, rank, root, n, vars, modulo }
    }

    /// As a loop bound; what a bound cannot say becomes one that the checker refuses.
    fn bound(self) -> Bound {
        match (i8::try_from(self.vars[0]), i8::try_from(self.vars[1])) {
            (Ok(v0), Ok(v1)) if self.vars[2] == 0 && self.root == 0 => {
                Bound { constant: self.constant, n: self.n, rank: self.rank, vars: [v0, v1] }
            }
            _ => Bound::constant(i32::MAX),
        }
    }
}

impl Term {
    /// Its value, if it depends on nothing.
    pub(crate) fn as_constant(self) -> Option<i32> {
        (self == Term::from(self.constant)).then_some(self.constant)
    }
}

impl From<i32> for Term {
    fn from(constant: i32) -> Term {
        Term { constant, ..ZERO }
    }
}

impl From<i32> for Index {
    fn from(constant: i32) -> Index {
        Index::Term(constant.into())
    }
}

impl From<Term> for Index {
    fn from(term: Term) -> Index {
        Index::Term(term)
    }
}

impl<T: Into<Term>> Add<T> for Term {
    type Output = Term;

    fn add(self, other: T) -> Term {
        let other = other.into();
        Term {
            constant: self.constant.wrapping_add(other.constant),
            rank: self.rank.wrapping_add(other.rank),
            root: self.root.wrapping_add(other.root),
            n: self.n.wrapping_add(other.n),
            vars: core::array::from_fn(|k| self.vars[k].wrapping_add(other.vars[k])),
        }
    }
}

impl<T: Into<Term>> Sub<T> for Term {
    type Output = Term;

    fn sub(self, other: T) -> Term {
        self.add(-other.into())
    }
}

impl Neg for Term {
    type Output = Term;

    fn neg(self) -> Term {
        Term {
            constant: self.constant.wrapping_neg(),
            rank: self.rank.wrapping_neg(),
            root: self.root.wrapping_neg(),
            n: self.n.wrapping_neg(),
            vars: self.vars.map(i16::wrapping_neg),
        }
    }
}

fn operand(program: &mut Program, spot: Spot) -> OperandId {
    let operand = match spot.0 {
        Space::Input(block) => Operand::Input(block.map(|block| expr(program, block))),
        Space::Output(block) => Operand::Output(block.map(|block| expr(program, block))),
        Space::Scratch(cell) => Operand::Scratch(expr(program, cell)),
        Space::Receive(peer, tag) => Operand::Receive(Edge { peer: expr(program, peer), tag }),
        Space::Send(peer, tag) => Operand::Send(Edge { peer: expr(program, peer), tag }),
    };
    u8::try_from(intern(&mut program.operands, operand)).unwrap_or(u8::MAX)
}

fn expr(program: &mut Program, index: Index) -> ExprId {
    match index {
        Index::Term(term) => intern(&mut program.exprs, term.expr()),
        Index::Expr(id) => id,
    }
}

fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> u16 {
    let found = list.iter().position(|known| *known == item);
    narrow(found.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    }))
}

fn narrow(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

const ZERO: Term = Term { constant: 0, rank: 0, root: 0, n: 0, vars: [0; 3] };
