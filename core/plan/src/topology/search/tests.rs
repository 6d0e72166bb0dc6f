//! Orders on machines that exist, and against an oracle that tries everything.

use alloc::format;
use alloc::string::String;

use proptest::prelude::*;

use super::*;
use crate::topology::machines::{NodeBuilder, dgx_1, dgx_a100, dgx_h100, numa_host, pcie_tree, summit};
use crate::topology::{Component, Cpu, Link, Router, TopologyBuilder};
use crate::{Algorithm, Collective, Plan};

const PATTERNS: [Pattern; 3] = [Pattern::Ring, Pattern::Chain, Pattern::Tree];

fn machine(nodes: &[&dyn Fn(&mut TopologyBuilder)]) -> Topology {
    let mut builder = TopologyBuilder::default();
    nodes.iter().for_each(|node| node(&mut builder));
    builder.build().unwrap()
}

/// Searches, checks what is found, and returns it as (channels, GB/s of all).
fn found(topology: &Topology, pattern: Pattern, limits: &Limits) -> (usize, f64) {
    let orders = search(topology, pattern, limits);
    check(topology, pattern, &orders);
    (orders.len(), orders.iter().map(|order| order.gb_per_s).sum())
}

/// Every order is a permutation, its stretches are the nodes, and no link carries more than it can.
fn check(topology: &Topology, pattern: Pattern, orders: &[ChannelOrder]) {
    let n = topology.seats().len() as u32;
    for channel in orders {
        let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, n).unwrap();
        assert!(plan.with_order(&channel.order).is_some(), "{:?}", channel.order);
        for (place, stretch) in channel.stretches.iter().enumerate() {
            let end = channel.stretches.get(place + 1).map_or(n as usize, |next| next.first.index());
            let ranks = &channel.order[stretch.first.index()..end];
            let is_there = |rank: &Rank| topology.component(topology.seat(*rank)).node == Some(stretch.node);
            assert!(!ranks.is_empty() && ranks.iter().all(is_there), "{stretch:?} of {ranks:?}");
        }
    }
    for (link, load) in load(topology, pattern, orders) {
        let width = match link {
            Used::Link(link) => topology.wire(link).gb_per_s,
            Used::Into(nic) | Used::OutOf(nic) => network_gb_per_s(topology, nic),
        };
        assert!(load <= width * (1.0 + 1e-6), "{link:?} of {width} GB/s carries {load}");
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Used {
    Link(Link),
    Into(Vertex),
    OutOf(Vertex),
}
/// What each link carries, by the words of [`Pattern`] and not by the search's tables.
fn load(topology: &Topology, pattern: Pattern, orders: &[ChannelOrder]) -> Vec<(Used, f64)> {
    let mut router = Router::new(topology);
    let mut load: Vec<(Used, f64)> = Vec::new();
    for channel in orders {
        let b = channel.gb_per_s;
        let mut add = |used: Used, gb_per_s: f64| match load.iter_mut().find(|(known, _)| *known == used) {
            Some((_, sum)) => *sum += gb_per_s,
            None => load.push((used, gb_per_s)),
        };
        let mut go = |from, to, gb_per_s| {
            let (_, path) = topology.way(&mut router, from, to).unwrap();
            path.links.into_iter().for_each(|link| add(Used::Link(link), gb_per_s));
        };
        let mut network = Vec::new();
        for (place, stretch) in channel.stretches.iter().enumerate() {
            let end = channel.stretches.get(place + 1).map_or(channel.order.len(), |next| next.first.index());
            let seats: Vec<_> =
                channel.order[stretch.first.index()..end].iter().map(|rank| topology.seat(*rank)).collect();
            let (first, last) = (seats[0], seats[seats.len() - 1]);
            for pair in seats.windows(2) {
                if pattern == Pattern::Tree {
                    go(pair[0], pair[1], b / 2.0);
                    go(pair[1], pair[0], b / 2.0);
                } else {
                    go(pair[0], pair[1], b);
                }
            }
            if let Some(nic) = stretch.nic {
                go(nic, first, b);
                go(if pattern == Pattern::Tree { first } else { last }, nic, b);
                network.extend([Used::Into(nic), Used::OutOf(nic)]);
            } else if pattern == Pattern::Ring && channel.stretches.len() == 1 {
                go(last, first, b);
            }
        }
        network.into_iter().for_each(|used| add(used, b));
    }
    load
}

#[test]
fn dgx_a100_fills_its_switch_and_its_nics() {
    let limits = Limits::default();
    let one = machine(&[&|b| _ = dgx_a100(b)]);
    let (channels, total) = found(&one, Pattern::Ring, &limits);
    assert_eq!((channels, total), (6, 240.0));
    // All eight NICs, at what PCIe lets through.
    let two = machine(&[&|b| _ = dgx_a100(b), &|b| _ = dgx_a100(b)]);
    for pattern in PATTERNS {
        let orders = search(&two, pattern, &limits);
        check(&two, pattern, &orders);
        let total: f64 = orders.iter().map(|order| order.gb_per_s).sum();
        assert!((total - ORACLE_DGX).abs() < 1e-6, "{pattern:?}: {} channels, {total}", orders.len());
        for (channel, order) in orders.iter().enumerate() {
            let rails: Vec<_> = order.stretches.iter().map(|s| rail(&two, s)).collect();
            assert_eq!(rails, [channel as u32 % 8; 2]);
        }
    }
}

const ORACLE_DGX: f64 = 192.0;

fn rail(topology: &Topology, stretch: &Stretch) -> u32 {
    match &topology.component(stretch.nic.unwrap()).kind {
        Kind::Nic(nic) => nic.device,
        other => panic!("{other:?}"),
    }
}

#[test]
fn dgx_h100_leaves_through_the_gpu_next_to_the_nic() {
    let node: &dyn Fn(&mut TopologyBuilder) = &|b| _ = dgx_h100(b);
    let topology = machine(&[node, node]);
    let (channels, total) = found(&topology, Pattern::Ring, &Limits::default());
    // A GPU's NVLinks carry seven rings to the next GPU, and one to the GPU next to the NIC.
    assert_eq!((channels, total), (16, 370.0));
    let (channels, total) = found(&topology, Pattern::Tree, &Limits::default());
    // A tree uses no link beyond the first GPU: what PCIe lets through to the NICs.
    assert_eq!((channels, total), (16, 384.0));
}

#[test]
fn nodes_that_are_alike_are_searched_once() {
    let mut builder = TopologyBuilder::default();
    (0..12_500).for_each(|_| _ = dgx_h100(&mut builder));
    let topology = builder.build().unwrap();
    let orders = search(&topology, Pattern::Ring, &Limits::default());
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 100_000).unwrap();
    assert!(orders.iter().all(|channel| plan.clone().with_order(&channel.order).is_some()));
    assert_eq!(orders.iter().map(|channel| channel.gb_per_s).sum::<f64>(), 370.0);
}

