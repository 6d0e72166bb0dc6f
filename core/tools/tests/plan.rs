//! `ccl plan` and `ccl doctor`.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::process::{Command, Output};

use serde_json::Value;

fn output(line: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl"));
    command.args(line.split_whitespace()).envs(environment.iter().copied()).output().unwrap()
}

/// What it prints, if it succeeds.
fn printed(line: &str) -> String {
    let output = output(line, &[]);
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_program_is_shown_once_for_all_ranks_that_run_it() {
    let ring = printed("plan show all_reduce -a ring -n 5");
    assert!(ring.starts_with("# all_reduce.ring for 5 ranks, "), "{ring}");
    assert!(ring.contains(": rank 0-4\n") && ring.contains("recv_reduce_copy_send"), "{ring}");
    let tree = printed("plan show broadcast -n 4 --root 1");
    assert!(tree.matches("# broadcast.").count() > 1, "{tree}");
    assert_eq!(printed("plan show broadcast -n 4 --rank 3").matches("# broadcast.").count(), 1);
    assert!(printed("plan show all_reduce --binary").contains("\n000010  "));
    assert!(printed("plan show").contains("all_reduce"));
}

#[test]
fn wrong_questions_are_usage_errors() {
    for line in
        ["plan show all_reduce -a dissemination", "plan show reduce --rank 4", "plan show no_such_thing"]
    {
        assert_eq!(output(line, &[]).status.code(), Some(2), "{line}");
    }
}

#[test]
fn plans_hold_and_damaged_ones_are_rejected() {
    let line = "plan verify --max-ranks 4 --collective all_reduce,barrier --mutations 8 --quick --json";
    let value: Value = serde_json::from_str(&printed(line)).unwrap();
    assert_eq!(value["ok"], true);
    let total = |key: &str| value["total"][key].as_u64().unwrap();
    assert!(total("walks") > total("plans") && total("plans") >= 16, "{value}");
    assert!(total("rejected") > 0);
    assert_eq!(total("mutations"), total("rejected") + total("equivalent"));
    let names: Vec<_> =
        value["algorithms"].as_array().unwrap().iter().map(|a| a["algorithm"].clone()).collect();
    assert_eq!(
        names,
        [
            "ring",
            "one_shot",
            "two_shot",
            "binomial",
            "recursive_doubling",
            "rabenseifner",
            "double_tree",
            "one_shot_tree",
            "two_shot_tree",
            "two_level",
            "two_level_halving",
            "swing",
            "dissemination",
        ]
    );
    let table = printed("plan verify --max-ranks 2 --algorithm ring --mutations 0 --quick --jobs 1");
    assert!(table.contains("all_gather_v") && table.contains(" plans ("), "{table}");
}

#[test]
fn plans_of_many_ranks_hold() {
    let line = "plan verify --large --max-ranks 129 --algorithm ring,one_shot,binomial,dissemination";
    let value: Value = serde_json::from_str(&printed(&format!("{line} --json"))).unwrap();
    assert_eq!((&value["ok"], &value["witnesses"]), (&true.into(), &Vec::<Value>::new().into()));
    let rows = value["algorithms"].as_array().unwrap();
    assert!(rows.len() >= 12, "{value}");
    for row in rows {
        // 96, 127, 128 and 129.
        assert_eq!((&row["seen"]["plans"], &row["seen"]["all_ranks"]), (&4.into(), &129.into()), "{row}");
    }
    let text = printed(&format!("{line} --collective barrier --min-ranks 128"));
    assert!(text.contains("to 129") && text.contains("2 plans hold in 2 walks"), "{text}");
    assert_eq!(output("plan verify --large --quick", &[]).status.code(), Some(2));
}

#[test]
fn a_choice_is_explained() {
    let text = printed("plan explain all_reduce -n 4 -b 8,64M");
    assert_eq!(text.matches("chosen").count(), 2, "{text}");
    assert!(text.contains("takes longer"), "{text}");
    assert!(printed("plan explain all_reduce --path network").contains("any size"));
    let known =
        output("plan explain all_reduce --nodes 16x4,2 --json -b 64K", &[("CCL_TUNING_FILE", "none")]);
    let value: Value = serde_json::from_slice(&known.stdout).unwrap();
    assert_eq!((&value["ranks"], value["nodes"].as_array().unwrap().len()), (&66.into(), 17));
    assert_eq!(value["sizes"][0]["candidates"][0]["algorithm"], "two_level_halving");
    let ring = output("plan explain all_reduce -b 8 --json", &[("CCL_ALGO", "ring")]);
    let value: Value = serde_json::from_slice(&ring.stdout).unwrap();
    let candidates = value["sizes"][0]["candidates"].as_array().unwrap();
    assert_eq!((&candidates[0]["algorithm"], &candidates[0]["verdict"]), (&"ring".into(), &"chosen".into()));
    assert_eq!(candidates[1]["verdict"], "not allowed");
}

#[test]
fn ranks_are_taken_to_reach_each_other_as_those_of_one_host_do() {
    let times = |words: &str, direct: Option<&'static str>| {
        let line = format!("plan explain all_to_all -b 1M --json {words}");
        let direct = direct.map(|bytes| ("CCL_DIRECT_BYTES", bytes));
        let settings: Vec<_> = [("CCL_TUNING_FILE", "none")].into_iter().chain(direct).collect();
        let found = output(&line, &settings);
        let value: Value = serde_json::from_slice(&found.stdout).unwrap();
        value["sizes"].clone()
    };
    let by = |path: &str, words: &str| times(&format!("{words} --path {path}"), None);
    // Few with a core each leave it to a trial what they read; others read it where that is faster, on an AMD processor nowhere.
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let amd = ["AuthenticAMD", "HygonGenuine"].iter().any(|vendor| processor.contains(vendor));
    for (words, path) in [
        ("-n 4 --cores 4", "memory"),
        ("-n 2 --cores 8", "memory"),
        ("-n 4 --cores 3", if amd { "memory" } else { "memory-direct" }),
        ("-n 5 --cores 8", "memory-direct"),
    ] {
        assert_eq!(times(words, None), by(path, words), "{words}");
        assert_ne!(by("memory", words), by("memory-direct", words), "{words}");
    }
    assert_eq!(times("-n 8 --cores 2", Some("0")), by("memory", "-n 8 --cores 2"));
}

