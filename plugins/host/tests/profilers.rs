//! Profilers from files: a Rust one, a C one compiled from the header alone, and those that are refused.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_plugin_host::profiler::{
    CclProfilerGroupV1, CclProfilerOfV1, CclProfilerStateV1, CclProfilerSummaryV1, Kind, StateKind, Watched,
};
use ccl_plugin_host::{LogFn, ProfilerPlugin};

#[test]
fn a_rust_profiler_hears_everything_and_what_it_says_reaches_the_log() {
    let _turn = turn();
    let file = example("watching");
    let (candidates, plugin) = ProfilerPlugin::load(&file);
    let plugin = plugin.unwrap();
    assert_eq!((plugin.name(), plugin.file()), ("watching", Some(Path::new(&file))));
    assert_eq!(plugin.checked_by(), "a Rust table whose layout matches");
    assert!(candidates[0].to_string().contains("offers cclProfiler_v1"), "{}", candidates[0]);
    let lines = Lines::default();
    let mut context = plugin.init(watched(1), lines.log()).unwrap();
    assert_eq!(context.interest().bits(), Kind::Coll.bit() | Kind::ProxyStep.bit());

    let group = context.start_event(Kind::Group, (1, 0), 10, None, nothing()).unwrap();
    let op = context.start_event(Kind::ProxyOp, (2, 1), 11, Some((group, Kind::Group)), nothing());
    assert_eq!(op, None);
    let step =
        context.start_event(Kind::ProxyStep, (3, 2), 12, Some((group, Kind::Group)), nothing()).unwrap();
    context.record_event_state(step, &state(StateKind::SendWait, 7));
    context.stop_event(step, 13);
    // The contract's host cannot be made to break it.
    context.stop_event(step, 14);
    context.record_event_state(step, &state(StateKind::SendWait, 8));
    let orphan = context.start_event(Kind::ProxyStep, (4, 2), 15, Some((step, Kind::ProxyStep)), nothing());
    context.stop_event(orphan.unwrap(), 16);
    context.stop_event(group, 17);
    context.finalize(&summary());
    let text = lines.text();
    let expected = "watching rank=1 of=4|start 1 Group of None|start 2 ProxyOp of Some(\"Group 1\")\
        |start 3 ProxyStep of Some(\"Group 1\")|state SendWait of 3, 7 bytes|stop 3 at 13\
        |start 4 ProxyStep of None|stop 4 at 16|stop 1 at 17|finalize, 5 dropped|";
    assert_eq!(text, expected);
}

#[test]
fn a_profiler_that_panics_is_left_alone_and_finalised() {
    let _turn = turn();
    let plugin = ProfilerPlugin::load(&example("watching")).1.unwrap();
    let lines = Lines::default();
    let mut context = plugin.init(watched(0), lines.log()).unwrap();
    let group = context.start_event(Kind::Group, (1, 0), 10, None, nothing()).unwrap();
    assert_eq!(context.start_event(Kind::Coll, (666, 1), 10, None, call()), None);
    assert_eq!(context.start_event(Kind::Coll, (667, 1), 10, None, call()), None);
    context.stop_event(group, 20);
    context.finalize(&summary());
    let text = lines.text();
    assert!(text.contains("watching: panic in startEvent: told to panic"), "{text}");
    assert!(!text.contains("667") && !text.contains("stop 1") && !text.contains("finalize"), "{text}");
}

#[test]
fn a_profiler_that_cannot_start_says_so() {
    let _turn = turn();
    let plugin = ProfilerPlugin::load(&example("watching")).1.unwrap();
    let error = plugin.init(watched(99), LogFn::none()).unwrap_err().to_string();
    assert!(
        error.contains("profiler watching: init: expected success, found invalid argument (1)"),
        "{error}"
    );
}

#[test]
fn a_c_profiler_from_the_header_alone_counts() {
    let plugin = ProfilerPlugin::load(&counting("c_counting", &[])).1.unwrap();
    assert_eq!((plugin.name(), plugin.checked_by()), ("counting", "a C table"));
    let lines = Lines::default();
    let mut context = plugin.init(watched(2), lines.log()).unwrap();
    assert_eq!(context.interest().bits(), Kind::Coll.bit() | Kind::P2p.bit());
    for id in 1..=10 {
        let handle = context.start_event(Kind::Coll, (id, 0), 100 * id, None, call()).unwrap();
        context.stop_event(handle, 100 * id + 7);
    }
    context.finalize(&summary());
    let text = lines.text();
    assert_eq!(text, "rank 2: 10 events of kind 1 took 70 ns|rank 2: 5 events were dropped|");
}

