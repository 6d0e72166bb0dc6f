//! The control connection with several roots, over real sockets.

use std::thread;

use super::tests::{SECONDS, each, settings, until};
use super::*;
use crate::bootstrap::{BootstrapSettings, Root, RootHandle, UniqueId, fail_several, join_several};

/// n ranks of this process, joined at k roots of this process.
fn joined(n: u32, k: u32, settings: &BootstrapSettings) -> (Vec<Control>, Vec<UniqueId>, Vec<RootHandle>) {
    let (ids, roots): (Vec<_>, Vec<_>) = (0..k).map(|_| Root::start(settings).unwrap()).unzip();
    let controls = join_all(&ids, &(0..n).collect::<Vec<_>>(), n, settings);
    (controls.into_iter().map(|joined| joined.unwrap().0).collect(), ids, roots)
}

/// Ranks `present` of `n` join as threads.
fn join_all(
    ids: &[UniqueId],
    present: &[u32],
    n: u32,
    settings: &BootstrapSettings,
) -> Vec<Result<(Control, Infos)>> {
    let info = |rank: u32| format!("info {rank}").into_bytes();
    thread::scope(|scope| {
        let one = |rank: &u32| {
            let rank = *rank;
            scope.spawn(move || join_several(ids, Rank(rank), n, info(rank), settings))
        };
        let threads: Vec<_> = present.iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn gather(controls: &[Control]) {
    let gathered = each(controls, |control| control.all_gather(vec![control.rank().0 as u8]).unwrap());
    let expected: Vec<_> = (0..controls.len()).map(|rank| vec![rank as u8]).collect();
    assert!(gathered.iter().all(|infos| *infos == expected));
}

#[test]
fn all_get_all_infos_and_rounds_and_mail_work() {
    for (n, k) in [(2, 2), (16, 3), (64, 4), (9, 8)] {
        let settings = settings(30_000);
        let (ids, roots): (Vec<_>, Vec<_>) = (0..k).map(|_| Root::start(&settings).unwrap()).unzip();
        let joined = join_all(&ids, &(0..n).collect::<Vec<_>>(), n, &settings);
        let expected: Vec<_> = (0..n).map(|rank| format!("info {rank}").into_bytes()).collect();
        let mut controls = Vec::new();
        for result in joined {
            let (control, infos) = result.unwrap();
            assert_eq!(infos.to_vec(), expected, "n {n}, k {k}");
            controls.push(control);
        }
        for _ in 0..5 {
            gather(&controls);
        }
        for (from, to) in [(0, n - 1), (n - 1, 0), (0, 1), (n / 2, n - 1)] {
            let bytes = vec![from as u8; INFO_BYTES / 4];
            controls[from as usize].send(Rank(to), 3, bytes.clone()).unwrap();
            assert_eq!(controls[to as usize].take(Rank(from), 3).unwrap(), bytes);
        }
        drop(controls);
        until("the roots to end", SECONDS, || roots.iter().all(RootHandle::is_over));
    }
}

#[test]
fn the_dead_and_those_who_left_are_known_at_every_root() {
    let (mut controls, _, _roots) = joined(8, 3, &settings(30_000));
    let leaver = controls.pop().unwrap();
    drop(leaver);
    until("the news", SECONDS, || controls.iter().all(|control| control.left() == [Rank(7)]));
    assert!(!controls[0].alarm().raised());
    let error = controls[0].barrier().unwrap_err();
    assert!(error.cause().contains("rank 7 has left the communicator"), "{error}");
    controls[4].die();
    for control in controls.iter().filter(|control| control.rank() != Rank(4)) {
        until("the alarm", SECONDS, || control.alarm().raised());
        let error = control.alarm().error().unwrap();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(4) }, "{error}");
        assert!(error.cause().contains("is gone"), "{error}");
    }
}

#[test]
fn missing_ranks_and_failures_are_named_at_every_root() {
    let settings = settings(2000);
    let ids: Vec<UniqueId> = (0..3).map(|_| Root::start(&settings).unwrap().0).collect();
    let present = [0, 1, 2, 4, 5, 6, 7];
    for result in join_all(&ids, &present, 8, &settings) {
        let error = result.unwrap_err();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(3) });
        assert!(error.cause().starts_with("7 of 8 ranks joined within"), "{error}");
        assert!(error.cause().contains("missing: rank 3; present: rank 0 at 127.0.0.1:"), "{error}");
    }
    let ids: Vec<UniqueId> = (0..2).map(|_| Root::start(&settings).unwrap().0).collect();
    thread::scope(|scope| {
        let others = scope.spawn(|| join_all(&ids, &[0, 1, 2], 4, &settings));
        fail_several(&ids, Rank(3), 4, "out of memory", &settings).unwrap();
        for result in others.join().unwrap() {
            let error = result.unwrap_err();
            assert!(
                error.cause().contains("rank 3 at ") && error.cause().contains("out of memory"),
                "{error}"
            );
        }
    });
}

#[test]
fn wrong_ids_are_refused_before_anything_is_asked() {
    let settings = settings(2000);
    let (id, root) = Root::start(&settings).unwrap();
    let twice = [id.clone(), id.clone()];
    let error = join_several(&twice, Rank(0), 2, Vec::new(), &settings).unwrap_err();
    assert!(error.cause().contains("the same as number 0 and number 1"), "{error}");
    let error = join_several(&[], Rank(0), 1, Vec::new(), &settings).unwrap_err();
    assert!(error.cause().contains("found 0"), "{error}");
    root.stop();
}

#[test]
fn a_diagnosis_asks_the_ranks_of_all_roots() {
    let (controls, _, _roots) = joined(6, 3, &settings(30_000));
    let signature = crate::observe::Signature::new(ccl_plan::Collective::Barrier);
    for control in controls.iter().filter(|control| control.rank() != Rank(5)) {
        control.board().enter(0, &signature);
    }
    let started = Instant::now();
    let error = controls[1].diagnose(0, None);
    assert!(started.elapsed() < SECONDS, "{:?}", started.elapsed());
    assert_eq!(error.cause(), "rank 5 has never entered operation 0 (rank 5: last entered nothing)");
    for control in &controls {
        until("the alarm", SECONDS, || control.alarm().raised());
        assert_eq!(control.verdict_json(), controls[1].verdict_json());
    }
}

#[test]
fn a_root_that_ends_is_known_at_every_root_and_branch() {
    for stopped in 0..2 {
        let (controls, _, roots) = joined(4, 2, &settings(30_000));
        let halves = each(&controls, |control| {
            let rank = control.rank().0;
            control.begin(u64::from(rank % 2) + 1, (Rank(rank / 2), 2), Vec::new()).unwrap().0
        });
        each(&halves, |half| assert_eq!(half.all_gather(vec![7]).unwrap(), [&[7][..], &[7]]));
        roots[stopped].stop();
        for control in controls.iter().chain(&halves) {
            until("the alarm", SECONDS, || control.alarm().raised());
            let error = control.alarm().error().unwrap();
            assert_eq!(error.fault(), &Fault::Remote { rank: Rank(0) }, "{error}");
            assert!(error.cause().contains("the control service it ran has closed"), "{error}");
        }
    }
}
