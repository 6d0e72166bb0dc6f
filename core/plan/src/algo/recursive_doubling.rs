//! Recursive doubling: all-reduce in ⌊log2 n⌋ steps, each with another partner.
//!
//! In step k a rank exchanges its sum with the rank whose seat differs in bit k and folds the two, the
//! lower rank's first. After step k it holds the sum of the 2^(k+1) ranks that share its higher bits, and
//! all of them hold the same bits. Where n is no power of two, ranks stand in pairs (see `pairs`): one
//! step before to fold, one after to hand over the result.
//!
//! ⌊log2 n⌋·S bytes per rank, S more in and out of a pair. It pays for short vectors among more than a
//! few ranks, where one-shot's n − 1 messages for each rank are too many; it stops paying
//! against two-shot and rings when log2 n·S bytes outweigh their further messages.
//!
//! Folding and sending on are one Move. Which of two sums comes first depends on a bit of the seat: of
//! two Moves one covers the chunk and the other nothing. One slot per edge is enough. Sums live in the
//! output, and the input is not read again once it is written: safe in place.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", IJHPCA 19 (2005).

use alloc::vec::Vec;

use super::Role;
use super::pairs::{Pairs, Standing};
use crate::collective::Collective;
use crate::program::builder::{Builder, Index, R, Spot, from, input, output, to};
use crate::program::{Chunks, Finish, Program};

/// The steps are written out; there are at most 20.
pub(super) fn program(n: u32, role: Role) -> Program {
    let mut b = Builder::new("recursive_doubling", Collective::AllReduce, Chunks::ONE);
    if role.standing == Standing::Second {
        b.lane(|l| {
            l.fold([input()]).pre().into([to(R - 1)]).chunk(0);
            l.fold([from(R - 1)]).into([output()]).chunk(0);
        });
        return b.finish();
    }
    let pairs = Pairs::of(n);
    let seat = pairs.seat(&mut b, role);
    let steps: Vec<Step> = (0..pairs.rounds).map(|k| Step::new(&mut b, pairs, seat, k)).collect();
    let in_pair = role.standing == Standing::First;
    b.lane(|l| {
        let sends = steps.first().map(|step| to(step.peer));
        if in_pair {
            let outputs: Vec<Spot> = [output()].into_iter().chain(sends).collect();
            l.fold([input(), from(R + 1)]).pre().into_all(&outputs).chunk(0);
        } else {
            l.fold([input()]).pre().into_all(sends.as_slice()).chunk(0);
        }
        for (k, step) in steps.iter().enumerate() {
            let (own, pre) = if k == 0 && !in_pair { (input(), true) } else { (output(), false) };
            let next = match steps.get(k + 1) {
                Some(next) => Some(to(next.peer)),
                None => in_pair.then(|| to(R + 1)),
            };
            let outputs: Vec<Spot> = [output()].into_iter().chain(next).collect();
            let finish = Finish { pre, post: k + 1 == steps.len() };
            // The chunk behind the last is empty.
            l.fold([own, from(step.peer)]).finish(finish).into_all(&outputs).span(1).chunk(step.upper);
            l.fold([from(step.peer), own]).finish(finish).into_all(&outputs).span(step.upper).chunk(0);
        }
    });
    b.finish()
}

/// One exchange.
struct Step {
    /// With whom.
    peer: Index,
    /// 1 if the own seat is the upper of the two, else 0.
    upper: Index,
}

impl Step {
    fn new(b: &mut Builder, pairs: Pairs, seat: Index, k: u32) -> Step {
        let opposite = b.xor(seat, 1 << k);
        let above = b.over(seat, 1 << k);
        Step { peer: pairs.place(b, opposite), upper: b.modulo(above, 2) }
    }
}
