//! What a profiler uses, and what it leaves behind.

use std::fs;
use std::time::{Duration, Instant};

use super::context::Stage;
use crate::breach::{Outcome, expect, skip};

pub(super) fn cycles(stage: &Stage) -> Outcome<String> {
    for cycle in 0..CYCLES {
        round(stage, cycle)?;
    }
    Ok(format!("{CYCLES} contexts with a launch each"))
}

pub(super) fn leaks(stage: &Stage) -> Outcome<String> {
    // What a plugin makes once, it may keep.
    (0..3).try_for_each(|cycle| round(stage, cycle))?;
    let before = Count::now()?;
    (0..ROUNDS).try_for_each(|cycle| round(stage, cycle))?;
    let mut after = Count::now()?;
    let begun = Instant::now();
    // Threads that were told to end may still be about it.
    while after.is_more_than(&before) && begun.elapsed() < stage.pulse.patience / 2 {
        std::thread::sleep(Duration::from_millis(5));
        after = Count::now()?;
    }
    for (what, before, after) in
        [("descriptors", before.descriptors, after.descriptors), ("threads", before.threads, after.threads)]
    {
        expect(after <= before + SLACK, || {
            format!(
                "expected no {what} left after {ROUNDS} contexts, found {before} before and {after} after"
            )
        })?;
    }
    Ok(format!(
        "{} descriptors and {} threads before, {} and {} after {ROUNDS} contexts",
        before.descriptors, before.threads, after.descriptors, after.threads
    ))
}

/// What a start and its stop take, without and with children. Told, never judged.
pub(super) fn speed(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(0)?;
    let family = context.family()?;
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..PAIRS {
            let parent = context.start_parent(family);
            let child = context.start_child(family, &parent);
            context.stop(child);
            context.stop(parent);
        }
        best = best.min(begun.elapsed() / (2 * PAIRS));
    }
    context.finalize(0);
    Ok(format!("{best:.0?} for a start and its stop, of {} events", 2 * PAIRS * ROUNDS))
}

fn round(stage: &Stage, cycle: u32) -> Outcome<()> {
    let mut context = stage.context(cycle % 4)?;
    context.launch();
    context.finalize(0);
    Ok(())
}

/// What this process has.
struct Count {
    descriptors: usize,
    threads: usize,
}

impl Count {
    fn now() -> Outcome<Count> {
        let entries = |folder| fs::read_dir(folder).map(Iterator::count);
        match (entries("/proc/self/fd"), entries("/proc/self/task")) {
            (Ok(descriptors), Ok(threads)) => Ok(Count { descriptors, threads }),
            _ => skip("/proc/self cannot be read here"),
        }
    }

    fn is_more_than(&self, before: &Count) -> bool {
        self.descriptors > before.descriptors + SLACK || self.threads > before.threads + SLACK
    }
}

const CYCLES: u32 = 100;
const ROUNDS: u32 = 20;
const PAIRS: u32 = 1000;
/// What may come and go beside the plugin.
const SLACK: usize = 4;
