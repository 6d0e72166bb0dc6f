//! Several contexts.

use std::sync::mpsc;

use super::context::Stage;
use crate::breach::{Outcome, breach, expect};

pub(super) fn contexts(stage: &Stage) -> Outcome<String> {
    let (mut first, mut second) = (stage.context(0)?, stage.context(1)?);
    let mut told = 0;
    for _ in 0..10 {
        told += first.launch() + second.launch();
    }
    let asked = second.interest().bits();
    first.finalize(0);
    expect(second.interest().bits() == asked, || {
        format!(
            "expected the end of one context to leave the mask of another, {asked:#x}, found {:#x}",
            second.interest().bits()
        )
    })?;
    told += second.launch();
    let mut third = stage.context(2)?;
    told += third.launch() + second.launch();
    second.finalize(0);
    third.finalize(0);
    Ok(format!("three contexts, two at a time, with {told} events"))
}

pub(super) fn unused(stage: &Stage) -> Outcome<String> {
    let (first, mut second) = (stage.context(0)?, stage.context(1)?);
    first.finalize(0);
    second.launch();
    // As after a profiler that did not keep up.
    second.finalize(1_000_000);
    stage.context(0)?.finalize(7);
    Ok("three contexts, two of which heard nothing".to_owned())
}

/// As a host does it: many make communicators, one tells of events and ends contexts.
pub(super) fn threads(stage: &Stage) -> Outcome<String> {
    let (send, made) = mpsc::channel();
    let (told, outcomes) = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS)
            .map(|rank| {
                let send = send.clone();
                scope.spawn(move || {
                    for _ in 0..EACH {
                        // The other end lives until all have ended.
                        let _ = send.send(stage.context(rank)?);
                    }
                    Ok(())
                })
            })
            .collect();
        drop(send);
        let mut told = 0;
        for mut context in made {
            told += (0..5).map(|_| context.launch()).sum::<u64>();
            context.finalize(0);
        }
        let outcomes: Vec<Outcome<()>> = makers
            .into_iter()
            .map(|maker| {
                maker.join().unwrap_or_else(|_| breach("expected a thread to return, found a panic"))
            })
            .collect();
        (told, outcomes)
    });
    outcomes.into_iter().collect::<Outcome<()>>()?;
    Ok(format!("{} contexts of {MAKERS} threads, with {told} events on another", MAKERS * EACH))
}

const MAKERS: u32 = 4;
const EACH: u32 = 8;
