//! The emulator itself: what it finds, that it finds it again, and that it finds nothing where nothing is.

use std::time::Duration;

use ccl_kernels_emulator::{Cause, Doing, Emulation, Guarded, Options, Order, Report, Window, kernel};

#[test]
fn a_token_visits_every_thread_in_every_order() {
    for order in [Order::RoundRobin, Order::Random, Order::Adversarial] {
        for seed in 0..10 {
            let mut words = Guarded::new(1);
            run("toy_token", (3, 33), &mut words, 5, options(seed, order)).unwrap();
            assert_eq!(words[0], 5 * 99, "{order:?}, seed {seed}");
        }
    }
}

#[test]
fn a_race_is_found_by_some_seed_and_repeated_by_the_same() {
    let count = |seed| {
        let mut words = Guarded::new(1);
        run("toy_race", (2, 32), &mut words, 10, options(seed, Order::Random)).unwrap();
        words[0]
    };
    let counts: Vec<u64> = (0..20).map(count).collect();
    assert!(counts.iter().any(|count| *count < 640), "a count was lost: {counts:?}");
    assert!(counts.iter().any(|count| *count != counts[0]), "seeds differ: {counts:?}");
    assert_eq!(counts, (0..20).map(count).collect::<Vec<u64>>(), "the same again");
}

#[test]
fn a_deadlock_is_named() {
    let mut words = Guarded::new(2);
    let report = run("toy_deadlock", (2, 4), &mut words, 0, options(7, Order::Random)).unwrap_err();
    assert_eq!((&report.cause, report.seed, report.threads.len()), (&Cause::Hang, 7, 8));
    let first = words.as_ptr() as usize;
    for state in &report.threads {
        match (state.thread, state.doing) {
            (0, Doing::Spin { at, value: 0 }) => assert_eq!(at, first + 8 * (1 - state.block as usize)),
            (1.., Doing::Barrier { id: 0, generation: 0, .. }) => {}
            _ => panic!("{state}"),
        }
    }
    let text = report.to_string();
    assert!(text.contains("toy_deadlock (launch 0) block 1 thread 0: spins at"), "{text}");
    assert!(text.contains(", and 2 more"), "{text}");
}

#[test]
fn threads_that_do_not_meet_are_reported() {
    for name in ["toy_divergence", "toy_two_barriers"] {
        let mut words = Guarded::new(1);
        let report = run(name, (1, 8), &mut words, 0, options(1, Order::Random)).unwrap_err();
        assert!(matches!(report.cause, Cause::Divergence(_)), "{name}: {report}");
    }
}

#[test]
fn functions_of_a_warp_give_what_devices_give() {
    let (blocks, threads) = (2, 64);
    let mut words = Guarded::new(blocks * threads * 8);
    run("toy_warp", (2, 64), &mut words, 0, options(3, Order::Adversarial)).unwrap();
    for (i, got) in words.chunks(8).enumerate() {
        let (thread, lane) = (i as u64 % 64, i as u64 % 32);
        let value = |thread: u64| 0x1_0000_0000 + thread * 3;
        let first = thread - lane;
        let ballot: u64 = (0..32).filter(|lane| (first + lane).is_multiple_of(3)).map(|lane| 1 << lane).sum();
        let expected = [
            value(first + 5),
            value(thread ^ 1),
            if lane < 28 { value(thread + 4) } else { value(thread) },
            if lane < 4 { thread * 3 } else { (thread - 4) * 3 },
            ballot,
            if thread < 32 { 0 } else { 3 },
            1,
            0,
        ];
        assert_eq!(got, expected, "thread {thread}");
    }
}

#[test]
fn shared_memory_needs_its_barrier() {
    let wrong = |plant, seed| {
        let mut words = Guarded::new(1);
        let options = Options { plant, ..options(seed, Order::Random) };
        run("toy_shared", (2, 32), &mut words, 10, options).unwrap();
        words[0] != 0
    };
    assert!((0..20).all(|seed| !wrong(0, seed)));
    assert!((0..20).any(|seed| wrong(1, seed)));
}

#[test]
fn a_store_without_a_fence_arrives_late() {
    let wrong = |plant, seed, delays_stores| {
        let (mut words, mut errors) = (Guarded::<u64>::new(200), Guarded::<u64>::new(1));
        let options = Options { plant, delays_stores, ..options(seed, Order::Random) };
        run_with("toy_message", (2, 32), [&mut words, &mut errors], 10, options).unwrap();
        errors[0] > 0
    };
    let found = |plant, delays| (0..20).filter(|seed| wrong(plant, *seed, delays)).count();
    assert_eq!((found(0, false), found(0, true)), (0, 0));
    assert_eq!(found(1, false), 0, "without delayed stores nothing shows a missing fence");
    assert!(found(1, true) > 0);
    assert!(found(2, true) > 0);
}

