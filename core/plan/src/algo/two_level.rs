//! Two-level all-reduce: in the node, then between nodes, then in the node again.
//!
//! Places that follow each other are a node; N is the number of nodes, g the ranks of a node, m those of the
//! smallest. The vector is cut into m parts of N chunks. A ring in each node reduces and scatters the parts: local
//! rank l gets part l. The ranks with local rank l in all nodes, a *rail*, all-reduce that part. A ring in the
//! node gathers the parts. Local ranks from m on have no part and no rail: they contribute to the parts of others and get
//! them. Parts that a ring in a larger node would have beyond m are empty, and empty Moves are no messages.
//!
//! | rails | messages | bytes that leave a rank of a rail |
//! |---|---|---|
//! | `two_level`: a ring | 2(g−1) + 2(N−1) | 2(N−1)/N·S/m |
//! | `two_level_halving`: halving, then doubling, as Rabenseifner's | 2(g−1) + 2⌈log2 N⌉ | 2(N−1)/N·S/m |
//!
//! Besides, 2(m−1)/m·S bytes stay in the node, 2·S in larger nodes than the smallest: with equal nodes 2(n−1)/n·S in
//! all, the least possible. It pays where links between nodes are slower than those within, halving for shorter
//! vectors and rings where neighbouring nodes are nearer. Where all links are alike, halving among all ranks takes fewer
//! messages and a ring no spans. A node that is much smaller than others leaves their links between nodes unused.
//!
//! Steps in the node move N chunks at once, by spans. Partial sums lie in the output, where only
//! chunks are that were read: safe in place. The fused steps need two slots per edge. With equal nodes all
//! ranks run one text, else all of a node do.
//!
//! Source: H. Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv
//! 1811.05233 (2018).

use alloc::vec::Vec;

use crate::collective::Collective;
use crate::ids::Place;
use crate::program::builder::{
    Arithmetic, Builder, Index, LaneBuilder, R, Spot, Term, from, input, output, to,
};
use crate::program::{Chunks, Finish, Program};

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

/// How the ranks of a rail all-reduce their part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rails {
    /// Chunk by chunk around a ring.
    Ring,
    /// At distances …, 4, 2, 1 and then 1, 2, 4, ….
    Halving,
}

/// The program of all ranks with nodes of g ranks; g divides n, and neither it nor n/g is 1.
pub(super) fn even(name: &str, rails: Rails, n: u32, g: u32) -> Program {
    let levels = Levels { size: g as i32, nodes: (n / g) as i32, parts: g as i32, site: None };
    levels.program(name, rails)
}

/// The program of all ranks of node `node` of those of different `sizes`, more than one.
pub(super) fn uneven(name: &str, rails: Rails, sizes: &[u32], node: u32) -> Program {
    let firsts = sizes.iter().scan(0, |sum, size| {
        *sum += *size as i32;
        Some(*sum - *size as i32)
    });
    let site = Site { node: node as i32, firsts: firsts.collect() };
    let (size, parts) = (sizes.get(node as usize).copied(), sizes.iter().min().copied());
    let (size, parts) = (size.unwrap_or(1) as i32, parts.unwrap_or(1) as i32);
    Levels { size, nodes: sizes.len() as i32, parts, site: Some(site) }.program(name, rails)
}

/// The node of a place.
pub(crate) fn node_of(sizes: &[u32], place: Place) -> u32 {
    let ends = sizes.iter().scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    ends.take_while(|end| *end <= place.0).count() as u32
}

struct Levels {
    /// g of the own node.
    size: i32,
    /// N.
    nodes: i32,
    /// m.
    parts: i32,
    /// Where the own node is, if nodes differ.
    site: Option<Site>,
}

/// One of several nodes.
struct Site {
    node: i32,
    /// The first place of each node.
    firsts: Vec<i32>,
}

/// A node so many further on.
#[derive(Clone, Copy)]
enum Far {
    /// As this says.
    Known(i32),
    /// As an expression says, and not in the farthest exchange.
    Some(Index),
}

/// What two ranks of a rail exchange at a distance: the chunks of nodes from the own on, and of those from there on.
struct Exchange {
    up: Index,
    down: Index,
    own: Vec<Stretch>,
    far: Vec<Stretch>,
}

/// Chunks that follow each other: the first, and how many.
type Stretch = (Index, Index);

