//! Recursive doubling and halving over blocks: all-gather and reduce-scatter in ⌊log2 n⌋ exchanges.
//!
//! Ranks whose seats share the bits from k on make a range of 2^k seats. *All-gather*, near to far: before step k a rank has
//! the blocks of its range; it exchanges them with the rank whose seat differs in bit k. *Reduce-scatter*, far to near, is
//! the reverse: in step k a rank sends its sums of the half range in which its partner is, and folds what comes
//! into its own of the half in which it is itself.
//!
//! (n−1)·b bytes per rank, as in Bruck's rounds, and as many messages where n is a power of two; but both directions
//! go between the same two ranks, which then wait for each other alone, have one connection, and half as many
//! peers. Ranges never go around the end: one Move each. Where n is no power of two, ranks stand in pairs
//! (see `pairs`): the second of a pair sends its block, or its vector, to the first beforehand and gets what it wants
//! from it afterwards, so two messages and up to n blocks more; there Bruck's rounds are the better ones, as rings and
//! direct messages are for long blocks.
//!
//! Sums lie in n cells of scratch, of which the first step needs none. One slot per edge is enough. Both read
//! the input before they write what it may share memory with: safe in place.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
//! operations in MPICH", IJHPCA 19 (2005).

use super::Role;
use super::pairs::{Pairs, Standing};
use crate::collective::Collective;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, R, Spot, Term, from, input, output, scratch, to,
};
use crate::program::{Chunks, Finish, Program};

/// The program of a role; n is at least 2.
pub(super) fn program(collective: Collective, n: u32, role: Role) -> Program {
    let mut b = Builder::new("recursive_doubling", collective, Chunks::ONE);
    let pairs = Pairs::of(n);
    let seat = if role.standing == Standing::Second { R.into() } else { pairs.seat(&mut b, role) };
    let steps = Steps { n, pairs, seat, standing: role.standing };
    match collective {
        Collective::ReduceScatter => {
            if role.standing == Standing::First || role.standing == Standing::Single && pairs.rounds > 1 {
                b.scratch_chunks(n as u16);
            }
            b.lane(|l| steps.reduce_scatter(l));
        }
        _ => b.lane(|l| steps.all_gather(l)),
    }
    b.finish()
}

/// The exchanges of a rank.
struct Steps {
    n: u32,
    pairs: Pairs,
    /// The own one.
    seat: Index,
    standing: Standing,
}

/// One exchange.
struct Step {
    /// With whom.
    peer: Index,
    /// The places on the own side.
    near: Range,
    /// Those on the partner's.
    far: Range,
}

/// Places that follow each other.
#[derive(Clone, Copy)]
struct Range {
    first: Index,
    length: Index,
}

impl Steps {
    fn all_gather(&self, l: &mut LaneBuilder<'_>) {
        let (all, last) = (self.n as i32, self.pairs.rounds as i32 - 1);
        match self.standing {
            Standing::Second => {
                l.fold([input()]).into([to(R - 1)]).recv_block(R);
                return l.fold([from(R - 1)]).into([output()]).span(all).recv_block(0);
            }
            Standing::First => {
                l.fold([input()]).into([output()]).recv_block(R);
                l.fold([from(R + 1)]).into([output()]).recv_block(R + 1);
                self.step(l, 0.into()).give(l);
            }
            Standing::Single => {
                let Step { peer, .. } = self.step(l, 0.into());
                l.fold([input()]).into([output(), to(peer)]).recv_block(R);
            }
        }
        self.each(l, (0, last), |l, k| {
            self.step(l, k).get(l);
            self.step(l, k + 1).give(l);
        });
        self.step(l, last.into()).get(l);
        if self.standing == Standing::First {
            l.fold([output()]).into([to(R + 1)]).span(all).recv_block(0);
        }
    }

    fn reduce_scatter(&self, l: &mut LaneBuilder<'_>) {
        let (all, last) = (self.n as i32, self.pairs.rounds as i32 - 1);
        match self.standing {
            Standing::Second => {
                l.fold([input()]).pre().into([to(R - 1)]).span(all).send_block(0);
                return l.fold([from(R - 1)]).into([output()]).send_block(R);
            }
            Standing::First => {
                l.fold([input(), from(R + 1)]).pre().into([scratch(0)]).span(all).send_block(0);
            }
            Standing::Single => {}
        }
        let fresh = self.standing == Standing::Single;
        if last > 0 {
            let own = if fresh { Own::Input } else { Own::Sums };
            self.step(l, last.into()).halve(l, own);
            self.each(l, (1, last), |l, i| self.step(l, -i + last).halve(l, Own::Sums));
        }
        self.complete(l, if fresh && last == 0 { Own::Input } else { Own::Sums });
    }

