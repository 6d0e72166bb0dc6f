//! Events: what is told, and in which order.

use ccl_plugin::profiler::{Kind, StateKind};

use super::context::{Stage, Told};
use super::script::{call, group, proxy_step};
use crate::breach::{Outcome, expect, skip};

pub(super) fn events(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(0)?;
    let told: u64 = (0..LAUNCHES).map(|_| context.launch()).sum();
    context.finalize(0);
    expect(told > 0, || "expected it to ask for events, found that there are none to tell of".to_owned())?;
    Ok(format!("{told} events of {LAUNCHES} launches"))
}

/// Parents may have been refused, or dropped for want of room: then they are missing, or are grandparents.
pub(super) fn parents(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(0)?;
    for kind in [Kind::Group, Kind::Coll, Kind::P2p, Kind::GroupApi, Kind::CollApi, Kind::P2pApi] {
        let of = if matches!(kind, Kind::Group | Kind::GroupApi) { group() } else { call(Some(0)) };
        let orphan = context.wanted(kind, None, of);
        orphan.into_iter().for_each(|orphan| context.stop(orphan));
    }
    for parent in [None, Some(Kind::Group), Some(Kind::Coll)] {
        let of = if parent == Some(Kind::Group) { group() } else { call(Some(0)) };
        let parent = parent.and_then(|kind| context.wanted(kind, None, of));
        context.exchange(parent.as_ref(), true);
        context.exchange(parent.as_ref(), false);
        if let Some(step) = context.wanted(Kind::ProxyStep, parent.as_ref(), proxy_step(false)) {
            context.states(&step, &[StateKind::RecvWait, StateKind::RecvDone]);
            context.stop(step);
        }
        parent.into_iter().for_each(|parent| context.stop(parent));
    }
    context.finalize(0);
    Ok("every kind without a parent, and messages under groups and collectives".to_owned())
}

pub(super) fn unknown(stage: &Stage) -> Outcome<String> {
    if stage.plugin.is_made_for_nccl() {
        return skip("the adapter knows which kinds its version has");
    }
    let mut context = stage.context(0)?;
    for kind in KINDS_OF_OTHERS {
        let strange = context.start(kind, None, group());
        context.state(&strange, 1000);
        context.stop(strange);
    }
    let known = context.start(Kind::Group as u32, None, group());
    for state in STATES_OF_OTHERS {
        context.state(&known, state);
    }
    context.stop(known);
    context.launch();
    context.finalize(0);
    Ok(format!("kinds {KINDS_OF_OTHERS:?} and states {STATES_OF_OTHERS:?}"))
}

/// Siblings stop in the order of their starts, against it, and mixed; also across contexts.
pub(super) fn order(stage: &Stage) -> Outcome<String> {
    let mut contexts = [stage.context(0)?, stage.context(1)?];
    let family = contexts[1].family()?;
    let orders: [fn(usize) -> usize; 3] = [|i| i, |i| SIBLINGS - 1 - i, |i| i * 7 % SIBLINGS];
    for order in orders {
        let mut open: Vec<Vec<Told>> = Vec::new();
        for context in &mut contexts {
            let parent = context.start_parent(family);
            let mut told = vec![parent];
            for _ in 0..SIBLINGS {
                told.push(context.start_child(family, &parent));
            }
            open.push(told);
        }
        for i in 0..SIBLINGS {
            for (context, told) in contexts.iter_mut().zip(&open) {
                context.stop(told[1 + order(i)]);
            }
        }
        for (context, told) in contexts.iter_mut().zip(&open) {
            context.stop(told[0]);
        }
    }
    contexts.into_iter().for_each(|context| context.finalize(0));
    Ok(format!("{SIBLINGS} siblings in two contexts, stopped in three orders"))
}

pub(super) fn in_flight(stage: &Stage) -> Outcome<String> {
    let mut context = stage.context(0)?;
    let family = context.family()?;
    let parent = context.start_parent(family);
    let open: Vec<_> = (0..MANY).map(|_| context.start_child(family, &parent)).collect();
    let taken = open.iter().filter(|told| told.is_taken()).count();
    // The oldest half last, so that a table that goes round meets them.
    let (old, young) = open.split_at(MANY / 2);
    young.iter().chain(old).for_each(|told| context.stop(*told));
    context.stop(parent);
    context.launch();
    context.finalize(0);
    Ok(format!("{taken} of {MANY} were taken"))
}

const LAUNCHES: usize = 100;
const SIBLINGS: usize = 32;
const MANY: usize = 10_000;
/// Those of NCCL that hosts of this version do not start, and some that nobody has thought of.
const KINDS_OF_OTHERS: [u32; 6] = [6, 7, 11, 14, 63, u32::MAX];
const STATES_OF_OTHERS: [u32; 4] = [0, 22, 30, u32::MAX];
