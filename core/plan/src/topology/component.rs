//! What a machine is made of.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::dtype::UnknownName;
use crate::fingerprint::Fingerprint;
use crate::topology::Node;

/// One part of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// The node it is in; none for what lies between nodes.
    pub node: Option<Node>,
    /// Its name; may be empty.
    pub name: String,
    /// Where it is plugged in, if into PCI.
    pub pci: Option<Pci>,
    /// What it is.
    pub kind: Kind,
}

/// What a component is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A NUMA domain: processors and the memory next to them.
    Cpu(Cpu),
    /// A GPU.
    Gpu(Gpu),
    /// A port of a network adapter.
    Nic(Nic),
    /// A network adapter with several ports, each of them a [`Kind::Nic`] with a link to it.
    Adapter,
    /// A PCIe switch.
    PcieSwitch,
    /// A switch of NVLinks.
    NvSwitch,
    /// A switch of the network.
    NetworkSwitch,
}

/// A NUMA domain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cpu {
    /// The operating system's number for it.
    pub numa: u32,
    /// The processors in it, as the bit mask that Linux prints: groups of eight hexadecimal digits
    /// between commas.
    pub affinity: String,
    /// The instruction set.
    pub arch: Arch,
    /// Who made it.
    pub vendor: Vendor,
    /// The vendor's family number; 0 if unknown.
    pub family: u32,
    /// The vendor's model number; 0 if unknown.
    pub model: u32,
}

/// A GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gpu {
    /// Its number on its node.
    pub device: u32,
    /// Its compute capability, as in 90 for 9.0; 0 if unknown.
    pub sm: u32,
    /// Whether NICs may read and write its memory.
    pub gdr: bool,
}

/// A port of a network adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nic {
    /// Its number on its node, as the network plugin counts.
    pub device: u32,
    /// Its port on its adapter, from 1; 0 if unknown.
    pub port: u32,
    /// Its speed in 10⁶ bits per second; 0 if unknown.
    pub speed_mbit_per_s: u32,
    /// What identifies its adapter; 0 if unknown.
    pub guid: u64,
    /// The most connections it takes; 0 if unknown.
    pub max_connections: u32,
    /// What its network adds to the time of a message.
    pub latency_ns: u32,
    /// Whether it may read and write the memory of GPUs.
    pub gdr: bool,
    /// Whether its network reduces on the way.
    pub reduces: bool,
}

/// What the PCI bus tells of a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pci {
    /// Where it is.
    pub bus: BusId,
    /// Its class: base class, subclass, interface.
    pub class: u32,
    /// Who made the chip; 0 if unknown, as all that follow.
    pub vendor: u16,
    /// Which chip.
    pub device: u16,
    /// Who made the card.
    pub subsystem_vendor: u16,
    /// Which card.
    pub subsystem_device: u16,
    /// The speed of a lane of its link upwards, in 10⁸ transfers per second: 160 for 16 GT/s.
    pub lane_speed: u16,
    /// The lanes of its link upwards.
    pub lanes: u16,
}

/// An address on the PCI bus: `domain:bus:device.function`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BusId(pub u64);

/// An instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Arch {
    /// Another one, or nobody said.
    #[default]
    Unknown = 0,
    /// x86, 64 bits.
    X86 = 1,
    /// Arm, 64 bits.
    Arm = 2,
    /// POWER, 64 bits.
    Power = 3,
}

/// Who made a CPU, as far as its links depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Vendor {
    /// Somebody else, or nobody said.
    #[default]
    Unknown = 0,
    /// Intel.
    Intel = 1,
    /// AMD.
    Amd = 2,
    /// Zhaoxin.
    Zhaoxin = 3,
}

impl Component {
    /// A component without node, name and PCI address.
    pub const fn new(kind: Kind) -> Component {
        Component { node: None, name: String::new(), pci: None, kind }
    }

    /// The same in a node.
    #[must_use]
    pub fn on(self, node: Node) -> Component {
        Component { node: Some(node), ..self }
    }

