//! Algorithms that arrive as text: checked, verified, and then candidates like all others.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::cost::Counted;
use crate::level::Level;
use crate::plan::Plan;
use crate::program::{CheckError, Program, TextError};
use crate::verify::{Depth, Witness, verify};

/// A program of the user's that every rank runs, verified for one number of ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct UserAlgorithm {
    plan: Plan,
    level: Level,
    counted: Counted,
}

/// Why a text is not an algorithm for so many ranks.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// It is no program.
    Text(TextError),
    /// The checker refuses it.
    Check {
        /// What it objects to.
        error: CheckError,
        /// The text of the instruction, if it is one.
        instruction: Option<String>,
    },
    /// The verifier found a case in which it fails.
    Verify(Box<Witness>),
}

impl UserAlgorithm {
    /// Reads, checks and verifies a program for `n` ranks.
    ///
    /// # Errors
    ///
    /// The first objection, with the line, or the instruction and the smallest case in which it fails.
    pub fn new(text: &str, n: u32, depth: Depth) -> Result<UserAlgorithm, Refusal> {
        UserAlgorithm::of_program(text.parse().map_err(Refusal::Text)?, n, depth)
    }

    /// As [`UserAlgorithm::new`] of a program that has been read.
    ///
    /// # Errors
    ///
    /// As [`UserAlgorithm::new`].
    pub fn of_program(program: Program, n: u32, depth: Depth) -> Result<UserAlgorithm, Refusal> {
        let plan = Plan::of_program(program.clone(), n).map_err(|error| {
            let instruction = error.instruction.map(|at| program.instruction_text(at));
            Refusal::Check { error, instruction }
        })?;
        let report = verify(&plan, depth).map_err(Refusal::Verify)?;
        let level = report.findings.values().map(|finding| finding.level).min().unwrap_or_default();
        let counted = Counted::of(&plan).map_err(|failure| {
            let error = CheckError {
                instruction: failure.at.map(|at| at.instruction),
                expected: "a program that completes".into(),
                found: format!("{failure}"),
            };
            Refusal::Check { error, instruction: None }
        })?;
        Ok(UserAlgorithm { plan, level, counted })
    }

    /// The plan, of which every place runs the program.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the order of its folds promises.
    pub fn level(&self) -> Level {
        self.level
    }

    /// What it costs.
    pub fn counted(&self) -> &Counted {
        &self.counted
    }
}

impl Refusal {
    /// The index of the instruction at fault, if it was read and one is.
    pub fn instruction(&self) -> Option<usize> {
        match self {
            Refusal::Text(_) => None,
            Refusal::Check { error, .. } => error.instruction,
            Refusal::Verify(witness) => witness.failure.at.map(|at| at.instruction),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Text(error) => error.fmt(f),
            Refusal::Check { error, instruction: None } => error.fmt(f),
            Refusal::Check { error, instruction: Some(text) } => write!(f, "{error}\n  in: {text}"),
            Refusal::Verify(witness) => witness.fmt(f),
        }
    }
}

impl core::error::Error for Refusal {}
