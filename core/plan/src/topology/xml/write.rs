//! Writing topology files.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::ids::Rank;
use crate::topology::{BusId, Component, Kind, Medium, Pci, Topology, Vertex, Wire, nvlink_gb_per_s};

/// A topology in NCCL's format: what [`read`](super::read()) reads back.
///
/// The format has no network between nodes, and of the ranks only the first at each GPU.
pub fn write(topology: &Topology) -> String {
    let mut out = Out::default();
    out.element("system", &[("version", "1".into())], |out| {
        let mut seen = BTreeSet::new();
        // What is no CPU writes nothing here.
        topology.vertices().for_each(|vertex| write_cpu(topology, vertex, &mut seen, out));
    });
    out.text
}

/// XML being written.
#[derive(Default)]
struct Out {
    text: String,
    depth: usize,
}

impl Out {
    fn element(&mut self, name: &str, attributes: &[(&str, String)], inside: impl FnOnce(&mut Out)) {
        self.tag(name, attributes);
        let end = self.text.len();
        self.text += ">\n";
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        if self.text.len() == end + 2 {
            self.text.truncate(end);
            self.text += "/>\n";
        } else {
            self.text += &format!("{:1$}</{name}>\n", "", 2 * self.depth);
        }
    }

    fn tag(&mut self, name: &str, attributes: &[(&str, String)]) {
        self.text += &format!("{:1$}<{name}", "", 2 * self.depth);
        for (name, value) in attributes {
            self.text += &format!(" {name}=\"");
            for letter in value.chars() {
                match letter {
                    '&' => self.text += "&amp;",
                    '<' => self.text += "&lt;",
                    '"' => self.text += "&quot;",
                    // XML has no such letters, or would read others.
                    letter if letter.is_control() => {}
                    letter => self.text.push(letter),
                }
            }
            self.text.push('"');
        }
    }
}

fn write_cpu(t: &Topology, vertex: Vertex, seen: &mut BTreeSet<Vertex>, out: &mut Out) {
    let Component { kind: Kind::Cpu(cpu), node, .. } = t.component(vertex) else { return };
    let mut attributes = vec![
        ("numaid", cpu.numa.to_string()),
        ("affinity", cpu.affinity.clone()),
        ("arch", cpu.arch.name().to_owned()),
        ("vendor", cpu.vendor.name().to_owned()),
        ("familyid", cpu.family.to_string()),
        ("modelid", cpu.model.to_string()),
    ];
    // Hosts must differ if there are several.
    let hash = node.map_or(0, |node| match t.host(node).hash {
        0 if t.nodes().len() > 1 => u64::from(node.0) + 1,
        hash => hash,
    });
    if hash != 0 {
        attributes.insert(0, ("host_hash", format!("{hash:#x}")));
    }
    out.element("cpu", &attributes, |out| write_below(t, vertex, seen, out));
}

/// Writes what hangs below a vertex by PCIe. Ports that have no address of their own stand last, in one
/// element.
fn write_below(t: &Topology, vertex: Vertex, seen: &mut BTreeSet<Vertex>, out: &mut Out) {
    seen.insert(vertex);
    let mut ports = Vec::new();
    for wire in wires(t, vertex, Medium::Pcie) {
        if matches!(t.component(wire.to).kind, Kind::Cpu(_)) || !seen.insert(wire.to) {
            continue;
        }
        let component = t.component(wire.to);
        let is_port = matches!(component.kind, Kind::Nic(_)) && component.pci.is_none();
        if is_port && matches!(t.component(vertex).kind, Kind::Adapter | Kind::Cpu(_)) {
            ports.push(component);
            continue;
        }
        let pci = pci_of(t, wire.to, wire.gb_per_s);
        out.element("pci", &pci_attributes(&pci), |out| match &component.kind {
            Kind::Gpu(_) => write_gpu(t, wire.to, out),
            Kind::Nic(_) => out.element("nic", &[], |out| write_net(component, out)),
            _ => write_below(t, wire.to, seen, out),
        });
    }
    if !ports.is_empty() {
        out.element("nic", &[], |out| ports.iter().for_each(|port| write_net(port, out)));
    }
}