#[test]
fn lines_are_seen_as_their_protocols_rely_on() {
    let wrong = |plant, seed| {
        let (mut words, mut errors) = (Guarded::<u64>::new(300), Guarded::<u64>::new(1));
        let options = Options { plant, ..options(seed, Order::Random) };
        run_with("toy_lines", (2, 32), [&mut words, &mut errors], 10, options).unwrap();
        errors[0] > 0
    };
    assert!((0..20).all(|seed| !wrong(0, seed)));
    assert!((0..20).any(|seed| wrong(1, seed)), "half an ll line is taken for a whole one");
    assert!((0..20).any(|seed| wrong(2, seed)), "a warp's lines do not arrive together");
}

#[test]
fn what_is_written_elsewhere_is_noticed() {
    let mut words = Guarded::<u64>::new(4);
    let allowed = vec![words.addresses()];
    let checked = Options { allowed, ..options(1, Order::Random) };
    let report = run("toy_stray", (1, 32), &mut words, 4, checked).unwrap_err();
    let address = format!("{:#x}", words.addresses().end);
    assert!(report.to_string().starts_with("toy_stray: block 0 thread 2: access outside"), "{report}");
    assert!(report.to_string().contains(&address), "{report}");
    run("toy_stray", (1, 32), &mut words, 4, options(1, Order::Random)).unwrap();
    assert!(!words.is_whole());
    assert!(std::panic::catch_unwind(move || drop(words)).is_err());
}

#[test]
fn an_assertion_ends_the_run() {
    let mut words = Guarded::new(1);
    let report = run("toy_assert", (1, 2), &mut words, 0, options(1, Order::Random)).unwrap_err();
    assert!(report.to_string().contains("block 0 thread 1: ccl_thread() != 1 in line"), "{report}");
}

#[test]
fn emulations_on_two_system_threads_talk_to_each_other() {
    let mut words = Guarded::<u64>::new(200);
    let mut errors = Guarded::<u64>::new(1);
    let args = &arguments([&mut words, &mut errors], 50);
    std::thread::scope(|scope| {
        for name in ["toy_ping", "toy_pong"] {
            scope.spawn(move || {
                let hang_after = Duration::from_secs(20);
                let mut emulation = Emulation::new(Options { hang_after, ..Options::default() });
                // SAFETY: both kernels touch the words only, which outlive the scope.
                unsafe { emulation.add(kernel(name).unwrap(), 1, 16, 0, args) }.unwrap();
                emulation.run().unwrap();
            });
        }
    });
    assert_eq!(words[0], 50 * 2 * 16);
}

#[test]
fn stores_in_multicast_memory_reach_every_copy_each_in_its_own_time() {
    const WINDOW: usize = 1 << 60;
    let stores = |plant, seed, to: usize| {
        let mut words = Guarded::<u64>::new(64);
        let members = (1..4).map(|member| words.addresses().start + 128 * member).collect();
        let windows = vec![Window { addresses: WINDOW..WINDOW + 128, members }];
        let options = Options { plant, delays_stores: true, windows, ..options(seed, Order::Random) };
        let mut emulation = Emulation::new(options);
        let args = [words.as_mut_ptr() as u64, to as u64, 20];
        let args: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: the kernel touches the words, which outlive the run, and copies that lie in them.
        unsafe { emulation.add(kernel("toy_all").unwrap(), 4, 1, 0, &args) }.unwrap();
        emulation.run().map(|()| [words[2], words[3], words[4]])
    };
    for seed in 0..20 {
        assert_eq!(stores(0, seed, WINDOW).unwrap(), [0; 3], "seed {seed}");
    }
    // Without a release some copy is late where another is not.
    let late: Vec<[u64; 3]> = (0..20).map(|seed| stores(1, seed, WINDOW).unwrap()).collect();
    assert!((0..3).all(|one| late.iter().any(|late| late[one] > late[(one + 1) % 3])), "{late:?}");
    let report = stores(0, 1, WINDOW + 64).unwrap_err();
    assert!(report.to_string().contains("where no multicast memory is"), "{report}");
}

