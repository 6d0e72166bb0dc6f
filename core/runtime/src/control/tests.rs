//! The control connection over real sockets.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;

use ccl_plan::{Collective, Dtype, ReduceOp};

use super::*;
use crate::bootstrap::{Root, RootHandle, join};
use crate::observe::Signature;

pub(super) fn settings(deadline_ms: u64) -> BootstrapSettings {
    BootstrapSettings {
        deadline: Duration::from_millis(deadline_ms),
        bind: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ..BootstrapSettings::default()
    }
}

/// n ranks of this process, joined.
pub(super) fn joined(n: u32, settings: &BootstrapSettings) -> (Vec<Control>, RootHandle) {
    let (id, root) = Root::start(settings).unwrap();
    let controls = thread::scope(|scope| {
        let one = |rank| {
            scope.spawn({
                let id = &id;
                move || join(id, Rank(rank), n, Vec::new(), settings).unwrap().0
            })
        };
        let threads: Vec<_> = (0..n).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (controls, root)
}

/// Runs `act` for every control, each in its thread.
pub(super) fn each<T: Send>(controls: &[Control], act: impl Fn(&Control) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = controls.iter().map(|control| scope.spawn(|| act(control))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(super) fn until(what: &str, limit: Duration, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn signature(count: u64) -> Signature {
    Signature::new(Collective::AllReduce).of(count, Dtype::F32).reduced_by(ReduceOp::Sum)
}

impl Control {
    /// Ends the connection as if the process had died.
    pub(super) fn die(&self) {
        let line = self.shared.line();
        line.stream.as_ref().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
    }
}

#[test]
fn rounds_gather_by_rank() {
    let (controls, root) = joined(5, &settings(30_000));
    each(&controls, |control| {
        for round in 0..20_u32 {
            let infos = control.all_gather(format!("{round} {}", control.rank()).into_bytes()).unwrap();
            let expected: Vec<_> = (0..5).map(|rank| format!("{round} {rank}").into_bytes()).collect();
            assert_eq!(infos, expected);
        }
        control.barrier().unwrap();
    });
    drop(controls);
    until("the root to end", SECONDS, || root.is_over());
}

#[test]
fn a_round_names_who_is_missing() {
    let (controls, _root) = joined(3, &settings(1500));
    let results =
        each(&controls, |control| (control.rank() != Rank(1)).then(|| control.barrier().unwrap_err()));
    for error in results.into_iter().flatten() {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(1) });
        assert!(
            error.cause().starts_with("2 of 3 ranks entered round 0 within 1.5 s; missing: rank 1 (pid"),
            "{error}"
        );
    }
    let late = controls[1].barrier().unwrap_err();
    assert!(late.cause().contains("2 of 3 ranks entered round 0"), "{late}");
    each(&controls, |control| control.barrier().unwrap());
}

#[test]
fn mail_is_kept_apart_and_in_order() {
    let (controls, _root) = joined(3, &settings(30_000));
    for count in 0..100_u32 {
        controls[0].send(Rank(2), count % 2, count.to_le_bytes().to_vec()).unwrap();
    }
    controls[1].send(Rank(2), 0, b"other".to_vec()).unwrap();
    assert_eq!(controls[2].take(Rank(1), 0).unwrap(), b"other");
    for topic in [1, 0] {
        for count in (topic..100).step_by(2) {
            assert_eq!(controls[2].take(Rank(0), topic).unwrap(), count.to_le_bytes());
        }
    }
    assert_eq!(controls[2].try_take(Rank(0), 0), None);
    assert!(controls[0].send(Rank(3), 0, Vec::new()).is_err());
    assert!(controls[0].send(Rank(1), 0, vec![0; INFO_BYTES + 1]).is_err());
    controls[0].send(Rank(1), 0, vec![7; INFO_BYTES]).unwrap();
    assert_eq!(controls[1].take(Rank(0), 0).unwrap(), vec![7; INFO_BYTES]);
}

#[test]
fn a_dead_rank_is_named_everywhere_at_once() {
    let (controls, root) = joined(4, &settings(30_000));
    thread::scope(|scope| {
        let blocked = scope.spawn(|| controls[0].barrier().unwrap_err());
        thread::sleep(Duration::from_millis(20));
        let died = Instant::now();
        controls[2].die();
        for control in [&controls[0], &controls[1], &controls[3]] {
            until("the alarm", SECONDS, || control.alarm().raised());
            let error = control.alarm().error().unwrap();
            assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) });
            assert_eq!(error.consequence_of(), Some(Rank(2)));
            assert!(error.cause().contains(&format!("rank 2 (pid {}, host", std::process::id())), "{error}");
        }
        assert!(died.elapsed() < SECONDS, "{:?}", died.elapsed());
        assert_eq!(blocked.join().unwrap().fault(), &Fault::Remote { rank: Rank(2) });
    });
    drop(controls);
    until("the root to end", SECONDS, || root.is_over());
}

