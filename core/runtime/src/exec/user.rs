//! Algorithms of the user's, from files.

use std::path::Path;

use ccl_plan::program::Program;
use ccl_plan::select::UserAlgorithm;
use ccl_plan::verify::{Depth, case_at, prove};
use ccl_plan::{Plan, Rank};

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

/// Walks a program that was verified from the root or peer that it is used with for the first time, where not all were
/// tried before it was chosen.
pub(super) fn prove_at(plan: &Plan, root: Rank) -> Result<()> {
    let (n, collective) = (plan.n(), plan.collective());
    let names_root = collective.rooted() || collective.is_message();
    if n <= MOST_RANKS_WALKED || !names_root {
        return Ok(());
    }
    prove(plan, &case_at(plan, root)).map(drop).map_err(|witness| {
        Error::usage(
            format!(
                "expected CCL_ALGO_FILE to hold an algorithm for {collective} at {root}, found: {witness}"
            ),
            "correct the program, or leave it out of CCL_ALGO_FILE",
        )
    })
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

/// For more ranks fewer cases are walked, and roots one by one.
const MOST_RANKS_WALKED: u32 = 16;

#[cfg(test)]
mod tests {
    use ccl_plan::{Algorithm, Collective, Place};

    use super::*;
    use crate::error::Fault;

    #[test]
    fn a_root_that_was_not_tried_is_tried_when_it_is_used() {
        let of_root = |n| {
            let ring = Plan::new(Collective::Broadcast, Algorithm::Ring, n).unwrap();
            Plan::of_program(ring.program(Place(0), Place(0)), n).unwrap()
        };
        // What the root does makes no broadcast where all do it.
        let error = prove_at(&of_root(17), Rank(3)).unwrap_err();
        assert_eq!(error.fault(), &Fault::Usage);
        assert!(error.to_string().contains("an algorithm for broadcast at 3"), "{error}");
        // These were tried before.
        prove_at(&of_root(16), Rank(3)).unwrap();
    }
}
