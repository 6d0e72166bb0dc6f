//! What cargo itself can check: formatting, clippy, rustdoc.
//!
//! Cargo lets go of the build folder before it runs tests, so these use the same folder: what they
//! build is kept between runs and shared with a developer's own `cargo clippy`.

use std::process::Command;
use std::sync::Mutex;

use crate::tree;

#[test]
fn code_is_formatted() {
    cargo("fmt", &["--all", "--", "--check", "-l"], "run `cargo fmt --all`; these files differ");
}

#[test]
fn clippy_is_silent() {
    let arguments = ["--workspace", "--all-targets", "--quiet", "--keep-going", "--", "-D", "warnings"];
    cargo("clippy", &arguments, "mend what clippy says");
}

#[test]
fn rustdoc_is_silent() {
    let arguments = ["--workspace", "--no-deps", "--quiet"];
    cargo("doc", &arguments, "mend what rustdoc says");
}

/// Runs `cargo subcommand arguments` and fails with its output.
#[track_caller]
fn cargo(subcommand: &str, arguments: &[&str], advice: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let output = {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        for (name, _) in std::env::vars_os().filter(|(name, _)| belongs_to_this_test(name)) {
            command.env_remove(name);
        }
        command.env("RUSTDOCFLAGS", "-D warnings").env("CARGO_TERM_COLOR", "never");
        command.current_dir(tree::root()).arg(subcommand).args(arguments);
        command.output().unwrap_or_else(|error| panic!("cargo {subcommand} does not start: {error}"))
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "cargo {subcommand}: {advice}\n{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// Variables that cargo set for this test only and that would make another cargo build again.
fn belongs_to_this_test(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
        .iter()
        .any(|start| name.starts_with(start))
}