    /// The same with a name.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Component {
        Component { name: name.into(), ..self }
    }

    /// The same on the PCI bus.
    #[must_use]
    pub fn at(self, pci: Pci) -> Component {
        Component { pci: Some(pci), ..self }
    }

    /// Adds everything to a digest.
    pub(super) fn add_to(&self, digest: &mut Fingerprint) {
        digest.word(self.node.map_or(0, |node| u64::from(node.0) + 1));
        digest.bytes(self.name.as_bytes());
        digest.word(u64::from(self.pci.is_some()));
        if let Some(pci) = &self.pci {
            let chip = [pci.vendor, pci.device, pci.subsystem_vendor, pci.subsystem_device];
            let link = [pci.lane_speed, pci.lanes];
            digest.word(pci.bus.0);
            digest.word(pci.class.into());
            chip.iter().chain(&link).for_each(|number| digest.word((*number).into()));
        }
        digest.word(self.kind.code());
        match &self.kind {
            Kind::Cpu(cpu) => {
                digest.bytes(cpu.affinity.as_bytes());
                let codes = [cpu.numa, cpu.arch as u32, cpu.vendor as u32, cpu.family, cpu.model];
                codes.iter().for_each(|code| digest.word((*code).into()));
            }
            Kind::Gpu(gpu) => {
                [gpu.device, gpu.sm, gpu.gdr.into()].iter().for_each(|word| digest.word((*word).into()));
            }
            Kind::Nic(nic) => {
                digest.word(nic.guid);
                let limits = [nic.speed_mbit_per_s, nic.max_connections, nic.latency_ns];
                let rest = [nic.device, nic.port, nic.gdr.into(), nic.reduces.into()];
                limits.iter().chain(&rest).for_each(|word| digest.word((*word).into()));
            }
            Kind::Adapter | Kind::PcieSwitch | Kind::NvSwitch | Kind::NetworkSwitch => {}
        }
    }
}

impl Kind {
    /// The word for it in tables and pictures.
    pub const fn name(&self) -> &'static str {
        match self {
            Kind::Cpu(_) => "CPU",
            Kind::Gpu(_) => "GPU",
            Kind::Nic(_) => "NIC",
            Kind::Adapter => "adapter",
            Kind::PcieSwitch => "PCIe switch",
            Kind::NvSwitch => "NVSwitch",
            Kind::NetworkSwitch => "switch",
        }
    }

    /// Whether what arrives from one neighbour may leave to another. A NIC passes on between its node
    /// and the network, which [`Router`](crate::topology::Router) knows.
    pub const fn forwards(&self) -> bool {
        !matches!(self, Kind::Gpu(_) | Kind::Nic(_))
    }

    const fn code(&self) -> u64 {
        match self {
            Kind::Cpu(_) => 0,
            Kind::Gpu(_) => 1,
            Kind::Nic(_) => 2,
            Kind::Adapter => 3,
            Kind::PcieSwitch => 4,
            Kind::NvSwitch => 5,
            Kind::NetworkSwitch => 6,
        }
    }
}

impl Arch {
    /// The name that topology files use; empty if unknown.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Unknown => "",
            Arch::X86 => "x86_64",
            Arch::Arm => "arm64",
            Arch::Power => "ppc64",
        }
    }

    /// The instruction set of a name; unknown for unknown ones.
    pub fn of(name: &str) -> Arch {
        match name {
            "x86_64" => Arch::X86,
            "arm64" | "aarch64" => Arch::Arm,
            "ppc64" | "ppc64le" | "powerpc64" => Arch::Power,
            _ => Arch::Unknown,
        }
    }
}

impl Vendor {
    /// The name that the processor gives, and topology files use; empty if unknown.
    pub const fn name(self) -> &'static str {
        match self {
            Vendor::Unknown => "",
            Vendor::Intel => "GenuineIntel",
            Vendor::Amd => "AuthenticAMD",
            Vendor::Zhaoxin => "CentaurHauls",
        }
    }

    /// The vendor of a name; unknown for unknown ones.
    pub fn of(name: &str) -> Vendor {
        match name.trim() {
            "GenuineIntel" => Vendor::Intel,
            "AuthenticAMD" => Vendor::Amd,
            "CentaurHauls" | "Shanghai" => Vendor::Zhaoxin,
            _ => Vendor::Unknown,
        }
    }
}

/// As the kernel prints it: `0000:3b:00.0`.
impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, bus) = (self.0 >> 20, self.0 >> 12 & 0xff);
        write!(f, "{domain:04x}:{bus:02x}:{:02x}.{:x}", self.0 >> 4 & 0xff, self.0 & 0xf)
    }
}

impl fmt::Debug for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads any form in use: `0000:3b:00.0`, `00000000:3B:00.0`, `3b:00.0`.
impl FromStr for BusId {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<BusId, UnknownName> {
        let number = |text: &str, most: u64| {
            let number = u64::from_str_radix(text, 16).map_err(|_| UnknownName)?;
            if number <= most { Ok(number) } else { Err(UnknownName) }
        };
        let (place, function) = text.rsplit_once('.').ok_or(UnknownName)?;
        let (place, device) = place.rsplit_once(':').ok_or(UnknownName)?;
        let (domain, bus) = place.rsplit_once(':').unwrap_or(("0", place));
        let domain = number(domain, u64::from(u32::MAX))?;
        let (bus, device, function) = (number(bus, 0xff)?, number(device, 0xff)?, number(function, 0xf)?);
        Ok(BusId(domain << 20 | bus << 12 | device << 4 | function))
    }
}