#[test]
fn wrong_profilers_are_refused_in_words() {
    let line = refusal(&counting("c_counting_version", &["-DCOUNTING_VERSION=7"]));
    assert!(line.contains("expected a table of version 1, found version 7"), "{line}");
    let line = refusal(&example("ccl_net_socket_loaded"));
    assert!(
        line.contains("exports neither cclProfiler_v1 nor one of ncclProfiler_v1 to ncclProfiler_v6"),
        "{line}"
    );
    let line = refusal("/no/such/profiler.so");
    assert!(line.contains("/no/such/profiler.so: not used, cannot be opened"), "{line}");
    let (candidates, _) = ProfilerPlugin::load("nobody");
    let files: Vec<_> = candidates.iter().map(|candidate| candidate.file.to_str().unwrap()).collect();
    let ours = ["libccl-profiler-nobody.so", "libccl_profiler_nobody.so"];
    assert_eq!(files, [&ours[..], &["nobody", "libnccl-profiler-nobody.so"]].concat());
}

/// The one line that says why the only candidate was refused.
fn refusal(spec: &str) -> String {
    let (candidates, plugin) = ProfilerPlugin::load(spec);
    let error = plugin.unwrap_err().to_string();
    let [only] = &candidates[..] else { panic!("{candidates:?}") };
    assert!(error.contains(&only.to_string()), "{error}");
    only.to_string()
}

/// One test at a time: the plugin logs to its youngest context.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watched(rank: u32) -> Watched {
    Watched { rank, nranks: 4, nnodes: 1, comm_id: 1 }
}

fn nothing() -> CclProfilerOfV1 {
    let mut of = call();
    of.group = CclProfilerGroupV1 { depth: 0, reserved: 0 };
    of
}

fn call() -> CclProfilerOfV1 {
    let call = ccl_plugin_host::profiler::CclProfilerCallV1 {
        func: c"all_reduce".as_ptr(),
        dtype: c"float32".as_ptr(),
        op: c"sum".as_ptr(),
        algorithm: std::ptr::null(),
        protocol: std::ptr::null(),
        path: std::ptr::null(),
        count: 1,
        bytes: 4,
        sequence: 1,
        call_id: 0,
        send: 0,
        recv: 0,
        chunk_bytes: 0,
        root: -1,
        peer: -1,
        channels: 1,
        in_place: 0,
    };
    CclProfilerOfV1 { call }
}

fn state(kind: StateKind, bytes: u64) -> CclProfilerStateV1 {
    let size = size_of::<CclProfilerStateV1>() as u32;
    CclProfilerStateV1 { size, state: kind as u32, time_ns: 12, bytes, count: 0 }
}

fn summary() -> CclProfilerSummaryV1 {
    CclProfilerSummaryV1 {
        size: size_of::<CclProfilerSummaryV1>() as u32,
        reserved: 0,
        time_ns: 30,
        started: 4,
        refused: 1,
        dropped_events: 5,
        dropped_states: 0,
    }
}

/// The file of an example of this crate, which cargo builds with the tests.
fn example(name: &str) -> String {
    let beside = std::env::current_exe().unwrap();
    let file = beside.parent().unwrap().parent().unwrap().join(format!("examples/lib{name}.so"));
    assert!(file.exists(), "{} is not built; run all tests of the package", file.display());
    file.to_str().unwrap().to_string()
}

/// Compiles the C profiler to a file named `lib<name>.so`.
fn counting(name: &str, flags: &[&str]) -> String {
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-shared", "-fPIC", "-I"])
        .args([&plugins.join("include"), &plugins.join("examples/counting_profiler.c")])
        .args([Path::new("-o"), &output])
        .args(flags)
        .status()
        .expect("these tests need a C compiler named cc");
    assert!(status.success());
    output.to_str().unwrap().to_string()
}

/// Lines of log, kept, each with a bar behind it.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Lines {
    fn log(&self) -> LogFn {
        let lines = self.0.clone();
        LogFn::new(move |line| {
            let mut text = lines.lock().unwrap();
            text.push_str(line.message);
            text.push('|');
        })
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}
