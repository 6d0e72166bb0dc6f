//! The topology of a machine: devices, NICs, switches, and the links between them.
//!
//! A graph that never changes once it is built. Vertices are [`Component`]s, most of them parts of one
//! node; links are [`Wire`]s in one direction each, with a bandwidth and a latency. A third list says
//! which component each rank sits at. Ranks that hold equal topologies have equal
//! [digests](Topology::digest), and make equal plans from them.
//!
//! ```
//! use ccl_plan::topology::{Component, Distance, Gpu, Kind, Medium, Router, TopologyBuilder};
//!
//! // Two GPUs with an NVLink between them, behind one PCIe switch.
//! let mut builder = TopologyBuilder::default();
//! let node = builder.node("host");
//! let switch = builder.vertex(Component::new(Kind::PcieSwitch).on(node));
//! let gpus = [0, 1].map(|device| {
//!     let gpu = builder.vertex(Component::new(Kind::Gpu(Gpu { device, ..Gpu::default() })).on(node));
//!     builder.link_both(gpu, switch, Medium::Pcie, 24.0, 250.0);
//!     builder.rank(gpu);
//!     gpu
//! });
//! builder.link_both(gpus[0], gpus[1], Medium::NvLink, 80.0, 300.0);
//! let topology = builder.build().unwrap();
//!
//! // The shortest way is the NVLink: over the switch it would take 500 ns.
//! let path = Router::new(&topology).path(gpus[0], gpus[1]).unwrap();
//! assert_eq!((path.links.len(), path.latency_ns, path.gb_per_s), (1, 300.0, 80.0));
//! assert_eq!(topology.distance_of(&path), Distance::Nvl);
//! ```
//!
//! It does not find out what a machine is made of: that is the runtime's.

mod builder;
mod component;
mod distance;
#[cfg(test)]
mod machines;
mod path;
pub mod search;
#[cfg(test)]
mod tests;
mod whole;
mod widths;
pub mod xml;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

pub use builder::{BuildError, TopologyBuilder};
pub use component::{Arch, BusId, Component, Cpu, Gpu, Kind, Nic, Pci, Vendor};
pub use distance::Distance;
pub use path::{Path, Router};
pub use widths::nvlink_gb_per_s;

use crate::fingerprint::Fingerprint;
use crate::ids::{Rank, index};

index! {
    /// A node's index in a topology.
    Node(u32)
}
index! {
    /// A component's index in a topology.
    Vertex(u32)
}
index! {
    /// A wire's index in a topology. The links that leave a vertex have consecutive indices.
    Link(u32)
}

/// The parts of one or many nodes, and what connects them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topology {
    nodes: Vec<Host>,
    components: Vec<Component>,
    /// Ordered by where they start.
    wires: Vec<Wire>,
    /// For each vertex, the first of its wires, and at the end the number of all.
    first_wire: Vec<u32>,
    /// The vertices of each node, one node after the other.
    of_nodes: Vec<Vertex>,
    /// For each node, the first of its vertices in `of_nodes`, and at the end the number of all.
    first_of_node: Vec<u32>,
    /// Where each rank sits.
    seats: Vec<Vertex>,
}

/// An operating-system host, as a topology knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Its name; may be empty.
    pub name: String,
    /// What tells it from other hosts, where names do not; 0 if there is nothing.
    pub hash: u64,
}

/// A link in one direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wire {
    /// Where it starts.
    pub from: Vertex,
    /// Where it ends.
    pub to: Vertex,
    /// What it is made of.
    pub medium: Medium,
    /// What it carries at most, in 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// What it adds to the time of a message, whatever its size.
    pub latency_ns: f64,
}

/// What a link is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Medium {
    /// The memory system of a node: between its NUMA domains.
    Memory = 0,
    /// PCI Express.
    Pcie = 1,
    /// NVLink, between GPUs or to an NVSwitch.
    NvLink = 2,
    /// The link between the chips of one package, as of a GPU and its CPU.
    C2c = 3,
    /// Between NICs and network switches.
    Network = 4,
}