#[test]
fn what_a_switch_copies_is_named() {
    let explained = |words: &str| {
        let found = output(&format!("plan explain {words}"), &[("CCL_TUNING_FILE", "none")]);
        String::from_utf8(found.stdout).unwrap()
    };
    let sized = explained("broadcast -n 4 --path multicast -b 64K,8M");
    assert_eq!(sized.matches("direct by switch").count(), 1, "{sized}");
    let ranges = explained("all_gather -n 8 --path multicast");
    assert!(ranges.contains("direct by switch"), "{ranges}");
    for path in ["devices", "memory", "memory-direct", "network"] {
        let plain = explained(&format!("all_gather -n 8 --path {path} -b 8M"));
        assert!(plain.contains("chosen") && !plain.contains("switch"), "{path}: {plain}");
    }
    let json = explained("all_reduce -n 8 --path multicast -b 8M --json");
    let value: Value = serde_json::from_str(&json).unwrap();
    let candidates = value["sizes"][0]["candidates"].as_array().unwrap();
    let copied = candidates.iter().filter(|candidate| candidate["multicast"] == true);
    let mut copied: Vec<&str> = copied.map(|candidate| candidate["algorithm"].as_str().unwrap()).collect();
    copied.sort_unstable();
    assert_eq!(copied, ["one_shot", "one_shot_tree", "two_shot", "two_shot_tree"]);
    // Under other protocols nothing is stored once.
    let none = [("CCL_TUNING_FILE", "none"), ("CCL_PROTO", "ll")];
    let without = output("plan explain all_gather -n 8 --path multicast -b 8M", &none);
    assert!(!String::from_utf8(without.stdout).unwrap().contains("switch"));
}

#[test]
fn the_doctor_says_what_would_be_used() {
    let settings = [("CCL_SLOTS", "4"), ("CCL_NO_SUCH_SETTING", "1"), ("CCL_CUDA_IMAGE", "/proc/self/exe")];
    let output = output("doctor --json", &settings);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = value["findings"].as_array().unwrap();
    let find = |topic: &str, what: &str| {
        let one = findings.iter().find(|finding| finding["topic"] == topic && finding["what"] == what);
        one.unwrap_or_else(|| panic!("no {topic} {what} in {value}")).clone()
    };
    assert_eq!(find("device", "CUDA")["found"], "no device");
    assert_eq!(find("device", "kernels")["found"], "/proc/self/exe");
    assert_eq!(find("settings", "CCL_SLOTS")["found"], "4");
    assert_eq!(find("settings", "unknown")["verdict"], "warning");
    for topic in ["machine", "limits", "launcher", "interface", "ports", "network"] {
        assert!(findings.iter().any(|finding| finding["topic"] == topic), "{topic}");
    }
    for what in ["memory", "network"] {
        let found = find("trial", what);
        assert_eq!(found["verdict"], "ok", "{found}");
    }
    assert_eq!((value["ok"].clone(), output.status.code()), (true.into(), Some(0)), "{value}");
}

#[test]
fn the_doctor_names_what_cannot_work() {
    let output = output("doctor --no-trial", &[("CCL_SLOTS", "many")]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("!!") && text.contains("CCL_SLOTS") && text.contains("1 problems"), "{text}");
}

#[test]
fn memory_is_known_before() {
    let text = printed("plan memory -n 16 --local 8");
    assert!(text.contains("shared memory it brings (B)"), "{text}");
    let found: Value = serde_json::from_str(&printed("plan memory -n 16 -l 8 --json")).unwrap();
    let bytes = |kind: &str, name: &str| found[kind][name].as_u64().unwrap();
    assert_eq!(bytes("at_most", "mapped_bytes"), 8 * bytes("before_use", "shared_bytes"));
    // Three connections with each rank of the other host.
    assert_eq!(
        (bytes("before_use", "connections"), bytes("at_most", "connections"), bytes("at_most", "sockets")),
        (0, 24, 25)
    );
    let alone: Value = serde_json::from_str(&printed("plan memory -n 1 --json")).unwrap();
    assert_eq!((&alone["at_most"]["shared_bytes"], &alone["at_most"]["sockets"]), (&0.into(), &0.into()));
    assert_eq!(output("plan memory -n 2 -l 3", &[]).status.code(), Some(2));
    assert_eq!(alone["device"], Value::Null);
    let text = printed("plan memory -n 8 --device 1");
    assert!(text.contains("slots in its device's memory (B)"), "{text}");
    let shared: Value = serde_json::from_str(&printed("plan memory -n 8 --device 8 --json")).unwrap();
    let apart: Value = serde_json::from_str(&printed("plan memory -n 8 --device 1 --json")).unwrap();
    assert_eq!((&shared["device"]["channels"], &apart["device"]["channels"]), (&2.into(), &16.into()));
    assert!(apart["device"]["region_bytes"].as_u64() > shared["device"]["region_bytes"].as_u64());
    assert_eq!(output("plan memory -n 2 --device 3", &[]).status.code(), Some(2));
}