impl Levels {
    fn program(&self, name: &str, rails: Rails) -> Program {
        let chunks = if self.site.is_none() {
            Chunks::N
        } else {
            Chunks { constant: (self.parts * self.nodes) as u16, per_rank: 0 }
        };
        let mut b = Builder::new(name, Collective::AllReduce, chunks);
        b.lane(|l| {
            self.scatter(l);
            match rails {
                Rails::Ring => self.ring(l),
                Rails::Halving => self.halving(l),
            }
            self.gather(l);
        });
        b.finish()
    }

    /// The ring in the node, for a reduce-scatter of parts.
    fn scatter(&self, l: &mut LaneBuilder<'_>) {
        let own = self.part(l, R);
        if self.size == 1 {
            return l.fold([input()]).pre().into([output()]).span(self.nodes).chunk(own);
        }
        let (next, previous) = (self.beside(l, 1), self.beside(l, -1));
        let part = self.part(l, R - 1);
        l.fold([input()]).pre().into([to(next)]).span(self.nodes).chunk(part);
        if self.size > 2 {
            l.each(2, self.size, |l, i| {
                let part = self.part(l, R - i);
                let fold = l.fold([from(previous), input()]).pre().into([to(next)]);
                fold.span(self.nodes).chunk(part);
            });
        }
        l.fold([from(previous), input()]).pre().into([output()]).span(self.nodes).chunk(own);
    }

    /// The ring of the rail.
    fn ring(&self, l: &mut LaneBuilder<'_>) {
        let (up, down) = (to(self.node(1)), from(self.node(-1)));
        let (none, post) = (Finish::default(), Finish { pre: false, post: true });
        let first = self.chunk(l, -1);
        self.step(l, &[output()], none, &[up], first);
        if self.nodes > 2 {
            l.each(2, self.nodes, |l, i| {
                let chunk = self.chunk(l, -i);
                self.step(l, &[down, output()], none, &[up], chunk);
            });
        }
        let own = self.chunk(l, 0);
        self.step(l, &[down, output()], post, &[output(), up], own);
        if self.nodes > 2 {
            l.each(1, self.nodes - 1, |l, i| {
                let chunk = self.chunk(l, -i);
                self.step(l, &[down], none, &[output(), up], chunk);
            });
        }
        let last = self.chunk(l, 1);
        self.step(l, &[down], none, &[output()], last);
    }

    /// A Move for a chunk, or for nothing on a rank that has no part.
    fn step(&self, l: &mut LaneBuilder<'_>, inputs: &[Spot], finish: Finish, outputs: &[Spot], chunk: Index) {
        let sentence = l.fold_all(inputs).finish(finish).into_all(outputs);
        match self.site {
            Some(_) => sentence.span(1).chunk(chunk),
            None => sentence.chunk(chunk),
        }
    }

    /// Halving and doubling on the rail: the rounds of `bruck`, which serve any N.
    fn halving(&self, l: &mut LaneBuilder<'_>) {
        let rounds = super::rounds(self.nodes as u32) as i32;
        let (none, post) = (Finish::default(), Finish { pre: false, post: true });
        let farthest = Far::Known(1 << (rounds - 1));
        if self.site.is_some() {
            (1..rounds).rev().for_each(|round| self.halve(l, Far::Known(1 << round), none));
            self.halve(l, Far::Known(1), post);
            return (0..rounds).for_each(|round| self.double(l, Far::Known(1 << round)));
        }
        if rounds == 1 {
            self.halve(l, farthest, post);
            return self.double(l, farthest);
        }
        self.halve(l, farthest, none);
        if rounds > 2 {
            l.each(2, rounds, |l, i| {
                let exponent = l.plain(-i + rounds);
                let far = Far::Some(l.power_of_two(exponent));
                self.halve(l, far, none);
            });
        }
        self.halve(l, Far::Known(1), post);
        l.each(0, rounds - 1, |l, i| {
            let exponent = l.plain(i);
            let far = Far::Some(l.power_of_two(exponent));
            self.double(l, far);
        });
        self.double(l, farthest);
    }

    fn halve(&self, l: &mut LaneBuilder<'_>, far: Far, finish: Finish) {
        let Exchange { up, down, own, far } = self.exchange(l, far);
        cover(l, &far, Finish::default(), &[output()], to(up));
        cover(l, &own, finish, &[output(), from(down)], output());
    }

