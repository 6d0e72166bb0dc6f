//! Inputs for which every order of folding gives the same bits, and what must come out.
//!
//! - Integers wrap, so any bits will do; factors are odd, so that none hides another.
//! - Floats that are added are whole numbers, so small that no partial sum exceeds what the dtype
//!   counts exactly. If there are more ranks than that, an index is nonzero on a few ranks only.
//! - Floats that are multiplied are ±½, ±1 and ±2, few enough not to ½ for the same reason.
//! - Floats that are compared are any finite ones but −0.
//! - Data that is only moved is any bits.

use ccl_plan::{Dtype, Rank, ReduceOp};

use super::case::{Case, Piece, Source};
use super::codec::{Codec, Domain, Last, domain};
use super::hash::{Stream, below};

/// The test data of a case: a function of case, seed, rank and index.
///
/// Contributions to a pre-multiplied sum of floats stay exact if the scalar is a power of two
/// between 2⁻⁴ and 2⁴ ([`exact_scalar`] is one).
#[derive(Clone, Debug)]
pub struct Data<'a> {
    case: Case<'a>,
    seed: u64,
    domain: Domain,
    inputs: Codec,
    results: Codec,
    /// An index is active on every `stride`-th rank.
    stride: u64,
    /// Largest magnitude of one contribution.
    most: u64,
}

