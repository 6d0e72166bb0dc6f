//! The CUDA tool chain: where its programs are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A compiler that answered, with the programs beside it.
pub(crate) struct Toolchain {
    /// The compiler.
    pub(crate) nvcc: PathBuf,
    /// What it says it is: the last line but one of its `--version`, with release and build.
    pub(crate) version: String,
}

impl Toolchain {
    /// The first compiler that runs: `CCL_NVCC`; then `CUDA_HOME`, `CUDA_PATH`, `PATH` and the usual folder; then what
    /// `scripts/setup` installed below cargo's folder `target`.
    ///
    /// # Errors
    ///
    /// In words: `CCL_NVCC` does not run, or nothing was found.
    pub(crate) fn find(
        variable: impl Fn(&str) -> Option<OsString>,
        target: &Path,
    ) -> Result<Toolchain, String> {
        if let Some(named) = variable("CCL_NVCC") {
            let at = PathBuf::from(named);
            return Toolchain::at(at.clone())
                .ok_or(format!("CCL_NVCC is {}, which does not run", at.display()));
        }
        let found = installed(variable).into_iter().chain(packaged(target)).find_map(Toolchain::at);
        found.ok_or_else(|| NOTHING_FOUND.to_owned())
    }

    fn at(nvcc: PathBuf) -> Option<Toolchain> {
        let output = Command::new(&nvcc).arg("--version").output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        let version = said.lines().find(|line| line.contains("release"))?.trim().to_owned();
        output.status.success().then_some(Toolchain { nvcc, version })
    }

    /// A program beside the compiler, such as `fatbinary`.
    pub(crate) fn beside(&self, program: &str) -> PathBuf {
        self.nvcc.with_file_name(program)
    }
}

/// Where an installed CUDA may be, in the order of asking.
fn installed(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(&variable);
    let homes = homes.map(|home| PathBuf::from(home).join("bin"));
    let path = variable("PATH").unwrap_or_default();
    let folders = homes.chain(std::env::split_paths(&path)).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders.map(|folder| folder.join("nvcc")).filter(|nvcc| nvcc.is_file()).collect()
}

/// Where `scripts/setup` installs below cargo's folder.
fn packaged(target: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(target.join(VENV).join("lib")).ok()?;
    let trees = pythons.flatten().map(|python| python.path().join("site-packages/nvidia/cu13"));
    trees.map(|tree| tree.join("bin/nvcc")).find(|nvcc| nvcc.is_file())
}

/// Below cargo's folder.
const VENV: &str = "venvs/cuda";

const NOTHING_FOUND: &str = "no nvcc: set CCL_NVCC or CUDA_HOME, or let scripts/setup install it";
