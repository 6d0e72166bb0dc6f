//! The checker: the only way from a [`Program`] to what executors take.
//!
//! It promises that a [`Checked`] program can be walked by any rank of any role without a bounds
//! check on indices: operands, expressions and loops are well formed, every peer and block lies in
//! `0..n`, every chunk in `0..k`, every cell in the scratch. It does not promise that the program
//! computes its collective: see [`crate::verify`].

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use super::expr::{power, zeros};
use super::{
    Bound, Edge, Expr, ExprId, ExtentOf, Instruction, Lane, Loop, MAX_LOOP_DEPTH, Modulo, Move, Operand,
    OperandId, Program, Stride,
};
use crate::collective::Shape;

/// A program that passed [`Program::check`]. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    program: Arc<Program>,
    n: u32,
    widest: usize,
}

impl Checked {
    /// The number of ranks the program was checked for.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// The most chunks or blocks that one Move covers: at least 1.
    pub fn widest(&self) -> usize {
        self.widest
    }
}

impl Deref for Checked {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

/// Why a program is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckError {
    /// Index of the offending instruction; `None` for the program as a whole.
    pub instruction: Option<usize>,
    /// What a program must have there.
    pub expected: String,
    /// What this one has.
    pub found: String,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(instruction) = self.instruction {
            write!(f, "instruction {instruction}: ")?;
        }
        write!(f, "expected {}, found {}", self.expected, self.found)
    }
}

impl core::error::Error for CheckError {}

impl Program {
    /// Checks the program for `n` ranks.
    pub fn check(self, n: u32) -> Result<Checked, CheckError> {
        let mut checker = Checker::new(&self, n);
        checker.program()?;
        let widest = usize::try_from(checker.widest).unwrap_or(usize::MAX);
        Ok(Checked { program: Arc::new(self), n, widest })
    }
}

struct Checker<'a> {
    program: &'a Program,
    n: i64,
    /// Edges seen so far with the lane that uses them.
    used: Vec<(Direction, Edge, usize)>,
    /// The most chunks or blocks that the Move being checked covers.
    reach: i64,
    /// The most that any does.
    widest: i64,
    /// How far the cells of a Move reach from the first.
    cells_reach: i64,
    /// The first chunk or block, if there is a span that is cut at the last.
    index: Option<ExprId>,
    /// Whether the Move's span is counted around the end.
    around: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
}

/// The values that an expression may have, both ends included.
#[derive(Clone, Copy)]
struct Interval {
    min: i64,
    max: i64,
}

/// The loops around an instruction.
#[derive(Clone, Copy)]
struct Scope {
    vars: [Interval; MAX_LOOP_DEPTH],
    ends: [u16; MAX_LOOP_DEPTH],
    depth: usize,
}

type Verdict<T = ()> = Result<T, CheckError>;

