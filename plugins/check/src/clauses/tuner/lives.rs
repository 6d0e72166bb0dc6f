//! Contexts, side by side and one after the other, and what they leave behind.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::stage::{COLLECTIVES, Stage};
use crate::breach::{Outcome, breach, expect, skip};

pub(super) fn table(stage: &Stage) -> Outcome<String> {
    // What is wrong with a table keeps its plugin from being loaded.
    let plugin = stage.plugin;
    Ok(format!("tuner {}, {}", plugin.name(), plugin.checked_by()))
}

pub(super) fn contexts(stage: &Stage) -> Outcome<String> {
    let mut first = stage.context(8)?;
    let before = first.numbers("all_reduce", 4096)?;
    let mut second = stage.context(2)?;
    second.numbers("all_reduce", 4096)?;
    expect(first.numbers("all_reduce", 4096)? == before, || {
        "expected a context to answer as before when there is another, found another answer".to_owned()
    })?;
    drop(second);
    expect(first.numbers("all_reduce", 4096)? == before, || {
        "expected a context to answer as before when another has ended, found another answer".to_owned()
    })?;
    drop(first);
    stage.context(3)?.numbers("broadcast", 64)?;
    Ok("two at a time, and one after both".to_owned())
}

pub(super) fn threads(stage: &Stage) -> Outcome<String> {
    let advise = |nranks| {
        for _ in 0..20 {
            let mut context = stage.context(nranks)?;
            for collective in COLLECTIVES {
                context.numbers(collective, 65_536)?;
            }
        }
        Ok(())
    };
    let outcomes = thread::scope(|scope| {
        let threads: Vec<_> = (2..6).map(|nranks| scope.spawn(move || advise(nranks))).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|_| breach("expected a thread to return, found a panic"))?;
    }
    Ok("four threads, of each twenty contexts".to_owned())
}

pub(super) fn cycles(stage: &Stage) -> Outcome<String> {
    for _ in 0..CYCLES {
        round(stage)?;
    }
    Ok(format!("{CYCLES} contexts with two questions each"))
}

pub(super) fn leaks(stage: &Stage) -> Outcome<String> {
    // What a plugin makes once, it may keep.
    for _ in 0..3 {
        round(stage)?;
    }
    let before = count()?;
    for _ in 0..ROUNDS {
        round(stage)?;
    }
    // Threads that were told to end may still be about it.
    let begun = Instant::now();
    let mut after = count()?;
    while (after.0 > before.0 + SLACK || after.1 > before.1 + SLACK) && begun.elapsed() < stage.patience() / 2
    {
        thread::sleep(Duration::from_millis(10));
        after = count()?;
    }
    for (what, before, after) in [("descriptors", before.0, after.0), ("threads", before.1, after.1)] {
        expect(after <= before + SLACK, || {
            format!(
                "expected no {what} left after {ROUNDS} contexts, found {before} before and {after} after"
            )
        })?;
    }
    Ok(format!(
        "{} descriptors and {} threads before, {} and {} after {ROUNDS} contexts",
        before.0, before.1, after.0, after.1
    ))
}

fn round(stage: &Stage) -> Outcome<()> {
    let mut context = stage.context(4)?;
    context.numbers("all_reduce", 4096)?;
    context.numbers("all_gather", 1 << 20).map(drop)
}

/// Descriptors and threads of this process.
fn count() -> Outcome<(usize, usize)> {
    let entries = |folder| fs::read_dir(folder).map(Iterator::count);
    match (entries("/proc/self/fd"), entries("/proc/self/task")) {
        (Ok(descriptors), Ok(threads)) => Ok((descriptors, threads)),
        _ => skip("/proc/self cannot be read here"),
    }
}

const CYCLES: usize = 100;
const ROUNDS: usize = 10;
/// What may come and go beside the plugin.
const SLACK: usize = 4;
