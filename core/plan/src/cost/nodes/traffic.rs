//! The traffic of all algorithms among nodes.

use alloc::vec;
use alloc::vec::Vec;

use super::super::Rates;
use super::super::work::with_bit;
use super::{Fill, Nodes, Traffic};
use crate::algo::pairs::Pairs;
use crate::algo::{Algorithm, double_tree, rounds, swing};
use crate::collective::Collective;

/// The traffic of an algorithm; see [`Nodes::traffic`].
pub(super) fn traffic(nodes: &Nodes, collective: Collective, algorithm: Algorithm, rates: &Rates) -> Traffic {
    let n = nodes.n;
    let block = 1.0 / f64::from(n);
    let weights = [rates, &nodes.near].map(|rates| rates.alpha_ns + rates.turn_ns + rates.message_ns);
    match (collective, algorithm) {
        (Collective::Broadcast, Algorithm::Ring) => nodes.chain(nodes.count() - 1),
        (Collective::Reduce, Algorithm::Ring) => nodes.chain(nodes.count() - u32::from(nodes.sizes[0] == 1)),
        (Collective::AllReduce, Algorithm::Ring) => nodes.ring(2, weights),
        (_, Algorithm::Ring) => nodes.ring(1, weights),
        (_, Algorithm::TwoLevel) => nodes.two_levels(nodes.count() - 1),
        (_, Algorithm::TwoLevelHalving) => nodes.two_levels(rounds(nodes.count())),
        (_, Algorithm::OneShot | Algorithm::OneShotTree) => nodes.direct(1.0),
        (_, Algorithm::TwoShot | Algorithm::TwoShotTree) => nodes.direct(block).twice(),
        (Collective::Send | Collective::Recv, _) | (_, Algorithm::User) => message(),
        (_, Algorithm::Dissemination) => nodes.shifts((0..rounds(n)).map(|k| (1 << k, 0.0))),
        (Collective::AllToAll, Algorithm::Bruck) => {
            nodes.shifts((0..rounds(n)).map(|k| (1 << k, with_bit(n.into(), k) as f64 * block)))
        }
        (_, Algorithm::Bruck) => nodes.shifts(bruck(n)),
        (_, Algorithm::Rabenseifner) => nodes.shifts(bruck(n)).twice(),
        (_, Algorithm::Pat) => nodes.shifts(pat(n, algorithm.bundle(n))),
        (Collective::AllReduce, Algorithm::RecursiveDoubling) => nodes.doubling(2.0, |_| 1.0),
        (_, Algorithm::RecursiveDoubling) => {
            // Of as many seats there are at most twice as many places.
            let most = if n.is_power_of_two() { block } else { 2.0 * block };
            nodes.doubling(1.0 + block, |k| f64::from(1_u32 << k) * most)
        }
        (_, Algorithm::Swing) => nodes.swing(),
        (_, Algorithm::DoubleTree) => nodes.two_trees(weights),
        (_, Algorithm::Binomial) => {
            let subtrees = matches!(collective, Collective::Gather | Collective::Scatter);
            let once = nodes.one_tree(&Tree { parent: &binomial, subtrees }, weights);
            if collective == Collective::AllReduce { once.twice() } else { once }
        }
        (Collective::Broadcast | Collective::Reduce, Algorithm::Direct | Algorithm::DirectTree) => {
            nodes.rooted(1.0)
        }
        (Collective::Gather | Collective::Scatter | Collective::GatherV | Collective::ScatterV, _) => {
            nodes.rooted(block)
        }
        (_, Algorithm::Direct | Algorithm::DirectTree) => nodes.direct(block),
    }
}

impl Traffic {
    /// The same twice, one after the other.
    fn twice(self) -> Traffic {
        let Fill { share, far, near } = self.fill;
        Traffic {
            far_messages: 2 * self.far_messages,
            near_messages: 2 * self.near_messages,
            link_bytes: 2.0 * self.link_bytes,
            rank_bytes: 2.0 * self.rank_bytes,
            apart_bytes: 2.0 * self.apart_bytes,
            beside_bytes: 2.0 * self.beside_bytes,
            fill: Fill { share, far: 2.0 * far, near: 2.0 * near },
            ..self
        }
    }

