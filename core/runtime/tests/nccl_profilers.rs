//! Communicators under profilers that were made for NCCL, one for each version of its contract, which note whatever is
//! not as it should be.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use ccl::{Communicator, Config, Rank, ReduceOp, Request, Result, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, is_content, profiler, tell};

fn config(file: &str, more: &[(&str, &str)]) -> Config {
    let common = [("NCCL_PROFILER_PLUGIN", file), ("CCL_TIMEOUT", "120s")];
    Config::from_vars(common.iter().chain(more).copied()).unwrap()
}

/// Calls of every kind; each result is looked at.
fn work(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().0, comm.size());
    let (next, before) = (Rank((rank + 1) % n), Rank((rank + n - 1) % n));
    for count in [1, 1000, 70_003] {
        let mut sum: Vec<i64> = (0..count).map(|i| i + i64::from(rank)).collect();
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        let total = |i: i64| i * i64::from(n) + i64::from(n * (n - 1) / 2);
        assert_eq!((0..count).filter(|i| sum[*i as usize] != total(*i)).count(), 0, "of {count}");
    }
    let mut told = [if rank == 1 { 77 } else { 0 }; 9];
    comm.broadcast(&mut told, Rank(1))?;
    assert_eq!(told, [77; 9]);
    let (mine, mut theirs, mut sum) = ([rank; 100], [n; 100], [1u32; 100]);
    ccl::group(|group| {
        group.add(comm, Request::send(&mine, next));
        group.add(comm, Request::recv(&mut theirs, before));
        group.add(comm, Request::all_reduce_in_place(&mut sum, ReduceOp::Sum));
        Ok(())
    })?;
    assert_eq!((theirs, sum), ([before.0; 100], [n; 100]));
    let (mut a, mut b) = (vec![1f32; 9000], vec![2f32; 9000]);
    comm.scope(|scope| {
        scope.start(Request::all_reduce_in_place(&mut a, ReduceOp::Max))?;
        scope.start(Request::all_reduce_in_place(&mut b, ReduceOp::Max))
    })?;
    assert!(a.iter().all(|a| *a == 1.0) && b.iter().all(|b| *b == 2.0));
    // An error of the caller's, which no work follows.
    assert!(comm.run(Request::send(&[1f32], Rank(99))).is_err());
    Ok(())
}

fn work_and_split(comm: &Communicator) -> Result<()> {
    work(comm)?;
    let part = comm.split(Some(comm.rank().0 % 2), 0)?;
    part.as_ref().map_or(Ok(()), work)?;
    work(comm)
}

#[test]
fn every_version_hears_of_every_call_over_memory() {
    for version in 1..=6 {
        let file = profiler(&format!("nccl_prof_memory_{version}"), version, &[]);
        local::run_with(&config(&file, &[]), 4, |comm| work_and_split(&comm)).unwrap();
        is_content(&file, version);
        let events = |bit| tell(&file, "toy_events", version, bit);
        // Four ranks with two rounds of seven each, and one more in each half.
        assert_eq!(events(1), 4 * 3 * 7, "collectives, version {version}");
        assert_eq!(events(2), 4 * 3 * 2, "messages, version {version}");
        assert!(events(0) > 0 && events(3) + events(4) == 0, "version {version}");
        assert_eq!(ask(&file, "toy_inits", version), 8);
        let calls = [events(8), events(9), events(10)];
        if version >= 5 {
            assert_eq!(calls[1..], [4 * 3 * 7, 4 * 3 * 3], "calls, version {version}");
            assert!(calls[0] > 0 && tell(&file, "toy_states", version, 24) > 0, "version {version}");
        } else {
            assert_eq!(calls, [0; 3], "calls, version {version}");
        }
    }
}

#[test]
fn every_version_hears_of_every_message_over_sockets() {
    for version in 1..=6 {
        let file = profiler(&format!("nccl_prof_sockets_{version}"), version, &[]);
        local::run_with(&config(&file, &[("CCL_SHM_DISABLE", "1")]), 3, |comm| work(&comm)).unwrap();
        is_content(&file, version);
        let events = |bit| tell(&file, "toy_events", version, bit);
        let states = |state| tell(&file, "toy_states", version, state);
        assert!(events(3) > 0 && events(4) >= events(3), "version {version}");
        assert_eq!(states(8) + states(10), events(4), "each step is a send or a receive, version {version}");
        assert_eq!(states(11), states(12), "version {version}");
        assert_eq!(states(20), if version < 4 { 0 } else { states(8) }, "version {version}");
        assert_eq!(states(19), if version < 4 { 0 } else { events(3) }, "version {version}");
    }
}

