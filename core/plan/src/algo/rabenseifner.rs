//! Rabenseifner's all-reduce: a reduce-scatter by halving, then an all-gather by doubling.
//!
//! The vector is cut into n chunks. The rounds are those of Bruck's algorithms (see `bruck`), whose
//! cyclic distances serve any n, where exchanges with r xor 2^k would need a power of two. 2·⌈log2 n⌉
//! messages on the critical path and 2(n−1)/n·S bytes per rank, the least possible. Every chunk is
//! completed by one rank and then copied, so all ranks hold the same bits.
//!
//! It pays between recursive doubling, which moves log2 n times the vector, and a ring, which has
//! 2(n−1) latencies; two-shot has only two, but 2(n−1) messages for each rank.
//!
//! Partial sums lie in the output, where they are overwritten by results only after they were sent:
//! safe in place. Two slots per edge are needed.
//!
//! Source: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.

use super::bruck::Rounds;
use crate::collective::Collective;
use crate::program::builder::{Builder, R, output, to};
use crate::program::{Chunks, ExtentOf, Program};

pub(super) fn program(n: u32) -> Program {
    let mut b = Builder::new("rabenseifner", Collective::AllReduce, Chunks::N);
    let rounds = Rounds::new(n, ExtentOf::Chunk, |_| output());
    b.lane(|l| {
        rounds.reduce_scatter(l, &[output(), to(R - 1)]);
        rounds.all_gather(l);
    });
    b.finish()
}