    /// And before and behind it `both` from the second of each pair to the first and back, of which one is a vector, for which
    /// so many messages are waited; up to so many pairs of a node are `torn`, of two nodes.
    fn with_pairs(self, pairs: Pairs, torn: f64, waits: u64, both: f64) -> Traffic {
        if pairs.count == 0 {
            return self;
        }
        let (far, near) = if torn > 0.0 { (waits, 0) } else { (0, waits) };
        Traffic {
            far_messages: self.far_messages + far,
            near_messages: self.near_messages + near,
            link_bytes: self.link_bytes + torn,
            rank_bytes: self.rank_bytes + torn.min(1.0),
            apart_bytes: self.apart_bytes + both,
            ..self
        }
    }
}

impl Nodes {
    /// Once or twice around the ring but for the last hop of each round: hops that follow each other are left out where most of
    /// them stay in a node. A credit from another node takes as long as a message, so where nodes are large it is what
    /// the last rank of a node waits for, once for as many messages as an edge has slots.
    fn ring(&self, times: u32, weights: [f64; 2]) -> Traffic {
        let hops = times * (self.n - 1);
        // Of two hops beside each other, one may have to leave a node.
        let left_out = u32::from(times == 2 && self.most() == 2);
        let far = times * self.count() - left_out;
        let (around, waits) = ((far, hops - far), (1 + 2 * ((hops - 1) / SLOTS), 0));
        let weight = |(far, near): (u32, u32)| f64::from(far) * weights[0] + f64::from(near) * weights[1];
        let (far, near) = if weight(waits) > weight(around) { waits } else { around };
        let bytes = f64::from(hops) / f64::from(self.n);
        let fill = Fill { share: 1.0 / f64::from(self.n), far: around.0.into(), near: around.1.into() };
        Traffic {
            far_messages: far.into(),
            near_messages: near.into(),
            link_bytes: bytes,
            rank_bytes: bytes,
            beside_bytes: bytes,
            fill,
            meanwhile: true,
            // Where a node ends is a rank whose every Move sends out of it.
            far_moves: 1.0,
            ..Traffic::default()
        }
    }

    /// From the root all around, out of so many nodes.
    fn chain(&self, far: u32) -> Traffic {
        let near = self.n - 1 - far;
        Traffic {
            far_messages: far.into(),
            near_messages: near.into(),
            link_bytes: 1.0,
            rank_bytes: 1.0,
            beside_bytes: 1.0,
            fill: Fill { share: 1.0, far: f64::from(far) - 1.0, near: near.into() },
            far_moves: 1.0,
            ..Traffic::default()
        }
    }

    /// Rings in nodes and rails between them, which take so many messages each way. In a node that is larger than the smallest
    /// ranks without a part pass all parts on, and the first one goes around the node before the others follow.
    fn two_levels(&self, between: u32) -> Traffic {
        let (most, least, count) = (self.most(), f64::from(self.least()), f64::from(self.count()));
        let held = if most == self.least() { most - 1 } else { self.least() };
        let rail = 2.0 * (count - 1.0) / count / least;
        let (far, near) = (2 * between, 2 * (most - 1));
        Traffic {
            far_messages: far.into(),
            near_messages: near.into(),
            link_bytes: self.through(least, rail),
            rank_bytes: rail,
            apart_bytes: 2.0 * f64::from(held) / least,
            fill: Fill { share: 1.0 / least, far: 0.0, near: 2.0 * f64::from(most - 1 - held) },
            far_moves: f64::from(far + 1) / f64::from(far + near + 3),
            ..Traffic::default()
        }
    }

    /// So much from every rank to each other.
    fn direct(&self, share: f64) -> Traffic {
        let link = |size: &u32| self.through((*size).into(), share * f64::from(self.n - size));
        Traffic {
            far_messages: 1,
            link_bytes: self.sizes.iter().map(link).fold(0.0, f64::max),
            rank_bytes: share * f64::from(self.n - self.least()),
            apart_bytes: share * f64::from(self.most() - 1),
            far_moves: f64::from(self.n - self.least()) / f64::from(self.n - 1),
            ..Traffic::default()
        }
    }

    /// So much from the root to each other rank, or from each to the root.
    fn rooted(&self, share: f64) -> Traffic {
        let bytes = share * f64::from(self.n - self.sizes[0]);
        Traffic { link_bytes: bytes, rank_bytes: bytes, ..self.direct(share) }
    }

