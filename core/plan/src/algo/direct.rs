//! Direct algorithms: each block goes straight from where it is to where it belongs.
//!
//! Rounds δ = 1…n−1: rank r sends to r+δ and takes from r−δ. Sends and receives are two lanes, so
//! that a rank whose blocks are long never keeps its own arrivals waiting. One slot per edge is
//! enough. Nothing is forwarded, so the bytes are the least possible wherever there is no fold or
//! copy to share; the latency is one message, but n−1 peers are served at once. They stop paying
//! against rings when n is so large that the number of edges, n−1 for each rank, is the problem,
//! and for broadcast and reduce as soon as S is large: the root moves (n−1)·S bytes, if it does not tell all others of one slot in memory
//! that they share (ADR 0128).
//!
//! The same programs serve blocks of different lengths: an empty block is skipped at both ends.

use alloc::vec::Vec;

use super::{Algorithm, Duty, Fold, Role, fold_of};
use crate::collective::Collective;
use crate::program::builder::{Builder, LaneBuilder, N, R, ROOT, Spot, from, input, output, to};
use crate::program::{Chunks, ExtentOf, MOVE_OPERANDS, Program};

pub(super) fn program(collective: Collective, algorithm: Algorithm, n: u32, role: Role) -> Program {
    let fold = fold_of(algorithm);
    let mut b = Builder::new(algorithm.name(), collective, Chunks::ONE);
    match collective {
        Collective::AllGather | Collective::AllGatherV => all_gather(&mut b),
        Collective::ReduceScatter | Collective::ReduceScatterV => reduce_scatter(&mut b, fold, n, role),
        Collective::AllToAll | Collective::AllToAllV => all_to_all(&mut b),
        Collective::Gather | Collective::GatherV => b.lane(|l| gather(l, role.duty)),
        Collective::Scatter | Collective::ScatterV => b.lane(|l| scatter(l, role.duty)),
        Collective::Broadcast => b.lane(|l| broadcast(l, n, role.duty)),
        Collective::Reduce => {
            if role.duty == Duty::Root {
                b.scratch_chunks(fold.cells(n));
            }
            b.lane(|l| reduce(l, fold, n, role));
        }
        Collective::Send => b.lane(|l| l.fold([input()]).into([to(ROOT)]).send_block(ROOT)),
        Collective::Recv => b.lane(|l| l.fold([from(ROOT)]).into([output()]).recv_block(ROOT)),
        Collective::AllReduce | Collective::Barrier => {}
    }
    b.finish()
}

/// One step; (n−1)·b bytes per rank.
fn all_gather(b: &mut Builder) {
    b.lane(|l| l.each(1, N, |l, i| l.fold([input()]).into([to(R + i)]).recv_block(R)));
    b.lane(|l| {
        l.fold([input()]).into([output()]).recv_block(R);
        l.each(1, N, |l, i| l.fold([from(R - i)]).into([output()]).recv_block(R - i));
    });
}

/// One step; (n−1)·b bytes per rank; folds in absolute order, or in the canonical tree.
fn reduce_scatter(b: &mut Builder, fold: Fold, n: u32, role: Role) {
    b.scratch_chunks(fold.cells(n));
    b.lane(|l| l.each(1, N, |l, i| l.fold([input()]).pre().into([to(R + i)]).send_block(R + i)));
    b.lane(|l| fold.write(l, (n, role.position), &[output()], ExtentOf::SendBlock, R));
}

/// One step; (n−1)·b bytes per rank. Not safe in place: a block may arrive before the one in its
/// place has left.
fn all_to_all(b: &mut Builder) {
    b.lane(|l| l.each(1, N, |l, i| l.fold([input()]).into([to(R + i)]).send_block(R + i)));
    b.lane(|l| {
        l.fold([input()]).into([output()]).recv_block(R);
        l.each(1, N, |l, i| l.fold([from(R - i)]).into([output()]).recv_block(R - i));
    });
}

/// One step; the root takes (n−1)·b bytes.
fn gather(l: &mut LaneBuilder<'_>, duty: Duty) {
    if duty != Duty::Root {
        return l.fold([input()]).into([to(ROOT)]).send_block(ROOT);
    }
    l.fold([input()]).into([output()]).recv_block(R);
    l.each(1, N, |l, i| l.fold([from(R + i)]).into([output()]).recv_block(R + i));
}

/// One step; the root sends (n−1)·b bytes.
fn scatter(l: &mut LaneBuilder<'_>, duty: Duty) {
    if duty != Duty::Root {
        return l.fold([from(ROOT)]).into([output()]).recv_block(ROOT);
    }
    l.each(1, N, |l, i| l.fold([input()]).into([to(R + i)]).send_block(R + i));
    l.fold([input()]).into([output()]).send_block(R);
}

/// Moves of a broadcast's root in a pass.
pub(crate) const fn root_moves(n: u32) -> u32 {
    if n > MOST_NAMED { n } else { n.div_ceil(MOVE_OPERANDS as u32) }
}

/// One step; the root sends (n−1)·S bytes. Of few ranks a Move serves several: what is the same for all is looked up once (ADR 0128).
fn broadcast(l: &mut LaneBuilder<'_>, n: u32, duty: Duty) {
    if duty != Duty::Root {
        return l.fold([from(ROOT)]).into([output()]).chunk(0);
    }
    if n > MOST_NAMED {
        l.each(1, N, |l, i| l.fold([input()]).into([to(R + i)]).chunk(0));
        return l.fold([input()]).into([output()]).chunk(0);
    }
    let copies: Vec<Spot> = [output()].into_iter().chain((1..n as i32).map(|i| to(R + i))).collect();
    for copies in copies.chunks(MOVE_OPERANDS) {
        l.fold([input()]).into_all(copies).chunk(0);
    }
}

/// One step; the root takes (n−1)·S bytes and folds them in absolute order, or in the canonical tree.
fn reduce(l: &mut LaneBuilder<'_>, fold: Fold, n: u32, role: Role) {
    if role.duty != Duty::Root {
        return l.fold([input()]).pre().into([to(ROOT)]).chunk(0);
    }
    fold.write(l, (n, role.position), &[output()], ExtentOf::Chunk, 0);
}

/// Among so many ranks and fewer the root of a broadcast names each, and its program stays short.
const MOST_NAMED: u32 = 32;
