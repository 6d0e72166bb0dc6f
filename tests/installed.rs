//! Programs that others wrote and that read what we write, installed by name into folders of cargo's target.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;

/// The folder `KIND/NAME` in cargo's target folder, with what is `wanted`: `install` fills it unless it was filled with the
/// same before. Tests that want the same wait for each other.
pub(crate) fn once(
    kind: &str,
    name: &str,
    wanted: &str,
    install: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let all = program::target_folder().join(kind);
    let folder = all.join(name);
    let words = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&all).map_err(words)?;
    let lock = File::create(all.join(format!("{name}.lock"))).map_err(words)?;
    lock.lock().map_err(words)?;
    let done = folder.join("packages");
    if !fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        install(&folder)?;
        fs::write(&done, wanted).map_err(words)?;
    }
    Ok(folder)
}

/// Runs a command that must succeed; otherwise its last words.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = program::both(&output);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {last}")) }
}
