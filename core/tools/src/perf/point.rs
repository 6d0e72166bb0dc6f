//! The points of a run: what is measured, in order, and what came out.

use std::time::Duration;

use ccl::{Collective, Dtype, Rank, ReduceOp};

use super::geometry::Amount;
use super::operation::Operation;

/// One line of the table, before it is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// What is called.
    pub(crate) operation: Operation,
    /// The element type.
    pub(crate) dtype: Dtype,
    /// How contributions are combined; ignored where nothing is.
    pub(crate) reduce: ReduceOp,
    /// The root; ignored where there is none.
    pub(crate) root: Rank,
    /// How much.
    pub(crate) amount: Amount,
}

impl Point {
    /// The reduce operation's name, or `none`.
    pub(crate) fn reduce_name(&self) -> &'static str {
        if self.operation.reduces() { self.reduce.name() } else { "none" }
    }

    /// The root, or −1.
    pub(crate) fn root_number(&self) -> i64 {
        if self.operation.rooted() { i64::from(self.root.0) } else { -1 }
    }
}

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Into a buffer of its own.
    OutOfPlace,
    /// Over the input.
    InPlace,
}

/// What one placement of a point gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// The slowest rank's average time of a call; of a ping-pong, half of it.
    pub(crate) time: Duration,
    /// Wrong elements on all ranks; nothing if not checked.
    pub(crate) wrong: Option<u64>,
    /// Calls in the timed loop.
    pub(crate) iterations: u64,
}

impl Measured {
    /// Microseconds.
    pub(crate) fn time_us(&self) -> f64 {
        self.time.as_secs_f64() * 1e6
    }

    /// Algorithm bandwidth of `point`, 10⁹ bytes per second.
    pub(crate) fn alg_gb_per_s(&self, point: &Point) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { point.amount.actual_bytes as f64 / seconds / 1e9 } else { 0.0 }
    }

    /// Bus bandwidth of `point` among n ranks, 10⁹ bytes per second.
    pub(crate) fn bus_gb_per_s(&self, point: &Point, n: u32) -> f64 {
        self.alg_gb_per_s(point) * point.operation.bus_factor(n)
    }
}

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) point: Point,
    /// Among how many ranks.
    pub(crate) n: u32,
    /// Out of place, if asked for.
    pub(crate) out_of_place: Option<Measured>,
    /// In place, if asked for and if there is such a thing.
    pub(crate) in_place: Option<Measured>,
}

impl Row {
    /// Both placements that were measured.
    pub(crate) fn halves(&self) -> impl Iterator<Item = &Measured> {
        self.out_of_place.iter().chain(&self.in_place)
    }

    /// Wrong elements of both placements.
    pub(crate) fn wrong(&self) -> u64 {
        self.halves().filter_map(|half| half.wrong).sum()
    }
}

/// What the points are made of: every combination is one.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    /// Element types.
    pub(crate) dtypes: Vec<Dtype>,
    /// Reduce operations, for those that reduce.
    pub(crate) reduces: Vec<ReduceOp>,
    /// Roots, for those that have one.
    pub(crate) roots: Vec<Rank>,
    /// How much.
    pub(crate) sizes: Sizes,
}

/// Sizes in bytes, or exact counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Bytes.
    Bytes(Vec<u64>),
    /// Elements.
    Counts(Vec<usize>),
}

impl Axes {
    /// The points of one operation among n ranks, sizes varying fastest.
    pub(crate) fn points(&self, operation: Operation, n: u32) -> Vec<Point> {
        if operation == Operation::Collective(Collective::Barrier) {
            return vec![barrier_point(operation)];
        }
        let (reduces, roots) = (first_or_all(operation.reduces(), &self.reduces), &self.roots);
        let roots = first_or_all(operation.rooted(), roots);
        let mut points = Vec::new();
        for &dtype in &self.dtypes {
            for &reduce in reduces {
                for &root in roots {
                    let point = |amount| Point { operation, dtype, reduce, root, amount };
                    points.extend(self.sizes.amounts(operation, n, dtype).map(point));
                }
            }
        }
        points
    }
}

impl Sizes {
    /// The first and the last.
    pub(crate) fn ends(&self) -> (u64, u64) {
        match self {
            Sizes::Bytes(list) => list.first().copied().zip(list.last().copied()),
            Sizes::Counts(list) => list.first().zip(list.last()).map(|(a, b)| (*a as u64, *b as u64)),
        }
        .unwrap_or_default()
    }

    /// What the ends are called.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        match self {
            Sizes::Bytes(_) => ("minBytes", "maxBytes"),
            Sizes::Counts(_) => ("minCount", "maxCount"),
        }
    }

    fn amounts(&self, operation: Operation, n: u32, dtype: Dtype) -> Box<dyn Iterator<Item = Amount> + '_> {
        match self {
            Sizes::Bytes(list) => {
                Box::new(list.iter().map(move |bytes| Amount::of_bytes(operation, *bytes, n, dtype)))
            }
            Sizes::Counts(list) => {
                Box::new(list.iter().map(move |count| Amount::of_count(operation, *count, n, dtype)))
            }
        }
    }
}

fn barrier_point(operation: Operation) -> Point {
    let amount = Amount { count: 0, bytes: 0, actual_bytes: 0 };
    Point { operation, dtype: Dtype::U8, reduce: ReduceOp::Sum, root: Rank(0), amount }
}

/// All of a list where it matters, else its first.
fn first_or_all<T>(matters: bool, list: &[T]) -> &[T] {
    if matters { list } else { &list[..list.len().min(1)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes() -> Axes {
        Axes {
            dtypes: Dtype::ALL.to_vec(),
            reduces: ReduceOp::ALL.to_vec(),
            roots: vec![Rank(0), Rank(1)],
            sizes: Sizes::Counts(vec![0, 1, 7]),
        }
    }

    #[test]
    fn only_axes_that_matter_multiply() {
        let points = |name: &str| axes().points(name.parse().unwrap(), 2).len();
        assert_eq!(points("all_reduce"), 12 * 6 * 3);
        assert_eq!(points("reduce"), 12 * 6 * 2 * 3);
        assert_eq!(points("broadcast"), 12 * 2 * 3);
        assert_eq!(points("sendrecv"), 12 * 3);
        assert_eq!(points("barrier"), 1);
    }

    #[test]
    fn bandwidths_follow_the_formulas() {
        let operation = "all_reduce".parse().unwrap();
        let amount = Amount::of_bytes(operation, 1 << 20, 4, Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Sum, root: Rank(0), amount };
        let half = Measured { time: Duration::from_micros(1000), wrong: None, iterations: 1 };
        assert!((half.alg_gb_per_s(&point) - 1.048_576).abs() < 1e-9);
        assert!((half.bus_gb_per_s(&point, 4) - 1.572_864).abs() < 1e-9);
    }
}