    /// The last step of a reduce-scatter, after which a rank has its block, and that of who stands behind it.
    fn complete(&self, l: &mut LaneBuilder<'_>, own: Own) {
        let step = self.step(l, 0.into());
        step.send(l, own);
        let finish = Finish { pre: own == Own::Input, post: true };
        if self.standing == Standing::First {
            step.fold(l, own, finish, scratch(step.near.first));
            l.fold([scratch(R)]).into([output()]).send_block(R);
            l.fold([scratch(R + 1)]).into([to(R + 1)]).send_block(R + 1);
        } else {
            l.fold([own.at(R.into()), from(step.peer)]).finish(finish).into([output()]).send_block(R);
        }
    }

    /// A loop; or, where ranks stand in pairs, what it repeats, since places are then too much for one expression.
    fn each(
        &self,
        l: &mut LaneBuilder<'_>,
        (first, end): (i32, i32),
        mut body: impl FnMut(&mut LaneBuilder<'_>, Term),
    ) {
        if self.pairs.count == 0 && end - first > 1 {
            l.each(first, end, body);
        } else {
            (first..end).for_each(|k| body(l, k.into()));
        }
    }

    /// Step k.
    fn step(&self, l: &mut LaneBuilder<'_>, k: Term) -> Step {
        let seats = 1 << self.pairs.rounds;
        let [bit, mask] = match k.as_constant() {
            Some(k) => [1 << k, seats - (1 << k)].map(|value| l.plain(value)),
            None => {
                let (exponent, seats) = (l.plain(k), l.plain(seats));
                let bit = l.power_of_two(exponent);
                [bit, l.difference(seats, bit)]
            }
        };
        let near = l.and(self.seat, mask);
        let far = l.xor(near, bit);
        let opposite = l.xor(self.seat, bit);
        let peer = self.pairs.place(l, opposite);
        Step { peer, near: self.range(l, near, bit), far: self.range(l, far, bit) }
    }

    /// The places of so many seats: two for each that stands for a pair, and pairs sit before all others.
    fn range(&self, l: &mut LaneBuilder<'_>, first: Index, seats: Index) -> Range {
        if self.pairs.count == 0 {
            return Range { first, length: seats };
        }
        let all_pairs = l.plain(self.pairs.count as i32);
        let behind = l.difference(all_pairs, first);
        let none = l.plain(0);
        let left = l.max(behind, none);
        let pairs = l.min(left, seats);
        Range { first: self.pairs.place(l, first), length: l.sum(seats, pairs) }
    }
}

/// Where a rank's own contribution to a sum is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Input,
    Sums,
}

impl Own {
    fn at(self, place: Index) -> Spot {
        if self == Own::Input { input() } else { scratch(place) }
    }
}

impl Step {
    /// Sends the blocks of the own side.
    fn give(&self, l: &mut LaneBuilder<'_>) {
        let Range { first, length } = self.near;
        l.fold([output()]).into([to(self.peer)]).span(length).recv_block(first);
    }

    /// Receives those of the other.
    fn get(&self, l: &mut LaneBuilder<'_>) {
        let Range { first, length } = self.far;
        l.fold([from(self.peer)]).into([output()]).span(length).recv_block(first);
    }

    /// Keeps half of the sums.
    fn halve(&self, l: &mut LaneBuilder<'_>, own: Own) {
        self.send(l, own);
        let finish = Finish { pre: own == Own::Input, post: false };
        self.fold(l, own, finish, scratch(self.near.first));
    }

    /// Sends the sums of the other side.
    fn send(&self, l: &mut LaneBuilder<'_>, own: Own) {
        let Range { first, length } = self.far;
        let finish = Finish { pre: own == Own::Input, post: false };
        l.fold([own.at(first)]).finish(finish).into([to(self.peer)]).span(length).send_block(first);
    }

    /// Folds what comes into those of the own side.
    fn fold(&self, l: &mut LaneBuilder<'_>, own: Own, finish: Finish, sums: Spot) {
        let Range { first, length } = self.near;
        let inputs = [own.at(first), from(self.peer)];
        l.fold(inputs).finish(finish).into([sums]).span(length).send_block(first);
    }
}
