//! Threads of the host, and what a plugin leaves behind.

use std::fs;

use crate::breach::{Outcome, breach, expect, skip};
use crate::clauses::net::pair::{Message, Pair, Receiving, Sending, Stage, WINDOW};

pub(super) fn threads(stage: &Stage) -> Outcome<String> {
    let context = stage.context()?;
    let first = stage.pair_between(&context, &context)?;
    let second = stage.pair_between(&context, &context)?;
    let messages =
        |seed: u64| (0..100).map(move |i| Message::new(seed + i, (i * 501) as usize, 0)).collect::<Vec<_>>();
    let whole = |mut pair: Pair, seed| stage.carry(&mut pair, &messages(seed));
    let outcomes = std::thread::scope(|scope| {
        let threads = [scope.spawn(move || whole(first, 1)), scope.spawn(move || whole(second, 1000))];
        threads.map(|thread| thread.join())
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|_| breach("expected a thread to return, found a panic"))?;
    }
    let Pair { mut send, mut recv } = stage.pair_between(&context, &context)?;
    let outcomes = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut sending = Sending::new(messages(7).into_iter());
            stage.wait("100 sends on a thread of their own", || {
                sending.step(&mut send, WINDOW)?;
                Ok(sending.is_over())
            })?;
            Ok(send)
        });
        let groups: Vec<_> = messages(7).into_iter().map(|message| vec![message]).collect();
        let mut receiving = Receiving::new(&groups);
        let received = stage.wait("100 receives on a thread of their own", || {
            receiving.step(&mut recv, WINDOW)?;
            Ok(receiving.is_over())
        });
        (sender.join(), received)
    });
    match outcomes {
        (Ok(sent), received) => received.and(sent.map(drop))?,
        (Err(_), _) => return breach("expected a thread to return, found a panic"),
    }
    Ok("two connections on two threads, the two ends of one on two more".to_owned())
}

pub(super) fn cycles(stage: &Stage) -> Outcome<String> {
    for seed in 0..CYCLES {
        let mut pair = stage.pair()?;
        stage.carry(&mut pair, &[Message::new(seed, 500, 0)])?;
    }
    Ok(format!("{CYCLES} contexts with a connection and a message each"))
}

pub(super) fn leaks(stage: &Stage) -> Outcome<String> {
    // What a plugin makes once, it may keep.
    for _ in 0..3 {
        round(stage)?;
    }
    let before = Count::now()?;
    for _ in 0..ROUNDS {
        round(stage)?;
    }
    let mut after = Count::now()?;
    // Threads that were told to end may still be about it.
    let settled = stage.wait("threads to end", || {
        after = Count::now()?;
        Ok(after.descriptors <= before.descriptors + SLACK && after.threads <= before.threads + SLACK)
    });
    let kept = |what: &str, before: usize, after: usize| {
        expect(after <= before + SLACK, || {
            format!(
                "expected no {what} left after {ROUNDS} contexts of two connections, found {before} before and {after} after"
            )
        })
    };
    kept("descriptors", before.descriptors, after.descriptors)?;
    kept("threads", before.threads, after.threads)?;
    settled?;
    Ok(format!(
        "{} descriptors and {} threads before, {} and {} after {ROUNDS} contexts",
        before.descriptors, before.threads, after.descriptors, after.threads
    ))
}

fn round(stage: &Stage) -> Outcome<()> {
    let context = stage.context()?;
    for seed in 0..2 {
        let mut pair = stage.pair_between(&context, &context)?;
        stage.carry(&mut pair, &[Message::new(seed, 500, 0)])?;
    }
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
}

const CYCLES: u64 = 100;
const ROUNDS: usize = 10;
/// What may come and go beside the plugin.
const SLACK: usize = 4;