#[test]
fn dgx_1_uses_every_nvlink() {
    let topology = machine(&[&dgx_1]);
    // Six NVLinks of 20 GB/s at each GPU, all of them in rings.
    assert_eq!(found(&topology, Pattern::Ring, &Limits::default()), (6, 120.0));
}

#[test]
fn summit_fills_both_nics() {
    let topology = machine(&[&|b| _ = summit(b), &|b| _ = summit(b), &|b| _ = summit(b)]);
    for pattern in PATTERNS {
        assert_eq!(found(&topology, pattern, &Limits::default()), (2, 24.0), "{pattern:?}");
    }
    // In one node the link between the sockets is the narrowest.
    let (_, total) = found(&machine(&[&|b| _ = summit(b)]), Pattern::Ring, &Limits::default());
    assert_eq!(total, 32.0);
}

#[test]
fn a_pcie_tree_is_crossed_once_each_way() {
    let topology = machine(&[&|b| _ = pcie_tree(b)]);
    let orders = search(&topology, Pattern::Ring, &Limits::default());
    check(&topology, Pattern::Ring, &orders);
    assert_eq!((orders.len(), orders[0].gb_per_s), (1, 10.0));
    // Ranks 0 and 2 share a switch, as 1 and 3 do.
    assert_eq!(orders[0].order, [0, 2, 3, 1].map(Rank));
}

#[test]
fn ranks_of_a_numa_domain_follow_each_other() {
    let topology = machine(&[&numa_host]);
    let orders = search(&topology, Pattern::Ring, &Limits::default());
    check(&topology, Pattern::Ring, &orders);
    assert_eq!(orders[0].order, [0, 4, 1, 5, 2, 6, 3, 7].map(Rank));
    // Four domains have three links out each, and a ring takes one.
    assert_eq!(orders.iter().map(|order| order.gb_per_s).sum::<f64>(), 60.0);
}

#[test]
fn unequal_nodes_work_together() {
    let topology = machine(&[&|b| _ = dgx_a100(b), &|b| _ = summit(b), &|b| _ = pcie_tree(b), &numa_host]);
    for pattern in PATTERNS {
        let orders = search(&topology, pattern, &Limits::default());
        check(&topology, pattern, &orders);
        // The one NIC of the tree carries every channel, at 12 GB/s of PCIe.
        let total: f64 = orders.iter().map(|order| order.gb_per_s).sum();
        assert!((10.0..=12.0).contains(&total), "{pattern:?}: {total}");
        assert_eq!(orders[0].stretches.len(), 4);
        assert_eq!(orders[0].stretches[3].nic, None);
    }
}

