//! Topologies by hand and by chance.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// A node as of a machine with two sockets: each with a PCIe switch, two GPUs and a NIC; NVLinks between
/// GPUs 0-1, 1-2, 2-3. Vertices: CPUs 0 and 1, switches 2 and 7, GPUs 3, 4, 8, 9, NICs 5 and 10.
fn two_sockets(builder: &mut TopologyBuilder) -> (Vec<Vertex>, Vec<Vertex>) {
    let node = builder.node("host");
    let cpus = [0, 1].map(|numa| {
        builder.vertex(Component::new(Kind::Cpu(Cpu { numa, ..Cpu::default() })).on(node).named("cpu"))
    });
    builder.link_both(cpus[0], cpus[1], Medium::Memory, 20.0, 100.0);
    let (mut gpus, mut nics) = (Vec::new(), Vec::new());
    for socket in 0..2 {
        let switch = builder.vertex(Component::new(Kind::PcieSwitch).on(node));
        builder.link_both(cpus[socket as usize], switch, Medium::Pcie, 24.0, 250.0);
        for device in [2 * socket, 2 * socket + 1] {
            let gpu = Gpu { device, sm: 80, gdr: true };
            gpus.push(builder.vertex(Component::new(Kind::Gpu(gpu)).on(node)));
            builder.link_both(*gpus.last().unwrap(), switch, Medium::Pcie, 24.0, 250.0);
            builder.rank(*gpus.last().unwrap());
        }
        let nic = Nic { device: socket, speed_mbit_per_s: 200_000, gdr: true, ..Nic::default() };
        nics.push(builder.vertex(Component::new(Kind::Nic(nic)).on(node)));
        builder.link_both(nics[socket as usize], switch, Medium::Pcie, 24.0, 250.0);
    }
    for pair in gpus.windows(2) {
        builder.link_both(pair[0], pair[1], Medium::NvLink, 80.0, 300.0);
    }
    (gpus, nics)
}

fn two_nodes() -> (Topology, Vec<Vertex>, Vec<Vertex>) {
    let mut builder = TopologyBuilder::default();
    let (mut gpus, mut nics) = two_sockets(&mut builder);
    let (more_gpus, more_nics) = two_sockets(&mut builder);
    gpus.extend(more_gpus);
    nics.extend(more_nics);
    for rail in 0..2 {
        let switch = builder.vertex(Component::new(Kind::NetworkSwitch));
        for node in 0..2 {
            builder.link_both(nics[2 * node + rail], switch, Medium::Network, 25.0, 1000.0);
        }
    }
    (builder.build().unwrap(), gpus, nics)
}

#[test]
fn parts_of_a_node_are_found() {
    let (topology, gpus, nics) = two_nodes();
    let [first, second] = [Node(0), Node(1)];
    assert_eq!(topology.nodes().collect::<Vec<_>>(), [first, second]);
    assert_eq!(topology.devices(first).collect::<Vec<_>>(), gpus[..4]);
    assert_eq!(topology.nics(second).collect::<Vec<_>>(), nics[2..]);
    assert_eq!(topology.cpus(second).count(), 2);
    assert_eq!(topology.of_node(first).len(), 10);
    assert_eq!(topology.vertices().len(), 22);
    assert_eq!(topology.seat(Rank(5)), gpus[5]);
    for link in topology.links() {
        assert!(topology.links_from(topology.wire(link).from).any(|other| other == link));
    }
}

#[test]
fn paths_do_not_lead_through_gpus() {
    let (topology, gpus, nics) = two_nodes();
    let mut router = Router::new(&topology);
    let near = router.path(gpus[0], gpus[1]).unwrap();
    assert_eq!((near.latency_ns, near.gb_per_s, near.links.len()), (300.0, 80.0, 1));
    let far = router.path(gpus[0], gpus[3]).unwrap();
    assert_eq!((far.latency_ns, far.gb_per_s, far.links.len()), (1100.0, 20.0, 5));
    let beyond = router.path(gpus[0], gpus[4]).unwrap();
    assert_eq!((beyond.latency_ns, beyond.gb_per_s, beyond.links.len()), (3000.0, 24.0, 6));
    // The two NICs of a node do not reach each other over the network: a switch joins one rail.
    let between = router.path(nics[0], nics[1]).unwrap();
    assert_eq!(topology.distance_of(&between), Distance::Sys);
    assert_eq!(router.path(gpus[2], gpus[2]).unwrap().links, []);
}

