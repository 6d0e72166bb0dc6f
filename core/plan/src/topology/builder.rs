//! Building a topology.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::ids::Rank;
use crate::topology::{Component, Host, Medium, Node, Topology, Vertex, Wire};

/// A topology that is being put together: nodes, then components, then links and ranks.
#[derive(Clone, Debug, Default)]
pub struct TopologyBuilder {
    nodes: Vec<Host>,
    components: Vec<Component>,
    wires: Vec<Wire>,
    seats: Vec<Vertex>,
}

/// Why what was put together is no topology.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A component is in a node that was not added.
    UnknownNode(Vertex),
    /// A link starts or ends at a component that was not added.
    UnknownVertex(Wire),
    /// A link leads back to where it starts.
    Loop(Wire),
    /// A bandwidth that is not above 0, a latency below 0, or one that is no number.
    NotPositive(Wire),
    /// A rank sits at something that is neither a GPU nor a CPU of a node.
    NoSeat(Rank),
}

impl TopologyBuilder {
    /// A builder with room, so that large machines are put together without copies.
    pub fn with_capacity(nodes: usize, vertices: usize, links: usize, ranks: usize) -> TopologyBuilder {
        TopologyBuilder {
            nodes: Vec::with_capacity(nodes),
            components: Vec::with_capacity(vertices),
            wires: Vec::with_capacity(links),
            seats: Vec::with_capacity(ranks),
        }
    }

    /// Adds a node by name.
    pub fn node(&mut self, name: &str) -> Node {
        self.host(Host { name: name.into(), hash: 0 })
    }

    /// Adds a node.
    pub fn host(&mut self, host: Host) -> Node {
        self.nodes.push(host);
        Node(self.nodes.len() as u32 - 1)
    }

    /// Adds a component.
    pub fn vertex(&mut self, component: Component) -> Vertex {
        self.components.push(component);
        Vertex(self.components.len() as u32 - 1)
    }

    /// A component that was added.
    pub fn component(&self, vertex: Vertex) -> &Component {
        &self.components[vertex.index()]
    }

    /// Adds a link in one direction.
    pub fn link(&mut self, from: Vertex, to: Vertex, medium: Medium, gb_per_s: f64, latency_ns: f64) {
        self.wires.push(Wire { from, to, medium, gb_per_s, latency_ns });
    }

    /// Adds a link in each direction, each with the whole bandwidth.
    pub fn link_both(&mut self, one: Vertex, other: Vertex, medium: Medium, gb_per_s: f64, latency_ns: f64) {
        self.link(one, other, medium, gb_per_s, latency_ns);
        self.link(other, one, medium, gb_per_s, latency_ns);
    }

    /// Gives the next rank its seat.
    pub fn rank(&mut self, seat: Vertex) -> Rank {
        self.seats.push(seat);
        Rank(self.seats.len() as u32 - 1)
    }

    /// The topology. Components keep their indices; links are put in the order of where they start.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn build(self) -> Result<Topology, BuildError> {
        self.check()?;
        let TopologyBuilder { nodes, components, wires, seats } = self;
        let starts = wires.iter().map(|wire| wire.from.index());
        let (first_wire, order) = sorted(starts, components.len());
        let wires = order.into_iter().map(|index| wires[index as usize]).collect();
        // What is in no node is put behind the last one.
        let homes = components.iter().map(|component| component.node.map_or(nodes.len(), Node::index));
        let (mut first_of_node, of_nodes) = sorted(homes, nodes.len() + 1);
        first_of_node.pop();
        let of_nodes = of_nodes.into_iter().map(Vertex).collect();
        let topology = Topology { nodes, components, wires, first_wire, of_nodes, first_of_node, seats };
        match topology.seats.iter().position(|seat| !topology.can_seat(*seat)) {
            Some(rank) => Err(BuildError::NoSeat(Rank(rank as u32))),
            None => Ok(topology),
        }
    }

    fn check(&self) -> Result<(), BuildError> {
        let is_known = |node: Node| node.index() < self.nodes.len();
        let lost = self.components.iter().position(|component| !component.node.is_none_or(is_known));
        if let Some(lost) = lost {
            return Err(BuildError::UnknownNode(Vertex(lost as u32)));
        }
        for wire in &self.wires {
            if wire.from.index().max(wire.to.index()) >= self.components.len() {
                return Err(BuildError::UnknownVertex(*wire));
            }
            if wire.from == wire.to {
                return Err(BuildError::Loop(*wire));
            }
            let is_sound = wire.gb_per_s > 0.0 && wire.latency_ns >= 0.0;
            if !is_sound || !wire.gb_per_s.is_finite() || !wire.latency_ns.is_finite() {
                return Err(BuildError::NotPositive(*wire));
            }
        }
        Ok(())
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::UnknownNode(vertex) => write!(f, "component {vertex} is in no node that was added"),
            BuildError::UnknownVertex(wire) => {
                write!(f, "a link from {} to {}, where a component is missing", wire.from, wire.to)
            }
            BuildError::Loop(wire) => write!(f, "a link from {} to itself", wire.from),
            BuildError::NotPositive(wire) => write!(
                f,
                "expected a bandwidth above 0 and a latency, found {} GB/s and {} ns from {} to {}",
                wire.gb_per_s, wire.latency_ns, wire.from, wire.to
            ),
            BuildError::NoSeat(rank) => write!(f, "rank {rank} sits at neither a GPU nor a CPU of a node"),
        }
    }
}

impl core::error::Error for BuildError {}

/// Indices sorted by their keys, which are below `bound`, equal keys in the order they came; and for
/// each key where its indices begin, with their number at the end.
fn sorted(keys: impl ExactSizeIterator<Item = usize> + Clone, bound: usize) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0; bound + 1];
    keys.clone().for_each(|key| first[key + 1] += 1);
    (0..bound).for_each(|key| first[key + 1] += first[key]);
    let (mut next, mut order) = (first.clone(), vec![0; keys.len()]);
    for (index, key) in keys.enumerate() {
        order[next[key] as usize] = index as u32;
        next[key] += 1;
    }
    (first, order)
}
