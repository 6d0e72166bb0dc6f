//! `ccl trace`: numbers that can be worked out by hand, and files that are damaged, of others, or of a failed job.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use ccl::{Config, Rank, ReduceOp, local};
use serde_json::{Value, json};
use tempfile::TempDir;

fn output(arguments: &[&str], files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccl")).arg("trace").args(arguments).args(files).output().unwrap()
}

/// What it prints, if it succeeds.
fn printed(arguments: &[&str], files: &[PathBuf]) -> String {
    let output = output(arguments, files);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn values(files: &[PathBuf]) -> Value {
    serde_json::from_str(&printed(&["--json"], files)).unwrap()
}

/// What it says on standard error when it fails with this status.
fn refused(status: i32, files: &[PathBuf]) -> String {
    let output = output(&[], files);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

/// A collective of a trace: number, name, bytes, start and end in microseconds.
type Part = (u64, &'static str, u64, f64, f64);

fn kernel(&(sequence, collective, bytes, since, until): &Part) -> Value {
    let algorithm = format!("{collective}.ring");
    json!({"ph": "X", "cat": "kernel", "name": "ncclKernel", "pid": 0, "tid": 2000, "ts": since, "dur": until - since,
           "args": {"stream": 2000, "collective": collective, "algorithm": algorithm, "bytes": bytes, "sequence": sequence}})
}

fn call(since: f64, until: f64) -> Value {
    json!({"ph": "X", "cat": "cpu_op", "name": "GroupApi", "pid": 0, "tid": 1000, "ts": since, "dur": until - since,
           "args": {"id": 1}})
}

/// The trace of a rank of two on a host.
fn trace(rank: u32, host: &str, dropped: u64, parts: &[Part], more: &[Value]) -> Value {
    let events: Vec<Value> = parts.iter().map(kernel).chain(more.iter().cloned()).collect();
    json!({"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 1000,
           "cclInfo": {"communicator": "c0ffee", "host": host}, "traceEvents": events,
           "cclSummary": {"dropped_events": dropped}})
}

fn write(folder: &TempDir, name: &str, text: impl ToString) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text.to_string()).unwrap();
    path
}

/// Rank 1 is late for two of three all-reduces, and rank 0 for one of them.
fn pair(folder: &TempDir) -> Vec<PathBuf> {
    let zero = [
        (1, "all_reduce", 1024, 0.0, 100.0),
        (2, "all_reduce", 1024, 200.0, 300.0),
        (3, "all_reduce", 1024, 430.0, 500.0),
    ];
    let one = [
        (1, "all_reduce", 1024, 60.0, 100.0),
        (2, "all_reduce", 1024, 240.0, 300.0),
        (3, "all_reduce", 1024, 410.0, 510.0),
    ];
    let calls = [call(0.0, 100.0), call(200.0, 210.0), call(430.0, 500.0)];
    vec![
        write(folder, "zero.json", trace(0, "h", 0, &zero, &calls)),
        write(folder, "one.json", trace(1, "h", 7, &one, &[])),
    ]
}

#[test]
fn times_waiting_and_bandwidth_are_what_they_are_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let value = values(&pair(&folder));
    let row = &value["collectives"][0];
    assert_eq!((&row["collective"], &row["algorithm"]), (&json!("all_reduce"), &json!("ring")));
    // 100 + 100 + 70 and 40 + 60 + 100; sorted 40, 60, 70, 100, 100, 100.
    assert_eq!(
        [&row["calls"], &row["total_us"], &row["median_us"]],
        [&json!(3), &json!(470.0), &json!(70.0)]
    );
    assert_eq!(row["p99_us"], 100.0);
    // From the last rank's start to the last end: 40, 60 and 80 µs; two ranks send what there is once.
    let bus = row["busbw_gbps"].as_f64().unwrap();
    assert!((bus - 1024.0 / 60_000.0).abs() < 1e-9, "{bus}");
    let ranks = &value["ranks"];
    assert_eq!([&ranks[0]["communication_us"], &ranks[1]["communication_us"]], [270.0, 200.0]);
    assert_eq!([&ranks[0]["waited_us"], &ranks[1]["waited_us"]], [100.0, 20.0]);
    assert_eq!([&ranks[0]["last"], &ranks[1]["last"]], [1, 2]);
    assert_eq!([&ranks[1]["late_us"], &ranks[1]["latest_us"]], [100.0, 60.0]);
    assert_eq!(ranks[0]["span_us"], 500.0);
    // The second call returned after 10 of its 100 µs.
    assert_eq!(ranks[0]["outside_calls_us"], 90.0);
    assert_eq!((&value["straggler"], &ranks[1]["dropped"]), (&json!(1), &json!(7)));
    assert_eq!(ranks[0]["overlap_us"], Value::Null);
    let longest = &value["longest"][0];
    assert_eq!([&longest["took_us"], &longest["median_us"]], [100.0, 70.0]);
}

