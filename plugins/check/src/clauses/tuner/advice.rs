//! What a tuner answers.

use std::time::{Duration, Instant};

use super::stage::{COLLECTIVES, Stage, call, candidate, candidates};
use crate::breach::{Outcome, breach, expect};

pub(super) fn collectives(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(8)?;
    for collective in COLLECTIVES {
        for bytes in [8, 4096, 1 << 20, 1 << 30] {
            context.numbers(collective, bytes)?;
        }
    }
    Ok(format!("{} collectives of four sizes", COLLECTIVES.len()))
}

pub(super) fn sizes(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(8)?;
    let powers = (0..64).map(|power| 1_u64 << power);
    for bytes in powers.chain([0, 3, 1_000_003, u64::MAX - 1, u64::MAX]) {
        context.numbers("all_reduce", bytes)?;
    }
    Ok("all-reduces of 0 to 2^64 - 1 bytes".to_owned())
}

pub(super) fn names(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(8)?;
    let long = "x".repeat(300);
    for unknown in ["all_to_some", "", long.as_str()] {
        let offered = candidates();
        let advised = context.advise(&call(unknown, 4096), &offered)?;
        expect(advised == offered, || {
            format!("expected no opinion on a collective named `{unknown}`, found one")
        })?;
        let offered = [candidate(unknown, 700.0), candidate("ring", 900.0)];
        context.advise(&call("all_reduce", 4096), &offered)?;
    }
    Ok("collectives and algorithms of names that there are not".to_owned())
}

pub(super) fn counts(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(8)?;
    for count in [1, 2, 3, 64, 1000] {
        let offered: Vec<_> = candidates().into_iter().cycle().take(count).collect();
        let advised = context.advise(&call("all_reduce", 4096), &offered)?;
        expect(advised.iter().all(|one| !one.cost_ns.is_nan()), || {
            format!("expected costs that are numbers for {count} candidates, found one that is none")
        })?;
    }
    Ok("1 to 1000 candidates".to_owned())
}

pub(super) fn same(stage: &Stage) -> Outcome<String> {
    let (mut first, mut second) = (stage.context(8)?, stage.context(8)?);
    for collective in COLLECTIVES {
        for bytes in [64, 4096, 65_536, 1 << 24] {
            let once = first.numbers(collective, bytes)?;
            let again = [first.numbers(collective, bytes)?, second.numbers(collective, bytes)?];
            if again.iter().any(|again| *again != once) {
                return breach(format!(
                    "expected the same answer for {collective} of {bytes} bytes each time, found another"
                ));
            }
        }
    }
    Ok("each question three times, in two contexts".to_owned())
}

pub(super) fn in_time(stage: &Stage) -> Outcome<String> {
    let limit = LIMIT.min(stage.patience());
    let begun = Instant::now();
    let mut context = stage.context(8)?;
    let mut questions = 0;
    for collective in COLLECTIVES {
        for power in 3..39 {
            for bytes in [1 << power, 3 << (power - 1)] {
                context.numbers(collective, bytes)?;
                questions += 1;
                expect(begun.elapsed() <= limit, || {
                    format!(
                        "expected all questions of a communicator answered within {limit:?}, found {questions} of {ALL}"
                    )
                })?;
            }
        }
    }
    drop(context);
    Ok(format!("{questions} questions took {:.1?}", begun.elapsed()))
}

pub(super) fn log(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(8)?;
    for collective in COLLECTIVES {
        context.advise(&call(collective, 4096), &candidates())?;
    }
    drop(context);
    let said = stage.said();
    match said.iter().find(|line| line.contains(['\n', '\r', '\u{fffd}'])) {
        Some(line) => breach(format!("expected lines of UTF-8 without line ends, found {line:?}")),
        None => Ok(format!("{} lines", said.len())),
    }
}

/// What a communicator waits for its tuner.
const LIMIT: Duration = Duration::from_secs(10);
const ALL: usize = COLLECTIVES.len() * 36 * 2;
