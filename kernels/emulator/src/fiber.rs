//! One thread of a kernel on a stack of its own.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr;
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::delay::Pending;
use crate::dialect::{HOST, Thread, ccl_emu_enter};
use crate::emulation::Window;
use crate::kernel::Entry;
use crate::line::{Line, PART_BYTES};

/// What a fiber asks for when it leaves its stack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// Somebody else may run.
    Point,
    /// It waits until the word at `at` changes.
    Spin { at: usize },
    /// It is at a barrier of `threads` threads.
    Sync { id: u32, threads: u32, vote: bool, line: u32 },
    /// It takes part in a function of its warp.
    Warp { code: u32, lanes: u32, value: u64, argument: u32, line: u32 },
    /// It has a part of a line that its warp moves.
    Line { code: u32, at: usize, part: [u8; PART_BYTES], line: u32 },
    /// It found something wrong.
    Stop { why: &'static str, line: u32, at: usize },
    /// It is at the kernel's end.
    Done,
}

/// A fiber as kernels know it, by address.
#[repr(C)]
pub(crate) struct Fiber {
    /// First: kernels see only this.
    pub(crate) thread: Thread,
    yielder: *const Yielder<(), ()>,
    request: Request,
    /// What a request that waits gets.
    pub(crate) answer: u64,
    /// The line it moves, once its warp has met.
    pub(crate) line: Option<Rc<Line>>,
    /// Stores of its block that are held back.
    pub(crate) pending: Option<Rc<RefCell<Pending>>>,
    /// Where it may load and store; everywhere if empty.
    allowed: Rc<[Range<usize>]>,
    /// Where stores reach the memory of several.
    pub(crate) windows: Rc<[Window]>,
    shared_bytes: usize,
    /// Turns of all fibers so far.
    pub(crate) clock: Rc<Cell<u64>>,
}

/// What all fibers of a block have in common.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) shared: *mut u8,
    pub(crate) shared_bytes: usize,
    pub(crate) threads: u32,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
    pub(crate) plant: u32,
    pub(crate) pending: Option<Rc<RefCell<Pending>>>,
    pub(crate) allowed: Rc<[Range<usize>]>,
    pub(crate) windows: Rc<[Window]>,
    pub(crate) clock: Rc<Cell<u64>>,
}

/// A fiber and its stack.
pub(crate) struct Running {
    /// Made by `Box`; an address, because kernels have it too.
    fiber: *mut Fiber,
    coroutine: Option<Coroutine<(), (), (), DefaultStack>>,
}

impl Running {
    /// Thread `thread` of a block. `args` outlives it.
    pub(crate) fn new(around: &Surroundings, thread: u32, entry: Entry, args: *const u8) -> Running {
        let fiber = Box::into_raw(Box::new(Fiber::new(around, thread)));
        let coroutine = Coroutine::with_stack(stack(), move |yielder, ()| {
            // SAFETY: the fiber is freed after the coroutine, which is active or not but never while `Running` looks
            // at the fiber. The kernel takes what `Emulation::add` was promised to be its arguments.
            unsafe {
                (*fiber).yielder = yielder;
                entry(args.cast());
            }
        });
        Running { fiber, coroutine: Some(coroutine) }
    }

    /// Runs until it asks for something, `fuel` points at most.
    pub(crate) fn resume(&mut self, fuel: i32, plain_fuel: i32) -> Request {
        let Some(coroutine) = &mut self.coroutine else { return Request::Done };
        // SAFETY: valid until `drop`, and the kernel does not run now.
        unsafe {
            (*self.fiber).thread.fuel = fuel;
            (*self.fiber).thread.plain_fuel = plain_fuel;
            ccl_emu_enter(self.fiber.cast());
        }
        match coroutine.resume(()) {
            // SAFETY: as above; it has left its stack.
            CoroutineResult::Yield(()) => unsafe { (*self.fiber).request },
            CoroutineResult::Return(()) => {
                self.recycle();
                Request::Done
            }
        }
    }

