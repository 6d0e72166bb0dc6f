//! What a rank sends to all others, stored once in multicast memory.

use std::collections::BTreeMap;

use ccl_kernels::shape::{self, Protocol};
use ccl_plan::{Algorithm, Collective, Place, Plan, Rank, algorithms};

use crate::case::{Call, Draw};

/// How many seeds may pass before a bug is found.
const MOST_SEEDS: u64 = 200;

/// The kinds of calls in which somebody sends the same to all others.
fn kinds() -> Vec<(Collective, Algorithm)> {
    let sends = |plan: &Plan| {
        let shared = |place: u32| {
            let program =
                plan.program(Place(place), Place(0)).check(plan.n()).expect("a plan of the library");
            shape::shared(&program, plan.n(), Rank(place), Rank(0), None)
        };
        (0..plan.n()).any(|place| shared(place) != 0)
    };
    let any = |collective, algorithm| {
        (3..=6).filter_map(|n| Plan::new(collective, algorithm, n)).any(|plan| sends(&plan))
    };
    let all =
        |collective: Collective| algorithms(collective).iter().map(move |algorithm| (collective, *algorithm));
    Collective::ALL
        .into_iter()
        .flat_map(all)
        .filter(|(collective, algorithm)| any(*collective, *algorithm))
        .collect()
}

/// A call of this kind with multicast memory.
fn drawn((collective, algorithm): (Collective, Algorithm), seed: u64) -> Option<Call> {
    let mut call = Call::drawn(collective, algorithm, Protocol::Simple, seed)?;
    call.wiring.shared_slots = 1 + Draw::new(seed).below(4) as u32;
    Some(call)
}

#[test]
fn what_all_are_sent_gives_the_oracles_bytes() {
    let kinds = kinds();
    let mut shared: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..40 * kinds.len() as u64 {
        let kind = kinds[seed as usize % kinds.len()];
        let Some(call) = drawn(kind, 7_000_000 + seed) else { continue };
        let (_, sent) = call.checked().unwrap_or_else(|failed| panic!("{}: {failed:#?}", call.describe()));
        *shared.entry(format!("{} {:?}", kind.0, kind.1)).or_default() += sent;
        assert!(sent == 0 || call.case.n > 2, "{}", call.describe());
    }
    println!("payloads that went to all at once: {shared:?}");
    assert!(kinds.len() >= 5 && shared.len() == kinds.len(), "{kinds:?}");
    assert!(shared.values().all(|sent| *sent > 0), "{shared:?}");
}

/// A slot that is not free keeps nobody waiting: its payload goes the usual way.
#[test]
fn without_a_free_slot_edges_serve() {
    let (mut few, mut many) = (0, 0);
    for seed in 0..40 {
        let Some(mut call) = drawn((Collective::Broadcast, Algorithm::Direct), 7_100_000 + seed) else {
            continue;
        };
        for (slots, sent) in [(1, &mut few), (64, &mut many)] {
            call.wiring.shared_slots = slots;
            *sent += call.checked().unwrap_or_else(|failed| panic!("{}: {failed:#?}", call.describe())).1;
        }
    }
    assert!(0 < few && few < many, "{few} and {many}");
}

/// What all are sent is shared rather than lent; the rest of a call that lends is lent.
#[test]
fn lending_calls_share_and_other_protocols_do_not() {
    let kind = (Collective::AllGather, Algorithm::Direct);
    let sent = |call: Call| match call.checked() {
        Ok((_, sent)) => sent,
        Err(failed) => panic!("{}: {failed:#?}", call.describe()),
    };
    let mut lending = 0;
    for seed in 0..30 {
        let Some(mut call) = drawn(kind, 7_200_000 + seed) else { continue };
        call.wiring.lends = true;
        lending += sent(call);
        let protocol = Protocol::ALL[1 + seed as usize % 2];
        let Some(mut call) = Call::drawn(kind.0, kind.1, protocol, 7_200_000 + seed) else { continue };
        call.wiring.shared_slots = 2;
        assert_eq!(sent(call), 0);
    }
    assert!(lending > 0);
}

#[test]
fn planted_bugs_are_found() {
    let planted = [
        (3, "a message is counted before it is there"),
        (19, "nothing is released with the count of what is shared"),
        (20, "a slot is used again before all have read it"),
        (21, "receivers look into slots of their own"),
        (22, "the next payload is taken for the last one"),
    ];
    let kinds = kinds();
    for (number, text) in planted {
        let found = (0..MOST_SEEDS).find(|seed| {
            let Some(mut call) = drawn(kinds[*seed as usize % kinds.len()], 7_300_000 + seed) else {
                return false;
            };
            call.options.plant = number;
            call.options.most_turns = 3_000_000;
            call.check().is_err()
        });
        println!("{number}: {text}: found by seed {found:?}");
        assert!(found.is_some(), "{number}: {text}: not found by {MOST_SEEDS} seeds");
    }
}
