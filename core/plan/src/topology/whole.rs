//! A topology as a whole: what people call its parts, and many of one kind.

use alloc::format;
use alloc::string::String;

use crate::ids::Rank;
use crate::topology::{Component, Kind, Topology, TopologyBuilder, Vertex};

impl Topology {
    /// A component's short name, as in `GPU3`; where there are several nodes, with its node, as in
    /// `1/GPU3`. Switches share the name of their kind.
    pub fn label(&self, vertex: Vertex) -> String {
        let component = self.component(vertex);
        let own = match &component.kind {
            Kind::Cpu(cpu) => format!("CPU{}", cpu.numa),
            Kind::Gpu(gpu) => format!("GPU{}", gpu.device),
            Kind::Nic(nic) => format!("NIC{}", nic.device),
            other => other.name().into(),
        };
        match component.node {
            Some(node) if self.nodes().len() > 1 => format!("{node}/{own}"),
            _ => own,
        }
    }

    /// The ranks that sit at a component, ascending.
    pub fn ranks_at(&self, vertex: Vertex) -> impl Iterator<Item = Rank> + use<'_> {
        let seats = (0..).map(Rank).zip(self.seats());
        seats.filter(move |(_, seat)| **seat == vertex).map(|(rank, _)| rank)
    }

    /// A machine of `times` nodes, each like the one that this machine is; ranks follow node by node. `None`
    /// if this machine is not one node.
    pub fn repeated(&self, times: u32) -> Option<Topology> {
        let is_whole = |vertex| self.component(vertex).node.is_some();
        if self.nodes().len() != 1 || !self.vertices().all(is_whole) {
            return None;
        }
        let mut builder = TopologyBuilder::default();
        let count = self.vertices().len() as u32;
        for turn in 0..times {
            let node = builder.node("");
            let moved = |vertex: Vertex| Vertex(vertex.0 + turn * count);
            for vertex in self.vertices() {
                builder.vertex(Component { node: Some(node), ..self.component(vertex).clone() });
            }
            for wire in self.links().map(|link| self.wire(link)) {
                builder.link(moved(wire.from), moved(wire.to), wire.medium, wire.gb_per_s, wire.latency_ns);
            }
            self.seats().iter().for_each(|seat| _ = builder.rank(moved(*seat)));
        }
        builder.build().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Node;
    use crate::topology::machines::summit;

    #[test]
    fn a_node_is_repeated_with_its_ranks() {
        let mut builder = TopologyBuilder::default();
        summit(&mut builder);
        let one = builder.build().unwrap();
        let three = one.repeated(3).unwrap();
        assert_eq!(three.repeated(2), None);
        assert_eq!((three.nodes().len(), three.seats().len()), (3, 18));
        let last = three.devices(Node(2)).last().unwrap();
        assert_eq!(three.ranks_at(last).collect::<alloc::vec::Vec<_>>(), [Rank(17)]);
        assert_eq!((three.label(last), one.label(one.seat(Rank(5)))), ("2/GPU5".into(), "GPU5".into()));
        assert_eq!(three.of_node(Node(1)).len(), one.vertices().len());
    }
}
