//! Short names for the parts of a machine.

use ccl::Rank;
use ccl::plan::topology::{Kind, Topology, Vertex};

use super::number;
use crate::text;

/// A component's short name, as in `GPU3`; where there are several nodes, with its node, as in `1/GPU3`.
pub(super) fn label(machine: &Topology, vertex: Vertex) -> String {
    let component = machine.component(vertex);
    let own = match &component.kind {
        Kind::Cpu(cpu) => format!("CPU{}", cpu.numa),
        Kind::Gpu(gpu) => format!("GPU{}", gpu.device),
        Kind::Nic(nic) => format!("NIC{}", nic.device),
        other => format!("{} {vertex}", other.name()),
    };
    match component.node {
        Some(node) if machine.nodes().len() > 1 => format!("{node}/{own}"),
        _ => own,
    }
}

/// The row that says more of it: label, what, where, ranks.
pub(super) fn describe(machine: &Topology, vertex: Vertex) -> [String; 4] {
    let component = machine.component(vertex);
    let facts = match &component.kind {
        Kind::Cpu(cpu) => format!("NUMA domain, {} {}", cpu.vendor.name(), cpu.arch.name()),
        Kind::Gpu(gpu) if gpu.sm > 0 => format!("sm {}", gpu.sm),
        Kind::Nic(nic) if nic.speed_mbit_per_s > 0 => format!("{} Gb/s", nic.speed_mbit_per_s / 1000),
        _ => String::new(),
    };
    let what = [component.name.clone(), facts].into_iter().filter(|part| !part.trim().is_empty());
    let place = component
        .pci
        .map_or(String::new(), |pci| format!("{}, {} GB/s upwards", pci.bus, number(pci.gb_per_s())));
    [
        label(machine, vertex),
        what.collect::<Vec<_>>().join(", "),
        place,
        text::ranges(&ranks(machine, vertex)),
    ]
}

/// The ranks that sit at a vertex.
pub(super) fn ranks(machine: &Topology, vertex: Vertex) -> Vec<Rank> {
    let seats = (0..).map(Rank).zip(machine.seats());
    seats.filter(|(_, seat)| **seat == vertex).map(|(rank, _)| rank).collect()
}
