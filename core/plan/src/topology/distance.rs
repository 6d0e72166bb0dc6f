//! Distances: what lies between two components, in NCCL's words.

use core::fmt;

use crate::topology::{Kind, Medium, Path, Router, Topology, Vertex};

/// What the way between two components crosses, from near to far. The names and their order are NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Distance {
    /// Nothing: the same component.
    Loc = 0,
    /// NVLinks, with or without an NVSwitch.
    Nvl = 1,
    /// NVLinks through another GPU.
    Nvb = 2,
    /// The link between GPU and CPU in one package.
    C2c = 3,
    /// One PCIe switch at most.
    Pix = 4,
    /// Several PCIe switches.
    Pxb = 5,
    /// The link between GPU and CPU in one package, then PCIe.
    P2c = 6,
    /// A GPU that is nearer to the NIC.
    Pxn = 7,
    /// A CPU.
    Phb = 8,
    /// Several CPUs.
    Sys = 9,
    /// The network.
    Net = 10,
    /// There is no way.
    Dis = 11,
}

impl Topology {
    /// What a path crosses. A path leads through no GPU, so this is never [`Distance::Nvb`] or
    /// [`Distance::Pxn`].
    pub fn distance_of(&self, path: &Path) -> Distance {
        let wires = path.links.iter().map(|link| self.wire(*link));
        let uses = |medium| wires.clone().any(|wire| wire.medium == medium);
        let is_cpu = |vertex: Vertex| matches!(self.component(vertex).kind, Kind::Cpu(_));
        let Some(first) = wires.clone().next() else { return Distance::Loc };
        let cpus = usize::from(is_cpu(first.from)) + wires.clone().filter(|wire| is_cpu(wire.to)).count();
        let ends_at_cpu = is_cpu(first.from) || wires.clone().next_back().is_some_and(|wire| is_cpu(wire.to));
        match (uses(Medium::Network), uses(Medium::Pcie), uses(Medium::C2c), cpus) {
            (true, ..) => Distance::Net,
            (_, _, _, 2..) => Distance::Sys,
            (_, true, true, _) => Distance::P2c,
            (_, false, true, _) => Distance::C2c,
            (_, true, _, 1) => Distance::Phb,
            (_, false, _, 1) if !ends_at_cpu => Distance::Phb,
            (_, true, ..) if self.switches_on(path) > 1 => Distance::Pxb,
            (_, true, ..) => Distance::Pix,
            _ => Distance::Nvl,
        }
    }

    fn switches_on(&self, path: &Path) -> usize {
        let ends = path.links.iter().map(|link| self.wire(*link).to);
        ends.filter(|end| self.component(*end).kind == Kind::PcieSwitch).count()
    }

    /// What lies between two components, a detour through one GPU included: [`Distance::Nvb`] between
    /// GPUs that have a common NVLink neighbour, [`Distance::Pxn`] from a GPU to a NIC that is nearer to
    /// one of its NVLink neighbours.
    pub fn distance(&self, router: &mut Router<'_>, from: Vertex, to: Vertex) -> Distance {
        let direct = self.straight(router, from, to);
        let detour = match (&self.component(from).kind, &self.component(to).kind) {
            (Kind::Gpu(_), Kind::Gpu(_)) => Distance::Nvb,
            (Kind::Gpu(_), Kind::Nic(_)) => Distance::Pxn,
            _ => return direct,
        };
        let most = if detour == Distance::Nvb { Distance::Nvl } else { Distance::Pxb };
        if direct <= detour || self.component(from).node != self.component(to).node {
            return direct;
        }
        let Some(node) = self.component(from).node else { return direct };
        let mut others = self.devices(node).filter(|other| *other != from && *other != to);
        let leads_there = others.any(|other| {
            self.straight(router, from, other) == Distance::Nvl && self.straight(router, other, to) <= most
        });
        if leads_there { detour } else { direct }
    }

    /// What lies between two components, NVLinks before anything else.
    fn straight(&self, router: &mut Router<'_>, from: Vertex, to: Vertex) -> Distance {
        if from != to && self.joined_by_nvlink(from, to) {
            return Distance::Nvl;
        }
        router.path(from, to).map_or(Distance::Dis, |path| self.distance_of(&path))
    }

    /// Whether NVLinks lead from one component to another, directly or over one NVSwitch.
    fn joined_by_nvlink(&self, from: Vertex, to: Vertex) -> bool {
        let by_nvlink = |vertex| {
            let wires = self.links_from(vertex).map(|link| self.wire(link));
            wires.filter(|wire| wire.medium == Medium::NvLink).map(|wire| wire.to)
        };
        let is_switch = |vertex: &Vertex| self.component(*vertex).kind == Kind::NvSwitch;
        by_nvlink(from).any(|next| next == to)
            || by_nvlink(from).filter(is_switch).any(|switch| by_nvlink(switch).any(|next| next == to))
    }
}

impl Distance {
    /// Every distance, from near to far.
    pub const ALL: [Distance; 12] = [
        Distance::Loc,
        Distance::Nvl,
        Distance::Nvb,
        Distance::C2c,
        Distance::Pix,
        Distance::Pxb,
        Distance::P2c,
        Distance::Pxn,
        Distance::Phb,
        Distance::Sys,
        Distance::Net,
        Distance::Dis,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Distance::Loc => "LOC",
            Distance::Nvl => "NVL",
            Distance::Nvb => "NVB",
            Distance::C2c => "C2C",
            Distance::Pix => "PIX",
            Distance::Pxb => "PXB",
            Distance::P2c => "P2C",
            Distance::Pxn => "PXN",
            Distance::Phb => "PHB",
            Distance::Sys => "SYS",
            Distance::Net => "NET",
            Distance::Dis => "DIS",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