#[test]
fn ranks_without_a_way_are_in_plain_order() {
    let mut builder = TopologyBuilder::default();
    let node = builder.node("host");
    for numa in 0..3 {
        let cpu = Cpu { numa, ..Cpu::default() };
        let cpu = builder.vertex(Component::new(Kind::Cpu(cpu)).on(node));
        builder.rank(cpu);
    }
    let orders = search(&builder.build().unwrap(), Pattern::Ring, &Limits::default());
    assert_eq!((orders.len(), orders[0].gb_per_s), (1, 0.0));
    assert_eq!(orders[0].order, [0, 1, 2].map(Rank));
    assert_eq!(search(&Topology::default(), Pattern::Ring, &Limits::default()), []);
}

#[test]
fn ranks_of_one_seat_need_one_channel() {
    let mut builder = TopologyBuilder::default();
    let mut node = NodeBuilder::new(&mut builder);
    let cpu = node.cpus(1, 1.0)[0];
    (0..5).for_each(|_| _ = builder.rank(cpu));
    let topology = builder.build().unwrap();
    for pattern in PATTERNS {
        assert_eq!(found(&topology, pattern, &Limits::default()), (1, 40.0));
    }
}

#[test]
fn nodes_behind_a_switch_follow_each_other() {
    let mut builder = TopologyBuilder::default();
    let nics: Vec<_> = (0..4).flat_map(|_| pcie_tree(&mut builder)).collect();
    let leaves = [0, 1].map(|_| builder.vertex(Component::new(Kind::NetworkSwitch)));
    for (place, nic) in nics.iter().enumerate() {
        builder.link_both(*nic, leaves[place % 2], Medium::Network, 12.5, 500.0);
    }
    builder.link_both(leaves[0], leaves[1], Medium::Network, 12.5, 500.0);
    let orders = search(&builder.build().unwrap(), Pattern::Chain, &Limits::default());
    let nodes: Vec<_> = orders[0].stretches.iter().map(|stretch| stretch.node.0).collect();
    assert_eq!(nodes, [0, 2, 1, 3]);
}

#[test]
fn trees_join_chains_at_their_heads() {
    for nodes in [1, 2, 3, 8, 13] {
        let node: &dyn Fn(&mut TopologyBuilder) = &|b| _ = summit(b);
        let topology = machine(&vec![node; nodes]);
        let orders = search(&topology, Pattern::Tree, &Limits::default());
        let parents = orders[0].parents();
        for tree in &parents {
            assert_eq!(tree.iter().filter(|parent| parent.is_none()).count(), 1);
            let depth = |rank: usize| {
                core::iter::successors(Some(Rank(rank as u32)), |rank| tree[rank.index()]).take(1000).count()
            };
            let deepest = (0..tree.len()).map(depth).max().unwrap();
            assert!(deepest <= 6 + nodes.ilog2() as usize + 1, "{nodes} nodes: {deepest}");
            let children = |node: &Stretch| {
                let head = orders[0].order[node.first.index()];
                let of_other = |place: usize| !order_follows(&orders[0], head, place);
                (0..tree.len()).filter(|rank| tree[*rank] == Some(head) && of_other(*rank)).count()
            };
            assert!(orders[0].stretches.iter().all(|node| children(node) <= 2));
        }
    }
}

/// Whether a rank comes right after `head` in the order, and so in its chain.
fn order_follows(channel: &ChannelOrder, head: Rank, rank: usize) -> bool {
    channel.order.windows(2).any(|pair| pair[0] == head && pair[1].index() == rank)
}

/// The best of all orders for up to `most` channels, tried one after the other.
fn oracle(topology: &Topology, pattern: Pattern, most: u16, limits: &Limits) -> f64 {
    let groups = groups(topology);
    let total = |channels: usize| {
        let of_node = |group: &Group| {
            let seats: Vec<u32> = (0..group.seats.len() as u32).collect();
            let all = permutations(&seats);
            let mut best = 0.0_f64;
            for choice in 0..all.len().pow(channels as u32) {
                let order = |channel: usize| {
                    let seats = &all[choice / all.len().pow(channel as u32) % all.len()];
                    let ranks = seats.iter().flat_map(|seat| group.seats[*seat as usize].1.clone()).collect();
                    let nic = (groups.len() > 1)
                        .then(|| channel.checked_rem(group.nics.len()).map(|nic| group.nics[nic]))
                        .flatten();
                    let here = Stretch { node: group.node, first: Place(0), nic };
                    ChannelOrder { order: ranks, gb_per_s: 1.0, stretches: vec![here] }
                };
                let orders: Vec<_> = (0..channels).map(order).collect();
                let factor = |(used, load): (Used, f64)| match used {
                    Used::Link(link) => topology.wire(link).gb_per_s / load,
                    Used::Into(nic) | Used::OutOf(nic) => network_gb_per_s(topology, nic) / load,
                };
                // A ring that goes on to other nodes, by whatever way, does not close in this one.
                let is_open = groups.len() > 1 && pattern == Pattern::Ring;
                let pattern = if is_open { Pattern::Chain } else { pattern };
                let least = load(topology, pattern, &orders).into_iter().map(factor);
                best = best.max(least.fold(limits.channel_gb_per_s, f64::min));
            }
            best
        };
        channels as f64 * groups.iter().map(of_node).fold(f64::INFINITY, f64::min)
    };
    (1..=usize::from(most)).map(total).fold(0.0, f64::max)
}