impl Topology {
    /// The nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = Node> + use<> {
        (0..self.nodes.len() as u32).map(Node)
    }

    /// What is known of a node as a whole.
    ///
    /// # Panics
    /// The node is not of this topology; so for every function that takes an index.
    pub fn host(&self, node: Node) -> &Host {
        &self.nodes[node.index()]
    }

    /// All components.
    pub fn vertices(&self) -> impl ExactSizeIterator<Item = Vertex> + use<> {
        (0..self.components.len() as u32).map(Vertex)
    }

    /// A component.
    pub fn component(&self, vertex: Vertex) -> &Component {
        &self.components[vertex.index()]
    }

    /// All links.
    pub fn links(&self) -> impl ExactSizeIterator<Item = Link> + use<> {
        (0..self.wires.len() as u32).map(Link)
    }

    /// A link.
    pub fn wire(&self, link: Link) -> &Wire {
        &self.wires[link.index()]
    }

    /// The links that leave a vertex.
    pub fn links_from(&self, vertex: Vertex) -> impl ExactSizeIterator<Item = Link> + use<> {
        (self.first_wire[vertex.index()]..self.first_wire[vertex.index() + 1]).map(Link)
    }

    /// The widest link from one vertex straight to another.
    pub fn link_between(&self, from: Vertex, to: Vertex) -> Option<Link> {
        let direct = self.links_from(from).filter(|link| self.wire(*link).to == to);
        direct.max_by(|a, b| self.wire(*a).gb_per_s.total_cmp(&self.wire(*b).gb_per_s))
    }

    /// The components of a node, in the order in which they were added.
    pub fn of_node(&self, node: Node) -> &[Vertex] {
        let (first, end) = (self.first_of_node[node.index()], self.first_of_node[node.index() + 1]);
        &self.of_nodes[first as usize..end as usize]
    }

    /// The CPUs of a node: its NUMA domains.
    pub fn cpus(&self, node: Node) -> impl Iterator<Item = Vertex> + use<'_> {
        self.of_node_where(node, |kind| matches!(kind, Kind::Cpu(_)))
    }

    /// The devices of a node.
    pub fn devices(&self, node: Node) -> impl Iterator<Item = Vertex> + use<'_> {
        self.of_node_where(node, |kind| matches!(kind, Kind::Gpu(_)))
    }

    /// The NICs of a node. Those of equal position on several nodes form a rail.
    pub fn nics(&self, node: Node) -> impl Iterator<Item = Vertex> + use<'_> {
        self.of_node_where(node, |kind| matches!(kind, Kind::Nic(_)))
    }

    fn of_node_where(&self, node: Node, is: fn(&Kind) -> bool) -> impl Iterator<Item = Vertex> + use<'_> {
        self.of_node(node).iter().copied().filter(move |vertex| is(&self.component(*vertex).kind))
    }

    /// Where each rank sits: a GPU, or a CPU for ranks on host memory. Several may share a seat.
    pub fn seats(&self) -> &[Vertex] {
        &self.seats
    }

    /// Where a rank sits.
    pub fn seat(&self, rank: Rank) -> Vertex {
        self.seats[rank.index()]
    }

    /// The same machine with other ranks; `None` if a seat is neither a GPU nor a CPU of a node.
    pub fn with_seats(self, seats: Vec<Vertex>) -> Option<Topology> {
        seats.iter().all(|seat| self.can_seat(*seat)).then_some(Topology { seats, ..self })
    }

    fn can_seat(&self, vertex: Vertex) -> bool {
        let component = self.components.get(vertex.index());
        let is_fit = |component: &Component| matches!(component.kind, Kind::Gpu(_) | Kind::Cpu(_));
        component.is_some_and(|component| is_fit(component) && component.node.is_some())
    }

    /// A digest of everything, for the fingerprint that ranks compare. Equal topologies have equal
    /// digests on every machine.
    pub fn digest(&self) -> u64 {
        let mut digest = Fingerprint::new("topology");
        digest.word(self.nodes.len() as u64);
        for host in &self.nodes {
            digest.bytes(host.name.as_bytes());
            digest.word(host.hash);
        }
        digest.word(self.components.len() as u64);
        self.components.iter().for_each(|component| component.add_to(&mut digest));
        digest.word(self.wires.len() as u64);
        for wire in &self.wires {
            digest.word(u64::from(wire.from.0) << 32 | u64::from(wire.to.0));
            digest.word(wire.medium as u64);
            digest.word(wire.gb_per_s.to_bits());
            digest.word(wire.latency_ns.to_bits());
        }
        digest.word(self.seats.len() as u64);
        self.seats.iter().for_each(|seat| digest.word(u64::from(seat.0)));
        digest.finish()
    }
}

impl Medium {
    /// Every medium.
    pub const ALL: [Medium; 5] = [Medium::Memory, Medium::Pcie, Medium::NvLink, Medium::C2c, Medium::Network];

    /// The name used in tables and pictures.
    pub const fn name(self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::Pcie => "PCIe",
            Medium::NvLink => "NVLink",
            Medium::C2c => "C2C",
            Medium::Network => "network",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
