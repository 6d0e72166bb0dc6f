//! Env plugins from files: a Rust one, a C one compiled from the header alone, NCCL's, and those that are refused.

#![allow(clippy::unwrap_used)]

#[path = "../../nccl/tests/common/mod.rs"]
mod toys;

use std::path::{Path, PathBuf};
use std::process::Command;

use ccl_plugin_host::EnvPlugin;
use ccl_plugin_host::env::Answer;
use toys::{ask, link, source, toy_env};

fn load(spec: &str) -> (String, EnvPlugin) {
    let (candidates, plugin) = EnvPlugin::load(spec);
    let plugin = plugin.unwrap_or_else(|| panic!("{candidates:?}"));
    (candidates.last().unwrap().to_string(), plugin)
}

/// The line that says why the only candidate was refused.
fn refusal(spec: &str) -> String {
    let (candidates, plugin) = EnvPlugin::load(spec);
    assert!(plugin.is_none(), "{plugin:?}");
    let [only] = &candidates[..] else { panic!("{candidates:?}") };
    assert!(!only.is_chosen());
    only.to_string()
}

fn value(text: &str) -> Result<Answer, String> {
    Ok(Answer::Value(text.to_owned()))
}

#[test]
fn a_rust_plugin_answers_and_is_left_alone_after_a_panic() {
    let (line, plugin) = load(&example("answering"));
    assert!(line.contains("(offers cclEnv_v1): chosen, env plugin answering, a Rust table"), "{line}");
    assert_eq!(plugin.ask("RELEASE", Some("x")), value(env!("CARGO_PKG_VERSION")));
    assert_eq!(plugin.ask("RELEASE", Some(env!("CARGO_PKG_VERSION"))), Ok(Answer::Kept));
    assert_eq!(plugin.ask("HIDDEN", Some("x")), Ok(Answer::Nothing));
    assert_eq!(
        (plugin.ask("OTHER", Some("x")), plugin.ask("OTHER", None)),
        (Ok(Answer::Kept), Ok(Answer::Kept))
    );
    assert_eq!(plugin.ask("NUL", Some("x")), Ok(Answer::Kept));
    let (line, again) = load(&format!("nobody-has-this,{}", example("answering")));
    assert!(line.contains("env plugin answering") && again.name() == "answering", "{line}");
    assert_eq!(plugin.ask("PANIC", Some("x")), Ok(Answer::Kept));
    assert_eq!(plugin.ask("HIDDEN", Some("x")), Ok(Answer::Kept));
}

#[test]
fn a_c_plugin_from_the_header_alone_reads_its_file() {
    let conf = source("env_file_conf", "# settings\nCCL_SLOTS=4\nCCL_HOSTID\n");
    let file = compiled("c_env_file", &[&format!("-DFILE_ENV_NAME=\"{}\"", conf.display())]);
    let (line, plugin) = load(&file);
    assert!(line.contains("env plugin file, a C table"), "{line}");
    assert_eq!(plugin.ask("CCL_SLOTS", None), value("4"));
    assert_eq!(plugin.ask("CCL_HOSTID", Some("x")), Ok(Answer::Nothing));
    assert_eq!(plugin.ask("CCL_NET", Some("x")), Ok(Answer::Kept));
}

#[test]
fn the_newest_of_nccls_tables_is_taken() {
    for (name, versions, newest) in [("env_1", &[1][..], 1), ("env_2", &[2], 2), ("env_both", &[1, 2], 2)] {
        let file = toy_env(name, versions, &[]);
        let (line, plugin) = load(&file);
        let how = format!("chosen, env plugin Toy{newest}, ncclEnvPlugin_v{newest} of NCCL's contract");
        assert!(line.contains(&how), "{line}");
        assert_eq!(plugin.ask("CCL_SLOTS", Some("8")), value("16"));
        // Hidden by nobody: it is not in this process's environment, so a file may say it.
        assert_eq!(plugin.ask("CCL_HOSTID", Some("of a file")), Ok(Answer::Kept));
        let path = std::env::var("PATH").unwrap();
        assert_eq!(plugin.ask("PATH", Some(&path)), Ok(Answer::Kept));
        assert_eq!(plugin.ask("PATH", None), value(&path));
        load(&file);
        for version in versions {
            assert_eq!(ask(&file, "toy_inits", *version), i32::from(*version == newest), "{name}");
        }
    }
}

#[test]
fn a_plugin_that_cannot_start_is_refused_in_its_own_words_and_not_tried_again() {
    let file = toy_env("env_fails", &[2], &["-DFAILS"]);
    let line = refusal(&file);
    assert!(line.contains("ncclSuccess from init of contract v2, found result 2"), "{line}");
    assert!(line.contains("the vault is locked"), "{line}");
    let next = toy_env("env_next", &[1], &[]);
    let (_, plugin) = load(&format!("{file},{next}"));
    assert_eq!((plugin.name(), ask(&file, "toy_inits", 2)), ("Toy1", 1));
    let line = refusal(&compiled("c_env_unset", &["-DFILE_ENV_NAME=NULL"]));
    assert!(line.contains("expected success from init") && line.contains("FILE_ENV is not set"), "{line}");
}

#[test]
fn what_is_no_table_or_no_text_is_named() {
    let line = refusal(&compiled("c_env_version", &["-DFILE_ENV_VERSION=7"]));
    assert!(line.contains("expected a table of version 1, found version 7"), "{line}");
    let line = refusal(&link("env_none", &[source("env_none", "int cclEnvironment_v1;\n")]));
    assert!(
        line.contains("exports neither cclEnv_v1 nor one of ncclEnvPlugin_v1 to ncclEnvPlugin_v2"),
        "{line}"
    );
    let line = refusal(&toy_env("env_lacks", &[2], &["-DGET_ENV=0"]));
    assert!(line.contains("ncclEnvPlugin_v2: expected the function getEnv"), "{line}");
    let (_, plugin) = load(&toy_env("env_garbage", &[2], &["-DGARBAGE"]));
    let error = plugin.ask("CCL_CHUNK_BYTES", None).unwrap_err();
    assert!(error.contains("expected a value in UTF-8, found \"12\\xff\\xfe\""), "{error}");
    let (candidates, plugin) = EnvPlugin::load("nobody");
    let files: Vec<_> = candidates.iter().map(|candidate| candidate.file.to_str().unwrap()).collect();
    assert_eq!(files, ["libccl-env-nobody.so", "libccl_env_nobody.so", "nobody", "libnccl-env-nobody.so"]);
    assert!(plugin.is_none());
}

/// The file of an example of this crate, which cargo builds with the tests.
fn example(name: &str) -> String {
    let beside = std::env::current_exe().unwrap();
    let file = beside.parent().unwrap().parent().unwrap().join(format!("examples/lib{name}.so"));
    assert!(file.exists(), "{} is not built; run all tests of the package", file.display());
    file.to_str().unwrap().to_string()
}

/// Compiles the C example to a file named `lib<name>.so`.
fn compiled(name: &str, flags: &[&str]) -> String {
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-shared", "-fPIC"])
        .arg("-I")
        .args([&plugins.join("include"), &plugins.join("examples/file_env.c")])
        .args([Path::new("-o"), &output])
        .args(flags)
        .status()
        .expect("these tests need a C compiler named cc");
    assert!(status.success());
    output.to_str().unwrap().to_string()
}
