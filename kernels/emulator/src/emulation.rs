//! Launches that run together, and the loop that gives their fibers turns.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::block::{Block, Met};
use crate::delay::Pending;
use crate::fiber::{Request, Running, Surroundings};
use crate::kernel::Kernel;
use crate::order::{Order, Schedule};
use crate::report::{Cause, Doing, Report, ThreadState};
use crate::watch::Watch;

/// How an emulation runs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Equal seeds give equal runs, as long as nobody outside touches the memory.
    pub seed: u64,
    /// How the next fiber is chosen.
    pub order: Order,
    /// Zero: nobody outside this emulation changes memory, so a hang is reported as soon as all fibers have waited for
    /// some hundreds of turns. Otherwise: how long to wait for others (system threads, other emulations).
    pub hang_after: Duration,
    /// Plain stores become visible to other blocks only at a fence, or by chance. Meant for one emulation that holds
    /// all who share the memory.
    pub delays_stores: bool,
    /// The addresses that kernels may touch through the dialect; all, if empty.
    pub allowed: Vec<Range<usize>>,
    /// Where multicast memory is.
    pub windows: Vec<Window>,
    /// The number that `CCL_PLANT` of kernels is compared with; 0 is no planted bug.
    pub plant: u32,
    /// Turns before the emulation gives up; 0: never.
    pub most_turns: u64,
}

/// Addresses of multicast memory. Nothing need be mapped there.
#[derive(Clone, Debug)]
pub struct Window {
    /// Where it is.
    pub addresses: Range<usize>,
    /// Where each member's copy of all of it begins; memory that lives as long as the emulation.
    pub members: Vec<usize>,
}

/// Launches of kernels whose threads all run as fibers of the calling thread.
pub struct Emulation {
    options: Options,
    schedule: Schedule,
    watch: Watch,
    launches: Vec<Launch>,
    blocks: Vec<Block>,
    fibers: Vec<Running>,
    /// Of each fiber: its block, and its index there.
    places: Vec<(usize, usize)>,
    allowed: Rc<[Range<usize>]>,
    windows: Rc<[Window]>,
    clock: Rc<Cell<u64>>,
}

struct Launch {
    kernel: Kernel,
    stream: u32,
    fibers: Range<usize>,
    blocks_left: u32,
    has_begun: bool,
    /// The arguments, aligned as any struct; kept until all fibers have ended.
    args: Vec<u128>,
}

impl Emulation {
    /// Nothing to run yet.
    pub fn new(options: Options) -> Emulation {
        Emulation {
            schedule: Schedule::new(options.order, options.seed),
            watch: Watch::new(options.hang_after),
            launches: Vec::new(),
            blocks: Vec::new(),
            fibers: Vec::new(),
            places: Vec::new(),
            allowed: options.allowed.clone().into(),
            windows: options.windows.clone().into(),
            clock: Rc::default(),
            options,
        }
    }

    /// Adds a launch of `grid` blocks of `block` threads, each block with `shared_bytes` of shared memory, zeroed. It
    /// begins when those added to the same stream before have ended; launches on different streams run together.
    ///
    /// # Errors
    ///
    /// The arguments are not of the kernel's size, or there are no blocks, or they are empty or larger than the kernel
    /// allows.
    ///
    /// # Safety
    ///
    /// Whatever the kernel does with the arguments is sound until [`Emulation::run`] has returned.
    pub unsafe fn add_to_stream(
        &mut self,
        stream: u32,
        kernel: Kernel,
        (grid, block): (u32, u32),
        shared_bytes: usize,
        args: &[u8],
    ) -> Result<(), Refused> {
        if args.len() != kernel.args_bytes() {
            return Err(Refused::Args { kernel, expected: kernel.args_bytes(), found: args.len() });
        }
        if grid == 0 || block == 0 || block > kernel.most_threads() {
            return Err(Refused::Threads { kernel, most: kernel.most_threads(), found: block });
        }
        let mut launch = Launch::new(kernel, stream, grid, args);
        launch.fibers.start = self.fibers.len();
        for index in 0..grid {
            self.add_block(&launch, (index, grid), block, shared_bytes);
        }
        launch.fibers.end = self.fibers.len();
        self.launches.push(launch);
        self.begin_next(stream);
        Ok(())
    }

