//! Shared links: against the sweep where there is room, and against arithmetic where there is not.

use ccl_plan::machine::Case;
use ccl_plan::machine::clock::Link;
use ccl_plan::{Algorithm, Channel, Collective, Plan, Rank, algorithms};
use ccl_sim::{Clocks, Costs, Fabric, Fault, Job, Machine, Network, Route, even_case, fluid, sweep};

fn uneven(from: Rank, to: Rank, _: Channel) -> Link {
    let mixed = (u64::from(from.0) * 31 + u64::from(to.0) * 17 + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Link { alpha_ns: 300.0 + (mixed % 1000) as f64, beta_ns_per_byte: 0.5 + (mixed % 77) as f64 / 128.0 }
}

#[test]
fn wide_links_are_the_sweep() {
    for n in [2, 3, 5, 8, 13] {
        for collective in Collective::ALL {
            let plans = algorithms(collective).iter().filter_map(|a| Plan::new(collective, *a, n));
            for plan in plans.filter(|plan| !plan.collective().is_message()) {
                for case in [
                    Case { chunk_count: 64, channels: 2, grain_count: 4, ..even_case(n, 5000) },
                    Case { chunk_count: 8, slots: 2, ..even_case(n, 403) },
                ] {
                    let job = Job::new(&plan, &case, 4).unwrap();
                    let swept =
                        sweep(&job, &Costs { link: uneven, gamma_ns_per_byte: 0.25 }, Clocks::Full).unwrap();
                    // One link for all, but without end.
                    let route =
                        |from, to, channel| Route { link: uneven(from, to, channel), shared: vec![0] };
                    let found = fluid(&job, route, 0.25, &[f64::INFINITY]).unwrap();
                    let off = (found.finish_ns / swept.finish_ns.max(1e-9) - 1.0).abs();
                    let name = format!("{collective}.{} {case}", plan.algorithm());
                    assert!(off < 1e-6 || swept.finish_ns == found.finish_ns, "{name}: {swept:?} {found:?}");
                    assert_eq!(swept.steps, found.steps, "{name}");
                }
            }
        }
    }
}

/// An all-to-all in which everybody sends over one link.
#[test]
fn a_short_link_is_shared_evenly() {
    let (n, count) = (4, 1000);
    let plan = Plan::new(Collective::AllToAll, Algorithm::Direct, n).unwrap();
    let job = Job::new(&plan, &even_case(n, count), 1).unwrap();
    let route = |_, _, _| Route { link: Link { alpha_ns: 0.0, beta_ns_per_byte: 0.1 }, shared: vec![0] };
    // Three rounds of four blocks of 1000 bytes at 2 bytes per nanosecond.
    let found = fluid(&job, route, 0.0, &[2.0]).unwrap();
    assert!((found.finish_ns - 6000.0).abs() < 0.01, "{found:?}");
    // Each alone takes 0.1 ns per byte; together they would need 40 bytes per nanosecond.
    assert!((fluid(&job, route, 0.0, &[50.0]).unwrap().finish_ns - 300.0).abs() < 0.01);
}

/// Two flows over a short link, one of which has another short link: the first gets what is left.
#[test]
fn what_one_cannot_use_the_other_gets() {
    let plan = Plan::new(Collective::AllGather, Algorithm::Direct, 2).unwrap();
    let job = Job::new(&plan, &even_case(2, 9000), 1).unwrap();
    let route = |from: Rank, _, _| Route {
        link: Link { alpha_ns: 0.0, beta_ns_per_byte: 0.01 },
        shared: if from.0 == 0 { vec![0] } else { vec![0, 1] },
    };
    // 10 bytes per ns: 9 for rank 0, 1 for rank 1, which has the link alone at last but no use for it.
    let found = fluid(&job, route, 0.0, &[10.0, 1.0]).unwrap();
    assert!((found.finish_ns - 9000.0).abs() < 0.01, "{found:?}");
}

fn machines() -> Vec<Machine> {
    let fabrics = [
        Fabric::Flat,
        Fabric::FatTree { nodes_per_pod: 2, oversubscription: 4.0, latency_us: 0.5 },
        Fabric::Rails { nodes_per_pod: 3, oversubscription: 2.0, latency_us: 0.5 },
        Fabric::Dragonfly { nodes_per_group: 2, gb_per_s: 20.0, latency_us: 0.7 },
    ];
    let named = Machine::names().filter_map(Machine::named);
    let machines = named.map(|machine| Machine { nodes: machine.nodes.min(7), ..machine });
    machines.flat_map(|machine| fabrics.map(|fabric| Machine { fabric, ..machine.clone() })).collect()
}

/// Every route leads from the one seat to the other over wires that exist: checked where it is made.
#[test]
fn routes_follow_wires() {
    for machine in machines() {
        let network = Network::new(&machine, &[], 3).unwrap();
        let topology = network.topology();
        let n = machine.ranks();
        assert_eq!(topology.seats().len(), n as usize);
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (Rank(from), Rank(to)))) {
            if from == to {
                continue;
            }
            for channel in (0..3).map(Channel) {
                let route = network.route(from, to, channel);
                let wire = |link: &u32| topology.wire(ccl_plan::topology::Link(*link));
                assert_eq!(wire(&route.shared[0]).from, topology.seat(from));
                assert_eq!(wire(route.shared.last().unwrap()).to, topology.seat(to));
                for pair in route.shared.windows(2) {
                    assert_eq!(wire(&pair[0]).to, wire(&pair[1]).from, "{machine:?} {from} {to}");
                }
                let least = route.shared.iter().map(|link| wire(link).gb_per_s).fold(f64::MAX, f64::min);
                assert_eq!(route.link.beta_ns_per_byte, 1.0 / least);
            }
        }
    }
}