impl<'a> Checker<'a> {
    fn new(program: &'a Program, n: u32) -> Checker<'a> {
        let n = i64::from(n);
        let (used, index) = (Vec::new(), None);
        Checker { program, n, used, reach: 1, widest: 1, cells_reach: 1, index, around: false }
    }

    fn program(&mut self) -> Verdict {
        require((1..=i64::from(MAX_RANKS)).contains(&self.n), None, "1 to 2^20 ranks", || {
            self.n.to_string()
        })?;
        let bytes = self.program.to_bytes().len();
        require(bytes <= MAX_BINARY_BYTES, None, "at most 4096 bytes", || format!("{bytes} bytes"))?;
        self.exprs()?;
        self.lanes()
    }

    fn exprs(&self) -> Verdict {
        let mut terms: Vec<usize> = Vec::new();
        for (id, expr) in self.program.exprs.iter().enumerate() {
            let mut sum = 1;
            for reference in expr.references() {
                let Some(of_reference) = terms.get(usize::from(reference)) else {
                    return refuse(None, "expressions that refer to earlier ones", format!("{id}: {expr:?}"));
                };
                sum += of_reference;
            }
            require(sum <= MAX_EXPR_TERMS, None, "expressions of at most 16 terms", || format!("{sum}"))?;
            if let Expr::Affine { root, .. } = expr {
                let collective = self.program.collective;
                let names_root = collective.rooted() || collective.is_message();
                require(names_root || *root == 0, None, "no root where calls name none", || {
                    format!("{id}: {root} times root in {collective}")
                })?;
            }
            if let Expr::Div(_, by) | Expr::Mod(_, by) = expr {
                require(*by >= 1, None, "a divisor of at least 1", || by.to_string())?;
            }
            terms.push(sum);
        }
        Ok(())
    }

    fn lanes(&mut self) -> Verdict {
        let mut at = 0;
        for (index, lane) in self.program.lanes.iter().enumerate() {
            let shape = format!("lane {index} at {}..{}", lane.start, lane.end);
            require(lane.start == at && lane.end >= at, None, "lanes one after the other", || shape)?;
            require(lane.share < lane.shares, None, "a share below the number of shares", || {
                format!("share {} of {}", lane.share, lane.shares)
            })?;
            at = lane.end;
            self.lane(index, lane)?;
        }
        let count = self.program.instructions.len();
        require(usize::from(at) == count && at > 0, None, "lanes that cover all instructions", || {
            format!("{at} of {count} instructions")
        })
    }

    fn lane(&mut self, index: usize, lane: &Lane) -> Verdict {
        let mut scope = Scope::new();
        for at in usize::from(lane.start)..usize::from(lane.end) {
            let Some(instruction) = self.program.instructions.get(at) else {
                return refuse(None, "lanes within the program", format!("{at}"));
            };
            self.instruction(index, lane, at, instruction, &mut scope)?;
        }
        require(scope.depth == 0, None, "closed loops", || format!("{} open at the lane's end", scope.depth))
    }

    fn instruction(
        &mut self,
        index: usize,
        lane: &Lane,
        at: usize,
        instruction: &Instruction,
        scope: &mut Scope,
    ) -> Verdict {
        match instruction {
            Instruction::Move(m) => self.moved(index, at, m, scope),
            Instruction::Loop(l) => self.open(lane, at, l, scope),
            Instruction::EndLoop => scope.close(at),
            Instruction::Signal(id) => self.bare_edge(index, at, *id, Direction::Send, scope),
            Instruction::Wait(id) => self.bare_edge(index, at, *id, Direction::Receive, scope),
            Instruction::Barrier => Ok(()),
            Instruction::End => require(at + 1 == usize::from(lane.end), Some(at), "the lane's end", || {
                format!("{} more instructions", usize::from(lane.end) - at - 1)
            }),
        }
    }

    fn open(&self, lane: &Lane, at: usize, l: &Loop, scope: &mut Scope) -> Verdict {
        let depth = scope.depth;
        require(depth < MAX_LOOP_DEPTH, Some(at), "at most three nested loops", || "a fourth".to_string())?;
        require(usize::from(l.var) == depth, Some(at), "the loop variable of this depth", || {
            format!("variable {} at depth {depth}", l.var)
        })?;
        require(usize::from(l.end) > at && l.end < lane.end, Some(at), "a loop's end in its lane", || {
            l.end.to_string()
        })?;
        let (from, to) = (self.bound(&l.from, scope), self.bound(&l.to, scope));
        let turns = to.max.saturating_sub(from.min);
        let most = 4 * self.n + 64;
        require(turns <= most && from.fits(most) && to.fits(most), Some(at), "bounds near n", || {
            format!("up to {turns} turns")
        })?;
        scope.vars[depth] = Interval { min: from.min, max: to.max - 1 };
        scope.ends[depth] = l.end;
        scope.depth += 1;
        Ok(())
    }

    fn moved(&mut self, lane: usize, at: usize, m: &Move, scope: &Scope) -> Verdict {
        for (side, list) in [("inputs", m.inputs.as_slice()), ("outputs", m.outputs.as_slice())] {
            require(!list.is_empty(), Some(at), &format!("one to four {side}"), || "none".to_string())?;
        }
        self.finish(at, m)?;
        self.extent(at, m, scope)?;
        self.around = m.extent.stride.is_some();
        self.index = m.extent.span.filter(|_| !self.around).map(|_| m.extent.index);
        for id in m.inputs.as_slice() {
            self.operand(lane, at, *id, Direction::Receive, scope)?;
        }
        for id in m.outputs.as_slice() {
            self.operand(lane, at, *id, Direction::Send, scope)?;
        }
        self.distinct_edges(at, m)
    }

    fn finish(&self, at: usize, m: &Move) -> Verdict {
        let reduces = self.program.collective.reduces();
        require(
            reduces || !(m.finish.pre || m.finish.post),
            Some(at),
            "no finish without a reduction",
            || format!("{:?}", m.finish),
        )?;
        let reads_user = m
            .inputs
            .as_slice()
            .iter()
            .any(|id| matches!(self.program.operands.get(usize::from(*id)), Some(Operand::Input(_))));
        require(reads_user || !m.finish.pre, Some(at), "an input of the send buffer beside pre", || {
            "none".to_string()
        })
    }

    fn extent(&mut self, at: usize, m: &Move, scope: &Scope) -> Verdict {
        let whole = self.program.collective.input() == Shape::Whole;
        let of = m.extent.of;
        require(whole == (of == ExtentOf::Chunk), Some(at), "chunks of vectors, blocks of blocks", || {
            format!("{of:?} in {}", self.program.collective)
        })?;
        let limit = self.limit();
        (self.reach, self.cells_reach) = (1, 1);
        let Some(span) = m.extent.span else {
            require(m.extent.stride.is_none(), Some(at), "a span beside every", || "none".to_string())?;
            return self.index(at, m.extent.index, limit, "a chunk or block", scope);
        };
        for id in [m.extent.index, span] {
            self.known(at, id, scope)?;
        }
        if let Some(stride) = m.extent.stride {
            return self.spread(at, m, span, stride, scope);
        }
        let first = self.interval(m.extent.index, scope).min;
        require(scope.dead() || first >= 0, Some(at), "a first chunk or block of at least 0", || {
            first.to_string()
        })?;
        self.reach = self.interval(span, scope).max.min(limit.saturating_sub(first)).max(0);
        let one_length = self.reach <= 1 || !self.program.collective.uneven();
        require(one_length, Some(at), "a span of one block where they differ", || self.reach.to_string())?;
        self.cells_reach = self.reach;
        self.widest = self.widest.max(self.reach);
        Ok(())
    }

    /// A span of which some blocks are covered.
    fn spread(&mut self, at: usize, m: &Move, span: ExprId, stride: Stride, scope: &Scope) -> Verdict {
        let even = m.extent.of != ExtentOf::Chunk && !self.program.collective.uneven();
        require(even, Some(at), "blocks of one length beside every", || {
            format!("{:?} in {}", m.extent.of, self.program.collective)
        })?;
        for id in [Some(stride.every), stride.run].into_iter().flatten() {
            self.known(at, id, scope)?;
        }
        self.index(at, m.extent.index, self.n, "a block", scope)?;
        let span = self.interval(span, scope).max.clamp(0, self.n);
        let every = self.interval(stride.every, scope);
        let least = if every.min > 0 { every.min } else { (-every.max).max(1) };
        let run = stride.run.map_or(Interval::exactly(1), |run| self.interval(run, scope)).max.max(1);
        let runs = span / least + i64::from(span % least > 0);
        self.reach = runs.saturating_mul(run.min(least)).min(span);
        if run > least {
            self.reach = span;
        }
        self.cells_reach = if self.program.touches_user(m) { self.reach } else { span };
        self.widest = self.widest.max(self.reach);
        Ok(())
    }

    /// Chunks of a pass, or blocks.
    fn limit(&self) -> i64 {
        match self.program.collective.input() {
            Shape::Whole => i64::try_from(self.program.chunks.of(self.n as u32)).unwrap_or(i64::MAX),
            _ => self.n,
        }
    }

    fn operand(&mut self, lane: usize, at: usize, id: OperandId, side: Direction, scope: &Scope) -> Verdict {
        let Some(operand) = self.program.operands.get(usize::from(id)) else {
            return refuse(Some(at), "a known operand", format!("operand {id}"));
        };
        let collective = self.program.collective;
        // Of a range, the first must leave room for the others, but where they go around the end.
        let room = |limit: i64| if self.around { limit } else { limit - (self.reach - 1).max(0) };
        match (*operand, side) {
            (Operand::Input(block), Direction::Receive) if collective.input() != Shape::None => {
                self.ranges(at, collective.input())?;
                block.map_or(Ok(()), |block| self.index(at, block, room(self.n), "a block", scope))
            }
            (Operand::Output(block), _) if collective.output() != Shape::None => {
                self.ranges(at, collective.output())?;
                block.map_or(Ok(()), |block| self.index(at, block, room(self.n), "a block", scope))
            }
            (Operand::Scratch(cell), _) => {
                let cells = i64::from(self.program.scratch_chunks);
                // A cell that is the index is cut where the span is.
                let cut = self.index == Some(cell) && cells >= self.limit();
                let cells = if cut { cells } else { cells - (self.cells_reach - 1).max(0) };
                self.index(at, cell, cells, "a scratch cell", scope)
            }
            (Operand::Receive(edge), Direction::Receive) => self.edge(lane, at, side, edge, scope),
            (Operand::Send(edge), Direction::Send) => self.edge(lane, at, side, edge, scope),
            (operand, Direction::Receive) => refuse(Some(at), "an input", format!("{operand:?}")),
            (operand, Direction::Send) => refuse(Some(at), "an output", format!("{operand:?}")),
        }
    }

    /// A buffer of the own block alone has no range of blocks.
    fn ranges(&self, at: usize, shape: Shape) -> Verdict {
        require(shape != Shape::Own || self.reach <= 1, Some(at), "one block of an own block", || {
            format!("a span of up to {}", self.reach)
        })
    }

    fn bare_edge(
        &mut self,
        lane: usize,
        at: usize,
        id: OperandId,
        side: Direction,
        scope: &Scope,
    ) -> Verdict {
        match self.program.operands.get(usize::from(id)) {
            Some(Operand::Receive(_) | Operand::Send(_)) => self.operand(lane, at, id, side, scope),
            found => refuse(Some(at), "an edge", format!("{found:?}")),
        }
    }

    fn edge(&mut self, lane: usize, at: usize, side: Direction, edge: Edge, scope: &Scope) -> Verdict {
        self.index(at, edge.peer, self.n, "a peer", scope)?;
        let may_be_own = self.program.collective.is_message();
        let alone = self.n == 1 && !may_be_own && !scope.dead();
        require(!alone, Some(at), "no edge for one rank", || format!("{edge:?}"))?;
        match self.used.iter().find(|(known_side, known, _)| *known_side == side && *known == edge) {
            None => self.used.push((side, edge, lane)),
            Some((.., owner)) => {
                let owner = *owner;
                require(owner == lane, Some(at), "one lane for each side of an edge", || {
                    format!("lanes {owner} and {lane}")
                })?;
            }
        }
        Ok(())
    }

    /// A Move takes one slot from an edge, not two.
    fn distinct_edges(&self, at: usize, m: &Move) -> Verdict {
        for list in [m.inputs.as_slice(), m.outputs.as_slice()] {
            for (k, id) in list.iter().enumerate() {
                let operand = self.program.operands.get(usize::from(*id));
                let is_edge = matches!(operand, Some(Operand::Receive(_) | Operand::Send(_)));
                let twice =
                    list[..k].iter().any(|other| self.program.operands.get(usize::from(*other)) == operand);
                require(!(is_edge && twice), Some(at), "each edge once in a Move", || {
                    format!("{operand:?}")
                })?;
            }
        }
        Ok(())
    }

    fn index(&self, at: usize, id: ExprId, limit: i64, what: &str, scope: &Scope) -> Verdict {
        self.known(at, id, scope)?;
        let Interval { min, max } = self.interval(id, scope);
        require(scope.dead() || (0 <= min && max < limit), Some(at), &format!("{what} in 0..{limit}"), || {
            format!("{min}..={max}")
        })
    }

    /// An expression that is there, and whose value and all on the way to it fit, so that evaluation never wraps.
    fn known(&self, at: usize, id: ExprId, scope: &Scope) -> Verdict {
        let Some(expr) = self.program.exprs.get(usize::from(id)) else {
            return refuse(Some(at), "a known expression", id.to_string());
        };
        let values = self.interval(id, scope);
        require(scope.dead() || values.fits(MOST_VALUE), Some(at), "values from -2^62 to 2^62", || {
            format!("{}..={} for {expr:?}", values.min, values.max)
        })?;
        expr.references().try_for_each(|reference| self.known(at, reference, scope))
    }

    fn bound(&self, bound: &Bound, scope: &Scope) -> Interval {
        let place = Interval { min: 0, max: self.n - 1 };
        Interval::exactly(i64::from(bound.constant))
            .plus(Interval::exactly(self.n).times(bound.n.into()))
            .plus(place.times(bound.rank.into()))
            .plus(scope.vars[0].times(bound.vars[0].into()))
            .plus(scope.vars[1].times(bound.vars[1].into()))
    }

    fn interval(&self, id: ExprId, scope: &Scope) -> Interval {
        let of = |id| self.interval(id, scope);
        match self.program.exprs[usize::from(id)] {
            Expr::Affine { constant, rank, root, n, vars, modulo } => {
                let place = Interval { min: 0, max: self.n - 1 };
                let mut sum = Interval::exactly(i64::from(constant))
                    .plus(place.times(rank.into()))
                    .plus(place.times(root.into()))
                    .plus(Interval::exactly(self.n).times(n.into()));
                for (coefficient, v) in vars.into_iter().zip(scope.vars) {
                    sum = sum.plus(v.times(coefficient.into()));
                }
                if modulo == Modulo::N { sum.modulo(self.n) } else { sum }
            }
            Expr::LowBit(a) => of(a).low_bit(),
            Expr::Min(a, b) => of(a).pairwise(of(b), i64::min),
            Expr::Max(a, b) => of(a).pairwise(of(b), i64::max),
            Expr::Add(a, b) => of(a).plus(of(b)),
            Expr::Xor(a, b) => of(a).xor(of(b)),
            Expr::Mul(a, factor) => of(a).times(factor.into()),
            Expr::Div(a, by) => {
                Interval { min: of(a).min.div_euclid(by.into()), max: of(a).max.div_euclid(by.into()) }
            }
            Expr::Mod(a, by) => of(a).modulo(by.into()),
            Expr::ModN(a) => of(a).modulo(self.n),
            Expr::And(a, b) => of(a).and(of(b)),
            Expr::Pow2(a) => of(a).power(),
            Expr::Zeros(a) => of(a).zeros(),
        }
    }
}

impl Scope {
    fn new() -> Scope {
        Scope { vars: [Interval::exactly(0); MAX_LOOP_DEPTH], ends: [0; MAX_LOOP_DEPTH], depth: 0 }
    }

