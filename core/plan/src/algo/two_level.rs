//! Two-level all-reduce: in the node, then between nodes, then in the node again.
//!
//! Places g·k … g·k + g − 1 are a node; g divides n, and N = n/g is the number of nodes. The vector is cut into g
//! parts of N chunks. A ring in each node reduces and scatters the parts: local rank l gets part l. A ring
//! of the ranks with local rank l in all nodes, a *rail*, all-reduces that part, chunk by chunk. A ring in
//! the node gathers the parts.
//!
//! 2(g−1) + 2(N−1) messages and 2(n−1)/n·S bytes per rank, of which only 2(N−1)/N·S/g leave the
//! node: it pays where links between nodes are slower than those within. Where all links are alike, halving takes
//! fewer messages and a ring no spans.
//!
//! Steps in the node move N chunks at once, by spans. Partial sums lie in the output, where only
//! chunks are that were read: safe in place. The fused steps need two slots per edge.
//!
//! Source: H. Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv
//! 1811.05233 (2018).

use crate::collective::Collective;
use crate::program::builder::{Arithmetic, Builder, Index, LaneBuilder, R, Term, from, input, output, to};
use crate::program::{Chunks, Program};

/// The ranks of a node where nobody says: the largest divisor of n up to its square root.
pub(crate) const fn ranks_per_node(n: u32) -> u32 {
    let mut largest = 1;
    let mut divisor = 1;
    while divisor * divisor <= n {
        if n.is_multiple_of(divisor) {
            largest = divisor;
        }
        divisor += 1;
    }
    largest
}

/// The program of all ranks; `g` divides n, and neither it nor n/g is 1.
pub(super) fn program(n: u32, g: u32) -> Program {
    let mut b = Builder::new("two_level", Collective::AllReduce, Chunks::N);
    let levels = Levels { g: g as i32, nodes: (n / g) as i32 };
    b.lane(|l| {
        levels.scatter(l);
        levels.rail(l);
        levels.gather(l);
    });
    b.finish()
}

#[derive(Clone, Copy)]
struct Levels {
    g: i32,
    nodes: i32,
}

impl Levels {
    /// The ring in the node, for a reduce-scatter of parts.
    fn scatter(self, l: &mut LaneBuilder<'_>) {
        let (next, previous) = (self.beside(l, 1), self.beside(l, -1));
        let part = self.part(l, R - 1);
        l.fold([input()]).pre().into([to(next)]).span(self.nodes).chunk(part);
        if self.g > 2 {
            l.each(2, self.g, |l, i| {
                let part = self.part(l, R - i);
                let fold = l.fold([from(previous), input()]).pre().into([to(next)]);
                fold.span(self.nodes).chunk(part);
            });
        }
        let own = self.part(l, R);
        l.fold([from(previous), input()]).pre().into([output()]).span(self.nodes).chunk(own);
    }

    /// The ring of the rail, for an all-reduce of the own part.
    fn rail(self, l: &mut LaneBuilder<'_>) {
        let (up, down) = (to(R + self.g), from(R - self.g));
        let first = self.chunk(l, -1);
        l.fold([output()]).into([up]).chunk(first);
        if self.nodes > 2 {
            l.each(2, self.nodes, |l, i| {
                let chunk = self.chunk(l, -i);
                l.fold([down, output()]).into([up]).chunk(chunk);
            });
        }
        let own = self.chunk(l, 0);
        l.fold([down, output()]).post().into([output(), up]).chunk(own);
        if self.nodes > 2 {
            l.each(1, self.nodes - 1, |l, i| {
                let chunk = self.chunk(l, -i);
                l.fold([down]).into([output(), up]).chunk(chunk);
            });
        }
        let last = self.chunk(l, 1);
        l.fold([down]).into([output()]).chunk(last);
    }

    /// The ring in the node, for an all-gather of parts.
    fn gather(self, l: &mut LaneBuilder<'_>) {
        let (next, previous) = (self.beside(l, 1), self.beside(l, -1));
        let own = self.part(l, R);
        l.fold([output()]).into([to(next)]).span(self.nodes).chunk(own);
        if self.g > 2 {
            l.each(1, self.g - 1, |l, i| {
                let part = self.part(l, R - i);
                let pass_on = l.fold([from(previous)]).into([output(), to(next)]);
                pass_on.span(self.nodes).chunk(part);
            });
        }
        let last = self.part(l, R + 1);
        l.fold([from(previous)]).into([output()]).span(self.nodes).chunk(last);
    }

    /// The place so many further on in the node.
    fn beside(self, l: &mut LaneBuilder<'_>, by: i32) -> Index {
        let node = l.over(R, self.g);
        let first = l.times(node, self.g);
        let local = l.plain(R + by);
        let local = l.modulo(local, self.g);
        l.sum(first, local)
    }

    /// The first chunk of the part of a local rank, from 0 to g − 1 around.
    fn part(self, l: &mut LaneBuilder<'_>, local: Term) -> Index {
        let local = l.plain(local);
        let local = l.modulo(local, self.g);
        l.times(local, self.nodes)
    }

    /// The chunk of the own part for the node so many further on.
    fn chunk(self, l: &mut LaneBuilder<'_>, by: impl Into<Term>) -> Index {
        let (node, by) = (l.over(R, self.g), l.plain(by));
        let node = l.sum(node, by);
        let node = l.modulo(node, self.nodes);
        let part = self.part(l, R);
        l.sum(part, node)
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::verify::{Depth, verify};
    use crate::{Algorithm, Collective};

    #[test]
    fn nodes_of_every_size_hold() {
        let mut seen = 0;
        for n in 2..=36 {
            for g in (1..=n).filter(|g| n % g == 0) {
                let plan = Plan::new(Collective::AllReduce, Algorithm::TwoLevel, n).unwrap();
                let plan = plan.with_bundle(g).unwrap();
                verify(&plan, Depth::Quick).unwrap_or_else(|witness| panic!("{g} in a node: {witness}"));
                seen += 1;
            }
            let plan = Plan::new(Collective::AllReduce, Algorithm::TwoLevel, n).unwrap();
            assert!(plan.with_bundle(n + 1).is_none());
        }
        assert!(seen > 100, "{seen}");
    }
}
