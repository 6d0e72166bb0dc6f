//! One node as the search sees it: seats, NICs, and the ways between them.

use alloc::vec::Vec;

use super::{Group, Pattern, TOLERANCE, network_gb_per_s};
use crate::topology::{
    Component, Cpu, Gpu, Kind, Link, Medium, Nic, Router, Topology, TopologyBuilder, Vertex,
};

/// A node without what tells it from others that are built alike: its seats, one rank at each, and for
/// each NIC a network of its width.
#[derive(PartialEq)]
pub(super) struct Blueprint {
    graph: Topology,
    /// Whether there are other nodes.
    networked: bool,
    /// The NICs of the graph, each with its network; none if there are no other nodes.
    nics: Vec<(Vertex, Vertex)>,
}

/// A node with its ways.
pub(super) struct Site {
    pub(super) blueprint: Blueprint,
    /// From each seat to each, seat by seat.
    between: Vec<Option<Way>>,
    /// From the network of each NIC to each seat, NIC by NIC; and back.
    enter: Vec<Option<Way>>,
    leave: Vec<Option<Way>>,
}

/// The links of a way.
pub(super) type Way = Vec<Link>;

impl Blueprint {
    /// The blueprint of a node, which is `networked` if there are others.
    pub(super) fn new(topology: &Topology, group: &Group, networked: bool) -> Blueprint {
        let vertices = topology.of_node(group.node);
        let mut builder = TopologyBuilder::default();
        let node = builder.node("");
        for vertex in vertices {
            builder.vertex(Component::new(plain(&topology.component(*vertex).kind)).on(node));
        }
        let local = |vertex: Vertex| vertices.binary_search(&vertex).ok().map(|place| Vertex(place as u32));
        for wire in vertices.iter().flat_map(|vertex| topology.links_from(*vertex)) {
            let wire = topology.wire(wire);
            if let (Some(from), Some(to)) = (local(wire.from), local(wire.to)) {
                builder.link(from, to, wire.medium, wire.gb_per_s, wire.latency_ns);
            }
        }
        let mut nics = Vec::new();
        for nic in group.nics.iter().filter(|_| networked) {
            let network = builder.vertex(Component::new(Kind::NetworkSwitch));
            let own = local(*nic).expect("a node's NIC is among its components");
            builder.link_both(own, network, Medium::Network, network_gb_per_s(topology, *nic), 0.0);
            nics.push((own, network));
        }
        for (seat, _) in &group.seats {
            builder.rank(local(*seat).expect("a seat is in its node"));
        }
        let graph = builder.build().expect("a part of a topology is one");
        Blueprint { graph, networked, nics }
    }
}

impl Site {
    /// Finds the ways.
    pub(super) fn new(blueprint: Blueprint) -> Site {
        let graph = &blueprint.graph;
        let mut router = Router::new(graph);
        let mut way = |from, to| graph.way(&mut router, from, to).map(|(_, path)| path.links);
        let seats = graph.seats();
        let mut between = Vec::new();
        for from in seats {
            between.extend(seats.iter().map(|to| way(*from, *to)));
        }
        let (mut enter, mut leave) = (Vec::new(), Vec::new());
        for (nic, network) in &blueprint.nics {
            let ends = graph.link_between(*network, *nic).zip(graph.link_between(*nic, *network));
            let (inwards, outwards) = ends.expect("a NIC is linked with its network both ways");
            for seat in seats {
                enter.push(way(*nic, *seat).map(|way| [inwards].into_iter().chain(way).collect()));
                leave.push(way(*seat, *nic).map(|way| way.into_iter().chain([outwards]).collect()));
            }
        }
        Site { between, enter, leave, blueprint }
    }

    /// The number of seats.
    pub(super) fn seats(&self) -> usize {
        self.blueprint.graph.seats().len()
    }

    /// Whether there is no other node.
    pub(super) fn is_alone(&self) -> bool {
        !self.blueprint.networked
    }

    /// The bandwidths of all links, in the order of the links.
    pub(super) fn widths(&self) -> impl ExactSizeIterator<Item = f64> + use<'_> {
        self.blueprint.graph.links().map(|link| self.blueprint.graph.wire(link).gb_per_s)
    }

    /// The position of a channel's NIC.
    pub(super) fn nic_of(&self, channel: usize) -> Option<usize> {
        channel.checked_rem(self.blueprint.nics.len())
    }

    /// The way from one seat to another.
    pub(super) fn between(&self, from: u32, to: u32) -> Option<&Way> {
        self.between[from as usize * self.seats() + to as usize].as_ref()
    }

    /// The way from the network of a NIC to a seat.
    pub(super) fn enter(&self, nic: usize, seat: u32) -> Option<&Way> {
        self.enter[nic * self.seats() + seat as usize].as_ref()
    }

    /// The way from a seat to the network of a NIC.
    pub(super) fn leave(&self, nic: usize, seat: u32) -> Option<&Way> {
        self.leave[nic * self.seats() + seat as usize].as_ref()
    }

    /// What all channels together cannot exceed: every seat passes everything on, or in a tree half of it;
    /// every NIC carries its channels.
    pub(super) fn most(&self, pattern: Pattern) -> f64 {
        let graph = &self.blueprint.graph;
        let out = |vertex: Vertex| graph.links_from(vertex).map(|link| graph.wire(link).gb_per_s).sum();
        let mut seats: Vec<f64> = graph.seats().iter().map(|seat| out(*seat)).collect();
        seats.sort_by(f64::total_cmp);
        let uses_nics = !self.blueprint.nics.is_empty();
        // Where an order ends, nothing is passed on, and every order may end elsewhere.
        let by_steps = seats.iter().sum::<f64>() / (seats.len() as f64 - 1.0);
        let by_seats = match pattern {
            _ if seats.len() == 1 && !uses_nics => f64::INFINITY,
            Pattern::Ring if self.is_alone() || uses_nics => seats[0],
            Pattern::Chain if uses_nics => seats[0],
            Pattern::Ring | Pattern::Chain => by_steps,
            Pattern::Tree => by_steps.min(2.0 * seats[0]),
        };
        let networks = self.blueprint.nics.iter().map(|(_, network)| out(*network));
        let by_nics = if uses_nics { networks.sum() } else { f64::INFINITY };
        by_seats.min(by_nics) * (1.0 + TOLERANCE)
    }
}

/// What matters of a component's kind.
fn plain(kind: &Kind) -> Kind {
    match kind {
        Kind::Cpu(_) => Kind::Cpu(Cpu::default()),
        Kind::Gpu(_) => Kind::Gpu(Gpu::default()),
        Kind::Nic(_) => Kind::Nic(Nic::default()),
        other => other.clone(),
    }
}
