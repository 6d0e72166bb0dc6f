//! Detecting this machine in sysfs.
//!
//! A device's path in `/sys/devices` names every bridge above it. A PCIe switch shows as two bridges, one
//! facing up and one facing down, and the root port as one; so of the bridges above a device the nearest is
//! a port, the next a switch, and so on, as NCCL takes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ccl_plan::topology::{
    Arch, BusId, Component, Cpu, Gpu, Host, Kind, Medium, Nic, Node, Pci, Topology, TopologyBuilder, Vendor,
    Vertex,
};

use super::processors::{number, numbered, text};
use crate::discover::host::host_name;

/// Where the system tells about itself.
#[derive(Clone, Debug)]
pub struct System {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for System {
    /// The real one.
    fn default() -> System {
        System { sys: "/sys".into(), proc: "/proc".into() }
    }
}

/// The machine as the system tells: NUMA domains, GPUs (AMD's and NVIDIA's), NICs, the PCIe switches above
/// them. What it does not tell is left out or at its default; nothing fails, and there is always a CPU.
/// Every GPU seats a rank, or every NUMA domain if there is no GPU.
pub fn detect(system: &System) -> Topology {
    let mut builder = TopologyBuilder::default();
    let node = builder.host(Host { name: host_name(), hash: 0 });
    let cpus = add_cpus(system, &mut builder, node);
    let mut tree = Tree { sys: &system.sys, builder, node, cpus, switches: BTreeMap::new() };
    let mut seats = tree.add_gpus(&system.proc);
    tree.add_nics();
    if seats.is_empty() {
        seats = tree.cpus.values().copied().collect();
    }
    seats.into_iter().for_each(|seat| _ = tree.builder.rank(seat));
    tree.builder.build().expect("what was added fits together")
}

fn add_cpus(system: &System, builder: &mut TopologyBuilder, node: Node) -> BTreeMap<u32, Vertex> {
    let folder = system.sys.join("devices/system/node");
    let info = fs::read_to_string(system.proc.join("cpuinfo")).unwrap_or_default();
    let field = |name: &str| {
        let value =
            |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(value).unwrap_or_default()
    };
    let mut domains = numbered(&folder, "node");
    if domains.is_empty() {
        domains.push(0);
    }
    let cpus = domains.into_iter().map(|numa| {
        let cpu = Cpu {
            numa,
            affinity: text(&folder.join(format!("node{numa}/cpumap"))).unwrap_or_default(),
            arch: Arch::of(std::env::consts::ARCH),
            vendor: Vendor::of(&field("vendor_id")),
            family: field("cpu family").parse().unwrap_or(0),
            model: field("model").parse().unwrap_or(0),
        };
        let width = cpu.socket_gb_per_s();
        (numa, builder.vertex(Component::new(Kind::Cpu(cpu)).on(node)), width)
    });
    let cpus: Vec<_> = cpus.collect();
    for (place, (_, one, width)) in cpus.iter().enumerate() {
        for (_, other, _) in &cpus[place + 1..] {
            builder.link_both(*one, *other, Medium::Memory, *width, Medium::Memory.latency_ns());
        }
    }
    cpus.into_iter().map(|(numa, cpu, _)| (numa, cpu)).collect()
}

/// The PCI tree, as far as something that matters hangs in it.
struct Tree<'a> {
    sys: &'a Path,
    builder: TopologyBuilder,
    node: Node,
    cpus: BTreeMap<u32, Vertex>,
    switches: BTreeMap<BusId, Vertex>,
}

