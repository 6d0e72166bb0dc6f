//! The interpreter of programs against the oracle, bit for bit: every collective, algorithm and protocol, drawn from
//! seeds, with edges of as few slots as the plan allows. And bugs planted in it, which must be found.
//!
//! Every failure names its seed: `CCL_SEED=n cargo test -p ccl-kernels-emulator --test interpreter` starts there.

mod case;
mod group;
mod model;
mod planted;
mod switch;
mod world;

use ccl_kernels::shape::Protocol;
use ccl_plan::{Algorithm, Collective, algorithms};

use crate::case::Call;

#[test]
fn every_kind_of_call_gives_the_oracles_bytes() {
    let mut seed = first_seed();
    let (mut turns, mut calls) = (0, 0);
    for (collective, algorithm, protocol) in kinds() {
        seed += 1;
        turns += check(collective, algorithm, protocol, seed);
        calls += 1;
    }
    println!("{calls} calls from seed {}, {turns} turns", first_seed() + 1);
    assert!(calls >= 100, "{calls} kinds of calls");
}

#[test]
fn two_hundred_seeds_give_the_oracles_bytes() {
    for seed in 0..200 {
        let (collective, algorithm) = CORE[seed as usize % CORE.len()];
        check(collective, algorithm, Protocol::ALL[seed as usize / CORE.len() % 3], 1_000_000 + seed);
    }
}

#[test]
#[ignore = "many seeds of every kind: a step of `scripts/test long`"]
fn many_seeds_of_every_kind_give_the_oracles_bytes() {
    let most = std::env::var("CCL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for seed in (first_seed()..).take(most) {
        for (collective, algorithm, protocol) in kinds() {
            check(collective, algorithm, protocol, seed);
        }
    }
}

fn check(collective: Collective, algorithm: Algorithm, protocol: Protocol, seed: u64) -> u64 {
    // Some algorithms serve some n only: another seed draws another.
    let drawn = (0..40).find_map(|more| Call::drawn(collective, algorithm, protocol, seed + (more << 32)));
    let Some(call) = drawn else { panic!("{collective} {algorithm:?} has no n from 2 to 6") };
    call.check().unwrap_or_else(|failed| panic!("{}: {failed:#?}", call.describe()))
}

fn kinds() -> impl Iterator<Item = (Collective, Algorithm, Protocol)> {
    let serves = |collective, algorithm: &Algorithm| {
        (2..=6).any(|n| ccl_plan::Plan::new(collective, *algorithm, n).is_some())
    };
    Collective::ALL.into_iter().flat_map(move |collective| {
        let known = algorithms(collective).iter().filter(move |algorithm| serves(collective, algorithm));
        known.flat_map(move |algorithm| Protocol::ALL.map(|protocol| (collective, *algorithm, protocol)))
    })
}

fn first_seed() -> u64 {
    std::env::var("CCL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

const CORE: [(Collective, Algorithm); 7] = [
    (Collective::AllReduce, Algorithm::Ring),
    (Collective::AllReduce, Algorithm::OneShot),
    (Collective::AllGather, Algorithm::Ring),
    (Collective::ReduceScatter, Algorithm::Pat),
    (Collective::AllToAllV, Algorithm::Direct),
    (Collective::Broadcast, Algorithm::Ring),
    (Collective::Barrier, Algorithm::Dissemination),
];
