//! What a plan costs where ranks are of several nodes.
//!
//! Ranks of a node follow each other. Between two ranks of a node a message costs what [`Nodes::near`] says, between two nodes what
//! the caller's [`Rates`] say. The *links* of a node to the others, one unless [`Nodes::with_links`] says otherwise, are shared by its
//! ranks: β is that of such a link, whoever's bytes go through it. That is a host with one network adapter. Where each rank has an
//! adapter of its own, links are as many as ranks, and the same formulas hold: only what one rank sends counts then, and what
//! keeps bytes in a node has less to win.
//!
//! A [`Traffic`] is what an algorithm's plan takes of both kinds of links, for each byte of S: messages between nodes and in one on the
//! longest path; bytes through the busiest link of any node, in the direction that has more; bytes that one rank sends in
//! its node. With N nodes of g ranks each:
//!
//! | algorithm of all-reduce | messages between nodes | in a node | bytes through a node's link |
//! |---|---|---|---|
//! | `ring` | 2N | 2(n−1) − 2N | 2(n−1)/n·S: of the ranks of a node only the last sends out of it |
//! | `two_level` | 2(N−1) | 2(g−1) | 2(N−1)/N·S |
//! | `two_level_halving` | 2⌈log2 N⌉ | 2(g−1) | 2(N−1)/N·S |
//! | `rabenseifner` | 2(log2 N + 1) | 2(log2 g − 1) | about 2g(N−1)/N·S: all ranks of a node send at distances from g on |
//! | `recursive_doubling` | log2 N | log2 g | g·log2 N·S |
//! | `two_shot` | 2 | 0 | 2g(n−g)/n·S |
//! | `double_tree` | about 2(log2 N + 1) | 2(log2 g − 1) | S/2 for each edge of a tree with one end in the node: up to about 3·S |
//!
//! What ranks do one after the other adds up; where some send in their node while others send out of it, the slower of
//! both counts. A ring takes as long as a chunk all around or as the last rank of a node, whichever is longer, and where nodes are large
//! that rank waits for credits. Messages are exact where nodes are equal powers of two, but for those of `swing`, and elsewhere an upper bound for
//! exchanges at distances; bytes through links are exact but for those of `swing` and of ranks in pairs, which are an upper
//! bound. The root is taken for rank 0, and cores for enough: the nodes of a network are not on one host.

mod traffic;

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use super::{Cost, Counts, Load, Rates, pushed, two_levels};
use crate::algo::Algorithm;
use crate::collective::Collective;

/// The ranks of each node, and what links cost in one.
#[derive(Clone, PartialEq, Debug)]
pub struct Nodes {
    sizes: Vec<u32>,
    n: u32,
    near: Rates,
    links: u32,
}

/// What a plan takes of the links between nodes and in them; bytes for each byte of S.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Traffic {
    /// Messages to another node, on the longest path.
    pub far_messages: u64,
    /// Messages in a node, on that path.
    pub near_messages: u64,
    /// Bytes through the busiest link of any node to the others.
    pub link_bytes: f64,
    /// Most bytes that one rank sends to other nodes, or gets from them.
    pub rank_bytes: f64,
    /// Bytes that one rank sends in its node before or after it sends to others.
    pub apart_bytes: f64,
    /// Bytes that one rank sends in its node while others send out of it.
    pub beside_bytes: f64,
    /// Of what goes through links, how much goes while nobody sends in a node.
    alone: f64,
    /// What the first chunk of a pipeline takes besides.
    fill: Fill,
    /// Whether that and the messages are on their way while others send.
    meanwhile: bool,
    /// How many of the Moves of a rank have to do with other nodes.
    far_moves: f64,
}

/// A pipeline's first chunk: hops that it takes alone.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Fill {
    /// What goes through the pipeline, for each byte of S.
    share: f64,
    far: f64,
    near: f64,
}

/// As [`cost`](super::cost) of an algorithm that goes by nodes, for nodes of `per_node` ranks each, on links that are all alike and
/// with a core for each rank. There it makes its own nodes up.
pub fn cost_by_nodes(
    algorithm: Algorithm,
    (n, per_node): (u32, u32),
    bytes: u64,
    rates: &Rates,
    channels: u16,
) -> Cost {
    if n < 2 || !algorithm.takes_bundle(n, per_node) {
        return Cost::default();
    }
    let load = Load { n, bytes, pass_bytes: rates.chunk_bytes.max(1) * u64::from(channels.max(1)) };
    let path = two_levels(&load, algorithm, (per_node, per_node, n / per_node));
    Cost { path, all: Counts::default(), waits: path.messages, bytes: bytes as f64 }
}