    fn double(&self, l: &mut LaneBuilder<'_>, far: Far) {
        let Exchange { up, down, own, far } = self.exchange(l, far);
        cover(l, &own, Finish::default(), &[output()], to(down));
        cover(l, &far, Finish::default(), &[from(up)], output());
    }

    /// The ring in the node, for an all-gather of parts.
    fn gather(&self, l: &mut LaneBuilder<'_>) {
        if self.size == 1 {
            return;
        }
        let (next, previous) = (self.beside(l, 1), self.beside(l, -1));
        let own = self.part(l, R);
        l.fold([output()]).into([to(next)]).span(self.nodes).chunk(own);
        if self.size > 2 {
            l.each(1, self.size - 1, |l, i| {
                let part = self.part(l, R - i);
                let pass_on = l.fold([from(previous)]).into([output(), to(next)]);
                pass_on.span(self.nodes).chunk(part);
            });
        }
        let last = self.part(l, R + 1);
        l.fold([from(previous)]).into([output()]).span(self.nodes).chunk(last);
    }

    /// The place so many further on in the node.
    fn beside(&self, l: &mut LaneBuilder<'_>, by: i32) -> Index {
        let first = match &self.site {
            Some(site) => l.plain(site.first()),
            None => {
                let node = l.over(R, self.size);
                l.times(node, self.size)
            }
        };
        let local = self.local(l, R + by);
        l.sum(first, local)
    }

    /// A place of the node as a local rank, from 0 to g − 1 around.
    fn local(&self, l: &mut LaneBuilder<'_>, place: Term) -> Index {
        let first = self.site.as_ref().map_or(0, Site::first);
        let local = l.plain(place - first);
        l.modulo(local, self.size)
    }

    /// The first chunk of the part of a place of the node; behind the last chunk where it has none.
    fn part(&self, l: &mut LaneBuilder<'_>, place: Term) -> Index {
        let local = self.local(l, place);
        l.times(local, self.nodes)
    }

    /// The rank of the rail so many nodes further on.
    fn node(&self, by: i32) -> Term {
        match &self.site {
            None => R + by * self.size,
            Some(site) => {
                let node = (site.node + by).rem_euclid(self.nodes) as usize;
                // Who has no rail sends nothing, to whichever place this is.
                R + (site.firsts[node] - site.first())
            }
        }
    }

    /// The chunk of the own part for the node so many further on.
    fn chunk(&self, l: &mut LaneBuilder<'_>, by: impl Into<Term>) -> Index {
        let by = by.into();
        let node = match &self.site {
            Some(site) => l.plain(by + site.node),
            None => {
                let (node, by) = (l.over(R, self.size), l.plain(by));
                l.sum(node, by)
            }
        };
        let node = l.modulo(node, self.nodes);
        let part = self.part(l, R);
        l.sum(part, node)
    }

    fn exchange(&self, l: &mut LaneBuilder<'_>, far: Far) -> Exchange {
        let part = self.part(l, R);
        match (far, &self.site) {
            (Far::Known(far), Some(site)) => {
                let reach = far.min(self.nodes - far);
                let mut stretches = |node: i32| {
                    let first = node.rem_euclid(self.nodes);
                    let head = reach.min(self.nodes - first);
                    let both =
                        [(first, head), (0, reach - head)].into_iter().filter(|(_, length)| *length > 0);
                    both.map(|(first, length)| (l.sum(part, first), length.into())).collect()
                };
                let (own, beyond) = (stretches(site.node), stretches(site.node + far));
                Exchange { up: self.node(far).into(), down: self.node(-far).into(), own, far: beyond }
            }
            (far, _) => {
                let (far, reach) = match far {
                    Far::Known(far) => (l.plain(far), l.plain(far.min(self.nodes - far))),
                    Far::Some(far) => (far, far),
                };
                let node = l.over(R, self.size);
                let beyond = l.sum(node, far);
                let beyond = l.modulo(beyond, self.nodes);
                let places = l.times(far, self.size);
                let (up, down) = (l.sum(R, places), l.difference(R, places));
                Exchange {
                    up: l.mod_n(up),
                    down: l.mod_n(down),
                    own: self.around(l, part, node, reach),
                    far: self.around(l, part, beyond, reach),
                }
            }
        }
    }

