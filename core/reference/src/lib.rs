//! The oracle: what every collective must compute, in plain safe code.
//!
//! A [`Case`] is one collective call of all ranks together. [`reference()`] computes every receive
//! buffer from any inputs, folding in rank order and rounding after every operation. [`Data`] makes
//! inputs for which every order of folding gives the same bits, and says what must come out without
//! looking at them, fast enough to check gigabytes. [`compare`] counts what is wrong.
//!
//! ```
//! use ccl_reference::{Case, Counts, Data, compare, reference};
//! use ccl_plan::{Collective, Dtype, Rank, ReduceOp};
//!
//! let case = Case {
//!     collective: Collective::AllReduce,
//!     dtype: Dtype::F16,
//!     op: ReduceOp::Average,
//!     n: 3,
//!     root: Rank(0),
//!     scalar: 1.0,
//!     counts: Counts::Even(1000),
//! };
//! let data = Data::new(&case, 42);
//! let inputs: Vec<Vec<u8>> = (0..3).map(|rank| data.input(Rank(rank))).collect();
//! let outputs = reference(&case, &inputs);
//! let expected = data.expected(Rank(2)).unwrap();
//! assert_eq!(compare(Dtype::F16, outputs[2].as_ref().unwrap(), &expected), None);
//! ```
//!
//! Nothing here is shared with the executors it judges.

#![forbid(unsafe_code)]

mod case;
mod codec;
mod compare;
mod data;
pub mod element;
mod hash;

use ccl_plan::{Rank, ReduceOp};

pub use self::case::{Case, Counts, Piece, Source};
pub use self::compare::{Mismatch, compare};
pub use self::data::{Data, exact_scalar};

/// What every rank's receive buffer holds after the call, blocks one after another; `None` where the
/// collective leaves it alone. `inputs` are the send buffers by rank, blocks one after another; those
/// the collective does not read may be empty.
///
/// # Panics
///
/// If an input is shorter than [`Case::send_count`] elements.
pub fn reference(case: &Case, inputs: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    (0..case.n).map(|rank| Some(receive(case, &case.pieces(Rank(rank))?, inputs))).collect()
}

fn receive(case: &Case, pieces: &[Piece], inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = case.dtype.size_bytes();
    let mut received = Vec::new();
    for piece in pieces {
        let bytes = piece.start * size..(piece.start + piece.count) * size;
        match piece.source {
            Source::Rank(from) => received.extend_from_slice(&inputs[from.index()][bytes]),
            Source::Every => {
                let contributions: Vec<&[u8]> = inputs.iter().map(|input| &input[bytes.clone()]).collect();
                received.extend(fold(case, &contributions));
            }
        }
    }
    received
}

fn fold(case: &Case, contributions: &[&[u8]]) -> Vec<u8> {
    let size = case.dtype.size_bytes();
    let mut folded = Vec::with_capacity(contributions[0].len());
    for at in (0..contributions[0].len()).step_by(size) {
        let elements = contributions.iter().map(|bytes| scaled(case, element::load(&bytes[at..at + size])));
        let result = elements.reduce(|a, b| element::combine(case.dtype, case.op, a, b)).unwrap_or(0);
        let result = completed(case, result);
        folded.extend_from_slice(&result.to_le_bytes()[..size]);
    }
    folded
}

/// A contribution as it enters the fold.
fn scaled(case: &Case, bits: u64) -> u64 {
    match case.op {
        ReduceOp::PreMulSum => element::scale(case.dtype, bits, case.scalar),
        _ => bits,
    }
}

/// The result of the fold as it is stored.
fn completed(case: &Case, bits: u64) -> u64 {
    match case.op {
        ReduceOp::Average => element::divide(case.dtype, bits, case.n),
        _ => bits,
    }
}

#[cfg(test)]
mod tests;
