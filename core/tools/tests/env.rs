//! Env plugins and the tool: what it says of those that keep their contract, of those that break a clause of it, and of
//! settings that come from one.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

mod kit;

use std::path::PathBuf;

use serde_json::Value;

use self::kit::{Breach, all_named, ccl, compile, json};

/// A plugin made for NCCL, of one version of its contract, named `Toy<version>`.
fn toy(name: &str, version: u32, flags: &[&str]) -> String {
    let (version, called) =
        (format!("-DENV_VERSION={version}"), format!("-DVERSIONED_NAME=\"Toy{version}\""));
    compile("plugins/nccl/tests/plugins/toy_env.c", name, &[&[&*version, &called], flags].concat())
}

fn keeps_all(plugin: &str, environment: &[(&str, &str)]) {
    let output = ccl(&["plugin", "check", plugin, "--json"], environment);
    let report = json(&output);
    for clause in report["clauses"].as_array().unwrap() {
        assert_eq!(clause["verdict"], "ok", "{plugin}: {clause}");
    }
    assert_eq!((report["clauses"].as_array().unwrap().len(), &report["kind"]), (8, &Value::from("env")));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn plugins_of_every_contract_keep_every_clause() {
    keeps_all(&compile("core/tools/tests/plugins/planted_env.c", "env_sound", &[]), &[]);
    let conf = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("env_kit.conf");
    std::fs::write(&conf, "CCL_SLOTS=4\nCCL_HOSTID\n").unwrap();
    let example = compile("plugins/examples/file_env.c", "env_kit_file", &[]);
    keeps_all(&example, &[("FILE_ENV", conf.to_str().unwrap())]);
    keeps_all(&toy("env_kit_1", 1, &[]), &[]);
    keeps_all(&toy("env_kit_2", 2, &[]), &[]);
}

#[test]
fn every_breach_is_named_by_its_clause() {
    let plugin = compile("core/tools/tests/plugins/planted_env.c", "env_planted", &[]);
    all_named(&plugin, 2, BREACHES);
    let flag = "-DPLANTED_GET_ENV=0";
    let plugin = compile("core/tools/tests/plugins/planted_env.c", "env_no_entry", &[flag]);
    let report = json(&ccl(&["plugin", "check", &plugin, "--json"], &[]));
    let words = report["clauses"][0]["words"].as_str().unwrap();
    assert!(words.contains("expected the entry getEnv"), "{words}");
    assert_eq!(report["clauses"][1]["verdict"], "skipped");
}

#[test]
fn the_doctor_names_the_plugin_and_the_plugin_is_finalised() {
    let file = toy("env_doctor", 2, &[]);
    let says = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("env_doctor_says");
    let _ = std::fs::remove_file(&says);
    let environment =
        [("NCCL_ENV_PLUGIN", &*file), ("CCL_SLOTS", "4"), ("TOY_ENV_SAYS", says.to_str().unwrap())];
    let report = json(&ccl(&["doctor", "--json", "--no-trial"], &environment));
    let finding = |what: &str| {
        let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("{what}: {report}")).clone()
    };
    let slots = finding("CCL_SLOTS");
    assert_eq!(
        (&slots["found"], &slots["why"]),
        (&"16".into(), &"from CCL_SLOTS from the env plugin Toy2".into())
    );
    let plugin = finding("env plugin");
    assert!(plugin["found"] == "Toy2" && plugin["why"].as_str().unwrap().contains("chosen"), "{plugin}");
    assert_eq!(std::fs::read_to_string(&says).unwrap(), "finalised after 1 init\n");
}

#[test]
fn the_list_and_the_log_have_a_line_for_each_candidate() {
    let (old, good) = (toy("env_listed_bad", 2, &["-DFAILS"]), toy("env_listed", 1, &[]));
    let plugins = format!("{old},{good}");
    let report = json(&ccl(&["plugin", "list", "--json"], &[("CCL_ENV_PLUGIN", &plugins)]));
    let rows: Vec<_> =
        report["plugins"].as_array().unwrap().iter().filter(|row| row["kind"] == "env").collect();
    assert!(rows.len() == 2 && rows[0]["verdict"] == "refused" && rows[1]["verdict"] == "chosen", "{rows:?}");
    assert!(rows[0]["why"].as_str().unwrap().contains("the vault is locked"), "{rows:?}");
    assert_eq!(rows[1]["offers"], serde_json::json!(["ncclEnvPlugin_v1"]));
    let perf = ["perf", "all_reduce", "-n", "1", "-e", "8", "--iters", "1", "-w", "0"];
    let environment = [("CCL_ENV_PLUGIN", &*plugins), ("CCL_DEBUG", "INFO"), ("CCL_DEBUG_SUBSYS", "ALL")];
    let said = String::from_utf8(ccl(&perf, &environment).stderr).unwrap();
    for (file, words) in [(&old, "not used, ncclEnvPlugin_v2"), (&good, "chosen, env plugin Toy1")] {
        let line = said.lines().find(|line| line.contains(&**file) && line.contains("offers"));
        assert!(line.is_some_and(|line| line.contains(words) || words.starts_with("not")), "{said}");
    }
    assert!(said.contains("set by CCL_SLOTS from the env plugin Toy1 to 16"), "{said}");
}

/// What is planted, the clause that must name it, and words that it must say.
const BREACHES: &[Breach] = &[
    ("init_fails", "answers", "no vault today"),
    ("init_hangs", "answers", "blocks: expected init"),
    ("hangs", "answers", "blocks: expected getEnv"),
    ("no_text", "answers", "expected a value in UTF-8"),
    ("two_lines", "answers", "expected a value of one line"),
    ("endless", "answers", "expected at most 65536 bytes"),
    ("short_names", "odd_names", "crashes: "),
    ("reuses_answers", "lasting", "answers live until finalize"),
    ("one_thread", "threads", "crashes: "),
    ("slow", "prompt", "expected getEnv to return at once"),
    ("changes_environment", "environment", "\"PLANTED_HERE\" to stay None"),
    ("changes_folder", "environment", "the working folder"),
    ("leaks_descriptor", "leaks", "no descriptors left"),
    ("leaks_thread", "leaks", "no threads left"),
    ("finalize_fails", "leaks", "in finalize"),
    ("finalize_hangs", "leaks", "blocks: expected finalize"),
];