    /// Rounds in which every rank sends so much so far.
    fn shifts(&self, steps: impl Iterator<Item = (u32, f64)>) -> Traffic {
        let steps: Vec<(u32, f64)> = steps.collect();
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let leave = |step: usize, node: usize| {
            let (size, distance) = (sizes[node], steps[step].0);
            size - size.saturating_sub(distance) - size.saturating_sub(self.n - distance)
        };
        let shares: Vec<f64> = steps.iter().map(|(_, share)| *share).collect();
        let (far_messages, near_messages) = self.hops(steps.iter().map(|(distance, _)| *distance));
        let far_moves = far_messages as f64 / steps.len().max(1) as f64;
        Traffic { far_messages, near_messages, far_moves, ..self.exchanges(&shares, &sizes, leave) }
    }

    /// Messages between nodes and in one on a path of such distances. From that of a node on all leave it; a path of shorter ones
    /// leaves nodes as often as it is long.
    fn hops(&self, distances: impl Iterator<Item = u32>) -> (u64, u64) {
        let least = self.least();
        let (mut far, mut short, mut length) = (0, 0_u64, 0);
        for distance in distances {
            match distance < least {
                true => (short, length) = (short + 1, length + u64::from(distance)),
                false => far += 1,
            }
        }
        let leaving = length.div_ceil(least.into()).min(short);
        (far + leaving, short - leaving)
    }

    /// The bytes of rounds one after the other, in which every rank sends such shares: `leave` says how many of the `sizes`
    /// of a node send theirs out of it.
    fn exchanges(&self, shares: &[f64], sizes: &[u32], leave: impl Fn(usize, usize) -> u32) -> Traffic {
        let (mut traffic, mut alone) = (Traffic::default(), 0.0);
        for (step, share) in shares.iter().enumerate() {
            let leaving = || (0..sizes.len()).map(|node| leave(step, node));
            let through = leaving().map(|ranks| self.through(ranks.into(), *share)).fold(0.0, f64::max);
            if leaving().all(|ranks| ranks == 0) {
                traffic.apart_bytes += share;
                continue;
            }
            traffic.link_bytes += through;
            traffic.rank_bytes += share;
            match leaving().zip(sizes).all(|(ranks, size)| ranks == *size) {
                true => alone += through,
                false => traffic.beside_bytes += share,
            }
        }
        Traffic { alone: if alone > 0.0 { alone / traffic.link_bytes } else { 0.0 }, ..traffic }
    }

    /// Recursive doubling: in round k seats that differ in bit k exchange such shares; see [`Traffic::with_pairs`] for `both`.
    fn doubling(&self, both: f64, share: impl Fn(u32) -> f64) -> Traffic {
        let pairs = Pairs::of(self.n);
        let (seats, torn) = (self.seats(pairs), self.torn(pairs));
        let sizes: Vec<u32> = seats.iter().map(|(first, end)| end - first).collect();
        let leave = |k: usize, node: usize| {
            let (first, end) = seats[node];
            let zeros = |seat: u32| u64::from(seat) - with_bit(seat.into(), k as u32);
            let stay = match end.checked_sub(1 << k) {
                Some(last) if last > first => 2 * (zeros(last) - zeros(first)) as u32,
                _ => 0,
            };
            end - first - stay
        };
        let shares: Vec<f64> = (0..pairs.rounds).map(share).collect();
        let traffic = self.exchanges(&shares, &sizes, leave);
        let far =
            (0..shares.len()).filter(|k| (0..seats.len()).any(|node| leave(*k, node) > 0)).count() as u64;
        // As where all links are alike: whether all wait for a pair or only some.
        let waits = match 2 * pairs.count {
            0 => 0,
            paired if paired > 1 << pairs.rounds => 2,
            _ => 1,
        };
        let far_moves = far as f64 / shares.len() as f64;
        let traffic =
            Traffic { far_messages: far, near_messages: shares.len() as u64 - far, far_moves, ..traffic };
        traffic.with_pairs(pairs, torn, waits, both)
    }

