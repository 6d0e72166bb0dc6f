//! Bugs planted in the interpreter and its edges, each found by some seed.

use ccl_kernels::layout::{DeviceFault, LaunchArgs};
use ccl_kernels::shape::Protocol;
use ccl_plan::machine::Stage;
use ccl_plan::{Algorithm, Collective, Plan, Rank};

use crate::case::Call;
use crate::world::World;

/// How many seeds may pass before a bug is found.
const MOST_SEEDS: u64 = 200;

/// The number in the source, what is wrong, and a kind of call in which it matters.
const PLANTED: [(u32, &str, Collective, Algorithm, Protocol); 12] = [
    (1, "credits are ignored", Collective::Broadcast, Algorithm::Ring, Protocol::Simple),
    (
        2,
        "a credit is given before all threads have read",
        Collective::Broadcast,
        Algorithm::Ring,
        Protocol::Simple,
    ),
    (3, "a message is counted before it is there", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (4, "only the first flag of a line is looked at", Collective::AllReduce, Algorithm::Ring, Protocol::Ll),
    (5, "flags are the same in every round of slots", Collective::Broadcast, Algorithm::Ring, Protocol::Ll),
    (
        5,
        "flags are the same in every round of slots",
        Collective::Broadcast,
        Algorithm::Ring,
        Protocol::Ll128,
    ),
    (
        6,
        "threads do not wait for the one that waits",
        Collective::AllReduce,
        Algorithm::Ring,
        Protocol::Simple,
    ),
    (7, "the number of messages is not carried on", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (8, "another edge's head is moved", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
    (9, "one line's flag stands for four", Collective::AllReduce, Algorithm::Ring, Protocol::Ll128),
    (
        15,
        "a step is made where another is still told of",
        Collective::AllReduce,
        Algorithm::Ring,
        Protocol::Simple,
    ),
    (16, "nothing is released with the count", Collective::AllReduce, Algorithm::Ring, Protocol::Simple),
];

#[test]
fn planted_bugs_are_found() {
    let mut missed = Vec::new();
    for (number, text, collective, algorithm, protocol) in PLANTED {
        let found = (0..MOST_SEEDS).find(|seed| {
            let Some(mut call) = Call::drawn(collective, algorithm, protocol, 2_000_000 + seed) else {
                return false;
            };
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

/// What a lane has copied is sent by another.
const TWO_LANES: &str = "
program all_gather.two_lanes
collective all_gather
chunks 1
scratch 0
lane 0 of 1
  copy                            in -> out                            recv_block r
  barrier
lane 0 of 1
  barrier
  send                            out -> to [r+1]                      recv_block r
  for i in 1..n-1
    recv_copy_send                  from [r-1] -> out, to [r+1]          recv_block [r-i]
  end
  recv                            from [r-1] -> out                    recv_block [r+1]
";

#[test]
fn lanes_meet() {
    let run = |seed, plant| {
        let plan = |n| Plan::of_program(TWO_LANES.parse().expect("the text is well formed"), n).ok();
        let call = Call::drawn_by(plan, Protocol::ALL[seed as usize % 3], 4_000_000 + seed);
        let mut call = call.expect("it serves any n");
        call.options.plant = plant;
        call.options.most_turns = 3_000_000;
        call.check().map_err(|failed| format!("{}: {failed:#?}", call.describe()))
    };
    for seed in 0..20 {
        run(seed, 0).unwrap();
    }
    // Lanes do not wait; what they stored is not released.
    for plant in [11, 18] {
        let found = (0..MOST_SEEDS).find(|seed| run(*seed, plant).is_err());
        println!("{plant}: found by seed {found:?}");
        assert!(found.is_some(), "{plant} is not found");
    }
}

#[test]
fn what_is_lent_gives_the_oracles_bytes() {
    let lending = [
        (Collective::AllGather, Algorithm::Ring),
        (Collective::Broadcast, Algorithm::Ring),
        (Collective::AllToAll, Algorithm::Direct),
    ];
    for seed in 0..45 {
        let (collective, algorithm) = lending[seed as usize % 3];
        let call = Call::drawn(collective, algorithm, Protocol::Simple, 5_000_000 + seed);
        let Some(mut call) = call else { continue };
        // By address, by window, and by either to some.
        (call.wiring.lends, call.wiring.windows) =
            [(true, false), (false, true), (true, true)][seed as usize / 3 % 3];
        call.check().unwrap_or_else(|failed| panic!("{}: {failed:#?}", call.describe()));
    }
}

#[test]
fn receivers_look_into_windows_of_senders() {
    let found = (0..MOST_SEEDS).find(|seed| {
        let call = Call::drawn(Collective::AllGather, Algorithm::Ring, Protocol::Simple, 5_100_000 + seed);
        let Some(mut call) = call else { return false };
        (call.wiring.windows, call.options.plant) = (true, 23);
        call.check().is_err()
    });
    println!("23: receivers look into their own windows: found by seed {found:?}");
    assert!(found.is_some());
}

#[test]
fn who_lends_stays_until_it_was_read() {
    let stays = |plant| {
        let call = Call::drawn(Collective::Broadcast, Algorithm::Ring, Protocol::Simple, 5_000_100);
        let mut call = call.expect("a ring for any n");
        (call.wiring.lends, call.options.plant) = (true, plant);
        (call.case.count, call.case.chunk_count, call.case.channels) = (8, 8, 1);
        let reader = call.plan.order().map_or(Rank((call.case.root.0 + 1) % call.case.n), |order| {
            order[(call.plan.place_of(call.case.root).index() + 1) % order.len()]
        });
        let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
        let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
        world.unseat(reader);
        world.abort();
        world.run(&call.options).expect("the flag ends all kernels");
        world.errors().iter().any(|(rank, _)| *rank == call.case.root)
    };
    assert!(stays(0));
    assert!(!stays(12));
}

#[test]
fn flags_that_come_again_find_no_old_line() {
    let untouched = |plant| {
        let call = Call::drawn(Collective::Broadcast, Algorithm::Ring, Protocol::Ll, 6_000_000);
        let mut call = call.expect("a ring for any n");
        (call.wiring.done, call.wiring.spare_bytes, call.options.plant) = (1 << 14, 0, plant);
        call.case.blocks = None;
        let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
        let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
        for rank in (0..call.case.n).map(Rank) {
            // A tenth of what fits a slot, ten times.
            world.change(rank, |args| args.chunk_count = args.chunk_count.div_ceil(10));
        }
        world.run(&call.options).expect("it runs as any other");
        world.untouched()
    };
    assert!(untouched(14) > untouched(0), "{} words of {}", untouched(0), untouched(14));
}

#[test]
fn a_call_that_another_kernel_has_made_is_left_alone() {
    let changes = |flag| {
        let call = Call::drawn(Collective::AllReduce, Algorithm::Ring, Protocol::Simple, 7_000_000);
        let call = call.expect("a ring for any n");
        let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
        let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
        let ranks = || (0..call.case.n).map(Rank);
        ranks().for_each(|rank| world.change(rank, |args| args.flags |= flag));
        world.run(&call.options).expect("it runs as any other");
        ranks().any(|rank| world.memory(rank).is_some_and(|found| found != call.memory[rank.index()].bytes))
    };
    assert!(changes(0));
    assert!(!changes(LaunchArgs::YIELDS));
}

/// A call of ranks of which one does not come.
fn lonely(protocol: Protocol, plant: u32) -> Result<(), String> {
    let mut call =
        Call::drawn(Collective::AllReduce, Algorithm::Ring, protocol, 3_000_001).expect("a ring for any n");
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
    // Simple looks at what slots say of themselves, the others at the flags of lines.
    let refused = |protocol, plant| {
        let mut call = Call::drawn(Collective::AllReduce, Algorithm::Ring, protocol, 3_000_002)
            .expect("a ring for any n");
        call.case.count = 64;
        call.wiring.sized = protocol == Protocol::Simple;
        call.options.plant = plant;
        let stage = Stage::new(&call.plan, &call.case).expect("it was drawn so");
        let mut world = World::new((&call.plan, &stage), call.arithmetic, call.wiring, &call.memory);
        world.change(Rank(1), |args| args.tag += 1);
        // Those who wait for the ranks that gave up are not told here, and hang.
        let _ = world.run(&call.options);
        world.errors().iter().any(|(_, error)| error.code == DeviceFault::OtherMessage as u32)
    };
    for (protocol, plant) in [(Protocol::Simple, 13), (Protocol::Ll, 17), (Protocol::Ll128, 17)] {
        assert!(refused(protocol, 0), "{protocol}");
        assert!(!refused(protocol, plant), "{protocol}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let call = Call::drawn(Collective::AllReduce, Algorithm::Ring, Protocol::Ll, 3_000_003)
        .expect("a ring for any n");
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
