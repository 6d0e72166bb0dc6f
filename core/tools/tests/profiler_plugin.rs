//! `ccl plugin check` of profilers: what it says of those that keep their contract, and of those that break one clause of it.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

mod kit;

use std::process::Output;

use serde_json::Value;

use self::kit::{Breach, all_named, ccl, compile, json, verdict};

fn planted(name: &str, flags: &[&str]) -> String {
    compile("core/tools/tests/plugins/planted_profiler.c", name, flags)
}

fn toy(version: u32) -> String {
    let flags = [format!("-DPROFILER_VERSION={version}"), "-fvisibility=hidden".to_owned()];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    compile("plugins/nccl/tests/plugins/toy_profiler.c", &format!("kit_toy_profiler_{version}"), &flags)
}

fn check(plugin: &str, arguments: &[&str], environment: &[(&str, &str)]) -> (Value, Output) {
    let output = ccl(&[&["plugin", "check", plugin, "--json"], arguments].concat(), environment);
    (json(&output), output)
}

/// Every clause is kept, but for those that are skipped.
fn keeps_all(plugin: &str, skipped: &[&str], environment: &[(&str, &str)]) -> Value {
    let (report, output) = check(plugin, &["--patience", "30"], environment);
    for clause in report["clauses"].as_array().unwrap() {
        let name = clause["clause"].as_str().unwrap();
        let expected = if skipped.contains(&name) { "skipped" } else { "ok" };
        assert_eq!(clause["verdict"], expected, "{plugin}: {clause}");
    }
    assert_eq!(report["clauses"].as_array().unwrap().len(), 15);
    assert_eq!((output.status.code(), &report["kind"]), (Some(0), &Value::from("profiler")));
    report
}

#[test]
fn the_examples_keep_every_clause() {
    keeps_all(&compile("plugins/examples/counting_profiler.c", "kit_counting", &[]), &[], &[]);
    keeps_all(&planted("kit_sound_profiler", &[]), &[], &[]);
}

#[test]
fn profilers_made_for_nccl_keep_what_their_contract_has() {
    for version in 1..=6 {
        let report = keeps_all(&toy(version), &["later_structs", "unknown"], &[]);
        let words = verdict(&report, "table").1;
        assert!(words.contains(&format!("profiler Toy{version}, ncclProfiler_v{version}")), "{words}");
    }
}

#[test]
fn every_breach_is_named_by_its_clause() {
    all_named(&planted("kit_profiler_breaches", &[]), 3, BREACHES);
}

#[test]
fn a_table_that_cannot_be_used_is_a_breach_and_the_rest_is_skipped() {
    for (name, flag, words) in [
        ("kit_profiler_size", "-DPLANTED_SIZE=16", "found size 16"),
        ("kit_profiler_name", "-DPLANTED_NAME=\"\"", "expected a name of 1 to 63 bytes"),
        ("kit_profiler_entry", "-DPLANTED_STOP=0", "expected the entry stopEvent"),
    ] {
        let (report, output) =
            check(&planted(name, &[flag]), &["--clause", "table", "--clause", "order"], &[]);
        let (verdict_of_table, found) = verdict(&report, "table");
        assert!(verdict_of_table == "breach" && found.contains(words), "{found}");
        assert_eq!(verdict(&report, "order").0, "skipped");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_profiler_that_asks_for_little_is_told_little() {
    let plugin = planted("kit_profiler_modest", &[]);
    keeps_all(&plugin, &["order", "in_flight", "speed"], &[("PLANTED", "ctrl_mask")]);
}

/// What is planted, the clause that names it, and some of its words.
const BREACHES: &[Breach] = &[
    ("no_mask", "mask", "to write the mask, found 0"),
    ("empty_mask", "mask", "found 0x10000000000"),
    ("wide_mask", "mask", "found those after it changed"),
    ("exact_comm", "later_structs", "expected init to take a communicator's description"),
    ("exact_event", "later_structs", "found it refused"),
    ("only_context", "contexts", "expected a context from init"),
    ("shared_end", "contexts", "to leave the mask of another"),
    ("statics", "contexts", "crashes"),
    ("unused", "unused", "crashes"),
    ("init_alone", "threads", "crashes"),
    ("hang_in_init", "events", "expected init to return"),
    ("hang_in_start", "events", "expected startEvent to return"),
    ("words", "events", "crashes"),
    ("parent", "parents", "crashes"),
    ("known_kinds", "unknown", "crashes"),
    ("known_states", "unknown", "crashes"),
    ("stack", "order", "crashes"),
    ("few", "in_flight", "crashes"),
    ("fifty_contexts", "cycles", "expected a context from init"),
    ("open_descriptor", "leaks", "expected no descriptors left"),
    ("thread", "leaks", "expected no threads left"),
    ("open_file", "files", "to be closed by finalize"),
    ("empty_file", "files", "found it empty"),
];