    /// Swing: of the seats of a node d + 1 or, in every other step and if the first is even, d − 1 have their partner at distance
    /// d outside.
    fn swing(&self) -> Traffic {
        let pairs = Pairs::of(self.n);
        let (seats, torn) = (self.seats(pairs), self.torn(pairs));
        let sizes: Vec<u32> = seats.iter().map(|(first, end)| end - first).collect();
        let even = sizes.iter().all(|size| size % 2 == 0);
        let leave = |step: usize, node: usize| {
            let distance = swing::distance(step as u32).unsigned_abs();
            let leave = if even && step.is_multiple_of(2) { distance - 1 } else { distance + 1 };
            leave.min(sizes[node])
        };
        let shares: Vec<f64> = (0..pairs.rounds).map(|step| 1.0 / f64::from(2_u32 << step)).collect();
        let traffic = self.exchanges(&shares, &sizes, leave);
        // In other rounds others leave a node: nothing is taken to go side by side.
        let (apart_bytes, beside_bytes) = (traffic.apart_bytes + traffic.beside_bytes, 0.0);
        let traffic = Traffic { apart_bytes, beside_bytes, ..traffic };
        // Where ranks stand in pairs, seats are farther apart than distances say.
        let (far_messages, near_messages) = match pairs.count {
            0 => self.hops((0..pairs.rounds).map(|step| swing::distance(step).unsigned_abs())),
            _ => (pairs.rounds.into(), 0),
        };
        let far_moves = far_messages as f64 / shares.len() as f64;
        Traffic { far_messages, near_messages, far_moves, ..traffic }.twice().with_pairs(pairs, torn, 2, 2.0)
    }

    /// The seats of each node: the first, and the one behind the last.
    fn seats(&self, pairs: Pairs) -> Vec<(u32, u32)> {
        self.stretches().map(|(first, end)| (pairs.seats_below(first), pairs.seats_below(end))).collect()
    }

    /// The most pairs that a node has with its neighbours.
    fn torn(&self, pairs: Pairs) -> f64 {
        let torn = |place: u32| f64::from(u8::from(place % 2 == 1 && place < 2 * pairs.count));
        self.stretches().map(|(first, end)| torn(first) + torn(end)).fold(0.0, f64::max)
    }

    /// A tree of one lane: what a rank sends to its node and to others it sends one after the other.
    fn one_tree(&self, tree: &Tree<'_>, weights: [f64; 2]) -> Traffic {
        let grown = self.grow(tree, weights);
        let link = grown.cut.iter().map(|[sent, got]| sent.max(*got)).fold(0.0, f64::max);
        let (far, near) = grown.depth;
        Traffic {
            far_messages: far,
            near_messages: near,
            link_bytes: grown.rank_bytes.max(link / f64::from(self.links)),
            rank_bytes: grown.rank_bytes,
            apart_bytes: grown.near_bytes,
            far_moves: grown.far_moves,
            ..Traffic::default()
        }
    }

    /// Two trees, up and down at once, each for half of the vector.
    fn two_trees(&self, weights: [f64; 2]) -> Traffic {
        let [one, other] = [false, true].map(|second| {
            let parent = |place| double_tree::parent(self.n, place, second);
            self.grow(&Tree { parent: &parent, subtrees: false }, weights)
        });
        // What goes up an edge comes down as well, so nodes send as much as they get.
        let both = one.cut.iter().zip(&other.cut).map(|([a, b], [c, d])| a + b + c + d);
        let link = both.fold(0.0, f64::max) / 2.0;
        let (far, near) = if one.weight < other.weight { other.depth } else { one.depth };
        let rank_bytes = (one.rank_bytes + other.rank_bytes) / 2.0;
        Traffic {
            far_messages: 2 * far,
            near_messages: 2 * near,
            link_bytes: rank_bytes.max(link / f64::from(self.links)),
            rank_bytes,
            beside_bytes: (one.near_bytes + other.near_bytes) / 2.0,
            fill: Fill { share: 0.5, far: (2 * far).saturating_sub(1) as f64, near: (2 * near) as f64 },
            far_moves: one.far_moves.max(other.far_moves),
            ..Traffic::default()
        }
    }