#[test]
fn faults_slow_what_they_touch() {
    let machine = Machine { nodes: 4, ..Machine::named("alps").unwrap() };
    let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 16).unwrap();
    let case = Case { channels: 4, chunk_count: 1 << 16, ..even_case(16, 1 << 24) };
    let job = Job::new(&plan, &case, 4).unwrap();
    let times = |faults: &[Fault]| {
        let network = Network::new(&machine, faults, 4).unwrap();
        let link = |from, to, channel| network.link(from, to, channel);
        let swept = sweep(&job, &Costs { link, gamma_ns_per_byte: 0.0 }, Clocks::Full).unwrap();
        let route = |from, to, channel| network.route(from, to, channel);
        (swept.finish_ns, fluid(&job, route, 0.0, &network.gb_per_s()).unwrap().finish_ns)
    };
    let sound = times(&[]);
    let slower = |faults: &[Fault]| {
        let found = times(faults);
        (found.0 / sound.0, found.1 / sound.1)
    };
    // All traffic of the lost NIC goes over its neighbour, which has its own besides.
    let lost = slower(&[Fault::LostNic { node: 2, nic: 1 }]);
    assert!(lost.0 > 1.8 && lost.1 > 1.8, "{lost:?}");
    let cable = slower(&[Fault::SlowLink { node: 0, nic: 3, factor: 3.0 }]);
    assert!(cable.0 > 2.6 && cable.1 > 2.6, "{cable:?}");
    let rank = slower(&[Fault::SlowRank { rank: 3, factor: 2.0 }]);
    assert!(rank.0 > 1.8 && rank.1 > 1.8, "{rank:?}");
    for wrong in [
        Fault::LostNic { node: 4, nic: 0 },
        Fault::SlowRank { rank: 16, factor: 2.0 },
        Fault::SlowLink { node: 0, nic: 0, factor: 0.5 },
    ] {
        assert!(Network::new(&machine, &[wrong], 4).is_err(), "{wrong:?}");
    }
}
