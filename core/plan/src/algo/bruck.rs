//! Bruck's algorithms: blocks travel in ⌈log2 n⌉ rounds, for any n.
//!
//! *All-gather*, near to far: before round i rank r has the blocks of the 2^i ranks from r on; it sends
//! as many of them as are still wanted to r − 2^i and gets the next ones from r + 2^i. *Reduce-scatter*,
//! far to near, is the reverse: in a round of distance 2^i rank r sends its partial sums of the blocks
//! of r + 2^i … to r + 2^i and folds what comes from r − 2^i into its own; block r is complete after
//! distance 1.
//!
//! (n−1)·b bytes per rank in ⌈log2 n⌉ messages on the critical path: as few bytes as a ring in far
//! fewer rounds, and far fewer messages per rank than the direct algorithms. They stop paying where
//! blocks are so long that a ring, which only talks to neighbours, or direct messages, which a receiver
//! may read where they are, save more than latency.
//!
//! Blocks of a round are consecutive places *around the end of the order*: one Move up to the end, a
//! second one from place 0 on, which is empty where nothing wraps. Reduce-scatter keeps partial sums in n cells of scratch,
//! all-gather needs none; both read the input before they write what it may share memory with.
//!
//! Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE TPDS 8 (1997).

use super::arc::Arc;
use crate::collective::Collective;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, R, Spot, from, input, output, scratch, to,
};
use crate::program::{Chunks, ExtentOf, Finish, Program};

pub(super) fn program(collective: Collective, n: u32) -> Program {
    let mut b = Builder::new("bruck", collective, Chunks::ONE);
    match collective {
        Collective::ReduceScatter => {
            b.scratch_chunks(n as u16);
            let rounds = Rounds::new(n, ExtentOf::SendBlock, scratch);
            b.lane(|l| rounds.reduce_scatter(l, &[output()]));
        }
        _ => b.lane(|l| {
            l.fold([input()]).into([output(), to(R - 1)]).recv_block(R);
            Rounds::new(n, ExtentOf::RecvBlock, |_| output()).all_gather(l);
        }),
    }
    b.finish()
}

/// The rounds among n ranks, n at least 2, over chunks or blocks.
pub(super) struct Rounds<P> {
    of: ExtentOf,
    /// Where partial sums of a chunk or block are kept.
    partial: P,
    n: i32,
    /// How many rounds there are.
    count: i32,
    /// The distance of the farthest.
    far: i32,
    /// The chunks or blocks that travel so far.
    reach: i32,
}

impl<P: Fn(Index) -> Spot> Rounds<P> {
    pub(super) fn new(n: u32, of: ExtentOf, partial: P) -> Rounds<P> {
        let far = (n.next_power_of_two() / 2) as i32;
        Rounds { of, partial, n: n as i32, count: super::rounds(n) as i32, far, reach: n as i32 - far }
    }

    /// All rounds of a reduce-scatter; the own result goes to `outputs`.
    pub(super) fn reduce_scatter(&self, l: &mut LaneBuilder<'_>, outputs: &[Spot]) {
        let (pre, none) = (Finish { pre: true, post: false }, Finish::default());
        let Rounds { of, partial, far, reach, .. } = self;
        let mut so_far: Spot = input();
        if self.count > 1 {
            let [gone, kept, got] = [(R + *far, *reach), (R + *reach, far - reach), (R, *reach)]
                .map(|(first, length)| self.arc(l, first, length));
            gone.moves(l, *of, pre, |_| [input()], |_| [to(R + *far)]);
            if far > reach {
                kept.moves(l, *of, pre, |_| [input()], |at| [partial(at)]);
            }
            got.moves(l, *of, pre, |_| [input(), from(R - *far)], |at| [partial(at)]);
            so_far = partial(R.into());
        }
        if self.count > 2 {
            l.each(1, self.count - 1, |l, i| {
                let exponent = l.plain(-i + (self.count - 1));
                let distance = l.power_of_two(exponent);
                let (next, previous) = (l.sum(R, distance), l.difference(R, distance));
                let (next, previous) = (l.mod_n(next), l.mod_n(previous));
                let gone = self.arc(l, next, distance);
                let got = self.arc(l, R, distance);
                gone.moves(l, *of, none, |at| [partial(at)], |_| [to(next)]);
                got.moves(l, *of, none, |at| [partial(at), from(previous)], |at| [partial(at)]);
            });
        }
        let first = self.count == 1;
        let next = if first { input() } else { partial((R + 1).into()) };
        let last = Finish { pre: first, post: true };
        l.fold([next])
            .finish(Finish { pre: first, post: false })
            .into([to(R + 1)])
            .cover(*of, (R + 1).into());
        l.fold([so_far, from(R - 1)]).finish(last).into_all(outputs).cover(*of, R.into());
    }

    /// All rounds of an all-gather, after the own chunk or block was sent to r − 1.
    pub(super) fn all_gather(&self, l: &mut LaneBuilder<'_>) {
        let (of, none) = (self.of, Finish::default());
        if self.count == 1 {
            return l.fold([from(R + 1)]).into([output()]).cover(of, (R + 1).into());
        }
        if self.count > 2 {
            l.each(0, self.count - 2, |l, i| {
                let exponents = [l.plain(i), l.plain(i + 1)];
                let [distance, following] = exponents.map(|exponent| l.power_of_two(exponent));
                let (next, previous) = (l.sum(R, distance), l.difference(R, following));
                let (next, previous) = (l.mod_n(next), l.mod_n(previous));
                let got = self.arc(l, next, distance);
                let gone = self.arc(l, R, following);
                got.moves(l, of, none, |_| [from(next)], |_| [output()]);
                gone.moves(l, of, none, |_| [output()], |_| [to(previous)]);
            });
        }
        let middle = self.far / 2;
        let got = self.arc(l, R + middle, middle);
        got.moves(l, of, none, |_| [from(R + middle)], |_| [output()]);
        let gone = self.arc(l, R, self.reach);
        gone.moves(l, of, none, |_| [output()], |_| [to(R - self.far)]);
        let got = self.arc(l, R + self.far, self.reach);
        got.moves(l, of, none, |_| [from(R + self.far)], |_| [output()]);
    }

    fn arc(&self, l: &mut LaneBuilder<'_>, first: impl Into<Index>, length: impl Into<Index>) -> Arc {
        Arc::new(l, self.n as u32, first, length)
    }
}