    /// Goes through the edges of a tree.
    fn grow(&self, tree: &Tree<'_>, weights: [f64; 2]) -> Grown {
        let n = self.n as usize;
        let mut node = vec![0; n];
        for (index, (first, end)) in self.stretches().enumerate() {
            node[first as usize..end as usize].fill(index);
        }
        let mut grown = Grown { cut: vec![[0.0; 2]; self.sizes.len()], ..Grown::default() };
        // For each place what it sends to other nodes and in its own, and how far it is from the root.
        let (mut sent, mut depth) = (vec![[0.0_f64; 2]; n], vec![None; n]);
        for place in 0..self.n {
            let Some(parent) = (tree.parent)(place) else { continue };
            let bytes = tree.bytes(self.n, place);
            let (from, to) = (node[parent as usize], node[place as usize]);
            sent[parent as usize][usize::from(from == to)] += bytes;
            if from != to {
                grown.cut[from][0] += bytes;
                grown.cut[to][1] += bytes;
                grown.rank_bytes = grown.rank_bytes.max(bytes);
            }
        }
        for place in 0..self.n {
            let known = |place: u32| depth[place as usize].is_some();
            let up = core::iter::successors(Some(place), |place| (tree.parent)(*place));
            let unknown: Vec<u32> = up.take_while(|place| !known(*place)).collect();
            for place in unknown.into_iter().rev() {
                let hop = |parent: u32| {
                    let (far, near) = depth[parent as usize].unwrap_or((0, 0));
                    let stays = u64::from(node[parent as usize] == node[place as usize]);
                    (far + 1 - stays, near + stays)
                };
                let (far, near) = (tree.parent)(place).map_or((0, 0), hop);
                depth[place as usize] = Some((far, near));
                let weight = far as f64 * weights[0] + near as f64 * weights[1];
                if (weight, far, near) > (grown.weight, grown.depth.0, grown.depth.1) {
                    (grown.weight, grown.depth) = (weight, (far, near));
                }
            }
        }
        for [far, near] in sent {
            if far > grown.rank_bytes {
                grown.far_moves = far / (far + near);
            }
            grown.rank_bytes = grown.rank_bytes.max(far);
            grown.near_bytes = grown.near_bytes.max(near);
        }
        grown
    }

    /// What goes through the busiest of a node's links if so many of its ranks send so much each.
    fn through(&self, ranks: f64, bytes: f64) -> f64 {
        if ranks > 0.0 { bytes * (ranks / f64::from(self.links)).max(1.0) } else { 0.0 }
    }
}

/// A tree over places.
struct Tree<'a> {
    /// The parent of all but the root.
    parent: &'a dyn Fn(u32) -> Option<u32>,
    /// Whether an edge carries a block for each rank behind it, of a binomial tree, and not S.
    subtrees: bool,
}

/// What is found on the edges of a tree, in bytes for each byte of S.
#[derive(Default)]
struct Grown {
    /// Hops between nodes and in one from the root to the place that is farthest.
    depth: (u64, u64),
    /// The time of their messages.
    weight: f64,
    /// What each node sends to others, away from the root, and gets from them.
    cut: Vec<[f64; 2]>,
    /// Most that one rank sends to other nodes or gets from them.
    rank_bytes: f64,
    /// Most that one rank sends in its node.
    near_bytes: f64,
    /// Of what the rank sends that sends most to other nodes, how much.
    far_moves: f64,
}

impl Tree<'_> {
    fn bytes(&self, n: u32, place: u32) -> f64 {
        let subtree = place.checked_sub(place & place.wrapping_sub(1)).unwrap_or(1).min(n - place);
        if self.subtrees { f64::from(subtree) / f64::from(n) } else { 1.0 }
    }
}

/// The parent in a binomial tree.
fn binomial(place: u32) -> Option<u32> {
    (place > 0).then_some(place & place.wrapping_sub(1))
}

/// One message to somebody, who may be anywhere.
fn message() -> Traffic {
    Traffic { far_messages: 1, link_bytes: 1.0, rank_bytes: 1.0, far_moves: 1.0, ..Traffic::default() }
}

/// Distances and blocks of Bruck's algorithm, one way.
fn bruck(n: u32) -> impl Iterator<Item = (u32, f64)> {
    (0..rounds(n)).map(move |k| (1 << k, f64::from((n - (1 << k)).min(1 << k)) / f64::from(n)))
}

/// Distances and blocks of PAT, one way.
fn pat(n: u32, aggregation: u32) -> impl Iterator<Item = (u32, f64)> {
    let delta = n.next_power_of_two() / aggregation;
    let near = (1..delta.min(n)).map(move |t| (t & t.wrapping_neg(), (n - t).div_ceil(delta)));
    let far = (0..aggregation.ilog2()).map(move |k| (delta << k, n.div_ceil(delta << k) / 2));
    near.chain(far).map(move |(distance, blocks)| (distance, f64::from(blocks) / f64::from(n)))
}

/// Slots of an edge where nobody says otherwise.
const SLOTS: u32 = 8;
