//! PAT, parallel aggregated trees: all-gather and reduce-scatter for any n, in few messages for short
//! blocks and in a small buffer for many ranks.
//!
//! A block of owner o at rank r has the distance s = o − r modulo n. In a *reduce-scatter* it moves to the
//! rank low(s) further on, low being the lowest set bit, and folds into what that rank has for distance
//! s − low(s); at distance 0 it is complete. P is the least power of two from n on, A the *aggregation*, a power of two
//! up to P/2, and Δ = P/A. Every rank sends and receives the same list of groups of distances, those from
//! n on left out:
//!
//! 1. for t = Δ−1 … 1 the distances t, t + Δ, t + 2Δ, …, to the rank low(t) further on;
//! 2. for σ = 1, 2, 4, … A/2 the distances σΔ, 3σΔ, 5σΔ, …, to the rank σΔ further on.
//!
//! *All-gather* is the same list backwards, with every arrow turned round.
//!
//! min(Δ, n) − 1 + log2 A messages one after the other and (n−1)·b bytes per rank. The farther a message goes,
//! the fewer blocks it holds, where Bruck's algorithm sends half of all blocks half-way round: that is what
//! fabrics with less bandwidth at the top want. A = P/2 takes as few messages as Bruck's, ⌈log2 n⌉; smaller A serve
//! more ranks than a message has room for blocks. It stops paying where a ring's n − 1 latencies do not count.
//!
//! Step 1 visits the trees of partial sums depth first, so of the sums of one aggregated distance at most
//! one for each level is begun and not yet sent: log2 Δ levels of A cells, where Bruck's needs n. One
//! slot per edge is enough. The own input is read before the output is written: safe in place.
//!
//! Source: S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
//! arXiv 2506.20252 (2025).

use crate::collective::Collective;
use crate::program::builder::{Arithmetic, Builder, Index, LaneBuilder, R, from, input, output, scratch, to};
use crate::program::{Chunks, Program};

/// The largest aggregation for n ranks, which a Move has room for: 1 or a power of two.
pub(crate) const fn aggregation(n: u32) -> u32 {
    let most = n.next_power_of_two() / 2;
    match most {
        0 => 1,
        most if most > MOST_AGGREGATED => MOST_AGGREGATED,
        most => most,
    }
}

/// The program of all ranks; n is at least 2.
pub(super) fn program(collective: Collective, n: u32, aggregation: u32) -> Program {
    let mut b = Builder::new("pat", collective, Chunks::ONE);
    let pat = Pat::new(n, aggregation);
    match collective {
        Collective::ReduceScatter => {
            b.scratch_chunks(pat.cells() as u16);
            b.lane(|l| pat.reduce_scatter(l));
        }
        _ => b.lane(|l| pat.all_gather(l)),
    }
    b.finish()
}

#[derive(Clone, Copy)]
struct Pat {
    n: i32,
    aggregation: i32,
    /// Δ.
    delta: i32,
    /// log2 Δ, at least 1.
    levels: i32,
    /// log2 A.
    rounds: i32,
}

/// One group of step 1, and the one that it folds into.
struct Group {
    /// The distance t.
    t: Index,
    /// How far it moves.
    low: Index,
    /// Distances from t up to n.
    span: Index,
    /// How many of them are in the group.
    count: Index,
}

impl Pat {
    fn new(n: u32, aggregation: u32) -> Pat {
        let delta = n.next_power_of_two() / aggregation;
        let (levels, rounds) = (delta.ilog2() as i32, aggregation.ilog2() as i32);
        Pat { n: n as i32, aggregation: aggregation as i32, delta: delta as i32, levels, rounds }
    }

    /// A cell for each level and aggregated distance; the first pattern of step 2 may begin a quarter later.
    fn cells(self) -> i32 {
        (self.levels * self.aggregation).max(self.aggregation + self.aggregation / 4)
    }

    fn reduce_scatter(self, l: &mut LaneBuilder<'_>) {
        let alone = self.aggregation == 1;
        let end = if alone { self.delta - 1 } else { self.delta };
        if end > 1 {
            l.each(1, end, |l, i| {
                let t = l.plain(-i + self.delta);
                let (span, count) = (l.plain(i + (self.n - self.delta)), l.plain(i + (self.n - 1)));
                let count = l.over(count, self.delta);
                let low = l.low_bit(t);
                self.fold_group(l, &Group { t, low, span, count });
            });
        }
        if alone {
            let begun = if self.levels > 1 { scratch(0) } else { input() };
            let raw = begun == input();
            l.fold([input()]).pre().into([to(R + 1)]).send_block(R + 1);
            let last = l.fold([begun, from(R - 1)]);
            return if raw { last.pre() } else { last }.post().into([output()]).send_block(R);
        }
        self.fold_far(l);
    }

