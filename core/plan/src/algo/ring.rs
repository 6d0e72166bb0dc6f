//! Rings and chains: every rank speaks to its neighbours in the order only.
//!
//! The place in the order is r; data always runs from r to r+1; places, blocks and chunks are
//! modulo n. A step is a Move that takes the slot of the previous rank and fills one for the next,
//! so all links are busy all the time and each rank sends what it must send and nothing more: the
//! algorithm of choice for large sizes. It stops paying when n latencies outweigh the bytes.
//!
//! Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 69 (2009). The chunk numbering, in which rank r completes chunk r, makes
//! reduce-scatter and all-gather the two halves of all-reduce.
//!
//! The fused steps need two slots per edge: with one, every rank waits for the next to take what
//! it sent before.

use super::Duty;
use crate::collective::Collective;
use crate::program::builder::{Builder, N, R, from, input, output, to};
use crate::program::{Chunks, Program};

pub(super) fn program(collective: Collective, duty: Duty) -> Program {
    match collective {
        Collective::ReduceScatter | Collective::ReduceScatterV => reduce_scatter(collective),
        Collective::AllGather | Collective::AllGatherV => all_gather(collective),
        Collective::Broadcast => broadcast(duty),
        Collective::Reduce => reduce(duty),
        _ => all_reduce("ring"),
    }
}

/// 2(n−1) steps; 2(n−1)/n·S bytes per rank, the least possible.
///
/// Chunk c starts at rank c+1 and collects a contribution at every stop; rank c completes it and
/// starts it on a second round, on which everybody keeps a copy.
pub(super) fn all_reduce(name: &str) -> Program {
    let (prev, next) = (from(R - 1), to(R + 1));
    let mut b = Builder::new(name, Collective::AllReduce, Chunks::N);
    b.lane(|l| {
        l.fold([input()]).pre().into([next]).chunk(R - 1);
        l.each(2, N, |l, i| l.fold([prev, input()]).pre().into([next]).chunk(R - i));
        l.fold([prev, input()]).pre().post().into([output(), next]).chunk(R);
        l.each(1, N - 1, |l, i| l.fold([prev]).into([output(), next]).chunk(R - i));
        l.fold([prev]).into([output()]).chunk(R + 1);
    });
    b.finish()
}

/// n−1 steps; (n−1)·b bytes per rank, the least possible. The first half of all-reduce.
fn reduce_scatter(collective: Collective) -> Program {
    let (prev, next) = (from(R - 1), to(R + 1));
    let mut b = Builder::new("ring", collective, Chunks::ONE);
    b.lane(|l| {
        l.fold([input()]).pre().into([next]).send_block(R - 1);
        l.each(2, N, |l, i| l.fold([prev, input()]).pre().into([next]).send_block(R - i));
        l.fold([prev, input()]).pre().post().into([output()]).send_block(R);
    });
    b.finish()
}

/// n−1 steps; (n−1)·b bytes per rank, the least possible. The second half of all-reduce.
fn all_gather(collective: Collective) -> Program {
    let (prev, next) = (from(R - 1), to(R + 1));
    let mut b = Builder::new("ring", collective, Chunks::ONE);
    b.lane(|l| {
        l.fold([input()]).into([output(), next]).recv_block(R);
        l.each(1, N - 1, |l, i| l.fold([prev]).into([output(), next]).recv_block(R - i));
        l.fold([prev]).into([output()]).recv_block(R + 1);
    });
    b.finish()
}

/// A chain that starts at the root: n−1 hops, S bytes per rank, pipelined over the passes. With
/// chunks of C bytes it takes (n−2+S/C)(α+Cβ); for small sizes n−1 latencies make it slow.
fn broadcast(duty: Duty) -> Program {
    let (prev, next) = (from(R - 1), to(R + 1));
    let mut b = Builder::new("ring", Collective::Broadcast, Chunks::ONE);
    b.lane(|l| match duty {
        Duty::Root => l.fold([input()]).into([output(), next]).chunk(0),
        Duty::Leaf => l.fold([prev]).into([output()]).chunk(0),
        _ => l.fold([prev]).into([output(), next]).chunk(0),
    });
    b.finish()
}

/// A chain that ends at the root: as [`broadcast`], with a fold at each hop.
fn reduce(duty: Duty) -> Program {
    let (prev, next) = (from(R - 1), to(R + 1));
    let mut b = Builder::new("ring", Collective::Reduce, Chunks::ONE);
    b.lane(|l| match duty {
        Duty::Root => l.fold([prev, input()]).pre().post().into([output()]).chunk(0),
        Duty::Leaf => l.fold([input()]).pre().into([next]).chunk(0),
        _ => l.fold([prev, input()]).pre().into([next]).chunk(0),
    });
    b.finish()
}
