//! One-shot all-reduce: everybody sends everything to everybody and folds alone.
//!
//! One step; (n−1)·S bytes per rank. The whole latency is one message, so nothing beats it for a few
//! hundred bytes between ranks that share memory; it stops paying when (n−1)·S outweighs two
//! latencies, some 4 to 32 KiB in a node. All ranks fold in absolute order (see `in_order`), or in the
//! canonical tree (see `in_tree`), so all get the same bits.
//!
//! One lane sends to all before it receives from any: the input has been read completely when the
//! result is written, which makes it safe in place. One slot per edge is enough.

use super::{Algorithm, Position, fold_of};
use crate::collective::Collective;
use crate::program::builder::{Builder, N, R, input, output, to};
use crate::program::{Chunks, ExtentOf, Program};

pub(super) fn program(n: u32, algorithm: Algorithm, position: Position) -> Program {
    let fold = fold_of(algorithm);
    let mut b = Builder::new(algorithm.name(), Collective::AllReduce, Chunks::ONE);
    b.scratch_chunks(fold.cells(n));
    b.lane(|l| {
        l.each(1, N, |l, i| l.fold([input()]).pre().into([to(R + i)]).chunk(0));
        fold.write(l, (n, position), &[output()], ExtentOf::Chunk, 0);
    });
    b.finish()
}