impl Tree<'_> {
    /// Adds the GPUs in the order of their addresses, as CUDA can count them too.
    fn add_gpus(&mut self, proc: &Path) -> Vec<Vertex> {
        let devices = fs::read_dir(self.sys.join("bus/pci/devices")).into_iter().flatten().flatten();
        let mut found: Vec<_> = devices
            .filter_map(|device| Some((device.file_name().to_str()?.parse::<BusId>().ok()?, device.path())))
            .filter(|(_, device)| is_gpu(device))
            .collect();
        found.sort_unstable();
        let mut gpus = Vec::new();
        for ((bus, device), number) in found.into_iter().zip(0..) {
            let gpu = Gpu { device: number, ..Gpu::default() };
            let model = text(&proc.join(format!("driver/nvidia/gpus/{bus}/information"))).unwrap_or_default();
            let model = model.lines().find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()));
            let component = Component::new(Kind::Gpu(gpu)).named(model.unwrap_or_default());
            gpus.extend(self.add(&device, component));
        }
        gpus
    }

    /// Adds InfiniBand devices by port, then network interfaces of other devices that are not down.
    fn add_nics(&mut self) {
        let (mut number, mut taken) = (0, Vec::new());
        let infiniband = self.sys.join("class/infiniband");
        for name in names(&infiniband) {
            let folder = infiniband.join(&name);
            let Ok(device) = fs::canonicalize(folder.join("device")) else { continue };
            for port in numbered(&folder.join("ports"), "") {
                let nic = Nic { device: number, port, ..infiniband_port(&folder, port) };
                if nic.speed_mbit_per_s > 0 {
                    self.add(&device, Component::new(Kind::Nic(nic)).named(&name));
                    number += 1;
                }
            }
            taken.push(device);
        }
        let interfaces = self.sys.join("class/net");
        for name in names(&interfaces) {
            let folder = interfaces.join(&name);
            let is_down = text(&folder.join("operstate")).is_some_and(|state| state == "down");
            // What is no device, such as a bridge or the loopback interface, has no such link.
            let Ok(device) = fs::canonicalize(folder.join("device")) else { continue };
            if is_down || taken.contains(&device) {
                continue;
            }
            let speed_mbit_per_s =
                text(&folder.join("speed")).and_then(|speed| speed.parse().ok()).unwrap_or(0);
            let nic = Nic { device: number, speed_mbit_per_s, ..Nic::default() };
            self.add(&device, Component::new(Kind::Nic(nic)).named(&name));
            number += 1;
        }
    }

    /// Adds a component at its place in the PCI tree, and the switches above it.
    fn add(&mut self, device: &Path, component: Component) -> Option<Vertex> {
        let device = fs::canonicalize(device).ok()?;
        let is_pci = |path: &&Path| bus_of(path).is_some();
        let way: Vec<&Path> =
            device.ancestors().skip_while(|path| !is_pci(path)).take_while(is_pci).collect();
        let Some(own) = way.first() else {
            let vertex = self.builder.vertex(component.on(self.node));
            self.link(*self.cpus.values().next()?, vertex, Pci::default());
            return Some(vertex);
        };
        let (pci, parent) = (facts(own), self.parent(&way));
        let vertex = self.builder.vertex(component.on(self.node).at(pci));
        self.link(parent, vertex, pci);
        Some(vertex)
    }

    /// The vertex above the first of a way upwards: a switch, or the CPU.
    fn parent(&mut self, way: &[&Path]) -> Vertex {
        let Some(above) = way.get(2..).filter(|above| !above.is_empty()) else { return self.cpu_of(way) };
        let pci = facts(above[0]);
        if let Some(known) = self.switches.get(&pci.bus) {
            return *known;
        }
        let parent = self.parent(above);
        let switch = self.builder.vertex(Component::new(Kind::PcieSwitch).on(self.node).at(pci));
        self.link(parent, switch, pci);
        self.switches.insert(pci.bus, switch);
        switch
    }

    fn cpu_of(&self, way: &[&Path]) -> Vertex {
        let numa = way.iter().find_map(|path| number(&path.join("numa_node")));
        let first = *self.cpus.values().next().expect("there is always a CPU");
        numa.and_then(|numa| self.cpus.get(&numa)).copied().unwrap_or(first)
    }

    fn link(&mut self, parent: Vertex, vertex: Vertex, pci: Pci) {
        self.builder.link_both(parent, vertex, Medium::Pcie, pci.gb_per_s(), Medium::Pcie.latency_ns());
    }
}

/// Accelerators and displays of the two vendors whose GPUs compute; not the display of a service processor.
fn is_gpu(device: &Path) -> bool {
    let class = number(&device.join("class")).unwrap_or(0);
    let vendor = number(&device.join("vendor")).unwrap_or(0);
    class >> 16 == 0x03 && [NVIDIA, AMD].contains(&vendor)
}

fn bus_of(path: &Path) -> Option<BusId> {
    path.file_name()?.to_str()?.parse().ok()
}

/// What a device says of itself. Its link is as fast as the slower of its two ends.
fn facts(device: &Path) -> Pci {
    let fact = |name: &str| number(&device.join(name)).unwrap_or(0);
    let speed = |path: &Path| {
        let giga: f64 = text(&path.join("max_link_speed"))?.split_whitespace().next()?.parse().ok()?;
        Some((giga * 10.0).round() as u16)
    };
    let lanes = |path: &Path| number(&path.join("max_link_width")).map(|lanes| lanes as u16);
    let parent = device.parent().filter(|parent| bus_of(parent).is_some());
    let slower = |fact: &dyn Fn(&Path) -> Option<u16>| {
        let ends = [Some(device), parent].into_iter().flatten().filter_map(fact).filter(|fact| *fact > 0);
        ends.min().unwrap_or(0)
    };
    Pci {
        bus: bus_of(device).unwrap_or_default(),
        class: fact("class"),
        vendor: fact("vendor") as u16,
        device: fact("device") as u16,
        subsystem_vendor: fact("subsystem_vendor") as u16,
        subsystem_device: fact("subsystem_device") as u16,
        lane_speed: slower(&speed),
        lanes: slower(&lanes),
    }
}

/// What a port says: its speed is 0 if it is not active.
fn infiniband_port(folder: &Path, port: u32) -> Nic {
    let own = folder.join(format!("ports/{port}"));
    let is_active = text(&own.join("state")).is_some_and(|state| state.ends_with("ACTIVE"));
    let giga = |rate: String| rate.split_whitespace().next()?.parse::<f64>().ok();
    let rate = text(&own.join("rate")).and_then(giga).filter(|_| is_active);
    let guid = text(&folder.join("node_guid")).unwrap_or_default().replace(':', "");
    Nic {
        speed_mbit_per_s: (rate.unwrap_or(0.0) * 1000.0) as u32,
        guid: u64::from_str_radix(&guid, 16).unwrap_or(0),
        ..Nic::default()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;
