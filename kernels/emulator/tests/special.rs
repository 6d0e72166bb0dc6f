//! The special kernels in emulation: the bytes of the plans they stand for, whatever the order of threads.

use ccl::reference::element;
use ccl::{Dtype, ReduceOp};
use ccl_kernels::layout::{DeviceError, DeviceFault, LaunchArgs, NO_INSTRUCTION, record_of};
use ccl_kernels::special::{Special, SpecialArgs, SpecialPeer, SpecialServed, inbox_bytes, mail_bytes};
use ccl_kernels_emulator::{Emulation, Guarded, Options, Order, Report, kernel};

#[test]
fn every_dtype_and_operation_gives_the_plans_bytes() {
    for special in Special::ALL {
        for dtype in Dtype::ALL {
            for (seed, op) in (0..).zip(ReduceOp::ALL) {
                let call = Case { dtype, op, n: 3, count: 75, ..Case::new(special, seed) };
                call.check().unwrap_or_else(|what| panic!("{call:?}: {what}"));
            }
        }
    }
}

#[test]
fn any_number_of_ranks_and_elements_works_in_every_order() {
    for special in Special::ALL {
        for (seed, n) in [1, 2, 3, 4, 5, 8].into_iter().enumerate() {
            for count in [1, 2, 3, 31, 250, 3000] {
                for order in [Order::RoundRobin, Order::Random, Order::Adversarial] {
                    let mut call = Case { n, count, order, ..Case::new(special, seed as u64) };
                    call.misaligned = count == 31;
                    call.in_place = seed % 2 == 1;
                    call.check().unwrap_or_else(|what| panic!("{call:?}: {what}"));
                }
            }
        }
    }
}

#[test]
fn nothing_relies_on_stores_that_a_device_may_delay() {
    for special in Special::ALL {
        for seed in 0..20 {
            let call = Case { delays_stores: true, ..Case::new(special, seed) };
            call.check().unwrap_or_else(|what| panic!("{call:?}: {what}"));
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        (Special::OneShot, 101, "half a line is taken for a whole one"),
        (Special::OneShot, 102, "one half of the inbox serves every launch"),
        (Special::OneShot, 104, "every rank folds from itself on"),
        (Special::TwoShot, 111, "what is written is not released"),
        (Special::TwoShot, 112, "a thread says that all have written"),
        (Special::TwoShot, 113, "nobody waits for what others write"),
        (Special::TwoShot, 114, "a rank goes by its own windows"),
    ];
    for (special, plant, what) in bugs {
        let fails = |seed: &u64| {
            let outside = (plant == 114).then_some(Outside::Elsewhere);
            let call = Case { plant, outside, delays_stores: true, ..Case::new(special, *seed) };
            call.check().is_err()
        };
        let found = (0..40).filter(fails).count();
        println!("{plant} ({what}): found by {found} of 40 seeds");
        assert!(found > 0, "{plant}: {what}");
    }
}

/// Of every two launches one is outside, so that what one leaves is there for the other.
#[test]
fn vectors_that_do_not_lie_in_the_same_windows_are_left_alone() {
    for outside in [Outside::Nowhere, Outside::Elsewhere] {
        for order in [Order::RoundRobin, Order::Random, Order::Adversarial] {
            for seed in 0..10 {
                let call = Case {
                    outside: Some(outside),
                    order,
                    delays_stores: true,
                    in_place: seed % 2 == 1,
                    ..Case::new(Special::TwoShot, seed)
                };
                call.check().unwrap_or_else(|what| panic!("{call:?}: {what}"));
            }
        }
    }
}

#[test]
fn an_abort_ends_every_wait() {
    for special in Special::ALL {
        let call = Case { missing: 1, aborted: true, ..Case::new(special, 3) };
        call.run().unwrap_or_else(|report| panic!("{call:?}: {report}"));
        let call = Case { aborted: false, ..call };
        assert!(call.run().is_err(), "without the abort, a rank that is missing is a hang");
    }
}

#[test]
fn ranks_in_different_calls_hear_of_it() {
    for special in Special::ALL {
        for (seed, astray) in (0..).zip([Astray::Call, Astray::Count]) {
            let call = Case { astray: Some(astray), n: 3, ..Case::new(special, seed) };
            let errors = call.errors().unwrap_or_else(|report| panic!("{call:?}: {report}"));
            let met = |error: &&DeviceError| error.code == DeviceFault::OtherMessage as u32;
            assert!(errors.iter().any(|error| met(&error)), "{call:?}: {errors:?}");
            for error in &errors {
                // Who was ended by another before it met rank 0 says so.
                assert!(met(&error) || error.code == DeviceFault::Aborted as u32, "{call:?}: {error:?}");
                assert_eq!(error.instruction, NO_INSTRUCTION);
            }
            for (rank, error) in errors.iter().enumerate().filter(|(_, error)| met(error)) {
                assert!(rank == 0 || error.peer == 0, "{call:?}: {error:?}");
                let said = |of: Astray| if astray == of { 1 } else { 0 };
                let (tags, bytes) = (error.expected >> 32 != error.found >> 32, |word: u64| word as u32 / 4);
                assert_eq!(u32::from(tags), said(Astray::Call), "{call:?}: {error:?}");
                let differ = bytes(error.expected).abs_diff(bytes(error.found));
                assert_eq!(differ, said(Astray::Count), "{call:?}: {error:?}");
            }
            let blind = Case { plant: 105, ..call };
            let unseen = blind.errors().is_ok_and(|all| all.iter().all(|error| error.code == 0));
            assert!(blind.errors().is_err() || unseen, "{blind:?}: somebody else looks");
        }
    }
}

/// Calls one after another, of all ranks.
#[derive(Clone, Copy, Debug)]
struct Case {
    special: Special,
    dtype: Dtype,
    op: ReduceOp,
    n: u32,
    count: usize,
    seed: u64,
    order: Order,
    plant: u32,
    delays_stores: bool,
    misaligned: bool,
    in_place: bool,
    /// Ranks, the last ones, that do not take part.
    missing: u32,
    aborted: bool,
    /// How rank 0 differs from the others.
    astray: Option<Astray>,
    /// Where rank 1 has its vectors in every second launch.
    outside: Option<Outside>,
}

/// Not where others have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outside {
    /// In no window.
    Nowhere,
    /// Its output is in another window.
    Elsewhere,
}

