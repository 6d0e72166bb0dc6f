//! Plans verified: all of them at small n, by example above.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ccl_plan::machine::provenance::Orders;
use ccl_plan::machine::{Buffers, Case};
use ccl_plan::verify::mutate::mutations;
use ccl_plan::verify::{Depth, VerifyReport, cases, plans, prove, verify};
use ccl_plan::{Algorithm, Collective, Level, Plan, Rank};

#[test]
fn every_plan_holds() {
    let report = on_all_cores(plans(1..=MAX_RANKS).collect(), |plan| {
        verify(plan, Depth::Each).map_err(|witness| witness.to_string())
    });
    println!("{} plans, {} walks, {} steps", report.plans, report.walks, report.steps);
    assert_eq!(report.plans, u64::from(MAX_RANKS) * PLANS);
    for ((collective, algorithm), finding) in &report.findings {
        let fused = *algorithm == Algorithm::Ring
            && !matches!(collective, Collective::Broadcast | Collective::Reduce)
            || matches!(
                algorithm,
                Algorithm::TwoShot
                    | Algorithm::TwoShotTree
                    | Algorithm::Rabenseifner
                    | Algorithm::TwoLevel
                    | Algorithm::TwoLevelHalving
            );
        assert_eq!(finding.slots, if fused { 2 } else { 1 }, "{collective}.{algorithm}: slots");
        let stated = (1..=MAX_RANKS).map(|n| algorithm.level(*collective, n)).min();
        assert_eq!(Some(finding.level), stated, "{collective}.{algorithm}: order of folds");
    }
}

/// Each plan reaches exactly the level that it states, and those that fold in the canonical tree do so for
/// numbers of ranks of every shape.
#[test]
fn every_plan_reaches_the_level_it_states() {
    for plan in plans(1..=MAX_RANKS) {
        let report = verify(&plan, Depth::Each).unwrap_or_else(|witness| panic!("{witness}"));
        for finding in report.findings.values() {
            assert_eq!(
                finding.level,
                plan.level(),
                "{}.{} n={}",
                plan.collective(),
                plan.algorithm(),
                plan.n()
            );
        }
    }
    let canonical = [Algorithm::OneShotTree, Algorithm::TwoShotTree, Algorithm::Binomial];
    for (algorithm, n) in canonical.into_iter().flat_map(|algorithm| (25..=128).map(move |n| (algorithm, n)))
    {
        let plan = Plan::new(Collective::AllReduce, algorithm, n).unwrap();
        assert_eq!(plan.level(), Level::World);
        let mut case = cases(&plan, Depth::Quick).remove(0);
        (case.count, case.slots) = (2, 2);
        let proof = prove(&plan, &case).unwrap_or_else(|witness| panic!("{witness}"));
        assert_eq!(proof.orders, Orders::in_tree(n), "{algorithm} n={n}");
    }
}

#[test]
fn a_place_that_is_no_rank_is_not_for_every_world() {
    let plan = Plan::new(Collective::AllReduce, Algorithm::OneShotTree, 5).unwrap();
    assert_eq!(plan.level(), Level::World);
    let turned = plan.with_order(&[1, 0, 2, 3, 4].map(Rank)).unwrap();
    let finding = verify(&turned, Depth::Each).unwrap().findings.into_values().next().unwrap();
    assert_eq!((turned.level(), finding.level), (Level::Size, Level::Size));
}

#[test]
fn larger_plans_hold() {
    let large = [33, 64, 65, 127, 128].into_iter().flat_map(|n| plans(n..=n)).collect();
    let report =
        on_all_cores(large, |plan| verify(plan, Depth::Quick).map_err(|witness| witness.to_string()));
    assert_eq!(report.plans, 5 * PLANS);
}

