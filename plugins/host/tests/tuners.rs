//! Tuners from files: a Rust one, a C one compiled from the header alone, those made for NCCL, and what is refused.

#![allow(clippy::unwrap_used)]

#[path = "../../nccl/tests/common/mod.rs"]
mod toys;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_plugin_host::tuner::{Call, Candidate, Comm};
use ccl_plugin_host::{LogFn, TunerPlugin};
use toys::{ask, link, object, toy_tuner};

#[test]
fn a_rust_tuner_advises_and_what_it_says_reaches_the_log() {
    let _turn = turn();
    let file = example("advising");
    let (candidates, plugin) = TunerPlugin::load(&file);
    let plugin = plugin.unwrap();
    assert_eq!((plugin.name(), plugin.file()), ("advising", Some(Path::new(&file))));
    assert_eq!(
        (plugin.checked_by(), &*plugin.contract()),
        ("a Rust table whose layout matches", "cclTuner_v1")
    );
    assert!(candidates[0].to_string().contains("offers cclTuner_v1"), "{}", candidates[0]);
    let lines = Lines::default();
    let mut context = plugin.init(&comm(), &[], lines.log()).unwrap();
    let mut offered = offered();
    context.advise(&call("all_reduce", 64), &mut offered).unwrap();
    assert_eq!((offered[2].cost_ns, offered[2].channels), (0.0, 1000));
    assert_eq!(offered[..2], self::offered()[..2]);
    drop(context);
    assert_eq!(lines.text(), "advising ranks=4 nodes=2 reach=\"memory\"|done|");
}

#[test]
fn a_rust_tuner_that_goes_wrong_changes_nothing_and_says_why() {
    let _turn = turn();
    let plugin = TunerPlugin::load(&example("advising")).1.unwrap();
    for (how, code, words) in [
        ("init fails", "invalid argument (1)", "expected a better file"),
        ("init panics", "panic in the plugin (11)", "advising: panic in init: told to panic"),
    ] {
        let lines = Lines::default();
        let error = plugin.init(&comm(), &[("config_file", how)], lines.log()).unwrap_err().to_string();
        assert_eq!(error, format!("tuner advising: init: expected success, found {code}"));
        assert_eq!(lines.text(), format!("{words}|"));
    }
    for (how, code, words) in [
        ("advise fails", "internal error (10)", "out of ideas"),
        ("advise panics", "panic in the plugin (11)", "advising: panic in advise: told to panic"),
    ] {
        let lines = Lines::default();
        let mut context = plugin.init(&comm(), &[("config_file", how)], lines.log()).unwrap();
        let mut offered = offered();
        context.advise(&call("all_reduce", 8), &mut offered).unwrap();
        let error = context.advise(&call("all_reduce", 1 << 20), &mut offered).unwrap_err().to_string();
        assert_eq!(error, format!("tuner advising: advise: expected success, found {code}"));
        assert_eq!(offered, self::offered());
        let after_panic = context.advise(&call("all_reduce", 8), &mut offered);
        assert_eq!(after_panic.is_err(), how == "advise panics");
        drop(context);
        assert!(lines.text().contains(&format!("|{words}|done|")), "{}", lines.text());
    }
}

#[test]
fn a_c_tuner_from_the_header_alone_reads_rules() {
    let plugin = TunerPlugin::load(&rules("c_rules", &[])).1.unwrap();
    assert_eq!((plugin.name(), plugin.checked_by()), ("rules", "a C table"));
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rules.txt");
    std::fs::write(&file, "# a comment\n\nall_reduce 1024 ring\nall_reduce 4096 double_tree 2\n").unwrap();
    let lines = Lines::default();
    let setting = [("config_file", file.to_str().unwrap())];
    let mut context = plugin.init(&comm(), &setting, lines.log()).unwrap();
    let mut advise = |collective, bytes| {
        let mut offered = offered();
        context.advise(&call(collective, bytes), &mut offered).unwrap();
        offered.iter().map(|one| (one.cost_ns, one.channels)).collect::<Vec<_>>()
    };
    let unchanged = [(500.0, 1), (3000.0, 1), (2000.0, 1)];
    assert_eq!(advise("all_reduce", 1024), [unchanged[0], (0.0, 1), unchanged[2]]);
    assert_eq!(advise("all_reduce", 1025), [unchanged[0], unchanged[1], (0.0, 2)]);
    assert_eq!(advise("all_reduce", 4097), unchanged);
    assert_eq!(advise("broadcast", 8), unchanged);
    drop(context);
    std::fs::write(&file, "all_reduce many ring\n").unwrap();
    let error = plugin.init(&comm(), &setting, lines.log()).unwrap_err().to_string();
    assert!(error.contains("tuner rules: init: expected success, found invalid argument"), "{error}");
    let expected =
        "2 rules for 4 ranks|expected a collective, bytes and an algorithm, found: all_reduce many ring|";
    assert_eq!(lines.text(), expected);
}

