//! Plugins compiled for a test, `ccl` run on them, and what it says of each clause.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// The plugin of a source file under the root, compiled with these flags.
pub(crate) fn compile(source: &str, name: &str, flags: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-O1", "-shared", "-fPIC", "-I"]).arg(root.join("plugins/include"));
    command.args(flags).arg(root.join(source)).arg("-o").arg(&output).arg("-lpthread");
    assert!(command.status().expect("these tests need a C compiler named cc").success());
    output.to_str().unwrap().to_owned()
}

pub(crate) fn ccl(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccl"));
    command.args(arguments).envs(environment.iter().copied()).output().unwrap()
}

/// What it printed, whatever the status.
pub(crate) fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Verdict and words of a clause.
pub(crate) fn verdict(report: &Value, clause: &str) -> (String, String) {
    let found = report["clauses"].as_array().unwrap().iter().find(|found| found["clause"] == clause);
    let found = found.unwrap_or_else(|| panic!("{clause} is not in {report}"));
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    (text("verdict"), text("words"))
}

/// What is planted in a plugin, the clause that names it, and some of its words.
pub(crate) type Breach = (&'static str, &'static str, &'static str);

/// Each of these breaches is named by its clause and its words, with so many seconds for each.
pub(crate) fn all_named(plugin: &str, patience_s: u32, breaches: &[Breach]) {
    let next = AtomicUsize::new(0);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let take = || breaches.get(next.fetch_add(1, Ordering::Relaxed));
            let objections =
                std::iter::from_fn(take).filter_map(|breach| objection(plugin, patience_s, breach));
            objections.collect::<Vec<_>>()
        };
        // Most of them wait for what never comes.
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What is not as it should be when this breach is planted.
fn objection(plugin: &str, patience_s: u32, (planted, clause, words): &Breach) -> Option<String> {
    let patience = patience_s.to_string();
    let check = ["plugin", "check", plugin, "--json", "--patience", &patience, "--clause", clause];
    let output = ccl(&check, &[("PLANTED", planted)]);
    let (verdict, found) = verdict(&json(&output), clause);
    let is_named = verdict == "breach" && found.contains(words) && output.status.code() == Some(1);
    (!is_named).then(|| format!("{planted}: expected {clause} to say \"{words}\", found {verdict}: {found}"))
}
