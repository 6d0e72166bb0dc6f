//! The sweep against the walk, which is the oracle.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use ccl_plan::machine::clock::{Clock, Link};
use ccl_plan::machine::{Buffers, Case, Stage, walk};
use ccl_plan::{Channel, Collective, Plan, Rank, algorithms};
use ccl_sim::{Clocks, Costs, Error, Job, sweep};

/// Links that all differ, but little enough for every one to count.
fn uneven(from: Rank, to: Rank) -> Link {
    let mixed = (u64::from(from.0) * 31 + u64::from(to.0) * 17 + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Link {
        alpha_ns: 300.0 + (mixed % 1000) as f64 / 3.0,
        beta_ns_per_byte: 0.5 + (mixed % 77) as f64 / 131.0,
    }
}

/// Nodes of three ranks.
fn nodes(from: Rank, to: Rank) -> Link {
    match from.0 / 3 == to.0 / 3 {
        true => Link { alpha_ns: 100.0, beta_ns_per_byte: 0.25 },
        false => Link { alpha_ns: 900.0, beta_ns_per_byte: 1.1 },
    }
}

fn cases(n: u32) -> Vec<Case> {
    let case = |count, channels, chunk_count, grain_count, slots| Case {
        n,
        count,
        channels,
        chunk_count,
        grain_count,
        slots,
        root: Rank(n / 2),
        buffers: Buffers::Apart,
        blocks: None,
    };
    vec![
        case(0, 1, 8, 1, 2),
        case(1, 1, 8, 1, 2),
        case(5, 2, 8, 4, 2),
        case(8 * n as usize, 1, 8, 1, 3),
        case(101, 1, 8, 1, 2),
        case(640, 1, 8, 4, 8),
        case(1003, 3, 7, 1, 3),
        case(4001, 1, 64, 16, 2),
    ]
}

/// What the walk says, or that it cannot end.
fn walked(plan: &Plan, case: &Case, link: fn(Rank, Rank) -> Link) -> Option<(f64, u64)> {
    let stage = Stage::new(plan, case).unwrap();
    let walked = walk(&stage, Clock::new(link, 0.37, 4)).ok()?;
    Some((walked.domain.finish().ns, walked.steps))
}

/// The same of the sweep.
fn swept(plan: &Plan, case: &Case, link: fn(Rank, Rank) -> Link, clocks: Clocks) -> Option<(f64, u64)> {
    let job = Job::new(plan, case, 4).unwrap();
    let costs = Costs { link: |from, to, _: Channel| link(from, to), gamma_ns_per_byte: 0.37 };
    match sweep(&job, &costs, clocks) {
        Ok(swept) => Some((swept.finish_ns, swept.steps)),
        Err(Error::Deadlock { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_sweep_is_the_walk_to_the_last_bit() {
    let mut compared = 0;
    for n in (1..=9).chain([12, 17]) {
        for collective in Collective::ALL {
            if collective.is_message() {
                continue;
            }
            for plan in algorithms(collective).iter().filter_map(|a| Plan::new(collective, *a, n)) {
                for case in cases(n) {
                    for link in [uneven, nodes] {
                        let expected = walked(&plan, &case, link);
                        let found = swept(&plan, &case, link, Clocks::Full);
                        let name = format!("{collective}.{} {case}", plan.algorithm());
                        assert_eq!(found, expected, "{name}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 4000, "{compared}");
}

#[test]
fn shared_clocks_are_the_full_sweep() {
    for n in [2, 3, 6, 12, 15, 60, 96] {
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            let plan = Plan::new(collective, ccl_plan::Algorithm::Ring, n).unwrap();
            for case in cases(n) {
                let full = swept(&plan, &case, nodes, Clocks::Full).unwrap();
                let shared = swept(&plan, &case, nodes, Clocks::Shared).unwrap();
                assert_eq!(full.0, shared.0, "{collective} {case}");
            }
        }
    }
}

#[test]
fn an_order_moves_ranks_and_not_clocks() {
    let order: Vec<Rank> = [3, 0, 5, 2, 4, 1].map(Rank).to_vec();
    for collective in [Collective::AllReduce, Collective::Reduce, Collective::Broadcast] {
        for algorithm in algorithms(collective) {
            let plan = Plan::new(collective, *algorithm, 6).unwrap().with_order(&order).unwrap();
            for case in cases(6) {
                let expected = walked(&plan, &case, uneven);
                assert_eq!(
                    swept(&plan, &case, uneven, Clocks::Full),
                    expected,
                    "{collective}.{algorithm} {case}"
                );
            }
        }
    }
}

#[test]
fn a_plan_whose_ranks_wait_for_each_other_is_an_error() {
    let plan = Plan::new(Collective::AllReduce, ccl_plan::Algorithm::Ring, 4).unwrap();
    let case = Case { slots: 1, ..cases(4)[3].clone() };
    assert!(walked(&plan, &case, nodes).is_none());
    assert!(swept(&plan, &case, nodes, Clocks::Full).is_none());
}

/// Rings of many ranks go through blocks of chunks; the other loop, which any plan may take, is the oracle.
#[test]
fn long_rings_are_swept_alike_by_both_loops() {
    let n = 1000;
    let plan = Plan::new(Collective::AllReduce, ccl_plan::Algorithm::Ring, n).unwrap();
    let cast = plan.cast(plan.place_of(Rank(0))).unwrap();
    let even = Case { slots: 4, ..cases(n)[3].clone() };
    // A full pass, then one in which the last chunk is short, or one in ten is empty.
    let short = Case { count: even.count + 7999, ..even.clone() };
    let gaps = Case { count: even.count + 4500, grain_count: 5, slots: 8, ..even.clone() };
    for case in [even, short, gaps] {
        let ring = Job::new(&plan, &case, 4).unwrap();
        let programs = cast.programs.iter().map(|program| (**program).clone()).collect();
        let other = Job::of_programs(programs, cast.of_place.clone(), &case, 4).unwrap();
        let costs = Costs { link: |from, to, _: Channel| uneven(from, to), gamma_ns_per_byte: 0.37 };
        let found = sweep(&ring, &costs, Clocks::Full).unwrap();
        assert_eq!(found, sweep(&other, &costs, Clocks::Full).unwrap(), "{case}");
    }
}
