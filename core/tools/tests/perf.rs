//! `ccl perf`: the table, the JSON lines, who the ranks are, and how it fails.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn ccl(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CCL_") || name.starts_with("NCCL_"))
    {
        command.env_remove(name);
    }
    command
}

fn output(line: &str) -> Output {
    ccl(line).output().unwrap()
}

/// What it prints, if it succeeds.
fn printed(line: &str) -> String {
    let output = output(line);
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_table_is_that_of_nccl_tests() {
    let text = printed("perf all_reduce -n 2 -b 8 -e 128 -f 4 --iters 2 -w 0");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["8", "32", "128"]);
    for row in &rows {
        assert_eq!((row.len(), &row[2..5], row[8], row[12]), (13, &["float", "sum", "-1"][..], "0", "0"));
        assert!(row[5].parse::<f64>().unwrap() > 0.0);
    }
    assert_eq!(text.matches("#  Rank").count(), 2);
    assert!(text.contains("# Out of bounds values : 0 OK\n"), "{text}");
    assert!(text.contains("# Avg bus bandwidth    : "), "{text}");
    assert!(text.ends_with("# Collective test concluded: all_reduce_perf\n"), "{text}");
}

#[test]
fn everything_is_right_as_processes_and_as_threads() {
    for ranks in ["processes", "threads"] {
        let text = printed(&format!(
            "perf all -n 3 --ranks-as {ranks} --counts 0,1,13 -d float,f8e5m2 -o sum,mulsum -r all --iters 1 -w 0"
        ));
        assert_eq!(text.matches("# Out of bounds values : 0 OK\n").count(), 16, "{text}");
        assert!(text.contains(" 0 wrong elements\n"), "{text}");
    }
}

#[test]
fn json_lines_are_what_the_peers_print() {
    let points = json(&printed("perf -c allreduce,alltoall,pingpong -n 2 -b 8,1K -t 0.001 --json"));
    let named =
        |point: &Value| (point["coll"].as_str().unwrap().to_owned(), point["bytes"].as_u64().unwrap());
    let names: Vec<_> = points.iter().map(named).collect();
    let expected =
        ["allreduce", "alltoall", "pingpong"].map(|name| [(name.to_owned(), 8), (name.to_owned(), 1024)]);
    assert_eq!(names, expected.concat());
    for point in &points {
        assert_eq!((&point["peer"], &point["ranks"], &point["ok"]), (&"ccl".into(), &2.into(), &true.into()));
        for key in ["time_us", "algbw_gbps", "busbw_gbps"] {
            assert!(point[key].as_f64().unwrap() >= 0.0, "{key}");
        }
        assert!(point["version"].is_string() && point["iters"].as_u64().unwrap() >= 3);
    }
}

#[test]
fn groups_and_placements_are_measured() {
    let points = json(&printed("perf sendrecv,all_gather -n 2 -b 64 -G 3 --iters 2 --placement both --json"));
    assert!(points[0].get("in_place").is_none(), "a message is never in place");
    assert_eq!(points[1]["in_place"]["wrong"], 0);
    let points = json(&printed("perf all_gather -n 2 -b 64 --iters 0 --placement in --check 0 --json"));
    assert_eq!((&points[0]["placement"], &points[0]["wrong"]), (&"in_place".into(), &Value::Null));
}

#[test]
fn the_plot_is_an_svg() {
    let path = std::env::temp_dir().join(format!("ccl-perf-{}.svg", std::process::id()));
    printed(&format!("perf all_reduce -n 2 --ranks-as threads -b 8,64 --iters 1 --plot {}", path.display()));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.starts_with("<svg") && text.contains("all_reduce, in place"));
}

