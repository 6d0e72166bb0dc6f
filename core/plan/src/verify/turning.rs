//! Whether all ranks do the same turned round: a property of a program's text.
//!
//! It holds where every peer, block and chunk is the rank's place plus something that is equal on all ranks,
//! modulo n, and every length, cell and loop bound is equal on all ranks. Then one rank can be walked for all.

use alloc::vec::Vec;

use crate::collective::{Collective, Shape};
use crate::machine::Case;
use crate::machine::provenance::{Turned, Turning};
use crate::plan::{Cast, Plan};
use crate::program::{Expr, ExprId, Extent, Instruction, Loop, Modulo, Operand, Program};

/// How data turns in a case; `None` where it cannot: with a root, orders, blocks of different lengths, or
/// passes that do not have n chunks, or one.
pub(super) fn turning(plan: &Plan, cast: &Cast, case: &Case) -> Option<Turning> {
    let (n, collective) = (plan.n(), plan.collective());
    let message = collective.is_message();
    if n < 2 || collective.rooted() || message || plan.order().is_some() || case.blocks.is_some() {
        return None;
    }
    let chunks = cast.programs.first()?.chunks.of(n);
    let data = match collective.input() {
        Shape::PerRank => Turned::Blocks,
        Shape::Whole if chunks == 1 => Turned::Nothing,
        Shape::Whole if chunks != n as usize => return None,
        Shape::Whole if !case.count.is_multiple_of(chunks * case.chunk_count) => return None,
        Shape::Whole => Turned::Chunks(case.chunk_count),
        _ => Turned::Nothing,
    };
    (case.channels == 1).then_some(Turning { n, data })
}

/// Whether all places run one text that says the same to each of them.
pub(super) fn turns(collective: Collective, cast: &Cast, turning: Turning) -> bool {
    let [program] = &cast.programs[..] else { return false };
    let of_blocks = [collective.input(), collective.output()].contains(&Shape::PerRank);
    let placed = of_blocks || matches!(turning.data, Turned::Chunks(_));
    Reader { program, kinds: kinds(&program.exprs), placed }.turns()
}

/// How an expression depends on the rank's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Not at all.
    Equal,
    /// It is the place and something equal, modulo n.
    Place,
    /// Likewise, before the reduction.
    Sum,
    /// In another way.
    Other,
}

fn kinds(exprs: &[Expr]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::with_capacity(exprs.len());
    for expr in exprs {
        let of = |id: ExprId| kinds.get(usize::from(id)).copied().unwrap_or(Kind::Other);
        let all_equal = || expr.references().all(|id| of(id) == Kind::Equal);
        let kind = match *expr {
            Expr::Affine { root, .. } if root != 0 => Kind::Other,
            Expr::Affine { rank: 0, .. } => Kind::Equal,
            Expr::Affine { rank: 1, modulo: Modulo::N, .. } => Kind::Place,
            Expr::Affine { rank: 1, constant: 0, n: 0, vars: [0, 0, 0], .. } => Kind::Place,
            Expr::Affine { rank: 1, .. } => Kind::Sum,
            Expr::Affine { .. } => Kind::Other,
            Expr::Add(a, b) => match (of(a), of(b)) {
                (Kind::Equal, Kind::Equal) => Kind::Equal,
                (Kind::Place | Kind::Sum, Kind::Equal) | (Kind::Equal, Kind::Place | Kind::Sum) => Kind::Sum,
                _ => Kind::Other,
            },
            Expr::ModN(a) if matches!(of(a), Kind::Place | Kind::Sum) => Kind::Place,
            _ if all_equal() => Kind::Equal,
            _ => Kind::Other,
        };
        kinds.push(kind);
    }
    kinds
}

struct Reader<'a> {
    program: &'a Program,
    kinds: Vec<Kind>,
    /// Whether chunks or blocks have places.
    placed: bool,
}

impl Reader<'_> {
    fn turns(&self) -> bool {
        self.program.instructions.iter().all(|instruction| match instruction {
            Instruction::Move(m) => {
                let operands = m.inputs.as_slice().iter().chain(m.outputs.as_slice());
                operands.into_iter().all(|id| self.operand(usize::from(*id)))
                    && self.extent(m.extent, self.program.touches_user(m))
            }
            Instruction::Loop(Loop { from, to, .. }) => from.rank == 0 && to.rank == 0,
            Instruction::Signal(id) | Instruction::Wait(id) => self.operand(usize::from(*id)),
            Instruction::EndLoop | Instruction::Barrier | Instruction::End => true,
        })
    }

    fn operand(&self, id: usize) -> bool {
        match self.program.operands.get(id) {
            Some(Operand::Input(block) | Operand::Output(block)) => {
                block.is_none_or(|block| self.is(block, Kind::Place))
            }
            Some(Operand::Scratch(cell)) => self.is(*cell, Kind::Equal),
            Some(Operand::Receive(edge) | Operand::Send(edge)) => self.is(edge.peer, Kind::Place),
            None => false,
        }
    }

    /// Spans end at the last chunk or block unless they are counted around it.
    fn extent(&self, extent: Extent, user: bool) -> bool {
        let equal = |expr: ExprId| self.is(expr, Kind::Equal);
        let around = extent.stride.is_some() || equal(extent.index) && !(self.placed && user);
        let length = extent.span.is_none_or(|span| equal(span) && around);
        let spread = extent.stride.is_none_or(|stride| equal(stride.every) && stride.run.is_none_or(equal));
        // In slots and cells every chunk or block is like any other.
        let index = match (self.placed, user) {
            (true, true) => self.is(extent.index, Kind::Place),
            (true, false) => true,
            (false, _) => equal(extent.index),
        };
        length && spread && index
    }

    fn is(&self, expr: ExprId, kind: Kind) -> bool {
        self.kinds.get(usize::from(expr)) == Some(&kind)
    }
}