#[test]
fn people_read_tables() {
    let folder = tempfile::tempdir().unwrap();
    let text = printed(&["--top", "1"], &pair(&folder));
    let cells = |start: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(text.starts_with("# 2 traces, 1 communicator, 0.510 ms\n"), "{text}");
    assert_eq!(cells("all_reduce")[1..], ["1K", "ring", "3", "0.470", "70.0", "100.0", "0.017"], "{text}");
    assert!(text.contains("Rank 1 began last in 2 of 3 collectives, 0.100 ms"), "{text}");
    assert!(text.contains("! 7 events of rank 1 are missing"), "{text}");
    assert_eq!(text.matches("all_reduce 1 of 1K").count(), 1, "{text}");
    let help = printed(&["--help"], &[]);
    assert!(help.contains("Examples:") && help.contains("ccl trace /tmp/trace-*.json"), "{help}");
}

#[test]
fn what_computes_may_stand_in_another_profilers_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = pair(&folder);
    let gemm =
        json!({"ph": "X", "cat": "kernel", "name": "gemm", "ts": 51.0, "dur": 200.0, "args": {"stream": 7}});
    let torch = json!({"distributedInfo": {"rank": 0}, "baseTimeNanoseconds": 0, "traceEvents": [gemm]});
    files.push(write(&folder, "torch.json", torch));
    let value = values(&files);
    // Its clock was 0 a microsecond before ours: 50 to 250 µs, of which 50 and 50 are communication.
    assert_eq!(value["ranks"][0]["overlap_us"], 100.0);
    assert_eq!(value["ranks"][1]["overlap_us"], Value::Null);
    assert_eq!(value["ranks"].as_array().unwrap().len(), 2);
    let said = refused(2, &files[2..]);
    assert!(said.contains("expected a trace of profiler-example among the files"), "{said}");
}

#[test]
fn clocks_of_hosts_meet_at_the_ends_of_collectives() {
    let folder = tempfile::tempdir().unwrap();
    let parts = |shift: f64| {
        [1, 2, 3].map(|n| (n, "all_reduce", 8, shift + 100.0 * n as f64, shift + 100.0 * n as f64 + 40.0))
    };
    let files = [
        write(&folder, "a.json", trace(0, "here", 0, &parts(0.0), &[])),
        write(&folder, "b.json", trace(1, "there", 0, &parts(5000.0), &[])),
    ];
    let value = values(&files);
    assert_eq!([&value["ranks"][0]["waited_us"], &value["ranks"][1]["waited_us"]], [0.0, 0.0]);
    assert!(
        value["warnings"][0].as_str().unwrap().contains("moved by -5000.0 µs, by the ends of 3"),
        "{value}"
    );
}

#[test]
fn a_killed_ranks_trace_is_read_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let whole = trace(0, "h", 0, &[(1, "barrier", 0, 0.0, 9.0), (2, "barrier", 0, 20.0, 30.0)], &[]);
    // As the plugin writes it, an event on each line.
    let events: Vec<String> = whole["traceEvents"].as_array().unwrap().iter().map(Value::to_string).collect();
    let head = "{\"distributedInfo\": {\"rank\": 0, \"world_size\": 2}, \"cclInfo\": {\"communicator\": \"c\", \"host\": \"h\"}, ";
    let cut = format!("{head}\"traceEvents\": [\n{},\n{}", events[0], &events[1][..40]);
    let value = values(&[write(&folder, "cut.json", cut)]);
    assert_eq!((&value["collectives"][0]["calls"], &value["ranks"][0]["dropped"]), (&json!(1), &Value::Null));
    assert!(value["warnings"][0].as_str().unwrap().contains("has no end"), "{value}");
}

