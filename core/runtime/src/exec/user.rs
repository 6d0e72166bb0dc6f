//! Algorithms of the user's, from files.

use std::path::Path;

use ccl_plan::program::Program;
use ccl_plan::select::UserAlgorithm;
use ccl_plan::verify::Depth;

use crate::config::Config;
use crate::error::{Error, Result};

/// The programs in the files of `CCL_ALGO_FILE`, verified for `n` ranks; none for one rank, which has nobody to
/// speak to.
pub(super) fn algorithms(config: &Config, n: u32) -> Result<Vec<UserAlgorithm>> {
    let mut known: Vec<UserAlgorithm> = Vec::new();
    for file in config.algo_file().iter().filter(|_| n > 1) {
        let program = read_program(Path::new(file))?;
        let collective = program.collective;
        if known.iter().any(|other| other.plan().collective() == collective) {
            return Err(Error::usage(
                format!(
                    "expected CCL_ALGO_FILE to hold one program for {collective}, found a second in {file}"
                ),
                "name one file for each collective",
            ));
        }
        let depth = if n <= MOST_RANKS_WALKED { Depth::Each } else { Depth::Quick };
        let verified = UserAlgorithm::of_program(program, n, depth).map_err(|refusal| {
            Error::usage(
                format!(
                    "expected CCL_ALGO_FILE to hold an algorithm for {n} ranks, found in {file}: {refusal}"
                ),
                "`ccl plan verify FILE` tries it for every number of ranks",
            )
        })?;
        known.push(verified);
    }
    Ok(known)
}

/// What all ranks' files must have in common: a digest of each program.
pub(crate) fn digest(config: &Config) -> Result<String> {
    let digests: Result<Vec<String>> = config
        .algo_file()
        .iter()
        .map(|file| read_program(Path::new(file)).map(|p| format!("{} {:016x}", p.name, p.fingerprint())))
        .collect();
    Ok(digests?.join(", "))
}

/// Reads a program in the text form, which the manual describes. It is not checked.
///
/// # Errors
///
/// No such file, or no program in it: the line, with what was expected there.
pub fn read_program(file: &Path) -> Result<Program> {
    let shown = file.display();
    let advice = "the manual's chapter on programs describes the text form";
    let text = std::fs::read_to_string(file).map_err(|error| {
        Error::usage(format!("expected a file with a program, found {shown}: {error}"), advice)
    })?;
    text.parse()
        .map_err(|error| Error::usage(format!("expected a program, found in {shown}, {error}"), advice))
}

/// For more ranks fewer cases are walked.
const MOST_RANKS_WALKED: u32 = 16;