    /// [`Emulation::add_to_stream`] on a stream of its own.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn add(
        &mut self,
        kernel: Kernel,
        grid: u32,
        block: u32,
        shared_bytes: usize,
        args: &[u8],
    ) -> Result<(), Refused> {
        let stream = u32::MAX - self.launches.len() as u32;
        // SAFETY: the caller's contract.
        unsafe { self.add_to_stream(stream, kernel, (grid, block), shared_bytes, args) }
    }

    /// Lets the first launch of the stream that has not ended run.
    fn begin_next(&mut self, stream: u32) {
        let mut of_stream = self.launches.iter_mut().filter(|launch| launch.stream == stream);
        let Some(launch) = of_stream.find(|launch| launch.blocks_left > 0) else { return };
        if !std::mem::replace(&mut launch.has_begun, true) {
            launch.fibers.clone().for_each(|fiber| self.schedule.wake(fiber));
        }
    }

    fn add_block(&mut self, launch: &Launch, (index, blocks): (u32, u32), threads: u32, shared_bytes: usize) {
        let held =
            || Rc::new(RefCell::new(Pending::new(threads as usize, self.options.seed ^ u64::from(index))));
        let pending = self.options.delays_stores.then(held);
        let mut block = Block::new(self.launches.len(), index, threads, shared_bytes, pending.clone());
        let around = Surroundings {
            shared: block.shared(),
            shared_bytes,
            threads,
            block: index,
            blocks,
            plant: self.options.plant,
            pending,
            allowed: self.allowed.clone(),
            windows: self.windows.clone(),
            clock: self.clock.clone(),
        };
        block.first_fiber = self.fibers.len();
        for thread in 0..threads {
            let args = launch.args.as_ptr().cast();
            self.fibers.push(Running::new(&around, thread, launch.kernel.entry(), args));
            self.places.push((self.blocks.len(), thread as usize));
            self.schedule.add();
            self.watch.add();
        }
        self.blocks.push(block);
    }

    /// Runs until every thread of every launch has ended. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// A report of what went wrong. The kernels have then stopped where they were, and will not go on.
    pub fn run(&mut self) -> Result<(), Box<Report>> {
        while let Some(turn) = self.schedule.next() {
            self.clock.set(self.clock.get() + 1);
            let request = self.fibers[turn.fiber].resume(turn.fuel, turn.plain_fuel);
            self.handle(turn.fiber, request).map_err(|cause| self.report(cause))?;
            if self.watch.hangs(self.fibers.len()) {
                return Err(self.report(Cause::Hang));
            }
            if self.clock.get() == self.options.most_turns {
                return Err(self.report(Cause::Endless));
            }
        }
        if self.blocks.iter().all(Block::has_ended) { Ok(()) } else { Err(self.report(Cause::Hang)) }
    }

    /// Turns of all fibers so far.
    pub fn turns(&self) -> u64 {
        self.clock.get()
    }

    fn handle(&mut self, fiber: usize, request: Request) -> Result<(), Cause> {
        let (number, thread) = self.places[fiber];
        let mut spin = None;
        let block = &mut self.blocks[number];
        let met = match request {
            Request::Point => Met::Nobody,
            Request::Spin { at } => {
                spin = Some((at, read_word(at)));
                Met::Nobody
            }
            Request::Stop { why, line, at } => return Err(self.stopped(fiber, why, line, at)),
            Request::Done => {
                self.watch.progress();
                self.schedule.park(fiber);
                block.leave(thread)?;
                if block.has_ended() {
                    let launch = &mut self.launches[block.launch];
                    launch.blocks_left -= 1;
                    let stream = launch.stream;
                    self.begin_next(stream);
                }
                Met::Nobody
            }
            waits => {
                self.schedule.park(fiber);
                block.meet(thread, waits)?
            }
        };
        self.watch.turn(fiber, self.fibers[fiber].stores(), spin);
        self.wake(number, met);
        Ok(())
    }

    /// Gives those who met what they wait for.
    fn wake(&mut self, block: usize, met: Met) {
        let first = self.blocks[block].first_fiber;
        for (thread, answer, line) in met.answers() {
            self.fibers[first + thread].answer(answer);
            self.fibers[first + thread].answer_line(line);
            self.schedule.wake(first + thread);
        }
    }

    fn stopped(&self, fiber: usize, why: &str, line: u32, at: usize) -> Cause {
        let state = self.state(fiber);
        let (block, thread) = (state.block, state.thread);
        Cause::Stopped(match line {
            0 => format!("{}: block {block} thread {thread}: {why}: {at:#x}", state.kernel),
            _ => format!("{}: block {block} thread {thread}: {why} in line {line}", state.kernel),
        })
    }

    fn report(&mut self, cause: Cause) -> Box<Report> {
        let alive = (0..self.fibers.len()).filter(|fiber| {
            let (block, thread) = self.places[*fiber];
            !self.blocks[block].has_left(thread)
        });
        let threads = alive.map(|fiber| self.state(fiber)).collect();
        Box::new(Report { cause, seed: self.options.seed, turns: self.clock.get(), threads })
    }

    fn state(&self, fiber: usize) -> ThreadState {
        let (number, thread) = self.places[fiber];
        let block = &self.blocks[number];
        let launch = &self.launches[block.launch];
        let spinning = self.watch.spin(fiber).map(|(at, value)| Doing::Spin { at, value });
        let free = if launch.has_begun { Doing::Running } else { Doing::Queued };
        ThreadState {
            kernel: launch.kernel.name(),
            launch: block.launch,
            block: block.index,
            thread: thread as u32,
            doing: block.doing(thread).or(spinning).unwrap_or(free),
        }
    }
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulation").field("options", &self.options).field("turns", &self.turns()).finish()
    }
}