#[test]
fn files_of_flight_recorders_say_who_is_behind() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("flight-");
    let vars = [("CCL_FLIGHT_FILE", prefix.to_str().unwrap()), ("CCL_TIMEOUT", "1s")];
    let config = Config::from_vars(vars).unwrap();
    let file = |rank: u32| folder.path().join(format!("flight-{rank}"));
    let ends = local::try_run_with(&config, 3, |comm| {
        comm.all_reduce_in_place(&mut [1.0_f32; 5], ReduceOp::Sum)?;
        if comm.rank() == Rank(2) {
            // It makes no call, and has a file all the same.
            let until = Instant::now() + Duration::from_secs(30);
            while !file(2).exists() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            return Ok(());
        }
        comm.barrier()
    });
    assert!(ends.unwrap()[..2].iter().all(Result::is_err));
    let text = printed(&[], &[file(0), file(1), file(2)]);
    let behind = "rank 2 has not entered barrier 2, which each of ranks 0-1 entered";
    assert!(text.contains(behind) && text.contains("between calls, after all_reduce 1 of 5 Float"), "{text}");
    let value = values(&[file(0), file(1)]);
    assert!(value["flight"]["findings"][0].as_str().unwrap().contains("rank 2 has no file"), "{value}");
    assert_eq!(value["flight"]["standings"][0]["stands"], "in barrier 2");
    let renamed = folder.path().join("flight");
    fs::copy(file(0), &renamed).unwrap();
    let said = refused(2, &[renamed]);
    assert!(said.contains("which ends with the rank as in flight-3"), "{said}");
    fs::write(file(7), b"\x80\x02}q").unwrap();
    assert!(refused(2, &[file(7)]).contains("expected a flight recorder's file of format 2"));
}

#[test]
fn the_timeline_has_a_row_for_each_rank() {
    let folder = tempfile::tempdir().unwrap();
    let files = pair(&folder);
    let (whole, part) = (folder.path().join("whole.svg"), folder.path().join("part.svg"));
    printed(&["--svg", whole.to_str().unwrap()], &files);
    printed(&["--svg", part.to_str().unwrap(), "--window", "0.15-0.35"], &files);
    let bars = |path: &PathBuf, color: &str| {
        let drawn = fs::read_to_string(path).unwrap();
        for text in ["rank 0", "rank 1", "all_reduce", "waiting for the last rank", "time (ms)"] {
            assert!(drawn.contains(text), "{text}");
        }
        let bars = drawn.lines().filter(|line| line.starts_with("<rect") && line.contains(color));
        bars.map(str::to_owned).collect::<Vec<_>>()
    };
    // One colour stands in the legend, once pale; two ranks have three calls, of which one waits in each.
    let blue = bars(&whole, "#0072B2");
    let pale = blue.iter().filter(|bar| bar.contains("opacity=\"0.3\"")).count();
    assert_eq!((blue.len() - pale, pale), (1 + 6, 1 + 3), "{blue:?}");
    assert_eq!(bars(&part, "#0072B2").len(), 2 + 2 + 1);
    let said = |arguments: &[&str]| String::from_utf8(output(arguments, &files).stderr).unwrap();
    assert!(said(&["--svg", "x.svg", "--window", "5-5"]).contains("expected two times as in 120-140.5"));
    assert!(said(&["--svg", "no/such/x.svg"]).contains("write the timeline to no/such/x.svg"));
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(3, &[folder.path().join("nowhere.json")]);
    assert!(said.contains("nowhere.json") && said.contains("PROFILE_DUMP_FILE"), "{said}");
    let said = refused(2, &[write(&folder, "x.json", "{\"traceEvents\": 3}")]);
    assert!(said.contains("x.json: expected a trace of profiler-example"), "{said}");
    assert_eq!(output(&[], &[]).status.code(), Some(2));
}
