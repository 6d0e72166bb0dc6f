//! How it behaves in the process it is in.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::Stage;
use super::source::Source;
use crate::breach::{Outcome, breach, expect, skip};

pub(super) fn threads(stage: &Stage) -> Outcome<String> {
    let source = stage.source()?;
    let round = || -> Outcome<()> {
        for _ in 0..ROUNDS {
            for name in &stage.names {
                source.ask(name, Some("1"))?;
            }
        }
        Ok(())
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(round)).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|_| breach("expected getEnv to return on every thread, found a panic"))?;
    }
    Ok(format!("{THREADS} threads, {ROUNDS} times every name each"))
}

pub(super) fn prompt(stage: &Stage) -> Outcome<String> {
    let source = stage.source()?;
    let mut slowest = Duration::ZERO;
    for name in &stage.names {
        let took = middle(&source, name)?;
        expect(took < SLOW, || {
            format!("{name}: expected getEnv to return at once, found it takes {took:?}")
        })?;
        slowest = slowest.max(took);
    }
    Ok(format!("at most {slowest:.1?} in the middle of {TRIES} tries"))
}

pub(super) fn environment(stage: &Stage) -> Outcome<String> {
    let before = surroundings();
    let source = stage.source()?;
    for name in &stage.names {
        source.ask(name, Some("1"))?;
    }
    drop(source);
    let after = surroundings();
    let changed = before.iter().chain(&after).find(|(name, _)| before.get(*name) != after.get(*name));
    match changed {
        Some((name, _)) => breach(format!(
            "expected {name:?} to stay {:?}, found {:?}: other threads may be reading it",
            before.get(name),
            after.get(name)
        )),
        None => Ok(format!("{} variables and the folder", before.len() - 1)),
    }
}

pub(super) fn leaks(stage: &Stage) -> Outcome<String> {
    let (Some(files), Some(tasks)) = (entries("/proc/self/fd"), entries("/proc/self/task")) else {
        return skip("there is no /proc");
    };
    let source = stage.source()?;
    for name in &stage.names {
        source.ask(name, None)?;
    }
    drop(source);
    for (what, folder, before) in
        [("descriptors", "/proc/self/fd", files), ("threads", "/proc/self/task", tasks)]
    {
        let begun = Instant::now();
        let mut after = entries(folder).unwrap_or(before);
        // A thread that was joined may be in the list for a moment.
        while after > before && begun.elapsed() < SETTLE {
            thread::sleep(Duration::from_millis(5));
            after = entries(folder).unwrap_or(before);
        }
        expect(after <= before, || {
            format!("expected no {what} left after finalize, found {before} before init and {after} after")
        })?;
    }
    Ok(format!("{files} descriptors and {tasks} threads before and after"))
}

/// The time of one call, the middle of several.
fn middle(source: &Source, name: &str) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let begun = Instant::now();
        source.ask(name, None)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[TRIES / 2])
}

/// The environment, and the working folder under a name that no variable has.
fn surroundings() -> BTreeMap<OsString, OsString> {
    let folder = env::current_dir().unwrap_or_default().into_os_string();
    env::vars_os().chain([(OsString::from("the working folder="), folder)]).collect()
}

fn entries(folder: &str) -> Option<usize> {
    fs::read_dir(folder).ok().map(Iterator::count)
}

const THREADS: usize = 4;
const ROUNDS: usize = 20;
const TRIES: usize = 5;
/// A call that takes so long holds up whoever makes a communicator.
const SLOW: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_secs(1);
