use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::algo::algorithms;
use crate::ids::Rank;
use crate::machine::clock::{Clock, Link};
use crate::machine::traffic::Traffic;
use crate::machine::{Buffers, Case, Domain, Stage, walk};
use crate::plan::Plan;

/// Messages between nodes take so much longer than in them that no path with more of them is shorter.
const FAR: Rates = Rates { alpha_ns: 1000.0, ..QUIET };
const NEAR: Rates = Rates { alpha_ns: 10.0, ..QUIET };
const QUIET: Rates = Rates {
    move_ns: 0.0,
    beta_ns_per_byte: 1.0,
    channel_beta_ns_per_byte: 1.0,
    gamma_ns_per_byte: 0.0,
    workers: 1,
    chunk_bytes: u64::MAX,
    ..Rates::RDMA
};

fn nodes(sizes: &[u32]) -> Nodes {
    Nodes::new(sizes, NEAR).unwrap()
}

/// A walk of one pass, blocks of 120 bytes; with the bytes of all blocks.
fn walked<D: Domain>(collective: Collective, algorithm: Algorithm, sizes: &[u32], domain: D) -> (D, usize) {
    let n: u32 = sizes.iter().sum();
    let plan = Plan::new(collective, algorithm, n).unwrap();
    let plan = if algorithm.is_two_level() { plan.with_nodes(sizes).unwrap() } else { plan };
    let whole = collective.input() == crate::Shape::Whole;
    let count = if whole { 120 * n as usize } else { 120 };
    let case = Case {
        n,
        count,
        channels: 1,
        chunk_count: count,
        grain_count: 1,
        slots: 8,
        root: Rank(0),
        buffers: Buffers::Apart,
        blocks: None,
    };
    let stage = Stage::new(&plan, &case).unwrap();
    (walk(&stage, domain).unwrap().domain, if whole { count } else { count * n as usize })
}

fn node_of(nodes: &Nodes) -> Vec<usize> {
    nodes.stretches().enumerate().flat_map(|(node, (first, end))| (first..end).map(move |_| node)).collect()
}

/// Every algorithm of every collective that has one plan for all ranks, on every machine.
fn cases() -> impl Iterator<Item = (Collective, Algorithm, &'static [u32])> {
    let even = Collective::ALL
        .into_iter()
        .filter(move |collective| !collective.uneven() && !collective.is_message());
    let pairs = even
        .flat_map(|collective| algorithms(collective).iter().map(move |algorithm| (collective, *algorithm)));
    pairs.flat_map(|(collective, algorithm)| SIZES.iter().map(move |sizes| (collective, algorithm, *sizes)))
}

/// The upper bounds are as near as this. Latencies where nodes are equal powers of two are exact, but for those of
/// Swing, and of rings that wait for credits.
#[test]
fn messages_are_those_on_the_longest_path() {
    for (collective, algorithm, sizes) in cases() {
        let nodes = nodes(sizes);
        let node = node_of(&nodes);
        let link = |from: Rank, to: Rank| {
            let rates = if node[from.index()] == node[to.index()] { NEAR } else { FAR };
            Link { alpha_ns: rates.alpha_ns, beta_ns_per_byte: 0.0 }
        };
        let clock = walked(collective, algorithm, sizes, Clock::new(link, 0.0, 1)).0.finish();
        let traffic = nodes.traffic(collective, algorithm, &FAR);
        let ns = traffic.far_messages as f64 * FAR.alpha_ns + traffic.near_messages as f64 * NEAR.alpha_ns;
        let regular = sizes.iter().all(|size| *size == sizes[0] && size.is_power_of_two());
        let (least, most) = match algorithm {
            Algorithm::Swing => (1.0, 2.0),
            Algorithm::Ring if sizes.contains(&8) || sizes.contains(&6) => (0.8, 1.0),
            Algorithm::RecursiveDoubling if !regular => (1.0, 1.34),
            Algorithm::TwoLevel if !regular => (1.0, 1.01),
            _ => (1.0, 1.0),
        };
        let ratio = ns / clock.ns;
        let right = least - 1e-9 <= ratio && ratio <= most + 1e-9;
        assert!(right, "{collective}.{algorithm} of {sizes:?}: {ns} {}", clock.ns);
    }
}

