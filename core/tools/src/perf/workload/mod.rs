//! `ccl perf --workload`: the all-reduces of a step of data-parallel training.
//!
//! [`model`] knows the parameters of some models, [`buckets`] gathers their gradients, [`args`] makes of
//! that, or of a file, a [`Workload`]; [`session`] is one rank's part; [`report`] prints.

mod args;
mod buckets;
mod model;
mod report;
mod session;

use ccl::{Dtype, ReduceOp};

use super::options::{Checking, Format};

pub(crate) use self::args::{Args, Common, only};
pub(crate) use self::report::Spread;
pub(crate) use self::session::run;

/// What is measured, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Workload {
    /// The model or file.
    name: String,
    dtype: Dtype,
    reduce: ReduceOp,
    /// Elements of each all-reduce, in the order in which they are started.
    counts: Vec<usize>,
    /// How many may be under way at a time.
    in_flight: usize,
    /// Iterations before the timed ones; the first is checked.
    warm_up: u64,
    /// Iterations that are timed; the last is checked.
    iterations: u64,
    checking: Checking,
    format: Format,
}

impl Workload {
    /// Bytes of one iteration.
    fn bytes(&self) -> u64 {
        self.bucket_bytes().sum()
    }

    /// Bytes of each all-reduce.
    fn bucket_bytes(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(|count| (count * self.dtype.size_bytes()) as u64)
    }

    /// The list that `--list` prints and a file holds: a line with the bytes of each all-reduce.
    pub(crate) fn list(&self) -> String {
        self.bucket_bytes().map(|bytes| format!("{bytes}\n")).collect()
    }
}
