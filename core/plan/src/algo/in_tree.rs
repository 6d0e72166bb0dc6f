//! Folding everybody's contribution in the canonical tree.
//!
//! The canonical tree over the places lo … lo + m − 1 folds those below lo + p with those from there on,
//! p being the largest power of two below m. It does not depend on who folds, and what stands at places
//! 2^k·i … 2^k·(i+1) − 1 is folded alone before it meets anything else: a rank that folds 2^k
//! contributions of its own in this tree stands for 2^k ranks, bit for bit.
//!
//! Contributions arrive in ascending order, pairs first, as a binary counter counts: pair m folds with what
//! pairs m − 1, m − 3, … have made, as many times as m + 1 has zeros at its end. A cell of scratch holds the
//! sum of each set bit, and one the sum at hand. The own contribution is read before the result is written:
//! safe in place. n − 1 Moves, each of two contributions but for four ranks or less.

use alloc::vec::Vec;

use super::Position;
use crate::program::builder::{Arithmetic, Index, LaneBuilder, R, Spot, Term, from, input, scratch};
use crate::program::{ExtentOf, Finish};

/// Cells of scratch that [`fold`] needs.
pub(super) const fn cells(n: u32) -> u16 {
    match n {
        0..=3 => 0,
        4 => 1,
        _ => (n / 2).ilog2() as u16 + 2,
    }
}

/// Folds the own input with one slot from every other rank into `outputs`, completing the reduction of
/// the data named by `of` and `index`. n is at least 2.
pub(super) fn fold(
    l: &mut LaneBuilder<'_>,
    n: u32,
    position: Position,
    outputs: &[Spot],
    (of, index): (ExtentOf, Index),
) {
    let tree = Tree { n, of, index };
    match position {
        Position::Fixed(place) => tree.few(l, place, outputs),
        _ => {
            tree.pairs(l);
            tree.rest(l, outputs);
        }
    }
}

struct Tree {
    n: u32,
    of: ExtentOf,
    index: Index,
}

impl Tree {
    /// Up to four contributions: three in a Move, or two before the other two.
    fn few(&self, l: &mut LaneBuilder<'_>, place: u8, outputs: &[Spot]) {
        let all = (0..self.n as u8).map(|peer| if peer == place { input() } else { from(i32::from(peer)) });
        let mut all: Vec<Spot> = all.collect();
        if let [_, _, third, fourth] = all[..] {
            let pre = [third, fourth].contains(&input());
            self.add(l, &[third, fourth], &[scratch(0)], Finish { pre, post: false }, 1.into());
            all.truncate(2);
            all.push(scratch(0));
        }
        let pre = all.contains(&input());
        self.add(l, &all, outputs, Finish { pre, post: true }, 1.into());
    }

    /// Every pair of contributions, and what pairs make together but for the last fold of all.
    fn pairs(&self, l: &mut LaneBuilder<'_>) {
        let own_pair = l.over(R, 2);
        let own_second = l.modulo(R, 2);
        l.each(0, self.count() as i32, |l, i| {
            let (first, second) = (l.plain(i + i), l.plain(i + i + 1));
            let apart = l.xor(i, own_pair);
            let others = l.min(apart, 1);
            let own_first = l.difference(1, others);
            let own_first = l.difference(own_first, own_second);
            let own = l.difference(own_second, others);
            let after = l.plain(i + 1);
            let zeros = l.zeros(after);
            let kept = self.kept(l, 0, zeros);
            let (none, pre) = (Finish::default(), Finish { pre: true, post: false });
            self.add(l, &[from(first), from(second)], &[kept], none, others);
            self.add(l, &[input(), from(second)], &[kept], pre, own_first);
            self.add(l, &[from(first), input()], &[kept], pre, own);
            if self.merges() > 0 {
                l.each(0, self.merges() as i32, |l, j| {
                    let levels = l.plain(-j);
                    let more = l.sum(zeros, levels);
                    let merges = l.min(more, 1);
                    let kept = self.kept(l, j + 1, zeros);
                    let before = l.plain(j + 1);
                    self.add(l, &[scratch(before), scratch(0)], &[kept], none, merges);
                });
            }
        });
    }

    /// The sums that are left, the shortest first, and the last contribution if it has no pair.
    fn rest(&self, l: &mut LaneBuilder<'_>, outputs: &[Spot]) {
        let pairs = self.count();
        let set: Vec<i32> = (0..32).filter(|bit| pairs >> bit & 1 == 1).collect();
        let (hand, odd) = ([scratch(0)], !self.n.is_multiple_of(2));
        let sums: Vec<Spot> = match set[..] {
            // What a power of two of pairs makes is not folded yet: its second half is the sum at hand.
            [top] if odd => return self.with_last(l, &[sum(top - 1), hand[0]], outputs, true),
            [top] => [hand[0], sum(top - 1)].to_vec(),
            _ => set.iter().map(|bit| sum(*bit)).collect(),
        };
        let [shortest, longer @ ..] = &sums[..] else { return };
        let mut so_far = *shortest;
        if odd {
            self.with_last(l, &[so_far], &hand, false);
            so_far = hand[0];
        }
        for (index, next) in longer.iter().enumerate() {
            let post = index + 1 == longer.len();
            let targets = if post { outputs } else { &hand };
            self.add(l, &[*next, so_far], targets, Finish { pre: false, post }, 1.into());
            so_far = hand[0];
        }
    }

    /// Sums, from left to right, and behind them the last contribution, which may be the own.
    fn with_last(&self, l: &mut LaneBuilder<'_>, sums: &[Spot], outputs: &[Spot], post: bool) {
        let last = self.n as i32 - 1;
        let before = l.plain(-R + last);
        let others = l.min(before, 1);
        let own = l.difference(1, others);
        for (contribution, span) in [(from(last), others), (input(), own)] {
            let inputs: Vec<Spot> = sums.iter().copied().chain([contribution]).collect();
            let pre = contribution == input();
            self.add(l, &inputs, outputs, Finish { pre, post }, span);
        }
    }

    /// Where the sum of `level` is put after pair m, m + 1 having so many zeros at its end: kept, if it meets
    /// no other now.
    fn kept(&self, l: &mut LaneBuilder<'_>, level: impl Into<Term>, zeros: Index) -> Spot {
        let level = level.into();
        let levels = l.plain(-level);
        let more = l.sum(zeros, levels);
        let more = l.min(more, 1);
        let stays = l.difference(1, more);
        let stays = l.times(stays, LEVELS);
        let cell = l.plain(level + 1);
        let cell = l.min(cell, stays);
        // A sum that no pair makes has a place as well.
        scratch(l.max(cell, 0))
    }

    fn add(&self, l: &mut LaneBuilder<'_>, inputs: &[Spot], outputs: &[Spot], finish: Finish, span: Index) {
        let sentence = l.fold_all(inputs).finish(finish).into_all(outputs);
        let sentence = if span == 1.into() { sentence } else { sentence.span(span) };
        sentence.cover(self.of, self.index);
    }

    /// How many pairs there are.
    fn count(&self) -> u32 {
        self.n / 2
    }

    /// How often pairs are folded before the rest: the last of a power of two is not among them.
    fn merges(&self) -> u32 {
        let top = self.count().ilog2();
        if self.count().is_power_of_two() { top - 1 } else { top }
    }
}

/// The sum of a level.
fn sum(level: i32) -> Spot {
    scratch(level + 1)
}

/// More than there are.
const LEVELS: i32 = 64;
