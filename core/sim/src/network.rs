//! A machine as a topology, with routes in closed form.
//!
//! Components have computable indices: for every node its NVSwitch, its devices and its NICs, then the
//! switches of the fabric. The links that leave a component have consecutive indices in the order in which
//! they are added here, so a route is worked out from the numbers of its ends, without a search.

use ccl_plan::machine::clock::Link;
use ccl_plan::topology::{Component, Gpu, Kind, Medium, Nic, Topology, TopologyBuilder, Vertex};
use ccl_plan::{Channel, Rank};

use crate::error::{Error, Result};
use crate::fluid::Route;
use crate::machine::{Fabric, Fault, Machine};

/// A machine with its links, and with what is wrong with it.
#[derive(Clone, Debug)]
pub struct Network {
    machine: Machine,
    topology: Topology,
    /// For each NIC of each node, the one that is used in its place.
    nics: Vec<u32>,
    slow_ranks: Vec<(Rank, f64)>,
    channels: u16,
}

impl Network {
    /// The links of a machine with `faults`, for jobs of so many channels.
    ///
    /// Fails if a number does not make sense, or a fault is somewhere that the machine does not have.
    pub fn new(machine: &Machine, faults: &[Fault], channels: u16) -> Result<Network> {
        check(machine)?;
        let node_nics = machine.nics_per_node;
        let mut network = Network {
            machine: machine.clone(),
            topology: Topology::default(),
            nics: (0..machine.nodes * node_nics).map(|nic| nic % node_nics).collect(),
            slow_ranks: Vec::new(),
            channels: channels.max(1),
        };
        let mut cables = vec![1.0; network.nics.len()];
        let mut lost = vec![false; network.nics.len()];
        for fault in faults {
            match *fault {
                Fault::SlowRank { rank, factor } if rank < machine.ranks() && factor >= 1.0 => {
                    network.slow_ranks.push((Rank(rank), factor));
                }
                Fault::SlowLink { node, nic, factor }
                    if node < machine.nodes && nic < node_nics && factor >= 1.0 =>
                {
                    cables[(node * node_nics + nic) as usize] *= factor;
                }
                Fault::LostNic { node, nic } if node < machine.nodes && nic < node_nics => {
                    lost[(node * node_nics + nic) as usize] = true;
                }
                _ => {
                    return Err(Error::usage(
                        format!(
                            "expected a fault in this machine, by a factor of 1 or more, found {fault:?}"
                        ),
                        "ranks, nodes and NICs are numbered from 0",
                    ));
                }
            }
        }
        network.replace(&lost)?;
        network.topology = network.build(&cables)?;
        Ok(network)
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Its components and links. Ranks sit at devices.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What each link carries, in 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> Vec<f64> {
        self.topology.links().map(|link| self.topology.wire(link).gb_per_s).collect()
    }

    /// The cost of an edge, with nothing else on the way but the job's other channels, which share its
    /// links evenly.
    pub fn link(&self, from: Rank, to: Rank, channel: Channel) -> Link {
        let Route { link, .. } = self.route(from, to, channel);
        let ways = (0..self.channels).map(|other| self.nics_of(from, to, Channel(other)));
        let own = self.nics_of(from, to, channel);
        let sharing = match own {
            None => usize::from(self.channels),
            Some((out, into)) => {
                let (outs, intos): (Vec<u32>, Vec<u32>) = ways.flatten().unzip();
                let same = |nics: &[u32], own| nics.iter().filter(|nic| **nic == own).count();
                same(&outs, out).max(same(&intos, into))
            }
        };
        Link { beta_ns_per_byte: link.beta_ns_per_byte * sharing as f64, ..link }
    }

    /// The way of an edge, for flows that share links.
    pub fn route(&self, from: Rank, to: Rank, channel: Channel) -> Route {
        let mut shared = Vec::with_capacity(10);
        let (mut latency_ns, mut gb_per_s) = (0.0, f64::INFINITY);
        let mut at = self.device(from);
        for (next, ordinal) in self.hops(from, to, channel) {
            let link = self.topology.links_from(at).next().map_or(0, |first| first.0) + ordinal;
            let wire = self.topology.wire(ccl_plan::topology::Link(link));
            debug_assert_eq!((wire.from, wire.to), (at, next), "links are numbered as they were added");
            latency_ns += wire.latency_ns;
            gb_per_s = f64::min(gb_per_s, wire.gb_per_s);
            shared.push(link);
            at = next;
        }
        let slow = self.slow_ranks.iter().filter(|(rank, _)| *rank == from).map(|(_, factor)| factor);
        let factor: f64 = slow.product();
        let link = Link { alpha_ns: latency_ns * factor, beta_ns_per_byte: factor / gb_per_s };
        Route { link, shared }
    }

    /// The way to all others of a rank's node at once, if the node's switch copies: the links to each of them.
    pub fn route_to_all(&self, from: Rank, channel: Channel) -> Option<Route> {
        let on_node = |rank: &Rank| *rank != from && self.node(*rank) == self.node(from);
        let others = (0..self.machine.ranks()).map(Rank).filter(on_node);
        let ways = others.map(|to| self.route(from, to, channel)).filter(|_| self.machine.multicast);
        ways.reduce(|mut all, way| {
            all.shared.extend(way.shared);
            all.shared.sort_unstable();
            all.shared.dedup();
            let slower = |one: f64, other: f64| one.max(other);
            let link = Link {
                alpha_ns: slower(all.link.alpha_ns, way.link.alpha_ns),
                beta_ns_per_byte: slower(all.link.beta_ns_per_byte, way.link.beta_ns_per_byte),
            };
            Route { link, ..all }
        })
    }

    /// The NICs on the way of a channel; `None` inside of a node.
    fn nics_of(&self, from: Rank, to: Rank, channel: Channel) -> Option<(u32, u32)> {
        let nics = (self.nic_in_use(from, channel), self.nic_in_use(to, channel));
        (self.node(from) != self.node(to)).then_some(nics)
    }

    /// The components after a device on the way to another rank's, each with the position of the link to it
    /// among those that leave the one before.
    fn hops(&self, from: Rank, to: Rank, channel: Channel) -> Vec<(Vertex, u32)> {
        let (node, peer) = (self.node(from), self.node(to));
        let mut hops = Vec::with_capacity(10);
        if node == peer {
            hops.push((self.switch(node), 0));
            hops.push((self.device(to), self.local(to)));
            return hops;
        }
        let (out, into) = (self.nic_in_use(from, channel), self.nic_in_use(to, channel));
        let mut device = self.local(from);
        if !self.is_next_to(device, out) {
            device = self.owner(out);
            hops.push((self.switch(node), 0));
            hops.push((self.device_at(node, device), device));
        }
        hops.push((self.nic(node, out), 1 + out - self.first_nic(device)));
        self.fabric_hops((node, out), (peer, into), &mut hops);
        let mut device = self.local(to);
        let direct = self.is_next_to(device, into);
        if !direct {
            device = self.owner(into);
        }
        hops.push((self.device_at(peer, device), 1 + device - self.first_device(into)));
        if !direct {
            hops.push((self.switch(peer), 0));
            hops.push((self.device(to), self.local(to)));
        }
        hops
    }

    /// From the NIC of one node to that of another.
    fn fabric_hops(&self, from: (u32, u32), to: (u32, u32), hops: &mut Vec<(Vertex, u32)>) {
        let (leaf, last) = (self.leaf(from), self.leaf(to));
        let (group, per_leaf) = self.leaf_size();
        hops.push((self.fabric_vertex(leaf), 0));
        if leaf != last {
            match self.machine.fabric {
                Fabric::Dragonfly { .. } => {
                    let other = if last < leaf { last } else { last - 1 };
                    hops.push((self.fabric_vertex(last), self.ports(leaf) + other));
                }
                _ => {
                    hops.push((self.fabric_vertex(self.leaves()), self.ports(leaf)));
                    hops.push((self.fabric_vertex(last), last));
                }
            }
        }
        let port = (to.0 % group) * per_leaf + if per_leaf == 1 { 0 } else { to.1 };
        hops.push((self.nic(to.0, to.1), port));
    }

    fn build(&self, cables: &[f64]) -> Result<Topology> {
        let Machine { nodes, devices_per_node, nics_per_node, local, network, .. } = self.machine;
        let mut builder = TopologyBuilder::default();
        for node in 0..nodes {
            let home = builder.node(&format!("node{node}"));
            let mut add = |kind| builder.vertex(Component::new(kind).on(home));
            add(Kind::NvSwitch);
            (0..devices_per_node).for_each(|device| {
                add(Kind::Gpu(Gpu { device, ..Gpu::default() }));
            });
            (0..nics_per_node).for_each(|device| {
                add(Kind::Nic(Nic { device, ..Nic::default() }));
            });
        }
        let upper = u32::from(self.leaves() > 1 && !matches!(self.machine.fabric, Fabric::Dragonfly { .. }));
        let switches = if nodes > 1 { self.leaves() + upper } else { 0 };
        (0..switches).for_each(|_| {
            builder.vertex(Component::new(Kind::NetworkSwitch));
        });
        for node in 0..nodes {
            for device in 0..devices_per_node {
                let vertex = self.device_at(node, device);
                builder.link_both(
                    vertex,
                    self.switch(node),
                    Medium::NvLink,
                    local.gb_per_s,
                    local.latency_us * 500.0,
                );
                builder.rank(vertex);
            }
            for (device, nic) in
                (0..devices_per_node).flat_map(|d| (0..nics_per_node).map(move |nic| (d, nic)))
            {
                // A NIC's first link is the one to its switch.
                if nodes > 1 && device == 0 {
                    let leaf = self.fabric_vertex(self.leaf((node, nic)));
                    let gb_per_s = network.gb_per_s / cables[(node * nics_per_node + nic) as usize];
                    builder.link_both(
                        self.nic(node, nic),
                        leaf,
                        Medium::Network,
                        gb_per_s,
                        network.latency_us * 500.0,
                    );
                }
            }
            for (device, nic) in
                (0..devices_per_node).flat_map(|d| (0..nics_per_node).map(move |nic| (d, nic)))
            {
                if nodes > 1 && self.is_next_to(device, nic) {
                    let (device, nic) = (self.device_at(node, device), self.nic(node, nic));
                    builder.link_both(device, nic, Medium::Pcie, network.gb_per_s, 0.0);
                }
            }
        }
        if nodes > 1 {
            self.link_switches(&mut builder);
        }
        let refused =
            |error| Error::usage(format!("{error:?}"), "give links positive bandwidths and latencies");
        builder.build().map_err(refused)
    }

    /// Links the first switches with each other.
    fn link_switches(&self, builder: &mut TopologyBuilder) {
        let Machine { nics_per_node, network, .. } = self.machine;
        let leaves = self.leaves();
        match self.machine.fabric {
            Fabric::FatTree { oversubscription, latency_us, .. }
            | Fabric::Rails { oversubscription, latency_us, .. } => {
                for leaf in (0..leaves).filter(|_| leaves > 1) {
                    let (group, _) = self.leaf_size();
                    let nics = if let Fabric::Rails { .. } = self.machine.fabric { 1 } else { nics_per_node };
                    let gb_per_s = network.gb_per_s * f64::from(group * nics) / oversubscription;
                    let (leaf, upper) = (self.fabric_vertex(leaf), self.fabric_vertex(leaves));
                    builder.link_both(leaf, upper, Medium::Network, gb_per_s, latency_us * 500.0);
                }
            }
            Fabric::Dragonfly { gb_per_s, latency_us, .. } => {
                for (from, to) in (0..leaves).flat_map(|from| (0..leaves).map(move |to| (from, to))) {
                    if from != to {
                        let (from, to) = (self.fabric_vertex(from), self.fabric_vertex(to));
                        builder.link(from, to, Medium::Network, gb_per_s, latency_us * 1e3);
                    }
                }
            }
            Fabric::Flat => {}
        }
    }

    /// Finds for each lost NIC the next one of its node.
    fn replace(&mut self, lost: &[bool]) -> Result<()> {
        let per_node = self.machine.nics_per_node;
        for (index, nic) in self.nics.iter_mut().enumerate() {
            let first = index as u32 - *nic;
            let next =
                (0..per_node).map(|step| (*nic + step) % per_node).find(|n| !lost[(first + n) as usize]);
            *nic = next.ok_or_else(|| {
                Error::usage(
                    format!("expected a NIC left on node {}, found all lost", first / per_node),
                    "a node without a NIC is a lost node: leave out its ranks",
                )
            })?;
        }
        Ok(())
    }

    /// The NIC that a rank uses in a channel: one next to it first, then the following ones; in the place of
    /// a lost one another.
    fn nic_in_use(&self, rank: Rank, channel: Channel) -> u32 {
        let nics = self.machine.nics_per_node;
        let nic = (self.first_nic(self.local(rank)) + u32::from(channel.0)) % nics;
        self.nics[(self.node(rank) * nics + nic) as usize]
    }

    fn node(&self, rank: Rank) -> u32 {
        rank.0 / self.machine.devices_per_node
    }

    fn local(&self, rank: Rank) -> u32 {
        rank.0 % self.machine.devices_per_node
    }

    fn size(&self) -> u32 {
        1 + self.machine.devices_per_node + self.machine.nics_per_node
    }

    fn switch(&self, node: u32) -> Vertex {
        Vertex(node * self.size())
    }

    fn device(&self, rank: Rank) -> Vertex {
        self.device_at(self.node(rank), self.local(rank))
    }

    fn device_at(&self, node: u32, device: u32) -> Vertex {
        Vertex(node * self.size() + 1 + device)
    }

    fn nic(&self, node: u32, nic: u32) -> Vertex {
        Vertex(node * self.size() + 1 + self.machine.devices_per_node + nic)
    }

    fn fabric_vertex(&self, switch: u32) -> Vertex {
        Vertex(self.machine.nodes * self.size() + switch)
    }

    /// The first NIC next to a device.
    fn first_nic(&self, device: u32) -> u32 {
        device * self.machine.nics_per_node / self.machine.devices_per_node
    }

    /// The device that others go over to reach a NIC that is not next to them.
    fn owner(&self, nic: u32) -> u32 {
        nic * self.machine.devices_per_node / self.machine.nics_per_node
    }

    fn is_next_to(&self, device: u32, nic: u32) -> bool {
        self.first_nic(device) == nic || self.owner(nic) == device
    }

    /// The first device next to a NIC.
    fn first_device(&self, nic: u32) -> u32 {
        let devices = 0..self.machine.devices_per_node;
        devices.into_iter().find(|device| self.is_next_to(*device, nic)).unwrap_or(0)
    }

    /// The first switch of a node's NIC.
    fn leaf(&self, (node, nic): (u32, u32)) -> u32 {
        let (group, per_leaf) = self.leaf_size();
        let rails = self.machine.nics_per_node / per_leaf;
        node / group * rails + if rails > 1 { nic } else { 0 }
    }

    /// Nodes of a pod or group, and NICs of each on one of its switches.
    fn leaf_size(&self) -> (u32, u32) {
        let Machine { nodes, nics_per_node, .. } = self.machine;
        match self.machine.fabric {
            Fabric::Flat => (nodes, nics_per_node),
            Fabric::FatTree { nodes_per_pod, .. } => (nodes_per_pod, nics_per_node),
            Fabric::Rails { nodes_per_pod, .. } => (nodes_per_pod, 1),
            Fabric::Dragonfly { nodes_per_group, .. } => (nodes_per_group, nics_per_node),
        }
    }

    fn leaves(&self) -> u32 {
        let (group, per_leaf) = self.leaf_size();
        self.machine.nodes.div_ceil(group) * (self.machine.nics_per_node / per_leaf)
    }

    /// NICs on a first switch.
    fn ports(&self, leaf: u32) -> u32 {
        let (group, per_leaf) = self.leaf_size();
        let rails = self.machine.nics_per_node / per_leaf;
        group.min(self.machine.nodes - leaf / rails * group) * per_leaf
    }
}

fn check(machine: &Machine) -> Result<()> {
    let Machine { nodes, devices_per_node, nics_per_node, local, network, fabric, .. } = machine;
    let group = match fabric {
        Fabric::Flat => 1,
        Fabric::FatTree { nodes_per_pod, .. } | Fabric::Rails { nodes_per_pod, .. } => *nodes_per_pod,
        Fabric::Dragonfly { nodes_per_group, .. } => *nodes_per_group,
    };
    let counts = [
        ("nodes", *nodes),
        ("devices_per_node", *devices_per_node),
        ("nics_per_node", *nics_per_node),
        ("nodes of a pod or group", group),
    ];
    if let Some((what, _)) = counts.iter().find(|(_, count)| *count == 0) {
        return Err(Error::usage(
            format!("expected 1 or more for {what}, found 0"),
            "give the machine at least one",
        ));
    }
    let most = u64::from(*nodes) * u64::from(*devices_per_node);
    if most > 1 << 20 {
        return Err(Error::usage(format!("expected at most 2^20 ranks, found {most}"), "take fewer nodes"));
    }
    let oversubscription = match fabric {
        Fabric::FatTree { oversubscription, .. } | Fabric::Rails { oversubscription, .. } => {
            *oversubscription
        }
        _ => 1.0,
    };
    let positive = [local.gb_per_s, network.gb_per_s, machine.fold_gb_per_s, oversubscription];
    let latencies = [local.latency_us, network.latency_us, machine.launch_us];
    // Written so that what is no number is refused too.
    if !positive.iter().all(|value| *value > 0.0) || !latencies.iter().all(|value| *value >= 0.0) {
        return Err(Error::usage(
            format!(
                "expected bandwidths and oversubscription above 0 and latencies from 0 on, found {machine:?}"
            ),
            "latencies are in microseconds, bandwidths in 10⁹ bytes per second",
        ));
    }
    Ok(())
}
