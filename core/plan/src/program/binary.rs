//! The binary form: fixed-size records shared by host and device.
//!
//! Little-endian throughout. A 32-byte header, then 8-byte lanes, 16-byte expressions, 16-byte
//! operands and 32-byte instructions. Decoding accepts only what encoding writes.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

use super::{
    Bound, Chunks, Edge, Expr, Extent, ExtentOf, Finish, Instruction, Lane, Loop, Modulo, Move, Operand,
    Operands, Program, Stride,
};
use crate::collective::Collective;

/// Bytes of one instruction record.
pub const INSTRUCTION_BYTES: usize = 32;
/// Bytes of one operand record.
pub const OPERAND_BYTES: usize = 16;

/// Why bytes are not a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BinaryError {
    /// Offset of the offending record.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for BinaryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: expected {}", self.offset, self.expected)
    }
}

impl core::error::Error for BinaryError {}

impl Program {
    /// The program as bytes; `name` is not part of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.header(self);
        for lane in &self.lanes {
            out.record(LANE_BYTES, |w| {
                w.u16(lane.start);
                w.u16(lane.end);
                w.u8(lane.share);
                w.u8(lane.shares);
            });
        }
        for expr in &self.exprs {
            out.record(EXPR_BYTES, |w| w.expr(expr));
        }
        for operand in &self.operands {
            out.record(OPERAND_BYTES, |w| w.operand(operand));
        }
        for instruction in &self.instructions {
            out.record(INSTRUCTION_BYTES, |w| w.instruction(instruction));
        }
        out.0
    }

    /// Reads what [`Program::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, BinaryError> {
        let mut reader = Reader { bytes, at: 0 };
        let program = reader.program()?;
        if reader.at != bytes.len() {
            return Err(reader.error("the end of the program"));
        }
        Ok(program)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn record(&mut self, bytes: usize, fill: impl FnOnce(&mut Writer)) {
        let end = self.0.len() + bytes;
        fill(self);
        self.0.resize(end, 0);
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn i8(&mut self, value: i8) {
        self.0.extend(value.to_le_bytes());
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn i16(&mut self, value: i16) {
        self.0.extend(value.to_le_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.0.extend(value.to_le_bytes());
    }

    fn header(&mut self, program: &Program) {
        let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        self.record(HEADER_BYTES, |w| {
            w.0.extend(MAGIC);
            w.u8(VERSION);
            w.u8(program.collective as u8);
            w.u16(program.chunks.constant);
            w.u16(program.chunks.per_rank);
            w.u16(program.scratch_chunks);
            w.u16(count(program.lanes.len()));
            w.u16(count(program.exprs.len()));
            w.u16(count(program.operands.len()));
            w.u16(count(program.instructions.len()));
        });
    }

    fn expr(&mut self, expr: &Expr) {
        match *expr {
            Expr::Affine { constant, rank, root, n, vars, modulo } => {
                self.u8(0);
                self.u8(modulo as u8);
                self.i8(rank);
                self.i8(root);
                self.i8(n);
                self.u8(0);
                vars.into_iter().for_each(|v| self.i16(v));
                self.i32(constant);
            }
            Expr::LowBit(a) => self.apply(1, a, 0, 0),
            Expr::Min(a, b) => self.apply(2, a, b, 0),
            Expr::Max(a, b) => self.apply(3, a, b, 0),
            Expr::Add(a, b) => self.apply(4, a, b, 0),
            Expr::Xor(a, b) => self.apply(5, a, b, 0),
            Expr::Mul(a, factor) => self.apply(6, a, 0, factor),
            Expr::Div(a, divisor) => self.apply(7, a, 0, divisor),
            Expr::Mod(a, divisor) => self.apply(8, a, 0, divisor),
            Expr::ModN(a) => self.apply(9, a, 0, 0),
            Expr::And(a, b) => self.apply(10, a, b, 0),
            Expr::Pow2(a) => self.apply(11, a, 0, 0),
            Expr::Zeros(a) => self.apply(12, a, 0, 0),
        }
    }

    fn apply(&mut self, kind: u8, a: u16, b: u16, constant: i32) {
        self.u8(kind);
        self.u8(0);
        self.u16(a);
        self.u16(b);
        self.u16(0);
        self.i32(constant);
    }

    fn operand(&mut self, operand: &Operand) {
        let (space, tag, expr) = match *operand {
            Operand::Input(block) => (0, 0, block.unwrap_or(NO_EXPR)),
            Operand::Output(block) => (1, 0, block.unwrap_or(NO_EXPR)),
            Operand::Scratch(cell) => (2, 0, cell),
            Operand::Receive(edge) => (3, edge.tag, edge.peer),
            Operand::Send(edge) => (4, edge.tag, edge.peer),
        };
        self.u8(space);
        self.u8(tag);
        self.u16(expr);
    }

    fn instruction(&mut self, instruction: &Instruction) {
        match instruction {
            Instruction::End => self.u8(OP_END),
            Instruction::EndLoop => self.u8(OP_END_LOOP),
            Instruction::Barrier => self.u8(OP_BARRIER),
            Instruction::Signal(operand) => {
                self.u8(OP_SIGNAL);
                self.u8(*operand);
            }
            Instruction::Wait(operand) => {
                self.u8(OP_WAIT);
                self.u8(*operand);
            }
            Instruction::Loop(l) => {
                self.u8(OP_LOOP);
                self.u8(l.var);
                self.u16(l.end);
                self.bound(&l.from);
                self.bound(&l.to);
            }
            Instruction::Move(m) => self.moved(m),
        }
    }

    fn moved(&mut self, m: &Move) {
        self.u8(OP_MOVE);
        self.u8(u8::from(m.finish.pre) | u8::from(m.finish.post) << 1);
        for operands in [&m.inputs, &m.outputs] {
            self.u8(operands.len);
            self.0.extend(operands.ids);
        }
        self.u8(m.extent.of as u8);
        self.u8(0);
        self.u16(m.extent.index);
        self.u16(m.extent.span.unwrap_or(NO_EXPR));
        self.u16(m.extent.stride.map_or(NO_EXPR, |stride| stride.every));
        self.u16(m.extent.stride.and_then(|stride| stride.run).unwrap_or(NO_EXPR));
    }

    fn bound(&mut self, bound: &Bound) {
        self.i32(bound.constant);
        self.i8(bound.n);
        self.i8(bound.rank);
        bound.vars.into_iter().for_each(|v| self.i8(v));
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Read<T> = Result<T, BinaryError>;

impl Reader<'_> {
    fn error(&self, expected: &'static str) -> BinaryError {
        BinaryError { offset: self.at, expected }
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let bytes = self.bytes.get(self.at..self.at + N).and_then(|b| b.try_into().ok());
        let bytes = bytes.ok_or(self.error("more bytes"))?;
        self.at += N;
        Ok(bytes)
    }

    fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn i8(&mut self) -> Read<i8> {
        Ok(i8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Read<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn i16(&mut self) -> Read<i16> {
        Ok(i16::from_le_bytes(self.array()?))
    }

    fn i32(&mut self) -> Read<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    /// Reads one record and insists that the rest of it is zero.
    fn record<T>(&mut self, bytes: usize, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        let end = self.at + bytes;
        if end > self.bytes.len() {
            return Err(self.error("a whole record"));
        }
        let value = read(self)?;
        if self.bytes[self.at..end].iter().any(|byte| *byte != 0) {
            return Err(self.error("zero padding"));
        }
        self.at = end;
        Ok(value)
    }

    fn program(&mut self) -> Read<Program> {
        let (collective, chunks, scratch_chunks, counts) = self.record(HEADER_BYTES, |r| r.header())?;
        let mut program = Program {
            name: collective.name().to_string(),
            collective,
            chunks,
            scratch_chunks,
            lanes: Vec::new(),
            instructions: Vec::new(),
            operands: Vec::new(),
            exprs: Vec::new(),
        };
        for _ in 0..counts[0] {
            program.lanes.push(self.record(LANE_BYTES, |r| {
                Ok(Lane { start: r.u16()?, end: r.u16()?, share: r.u8()?, shares: r.u8()? })
            })?);
        }
        for _ in 0..counts[1] {
            program.exprs.push(self.record(EXPR_BYTES, |r| r.expr())?);
        }
        for _ in 0..counts[2] {
            program.operands.push(self.record(OPERAND_BYTES, |r| r.operand())?);
        }
        for _ in 0..counts[3] {
            program.instructions.push(self.record(INSTRUCTION_BYTES, |r| r.instruction())?);
        }
        Ok(program)
    }

    fn header(&mut self) -> Read<(Collective, Chunks, u16, [u16; 4])> {
        if self.array::<4>()? != MAGIC || self.u8()? != VERSION {
            return Err(BinaryError { offset: 0, expected: "a program of version 3" });
        }
        let collective = Collective::from_code(self.u8()?).ok_or(self.error("a collective"))?;
        let chunks = Chunks { constant: self.u16()?, per_rank: self.u16()? };
        let scratch_chunks = self.u16()?;
        Ok((collective, chunks, scratch_chunks, [self.u16()?, self.u16()?, self.u16()?, self.u16()?]))
    }

    fn expr(&mut self) -> Read<Expr> {
        let kind = self.u8()?;
        if kind == 0 {
            return self.affine();
        }
        self.u8()?;
        let (a, b) = (self.u16()?, self.u16()?);
        self.u16()?;
        let constant = self.i32()?;
        Ok(match kind {
            1 => Expr::LowBit(a),
            2 => Expr::Min(a, b),
            3 => Expr::Max(a, b),
            4 => Expr::Add(a, b),
            5 => Expr::Xor(a, b),
            6 => Expr::Mul(a, constant),
            7 => Expr::Div(a, constant),
            8 => Expr::Mod(a, constant),
            9 => Expr::ModN(a),
            10 => Expr::And(a, b),
            11 => Expr::Pow2(a),
            12 => Expr::Zeros(a),
            _ => return Err(self.error("a kind of expression")),
        })
    }

    fn affine(&mut self) -> Read<Expr> {
        let modulo = match self.u8()? {
            0 => Modulo::None,
            1 => Modulo::N,
            _ => return Err(self.error("a modulus")),
        };
        let (rank, root, n) = (self.i8()?, self.i8()?, self.i8()?);
        self.u8()?;
        let vars = [self.i16()?, self.i16()?, self.i16()?];
        Ok(Expr::Affine { constant: self.i32()?, rank, root, n, vars, modulo })
    }

    fn operand(&mut self) -> Read<Operand> {
        let (space, tag, expr) = (self.u8()?, self.u8()?, self.u16()?);
        let block = (expr != NO_EXPR).then_some(expr);
        Ok(match space {
            0 => Operand::Input(block),
            1 => Operand::Output(block),
            2 => Operand::Scratch(expr),
            3 => Operand::Receive(Edge { peer: expr, tag }),
            4 => Operand::Send(Edge { peer: expr, tag }),
            _ => return Err(self.error("an operand space")),
        })
    }

    fn instruction(&mut self) -> Read<Instruction> {
        Ok(match self.u8()? {
            OP_END => Instruction::End,
            OP_END_LOOP => Instruction::EndLoop,
            OP_BARRIER => Instruction::Barrier,
            OP_SIGNAL => Instruction::Signal(self.u8()?),
            OP_WAIT => Instruction::Wait(self.u8()?),
            OP_LOOP => Instruction::Loop(Loop {
                var: self.u8()?,
                end: self.u16()?,
                from: self.bound()?,
                to: self.bound()?,
            }),
            OP_MOVE => Instruction::Move(self.moved()?),
            _ => return Err(self.error("an opcode")),
        })
    }

    fn moved(&mut self) -> Read<Move> {
        let flags = self.u8()?;
        if flags > 3 {
            return Err(self.error("known flags"));
        }
        let (inputs, outputs) = (self.operands()?, self.operands()?);
        let of = match self.u8()? {
            0 => ExtentOf::Chunk,
            1 => ExtentOf::SendBlock,
            2 => ExtentOf::RecvBlock,
            _ => return Err(self.error("an extent")),
        };
        self.u8()?;
        let (index, span) = (self.u16()?, self.some_expr()?);
        let stride = match (self.some_expr()?, self.some_expr()?) {
            (None, None) => None,
            (Some(every), run) => Some(Stride { every, run }),
            (None, Some(_)) => return Err(self.error("a stride of its runs")),
        };
        let extent = Extent { of, index, span, stride };
        Ok(Move { inputs, outputs, extent, finish: Finish { pre: flags & 1 != 0, post: flags & 2 != 0 } })
    }

    fn some_expr(&mut self) -> Read<Option<u16>> {
        Ok(Some(self.u16()?).filter(|expr| *expr != NO_EXPR))
    }

    fn operands(&mut self) -> Read<Operands> {
        let len = self.u8()?;
        let ids: [u8; 4] = self.array()?;
        if len > 4 || ids[usize::from(len)..].iter().any(|id| *id != 0) {
            return Err(self.error("at most four operands"));
        }
        Ok(Operands { len, ids })
    }

    fn bound(&mut self) -> Read<Bound> {
        Ok(Bound { constant: self.i32()?, n: self.i8()?, rank: self.i8()?, vars: [self.i8()?, self.i8()?] })
    }
}

const MAGIC: [u8; 4] = *b"cclP";
const VERSION: u8 = 3;
const HEADER_BYTES: usize = 32;
const LANE_BYTES: usize = 8;
const EXPR_BYTES: usize = 16;
const NO_EXPR: u16 = u16::MAX;
const OP_END: u8 = 0;
const OP_MOVE: u8 = 1;
const OP_LOOP: u8 = 2;
const OP_END_LOOP: u8 = 3;
const OP_SIGNAL: u8 = 4;
const OP_WAIT: u8 = 5;
const OP_BARRIER: u8 = 6;