impl Launch {
    fn new(kernel: Kernel, stream: u32, blocks: u32, args: &[u8]) -> Launch {
        let chunk = |bytes: &[u8]| {
            let mut word = [0; 16];
            word[..bytes.len()].copy_from_slice(bytes);
            u128::from_ne_bytes(word)
        };
        let args = args.chunks(16).map(chunk).collect();
        Launch { kernel, stream, fibers: 0..0, blocks_left: blocks, has_begun: false, args }
    }
}

/// A launch that cannot be.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The arguments are of another size.
    Args {
        /// Whose.
        kernel: Kernel,
        /// Bytes it takes.
        expected: usize,
        /// Bytes it was given.
        found: usize,
    },
    /// There is no block, or it is empty or too large.
    Threads {
        /// Whose.
        kernel: Kernel,
        /// Threads it allows.
        most: u32,
        /// Threads it was given.
        found: u32,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Args { kernel, expected, found } => {
                write!(f, "{kernel:?} takes {expected} bytes of arguments, not {found}; pass its struct")
            }
            Refused::Threads { kernel, most, found } => {
                write!(f, "{kernel:?} takes one or more blocks of 1 to {most} threads, not of {found}")
            }
        }
    }
}

impl std::error::Error for Refused {}

/// The 32 bits at an address that a kernel waits for; 0 where a lane waits with others and has no address.
fn read_word(at: usize) -> u32 {
    if at == 0 {
        return 0;
    }
    // SAFETY: the kernel reads it, and `add` was promised that it may.
    unsafe { (at as *const u32).read_volatile() }
}