    /// Whether a loop around here never turns.
    fn dead(&self) -> bool {
        self.vars[..self.depth].iter().any(|v| v.max < v.min)
    }

    fn close(&mut self, at: usize) -> Verdict {
        let Some(depth) = self.depth.checked_sub(1) else {
            return refuse(Some(at), "an open loop", "a loop's end alone".to_string());
        };
        let end = usize::from(self.ends[depth]);
        require(end == at, Some(at), "the end of the innermost loop", || {
            format!("a loop that ends at {end}")
        })?;
        self.vars[depth] = Interval::exactly(0);
        self.depth = depth;
        Ok(())
    }
}

impl Interval {
    fn exactly(value: i64) -> Interval {
        Interval { min: value, max: value }
    }

    fn fits(self, most: i64) -> bool {
        self.min >= -most && self.max <= most
    }

    fn plus(self, other: Interval) -> Interval {
        Interval { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, factor: i64) -> Interval {
        let (a, b) = (self.min.saturating_mul(factor), self.max.saturating_mul(factor));
        Interval { min: a.min(b), max: a.max(b) }
    }

    fn pairwise(self, other: Interval, pick: fn(i64, i64) -> i64) -> Interval {
        Interval { min: pick(self.min, other.min), max: pick(self.max, other.max) }
    }

    fn modulo(self, by: i64) -> Interval {
        let inside = 0 <= self.min && self.max < by;
        if inside { self } else { Interval { min: 0, max: by - 1 } }
    }

    fn low_bit(self) -> Interval {
        let single = self.min == self.max && self.min > i64::MIN;
        let most = if self.min < 0 { self.max.max(self.min.saturating_neg()) } else { self.max };
        if single {
            Interval::exactly(self.min & self.min.wrapping_neg())
        } else {
            Interval { min: 0, max: most }
        }
    }

    /// What is not negative has no bits that the other could add.
    fn and(self, other: Interval) -> Interval {
        match (self.min >= 0, other.min >= 0) {
            (false, false) => self.signed(other),
            (true, false) => Interval { min: 0, max: self.max },
            (false, true) => Interval { min: 0, max: other.max },
            (true, true) => Interval { min: 0, max: self.max.min(other.max) },
        }
    }

    /// What is made of the bits of both has no more of them than the longer.
    fn signed(self, other: Interval) -> Interval {
        let bits = |value: i64| 64 - (if value < 0 { !value } else { value }).leading_zeros();
        let most = [self.min, self.max, other.min, other.max].map(bits).into_iter().max().unwrap_or(63);
        let beyond = 1_i64.checked_shl(most).filter(|_| most < 63);
        beyond.map_or(Interval { min: i64::MIN, max: i64::MAX }, |beyond| Interval {
            min: -beyond,
            max: beyond - 1,
        })
    }

    /// Powers grow with their exponent, but for those that do not fit.
    fn power(self) -> Interval {
        let fits = self.min >= 0 && self.max <= 62;
        Interval { min: if fits { power(self.min) } else { 0 }, max: power(self.max.clamp(0, 62)) }
    }

    /// No more zeros than the largest value has bits below its highest.
    fn zeros(self) -> Interval {
        let most = if self.min < 0 { 63 } else { 63 - i64::from(self.max.max(1).leading_zeros()) };
        let single = self.min == self.max;
        if single { Interval::exactly(zeros(self.min)) } else { Interval { min: 0, max: most } }
    }

    /// Bits above the highest of either operand stay 0.
    fn xor(self, other: Interval) -> Interval {
        let top = self.max.max(other.max);
        if self.min < 0 || other.min < 0 {
            return self.signed(other);
        }
        let max = (1_i64 << (63 - top.leading_zeros().min(63))).saturating_mul(2) - 1;
        Interval { min: 0, max: if top == 0 { 0 } else { max } }
    }
}

fn require(holds: bool, at: Option<usize>, expected: &str, found: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { refuse(at, expected, found()) }
}

fn refuse<T>(instruction: Option<usize>, expected: &str, found: String) -> Verdict<T> {
    Err(CheckError { instruction, expected: expected.to_string(), found })
}

/// Most ranks that a program may be checked for.
pub const MAX_RANKS: u32 = 1 << 20;
/// What no value may exceed, of either sign: the sum of two of them still fits.
const MOST_VALUE: i64 = 1 << 62;
/// Most bytes of a program's binary form.
pub const MAX_BINARY_BYTES: usize = 4096;
/// Most terms in one expression, those of its references included.
pub const MAX_EXPR_TERMS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use crate::program::Chunks;
    use crate::program::builder::{
        Arithmetic, Builder, LaneBuilder, N, R, Term, from, input, output, scratch, to,
    };