fn write_gpu(t: &Topology, vertex: Vertex, out: &mut Out) {
    let Kind::Gpu(gpu) = t.component(vertex).kind else { return };
    let mut attributes = vec![("dev", gpu.device.to_string()), ("sm", gpu.sm.to_string())];
    if let Some((Rank(rank), _)) = (0..).map(Rank).zip(t.seats()).find(|(_, seat)| **seat == vertex) {
        attributes.push(("rank", rank.to_string()));
    }
    attributes.push(("gdr", u8::from(gpu.gdr).to_string()));
    out.element("gpu", &attributes, |out| {
        for wire in wires(t, vertex, Medium::NvLink) {
            let count = ((wire.gb_per_s / nvlink_gb_per_s(gpu.sm) + 0.5) as u32).max(1);
            let class = match t.component(wire.to).kind {
                Kind::Gpu(_) => "0x030200",
                Kind::Cpu(_) => "0x068001",
                _ => "0x068000",
            };
            let target = pci_of(t, wire.to, 0.0).bus.to_string();
            let attributes = [("target", target), ("count", count.to_string()), ("tclass", class.into())];
            out.element("nvlink", &attributes, |_| ());
        }
        for wire in wires(t, vertex, Medium::C2c) {
            let width = ((wire.gb_per_s * 1000.0 + 0.5) as u64).to_string();
            out.element("c2c", &[("bw", width), ("count", "1".into())], |_| ());
        }
    });
}

fn write_net(component: &Component, out: &mut Out) {
    let Kind::Nic(nic) = component.kind else { return };
    let attributes = [
        ("name", component.name.clone()),
        ("dev", nic.device.to_string()),
        ("latency", (f64::from(nic.latency_ns) / 1000.0).to_string()),
        ("speed", nic.speed_mbit_per_s.to_string()),
        ("port", nic.port.to_string()),
        ("guid", format!("{:#x}", nic.guid)),
        ("maxconn", nic.max_connections.to_string()),
        ("gdr", u8::from(nic.gdr).to_string()),
        ("coll", u8::from(nic.reduces).to_string()),
    ];
    out.element("net", &attributes, |_| ());
}

fn pci_attributes(pci: &Pci) -> Vec<(&'static str, String)> {
    let mut attributes = vec![("busid", pci.bus.to_string()), ("class", format!("{:#08x}", pci.class))];
    let chip = [
        ("vendor", pci.vendor),
        ("device", pci.device),
        ("subsystem_vendor", pci.subsystem_vendor),
        ("subsystem_device", pci.subsystem_device),
    ];
    attributes.extend(chip.map(|(name, number)| (name, format!("{number:#06x}"))));
    if pci.lane_speed > 0 {
        attributes.push(("link_speed", format!("{} GT/s PCIe", f64::from(pci.lane_speed) / 10.0)));
    }
    attributes.push(("link_width", pci.lanes.to_string()));
    attributes
}

/// What PCI says of a vertex, or would say of one that carries about so much upwards.
fn pci_of(t: &Topology, vertex: Vertex, gb_per_s: f64) -> Pci {
    let component = t.component(vertex);
    component.pci.unwrap_or_else(|| {
        let class = match component.kind {
            Kind::Gpu(_) => 0x03_0200,
            Kind::Nic(_) | Kind::Adapter => 0x02_0000,
            _ => 0x06_0400,
        };
        // A domain that no machine has.
        let bus = BusId(0x1_0000 << 20 | u64::from(vertex.0) << 4);
        Pci { bus, class, ..Pci::default() }.with_gb_per_s(gb_per_s)
    })
}

fn wires(t: &Topology, vertex: Vertex, medium: Medium) -> impl Iterator<Item = &Wire> {
    t.links_from(vertex).map(|link| t.wire(link)).filter(move |wire| wire.medium == medium)
}