    /// Strong and plain stores so far.
    pub(crate) fn stores(&self) -> u64 {
        // SAFETY: valid until `drop`, and the kernel does not run now.
        unsafe { (*self.fiber).thread.stores }
    }

    /// Gives what the fiber waits for.
    pub(crate) fn answer(&mut self, answer: u64) {
        // SAFETY: valid until `drop`, and the kernel does not run now.
        unsafe { (*self.fiber).answer = answer };
    }

    /// Gives the line that the fiber takes part in.
    pub(crate) fn answer_line(&mut self, line: Option<Rc<Line>>) {
        // SAFETY: valid until `drop`, and the kernel does not run now.
        unsafe { (*self.fiber).line = line };
    }

    fn recycle(&mut self) {
        let Some(coroutine) = self.coroutine.take() else { return };
        STACKS.with_borrow_mut(|stacks| {
            if stacks.len() < KEPT_STACKS {
                stacks.push(coroutine.into_stack());
            }
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(coroutine) = &mut self.coroutine {
            // SAFETY: what is on the stack are frames of kernels and of `dialect`, neither of which own anything.
            unsafe { coroutine.force_reset() };
        }
        self.recycle();
        // SAFETY: made by `Box::into_raw`, and the coroutine that had it is gone.
        drop(unsafe { Box::from_raw(self.fiber) });
    }
}

impl Fiber {
    fn new(around: &Surroundings, thread: u32) -> Fiber {
        Fiber {
            thread: Thread {
                host: &HOST,
                shared: around.shared,
                thread,
                threads: around.threads,
                block: around.block,
                blocks: around.blocks,
                plant: around.plant,
                watched: u32::from(around.pending.is_some() || !around.allowed.is_empty()),
                fuel: 0,
                plain_fuel: 0,
                stores: 0,
            },
            yielder: ptr::null(),
            request: Request::Point,
            answer: 0,
            line: None,
            pending: around.pending.clone(),
            allowed: around.allowed.clone(),
            windows: around.windows.clone(),
            shared_bytes: around.shared_bytes,
            clock: around.clock.clone(),
        }
    }

    /// Leaves the stack with a request, and returns with the answer.
    ///
    /// # Safety
    ///
    /// Called on the fiber's own stack.
    pub(crate) unsafe fn ask(fiber: *mut Fiber, request: Request) -> u64 {
        // SAFETY: on its own stack the fiber is running, so its yielder is valid, and nobody else touches it.
        unsafe {
            (*fiber).request = request;
            (*(*fiber).yielder).suspend(());
            (*fiber).answer
        }
    }

    /// Stops the fiber for good if it may not touch the bytes at `at`.
    ///
    /// # Safety
    ///
    /// As [`Fiber::ask`].
    pub(crate) unsafe fn check(fiber: *mut Fiber, at: usize, bytes: usize) {
        // SAFETY: the caller's contract.
        let (allowed, shared) = unsafe {
            let start = (*fiber).thread.shared as usize;
            (&*(*fiber).allowed, start..start + (*fiber).shared_bytes)
        };
        let inside = |range: &Range<usize>| range.start <= at && at + bytes <= range.end;
        if allowed.is_empty() || allowed.iter().any(inside) || inside(&shared) {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe { Fiber::ask(fiber, Request::Stop { why: "access outside of what is allowed", line: 0, at }) };
    }
}

fn stack() -> DefaultStack {
    STACKS.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        DefaultStack::new(STACK_BYTES)
            .expect("address space for the stack of a fiber; emulate fewer threads at once")
    })
}

thread_local! {
    /// Stacks for the next fibers.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of a fiber's stack, beside its guard page.
const STACK_BYTES: usize = 64 << 10;

/// Stacks that a system thread keeps.
const KEPT_STACKS: usize = 8192;
