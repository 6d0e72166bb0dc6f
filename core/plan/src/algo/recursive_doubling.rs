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

use alloc::vec;
use alloc::vec::Vec;

use super::Role;
use super::pairs::{Pairs, Standing};
use crate::collective::Collective;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, R, Spot, Term, from, input, output, to,
};
use crate::program::{Chunks, Finish, Program};

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
    let last = pairs.rounds as i32 - 1;
    let in_pair = role.standing == Standing::First;
    b.lane(|l| {
        let first_peer = Step::new(l, pairs, seat, 0).peer;
        if in_pair {
            l.fold([input(), from(R + 1)]).pre().into([output(), to(first_peer)]).chunk(0);
        } else {
            l.fold([input()]).pre().into([to(first_peer)]).chunk(0);
            if last > 0 {
                exchange(l, pairs, seat, 0.into(), input(), None);
            }
        }
        let own = if last == 0 && !in_pair { input() } else { output() };
        let begun = i32::from(!in_pair);
        if last > begun {
            l.each(begun, last, |l, i| exchange(l, pairs, seat, i, output(), None));
        }
        let hand_over = if in_pair { vec![to(R + 1)] } else { Vec::new() };
        exchange(l, pairs, seat, last.into(), own, Some(&hand_over));
    });
    b.finish()
}

/// Folds `own` with the sum of step k's partner and sends the result on to the next, or, in the last
/// step, to those that wait for it.
fn exchange(
    l: &mut LaneBuilder<'_>,
    pairs: Pairs,
    seat: Index,
    k: Term,
    own: Spot,
    results: Option<&[Spot]>,
) {
    let Step { peer, upper } = Step::new(l, pairs, seat, k);
    let mut outputs = vec![output()];
    match results {
        Some(results) => outputs.extend_from_slice(results),
        None => outputs.push(to(Step::new(l, pairs, seat, k + 1).peer)),
    }
    let finish = Finish { pre: own == input(), post: results.is_some() };
    // What lies behind the last chunk is empty.
    l.fold([own, from(peer)]).finish(finish).into_all(&outputs).span(1).chunk(upper);
    l.fold([from(peer), own]).finish(finish).into_all(&outputs).span(upper).chunk(0);
}

/// One exchange.
struct Step {
    /// With whom.
    peer: Index,
    /// Positive if the own seat is the upper of the two, else 0.
    upper: Index,
}

impl Step {
    fn new(l: &mut LaneBuilder<'_>, pairs: Pairs, seat: Index, k: impl Into<Term>) -> Step {
        let exponent = l.plain(k);
        let bit = l.power_of_two(exponent);
        let opposite = l.xor(seat, bit);
        Step { peer: pairs.place(l, opposite), upper: l.and(seat, bit) }
    }
}