#[test]
fn every_version_of_nccls_contract_advises() {
    for version in 2..=6 {
        let file = toy_tuner(&format!("tuner_{version}"), &[version], &[]);
        let (candidates, plugin) = TunerPlugin::load(&file);
        let (symbol, plugin) = (format!("ncclTunerPlugin_v{version}"), plugin.unwrap());
        let line = candidates[0].to_string();
        assert!(line.contains(&format!("(offers {symbol}): chosen, tuner Toy{version}, {symbol}")), "{line}");
        assert_eq!((plugin.name(), plugin.contract()), (&*format!("Toy{version}"), symbol));
        let lines = Lines::default();
        let mut context = plugin.init(&comm(), &[], lines.log()).unwrap();
        assert_eq!(ask(&file, "toy_tuner_live", version), 1);
        let mut offered = offered();
        context.advise(&call("all_reduce", 4096), &mut offered).unwrap();
        // What has no row of NCCL's, and what it did not touch, is as it was.
        assert_eq!(offered[..2], self::offered()[..2]);
        let (tree, chunk) = (&offered[2], if version < 6 { 0 } else { 8200 });
        assert_eq!((tree.cost_ns, tree.channels, tree.chunk_bytes), (0.0, 3, chunk), "version {version}");
        for (collective, bytes) in
            [("all_reduce", 2 << 20), ("all_to_all", 8), ("all_gather_v", 8), ("barrier", 0)]
        {
            let mut offered = self::offered();
            context.advise(&call(collective, bytes), &mut offered).unwrap();
            assert_eq!(offered, self::offered(), "version {version}: {collective}");
        }
        drop(context);
        assert_eq!(ask(&file, "toy_tuner_live", version), 0);
        assert_eq!(lines.text(), "toy: tuner of 4 ranks|", "version {version}");
    }
}

#[test]
fn of_several_versions_the_newest_is_taken_and_unknown_ones_are_named() {
    let name = |file: &str| {
        let (candidates, plugin) = TunerPlugin::load(file);
        (plugin.unwrap().name(), candidates[0].to_string())
    };
    let (chosen, line) = name(&toy_tuner("tuner_several", &[2, 5, 3], &[]));
    assert_eq!(chosen, "Toy5");
    assert!(line.contains("offers ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclTunerPlugin_v5"), "{line}");
    assert!(line.contains("ncclTunerPlugin_v5 of NCCL's contract, the newest it offers"), "{line}");
    let later = toys::source("tuner_later", &format!("{SEEN}const int ncclTunerPlugin_v7 = 7;\n"));
    let parts = [object("tuner_and_later", "tuner", 6, &[]), later.clone()];
    let (chosen, line) = name(&link("tuner_and_later", &parts));
    assert_eq!(chosen, "Toy6");
    assert!(line.contains("the newest of those that are adapted"), "{line}");
    // Ours comes before NCCL's.
    let ours = format!("{SEEN}#include \"{}\"\n", source_of_rules().display());
    let ours = toys::source("tuner_ours", &ours);
    let (chosen, line) = name(&link("tuner_both", &[object("tuner_both", "tuner", 6, &[]), ours]));
    assert_eq!(chosen, "rules", "{line}");
    let line = refusal(&link("tuner_only_later", &[later]));
    assert!(
        line.contains("expected cclTuner_v1, or one of ncclTunerPlugin_v2 to ncclTunerPlugin_v6, found only"),
        "{line}"
    );
}

