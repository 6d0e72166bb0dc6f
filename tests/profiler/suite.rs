//! Other tests again, with the checking plugin in every communicator that they make.

use std::path::Path;
use std::process::Command;

use ccl_tests::program;

use crate::report::{folder, left_open, reports};

/// The plugin lies where it is looked for when nothing is asked for, so that tests that choose their own settings have it
/// as well, and so have the processes that they start. It refuses all, none or some events, by the communicator.
#[test]
#[ignore = "runs other tests again: scripts/test long"]
fn whatever_communicates_keeps_the_promises() {
    let (plugins, found) = (folder(), folder());
    std::fs::copy(program::checking_profiler(), plugins.join("libccl-profiler.so")).unwrap();
    for (arguments, fewest, killed) in SUITE {
        let mut tests = program::cargo_test(LIMIT_S, arguments);
        attach(&mut tests, &plugins, &found);
        program::succeeds(&mut tests);
        let (reports, open) = (reports(&found), left_open(&found));
        let sum = |what: &str| reports.0.iter().map(|report| report.count(what)).sum::<u64>();
        eprintln!(
            "{arguments:?}: {} communicators, {open} more were killed, {} collectives and messages, {} refused, {} dropped",
            reports.0.len(),
            sum("Coll") + sum("P2p"),
            sum("refused"),
            sum("dropped")
        );
        assert!(reports.0.len() >= fewest, "{arguments:?}: {} communicators", reports.0.len());
        assert!(open <= killed, "{arguments:?}: {open} communicators were never finalised");
        std::fs::remove_dir_all(&found).unwrap();
        std::fs::create_dir_all(&found).unwrap();
    }
    std::fs::remove_dir_all(&plugins).unwrap();
    std::fs::remove_dir_all(&found).unwrap();
}

fn attach(tests: &mut Command, plugins: &Path, found: &Path) {
    let known = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = std::iter::once(plugins.to_owned()).chain(std::env::split_paths(&known));
    tests.env("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap());
    tests.env("CHECK_FOLDER", found).env("CHECK_REFUSE", "any").env("CCL_TUNING_FILE", "none");
}

/// Arguments of `cargo test`, the fewest communicators there are, and the most that are killed with their processes.
const SUITE: [(&[&str], usize, usize); 5] = [
    (&["-p", "ccl-tests", "--test", "host"], 1000, 2),
    (&["-p", "ccl-tests", "--test", "process"], 500, usize::MAX),
    (&["-p", "ccl-tests", "--test", "fault"], 1, usize::MAX),
    (&["-p", "ccl", "--lib"], 30, usize::MAX),
    (&["-p", "ccl", "--test", "nccl_plugins"], 20, usize::MAX),
];

/// They may have to be built.
const LIMIT_S: u64 = 1200;