#[test]
fn events_that_are_refused_silence_nothing() {
    for (version, fault) in [(1, 3), (3, 4), (4, 3), (5, 3), (6, 4)] {
        let file = profiler(
            &format!("nccl_prof_refuses_{version}_{fault}"),
            version,
            &[&format!("-DTOY_FAULT={fault}")],
        );
        local::run_with(&config(&file, &[("CCL_SHM_DISABLE", "1")]), 2, |comm| work(&comm)).unwrap();
        is_content(&file, version);
        assert_eq!(tell(&file, "toy_events", version, 1), 2 * 7, "version {version}");
        assert!(tell(&file, "toy_events", version, 4) > 0, "version {version}");
    }
}

#[test]
fn a_mask_may_change_at_any_time_for_all_communicators() {
    for version in [1, 4, 6] {
        let file = profiler(&format!("nccl_prof_mask_{version}"), version, &["-DTOY_MASK=0"]);
        let ask_for = |mask| assert_eq!(tell(&file, "toy_ask", version, mask), 1);
        let heard = |bit| tell(&file, "toy_events", version, bit);
        let rounds = |comm: &Communicator| (0..5).try_for_each(|_| comm.barrier());
        // Whoever ends a communicator has waited for its profiler.
        let play = || local::run_with(&config(&file, &[]), 2, |comm| rounds(&comm)).unwrap();
        play();
        assert_eq!([heard(0), heard(1), heard(9)], [0; 3], "version {version}: nothing was asked for");
        ask_for(2);
        play();
        assert_eq!([heard(0), heard(1)], [10, 10], "version {version}");
        ask_for(0);
        play();
        assert_eq!([heard(0), heard(1)], [0, 0], "version {version}");
        ask_for(1 << 9);
        play();
        let calls = if version >= 5 { 10 } else { 0 };
        assert_eq!([heard(1), heard(9)], [0, calls], "version {version}");
        is_content(&file, version);
    }
}

#[test]
fn a_profiler_that_cannot_start_fails_nobody() {
    for (version, fault) in [(2, 2), (6, 2), (3, 5), (5, 5), (4, 1)] {
        let file = profiler(
            &format!("nccl_prof_fails_{version}_{fault}"),
            version,
            &[&format!("-DTOY_FAULT={fault}")],
        );
        local::run_with(&config(&file, &[]), 2, |comm| work(&comm)).unwrap();
        is_content(&file, version);
        assert_eq!(ask(&file, "toy_inits", version), if fault == 1 { 0 } else { 2 });
        assert_eq!(tell(&file, "toy_events", version, 1), 0);
    }
}

#[test]
fn a_network_may_bring_its_profiler() {
    let (net, ours) = (toys::toy("nccl_prof_net", 9, &[]), profiler("nccl_prof_beside", 4, &[]));
    assert!(std::path::Path::new(&net).exists() && std::path::Path::new(&ours).exists());
    let object = |name: &str| std::path::Path::new(&net).with_file_name(name);
    let file = toys::link(
        "nccl_prof_both",
        &[object("nccl_prof_net-net-9.o"), object("nccl_prof_beside-profiler-4.o")],
    );
    let vars = [("CCL_SHM_DISABLE", "1"), ("CCL_NET_PLUGIN", &*file), ("CCL_TIMEOUT", "120s")];
    let heard = || tell(&file, "toy_events", 4, 1);
    local::run_with(&Config::from_vars(vars).unwrap(), 2, |comm| work(&comm)).unwrap();
    assert_eq!(heard(), 14);
    let none = vars.into_iter().chain([("CCL_PROFILER_PLUGIN", "none")]);
    local::run_with(&Config::from_vars(none).unwrap(), 2, |comm| work(&comm)).unwrap();
    assert_eq!(heard(), 14, "none means none");
    is_content(&file, 4);
}