#[test]
fn wrong_tuners_are_refused_in_words() {
    let line = refusal(&rules("c_rules_version", &["-DRULES_VERSION=7"]));
    assert!(line.contains("expected a table of version 1, found version 7"), "{line}");
    let line = refusal(&toy_tuner("tuner_lacks", &[4], &["-DTOY_FAULT=1"]));
    assert!(line.contains("ncclTunerPlugin_v4: expected getCollInfo, found a null pointer"), "{line}");
    let line = refusal(&example("watching"));
    assert!(line.contains("exports neither cclTuner_v1 nor one of ncclTunerPlugin_v2"), "{line}");
    let line = refusal("/no/such/tuner.so");
    assert!(line.contains("/no/such/tuner.so: not used, cannot be opened"), "{line}");
    let (candidates, _) = TunerPlugin::load("nobody");
    let files: Vec<_> = candidates.iter().map(|candidate| candidate.file.to_str().unwrap()).collect();
    let ours = ["libccl-tuner-nobody.so", "libccl_tuner_nobody.so"];
    assert_eq!(files, [&ours[..], &["nobody", "libnccl-tuner-nobody.so"]].concat());
    assert_eq!(TunerPlugin::load("static").0[0].file, Path::new("STATIC_PLUGIN"));
}

#[test]
fn what_nccls_tuners_fail_with_is_told_with_their_words() {
    for version in [2, 6] {
        let plugin =
            TunerPlugin::load(&toy_tuner(&format!("tuner_sad_{version}"), &[version], &["-DTOY_FAULT=2"]));
        let lines = Lines::default();
        let error = plugin.1.unwrap().init(&comm(), &[], lines.log()).unwrap_err().to_string();
        assert!(error.contains(&format!("tuner Toy{version}: init: expected success, found")), "{error}");
        let text = lines.text();
        let words =
            format!("expected ncclSuccess from init of contract v{version}, found ncclSystemError (2)");
        assert!(text.contains(&words) && text.contains("toy: no file number 42"), "{text}");
    }
    let plugin = TunerPlugin::load(&toy_tuner("tuner_poor", &[5], &["-DTOY_FAULT=3"])).1.unwrap();
    let lines = Lines::default();
    let mut context = plugin.init(&comm(), &[], lines.log()).unwrap();
    let mut offered = offered();
    assert!(context.advise(&call("all_reduce", 1 << 16), &mut offered).is_err());
    assert_eq!(offered, self::offered());
    assert!(
        lines.text().contains("from getCollInfo of contract v5, found ncclInternalError"),
        "{}",
        lines.text()
    );
}

fn comm() -> Comm<'static> {
    Comm {
        rank: 0,
        nranks: 4,
        nnodes: 2,
        comm_id: 7,
        name: None,
        reach: "memory",
        min_node_ranks: 1,
        max_node_ranks: 3,
        max_channels: 8,
        chunk_bytes: 32 << 10,
    }
}

fn call(collective: &str, bytes: u64) -> Call<'_> {
    Call { collective, dtype: None, bytes, least_bytes: bytes, most_bytes: bytes, pipelined: 1, mapped: true }
}

fn offered() -> Vec<Candidate<'static>> {
    let candidate =
        |algorithm, cost_ns| Candidate { algorithm, protocol: None, cost_ns, channels: 1, chunk_bytes: 0 };
    vec![candidate("swing", 500.0), candidate("ring", 3000.0), candidate("double_tree", 2000.0)]
}

/// The one line that says why the only candidate was refused.
fn refusal(spec: &str) -> String {
    let (candidates, plugin) = TunerPlugin::load(spec);
    let error = plugin.unwrap_err().to_string();
    let [only] = &candidates[..] else { panic!("{candidates:?}") };
    assert!(error.contains(&only.to_string()), "{error}");
    only.to_string()
}

/// One test at a time: the plugin logs to its youngest context.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file of an example of this crate, which cargo builds with the tests.
fn example(name: &str) -> String {
    let beside = std::env::current_exe().unwrap();
    let file = beside.parent().unwrap().parent().unwrap().join(format!("examples/lib{name}.so"));
    assert!(file.exists(), "{} is not built; run all tests of the package", file.display());
    file.to_str().unwrap().to_string()
}

fn source_of_rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rules_tuner.c")
}

/// What is compiled with hidden symbols is seen after this.
const SEEN: &str = "#pragma GCC visibility push(default)\n";

/// Compiles the C tuner to a file named `lib<name>.so`.
fn rules(name: &str, flags: &[&str]) -> String {
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-shared", "-fPIC", "-I"])
        .args([&include, &source_of_rules()])
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
