//! Search: orders of the ranks, one for each channel, that get the most out of the links.
//!
//! In a node an order goes from device to device over the widest links; between nodes every channel
//! keeps to its rail: it enters and leaves each node through one NIC, and takes the nodes in the same order
//! as the other channels. All channels get the same bandwidth b, and what is maximised is the number of
//! channels times b, under the bandwidth of every link in each direction.
//!
//! For a number of channels and a b, orders are found by depth-first search with a bounded number of steps,
//! nearest seat first; b is the largest for which that succeeds. Only ratios of a link's bandwidth and a
//! whole number come into question, so the result is exact wherever the steps suffice, as they do for up
//! to 8 devices of the machines there are. Nodes that are built alike are searched once. The idea is that
//! of NCCL's graph search, and of J. Sack and W. Gropp, "Faster topology-aware collective algorithms
//! through non-minimal communication", PPoPP 2012: what counts is the load on links, not the number of hops.
//!
//! ```
//! use ccl_plan::topology::search::{Limits, Pattern, search};
//! use ccl_plan::topology::{Component, Gpu, Kind, Medium, TopologyBuilder};
//! use ccl_plan::{Algorithm, Collective, Plan};
//!
//! // Four GPUs in a square of NVLinks: two rings, one each way round, fill every link.
//! let mut builder = TopologyBuilder::default();
//! let node = builder.node("host");
//! let gpu = |device| Component::new(Kind::Gpu(Gpu { device, ..Gpu::default() })).on(node);
//! let gpus = [0, 1, 2, 3].map(|device| builder.vertex(gpu(device)));
//! for (one, other) in [(0, 2), (2, 1), (1, 3), (3, 0)] {
//!     builder.link_both(gpus[one], gpus[other], Medium::NvLink, 20.0, 300.0);
//! }
//! gpus.iter().for_each(|gpu| _ = builder.rank(*gpu));
//! let topology = builder.build().unwrap();
//!
//! let rings = search(&topology, Pattern::Ring, &Limits::default());
//! assert_eq!(rings.iter().map(|ring| ring.gb_per_s).sum::<f64>(), 40.0);
//! let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 4).unwrap();
//! assert!(plan.with_order(&rings[0].order).is_some());
//! ```
//!
//! It does not look for the best order of nodes in a network: nodes behind the same switch follow each
//! other, and that is all.

mod site;
mod solve;
#[cfg(test)]
mod tests;

use alloc::vec;
use alloc::vec::Vec;

use self::site::Site;
use self::solve::solve;
use crate::ids::{Place, Rank};
use crate::topology::{Kind, Medium, Node, Topology, Vertex};

/// How an order is followed, and so what each link between neighbours carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Pattern {
    /// From each to the next, and from the last to the first.
    Ring,
    /// From each to the next; between nodes as a ring.
    Chain,
    /// A chain in each node and a double binary tree over nodes, half of the data up and half of it down
    /// each link of a chain; the first of each chain speaks to the NIC.
    Tree,
}

/// How far to search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// The most channels.
    pub channels: u16,
    /// The most that one channel carries, whatever the links: what one thread block moves.
    pub channel_gb_per_s: f64,
    /// Steps of the search for one number of channels and one bandwidth.
    pub steps: u32,
}

/// The order of one channel.
#[derive(Clone, PartialEq, Debug)]
pub struct ChannelOrder {
    /// The rank at each place: a permutation, as [`Plan::with_order`](crate::Plan::with_order) takes it.
    pub order: Vec<Rank>,
    /// What it gets of every link that it uses, in 10⁹ bytes per second. The bus bandwidth of an all-reduce
    /// over all channels is at most the sum. 0 if some ranks do not reach each other.
    pub gb_per_s: f64,
    /// The nodes, in the order in which it takes them.
    pub stretches: Vec<Stretch>,
}

/// The part of an order that lies in one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The node.
    pub node: Node,
    /// Where the part begins. It ends where the next one begins.
    pub first: Place,
    /// The NIC through which the channel enters and leaves the node, if there is more than one node and
    /// this one has NICs.
    pub nic: Option<Vertex>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { channels: 16, channel_gb_per_s: 40.0, steps: 1 << 14 }
    }
}

