//! Machines to simulate, as a few numbers: nodes, devices, NICs, and the network between them.

use serde::{Deserialize, Serialize};

/// A machine of equal nodes.
///
/// Devices of a node reach each other over a switch of NVLinks. NIC k of a node belongs to the devices
/// next to it; a channel that goes over another device's NIC passes that device. Ranks are devices, node
/// after node.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Nodes.
    pub nodes: u32,
    /// Devices of a node, with a rank each.
    pub devices_per_node: u32,
    /// NICs of a node.
    pub nics_per_node: u32,
    /// Between a device and the others of its node.
    pub local: Reach,
    /// Between a NIC and its switch.
    pub network: Reach,
    /// What lies between the first switches.
    #[serde(default)]
    pub fabric: Fabric,
    /// What each call takes besides its messages.
    #[serde(default)]
    pub launch_us: f64,
    /// What a device folds.
    #[serde(default = "unlimited")]
    pub fold_gb_per_s: f64,
    /// Whether the switch of a node copies on the way what a device sends to all others. It does for ranks of one node.
    #[serde(default)]
    pub multicast: bool,
}

/// How devices reach each other.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reach {
    /// α: from a device to another with nothing else in between.
    pub latency_us: f64,
    /// 1/β, in 10⁹ bytes per second and direction.
    pub gb_per_s: f64,
}

/// What lies between the switches that NICs are connected to.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Fabric {
    /// One switch that never is short of anything.
    #[default]
    Flat,
    /// Pods of nodes with a switch each, under one level of further switches.
    FatTree {
        /// Nodes of a pod.
        nodes_per_pod: u32,
        /// How much more the nodes of a pod can send than leaves it: 1 for a full fat tree.
        oversubscription: f64,
        /// What the way over the upper switches adds to α.
        #[serde(default)]
        latency_us: f64,
    },
    /// As a fat tree, with a switch for each rail in a pod: the NICs of equal position.
    Rails {
        /// Nodes of a pod.
        nodes_per_pod: u32,
        /// As for a fat tree.
        oversubscription: f64,
        /// As for a fat tree.
        #[serde(default)]
        latency_us: f64,
    },
    /// Groups of nodes with a switch each, and a link between every two groups.
    Dragonfly {
        /// Nodes of a group.
        nodes_per_group: u32,
        /// Of the link between two groups, in each direction.
        gb_per_s: f64,
        /// What the way to another group adds to α.
        #[serde(default)]
        latency_us: f64,
    },
}

/// What is wrong with a machine.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Fault {
    /// A rank whose messages take longer, all of them.
    SlowRank {
        /// The rank.
        rank: u32,
        /// How many times longer.
        factor: f64,
    },
    /// A cable between a NIC and its switch that carries less.
    SlowLink {
        /// The node.
        node: u32,
        /// Its NIC.
        nic: u32,
        /// How many times less.
        factor: f64,
    },
    /// A NIC that is not there: its channels go over the next one of the node.
    LostNic {
        /// The node.
        node: u32,
        /// Its NIC.
        nic: u32,
    },
}

impl Machine {
    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.devices_per_node
    }

    /// The same with as many nodes as so many ranks need; `None` if they are not whole nodes.
    pub fn with_ranks(&self, ranks: u32) -> Option<Machine> {
        let per_node = self.devices_per_node.max(1);
        let nodes = ranks / per_node;
        // Less than a node is a node with fewer devices.
        match ranks {
            0 => None,
            _ if ranks < per_node => Some(Machine { nodes: 1, devices_per_node: ranks, ..self.clone() }),
            _ => ranks.is_multiple_of(per_node).then(|| Machine { nodes, ..self.clone() }),
        }
    }

    /// A published machine by name.
    ///
    /// Latencies are those of NCCL's model for small messages, unless a measurement is at hand; bandwidths
    /// are those of the links, per direction.
    pub fn named(name: &str) -> Option<Machine> {
        Some(match name {
            // One NVLink domain of 72 devices.
            "nvlink" => Machine::of(1, (72, 1), (1.0, 900.0), (2.7, 50.0)),
            // 8 devices, 8 NICs at 200 Gb/s. What a hop takes is that of nccl-tests' issue 123.
            "dgx-a100" => Machine { launch_us: 5.56, ..Machine::of(1, (8, 8), (1.98, 300.0), (2.7, 25.0)) },
            // 8 devices, 8 NICs at 400 Gb/s.
            "dgx-h100" => Machine::of(1, (8, 8), (1.0, 450.0), (2.7, 50.0)),
            // 6 devices, 2 NICs at 100 Gb/s; 1 µs in the node is the network's overhead in every step.
            "summit" => Machine { launch_us: 6.6, ..Machine::of(4096, (6, 2), (1.0, 50.0), (2.7, 12.5)) },
            // 4 GH200, 4 NICs at 200 Gb/s.
            "alps" => Machine::of(512, (4, 4), (1.0, 150.0), (2.7, 25.0)),
            _ => return None,
        })
    }

    /// The names that [`Machine::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ["nvlink", "dgx-a100", "dgx-h100", "summit", "alps"].into_iter()
    }

    /// A node of so many devices, whose links cost nothing.
    pub(crate) fn one_node(ranks: u32) -> Machine {
        Machine::of(1, (ranks, 1), (0.0, f64::INFINITY), (0.0, f64::INFINITY))
    }

    fn of(nodes: u32, per_node: (u32, u32), local: (f64, f64), network: (f64, f64)) -> Machine {
        let reach = |(latency_us, gb_per_s)| Reach { latency_us, gb_per_s };
        Machine {
            nodes,
            devices_per_node: per_node.0,
            nics_per_node: per_node.1,
            local: reach(local),
            network: reach(network),
            fabric: Fabric::Flat,
            launch_us: 0.0,
            fold_gb_per_s: unlimited(),
            multicast: false,
        }
    }
}

fn unlimited() -> f64 {
    f64::INFINITY
}
