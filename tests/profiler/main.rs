//! What profilers hear: a plugin that checks every promise, under everything that communicators do.
//!
//! Each scenario runs in a process of its own, since plugins read the environment.

#![allow(clippy::unwrap_used)]

mod example;
mod readers;
mod report;
mod scenarios;
mod suite;

use report::{Reports, run};

#[test]
fn calls_and_their_work_are_heard_of() {
    let reports = run("eager", &[]);
    for report in &reports.0 {
        let count = |what: &str| report.count(what);
        assert_eq!(count("func CollApi all_reduce"), 60, "{report:?}");
        assert_eq!(count("func Coll all_reduce"), 60, "{report:?}");
        assert_eq!((count("func P2p send"), count("func P2p recv")), (20, 20), "{report:?}");
        assert_eq!(
            (count("P2pApi"), count("GroupApi"), count("Group")),
            (40, count("launches"), count("launches"))
        );
        assert_eq!(count("ProxyOp") + count("ProxyStep"), 0, "nothing goes over a network: {report:?}");
        assert_eq!(count("dropped"), 0);
    }
    assert_eq!(reports.0.len(), 2);
}

#[test]
fn groups_scopes_and_splits_are_heard_of() {
    let reports = run("grouped", &[]);
    let whole: Vec<_> = reports.0.iter().filter(|report| report.count("nranks") == 4).collect();
    assert_eq!((whole.len(), reports.0.len()), (4, 8), "{reports:?}");
    for report in &reports.0 {
        let members = report.count("func Coll all_reduce") + report.count("P2p");
        assert!(members > report.count("Group"), "several in a group: {report:?}");
    }
    for report in whole {
        assert_eq!(
            report.count("func CollApi all_reduce"),
            report.count("func Coll all_reduce"),
            "{report:?}"
        );
        assert!(report.count("state GroupEndStart") >= 10, "{report:?}");
    }
}

#[test]
fn messages_over_a_network_are_steps_of_operations() {
    let reports = run("network", &[("CCL_SHM_DISABLE", "1")]);
    assert_eq!(reports.0.len(), 2);
    for report in &reports.0 {
        let count = |what: &str| report.count(what);
        assert!(count("ProxyOp") >= 20 && count("ProxyStep") >= count("ProxyOp"), "{report:?}");
        assert_eq!(count("state SendPeerWait") + count("state RecvWait"), count("ProxyStep"), "{report:?}");
        assert!(count("state SendWait") > 0 && count("state RecvDone") > 0, "{report:?}");
    }
}

#[test]
fn refusing_by_chance_silences_no_children() {
    let plain = run("network", &[("CCL_SHM_DISABLE", "1")]);
    for refuse in ["2", "1"] {
        let reports = run("network", &[("CCL_SHM_DISABLE", "1"), ("CHECK_REFUSE", refuse)]);
        for (report, plain) in reports.0.iter().zip(&plain.0) {
            assert!(report.count("refused") > 20, "{report:?}");
            for kind in ["GroupApi", "Group", "Coll", "CollApi"] {
                assert_eq!(report.count(kind), plain.count(kind), "{kind}: {report:?}");
            }
            assert!(report.count("ProxyStep") > 0, "{report:?}");
        }
    }
}

#[test]
fn a_mask_that_changes_is_heeded_at_the_next_launch() {
    let reports = run("toggled", &[("CHECK_MASK", "toggle")]);
    assert_eq!(reports.0.len(), 2);
    for report in &reports.0 {
        let (calls, works) = (report.count("CollApi"), report.count("Coll"));
        assert!(calls == 100 && (1..100).contains(&works), "{report:?}");
        assert_eq!(report.count("Group"), works, "{report:?}");
    }
}

#[test]
fn a_slow_profiler_misses_whole_events_and_is_told_how_many() {
    let reports = run("many", &[("CHECK_SLOW_MS", "1000")]);
    for report in &reports.0 {
        let heard = report.count("func Coll barrier");
        assert!(report.count("dropped") > 0 && (1..scenarios::MANY).contains(&heard), "{report:?}");
    }
    assert_eq!(reports.0.len(), 1);
}

#[test]
fn what_an_abort_ends_is_stopped() {
    let reports = run("aborted", &[]);
    assert_eq!(reports.0.len(), 2);
    let waiting: Vec<_> =
        reports.0.iter().filter(|report| report.count("func Coll all_reduce") == 2).collect();
    assert_eq!(waiting.len(), 1, "one rank was in its second call: {reports:?}");
}

#[test]
fn what_the_death_of_a_peer_ends_is_stopped() {
    let reports = run("killed", &[]);
    // The one that was killed leaves none.
    assert_eq!(reports.0.len(), 2, "{reports:?}");
    assert!(reports.0.iter().all(|report| report.count("Coll") >= 2), "{reports:?}");
}

#[test]
fn the_progress_thread_is_heard_of() {
    let reports = run("progress", &[]);
    let total = |what: &str| reports.0.iter().map(|report| report.count(what)).sum::<u64>();
    assert!(total("state CtrlAppendEnd") > 0, "{reports:?}");
    assert_eq!(total("state CtrlAppend"), total("state CtrlAppendEnd"), "{reports:?}");
    // The end of a communicator may find the thread asleep.
    let asleep = total("state CtrlSleep").checked_sub(total("state CtrlWakeup"));
    assert!(asleep.is_some_and(|asleep| asleep <= reports.0.len() as u64), "{reports:?}");
}

#[test]
fn a_profiler_that_cannot_be_had_fails_nobody() {
    let reports = run("eager", &[("CCL_PROFILER_PLUGIN", "/no/such/profiler.so")]);
    assert!(reports.0.is_empty(), "{reports:?}");
    let reports: Reports = run("eager", &[("CCL_PROFILER_PLUGIN", "none")]);
    assert!(reports.0.is_empty(), "{reports:?}");
}

/// Not a test by itself: what the scenarios run in.
#[test]
fn scenario_of_a_test() {
    scenarios::play();
}