/// What ranks may not agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Astray {
    Call,
    Count,
}

impl Case {
    fn new(special: Special, seed: u64) -> Case {
        Case {
            special,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            n: 4,
            count: 100,
            seed,
            order: Order::Random,
            plant: 0,
            delays_stores: false,
            misaligned: false,
            in_place: false,
            missing: 0,
            aborted: false,
            astray: None,
            outside: None,
        }
    }

    fn check(&self) -> Result<(), String> {
        let world = self.run_in(World::new(self)).map_err(|report| report.to_string())?;
        if self.special == Special::TwoShot {
            self.check_served(&world)?;
        }
        for launch in 0..LAUNCHES {
            for rank in 0..self.n {
                let expected = match (self.is_outside(launch), self.in_place) {
                    (false, _) => self.expected(launch),
                    (true, false) => vec![0; self.count * self.dtype.size_bytes()],
                    (true, true) => self.input(rank, launch),
                };
                let output = world.output(self, rank, launch);
                if output != expected {
                    return Err(format!(
                        "launch {launch}, rank {rank}: {output:x?} instead of {expected:x?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Each rank says whether the last launch has made its call, how many have, and the host hears of that.
    fn check_served(&self, world: &World) -> Result<(), String> {
        let made = (0..LAUNCHES).filter(|launch| !self.is_outside(*launch)).count() as u64;
        let now = u64::from(!self.is_outside(LAUNCHES - 1));
        let right = |served: &Guarded<u64>| (served[0], served[1], served[4]) == (now, made, made);
        match world.served.iter().position(|served| !right(served)) {
            Some(rank) => Err(format!("rank {rank} says {:?}, not {now} and {made}", &*world.served[rank])),
            None => Ok(()),
        }
    }

    fn is_outside(&self, launch: usize) -> bool {
        self.outside.is_some() && launch % 2 == 1
    }

    /// What every rank has after each launch.
    fn run(&self) -> Result<Vec<Vec<Vec<u8>>>, Box<Report>> {
        let world = self.run_in(World::new(self))?;
        let launches = 0..LAUNCHES;
        Ok(launches
            .map(|launch| (0..self.n).map(|rank| world.output(self, rank, launch)).collect())
            .collect())
    }

    /// What every rank says went wrong.
    fn errors(&self) -> Result<Vec<DeviceError>, Box<Report>> {
        let world = self.run_in(World::new(self))?;
        let bytes =
            |words: &Guarded<u64>| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        Ok(world.errors.iter().map(|words| record_of(&bytes(words)).expect("as long as one")).collect())
    }

    fn run_in(&self, mut world: World) -> Result<World, Box<Report>> {
        let mut emulation = Emulation::new(Options {
            seed: self.seed,
            order: self.order,
            plant: self.plant,
            delays_stores: self.delays_stores,
            allowed: world.addresses(),
            ..Options::default()
        });
        let name = self.special.kernel_name(self.dtype, self.op);
        let special = kernel(&name).unwrap_or_else(|| panic!("{name} is not there"));
        let toy_copy = kernel("toy_copy").expect("among the toys");
        for launch in 0..LAUNCHES {
            for rank in 0..self.n - self.missing {
                let args = world.args(self, rank, launch);
                let shape = (BLOCKS, THREADS);
                let copy = world.copy_args(self, rank, launch);
                // SAFETY: the world outlives the run, and is as the kernels expect it.
                unsafe {
                    emulation
                        .add_to_stream(rank, special, shape, self.special.shared_bytes(), &args)
                        .expect("arguments of its size");
                    // What is there when the launch has ended, for whoever comes next on the stream.
                    emulation
                        .add_to_stream(rank, toy_copy, (1, THREADS), 0, &copy)
                        .expect("arguments of its size");
                }
            }
        }
        emulation.run()?;
        drop(emulation);
        Ok(world)
    }

    fn expected(&self, launch: usize) -> Vec<u8> {
        let size = self.dtype.size_bytes();
        let inputs: Vec<Vec<u8>> = (0..self.n).map(|place| self.input(self.rank_at(place), launch)).collect();
        let mut result = Vec::new();
        for at in (0..self.count * size).step_by(size) {
            let contribution = |place: usize| {
                let bits = element::load(&inputs[place][at..at + size]);
                match self.op {
                    ReduceOp::PreMulSum => {
                        element::scale(self.dtype, bits, scalar(self.rank_at(place as u32)))
                    }
                    _ => bits,
                }
            };
            let others = 1..self.n as usize;
            let folded = others.fold(contribution(0), |a, place| {
                element::combine(self.dtype, self.op, a, contribution(place))
            });
            let divides = self.op == ReduceOp::Average;
            let complete = if divides { element::divide(self.dtype, folded, self.n) } else { folded };
            result.extend_from_slice(&complete.to_le_bytes()[..size]);
        }
        result
    }

    /// The order is not that of ranks.
    fn rank_at(&self, place: u32) -> u32 {
        (place + 1) % self.n
    }

    fn input(&self, rank: u32, launch: usize) -> Vec<u8> {
        let mut state = self.seed ^ u64::from(rank) << 32 ^ (launch as u64) << 40;
        let mut bytes = Vec::new();
        for _ in 0..self.count {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let random = state >> 20;
            let bits = match self.dtype.is_float() {
                true => element::encode(self.dtype, (random % 2000) as f64 / 300.0 - 3.0),
                false => random,
            };
            bytes.extend_from_slice(&bits.to_le_bytes()[..self.dtype.size_bytes()]);
        }
        bytes
    }

    /// Where a vector begins in the window.
    fn offset(&self, launch: usize, is_output: bool) -> usize {
        let number = 2 * launch + usize::from(is_output && !self.in_place);
        number * self.vector_bytes() + if self.misaligned { self.dtype.size_bytes() } else { 0 }
    }

    fn vector_bytes(&self) -> usize {
        (self.count * self.dtype.size_bytes()).next_multiple_of(16) + 32
    }
}

/// The memory of all ranks.
struct World {
    windows: Vec<Guarded<u8>>,
    /// What receive buffers held after each launch.
    results: Vec<Guarded<u8>>,
    inboxes: Vec<Guarded<u8>>,
    mails: Vec<Guarded<u64>>,
    epochs: Vec<Guarded<u64>>,
    /// A [`SpecialServed`] of every rank, and behind it the word that the host reads.
    served: Vec<Guarded<u64>>,
    /// Where windows begin.
    bases: Guarded<u64>,
    peers: Guarded<u64>,
    order: Guarded<u32>,
    abort: Guarded<u32>,
    /// A record of every rank.
    errors: Vec<Guarded<u64>>,
}

impl World {
    fn new(case: &Case) -> World {
        let inbox = inbox_bytes(case.n, case.count * case.dtype.size_bytes());
        let ranks = || 0..case.n;
        let mut world = World {
            windows: ranks().map(|_| Guarded::new(2 * LAUNCHES * case.vector_bytes())).collect(),
            results: ranks().map(|_| Guarded::new(LAUNCHES * case.vector_bytes())).collect(),
            inboxes: ranks().map(|_| Guarded::new(inbox)).collect(),
            mails: ranks().map(|_| Guarded::new(mail_bytes(case.n, BLOCKS) / 8)).collect(),
            epochs: ranks().map(|_| Guarded::new(BLOCKS as usize)).collect(),
            served: ranks().map(|_| Guarded::new(size_of::<SpecialServed>() / 8 + 1)).collect(),
            bases: Guarded::new(case.n as usize),
            peers: Guarded::new(case.n as usize * size_of::<SpecialPeer>() / 8),
            order: Guarded::new(case.n as usize),
            abort: Guarded::new(1),
            errors: ranks().map(|_| Guarded::new(size_of::<DeviceError>() / 8)).collect(),
        };
        world.abort[0] = u32::from(case.aborted);
        for rank in ranks() {
            let r = rank as usize;
            let peer = [world.inboxes[r].as_ptr() as u64, world.mails[r].as_ptr() as u64];
            world.peers[4 * r..4 * r + 2].copy_from_slice(&peer);
            world.bases[r] = world.windows[r].as_ptr() as u64;
            let told = world.served[r].as_ptr() as u64 + size_of::<SpecialServed>() as u64;
            world.served[r][2] = told;
            world.order[r] = case.rank_at(rank);
            for launch in 0..LAUNCHES {
                let (offset, input) = (case.offset(launch, false), case.input(rank, launch));
                world.windows[r][offset..offset + input.len()].copy_from_slice(&input);
            }
        }
        world
    }

    fn addresses(&self) -> Vec<std::ops::Range<usize>> {
        let bytes = self.windows.iter().chain(&self.results).chain(&self.inboxes).map(Guarded::addresses);
        let words = self
            .mails
            .iter()
            .chain(&self.epochs)
            .chain(&self.errors)
            .chain(&self.served)
            .chain([&self.peers, &self.bases])
            .map(Guarded::addresses);
        bytes.chain(words).chain([self.order.addresses(), self.abort.addresses()]).collect()
    }

    fn args(&mut self, case: &Case, rank: u32, launch: usize) -> Vec<u8> {
        let r = rank as usize;
        let (input_offset, output_offset) = (case.offset(launch, false), case.offset(launch, true));
        let window = self.windows[r].as_mut_ptr() as u64;
        let windows = match case.outside.filter(|_| rank == 1 && case.is_outside(launch)) {
            None => 7 << 32 | 3,
            Some(Outside::Elsewhere) => 8 << 32 | 3,
            Some(Outside::Nowhere) => 0,
        };
        let args = SpecialArgs {
            peers: self.peers.as_mut_ptr() as u64,
            order: self.order.as_mut_ptr() as u64,
            epochs: self.epochs[r].as_mut_ptr() as u64,
            abort: self.abort.as_mut_ptr() as u64,
            error: self.errors[r].as_mut_ptr() as u64,
            input: window + input_offset as u64,
            output: window + output_offset as u64,
            input_window: self.bases.as_mut_ptr() as u64,
            output_window: self.bases.as_mut_ptr() as u64,
            windows,
            served: self.served[r].as_mut_ptr() as u64,
            count: case.count as u64 - u64::from(case.astray == Some(Astray::Count) && rank == 0),
            scalar_bits: scalar(rank).to_bits(),
            inbox_bytes: self.inboxes[r].len() as u64,
            rank,
            n: case.n,
            flags: match case.op {
                ReduceOp::Average => LaunchArgs::DIVIDES,
                ReduceOp::PreMulSum => LaunchArgs::SCALES,
                _ => 0,
            },
            tag: if case.astray == Some(Astray::Call) && rank == 0 { 8 } else { 7 },
        };
        // SAFETY: plain data without padding.
        unsafe { std::slice::from_raw_parts((&raw const args).cast::<u8>(), size_of_val(&args)) }.to_vec()
    }

    fn copy_args(&mut self, case: &Case, rank: u32, launch: usize) -> Vec<u8> {
        let r = rank as usize;
        let from = self.windows[r].as_ptr() as usize + case.offset(launch, true);
        let to = self.results[r].as_mut_ptr() as usize + launch * case.vector_bytes();
        let bytes = case.count * case.dtype.size_bytes();
        [from, to, bytes].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn output(&self, case: &Case, rank: u32, launch: usize) -> Vec<u8> {
        let offset = launch * case.vector_bytes();
        self.results[rank as usize][offset..offset + case.count * case.dtype.size_bytes()].to_vec()
    }
}

/// Every rank has its own.
fn scalar(rank: u32) -> f64 {
    [0.5, 2.0, -1.5, 3.0][rank as usize % 4]
}

/// Calls one after another: both halves of an inbox are used twice.
const LAUNCHES: usize = 4;

const BLOCKS: u32 = 2;

const THREADS: u32 = 8;
