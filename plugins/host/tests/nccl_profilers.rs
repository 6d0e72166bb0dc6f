//! Profilers made for NCCL, compiled from C: which table is taken, what names mean, and how those that fail are refused.

#![allow(clippy::unwrap_used)]

#[path = "../../nccl/tests/common/mod.rs"]
mod toys;

use std::path::{Path, PathBuf};
use std::process::Command;

use ccl_plugin_host::profiler::{Kind, Watched};
use ccl_plugin_host::{LogFn, ProfilerPlugin};
use toys::{ask, profiler, profiler_of_versions};

/// The line of the one that was chosen.
fn load(spec: &str) -> (String, ProfilerPlugin) {
    let (candidates, plugin) = ProfilerPlugin::load(spec);
    let plugin = plugin.unwrap_or_else(|error| panic!("{error}\n{candidates:?}"));
    (candidates.iter().find(|candidate| candidate.is_chosen()).unwrap().to_string(), plugin)
}

/// The line that says why the only candidate was refused.
fn refusal(spec: &str) -> String {
    let (candidates, plugin) = ProfilerPlugin::load(spec);
    let error = plugin.unwrap_err().to_string();
    let [only] = &candidates[..] else { panic!("{candidates:?}") };
    assert!(error.contains(&only.to_string()), "{error}");
    only.to_string()
}

#[test]
fn the_newest_table_is_taken_and_told() {
    let file = profiler_of_versions("prof_several", &[1, 4, 5], &[]);
    let (line, plugin) = load(&file);
    assert_eq!((plugin.name(), &*plugin.contract()), ("Toy5", "ncclProfiler_v5"));
    assert!(plugin.is_made_for_nccl());
    let how = "chosen, profiler Toy5, ncclProfiler_v5 of NCCL's contract, the newest it offers";
    assert_eq!(line, format!("{file} (offers ncclProfiler_v1, ncclProfiler_v4, ncclProfiler_v5): {how}"));
    let watched = Watched { rank: 1, nranks: 4, nnodes: 2, comm_id: 9 };
    let context = plugin.init(watched, LogFn::none()).unwrap();
    assert_eq!(context.interest().bits() & Kind::CollApi.bit(), Kind::CollApi.bit());
    drop(context);
    assert_eq!([1, 4, 5].map(|version| ask(&file, "toy_inits", version)), [0, 0, 1], "only one was called");
    assert_eq!(ask(&file, "toy_live", 5), 0);
    let again = load(&file);
    assert!(
        again.0.contains("(offers ncclProfiler_v1") && again.0.ends_with("already loaded"),
        "{}",
        again.0
    );
    assert_eq!(again.1, plugin);
}

#[test]
fn ccls_own_table_comes_first() {
    profiler("prof_beside", 6, &[]);
    let toy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prof_beside-profiler-6.o");
    let own = toys::plugins().join("examples/counting_profiler.c");
    let (line, plugin) = load(&toys::link("prof_beside_ours", &[own, toy]));
    assert_eq!((plugin.name(), &*plugin.contract()), ("counting", "cclProfiler_v1"));
    assert!(line.contains("offers cclProfiler_v1, ncclProfiler_v6"), "{line}");
}

#[test]
fn tables_that_cannot_be_used_are_named_and_the_next_is_tried() {
    let odd =
        toys::source("prof_odd", "__attribute__((visibility(\"default\"))) void *ncclProfiler_v7[32];\n");
    let line = refusal(&toys::link("prof_odd", std::slice::from_ref(&odd)));
    assert!(line.contains("offers ncclProfiler_v7"), "{line}");
    assert!(line.contains("expected cclProfiler_v1, or one of ncclProfiler_v1 to ncclProfiler_v6"), "{line}");
    profiler("prof_odd_too", 6, &[]);
    let toy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prof_odd_too-profiler-6.o");
    let (line, _) = load(&toys::link("prof_with_odd", &[odd, toy]));
    assert!(
        line.ends_with("ncclProfiler_v6 of NCCL's contract, the newest of those that are adapted"),
        "{line}"
    );

    let lacks = profiler("prof_lacks", 3, &["-DTOY_FAULT=1"]);
    let line = refusal(&lacks);
    assert!(line.ends_with("not used, ncclProfiler_v3: expected stopEvent, found a null pointer"), "{line}");
    let (candidates, plugin) = ProfilerPlugin::load(&format!("{lacks},{}", profiler("prof_good", 2, &[])));
    assert_eq!((candidates.len(), plugin.unwrap().name()), (2, "Toy2"));
}

#[test]
fn an_init_that_fails_leaves_nothing() {
    let file = profiler("prof_init_fails", 4, &["-DTOY_FAULT=2"]);
    let watched = Watched { rank: 0, nranks: 1, nnodes: 1, comm_id: 1 };
    let error = load(&file).1.init(watched, LogFn::none()).unwrap_err().to_string();
    assert!(error.contains("profiler Toy4: init: expected success, found internal error"), "{error}");
    assert_eq!((ask(&file, "toy_inits", 4), ask(&file, "toy_live", 4)), (1, 0));
}

#[test]
fn names_mean_what_they_mean_to_nccl() {
    // Again in a process of its own, since the path is read from the environment.
    const MARK: &str = "CCL_TEST_NCCL_PROFILERS";
    if let Some(folder) = std::env::var_os(MARK) {
        let (line, plugin) = load("toytrace");
        assert_eq!(plugin.file(), Some(&*Path::new(&folder).join("libnccl-profiler-toytrace.so")), "{line}");
        assert_eq!(load("libnccl-profiler.so").1.name(), "Toy3");
        let line = refusal("STATIC_PLUGIN");
        assert!(line.contains("STATIC_PLUGIN: not used, exports neither"), "{line}");
        // What a library shows to all is found in the program, as what is linked into it.
        let linked = Path::new(&folder).join("libprof_names_linked.so");
        let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL;
        // SAFETY: a library whose initialisers do nothing.
        std::mem::forget(unsafe { libloading::os::unix::Library::open(Some(linked), flags) }.unwrap());
        let (line, plugin) = load("static");
        assert_eq!((plugin.name(), plugin.file()), ("Toy1", None));
        assert!(line.starts_with("STATIC_PLUGIN (offers ncclProfiler_v1): chosen, profiler Toy1"), "{line}");
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prof_names");
    std::fs::create_dir_all(&folder).unwrap();
    for (file, name) in [
        (profiler("prof_names_6", 6, &[]), "libnccl-profiler-toytrace.so"),
        (profiler("prof_names_3", 3, &[]), "libnccl-profiler.so"),
        (profiler("prof_names_1", 1, &[]), "libprof_names_linked.so"),
    ] {
        std::fs::copy(file, folder.join(name)).unwrap();
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "names_mean_what_they_mean_to_nccl", "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(MARK, &folder)
        .status();
    assert!(status.unwrap().success());
}
