//! Python programs that others wrote and that read what we write, each with its packages in a folder of its own.

use std::path::{Path, PathBuf};

use crate::{installed, program};

/// A Python that has these packages. They are installed by name into `venvs/NAME` in cargo's target folder when they
/// are not there yet; tests that want the same wait for each other.
///
/// # Errors
///
/// In words: there is no Python, or no network to install from.
pub fn with(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = installed::once("venvs", name, &packages.join("\n"), |folder| install(folder, packages))?;
    Ok(python(&folder))
}

fn install(folder: &Path, packages: &[&str]) -> Result<(), String> {
    if !program::installed("python3") {
        return Err("python3 is not installed".to_owned());
    }
    installed::run(program::command(LIMIT_S, "python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    let mut pip = program::command(LIMIT_S, python(folder));
    installed::run(pip.args(["-m", "pip", "install", "--quiet", "--retries", "1"]).args(packages))
}

fn python(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

/// Several gigabytes may have to come.
const LIMIT_S: u64 = 900;