#[test]
fn a_dead_root_is_named_by_its_rank() {
    let (controls, root) = joined(3, &settings(30_000));
    root.stop();
    for control in &controls {
        until("the alarm", SECONDS, || control.alarm().raised());
        let error = control.alarm().error().unwrap();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(0) });
        assert!(error.cause().contains("control service"), "{error}");
    }
}

#[test]
fn a_rank_that_left_is_not_dead() {
    let (mut controls, root) = joined(3, &settings(30_000));
    let leaver = controls.pop().unwrap();
    leaver.board().enter(4, &signature(1));
    drop(leaver);
    until("the news", SECONDS, || controls.iter().all(|control| control.left() == [Rank(2)]));
    assert!(!controls[0].alarm().raised());
    let error = controls[0].barrier().unwrap_err();
    assert!(error.cause().contains("rank 2 has left the communicator"), "{error}");
    // The operation it took part in is not its fault; the one it skipped is.
    let error = controls[0].diagnose(5, None);
    assert!(error.cause().contains("rank 2 has left the communicator before operation 5"), "{error}");
    assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) });
    drop(controls);
    until("the root to end", SECONDS, || root.is_over());
}

#[test]
fn an_abort_reaches_everybody() {
    let (controls, _root) = joined(3, &settings(30_000));
    controls[1].abort("disk full");
    controls[1].abort("again");
    assert_eq!(controls[1].alarm().error().unwrap().fault(), &Fault::Aborted);
    for control in [&controls[0], &controls[2]] {
        until("the alarm", SECONDS, || control.alarm().raised());
        let error = control.alarm().error().unwrap();
        assert_eq!(error.cause(), "rank 1 aborted: disk full");
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(1) });
    }
}

#[test]
fn an_abort_is_told_though_its_alarm_makes_the_rank_leave() {
    let (controls, _root) = joined(3, &settings(30_000));
    let leaver = Arc::downgrade(&controls[1].shared);
    controls[1]
        .alarm()
        .on_raise(Box::new(move || leaver.upgrade().into_iter().for_each(|shared| shared.leave())));
    controls[1].abort("disk full");
    for control in [&controls[0], &controls[2]] {
        until("the alarm", SECONDS, || control.alarm().raised());
        assert_eq!(control.alarm().error().unwrap().cause(), "rank 1 aborted: disk full");
    }
}

#[test]
fn reports_end_in_one_cause() {
    let (controls, _root) = joined(4, &settings(30_000));
    let errors = each(&controls[..3], |control| {
        let peer = Rank((control.rank().0 + 1) % 4);
        control.report(Error::new(Fault::Remote { rank: peer }, format!("rank {peer} reset"), "see its log"))
    });
    until("the alarm", SECONDS, || controls[3].alarm().raised());
    let culprit = controls[3].alarm().error().unwrap().fault().clone();
    assert!(errors.iter().all(|error| error.fault() == &culprit), "{errors:?}");
}

