//! The example's trace is JSON whose slices nest, and says what was called.

use std::collections::BTreeMap;

use ccl_tests::program;
use serde_json::Value;

use crate::report::play_with;

#[test]
fn the_trace_of_the_example_is_json_that_nests() {
    let plugin = program::example_profiler();
    let plugin = plugin.to_str().unwrap();
    for (scenario, settings) in [("grouped", None), ("network", Some(("CCL_SHM_DISABLE", "1")))] {
        let folder = play_with(scenario, |command, folder| {
            command.env("CCL_PROFILER_PLUGIN", plugin).env("PROFILE_DUMP_FILE", folder.join("trace"));
            command.envs(settings);
        });
        let mut traces = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let trace: Value = serde_json::from_str(&text).unwrap();
            follows_the_format(&trace);
            check(&trace, scenario);
            assert!(text.contains(&format!("\"rank\": {}", trace["distributedInfo"]["rank"])));
            traces += 1;
        }
        assert!(traces >= 2, "{scenario}: {traces} traces");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn the_example_keeps_every_clause_of_its_contract() {
    let mut check = program::command(120, program::ccl());
    program::succeeds(check.args(["plugin", "check"]).arg(program::example_profiler()));
}

/// The Trace Event Format, in its form of an object: <https://ui.perfetto.dev> and the tools of PyTorch read it.
fn follows_the_format(trace: &Value) {
    assert!(["ms", "ns"].contains(&trace["displayTimeUnit"].as_str().unwrap()));
    assert!(trace["baseTimeNanoseconds"].is_u64() && trace["schemaVersion"] == 1);
    assert_eq!(trace["cclSummary"]["dropped_events"], 0);
    for event in trace["traceEvents"].as_array().unwrap() {
        let has_fields = event["name"].is_string() && event["pid"].is_u64() && event["args"].is_object();
        assert!(has_fields, "{event}");
        match event["ph"].as_str().unwrap() {
            "X" => {
                let times = [&event["ts"], &event["dur"]].map(|time| time.as_f64().unwrap());
                assert!(times.iter().all(|time| time.is_finite() && *time >= 0.0), "{event}");
                // Viewers keep it in 31 bits.
                assert!(event["tid"].as_u64().unwrap() < 1 << 31 && event["cat"].is_string(), "{event}");
                let is_kernel = event["cat"] == "kernel";
                assert_eq!(is_kernel, event["args"]["stream"].is_u64(), "{event}");
                assert_eq!(is_kernel, event["name"].as_str().unwrap().starts_with("ncclKernel_"), "{event}");
            }
            "M" => assert!(event["args"]["name"].is_string(), "{event}"),
            other => panic!("a phase of no use: {other}"),
        }
    }
}

fn check(trace: &Value, scenario: &str) {
    let events = trace["traceEvents"].as_array().unwrap();
    let slices: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let mut rows: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut by_id = BTreeMap::new();
    for slice in &slices {
        let nanos = |field: &str| (slice[field].as_f64().unwrap() * 1000.0).round() as u64;
        let span = (nanos("ts"), nanos("ts") + nanos("dur"));
        rows.entry(slice["tid"].as_u64().unwrap()).or_default().push(span);
        by_id.insert(slice["args"]["id"].as_u64().unwrap(), span);
    }
    assert_eq!(by_id.len(), slices.len(), "ids are used once");
    for slice in &slices {
        if let Some(parent) = slice["args"]["parent"].as_u64() {
            let (own, parent) = (by_id[&slice["args"]["id"].as_u64().unwrap()], by_id[&parent]);
            assert!(parent.0 <= own.0 && own.1 <= parent.1, "{slice} lies outside {parent:?}");
        }
    }
    for (row, mut spans) in rows {
        // By start, the longer first: each then lies in, or after, those before.
        spans.sort_by_key(|(start, end)| (*start, std::cmp::Reverse(*end)));
        let mut open: Vec<u64> = Vec::new();
        for (start, end) in spans {
            open.retain(|outer| *outer > start);
            assert!(open.iter().all(|outer| end <= *outer), "{scenario}: slices of row {row} overlap");
            open.push(end);
        }
    }
    let named =
        |part: &str| slices.iter().filter(|slice| slice["name"].as_str().unwrap().contains(part)).count();
    assert!(named("ccl:all_reduce") > 0, "calls are there");
    assert!(slices.iter().any(|slice| slice["cat"] == "kernel" && slice["args"]["channels"].is_u64()));
    assert_eq!(named("message ") > 0, scenario == "network");
}