/// The orders of the channels that together get the most bandwidth; with equal bandwidth, the fewest. Empty
/// if the topology has no ranks. Ranks with equal topologies find the same.
///
/// If some ranks do not reach each other: one channel in the order of nodes and seats.
pub fn search(topology: &Topology, pattern: Pattern, limits: &Limits) -> Vec<ChannelOrder> {
    let groups = groups(topology);
    if groups.is_empty() {
        return Vec::new();
    }
    let mut sites: Vec<Site> = Vec::new();
    let mut site_of = Vec::with_capacity(groups.len());
    for group in &groups {
        let blueprint = site::Blueprint::new(topology, group, groups.len() > 1);
        let known = sites.iter().position(|site| site.blueprint == blueprint);
        site_of.push(known.unwrap_or_else(|| {
            sites.push(Site::new(blueprint));
            sites.len() - 1
        }));
    }
    let best = best(&sites, pattern, limits).unwrap_or_else(|| Best {
        gb_per_s: 0.0,
        orders: sites.iter().map(|site| vec![(0..site.seats() as u32).collect()]).collect(),
    });
    let channels = best.orders[0].len();
    let channel = |channel: usize| {
        let mut order = Vec::with_capacity(topology.seats().len());
        let mut stretches = Vec::with_capacity(groups.len());
        for (group, site) in groups.iter().zip(&site_of) {
            let nic = sites[*site].nic_of(channel).map(|nic| group.nics[nic]);
            stretches.push(Stretch { node: group.node, first: Place(order.len() as u32), nic });
            let seats = best.orders[*site][channel].iter();
            order.extend(seats.flat_map(|seat| &group.seats[*seat as usize].1));
        }
        ChannelOrder { order, gb_per_s: best.gb_per_s, stretches }
    };
    (0..channels).map(channel).collect()
}

impl ChannelOrder {
    /// The parent of each rank in both trees of [`Pattern::Tree`], `None` at the root: in a node the rank
    /// before it in the order, for the first of a node the first of the parent node.
    ///
    /// The trees over nodes are those of [`Algorithm::DoubleTree`](crate::Algorithm::DoubleTree).
    pub fn parents(&self) -> [Vec<Option<Rank>>; 2] {
        let nodes = self.stretches.len() as u32;
        let first = |node: u32| self.order[self.stretches[node as usize].first.index()];
        [0, 1].map(|tree| {
            let mut parents = vec![None; self.order.len()];
            for pair in self.order.windows(2) {
                parents[pair[1].index()] = Some(pair[0]);
            }
            for node in 0..nodes {
                parents[first(node).index()] = parent(nodes, node, tree == 1).map(first);
            }
            parents
        })
    }
}

/// The parent of a node in the first or second of the two trees over `n` nodes: P. Sanders, J. Speck and
/// J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
fn parent(n: u32, node: u32, second: bool) -> Option<u32> {
    let label = match (second, n.is_multiple_of(2)) {
        (false, _) => node,
        (true, true) => n - 1 - node,
        (true, false) => (node + n - 1) % n,
    };
    let low = label & label.wrapping_neg();
    let above = match (label - low) | (2 * low) {
        _ if label == 0 => return None,
        above if above < n => above,
        _ => label - low,
    };
    Some(match (second, n.is_multiple_of(2)) {
        (false, _) => above,
        (true, true) => n - 1 - above,
        (true, false) => (above + 1) % n,
    })
}

/// The ranks of one node.
struct Group {
    node: Node,
    /// Seats in the order of their first ranks, each with its ranks.
    seats: Vec<(Vertex, Vec<Rank>)>,
    nics: Vec<Vertex>,
}

