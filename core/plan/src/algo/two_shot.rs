//! Two-shot all-reduce: rank r folds chunk r for everybody, then shares it.
//!
//! Two steps; 2(n−1)/n·S bytes per rank, as few as a ring. Between ranks that all reach each other
//! equally well it beats the ring at every size, by n−1 latencies; it stops paying where n−1
//! simultaneous peers are more than a rank's links or caches can serve.
//!
//! In round δ rank r sends to r+δ and takes from r−δ, so that no two ranks crowd a third. Chunk c
//! of the input is sent away, or folded, before chunk c of the output is written: safe in place.
//! The result follows the raw chunk on the same edge; up to four ranks, where the fold and the
//! sharing are one Move, that takes two slots, above one is enough.

use alloc::vec::Vec;

use super::{Algorithm, Position, fold_of};
use crate::collective::Collective;
use crate::program::builder::{Builder, N, R, Spot, from, input, output, to};
use crate::program::{Chunks, ExtentOf, Program};

pub(super) fn program(n: u32, algorithm: Algorithm, position: Position) -> Program {
    let fold = fold_of(algorithm);
    let mut b = Builder::new(algorithm.name(), Collective::AllReduce, Chunks::N);
    b.scratch_chunks(fold.cells(n));
    b.lane(|l| {
        l.each(1, N, |l, i| l.fold([input()]).pre().into([to(R + i)]).chunk(R + i));
        if let Position::Fixed(_) = position {
            let sends = (1..n as i32).map(|i| to(R + i));
            let everywhere: Vec<Spot> = [output()].into_iter().chain(sends).collect();
            fold.write(l, (n, position), &everywhere, ExtentOf::Chunk, R);
        } else {
            fold.write(l, (n, position), &[output()], ExtentOf::Chunk, R);
            l.each(1, N, |l, i| l.fold([output()]).into([to(R + i)]).chunk(R));
        }
        l.each(1, N, |l, i| l.fold([from(R - i)]).into([output()]).chunk(R - i));
    });
    b.finish()
}
