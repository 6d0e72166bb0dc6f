//! Bugs planted in the interpreter and its edges, each found by some seed.

use ccl_kernels::layout::DeviceFault;
use ccl_kernels::shape::Protocol;
use ccl_plan::machine::Stage;
use ccl_plan::{Algorithm, Collective, Rank};

use crate::case::Call;
use crate::world::World;

/// How many seeds may pass before a bug is found.
const MOST_SEEDS: u64 = 60;

/// The number in the source, what is wrong, and a kind of call in which it matters.
const PLANTED: [(u32, &str, Collective, Algorithm, Protocol); 13] = [
    (1, "credits are ignored", Collective::Broadcast, Algorithm::Ring, Protocol::Simple),
    (2, "a credit is given before all threads have read", Collective::Broadcast, Algorithm::Ring, Protocol::Simple),
    (3, "a message is counted before it is there", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (4, "only the first flag of a line is looked at", Collective::AllReduce, Algorithm::Ring, Protocol::Ll),
    (5, "flags are the same in every round of slots", Collective::Broadcast, Algorithm::Ring, Protocol::Ll),
    (5, "flags are the same in every round of slots", Collective::Broadcast, Algorithm::Ring, Protocol::Ll128),
    (6, "threads do not wait for the one that waits", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (7, "the number of messages is not carried on", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (8, "another edge's head is moved", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (9, "one line's flag stands for four", Collective::AllReduce, Algorithm::Ring, Protocol::Ll128),
    (11, "lanes do not wait for each other", Collective::AllReduce, Algorithm::TwoShot, Protocol::Simple),
    (15, "a step is made where another is still told of", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (16, "nothing is released with the count", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
];

#[test]
fn planted_bugs_are_found() {
    let mut missed = Vec::new();
    for (number, text, collective, algorithm, protocol) in PLANTED {
        let found = (0..MOST_SEEDS).find(|seed| {
            let Some(mut call) = Call::drawn(collective, algorithm, protocol, 2_000_000 + seed) else { return false };
            call.options.plant = number;
            call.options.most_turns = 3_000_000;
            call.check().is_err()
        });
        match found {
            Some(seed) => println!("{number}: {text}: found by seed {seed}"),
            None => missed.push((number, text)),
        }
    }
    assert!(missed.is_empty(), "not found by {MOST_SEEDS} seeds: {missed:?}");
}

/// A call of ranks of which one does not come.
fn lonely(protocol: Protocol, plant: u32) -> Result<(), String> {
    let mut call = Call::drawn(Collective::AllReduce, Algorithm::Ring, protocol, 3_000_001).expect("a ring for any n");
    call.case.count = 64;
    let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
    call.options.plant = plant;
    let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
    world.unseat(Rank(0));
    world.abort();
    world.run(&call.options).map_err(|report| report.to_string())?;
    let errors = world.errors();
    assert_eq!(errors.len(), call.case.n as usize - 1, "every rank says where it was");
    for (rank, error) in errors {
        assert_eq!(DeviceFault::from_code(error.code), Some(DeviceFault::Aborted), "rank {rank}: {error:?}");
        assert!(error.peer < call.case.n && error.expected > error.found, "rank {rank}: {error:?}");
    }
    Ok(())
}

#[test]
fn kernels_end_when_they_are_told_to_and_say_where_they_were() {
    for protocol in Protocol::ALL {
        lonely(protocol, 0).unwrap();
        assert!(lonely(protocol, 10).is_err(), "nobody looks at the abort flag");
    }
}

#[test]
fn a_slot_of_another_call_is_refused() {
    let refused = |plant| {
        let mut call = Call::drawn(Collective::AllReduce, Algorithm::Ring, Protocol::Simple, 3_000_002).expect("a ring for any n");
        call.case.count = 64;
        call.wiring.sized = true;
        call.options.plant = plant;
        let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
        let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
        world.change(Rank(1), |args| args.tag += 1);
        // Those who wait for the ranks that gave up are not told here, and hang.
        let _ = world.run(&call.options);
        world.errors().iter().any(|(_, error)| error.code == DeviceFault::OtherMessage as u32)
    };
    assert!(refused(0));
    assert!(!refused(13));
}

#[test]
fn what_does_not_fit_is_refused() {
    let call = Call::drawn(Collective::AllReduce, Algorithm::Ring, Protocol::Ll, 3_000_003).expect("a ring for any n");
    let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
    let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
    for rank in (0..call.case.n).map(Rank) {
        world.change(rank, |args| (args.count, args.chunk_count) = (1 << 20, 1 << 20));
    }
    world.run(&call.options).expect("every rank refuses before it moves anything");
    let errors = world.errors();
    assert_eq!(errors.len(), call.case.n as usize);
    assert!(errors.iter().all(|(_, error)| error.code == DeviceFault::SlotTooSmall as u32), "{errors:?}");
}
