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
    /// What a path crosses. A path of [`Router::path`] leads through no GPU, so for it this is never
    /// [`Distance::Nvb`] or [`Distance::Pxn`].
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

    /// The way that data takes between two components, and what it crosses: the path, or a detour
    /// through one GPU of the same node where that is nearer. Detours are [`Distance::Nvb`] between GPUs
    /// with a common NVLink neighbour, and [`Distance::Pxn`] between a GPU and a NIC that is nearer to
    /// such a neighbour; of several the widest. `None` if there is no way.
    pub fn way(&self, router: &mut Router<'_>, from: Vertex, to: Vertex) -> Option<(Distance, Path)> {
        let mut reach = |from, to| {
            let path = router.path(from, to)?;
            Some((self.distance_of(&path), path))
        };
        let direct = reach(from, to);
        let (ends, node) = ((self.component(from), self.component(to)), self.component(from).node);
        let (detour, first, second) = match (&ends.0.kind, &ends.1.kind) {
            (Kind::Gpu(_), Kind::Gpu(_)) => (Distance::Nvb, Distance::Nvl, Distance::Nvl),
            (Kind::Gpu(_), Kind::Nic(_)) => (Distance::Pxn, Distance::Nvl, Distance::Pxb),
            (Kind::Nic(_), Kind::Gpu(_)) => (Distance::Pxn, Distance::Pxb, Distance::Nvl),
            _ => return direct,
        };
        let is_near = direct.as_ref().is_some_and(|(distance, _)| *distance <= detour);
        if is_near || node.is_none() || ends.1.node != node {
            return direct;
        }
        let others = self.devices(node?).filter(|other| *other != from && *other != to);
        let detours = others.filter_map(|other| {
            let (_, one) = reach(from, other).filter(|(distance, _)| *distance <= first)?;
            let (_, rest) = reach(other, to).filter(|(distance, _)| *distance <= second)?;
            Some(one.then(rest))
        });
        let widest = detours.reduce(|best, other| if other.gb_per_s > best.gb_per_s { other } else { best });
        widest.map(|path| (detour, path)).or(direct)
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