    /// Step 1 for one group: send it, then fold what arrives into the group that it belongs to.
    fn fold_group(self, l: &mut LaneBuilder<'_>, group: &Group) {
        let Group { t, low, span, count } = *group;
        let (next, previous) = (l.sum(R, low), l.difference(R, low));
        let (next, previous) = (l.mod_n(next), l.mod_n(previous));
        // Odd distances have received nothing: they are sent as they are.
        let odd = l.and(t, 1);
        let odd = l.times(odd, self.n);
        let raw = l.min(span, odd);
        let even = l.difference(self.n, odd);
        let summed = l.min(count, even);
        let owner = l.sum(R, t);
        let owner = l.mod_n(owner);
        l.fold([input()]).pre().into([to(next)]).span(raw).every(self.delta).send_block(owner);
        let sums = self.cell(l, t);
        l.fold([scratch(sums)]).into([to(next)]).span(summed).send_block(0);
        // The first to arrive for a group finds it empty; Δ stands for distance 0 among the bits.
        let below = l.sum(t, self.delta);
        let twice = l.times(low, 2);
        let first = l.and(below, twice);
        let first = l.times(first, self.n);
        let rest = l.sum(span, low);
        let begun = l.min(rest, first);
        let target = l.difference(t, low);
        let owner = l.sum(R, target);
        let owner = l.mod_n(owner);
        let parent = l.difference(below, low);
        let sums = self.cell(l, parent);
        l.fold([input()]).pre().into([scratch(sums)]).span(begun).every(self.delta).send_block(owner);
        l.fold([scratch(sums), from(previous)]).into([scratch(sums)]).span(count).send_block(0);
    }

    /// Where the sums of an even distance are, by its level; those of distance 0, or Δ, at 0.
    fn cell(self, l: &mut LaneBuilder<'_>, distance: Index) -> Index {
        let half = l.over(distance, 2);
        let level = l.zeros(half);
        let below = l.times(level, -self.aggregation);
        let top = l.plain((self.levels - 1) * self.aggregation);
        l.sum(top, below)
    }

    /// Step 2 of a reduce-scatter, over the sums of the distances 0, Δ, 2Δ, ….
    fn fold_far(self, l: &mut LaneBuilder<'_>) {
        let sums = (self.n - 1) / self.delta + 1;
        if self.rounds > 1 {
            l.each(0, self.rounds - 1, |l, i| {
                let exponent = l.plain(i);
                let sigma = l.power_of_two(exponent);
                let (twice, distance) = (l.times(sigma, 2), l.times(sigma, self.delta));
                let (next, previous) = (l.sum(R, distance), l.difference(R, distance));
                let (next, previous) = (l.mod_n(next), l.mod_n(previous));
                let all = l.plain(sums);
                let span = l.difference(all, sigma);
                l.fold([scratch(sigma)]).into([to(next)]).span(span).every(twice).send_block(0);
                let fold = l.fold([scratch(0), from(previous)]).into([scratch(0)]);
                fold.span(span).every(twice).send_block(0);
            });
        }
        let half = self.aggregation / 2 * self.delta;
        l.fold([scratch(self.aggregation / 2)]).into([to(R + half)]).send_block(0);
        l.fold([scratch(0), from(R - half)]).post().into([output()]).send_block(R);
    }

    fn all_gather(self, l: &mut LaneBuilder<'_>) {
        l.fold([input()]).into([output()]).recv_block(R);
        if self.rounds > 0 {
            l.each(0, self.rounds, |l, i| {
                let exponent = l.plain(-i + (self.levels + self.rounds - 1));
                let distance = l.power_of_two(exponent);
                let twice = l.times(distance, 2);
                self.pass_on(l, R.into(), distance, distance, twice);
            });
        }
        l.each(1, self.delta, |l, i| {
            let t = l.plain(i);
            let low = l.low_bit(t);
            let above = l.difference(t, low);
            let first = l.sum(R, above);
            let first = l.mod_n(first);
            let every = l.plain(self.delta);
            self.pass_on(l, first, t, low, every);
        });
    }

