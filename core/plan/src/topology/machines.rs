//! Machines for tests: what is known of their build, with round numbers.

use alloc::vec::Vec;

use super::*;

/// Adds a node's parts by few words.
pub(super) struct NodeBuilder<'a> {
    pub(super) builder: &'a mut TopologyBuilder,
    pub(super) node: Node,
    gpus: u32,
    nics: u32,
}

impl<'a> NodeBuilder<'a> {
    pub(super) fn new(builder: &'a mut TopologyBuilder) -> NodeBuilder<'a> {
        let node = builder.node("host");
        NodeBuilder { builder, node, gpus: 0, nics: 0 }
    }

    /// NUMA domains, all linked with each other.
    pub(super) fn cpus(&mut self, count: u32, gb_per_s: f64) -> Vec<Vertex> {
        let cpu = |numa| Component::new(Kind::Cpu(Cpu { numa, ..Cpu::default() })).on(self.node);
        let cpus: Vec<_> = (0..count).map(|numa| self.builder.vertex(cpu(numa))).collect();
        for (place, one) in cpus.iter().enumerate() {
            for other in &cpus[place + 1..] {
                self.builder.link_both(*one, *other, Medium::Memory, gb_per_s, 100.0);
            }
        }
        cpus
    }

    pub(super) fn part(&mut self, kind: Kind) -> Vertex {
        self.builder.vertex(Component::new(kind).on(self.node))
    }

    pub(super) fn pcie_switch(&mut self, above: Vertex, gb_per_s: f64) -> Vertex {
        let switch = self.part(Kind::PcieSwitch);
        self.builder.link_both(switch, above, Medium::Pcie, gb_per_s, 250.0);
        switch
    }

    /// A GPU with a rank.
    pub(super) fn gpu(&mut self, above: Vertex, medium: Medium, gb_per_s: f64) -> Vertex {
        let gpu = self.part(Kind::Gpu(Gpu { device: self.gpus, ..Gpu::default() }));
        self.gpus += 1;
        self.builder.link_both(gpu, above, medium, gb_per_s, 250.0);
        self.builder.rank(gpu);
        gpu
    }

    pub(super) fn nic(&mut self, above: Vertex, gb_per_s: f64, network_gb_per_s: f64) -> Vertex {
        let speed_mbit_per_s = (network_gb_per_s * 8000.0) as u32;
        let nic = self.part(Kind::Nic(Nic { device: self.nics, speed_mbit_per_s, ..Nic::default() }));
        self.nics += 1;
        self.builder.link_both(nic, above, Medium::Pcie, gb_per_s, 250.0);
        nic
    }

    pub(super) fn nvlink(&mut self, one: Vertex, other: Vertex, gb_per_s: f64) {
        self.builder.link_both(one, other, Medium::NvLink, gb_per_s, 200.0);
    }
}

/// Eight GPUs on an NVSwitch, in pairs on PCIe switches with two NICs each, as in DGX A100.
pub(super) fn dgx_a100(builder: &mut TopologyBuilder) -> Vec<Vertex> {
    let mut node = NodeBuilder::new(builder);
    let (cpus, nvswitch) = (node.cpus(2, 16.0), node.part(Kind::NvSwitch));
    let (mut gpus, mut nics) = (Vec::new(), Vec::new());
    for pair in 0..4 {
        let switch = node.pcie_switch(cpus[pair / 2], 24.0);
        gpus.extend([0, 1].map(|_| node.gpu(switch, Medium::Pcie, 24.0)));
        nics.extend([0, 1].map(|_| node.nic(switch, 24.0, 25.0)));
    }
    gpus.iter().for_each(|gpu| node.nvlink(*gpu, nvswitch, 240.0));
    nics
}

/// Eight GPUs in a cube of NVLinks, as in DGX-1 with V100: six NVLinks at each.
pub(super) fn dgx_1(builder: &mut TopologyBuilder) {
    let mut node = NodeBuilder::new(builder);
    let cpus = node.cpus(2, 10.0);
    let switches = [0, 0, 1, 1].map(|cpu| node.pcie_switch(cpus[cpu], 12.0));
    let gpus: Vec<_> = (0..8).map(|gpu| node.gpu(switches[gpu / 2], Medium::Pcie, 12.0)).collect();
    let cube = [
        ((0, 1), 1),
        ((0, 2), 1),
        ((0, 3), 2),
        ((0, 4), 2),
        ((1, 2), 2),
        ((1, 3), 1),
        ((1, 5), 2),
        ((2, 3), 2),
        ((2, 6), 1),
        ((3, 7), 1),
        ((4, 5), 1),
        ((4, 6), 1),
        ((4, 7), 2),
        ((5, 6), 2),
        ((5, 7), 1),
        ((6, 7), 2),
    ];
    for ((one, other), count) in cube {
        node.nvlink(gpus[one], gpus[other], 20.0 * f64::from(count));
    }
}

/// Six GPUs in two threes, each with NVLinks to each other and to its CPU, and a NIC at each CPU, as in
/// Summit.
pub(super) fn summit(builder: &mut TopologyBuilder) -> Vec<Vertex> {
    let mut node = NodeBuilder::new(builder);
    let cpus = node.cpus(2, 32.0);
    let mut nics = Vec::new();
    for cpu in cpus {
        let gpus = [0, 1, 2].map(|_| node.gpu(cpu, Medium::NvLink, 40.0));
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            node.nvlink(gpus[one], gpus[other], 40.0);
        }
        nics.push(node.nic(cpu, 12.0, 12.5));
    }
    nics
}

/// Four GPUs without NVLinks, in pairs on PCIe switches, and a NIC at one of them.
pub(super) fn pcie_tree(builder: &mut TopologyBuilder) -> Vec<Vertex> {
    let mut node = NodeBuilder::new(builder);
    let cpus = node.cpus(2, 10.0);
    let switches = [node.pcie_switch(cpus[0], 12.0), node.pcie_switch(cpus[1], 12.0)];
    // Ranks take turns between the pairs, as bad as can be.
    [0, 1, 0, 1].iter().for_each(|switch| _ = node.gpu(switches[*switch], Medium::Pcie, 12.0));
    [node.nic(switches[0], 12.0, 12.5)].into()
}

/// A host without GPUs: four NUMA domains with two ranks each.
pub(super) fn numa_host(builder: &mut TopologyBuilder) {
    let mut node = NodeBuilder::new(builder);
    let cpus = node.cpus(4, 20.0);
    cpus.iter().chain(&cpus).for_each(|cpu| _ = builder.rank(*cpu));
}

/// Eight GPUs on an NVSwitch, each with a NIC at a PCIe switch of its own, as in DGX H100.
pub(super) fn dgx_h100(builder: &mut TopologyBuilder) -> Vec<Vertex> {
    let mut node = NodeBuilder::new(builder);
    let (cpus, nvswitch) = (node.cpus(2, 40.0), node.part(Kind::NvSwitch));
    let mut nics = Vec::new();
    for place in 0..8 {
        let switch = node.pcie_switch(cpus[place / 4], 48.0);
        let gpu = node.gpu(switch, Medium::Pcie, 48.0);
        node.nvlink(gpu, nvswitch, 370.0);
        nics.push(node.nic(switch, 48.0, 50.0));
    }
    nics
}