#[test]
fn training_steps_are_measured_and_checked() {
    let path = std::env::temp_dir().join(format!("ccl-workload-{}", std::process::id()));
    std::fs::write(&path, "# bytes\n1000\n70K # the second\n\n1M\n").unwrap();
    for options in
        ["-n 3 --in-flight 2", "-n 3 --ranks-as threads -d f16 -o avg", "-n 1", "-n 2 -d i8 --in-flight 1"]
    {
        let steps =
            json(&printed(&format!("perf --workload {} {options} --iterations 3 --json", path.display())));
        let [step] = &steps[..] else { panic!("{steps:?}") };
        let bytes = 1000 + (70 << 10) + (1 << 20);
        assert_eq!((&step["buckets"], &step["bytes"], &step["wrong"]), (&3.into(), &bytes.into(), &0.into()));
        let times: Vec<f64> =
            step["times_us"].as_array().unwrap().iter().map(|t| t.as_f64().unwrap()).collect();
        assert_eq!(times.len(), 3);
        assert_eq!(times.iter().copied().fold(f64::MAX, f64::min), step["min_us"].as_f64().unwrap());
        assert!(step["min_us"].as_f64() <= step["median_us"].as_f64());
    }
    let text = printed(&format!("perf --workload {} --iters 2 -w 0", path.display()));
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 2, "{text}");
    assert!(text.ends_with("# Out of bounds values : 0 OK\n"), "{text}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn overlap_is_measured_and_checked() {
    for ranks in ["threads", "processes"] {
        let line = format!("perf --overlap -n 2 --ranks-as {ranks} -b 256K --iterations 2 --json");
        let [found] = &json(&printed(&line))[..] else { panic!() };
        assert_eq!(
            (&found["bytes"], &found["rounds"], &found["ok"]),
            (&(256 << 10).into(), &2.into(), &true.into())
        );
        assert!(found["time_us"].as_f64().unwrap() > 0.0);
        assert!(found["min_loss_percent"].as_f64() <= found["max_loss_percent"].as_f64());
        assert!(found["max_loss_percent"].as_f64().unwrap() <= 100.0);
    }
    assert!(printed("perf --overlap -b 8 --iterations 1").contains("computation loses "));
}

#[test]
fn levels_of_determinism_are_measured_beside_each_other() {
    let line = "perf all_reduce,broadcast,reduce_scatter -n 3 --levels -b 8,64K -d f32,fp8_e4m3 --iters 3 -w 1 --json";
    let lines = json(&printed(line));
    // A broadcast has no level.
    assert_eq!(lines.len(), 2 * 2 * 2 * 3, "{lines:?}");
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(
            (&line["level"], &line["wrong"]),
            (&["run", "size", "world"][index % 3].into(), &0.into())
        );
        assert!(line["time_us"].as_f64().unwrap() > 0.0 && line["ratio"].as_f64().unwrap() > 0.0);
        assert!(line["min_ratio"].as_f64() <= line["max_ratio"].as_f64());
    }
    assert!(lines.iter().filter(|line| line["level"] == "run").all(|line| line["ratio"] == 1.0));
    let text = printed("perf all_reduce --levels -b 8 --iters 2 --ranks-as threads");
    assert!(text.contains("run (us)") && text.ends_with("# Out of bounds values : 0 OK\n"), "{text}");
}

#[test]
fn lists_of_buckets_can_be_read_back() {
    let list = printed("perf --workload resnet50 --list");
    assert_eq!(list.lines().next(), Some("8196000"));
    let path = std::env::temp_dir().join(format!("ccl-list-{}", std::process::id()));
    std::fs::write(&path, &list).unwrap();
    assert_eq!(printed(&format!("perf --workload {} --list", path.display())), list);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ranks_of_a_launcher_are_joined() {
    let ccl = env!("CARGO_BIN_EXE_ccl");
    let text = printed(&format!("run -n 3 -- {ccl} perf broadcast -b 8 --iters 1 --json"));
    let points = json(&text);
    assert_eq!((points.len(), &points[0]["ranks"], &points[0]["ok"]), (1, &3.into(), &true.into()));
}

#[test]
fn contradictions_with_a_launcher_are_usage_errors() {
    let environment = [("CCL_RANK", "0"), ("CCL_NRANKS", "4")];
    let output = ccl("perf all_reduce -n 2").envs(environment).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("rank 0 of 4"), "{output:?}");
    let output = ccl("perf all_reduce -n 2 --no-launcher -b 8 --iters 1").envs(environment).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn errors_have_their_status() {
    for (line, status) in [
        ("perf", 2),
        ("perf all_reduce -d float31", 2),
        ("perf broadcast -n 2 -r 2", 2),
        ("perf --workload resnet51", 2),
        ("perf --workload resnet50 -d all", 2),
        ("perf --workload resnet50 --iterations 0", 2),
        ("perf --workload /dev/null", 2),
        ("perf all_reduce -n 2 --ranks-as threads -b 8 --iters 1 --plot /no/such/folder/x.svg", 3),
    ] {
        let output = output(line);
        assert_eq!(output.status.code(), Some(status), "{line}: {output:?}");
        assert!(output.stderr.starts_with(b"ccl: ") || !output.stderr.is_empty());
    }
}

#[test]
fn device_memory_needs_a_device() {
    for (line, why) in [
        ("perf all_reduce -n 2 --memory device", "CCL_CUDA is off"),
        ("perf all_reduce -n 2 --device cuda --memory device --graph 1", "CCL_CUDA is off"),
        ("perf all_reduce -n 2 --graph 1", "expected --memory device beside --graph"),
    ] {
        let output = ccl(line).env("CCL_CUDA", "off").output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(why), "{line}: {told}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}
