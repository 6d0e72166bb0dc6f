//! Python programs that others wrote and that read what we write, each with its packages in a folder of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;

/// A Python that has these packages. They are installed by name into `venvs/NAME` in cargo's target folder when they
/// are not there yet; tests that want the same wait for each other.
///
/// # Errors
///
/// In words: there is no Python, or no network to install from.
pub fn with(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let all = program::target_folder().join("venvs");
    let folder = all.join(name);
    let words = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&all).map_err(words)?;
    let lock = File::create(all.join(format!("{name}.lock"))).map_err(words)?;
    lock.lock().map_err(words)?;
    let (python, done) = (folder.join("bin/python"), folder.join("packages"));
    let wanted = packages.join("\n");
    if !fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        install(&folder, &python, packages)?;
        fs::write(&done, wanted).map_err(words)?;
    }
    Ok(python)
}

fn install(folder: &Path, python: &Path, packages: &[&str]) -> Result<(), String> {
    if !program::installed("python3") {
        return Err("python3 is not installed".to_owned());
    }
    run(program::command(LIMIT_S, "python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    let mut pip = program::command(LIMIT_S, python);
    run(pip.args(["-m", "pip", "install", "--quiet", "--retries", "1"]).args(packages))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = program::both(&output);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {last}")) }
}

/// Several gigabytes may have to come.
const LIMIT_S: u64 = 900;
