//! `ccl plan verify FILE`: an algorithm of one's own, for every number of ranks.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use ccl::Result;
use ccl::exec::read_program;
use ccl::plan::program::Program;
use ccl::plan::select::UserAlgorithm;
use ccl::plan::verify::mutate::mutations;
use ccl::plan::verify::{Depth, VerifyReport};

use super::verify::Args;
use crate::text;

/// Verifies each file; status 1 if one holds for no number of ranks of the range, or a damaged one is accepted.
pub(super) fn main(args: &Args) -> Result<ExitCode> {
    let mut all_hold = true;
    for file in &args.files {
        let outcome = verify(file, args)?;
        all_hold &= outcome.refused.is_empty() && !outcome.held.is_empty();
        text::print(&if args.json { outcome.json(file) } else { outcome.text(file) })?;
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the verifier said about one file.
struct Outcome {
    name: String,
    /// For each number of ranks, the level of determinism.
    held: Vec<(u32, &'static str)>,
    refused: Vec<(u32, String)>,
    damaged: VerifyReport,
}

fn verify(file: &Path, args: &Args) -> Result<Outcome> {
    let program = read_program(file)?;
    let mut outcome = Outcome {
        name: program.name.clone(),
        held: Vec::new(),
        refused: Vec::new(),
        damaged: VerifyReport::default(),
    };
    for n in args.min_ranks.max(2)..=args.max_ranks {
        match with_damage(program.clone(), n, args) {
            Ok((level, report)) => {
                outcome.held.push((n, level));
                outcome.damaged += &report;
            }
            Err(refusal) => outcome.refused.push((n, refusal)),
        }
    }
    Ok(outcome)
}

/// Verifies for `n` ranks, also that damage is noticed.
fn with_damage(program: Program, n: u32, args: &Args) -> Result<(&'static str, VerifyReport), String> {
    let depth = if args.quick { Depth::Quick } else { Depth::Each };
    let user = UserAlgorithm::of_program(program, n, depth).map_err(|refusal| refusal.to_string())?;
    let count = if n <= MOST_DAMAGED_RANKS { args.mutations } else { 0 };
    let report = mutations(user.plan(), args.seed, count).map_err(|witness| witness.to_string())?;
    Ok((user.level().name(), report))
}

impl Outcome {
    fn text(&self, file: &Path) -> String {
        let mut text = format!("{} in {}\n", self.name, file.display());
        let numbers = |all: &[(u32, &str)], level: &str| {
            let of_level = all.iter().filter(|(_, reached)| *reached == level);
            of_level.map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(" ")
        };
        for level in ["world", "size", "run"] {
            let ranks = numbers(&self.held, level);
            if !ranks.is_empty() {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "holds, determinism {level}, for n = {ranks}");
            }
        }
        let VerifyReport { mutations, rejected, equivalent, .. } = &self.damaged;
        let _ = writeln!(text, "{mutations} damaged programs: {rejected} rejected, {equivalent} equivalent");
        for (n, refusal) in &self.refused {
            let _ = writeln!(text, "REFUSED for n = {n}: {refusal}");
        }
        text
    }

    fn json(&self, file: &Path) -> String {
        let held = self.held.iter().map(|(n, level)| serde_json::json!({ "n": n, "determinism": level }));
        let refused = self.refused.iter().map(|(n, why)| serde_json::json!({ "n": n, "why": why }));
        let value = serde_json::json!({
            "file": file,
            "name": self.name,
            "held": held.collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(),
            "mutations": self.damaged.mutations,
            "rejected": self.damaged.rejected,
            "equivalent": self.damaged.equivalent,
        });
        format!("{value}\n")
    }
}

/// Damage shows with a few ranks or never.
const MOST_DAMAGED_RANKS: u32 = 16;