    /// Why the checker refuses two lanes for 4 ranks; nothing if it does not.
    fn refusal(
        first: impl FnOnce(&mut LaneBuilder<'_>),
        second: impl FnOnce(&mut LaneBuilder<'_>),
    ) -> Option<String> {
        let mut b = Builder::new("test", Collective::AllReduce, Chunks::N);
        b.scratch_chunks(2);
        b.lane(first);
        b.lane(second);
        b.finish().check(4).err().map(|error| error.to_string())
    }

    fn nested(l: &mut LaneBuilder<'_>, depth: usize) {
        match depth {
            0 => l.barrier(),
            _ => l.each(0, N, |l, _| nested(l, depth - 1)),
        }
    }

    #[test]
    fn refusals_say_where_and_why() {
        let send = |l: &mut LaneBuilder<'_>| l.fold([input()]).pre().into([to(R + 1)]).chunk(R);
        let none = |l: &mut LaneBuilder<'_>| l.end();
        assert_eq!(refusal(send, none), None);
        let says = |refusal: Option<String>, expected: &str| {
            let text = refusal.unwrap_or_default();
            assert!(text.contains(expected), "expected {expected}, found {text}");
        };
        says(refusal(send, send), "instruction 1: expected one lane for each side of an edge");
        says(refusal(|l| nested(l, 4), none), "expected at most three nested loops");
        says(refusal(|l| l.fold([to(R + 1)]).into([output()]).chunk(R), none), "expected an input");
        says(refusal(|l| l.fold([input()]).into([from(R + 1)]).chunk(R), none), "expected an output");
        says(refusal(|l| l.fold([input()]).into([input()]).chunk(R), none), "expected an output");
        says(refusal(|l| l.fold([input()]).into([]).chunk(R), none), "expected one to four outputs");
        says(refusal(|l| l.fold([input()]).into([scratch(2)]).chunk(R), none), "a scratch cell in 0..2");
        says(refusal(|l| l.fold([from(R)]).pre().into([output()]).chunk(R), none), "beside pre");
        says(refusal(|l| l.fold([input()]).into([output()]).chunk(4), none), "a chunk or block in 0..4");
        says(refusal(|l| l.wait(to(R + 1)), none), "expected an input");
        says(refusal(|l| l.signal(output()), none), "expected an edge");
        let twice = |l: &mut LaneBuilder<'_>| l.fold([from(R + 1), from(R + 1)]).into([output()]).chunk(R);
        says(refusal(twice, none), "each edge once in a Move");
        let wide = |l: &mut LaneBuilder<'_>| l.fold([input()]).into([scratch(1)]).span(2).chunk(2);
        says(refusal(wide, none), "a scratch cell in 0..1");
        let from_below = |l: &mut LaneBuilder<'_>| l.fold([input()]).into([output()]).span(2).chunk(-R);
        assert_eq!(refusal(from_below, none), None);
        let past_the_end = |l: &mut LaneBuilder<'_>| {
            l.each(0, N + 1, |l, i: Term| l.fold([input()]).into([output()]).chunk(i));
        };
        says(refusal(past_the_end, none), "found 0..=4");
        let root_bound =
            |l: &mut LaneBuilder<'_>| l.each(0, crate::program::builder::ROOT, |l, _| l.barrier());
        says(refusal(root_bound, none), "bounds near n");
    }

    #[test]
    fn the_widest_span_is_known() {
        let widest = |collective, span: i32, index: Term, n| {
            let mut b = Builder::new("test", collective, Chunks::ONE);
            b.lane(|l| match collective {
                Collective::AllGather => l.fold([from(R - 1)]).into([output()]).span(span).recv_block(index),
                _ => l.fold([input()]).into([to(R + 1)]).span(span).send_block(index),
            });
            b.finish().check(n).map(|checked| checked.widest())
        };
        assert_eq!(widest(Collective::AllGather, 3, R, 8), Ok(3));
        assert_eq!(widest(Collective::AllGather, 300, R, 8), Ok(8));
        assert_eq!(widest(Collective::AllToAll, 3, 6.into(), 8), Ok(2));
        // The own block alone cannot be several.
        assert!(widest(Collective::Gather, 3, R, 8).is_err());
        assert!(widest(Collective::AllToAllV, 2, R, 8).is_err());
        assert_eq!(widest(Collective::AllToAllV, 1, R, 8), Ok(1));
    }

    #[test]
    fn what_lies_apart_stays_within_its_bounds() {
        let check = |build: &dyn Fn(&mut LaneBuilder<'_>)| {
            let mut b = Builder::new("test", Collective::AllGather, Chunks::ONE);
            b.scratch_chunks(4);
            b.lane(|l| build(l));
            b.finish().check(8).map(|checked| checked.widest()).map_err(|error| error.to_string())
        };
        let got = |l: &mut LaneBuilder<'_>, span: i32, every: i32| {
            let every = l.plain(every);
            l.fold([from(R - 1)]).into([output()]).span(span).every(every).recv_block(R);
        };
        assert_eq!(check(&|l| got(l, 7, 3)), Ok(3));
        assert_eq!(check(&|l| got(l, 100, 2)), Ok(4));
        assert_eq!(check(&|l| got(l, 8, -1)), Ok(8));
        let runs = |l: &mut LaneBuilder<'_>| {
            l.fold([from(R - 1)]).into([output()]).span(8).every(4).by(3).recv_block(R);
        };
        assert_eq!(check(&runs), Ok(6));
        let kept = |l: &mut LaneBuilder<'_>, cell: i32, span: i32| {
            l.fold([from(R - 1)]).into([scratch(cell)]).span(span).every(2).recv_block(0);
        };
        assert_eq!(check(&|l| kept(l, 1, 3)), Ok(2));
        assert!(check(&|l| kept(l, 2, 3)).unwrap_err().contains("a scratch cell in 0..2"));
        let beside_user = |l: &mut LaneBuilder<'_>| {
            l.fold([output()]).into([scratch(0)]).span(8).every(2).recv_block(R);
        };
        assert_eq!(check(&beside_user), Ok(4));
        let whole = |l: &mut LaneBuilder<'_>| l.fold([input()]).into([output()]).span(2).every(2).chunk(0);
        assert!(refusal(whole, |l| l.end()).unwrap_or_default().contains("blocks of one length"));
    }

    #[test]
    fn what_never_runs_is_not_in_the_way() {
        let mut b = Builder::new("test", Collective::AllReduce, Chunks::N);
        b.lane(|l| l.each(2, N, |l, i| l.fold([from(R - i)]).into([output()]).chunk(i - 2)));
        let program = b.finish();
        assert!(program.clone().check(1).is_ok());
        assert!(program.check(9).is_ok());
    }

    #[test]
    fn values_that_would_wrap_are_refused() {
        let check = |collective, build: &dyn Fn(&mut Builder) -> crate::program::builder::Index| {
            let mut b = Builder::new("test", collective, Chunks::N);
            let chunk = build(&mut b);
            b.lane(|l| l.fold([input()]).into([output()]).chunk(chunk));
            b.finish().check(4).map(drop).map_err(|error| error.to_string())
        };
        let id = |index| match index {
            crate::program::builder::Index::Expr(id) => id,
            _ => unreachable!(),
        };
        let multiple = |b: &mut Builder, factors: &[i32]| {
            let first = b.expr(Expr::rank_plus(0));
            factors.iter().fold(id(first), |of, factor| {
                let index = b.expr(Expr::Mul(of, *factor));
                id(index)
            })
        };
        // The same chunks, by way of values that fit and of some that do not.
        for (factors, fits) in [(&[1 << 30, 1 << 30][..], true), (&[1 << 30, 1 << 30, 8], false)] {
            let found = check(Collective::AllReduce, &|b| {
                let of = multiple(b, factors);
                b.expr(Expr::ModN(of))
            });
            assert_eq!(found.is_ok(), fits, "{factors:?}: {found:?}");
            assert!(fits || found.unwrap_err().contains("values from -2^62 to 2^62"));
        }
        // Bits of small values of either sign are few.
        let bits = check(Collective::AllReduce, &|b| {
            let below = b.expr(Expr::Affine {
                constant: -2,
                rank: 1,
                root: 0,
                n: 0,
                vars: [0; 3],
                modulo: Modulo::None,
            });
            let place = b.expr(Expr::rank_plus(0));
            let [both, either] = [Expr::And(id(below), id(below)), Expr::Xor(id(below), id(place))];
            let (both, either) = (b.expr(both), b.expr(either));
            let sum = b.expr(Expr::Add(id(both), id(either)));
            b.expr(Expr::ModN(id(sum)))
        });
        assert_eq!(bits, Ok(()));
    }

    #[test]
    fn a_root_is_only_where_calls_name_one() {
        let check = |collective| {
            let mut b = Builder::new("test", collective, Chunks::N);
            let root = b.expr(Expr::root());
            b.lane(|l| l.fold([input()]).into([output()]).chunk(root));
            b.finish().check(4).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(check(Collective::Broadcast), Ok(()));
        assert!(check(Collective::AllReduce).unwrap_err().contains("no root where calls name none"));
    }

    #[test]
    fn expressions_stay_small() {
        let mut b = Builder::new("test", Collective::AllReduce, Chunks::N);
        let mut doubled = b.expr(Expr::rank_plus(1));
        for _ in 0..40 {
            let crate::program::builder::Index::Expr(id) = doubled else { unreachable!() };
            doubled = b.expr(Expr::Add(id, id));
        }
        b.lane(|l| l.fold([input()]).into([output()]).chunk(doubled));
        assert!(b.finish().check(4).unwrap_err().expected.contains("16 terms"));
    }
}
