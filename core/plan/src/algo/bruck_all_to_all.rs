//! Bruck's all-to-all: every block in as many hops as its distance has bits, ⌈log2 n⌉ messages in all.
//!
//! The block from rank r for rank r + j has the distance j. In round k every rank sends the blocks whose
//! distance has bit k to the rank 2^k further on, as one message, and puts those that it gets in their
//! place. After all rounds the block of distance j is j ranks further on, where it belongs.
//!
//! ⌈log2 n⌉ messages and about ⌈log2 n⌉·n/2·b bytes per rank, where the direct algorithm sends n − 1 messages
//! and (n−1)·b bytes: it pays for blocks of some bytes, and stops paying as soon as bytes count.
//!
//! Blocks lie in scratch by distance: one local copy turns the input by r, another turns the
//! result back and about. The first pattern of the last round may begin half of all blocks later. One slot
//! per edge is enough. As all all-to-alls it is not safe in place.
//!
//! Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE TPDS 8 (1997).

use crate::collective::Collective;
use crate::program::builder::{Arithmetic, Builder, R, from, input, output, scratch, to};
use crate::program::{Chunks, Program};

pub(super) fn program(n: u32) -> Program {
    let all = n as i32;
    let mut b = Builder::new("bruck", Collective::AllToAll, Chunks::ONE);
    b.scratch_chunks((n + n.next_power_of_two() / 2) as u16);
    b.lane(|l| {
        l.fold([input()]).into([scratch(0)]).span(all).every(1).send_block(R);
        l.each(0, super::rounds(n) as i32, |l, i| {
            let exponent = l.plain(i);
            let bit = l.power_of_two(exponent);
            let twice = l.times(bit, 2);
            let (next, previous) = (l.sum(R, bit), l.difference(R, bit));
            let (next, previous) = (l.mod_n(next), l.mod_n(previous));
            let span = l.difference(all, bit);
            l.fold([scratch(bit)]).into([to(next)]).span(span).every(twice).by(bit).send_block(0);
            l.fold([from(previous)]).into([scratch(bit)]).span(span).every(twice).by(bit).send_block(0);
        });
        let backwards = l.plain(-1);
        l.fold([scratch(0)]).into([output()]).span(all).every(backwards).recv_block(R);
    });
    b.finish()
}
