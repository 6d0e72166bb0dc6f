//! Reading topology files.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use roxmltree::{Document, Node as Element};

use super::XmlError;
use crate::topology::{
    Arch, BusId, Component, Cpu, Gpu, Host, Kind, Medium, Nic, Pci, Topology, TopologyBuilder, Vendor,
    Vertex, nvlink_gb_per_s,
};

/// Reads a topology.
///
/// GPUs with a `rank` seat it. If no GPU has one, every GPU seats one rank, in the order of the file; if
/// there is no GPU, every NUMA domain does.
///
/// # Errors
/// No XML, no `system`, or a value that makes no sense.
pub fn read(text: &str) -> Result<Topology> {
    let document = Document::parse(text).map_err(|error| XmlError {
        line: Some(error.pos().row).filter(|_| error.pos() != roxmltree::TextPos::new(1, 1)),
        what: format!("expected XML, found {error}"),
    })?;
    let mut reader = Reader::new(&document);
    let system = document.root_element();
    if system.tag_name().name() != "system" {
        return Err(reader.wrong(system, "<system>", system.tag_name().name()));
    }
    for cpu in system.children().filter(|child| child.has_tag_name("cpu")) {
        reader.cpu(cpu)?;
    }
    reader.join_sockets();
    reader.join_gpus()?;
    reader.seat_ranks(system)?;
    reader.builder.build().map_err(|error| XmlError { line: None, what: error.to_string() })
}

type Result<T> = core::result::Result<T, XmlError>;

/// A file being read.
struct Reader<'a> {
    document: &'a Document<'a>,
    builder: TopologyBuilder,
    /// The CPUs of each host, by the host's hash.
    hosts: BTreeMap<u64, Vec<Vertex>>,
    by_bus: BTreeMap<BusId, Vertex>,
    /// GPUs with their elements, the CPU they belong to, and the host's hash.
    gpus: Vec<(Vertex, Element<'a, 'a>, Vertex, u64)>,
}