#[test]
fn a_death_explains_what_others_report() {
    let (controls, _root) = joined(4, &settings(30_000));
    let errors = each(&controls[..3], |control| {
        if control.rank() == Rank(1) {
            thread::sleep(Duration::from_millis(50));
            controls[3].die();
        }
        control.report(Error::new(Fault::Network, "connection reset", "see the network").with_peer(Rank(3)))
    });
    for error in errors {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(3) });
        assert!(error.cause().contains("is gone"), "{error}");
    }
}

#[test]
fn a_rank_that_never_entered_is_named() {
    let (controls, _root) = joined(4, &settings(30_000));
    for control in &controls {
        control.board().enter(0, &signature(8));
        control.board().complete(0);
        if control.rank() != Rank(3) {
            control.board().enter(1, &signature(8));
            control.board().wait(2, Rank((control.rank().0 + 1) % 4));
        }
    }
    let started = Instant::now();
    let error = controls[1].diagnose(1, Some(Rank(2)));
    assert!(started.elapsed() < SECONDS, "{:?}", started.elapsed());
    assert_eq!(error.fault(), &Fault::Remote { rank: Rank(3) });
    assert_eq!(error.cause(), "rank 3 has never entered operation 1 (rank 3: last entered 0)");
    for control in &controls {
        until("the alarm", SECONDS, || control.alarm().raised());
        assert_eq!(control.alarm().error().unwrap().cause(), error.cause());
        assert_eq!(control.verdict().unwrap().verdict, Verdict::NeverEntered { ranks: vec![3] });
    }
    assert_eq!(controls[0].verdict_json(), controls[3].verdict_json());
}

#[test]
fn all_may_ask_at_once_and_get_one_answer() {
    let (controls, _root) = joined(8, &settings(30_000));
    for control in &controls {
        let count = if control.rank() == Rank(6) { 9 } else { 8 };
        control.board().enter(0, &signature(count));
    }
    let errors = each(&controls, |control| control.diagnose(0, None));
    for error in errors {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(6) });
        assert!(error.cause().contains("rank 6 entered all_reduce of 9 float, sum"), "{error}");
        assert!(error.cause().contains("ranks 0-5, 7 all entered all_reduce of 8 float, sum"), "{error}");
    }
}

#[test]
fn of_two_that_disagree_both_are_named() {
    let (controls, _root) = joined(2, &settings(30_000));
    each(&controls, |control| control.board().enter(0, &signature(control.rank().0.into())));
    let error = controls[0].diagnose(0, Some(Rank(1)));
    assert_eq!(error.fault(), &Fault::Usage);
    assert!(error.cause().contains("ranks 0-1 disagree"), "{error}");
}

#[test]
fn after_leaving_nothing_blocks() {
    let (controls, _root) = joined(2, &settings(30_000));
    controls[0].leave();
    controls[0].leave();
    let started = Instant::now();
    assert!(controls[0].barrier().is_err() && controls[0].take(Rank(1), 0).is_err());
    assert!(controls[0].send(Rank(1), 0, Vec::new()).is_err());
    let error = controls[1].take(Rank(0), 0).unwrap_err();
    assert!(error.cause().contains("rank 0, which has left"), "{error}");
    assert!(started.elapsed() < SECONDS);
}

#[test]
fn a_process_that_was_forked_is_told() {
    let mut control = Control::alone(&settings(100));
    let shared = Arc::get_mut(&mut control.shared).unwrap();
    shared.this.pid += 1;
    let error = control.barrier().unwrap_err();
    assert!(error.cause().contains("child after fork"), "{error}");
}

#[test]
fn one_rank_alone_can_be_late_and_abort() {
    let control = Control::alone(&settings(100));
    control.board().enter(0, &signature(8));
    let error = control.diagnose(0, None);
    assert!(error.cause().contains("operation 0"), "{error}");
    let control = Control::alone(&settings(100));
    control.abort("enough");
    assert_eq!(control.barrier().unwrap_err().fault(), &Fault::Aborted);
}

/// Far longer than what needs no waiting takes, far shorter than the deadlines: on a busy machine a thread may
/// get no turn for a second.
pub(super) const SECONDS: Duration = Duration::from_secs(8);