#[test]
fn a_nic_does_not_pass_on_within_the_network() {
    let mut builder = TopologyBuilder::default();
    let node = builder.node("host");
    let switches = [0, 1].map(|_| builder.vertex(Component::new(Kind::NetworkSwitch)));
    let nic = builder.vertex(Component::new(Kind::Nic(Nic::default())).on(node));
    for switch in switches {
        builder.link_both(nic, switch, Medium::Network, 25.0, 1000.0);
    }
    let topology = builder.build().unwrap();
    let mut router = Router::new(&topology);
    assert_eq!(router.path(switches[0], switches[1]), None);
    assert_eq!(topology.way(&mut router, switches[0], switches[1]), None);
    assert!(router.path(switches[0], nic).is_some());
}

#[test]
fn distances_have_nccls_names() {
    let (topology, gpus, nics) = two_nodes();
    let mut router = Router::new(&topology);
    let cpu = topology.cpus(Node(0)).next().unwrap();
    let mut distance = |from, to| topology.way(&mut router, from, to).unwrap().0.name();
    assert_eq!(distance(gpus[0], gpus[0]), "LOC");
    assert_eq!(distance(gpus[0], gpus[1]), "NVL");
    assert_eq!(distance(gpus[0], gpus[2]), "NVB");
    assert_eq!(distance(gpus[0], gpus[3]), "SYS");
    assert_eq!(distance(gpus[0], nics[0]), "PIX");
    assert_eq!(distance(gpus[1], nics[1]), "PXN");
    assert_eq!(distance(nics[1], gpus[1]), "PXN");
    assert_eq!(distance(gpus[0], cpu), "PHB");
    assert_eq!(distance(gpus[0], nics[2]), "NET");
    let names: Vec<_> = Distance::ALL.iter().map(|distance| distance.name()).collect();
    // A detour has all its links, and the width of the narrowest.
    let (_, path) = topology.way(&mut router, gpus[1], nics[1]).unwrap();
    assert_eq!((path.links.len(), path.latency_ns, path.gb_per_s), (3, 800.0, 24.0));
    assert_eq!(names.join(" "), "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET DIS");
    assert!(Distance::ALL.is_sorted());
}

#[test]
fn a_chip_to_chip_link_has_distances_of_its_own() {
    let mut builder = TopologyBuilder::default();
    let node = builder.node("host");
    let cpu = builder.vertex(Component::new(Kind::Cpu(Cpu::default())).on(node));
    let gpu = builder.vertex(Component::new(Kind::Gpu(Gpu::default())).on(node));
    let switch = builder.vertex(Component::new(Kind::PcieSwitch).on(node));
    let nic = builder.vertex(Component::new(Kind::Nic(Nic::default())).on(node));
    builder.link_both(cpu, gpu, Medium::C2c, 400.0, 100.0);
    builder.link_both(cpu, switch, Medium::Pcie, 48.0, 250.0);
    builder.link_both(nic, switch, Medium::Pcie, 48.0, 250.0);
    let topology = builder.build().unwrap();
    let mut router = Router::new(&topology);
    let mut distance = |from, to| topology.way(&mut router, from, to).unwrap().0;
    assert_eq!(distance(gpu, cpu), Distance::C2c);
    assert_eq!(distance(gpu, nic), Distance::P2c);
    assert_eq!(distance(cpu, nic), Distance::Phb);
}

#[test]
fn what_does_not_fit_is_refused() {
    let part = || Component::new(Kind::PcieSwitch);
    let mut builder = TopologyBuilder::default();
    let node = builder.node("host");
    let (one, other) = (builder.vertex(part().on(node)), builder.vertex(part()));
    let with = |change: &dyn Fn(&mut TopologyBuilder)| {
        let mut builder = builder.clone();
        change(&mut builder);
        builder.build().unwrap_err()
    };
    let refused = with(&|builder| builder.link(one, Vertex(2), Medium::Pcie, 1.0, 1.0));
    assert!(matches!(refused, BuildError::UnknownVertex(wire) if wire.to == Vertex(2)), "{refused}");
    for (gb_per_s, latency_ns) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, -1.0), (1.0, f64::INFINITY)] {
        let refused = with(&|builder| builder.link(one, other, Medium::Pcie, gb_per_s, latency_ns));
        assert!(matches!(refused, BuildError::NotPositive(_)), "{refused}");
    }
    let refused = with(&|builder| builder.link(one, one, Medium::Pcie, 1.0, 1.0));
    assert!(matches!(refused, BuildError::Loop(_)), "{refused}");
    let refused = with(&|builder| _ = builder.vertex(part().on(Node(1))));
    assert_eq!(refused, BuildError::UnknownNode(Vertex(2)));
    let refused = with(&|builder| _ = builder.rank(one));
    assert_eq!(refused, BuildError::NoSeat(Rank(0)));
    assert!(builder.build().unwrap().with_seats(vec![Vertex(7)]).is_none());
}