#[test]
fn a_partner_that_never_comes_is_a_hang_in_the_end() {
    let mut words = Guarded::new(2);
    let hang_after = Duration::from_millis(50);
    let report = run("toy_ping", (1, 2), &mut words, 5, Options { hang_after, ..options(1, Order::Random) })
        .unwrap_err();
    assert_eq!(report.cause, Cause::Hang);
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let mut emulation = Emulation::new(Options::default());
    let toy = kernel("toy_lines").unwrap();
    // SAFETY: neither is run.
    unsafe {
        let error = emulation.add(toy, 1, 33, 0, &[0; 24]).unwrap_err();
        assert_eq!(error.to_string(), "toy_lines takes one or more blocks of 1 to 32 threads, not of 33");
        let error = emulation.add(toy, 1, 32, 0, &[0; 20]).unwrap_err();
        assert_eq!(error.to_string(), "toy_lines takes 24 bytes of arguments, not 20; pass its struct");
    }
    assert!(kernel("no_such_kernel").is_none());
}

#[test]
fn launches_of_a_stream_follow_each_other() {
    for seed in 0..10 {
        let mut words = Guarded::<u64>::new(1);
        let mut others = Guarded::<u64>::new(1);
        let mut emulation = Emulation::new(options(seed, Order::Adversarial));
        // Together they would lose counts.
        for _ in 0..5 {
            let args = arguments([&mut words, &mut others], 2);
            // SAFETY: toys touch their words only, which outlive the run.
            unsafe { emulation.add_to_stream(7, kernel("toy_race").unwrap(), (1, 1), 0, &args) }.unwrap();
        }
        emulation.run().unwrap();
        assert_eq!(words[0], 10, "one after another, nothing is lost");
    }
}

#[test]
fn an_endless_kernel_is_given_up() {
    let mut words = Guarded::new(64);
    let options = Options { most_turns: 1000, ..options(1, Order::Random) };
    let report = run("toy_switch", (1, 4), &mut words, u64::MAX, options).unwrap_err();
    assert_eq!((report.cause, report.turns), (Cause::Endless, 1000));
}

/// What the emulator costs: `cargo test -p ccl-kernels-emulator --test emulator -- --ignored --nocapture`.
#[test]
#[ignore = "measures: a step of `scripts/test long`"]
fn speed() {
    for threads in [32, 512] {
        let mut words = Guarded::new(600);
        let turns = 400_000 / u64::from(threads);
        let mut emulation = Emulation::new(options(1, Order::Random));
        let args = arguments([&mut words, &mut Guarded::new(1)], turns);
        // SAFETY: the toy touches its words only.
        unsafe { emulation.add(kernel("toy_switch").unwrap(), 1, threads, 0, &args) }.unwrap();
        let start = std::time::Instant::now();
        emulation.run().unwrap();
        let ns = start.elapsed().as_nanos() as u64 / emulation.turns();
        println!("{threads} threads: {ns} ns a turn");
    }
    for delays_stores in [false, true] {
        let bytes = if delays_stores { 1 << 17 } else { 1 << 24 };
        let mut memory = Guarded::<u64>::new(3 * bytes / 8);
        let first = memory.as_mut_ptr() as u64;
        let args = [first, first + bytes as u64, first + 2 * bytes as u64, bytes as u64 / 16];
        let args: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut emulation = Emulation::new(Options { delays_stores, ..options(1, Order::Random) });
        // SAFETY: the kernel folds inside the memory.
        unsafe { emulation.add(kernel("toy_fold_f32_sum").unwrap(), 2, 64, 0, &args) }.unwrap();
        let start = std::time::Instant::now();
        emulation.run().unwrap();
        let mb_per_s = bytes as f64 / 1e6 / start.elapsed().as_secs_f64();
        println!("a fold of two f32 vectors, delayed stores {delays_stores}: {mb_per_s:.0} MB/s of results");
    }
}

fn options(seed: u64, order: Order) -> Options {
    Options { seed, order, ..Options::default() }
}

fn run(
    name: &str,
    shape: (u32, u32),
    words: &mut Guarded<u64>,
    turns: u64,
    options: Options,
) -> Result<(), Box<Report>> {
    let mut none = Guarded::new(1);
    run_with(name, shape, [words, &mut none], turns, options)
}

/// Runs a kernel of `kernels/toys.cu` on (blocks, threads).
fn run_with(
    name: &str,
    (grid, block): (u32, u32),
    words: [&mut Guarded<u64>; 2],
    turns: u64,
    options: Options,
) -> Result<(), Box<Report>> {
    let mut emulation = Emulation::new(options);
    let args = arguments(words, turns);
    // SAFETY: toys touch their words only (one of them the guard behind), which outlive the run.
    unsafe { emulation.add(kernel(name).expect("a toy"), grid, block, 8192, &args) }
        .expect("a shape it takes");
    emulation.run()
}

fn arguments([words, others]: [&mut Guarded<u64>; 2], turns: u64) -> Vec<u8> {
    let args = [words.as_mut_ptr() as u64, others.as_mut_ptr() as u64, turns];
    args.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