#[test]
fn bytes_through_links_are_what_a_walk_counts() {
    for (collective, algorithm, sizes) in cases() {
        let nodes = nodes(sizes);
        let node = node_of(&nodes);
        let (traffic, all) = walked(collective, algorithm, sizes, Traffic::new());
        // What each node sends to others and gets from them.
        let mut cut = vec![[0; 2]; sizes.len()];
        for (from, to, load) in traffic.pairs() {
            let (from, to) = (node[from.index()], node[to.index()]);
            if from != to {
                cut[from][0] += load.elements;
                cut[to][1] += load.elements;
            }
        }
        let counted = cut.iter().flatten().max().copied().unwrap_or(0) as f64 / all as f64;
        let link = nodes.traffic(collective, algorithm, &FAR).link_bytes;
        let (least, most) = match (collective, algorithm) {
            // Up, and then down: a link is busy in one direction at a time.
            (Collective::AllReduce, Algorithm::Binomial) => (1.0, 2.0),
            (_, Algorithm::Swing) => (1.0, 2.0),
            // Not every node with a pair that is torn is the busiest.
            (Collective::AllReduce, Algorithm::RecursiveDoubling) => (1.0, 1.34),
            // Nor do all seats stand for pairs.
            (_, Algorithm::RecursiveDoubling) => (1.0, 2.0),
            // Chunks are rounded.
            (_, Algorithm::TwoLevel | Algorithm::TwoLevelHalving) => (0.995, 1.0),
            _ => (1.0, 1.0),
        };
        let right = least * counted - 1e-9 <= link && link <= most * counted + 1e-9;
        assert!(right, "{collective}.{algorithm} of {sizes:?}: {link} {counted}");
    }
}

/// Long messages, where each rank has a link of its own as the clock has it: what algorithms are compared by. Neither Swing,
/// whose bound is wide there, nor what a root gets, which takes the clock no time.
#[test]
fn bytes_take_about_as_long_as_a_clock_says() {
    let rates =
        |beta| Rates { alpha_ns: 0.0, beta_ns_per_byte: beta, channel_beta_ns_per_byte: beta, ..QUIET };
    for (collective, algorithm, sizes) in cases() {
        if algorithm == Algorithm::Swing || collective.rooted() || collective == Collective::Barrier {
            continue;
        }
        for (near, far) in [(0.1, 1.0), (1.0, 1.0), (1.0, 0.5)] {
            let nodes = Nodes::new(sizes, rates(near)).unwrap().with_links(64);
            let node = node_of(&nodes);
            let link = |from: Rank, to: Rank| Link {
                alpha_ns: 0.0,
                beta_ns_per_byte: if node[from.index()] == node[to.index()] { near } else { far },
            };
            let (clock, all) = walked(collective, algorithm, sizes, Clock::new(link, 0.0, 1));
            let (clock, far) = (clock.finish().ns, rates(far));
            let traffic = nodes.traffic(collective, algorithm, &far);
            let ns = nodes.time_ns((collective, algorithm, &traffic), all as u64, &far, 1);
            let (least, most) = match algorithm {
                Algorithm::RecursiveDoubling if collective != Collective::AllReduce => (0.7, 2.0),
                Algorithm::Ring | Algorithm::TwoLevel | Algorithm::TwoLevelHalving => (0.99, 1.01),
                Algorithm::DoubleTree => (0.87, 1.5),
                Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct => (1.0, 1.5),
                _ => (0.7, 1.7),
            };
            let right = (least - 1e-9..=most + 1e-9).contains(&(ns / clock));
            assert!(right, "{collective}.{algorithm} of {sizes:?}, {near}: {ns} {clock}");
        }
    }
}

/// The same machine with one link for a node, and with one for each rank.
#[test]
fn ranks_share_links() {
    let (sizes, bytes) = ([8; 4], 1 << 30);
    let time = |links, algorithm| {
        let nodes = nodes(&sizes).with_links(links);
        let traffic = nodes.traffic(Collective::AllReduce, algorithm, &FAR);
        nodes.time_ns((Collective::AllReduce, algorithm, &traffic), bytes, &FAR, 1) / bytes as f64
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
    // One rank sends out of a node: links make no difference.
    assert!(near(time(1, Algorithm::Ring), 1.9375) && near(time(8, Algorithm::Ring), 1.9375));
    // All do, 7/4 of S in the node and 3/2 of it outside.
    assert!(near(time(1, Algorithm::TwoLevel), 1.75 + 1.5));
    assert!(near(time(8, Algorithm::TwoLevel), 1.75 + 1.5 / 8.0));
    assert!(near(time(4, Algorithm::TwoLevel), 1.75 + 1.5 / 4.0));
    assert!(near(time(100, Algorithm::TwoLevel), 1.75 + 1.5 / 8.0));
}

#[test]
fn what_makes_no_difference_is_no_nodes() {
    for sizes in [&[][..], &[8], &[1, 1, 1], &[4, 0, 4], &[u32::MAX, 2]] {
        assert_eq!(Nodes::new(sizes, NEAR), None, "{sizes:?}");
    }
    let some = nodes(&[3, 1]);
    assert_eq!((some.sizes(), some.n(), some.links()), (&[3, 1][..], 4, 1));
}

/// What machines are made of: equal nodes and others.
const SIZES: &[&[u32]] = &[
    &[2, 2],
    &[4, 4],
    &[8, 8],
    &[2, 2, 2, 2],
    &[4, 4, 4, 4],
    &[8, 8, 8, 8],
    &[4, 2],
    &[3, 3],
    &[3, 3, 3, 3],
    &[6, 6, 6, 6],
    &[8, 8, 7],
    &[5, 3, 4, 1],
];