#[test]
fn equal_topologies_and_only_those_have_equal_digests() {
    let (topology, gpus, _) = two_nodes();
    assert_eq!(topology.digest(), two_nodes().0.digest());
    // A number that changes only if the digest does, which old and new versions would disagree on.
    assert_eq!(topology.digest(), DIGEST);
    let turned = topology.clone().with_seats(vec![gpus[1], gpus[0]]).unwrap();
    assert_ne!(turned.digest(), topology.digest());
}

const DIGEST: u64 = 15_001_220_616_945_951_360;

#[test]
fn bus_ids_are_read_in_every_form() {
    let id: BusId = "0000:3b:00.0".parse().unwrap();
    assert_eq!(id, BusId(0x3b000));
    assert_eq!(["3b:00.0".parse(), "00000000:3B:00.0".parse()], [Ok(id), Ok(id)]);
    let id: BusId = "10000:e1:1f.7".parse().unwrap();
    assert_eq!(id.0, 0x10000 << 20 | 0xe1 << 12 | 0x1f << 4 | 7);
    assert_eq!(alloc::format!("{id}"), "10000:e1:1f.7");
    for wrong in ["", "3b:00", "3b.0", "0000:123:00.0", "0000:3b:00.10", "x:3b:00.0"] {
        assert!(wrong.parse::<BusId>().is_err(), "{wrong}");
    }
}

/// Any graph of switches, GPUs and NICs with small whole latencies and widths, so that many paths tie.
fn graphs() -> impl Strategy<Value = Topology> {
    let kinds = prop::collection::vec(0..4_u32, 2..9);
    let wires = prop::collection::vec((0..9_u32, 0..9_u32, 0..3_u8, 1..4_u32, 0..4_u32), 0..24);
    (kinds, wires).prop_map(|(kinds, wires)| {
        let mut builder = TopologyBuilder::default();
        let node = builder.node("");
        for kind in &kinds {
            let kind = match kind {
                0 => Kind::Gpu(Gpu::default()),
                1 => Kind::Nic(Nic::default()),
                _ => Kind::PcieSwitch,
            };
            builder.vertex(Component::new(kind).on(node));
        }
        let count = kinds.len() as u32;
        for (from, to, medium, width, latency_ns) in wires {
            let medium = [Medium::Pcie, Medium::NvLink, Medium::Network][usize::from(medium)];
            if from % count != to % count {
                let (from, to) = (Vertex(from % count), Vertex(to % count));
                builder.link(from, to, medium, width.into(), latency_ns.into());
            }
        }
        builder.build().unwrap()
    })
}

/// Least latency and greatest width over all ways without a vertex twice in the same role.
fn oracle(topology: &Topology, from: Vertex, to: Vertex) -> Option<(f64, f64)> {
    type Way = (Vertex, Option<Medium>);
    fn walk(
        topology: &Topology,
        way: &mut Vec<Way>,
        sum: (f64, f64),
        to: Vertex,
        best: &mut Option<(f64, f64)>,
    ) {
        let (at, arrived) = *way.last().unwrap();
        if at == to {
            let better = best.is_none_or(|(ns, gb)| sum.0 < ns || (sum.0 == ns && sum.1 > gb));
            if better {
                *best = Some(sum);
            }
            return;
        }
        for link in topology.links_from(at) {
            let wire = topology.wire(link);
            let may = match (&topology.component(at).kind, arrived) {
                (_, None) => true,
                (Kind::Gpu(_), _) => false,
                (Kind::Nic(_), Some(arrived)) => {
                    (arrived == Medium::Network) ^ (wire.medium == Medium::Network)
                }
                _ => true,
            };
            let role = (wire.to, wire.medium == Medium::Network);
            let seen = |(vertex, arrived): &Way| (*vertex, *arrived == Some(Medium::Network)) == role;
            if may && !way.iter().any(seen) {
                way.push((wire.to, Some(wire.medium)));
                walk(topology, way, (sum.0 + wire.latency_ns, sum.1.min(wire.gb_per_s)), to, best);
                way.pop();
            }
        }
    }
    let mut best = None;
    walk(topology, &mut vec![(from, None)], (0.0, f64::INFINITY), to, &mut best);
    best
}

proptest! {
    #[test]
    fn paths_are_the_best_of_all(topology in graphs()) {
        let mut router = Router::new(&topology);
        for from in topology.vertices() {
            for to in topology.vertices() {
                let path = router.path(from, to);
                let found = path.as_ref().map(|path| (path.latency_ns, path.gb_per_s));
                prop_assert_eq!(found, oracle(&topology, from, to), "from {} to {}", from, to);
                let mut at = from;
                for link in path.map_or(Vec::new(), |path| path.links) {
                    prop_assert_eq!(topology.wire(link).from, at);
                    at = topology.wire(link).to;
                }
            }
        }
    }
}