    /// Sends every so many blocks from `first` on `far` ranks back and gets those from distance t on.
    fn pass_on(self, l: &mut LaneBuilder<'_>, first: Index, t: Index, far: Index, every: Index) {
        let (next, previous) = (l.sum(R, far), l.difference(R, far));
        let (next, previous) = (l.mod_n(next), l.mod_n(previous));
        let got = l.sum(R, t);
        let got = l.mod_n(got);
        let span = l.difference(self.n, t);
        l.fold([output()]).into([to(previous)]).span(span).every(every).recv_block(first);
        l.fold([from(next)]).into([output()]).span(span).every(every).recv_block(got);
    }
}

/// So many blocks of 8 bytes fit slots of 4 KiB.
const MOST_AGGREGATED: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::{Action, Cursor, Site};
    use crate::ids::{Channel, Rank};
    use crate::layout::Layout;
    use crate::plan::Plan;
    use crate::verify::{Depth, verify};
    use crate::{Algorithm, Place};
    use alloc::collections::BTreeSet;

    fn plans() -> impl Iterator<Item = (Plan, u32, u32)> {
        let with = |collective, n, power: u32| {
            let plan = Plan::new(collective, Algorithm::Pat, n)?.with_bundle(1 << power)?;
            Some((plan, n, 1 << power))
        };
        [Collective::AllGather, Collective::ReduceScatter].into_iter().flat_map(move |collective| {
            (2..=33).flat_map(move |n| (0..6).filter_map(move |power| with(collective, n, power)))
        })
    }

    #[test]
    fn every_aggregation_holds() {
        let mut seen = 0;
        for (plan, n, aggregation) in plans() {
            let report = verify(&plan, Depth::Quick).unwrap_or_else(|witness| panic!("{witness}"));
            let finding = report.findings.values().next().unwrap();
            assert_eq!(finding.slots, 1, "n={n} A={aggregation}");
            seen += 1;
        }
        // One, two, three … aggregations for 2, up to 4, up to 8 … ranks.
        assert_eq!(seen, 2 * (1 + 2 * 2 + 4 * 3 + 8 * 4 + 16 * 5 + 6));
    }

    #[test]
    fn messages_blocks_and_sums_are_as_few_as_stated() {
        for (plan, n, aggregation) in plans() {
            let delta = n.next_power_of_two() / aggregation;
            let walked = walked(&plan, n);
            let text = alloc::format!("{} n={n} A={aggregation}: {walked:?}", plan.collective());
            assert_eq!(walked.messages, delta.min(n) - 1 + aggregation.ilog2(), "{text}");
            assert_eq!(walked.blocks, n - 1, "{text}");
            assert!(walked.most_sums <= aggregation * delta.ilog2(), "{text}");
            let program = plan.program(Place(0), Place(0));
            assert!(program.to_bytes().len() <= 4096 && program.instructions.len() <= 16, "{text}");
        }
    }

    /// What one rank sends, and how many sums it has begun and not sent at most.
    #[derive(Debug, Default)]
    struct Walked {
        messages: u32,
        blocks: u32,
        most_sums: u32,
    }

    fn walked(plan: &Plan, n: u32) -> Walked {
        let program = plan.program(Place(0), Place(0)).check(n).unwrap();
        let layout = Layout::even(plan.collective(), n, Rank(0), 1, 1);
        let mut cursor = Cursor::new(&program, 0, Channel(0), &layout, Rank(0));
        let (mut walked, mut sums) = (Walked::default(), BTreeSet::new());
        while let Some(Action::Move(step)) = cursor.next(&program, &layout) {
            let sends = step.outputs().iter().any(|site| matches!(site, Site::Send { .. }));
            walked.messages += u32::from(sends);
            walked.blocks += if sends { step.count as u32 } else { 0 };
            for piece in 0..step.pieces {
                let cell = |site: &Site| match step.piece(&layout, *site, piece).0 {
                    Site::Scratch { cell } => Some(cell),
                    _ => None,
                };
                step.inputs().iter().filter_map(cell).for_each(|cell| assert!(sums.remove(&cell)));
                sums.extend(step.outputs().iter().filter_map(cell));
            }
            walked.most_sums = walked.most_sums.max(sums.len() as u32);
        }
        assert!(sums.is_empty());
        walked
    }
}