    /// `reach` chunks of a part from that of `node` on, around the end of the part.
    fn around(&self, l: &mut LaneBuilder<'_>, part: Index, node: Index, reach: Index) -> Vec<Stretch> {
        let to_end = l.difference(self.nodes, node);
        let head = l.min(reach, to_end);
        let end = l.sum(node, reach);
        let behind_the_end = l.difference(end, self.nodes);
        [(l.sum(part, node), head), (part, behind_the_end)].into()
    }
}

impl Site {
    fn first(&self) -> i32 {
        self.firsts[self.node as usize]
    }
}

fn cover(l: &mut LaneBuilder<'_>, stretches: &[Stretch], finish: Finish, inputs: &[Spot], to: Spot) {
    for (first, length) in stretches {
        l.fold_all(inputs).finish(finish).into([to]).span(*length).chunk(*first);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use crate::plan::Plan;
    use crate::verify::{Depth, verify};
    use crate::{Algorithm, Collective};

    const BOTH: [Algorithm; 2] = [Algorithm::TwoLevel, Algorithm::TwoLevelHalving];

    fn plan(algorithm: Algorithm, sizes: &[u32]) -> Option<Plan> {
        Plan::new(Collective::AllReduce, algorithm, sizes.iter().sum())?.with_nodes(sizes)
    }

    fn holds(algorithm: Algorithm, sizes: &[u32], depth: Depth) {
        let plan = plan(algorithm, sizes).unwrap();
        verify(&plan, depth).unwrap_or_else(|witness| panic!("nodes of {sizes:?}: {witness}"));
    }

    #[test]
    fn equal_nodes_of_every_size_hold() {
        let mut seen = 0;
        for n in 2..=36 {
            for g in (1..=n).filter(|g| n % g == 0) {
                let sizes: Vec<u32> = (0..n / g).map(|_| g).collect();
                for algorithm in BOTH {
                    assert_eq!(plan(algorithm, &sizes).unwrap().bundle(), g);
                    holds(algorithm, &sizes, Depth::Quick);
                }
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }

    /// Every way to cut up to eight ranks into nodes.
    #[test]
    fn small_nodes_of_any_sizes_hold() {
        let mut seen = 0;
        for n in 2..=8_u32 {
            for cuts in 0..1 << (n - 1) {
                let mut sizes = [1].to_vec();
                for rank in 1..n {
                    match sizes.last_mut() {
                        Some(last) if cuts >> (rank - 1) & 1 == 0 => *last += 1,
                        _ => sizes.push(1),
                    }
                }
                let depth = if n <= 6 { Depth::Each } else { Depth::Quick };
                BOTH.into_iter().for_each(|algorithm| holds(algorithm, &sizes, depth));
                seen += 1;
            }
        }
        assert_eq!(seen, (1 << 8) - 2);
    }

    #[test]
    fn larger_nodes_of_different_sizes_hold() {
        for sizes in
            [&[8, 8, 7][..], &[4, 8, 8, 8, 5], &[16, 1], &[3, 5, 7, 9, 11, 13], &[6, 8, 6, 8, 6, 8, 6]]
        {
            BOTH.into_iter().for_each(|algorithm| holds(algorithm, sizes, Depth::Quick));
        }
        let many: Vec<u32> = (0..64).map(|node| if node == 40 { 3 } else { 4 }).collect();
        BOTH.into_iter().for_each(|algorithm| holds(algorithm, &many, Depth::Quick));
    }

    #[test]
    fn what_is_no_list_of_nodes_is_refused() {
        let of = |algorithm, n| Plan::new(Collective::AllReduce, algorithm, n).unwrap();
        for algorithm in BOTH {
            assert!(of(algorithm, 6).with_nodes(&[4, 4]).is_none());
            assert!(of(algorithm, 6).with_nodes(&[4, 0, 2]).is_none());
            assert!(of(algorithm, 6).with_nodes(&[]).is_none());
            assert!(of(algorithm, 6).with_bundle(4).is_none());
        }
        assert!(of(Algorithm::Ring, 6).with_nodes(&[4, 2]).is_none());
        let (even, uneven) = (plan(BOTH[0], &[3, 3]).unwrap(), plan(BOTH[0], &[4, 2]).unwrap());
        assert_ne!(even.fingerprint(), uneven.fingerprint());
        assert_ne!(uneven.fingerprint(), plan(BOTH[0], &[2, 4]).unwrap().fingerprint());
        assert_eq!((even.nodes(), uneven.nodes()), (None, Some(&[4, 2][..])));
    }
}