fn permutations(seats: &[u32]) -> Vec<Vec<u32>> {
    match seats {
        [] => vec![Vec::new()],
        _ => seats
            .iter()
            .flat_map(|first| {
                let rest: Vec<u32> = seats.iter().copied().filter(|seat| seat != first).collect();
                permutations(&rest).into_iter().map(move |rest| [&[*first], &rest[..]].concat())
            })
            .collect(),
    }
}

/// A node of two to four GPUs with chance links, and up to two NICs.
#[derive(Clone, Debug)]
struct Chance {
    gpus: Vec<(bool, u32)>,
    switches: bool,
    across: u32,
    nvlinks: Vec<((u32, u32), u32)>,
    nics: Vec<(bool, u32)>,
}

fn chance() -> impl Strategy<Value = Chance> {
    let gpus = prop::collection::vec((any::<bool>(), 2..5_u32), 2..5);
    let nvlinks = prop::collection::vec(((0..4_u32, 0..4_u32), 1..4_u32), 0..6);
    let nics = prop::collection::vec((any::<bool>(), 1..4_u32), 0..3);
    (gpus, any::<bool>(), 1..4_u32, nvlinks, nics)
        .prop_map(|(gpus, switches, across, nvlinks, nics)| Chance { gpus, switches, across, nvlinks, nics })
}

impl Chance {
    fn add(&self, builder: &mut TopologyBuilder) {
        let mut node = NodeBuilder::new(builder);
        let mut above = node.cpus(2, 5.0 * f64::from(self.across));
        if self.switches {
            above = above.into_iter().map(|cpu| node.pcie_switch(cpu, 12.0)).collect();
        }
        let at = |second: bool| above[usize::from(second)];
        let gpus: Vec<_> = self
            .gpus
            .iter()
            .map(|(second, width)| node.gpu(at(*second), Medium::Pcie, 6.0 * f64::from(*width)))
            .collect();
        for ((one, other), width) in &self.nvlinks {
            let (one, other) = (*one as usize % gpus.len(), *other as usize % gpus.len());
            if one != other {
                node.nvlink(gpus[one], gpus[other], 20.0 * f64::from(*width));
            }
        }
        for (second, width) in &self.nics {
            node.nic(at(*second), 12.0, 5.0 * f64::from(*width));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_is_better_than_what_is_found(
        nodes in prop::collection::vec(chance(), 1..3),
        pattern in prop::sample::select(PATTERNS.to_vec()),
    ) {
        let mut builder = TopologyBuilder::default();
        nodes.iter().for_each(|node| node.add(&mut builder));
        let topology = builder.build().unwrap();
        let limits = Limits { channels: 2, steps: 1 << 20, ..Limits::default() };
        let (channels, total) = found(&topology, pattern, &limits);
        let best = oracle(&topology, pattern, limits.channels, &limits);
        let text: String = format!("{channels} channels: {total}, oracle {best}");
        prop_assert!((total - best).abs() < 1e-6 * best, "{}", text);
    }

    #[test]
    fn what_is_found_fits(
        nodes in prop::collection::vec(chance(), 1..6),
        pattern in prop::sample::select(PATTERNS.to_vec()),
    ) {
        let mut builder = TopologyBuilder::default();
        nodes.iter().for_each(|node| node.add(&mut builder));
        let topology = builder.build().unwrap();
        let (channels, total) = found(&topology, pattern, &Limits { steps: 1 << 8, ..Limits::default() });
        prop_assert!(channels >= 1 && total > 0.0);
        prop_assert_eq!(
            search(&topology, pattern, &Limits { steps: 1 << 8, ..Limits::default() }),
            search(&topology.clone(), pattern, &Limits { steps: 1 << 8, ..Limits::default() })
        );
    }
}