#[test]
fn nonces_hold_where_sets_end() {
    for (collective, algorithm, n) in [
        (Collective::AllReduce, Algorithm::Ring, 600),
        (Collective::AllReduce, Algorithm::TwoLevel, 144),
        (Collective::AllReduce, Algorithm::TwoShot, 129),
        (Collective::AllReduce, Algorithm::TwoShotTree, 131),
        (Collective::AllReduce, Algorithm::Binomial, 3000),
        (Collective::ReduceScatter, Algorithm::Ring, 257),
        (Collective::AllGather, Algorithm::Direct, 130),
        (Collective::Broadcast, Algorithm::Ring, 5000),
        (Collective::Reduce, Algorithm::Direct, 1000),
        (Collective::Reduce, Algorithm::DirectTree, 1000),
        (Collective::Barrier, Algorithm::Dissemination, 1500),
        (Collective::Broadcast, Algorithm::Binomial, 5000),
        (Collective::Reduce, Algorithm::Binomial, 4097),
        (Collective::AllReduce, Algorithm::RecursiveDoubling, 1500),
        (Collective::AllReduce, Algorithm::Rabenseifner, 150),
        (Collective::AllReduce, Algorithm::DoubleTree, 3001),
        (Collective::AllGather, Algorithm::Bruck, 200),
        (Collective::AllGather, Algorithm::RecursiveDoubling, 200),
        (Collective::ReduceScatter, Algorithm::RecursiveDoubling, 129),
        (Collective::Gather, Algorithm::Binomial, 1500),
        (Collective::Scatter, Algorithm::Binomial, 1200),
        (Collective::ReduceScatter, Algorithm::Bruck, 160),
        (Collective::AllToAll, Algorithm::Bruck, 150),
        (Collective::AllGather, Algorithm::Pat, 200),
        (Collective::ReduceScatter, Algorithm::Pat, 333),
    ] {
        let plan = Plan::new(collective, algorithm, n).unwrap();
        let mut case = cases(&plan, Depth::Quick).remove(0);
        (case.count, case.slots) = (3, 2);
        prove(&plan, &case).unwrap_or_else(|witness| panic!("{witness}"));
    }
}

#[test]
fn any_order_of_ranks_holds() {
    for plan in plans(7..=7) {
        let order = [3, 0, 6, 2, 5, 1, 4].map(Rank);
        let plan = plan.with_order(&order).unwrap();
        for case in cases(&plan, Depth::Each).into_iter().filter(|case| case.slots > 1) {
            prove(&plan, &case).unwrap_or_else(|witness| panic!("{witness}"));
        }
    }
}

#[test]
fn all_to_all_in_place_is_caught() {
    let plan = Plan::new(Collective::AllToAll, Algorithm::Direct, 4).unwrap();
    let case: Case = cases(&plan, Depth::Quick).pop().unwrap();
    let witness = prove(&plan, &Case { buffers: Buffers::InPlace, ..case }).unwrap_err();
    assert!(witness.to_string().contains("two lanes touch"), "{witness}");
}

#[test]
fn damage_is_noticed() {
    let report = on_all_cores(plans(2..=9).collect(), |plan| {
        mutations(plan, 7, 32).map_err(|witness| witness.to_string())
    });
    println!(
        "{} mutations: {} rejected, {} equivalent",
        report.mutations, report.rejected, report.equivalent
    );
    assert_eq!(report.mutations, report.rejected + report.equivalent);
    assert!(report.rejected * 10 >= report.mutations * 8, "{report:?}");
}

/// Runs `check` for every plan and adds the reports up.
fn on_all_cores(
    plans: Vec<Plan>,
    check: impl Fn(&Plan) -> Result<VerifyReport, String> + Sync,
) -> VerifyReport {
    let (next, total) = (AtomicUsize::new(0), Mutex::new(VerifyReport::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = check(plan).unwrap_or_else(|witness| panic!("{witness}"));
                    *total.lock().expect("no check panics") += &report;
                }
            });
        }
    });
    total.into_inner().expect("no check panics")
}

/// Algorithms of all collectives.
const PLANS: u64 = 47;
/// Up to here every plan is walked through each axis of cases.
const MAX_RANKS: u32 = 24;
