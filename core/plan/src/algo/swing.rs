//! Swing: halving and doubling between ranks that are near each other on a ring.
//!
//! In step s an even rank r exchanges with r + ρ(s), an odd one with r − ρ(s), for ρ(s) = (1 − (−2)^(s+1))/3: 1, −1, 3,
//! −5, 11, −21 and so on. Both hold the same range of chunks; each sends the half that the other keeps and folds what
//! it gets into its own. After log2 n steps a rank has completed one chunk. The steps backwards gather them.
//!
//! 2·log2 n messages and 2(n−1)/n·S bytes per rank, as few as Rabenseifner's, but a message goes about 2^s/3 places
//! where that one's go 2^s: on a ring or torus of links, which messages of many hops share, it takes less than half the
//! time for the same bytes. It pays there, between sizes that are all latency and those at which a ring's n − 1
//! messages do not count; where every rank reaches all others alike it is no better than Rabenseifner's. Where n is
//! no power of two, ranks stand in pairs (see `pairs`), which costs two messages of S bytes more.
//!
//! Which half a rank keeps in step s is a bit b(s) that its partners of all later steps share and its partner of this one does
//! not. One choice, for w = 2^(s+1) and ranks r: in the last step r mod 2; before, ⌊(r + d)/w⌋ mod 2, where for
//! even s d is 0 for even r and w − ρ(s) for odd r, for odd s w + ρ(s) − 1 for even r and −1 for odd r. The bits
//! from the first step on number the chunk that the rank completes, and every range is consecutive chunks. These sums
//! are longer than expressions may be: each rank has a text of its own, of constants.
//!
//! Partial sums lie in the output, where only chunks are that were read: safe in place. One slot per edge is enough.
//!
//! Source: D. De Sensi, T. Bonato, D. Saam and T. Hoefler, "Swing: short-cutting rings for higher bandwidth
//! allreduce", NSDI 2024.

use alloc::vec::Vec;

use super::pairs::{Pairs, Standing};
use crate::collective::Collective;
use crate::ids::Place;
use crate::program::builder::{Builder, LaneBuilder, R, Spot, from, input, output, to};
use crate::program::{Chunks, Finish, Program};

/// The seat of a place that takes part.
pub(super) fn seat(n: u32, place: Place) -> u32 {
    let pairs = Pairs::of(n);
    if place.0 < 2 * pairs.count { place.0 / 2 } else { place.0 - pairs.count }
}

/// The program of a rank; n is at least 2.
pub(super) fn program(n: u32, standing: Standing, seat: u32) -> Program {
    let pairs = Pairs::of(n);
    let all = 1 << pairs.rounds;
    let mut b = Builder::new("swing", Collective::AllReduce, Chunks { constant: all as u16, per_rank: 0 });
    let steps = steps(pairs, seat);
    b.lane(|l| {
        let own = match standing {
            Standing::Second => {
                l.fold([input()]).pre().into([to(R - 1)]).span(all).chunk(0);
                return l.fold([from(R - 1)]).into([output()]).span(all).chunk(0);
            }
            Standing::First => {
                l.fold([input(), from(R + 1)]).pre().into([output()]).span(all).chunk(0);
                output()
            }
            Standing::Single => input(),
        };
        reduce_scatter(l, &steps, own);
        for Step { peer, kept, sent, length } in steps.iter().rev().copied() {
            l.fold([output()]).into([to(peer)]).span(length).chunk(kept);
            l.fold([from(peer)]).into([output()]).span(length).chunk(sent);
        }
        if standing == Standing::First {
            l.fold([output()]).into([to(R + 1)]).span(all).chunk(0);
        }
    });
    b.finish()
}