/// The nodes that have ranks: those behind the same switch follow each other, else in the order of
/// their first ranks.
fn groups(topology: &Topology) -> Vec<Group> {
    let mut of_node: Vec<Option<usize>> = vec![None; topology.nodes().len()];
    let mut groups: Vec<Group> = Vec::new();
    for (rank, seat) in (0..).map(Rank).zip(topology.seats()) {
        let Some(node) = topology.component(*seat).node else { continue };
        let group = *of_node[node.index()].get_or_insert_with(|| {
            groups.push(Group { node, seats: Vec::new(), nics: topology.nics(node).collect() });
            groups.len() - 1
        });
        let seats = &mut groups[group].seats;
        match seats.iter_mut().find(|(known, _)| known == seat) {
            Some((_, ranks)) => ranks.push(rank),
            None => seats.push((*seat, vec![rank])),
        }
    }
    let switch = |group: &Group| {
        let wires = topology.links_from(*group.nics.first()?).map(|link| topology.wire(link));
        wires.filter(|wire| wire.medium == Medium::Network).map(|wire| wire.to).min()
    };
    let mut keys: Vec<Option<Vertex>> = Vec::new();
    let mut keyed: Vec<(usize, Group)> = Vec::with_capacity(groups.len());
    let mut places = alloc::collections::BTreeMap::new();
    for group in groups {
        let key = switch(&group);
        let place = *places.entry(key).or_insert_with(|| {
            keys.push(key);
            keys.len() - 1
        });
        keyed.push((place, group));
    }
    keyed.sort_by_key(|(place, _)| *place);
    keyed.into_iter().map(|(_, group)| group).collect()
}

/// The best that was found: for each site and channel an order of seats.
struct Best {
    gb_per_s: f64,
    orders: Vec<Vec<Vec<u32>>>,
}

fn best(sites: &[Site], pattern: Pattern, limits: &Limits) -> Option<Best> {
    let most = sites.iter().map(|site| site.most(pattern)).fold(f64::INFINITY, f64::min);
    // Where no link is used, more channels win nothing.
    let most_channels = if most.is_infinite() { 1 } else { limits.channels.max(1) };
    let mut best: Option<Best> = None;
    for channels in 1..=most_channels {
        let total = best.as_ref().map_or(0.0, |best| best.gb_per_s * best.orders[0].len() as f64);
        let least = total * (1.0 + TOLERANCE) / f64::from(channels);
        let bound = limits.channel_gb_per_s.min(most / f64::from(channels));
        let candidates = candidates(sites, channels, limits.channel_gb_per_s, least, bound);
        let attempt = |gb_per_s: f64| -> Option<Best> {
            let orders = sites.iter().map(|site| solve(site, pattern, channels, gb_per_s, limits.steps));
            Some(Best { gb_per_s, orders: orders.collect::<Option<_>>()? })
        };
        // Less is always possible where more is, so the largest is found by halving.
        let (mut low, mut high) = (0, candidates.len());
        while low < high {
            let middle = (low + high) / 2;
            match attempt(candidates[middle]) {
                Some(better) => (best, high) = (Some(better), middle),
                None => low = middle + 1,
            }
        }
    }
    best
}

/// The bandwidths that come into question, from large to small: what a link can give to a whole number of
/// half shares, or a channel's own limit.
fn candidates(sites: &[Site], channels: u16, own: f64, least: f64, bound: f64) -> Vec<f64> {
    let mut found = vec![own];
    for site in sites {
        let most_shares = 2 * u32::from(channels) * (site.seats() as u32 + 2);
        let widths = site.widths();
        found.extend(widths.flat_map(|w| (1..=most_shares).map(move |share| 2.0 * w / f64::from(share))));
    }
    found.retain(|gb_per_s| *gb_per_s > least && *gb_per_s <= bound * (1.0 + TOLERANCE));
    found.sort_by(|a, b| b.total_cmp(a));
    found.dedup();
    found
}

/// The width of a NIC in its network: of its links there, else its speed, else 10 Gb/s.
fn network_gb_per_s(topology: &Topology, nic: Vertex) -> f64 {
    let wires = topology.links_from(nic).map(|link| topology.wire(link));
    let linked: f64 = wires.filter(|wire| wire.medium == Medium::Network).map(|wire| wire.gb_per_s).sum();
    match &topology.component(nic).kind {
        _ if linked > 0.0 => linked,
        Kind::Nic(nic) if nic.speed_mbit_per_s > 0 => f64::from(nic.speed_mbit_per_s) / 8000.0,
        _ => UNKNOWN_NIC_GB_PER_S,
    }
}

const UNKNOWN_NIC_GB_PER_S: f64 = 1.25;
/// Sums of bandwidths that differ by less are equal.
const TOLERANCE: f64 = 1e-9;