impl<'a> Reader<'a> {
    fn new(document: &'a Document<'a>) -> Reader<'a> {
        let (hosts, by_bus) = (BTreeMap::new(), BTreeMap::new());
        Reader { document, builder: TopologyBuilder::default(), hosts, by_bus, gpus: Vec::new() }
    }

    fn cpu(&mut self, element: Element<'a, 'a>) -> Result<()> {
        let hash = self.number(element, "host_hash", 0)?;
        let node = match self.hosts.get(&hash).and_then(|cpus| cpus.first()) {
            Some(first) => self.builder.component(*first).node,
            None => Some(self.builder.host(Host { name: String::new(), hash })),
        };
        let text = |name| element.attribute(name).unwrap_or_default();
        let kind = Kind::Cpu(Cpu {
            numa: self.number(element, "numaid", 0)?,
            affinity: text("affinity").to_owned(),
            arch: Arch::of(text("arch")),
            vendor: Vendor::of(text("vendor")),
            family: self.number(element, "familyid", 0)?,
            model: self.number(element, "modelid", 0)?,
        });
        let cpu = self.builder.vertex(Component { node, ..Component::new(kind) });
        self.hosts.entry(hash).or_default().push(cpu);
        self.below(element, cpu, None, (cpu, hash))
    }

    /// Reads what hangs below an element: PCI devices, and adapters that are on no bus.
    fn below(
        &mut self,
        element: Element<'a, 'a>,
        parent: Vertex,
        own: Option<Pci>,
        home: (Vertex, u64),
    ) -> Result<()> {
        for child in element.children() {
            match child.tag_name().name() {
                "pci" => self.pci(child, parent, home)?,
                "nic" => self.nic(child, parent, own)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn pci(&mut self, element: Element<'a, 'a>, parent: Vertex, home: (Vertex, u64)) -> Result<()> {
        let pci = self.pci_facts(element)?;
        let inside = |name| element.children().find(move |child| child.has_tag_name(name));
        let is_leaf = inside("pci").is_none();
        let nics = element.children().filter(|child| child.has_tag_name("nic"));
        let ports = nics.flat_map(nets).count();
        let kind = match (inside("gpu"), pci.class >> 16) {
            (Some(gpu), _) => self.gpu(gpu)?,
            (None, 0x03) if is_leaf => Kind::Gpu(Gpu { device: self.gpus.len() as u32, ..Gpu::default() }),
            _ if ports > 1 => Kind::Adapter,
            (_, 0x02) if is_leaf && ports == 0 => Kind::Nic(Nic::default()),
            _ if ports == 1 => return self.nic(inside("nic").unwrap_or(element), parent, Some(pci)),
            _ => Kind::PcieSwitch,
        };
        let is_gpu = matches!(kind, Kind::Gpu(_));
        let node = self.builder.component(parent).node;
        let vertex = self.builder.vertex(Component { node, pci: Some(pci), ..Component::new(kind) });
        self.builder.link_both(parent, vertex, Medium::Pcie, pci.gb_per_s(), Medium::Pcie.latency_ns());
        self.by_bus.insert(pci.bus, vertex);
        if is_gpu {
            self.gpus.push((vertex, inside("gpu").unwrap_or(element), home.0, home.1));
            return Ok(());
        }
        self.below(element, vertex, None, home)
    }

    fn pci_facts(&self, element: Element<'a, 'a>) -> Result<Pci> {
        let speed = element.attribute("link_speed").unwrap_or_default();
        let giga = speed.split_whitespace().next().unwrap_or("0").parse::<f64>();
        let giga = giga.map_err(|_| self.wrong(element, "link_speed as in \"16 GT/s\"", speed))?;
        Ok(Pci {
            bus: self.bus(element, "busid")?,
            class: self.number(element, "class", 0)?,
            vendor: self.number(element, "vendor", 0)?,
            device: self.number(element, "device", 0)?,
            subsystem_vendor: self.number(element, "subsystem_vendor", 0)?,
            subsystem_device: self.number(element, "subsystem_device", 0)?,
            lane_speed: (giga * 10.0 + 0.5) as u16,
            lanes: self.number(element, "link_width", 0)?,
        })
    }

    fn gpu(&self, element: Element<'a, 'a>) -> Result<Kind> {
        Ok(Kind::Gpu(Gpu {
            device: self.number(element, "dev", self.gpus.len() as u32)?,
            sm: self.number(element, "sm", 0)?,
            gdr: self.number(element, "gdr", 0_u8)? != 0,
        }))
    }

    /// The ports of an adapter, each linked to `parent`. One that is the only one on a PCI device is that
    /// device.
    fn nic(&mut self, element: Element<'a, 'a>, parent: Vertex, pci: Option<Pci>) -> Result<()> {
        for net in nets(element) {
            let nic = Nic {
                device: self.number(net, "dev", 0)?,
                port: self.number(net, "port", 0)?,
                speed_mbit_per_s: self.number(net, "speed", 0)?,
                guid: self.number(net, "guid", 0)?,
                max_connections: self.number(net, "maxconn", 0)?,
                latency_ns: (1000.0 * self.decimal(net, "latency")? + 0.5) as u32,
                gdr: self.number(net, "gdr", 0_u8)? != 0,
                reduces: self.number(net, "coll", 0_u8)? != 0,
            };
            let node = self.builder.component(parent).node;
            let name = net.attribute("name").unwrap_or_default();
            let component = Component { node, pci, ..Component::new(Kind::Nic(nic)) };
            let vertex = self.builder.vertex(component.named(name));
            // Behind an adapter, or on no bus at all, nothing is narrower than the port itself.
            let width = pci.map_or(UNLIMITED_GB_PER_S, |pci| pci.gb_per_s());
            self.builder.link_both(parent, vertex, Medium::Pcie, width, Medium::Pcie.latency_ns());
        }
        Ok(())
    }

    /// Links the CPUs of each host with each other.
    fn join_sockets(&mut self) {
        for cpus in self.hosts.values() {
            for (place, one) in cpus.iter().enumerate() {
                let Kind::Cpu(cpu) = &self.builder.component(*one).kind else { continue };
                let width = cpu.socket_gb_per_s();
                for other in &cpus[place + 1..] {
                    self.builder.link_both(*one, *other, Medium::Memory, width, Medium::Memory.latency_ns());
                }
            }
        }
    }

    /// Links GPUs by what they say of their NVLinks. Each GPU lists its own; switches and CPUs list none.
    fn join_gpus(&mut self) -> Result<()> {
        let mut switches = BTreeMap::new();
        for (gpu, element, cpu, hash) in core::mem::take(&mut self.gpus) {
            let Kind::Gpu(Gpu { sm, .. }) = self.builder.component(gpu).kind else { continue };
            for link in element.children().filter(|child| child.has_tag_name("c2c")) {
                let count: f64 = self.number(link, "count", 1_u32)?.into();
                let width = count * self.decimal(link, "bw")? / 1000.0;
                self.builder.link_both(gpu, cpu, Medium::C2c, width, Medium::C2c.latency_ns());
            }
            for link in element.children().filter(|child| child.has_tag_name("nvlink")) {
                let count: f64 = self.number(link, "count", 1_u32)?.into();
                let (width, latency_ns) = (count * nvlink_gb_per_s(sm), Medium::NvLink.latency_ns());
                let node = self.builder.component(gpu).node;
                let other = match self.number(link, "tclass", 0x03_0000_u32)? {
                    class if class >> 16 == 0x03 => {
                        // A GPU that is not in the file is not to be used.
                        if let Some(other) = self.by_bus.get(&self.bus(link, "target")?) {
                            self.builder.link(gpu, *other, Medium::NvLink, width, latency_ns);
                        }
                        continue;
                    }
                    0x06_8001 => cpu,
                    _ => *switches.entry(hash).or_insert_with(|| {
                        self.builder.vertex(Component { node, ..Component::new(Kind::NvSwitch) })
                    }),
                };
                self.builder.link_both(gpu, other, Medium::NvLink, width, latency_ns);
            }
            self.gpus.push((gpu, element, cpu, hash));
        }
        Ok(())
    }

    fn seat_ranks(&mut self, system: Element<'a, 'a>) -> Result<()> {
        let mut seats: Vec<(u32, Vertex)> = Vec::new();
        for (gpu, element, ..) in &self.gpus {
            match self.number(*element, "rank", -1_i64)? {
                ..0 => {}
                rank => seats.push((rank as u32, *gpu)),
            }
        }
        seats.sort_unstable();
        if let Some((place, (rank, _))) = (0..).zip(&seats).find(|(place, (rank, _))| place != rank) {
            return Err(self.wrong(system, &format!("a GPU with rank {place}"), &format!("rank {rank}")));
        }
        let gpus = self.gpus.iter().map(|(gpu, ..)| *gpu);
        let mut cpus: Vec<Vertex> = self.hosts.values().flatten().copied().collect();
        cpus.sort_unstable();
        let seats: Vec<Vertex> = match (seats.is_empty(), self.gpus.is_empty()) {
            (false, _) => seats.into_iter().map(|(_, gpu)| gpu).collect(),
            (true, false) => gpus.collect(),
            (true, true) => cpus,
        };
        seats.into_iter().for_each(|seat| _ = self.builder.rank(seat));
        Ok(())
    }

    /// A whole number, decimal or hexadecimal after `0x`; what is not there, or empty, is the default.
    fn number<T: TryFrom<i128>>(&self, element: Element<'_, '_>, name: &str, default: T) -> Result<T> {
        let text = element.attribute(name).unwrap_or_default().trim();
        let number = match text.strip_prefix("0x") {
            _ if text.is_empty() => return Ok(default),
            Some(digits) => i128::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.wrong(element, &format!("a number for {name}"), text))
    }

    fn decimal(&self, element: Element<'_, '_>, name: &str) -> Result<f64> {
        let text = element.attribute(name).unwrap_or("0").trim();
        let number = text.parse().ok().filter(|number: &f64| *number >= 0.0 && number.is_finite());
        number.ok_or_else(|| self.wrong(element, &format!("a number for {name}"), text))
    }

    fn bus(&self, element: Element<'_, '_>, name: &str) -> Result<BusId> {
        let text = element.attribute(name).unwrap_or_default();
        text.parse().map_err(|_| self.wrong(element, &format!("{name} as in 0000:3b:00.0"), text))
    }

    fn wrong(&self, element: Element<'_, '_>, expected: &str, found: &str) -> XmlError {
        let tag = element.tag_name().name();
        XmlError {
            line: Some(self.document.text_pos_at(element.range().start).row),
            what: format!("<{tag}>: expected {expected}, found `{found}`"),
        }
    }
}

fn nets<'a>(nic: Element<'a, 'a>) -> impl Iterator<Item = Element<'a, 'a>> {
    nic.children().filter(|child| child.has_tag_name("net"))
}

/// NCCL's width of what is within one component.
const UNLIMITED_GB_PER_S: f64 = 5000.0;