impl<'a> Data<'a> {
    /// The data of a case. Builds a small table; make one for many calls.
    pub fn new(case: &Case<'a>, seed: u64) -> Data<'a> {
        let domain = domain(case.dtype, case.collective.reduces().then_some(case.op));
        let last = match case.op {
            _ if !case.collective.reduces() => Last::Keep,
            ReduceOp::Average => Last::Divide(case.n),
            ReduceOp::PreMulSum => Last::Scale(case.scalar),
            _ => Last::Keep,
        };
        let n = u64::from(case.n.max(1));
        let (stride, most) = match domain {
            Domain::Whole { most } => (n.div_ceil(most as u64), (most as u64 / n).clamp(1, 1 << 31)),
            Domain::Power { most } => (n.div_ceil(most as u64), 1),
            _ => (1, 0),
        };
        let inputs = Codec::new(case.dtype, domain, Last::Keep);
        Data {
            case: *case,
            seed,
            domain,
            inputs,
            results: Codec::new(case.dtype, domain, last),
            stride,
            most,
        }
    }

    /// A rank's send buffer.
    pub fn input(&self, rank: Rank) -> Vec<u8> {
        let mut out = vec![0; self.case.send_count(rank) * self.case.dtype.size_bytes()];
        self.fill_input(rank, 0, &mut out);
        out
    }

    /// Writes the elements of a rank's send buffer from `start` on.
    pub fn fill_input(&self, rank: Rank, start: usize, out: &mut [u8]) {
        self.in_blocks(
            start,
            out,
            |start, values| self.contribute(rank, start, values, |_, new| new),
            &self.inputs,
        );
    }

    /// A rank's receive buffer after the call; `None` if the collective leaves it alone.
    pub fn expected(&self, rank: Rank) -> Option<Vec<u8>> {
        let mut out = vec![0; self.case.recv_count(rank) * self.case.dtype.size_bytes()];
        self.fill_expected(rank, 0, &mut out).then_some(out)
    }

    /// Writes the elements of a rank's receive buffer from `start` on, as they must be after the call;
    /// `false` if the collective leaves the buffer alone.
    pub fn fill_expected(&self, rank: Rank, start: usize, out: &mut [u8]) -> bool {
        let Some(pieces) = self.case.pieces(rank) else { return false };
        let size = self.case.dtype.size_bytes();
        let (mut piece_start, end) = (0, start + out.len() / size);
        for piece in pieces {
            let from = start.max(piece_start);
            let to = end.min(piece_start + piece.count);
            if from < to {
                let part = &mut out[(from - start) * size..(to - start) * size];
                self.fill_piece(piece, from - piece_start, part);
            }
            piece_start += piece.count;
        }
        true
    }

    fn fill_piece(&self, piece: Piece, skip: usize, out: &mut [u8]) {
        let start = piece.start + skip;
        match piece.source {
            Source::Rank(from) => self.fill_input(from, start, out),
            Source::Every => {
                self.in_blocks(start, out, |start, values| self.fold(start, values), &self.results)
            }
        }
    }

    /// Folds all contributions to the elements from `start` on.
    fn fold(&self, start: usize, values: &mut [i64]) {
        self.contribute(Rank(0), start, values, |_, new| new);
        for rank in (1..self.case.n).map(Rank) {
            match (self.domain, self.case.op) {
                (Domain::Integer, ReduceOp::Product) => {
                    self.contribute(rank, start, values, i64::wrapping_mul)
                }
                (_, ReduceOp::Max) => self.contribute(rank, start, values, i64::max),
                (_, ReduceOp::Min) => self.contribute(rank, start, values, i64::min),
                _ => self.contribute(rank, start, values, i64::wrapping_add),
            }
        }
    }

    /// Combines `values` with a rank's contributions to the elements from `start` on.
    fn contribute(&self, rank: Rank, start: usize, values: &mut [i64], combine: impl Fn(i64, i64) -> i64) {
        let random = Stream::new(self.seed, u64::from(rank.0));
        let shared = Stream::new(self.seed, u64::MAX);
        let phase = u64::from(rank.0) % self.stride;
        let active = |i| self.stride == 1 || below(shared.at(i), self.stride) == phase;
        match self.domain {
            Domain::Integer => {
                let integer = self.integer();
                each(values, start, |value, i| combine(value, integer(random.at(i))));
            }
            Domain::Shifted => each(values, start, |value, i| combine(value, random.at(i) as i64)),
            Domain::Ordered => {
                let most = largest_finite(self.case.dtype);
                each(values, start, |value, i| combine(value, ordered(random.at(i), most)));
            }
            Domain::Whole { .. } => each(values, start, |value, i| {
                let bits = random.at(i);
                let magnitude = if active(i) { below(bits, self.most) as i64 + 1 } else { 0 };
                combine(value, if bits & 1 == 0 { magnitude } else { -magnitude })
            }),
            Domain::Power { .. } => each(values, start, |value, i| {
                let bits = random.at(i);
                let exponent = if active(i) { below(bits, 3) as i64 - 1 } else { 0 };
                combine(value, (exponent << 16) + (bits & 1) as i64)
            }),
        }
    }

    /// How an integer of the dtype is made of random bits.
    fn integer(&self) -> impl Fn(u64) -> i64 {
        let odd = u64::from(self.case.collective.reduces() && self.case.op == ReduceOp::Product);
        let dtype = self.case.dtype;
        move |bits| {
            let bits = bits | odd;
            match dtype {
                Dtype::I8 => i64::from(bits as i8),
                Dtype::U8 => i64::from(bits as u8),
                Dtype::I32 => i64::from(bits as i32),
                Dtype::U32 => i64::from(bits as u32),
                _ => bits as i64,
            }
        }
    }

    fn in_blocks(&self, start: usize, out: &mut [u8], fill: impl Fn(usize, &mut [i64]), codec: &Codec) {
        let size = self.case.dtype.size_bytes();
        let mut values = [0; BLOCK_COUNT];
        for (block, out) in out.chunks_mut(BLOCK_COUNT * size).enumerate() {
            let values = &mut values[..out.len() / size];
            fill(start + block * BLOCK_COUNT, values);
            codec.write(values, out);
        }
    }
}

/// A scalar that is not 1 and keeps [`Data`] exact.
pub fn exact_scalar(dtype: Dtype) -> f64 {
    if dtype.is_float() { 0.5 } else { 3.0 }
}

#[inline(always)]
fn each(values: &mut [i64], start: usize, value: impl Fn(i64, usize) -> i64) {
    for (i, slot) in values.iter_mut().enumerate() {
        *slot = value(*slot, start + i);
    }
}

/// A float in the order of numbers, up to `most`.
#[inline(always)]
fn ordered(bits: u64, most: u64) -> i64 {
    let magnitude = if most >> 32 == 0 { below(bits, most + 1) } else { bits >> 2 };
    if bits & 1 == 0 { magnitude as i64 } else { -(magnitude as i64) }
}

/// The bits of the largest finite float; of f64, of 2, which is enough.
fn largest_finite(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F16 => 0x7bff,
        Dtype::Bf16 => 0x7f7f,
        Dtype::F8E4m3 => 0x7e,
        Dtype::F8E5m2 => 0x7b,
        Dtype::F32 => 0x7f7f_ffff,
        _ => u64::MAX >> 2,
    }
}

/// Elements computed at a time.
const BLOCK_COUNT: usize = 512;