/// All steps, with what is `own` before the first.
fn reduce_scatter(l: &mut LaneBuilder<'_>, steps: &[Step], own: Spot) {
    for (index, Step { peer, kept, sent, length }) in steps.iter().copied().enumerate() {
        let own = if index == 0 { own } else { output() };
        let pre = own == input();
        let finish = Finish { pre, post: index + 1 == steps.len() };
        l.fold([own]).finish(Finish { pre, post: false }).into([to(peer)]).span(length).chunk(sent);
        l.fold([own, from(peer)]).finish(finish).into([output()]).span(length).chunk(kept);
    }
}

/// One exchange.
#[derive(Clone, Copy)]
struct Step {
    /// The partner's place.
    peer: i32,
    /// The first chunk that is kept.
    kept: i32,
    /// The first that is sent.
    sent: i32,
    /// How many are.
    length: i32,
}

fn steps(pairs: Pairs, seat: u32) -> Vec<Step> {
    let (seat, all) = (seat as i32, 1 << pairs.rounds);
    let mut first = 0;
    let step = |s: u32| {
        let length = all >> (s + 1);
        let halves = [first, first + length];
        let upper = bit(seat, s, pairs.rounds);
        first = halves[upper];
        let by = if seat % 2 == 0 { distance(s) } else { -distance(s) };
        let partner = (seat + by).rem_euclid(all);
        // Who sits behind a pair has moved up by one for each.
        let peer = partner + partner.min(pairs.count as i32);
        Step { peer, kept: halves[upper], sent: halves[1 - upper], length }
    };
    (0..pairs.rounds).map(step).collect()
}

/// ρ(s).
pub(crate) const fn distance(s: u32) -> i32 {
    (1 - (-2_i32).pow(s + 1)) / 3
}

/// b(s) of one of 2^rounds seats.
fn bit(seat: i32, s: u32, rounds: u32) -> usize {
    let (width, even) = (2 << s, seat % 2 == 0);
    let shift = match (s.is_multiple_of(2), even) {
        _ if s + 1 == rounds => return (seat % 2) as usize,
        (true, true) => 0,
        (true, false) => width - distance(s),
        (false, true) => width + distance(s) - 1,
        (false, false) => -1,
    };
    ((seat + shift).div_euclid(width) % 2) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::verify::{Depth, verify};
    use crate::{Algorithm, Collective};

    #[test]
    fn distances_are_those_of_the_paper() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(distance), [1, -1, 3, -5, 11, -21]);
    }

    /// What makes the ranges of two partners one before a step and two after it.
    #[test]
    fn a_bit_is_shared_with_later_partners_only() {
        for rounds in 1..=12 {
            let all = 1 << rounds;
            let partner =
                |seat: i32, s| (seat + if seat % 2 == 0 { distance(s) } else { -distance(s) }) & (all - 1);
            for (seat, s) in (0..all).flat_map(|seat| (0..rounds).map(move |s| (seat, s))) {
                assert_eq!(partner(partner(seat, s), s), seat);
                assert_ne!(
                    bit(seat, s, rounds),
                    bit(partner(seat, s), s, rounds),
                    "{seat} of {all}, step {s}"
                );
                for later in s + 1..rounds {
                    assert_eq!(bit(seat, s, rounds), bit(partner(seat, later), s, rounds), "{seat} of {all}");
                }
            }
        }
    }

    #[test]
    fn powers_of_two_take_the_fewest_messages() {
        for n in [2, 4, 8, 16, 64, 256] {
            let plan = Plan::new(Collective::AllReduce, Algorithm::Swing, n).unwrap();
            verify(&plan, Depth::Quick).unwrap_or_else(|witness| panic!("{witness}"));
            let program = plan.program(Place(n - 1), Place(0));
            assert_eq!(program.instructions.len() as u32, 4 * n.ilog2());
        }
        let large = Plan::new(Collective::AllReduce, Algorithm::Swing, 4096).unwrap();
        let programs = [0, 1, 2047, 4095].map(|place| large.program(Place(place), Place(0)));
        programs.into_iter().for_each(|program| drop(program.check(4096).unwrap()));
    }
}
