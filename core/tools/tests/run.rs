//! `ccl run`: statuses, environment, signals, and that nothing is left behind.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn ccl_run(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl"));
    command.arg("run").args(options).args(["--", "sh", "-c", script]).stdin(Stdio::null());
    command
}

fn output(options: &[&str], script: &str) -> Output {
    ccl_run(options, script).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn what_a_rank_leaves_behind_does_not_keep_the_others_waiting() {
    let started = Instant::now();
    let output = output(&["-n", "1", "--label"], "setsid sleep 20 & echo done; exit 3");
    assert!(started.elapsed() < Duration::from_secs(15), "{output:?}");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("[0] done"), "{output:?}");
}

#[test]
fn tuning_in_a_job_writes_where_it_says() {
    let cache = std::env::temp_dir().join(format!("ccl-tuned-{}", std::process::id()));
    fs::create_dir_all(&cache).unwrap();
    let tune = format!("{} tune --quick --time 0.0001", env!("CARGO_BIN_EXE_ccl"));
    let mut command = ccl_run(&["-n", "2"], &tune);
    let output = command.env("XDG_CACHE_HOME", &cache).env_remove("CCL_TUNING_FILE").output().unwrap();
    let written: Vec<_> = fs::read_dir(cache.join("ccl")).into_iter().flatten().flatten().collect();
    fs::remove_dir_all(&cache).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("written to") && written.len() == 1, "{output:?} {written:?}");
}

#[test]
fn every_rank_has_its_number_and_labelled_output() {
    let script = "echo $CCL_RANK of $CCL_NRANKS, $RANK of $WORLD_SIZE, $LOCAL_RANK; echo error >&2";
    let output = output(&["-n", "3", "--label"], script);
    let stdout = text(&output.stdout);
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    let expected = ["[0] 0 of 3, 0 of 3, 0", "[1] 1 of 3, 1 of 3, 1", "[2] 2 of 3, 2 of 3, 2"];
    assert_eq!(lines, expected);
    assert_eq!(text(&output.stderr).matches("error\n").count(), 3);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_first_failure_is_the_status_and_ends_the_others() {
    let start = Instant::now();
    let output = output(&["-n", "3", "--grace", "0.1"], "[ $CCL_RANK = 1 ] && exit 7; exec sleep 60");
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("ccl run: rank 1 (process "), "{output:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_killed_rank_gives_the_status_of_a_shell() {
    let output = output(&["-n", "2", "--grace", "0"], "[ $CCL_RANK = 0 ] && kill -9 $$; exec sleep 60");
    assert_eq!(output.status.code(), Some(137));
    assert!(text(&output.stderr).contains("rank 0"), "{output:?}");
    assert!(text(&output.stderr).contains("was ended by signal 9"), "{output:?}");
}

#[test]
fn the_others_may_end_by_themselves_within_the_grace_time() {
    let script = "[ $CCL_RANK = 0 ] && exit 4; sleep 0.3; echo done";
    let output = output(&["-n", "2", "--grace", "30"], script);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(4), "done\n"));
}

#[test]
fn a_rank_that_ignores_being_asked_is_ended() {
    let script = "trap '' TERM; [ $CCL_RANK = 0 ] && exit 5; while :; do sleep 0.05; done";
    let output = output(&["-n", "2", "--grace", "0"], script);
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn signals_reach_the_ranks() {
    let script = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let child = ccl_run(&["-n", "1"], script).stdout(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(300));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "ready\nasked\n"));
}

#[test]
fn what_a_rank_leaves_behind_is_ended() {
    let marker = marker("left");
    let output = output(&["-n", "1"], &format!("sleep 86399.{marker} & echo started"));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "started\n"));
    assert_eq!(processes_with(&marker), 0);
}

#[test]
fn ranks_die_with_their_starter() {
    let marker = marker("orphan");
    let mut child = ccl_run(&["-n", "2"], &format!("exec sleep 86399.{marker}")).spawn().unwrap();
    wait_for(|| processes_with(&format!("86399.{marker}")) >= 2);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(|| processes_with(&format!("86399.{marker}")) == 0);
}

#[test]
fn a_missing_command_is_said_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl"));
    let output = command.args(["run", "-n", "1", "--", "/no/such/command"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("expected a command to run, found /no/such/command"));
}

#[test]
fn usage_errors_have_their_own_status() {
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_ccl")).args(arguments).output().unwrap().status.code()
    };
    assert_eq!(run(&["run", "-n", "0", "--", "true"]), Some(2));
    assert_eq!(run(&["run", "-n", "1"]), Some(2));
    assert_eq!(run(&["run", "-n", "2", "--grace", "soon", "--", "true"]), Some(2));
}

/// Digits that no other process has in its arguments.
fn marker(what: &str) -> String {
    format!("{}{}", std::process::id(), what.len())
}

fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited too long");
        sleep(Duration::from_millis(10));
    }
}

/// Processes other than ccl with `marker` in their arguments.
fn processes_with(marker: &str) -> usize {
    let arguments = |path: &Path| fs::read(path.join("cmdline")).unwrap_or_default();
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| arguments(&entry.path()));
    processes
        .filter(|line| line.starts_with(b"sleep") && String::from_utf8_lossy(line).contains(marker))
        .count()
}
