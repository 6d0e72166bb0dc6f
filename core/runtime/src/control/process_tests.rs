//! The control connection between processes: one that is killed, one that is stopped, and nothing
//! left behind.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::tests::{SECONDS, joined, settings, until};
use super::*;
use crate::bootstrap::{Root, UniqueId, join};

/// A rank in a process of its own, which joins and then sleeps.
struct OtherRank(Child);

impl OtherRank {
    /// Joins with `id`, or runs the root and says its id if there is none.
    fn start(id: Option<&UniqueId>, rank: u32, n: u32) -> OtherRank {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "--nocapture", "control::process_tests::other_rank"]);
        let id = id.map_or("root".into(), UniqueId::to_hex);
        command.env("CCL_TEST_RANK", format!("{id} {rank} {n}"));
        OtherRank(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// The id that the process says.
    fn id(&mut self) -> UniqueId {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let said =
            lines.map(|line| line.unwrap()).find_map(|line| Some(line.split_once("id ")?.1.to_owned()));
        said.unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops it; returns when none of its threads runs any more.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }
}

impl Drop for OtherRank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The body of the other process; does nothing when run as a test.
#[test]
#[ignore = "the body of another test's process"]
fn other_rank() {
    let Ok(text) = std::env::var("CCL_TEST_RANK") else {
        return;
    };
    let words: Vec<&str> = text.split(' ').collect();
    let (rank, n) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let settings = settings(30_000);
    let id = words[0].parse().unwrap_or_else(|_| Root::start(&settings).unwrap().0);
    println!("id {}", id.to_hex());
    let (control, _) = join(&id, Rank(rank), n, Vec::new(), &settings).unwrap();
    control.board().enter(0, &crate::observe::Signature::new(ccl_plan::Collective::Barrier));
    while !control.alarm().raised() && control.try_take(Rank(1), QUIT).is_none() {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Two ranks here, the last in its own process.
fn with_other() -> (Vec<Control>, OtherRank) {
    let (id, _root) = Root::start(&settings(30_000)).unwrap();
    let other = OtherRank::start(Some(&id), 2, 3);
    (join_here(&id, [0, 1]), other)
}

/// Two ranks here, the first in its own process, which runs the root.
fn with_other_root() -> (Vec<Control>, OtherRank) {
    let mut other = OtherRank::start(None, 0, 3);
    (join_here(&other.id(), [1, 2]), other)
}

/// Two of three ranks join as threads.
fn join_here(id: &UniqueId, ranks: [u32; 2]) -> Vec<Control> {
    thread::scope(|scope| {
        let threads = ranks.map(|rank| {
            scope.spawn(move || join(id, Rank(rank), 3, Vec::new(), &settings(30_000)).unwrap().0)
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_killed_root_is_named_by_its_rank() {
    let (controls, other) = with_other_root();
    other.signal(Signal::KILL);
    for control in &controls {
        until("the alarm", SECONDS, || control.alarm().raised());
        let error = control.alarm().error().unwrap();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(0) });
        assert!(error.cause().contains(&format!("rank 0 (pid {}", other.0.id())), "{error}");
    }
}

#[test]
fn a_branch_goes_on_without_the_process_of_the_root_if_it_has_no_rank_there() {
    let (controls, other) = with_other_root();
    let made = super::tests::each(&controls, |control| {
        let rank = Rank(control.rank().0 - 1);
        control.begin(9, (rank, 2), Vec::new()).unwrap().0
    });
    other.signal(Signal::KILL);
    for (control, made) in controls.iter().zip(&made) {
        until("the alarm", SECONDS, || control.alarm().raised());
        until("the end", SECONDS, || made.shared.desk().ended);
        assert!(!made.alarm().raised(), "{:?}", made.alarm());
        let error = made.barrier().unwrap_err();
        assert!(error.cause().contains("the control service ended"), "{error}");
    }
}

#[test]
fn a_root_that_ends_after_leaving_is_not_dead() {
    let (controls, _other) = with_other_root();
    controls[0].send(Rank(0), QUIT, Vec::new()).unwrap();
    until("the end", SECONDS, || controls.iter().all(|control| control.shared.desk().ended));
    for control in &controls {
        assert!(!control.alarm().raised(), "{:?}", control.alarm());
        assert_eq!(control.left(), [Rank(0)]);
        let error = control.barrier().unwrap_err();
        assert!(error.cause().contains("rank 0 (pid") && error.cause().contains("had left"), "{error}");
    }
}

#[test]
fn a_stopped_root_is_alive_but_not_answering() {
    let (controls, other) = with_other_root();
    other.stop();
    let started = Instant::now();
    let errors = thread::scope(|scope| {
        let threads = [0, 1].map(|at| {
            scope.spawn({
                let control = &controls[at];
                move || control.diagnose(0, None)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(started.elapsed() < SECONDS, "{:?}", started.elapsed());
    for error in errors {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(0) });
        assert!(error.cause().contains("alive but stopped, not answering"), "{error}");
    }
}

#[test]
fn a_killed_process_is_named_with_its_pid() {
    let (controls, other) = with_other();
    let started = Instant::now();
    other.signal(Signal::KILL);
    for control in &controls {
        until("the alarm", SECONDS, || control.alarm().raised());
        let error = control.alarm().error().unwrap();
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) });
        assert!(error.cause().contains(&format!("rank 2 (pid {}", other.0.id())), "{error}");
        assert!(error.cause().contains("is gone"), "{error}");
    }
    assert!(started.elapsed() < SECONDS, "{:?}", started.elapsed());
}

#[test]
fn a_stopped_process_is_alive_but_not_answering() {
    let (controls, other) = with_other();
    let signature = crate::observe::Signature::new(ccl_plan::Collective::Barrier);
    controls.iter().for_each(|control| control.board().enter(0, &signature));
    other.stop();
    thread::sleep(Duration::from_millis(50));
    assert!(!controls[0].alarm().raised());
    let started = Instant::now();
    let error = controls[1].diagnose(0, None);
    assert!(started.elapsed() < SECONDS, "{:?}", started.elapsed());
    assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) });
    assert!(error.cause().contains("alive but stopped, not answering"), "{error}");
    until("the alarm", SECONDS, || controls[0].alarm().raised());
    assert_eq!(controls[0].alarm().error().unwrap().cause(), error.cause());
}

#[test]
fn nothing_is_left_behind() {
    let Ok(_) = std::env::var("CCL_TEST_ALONE") else {
        return again_alone("control::process_tests::nothing_is_left_behind");
    };
    let before = (count("/proc/self/fd"), count("/proc/self/task"));
    for _ in 0..20 {
        let (controls, root) = joined(3, &settings(30_000));
        drop(controls);
        until("the root to end", SECONDS, || root.is_over());
    }
    until("descriptors and threads to go", SECONDS, || {
        (count("/proc/self/fd"), count("/proc/self/task")) == before
    });
}

#[test]
fn one_rank_opens_nothing() {
    let Ok(_) = std::env::var("CCL_TEST_ALONE") else {
        return again_alone("control::process_tests::one_rank_opens_nothing");
    };
    let before = (count("/proc/self/fd"), count("/proc/self/task"));
    let control = Control::alone(&settings(100));
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), before);
    drop(control);
}

/// Runs one test in a process of its own.
fn again_alone(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test]).env("CCL_TEST_ALONE", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The topic of the message that makes the other process leave and end.
const QUIT: u32 = 9;
