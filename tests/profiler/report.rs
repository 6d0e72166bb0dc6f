//! Running a scenario, and reading what the plugin found.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use ccl_tests::program;

/// In the environment of a scenario's process: which.
pub(crate) const SCENARIO: &str = "CCL_TEST_SCENARIO";

/// What the plugin found, a report for each communicator of each rank.
#[derive(Debug)]
pub(crate) struct Reports(pub(crate) Vec<Report>);

/// Numbers by name.
#[derive(Debug)]
pub(crate) struct Report(HashMap<String, u64>);

impl Report {
    pub(crate) fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// Plays a scenario with the checking plugin and these variables; panics if it fails or if the plugin
/// found anything wrong.
pub(crate) fn run(scenario: &str, variables: &[(&str, &str)]) -> Reports {
    let folder = play_with(scenario, |command, folder| {
        command.env("CHECK_FOLDER", folder).env("CCL_PROFILER_PLUGIN", program::checking_profiler());
        command.envs(variables.iter().copied());
    });
    let reports = reports(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    reports
}

/// The reports in a folder; panics if the plugin found anything wrong.
pub(crate) fn reports(folder: &Path) -> Reports {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    Reports(
        files
            .filter(|path| path.extension().is_some_and(|end| end == "txt"))
            .map(|path| read(&path))
            .collect(),
    )
}

/// How many communicators were never closed, as their process was killed.
pub(crate) fn left_open(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "begun")).count()
}

/// Plays a scenario in a process that `prepare` prepares, given a folder of its own, which is left.
pub(crate) fn play_with(scenario: &str, prepare: impl FnOnce(&mut Command, &Path)) -> PathBuf {
    let folder = folder();
    let mut command = program::command(LIMIT_S, std::env::current_exe().unwrap());
    command.args(["--exact", "scenario_of_a_test", "--nocapture"]);
    command.env(SCENARIO, scenario);
    prepare(&mut command, &folder);
    program::succeeds(&mut command);
    folder
}

/// A folder of one's own.
pub(crate) fn folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("ccl-profiler-{}-{number}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn read(path: &Path) -> Report {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(!text.contains("WRONG"), "{}:\n{text}", path.display());
    let numbers = text.lines().map(|line| {
        let (name, number) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), number.parse().unwrap())
    });
    Report(numbers.collect())
}

const LIMIT_S: u64 = 120;