impl Nodes {
    /// Nodes of so many ranks each, in the order of ranks, with what a link in a node costs. `None` where that makes no difference:
    /// fewer than two nodes, nodes of one rank each, or a node of none.
    pub fn new(sizes: &[u32], near: Rates) -> Option<Nodes> {
        let n = sizes.iter().try_fold(0_u32, |sum, size| sum.checked_add(*size))?;
        let some =
            sizes.len() > 1 && sizes.iter().all(|size| *size > 0) && sizes.iter().any(|size| *size > 1);
        some.then(|| Nodes { sizes: sizes.into(), n, near, links: 1 })
    }

    /// The same where each node has so many links to the others, which its ranks share evenly; at least one.
    #[must_use]
    pub fn with_links(self, links: u32) -> Nodes {
        Nodes { links: links.max(1), ..self }
    }

    /// The ranks of each node.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// The number of ranks.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// What a link in a node costs.
    pub fn near(&self) -> &Rates {
        &self.near
    }

    /// How many links each node has to the others.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// What an algorithm takes of both kinds of links. `rates` are those between nodes: with them it is found which path is
    /// the longest. Takes a time in the order of n where there are trees, of nodes elsewhere.
    pub fn traffic(&self, collective: Collective, algorithm: Algorithm, rates: &Rates) -> Traffic {
        traffic::traffic(self, collective, algorithm, rates)
    }

    /// The time of a call of `bytes` over `channels` channels, if this is the algorithm's traffic.
    pub fn time_ns(
        &self,
        (collective, algorithm, traffic): (Collective, Algorithm, &Traffic),
        bytes: u64,
        rates: &Rates,
        channels: u16,
    ) -> f64 {
        let (near, per_channel) = (&self.near, f64::from(channels.max(1)));
        let pass_bytes = rates.chunk_bytes.max(1) * u64::from(channels.max(1));
        let load = Load { n: self.n, bytes, pass_bytes };
        let path = self.path(collective, algorithm, &load);
        let all = bytes as f64;
        let [far_slowed, near_slowed] = [rates, near].map(|rates| rates.slowed(all));
        let far_moves = path.moves as f64 * traffic.far_moves;
        let steps_ns = |rates: &Rates, messages: u64, moves: f64| {
            (messages as f64 * rates.message_ns + moves * rates.move_ns) * rates.turns(channels)
        };
        let steps_ns = steps_ns(rates, traffic.far_messages, far_moves)
            + steps_ns(near, traffic.near_messages, path.moves as f64 - far_moves);
        let latency_ns = traffic.far_messages as f64 * (rates.alpha_ns + rates.turn_ns)
            + traffic.near_messages as f64 * (near.alpha_ns + near.turn_ns);
        let far_beta = rates.beta_ns_per_byte * far_slowed;
        let channel_beta = rates.channel_beta_ns_per_byte / per_channel * far_slowed;
        let near_beta = near.beta_ns_per_byte.max(near.channel_beta_ns_per_byte / per_channel) * near_slowed;
        let through_ns = (traffic.link_bytes * far_beta).max(traffic.rank_bytes * channel_beta);
        let together_ns = ((1.0 - traffic.alone) * through_ns).max(traffic.beside_bytes * near_beta);
        let bytes_ns = traffic.alone * through_ns + together_ns + traffic.apart_bytes * near_beta;
        let Fill { share, far, near } = traffic.fill;
        let chunk = share * all / load.passes((share * all) as u64) as f64;
        let fill_ns = chunk * (far * far_beta.max(channel_beta) + near * near_beta);
        let folds_ns =
            path.folded_bytes * rates.gamma_ns_per_byte * far_slowed / rates.side_by_side(channels);
        let waits_ns = latency_ns + fill_ns;
        let sent_ns =
            if traffic.meanwhile { waits_ns.max(all * bytes_ns) } else { waits_ns + all * bytes_ns };
        steps_ns + sent_ns + folds_ns
    }

    /// Moves and folds as where all links are alike, but for those that go by nodes.
    fn path(&self, collective: Collective, algorithm: Algorithm, load: &Load) -> Counts {
        match algorithm {
            Algorithm::TwoLevel | Algorithm::TwoLevelHalving => {
                two_levels(load, algorithm, (self.most(), self.least(), self.count()))
            }
            _ => pushed(collective, algorithm, load),
        }
    }

    fn count(&self) -> u32 {
        self.sizes.len() as u32
    }

    fn least(&self) -> u32 {
        self.sizes.iter().copied().min().unwrap_or(1)
    }

    fn most(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// The places of each node: the first, and the one behind the last.
    fn stretches(&self) -> impl Iterator<Item = (u32, u32)> {
        self.sizes.iter().scan(0, |end, size| {
            *end += size;
            Some((*end - size, *end))
        })
    }
}
