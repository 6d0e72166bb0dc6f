//! What is answered, and for how long.

use super::Stage;
use crate::breach::{Outcome, breach};

/// Whoever loads a plugin checks its table.
pub(super) fn table(stage: &Stage) -> Outcome<String> {
    Ok(format!("{}, version {}", stage.table.how(), stage.table.entries().version))
}

pub(super) fn answers(stage: &Stage) -> Outcome<String> {
    let source = stage.source()?;
    let mut answered = 0;
    for name in &stage.names {
        for found in [None, Some("1"), Some("")] {
            answered += usize::from(source.ask(name, found)?.is_some());
        }
    }
    Ok(format!("{} names, each with and without a value; {answered} answers of its own", stage.names.len()))
}

pub(super) fn odd_names(stage: &Stage) -> Outcome<String> {
    let source = stage.source()?;
    let long = "N".repeat(LONG);
    let names = ["", " ", "=", "CCL_", "CCL_NO_SUCH_SETTING", "%s%n", "../../etc", "Ä\u{2028}", &long];
    for name in names {
        for found in [None, Some("a value"), Some(&*long)] {
            source.ask(name, found)?;
        }
    }
    Ok(format!("{} names, the longest of {LONG} bytes", names.len()))
}

pub(super) fn lasting(stage: &Stage) -> Outcome<String> {
    let source = stage.source()?;
    let mut given = Vec::new();
    for _ in 0..ROUNDS {
        for name in &stage.names {
            given.extend(source.ask(name, None)?.map(|answer| (name, answer)));
        }
    }
    for (name, answer) in &given {
        if let Some(change) = source.change(answer) {
            return breach(format!("{name}: {change}: answers live until finalize"));
        }
    }
    Ok(format!("{} answers in {ROUNDS} rounds", given.len()))
}

const ROUNDS: usize = 3;
const LONG: usize = 10_000;
