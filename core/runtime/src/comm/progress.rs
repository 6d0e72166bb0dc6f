//! The progress thread, "ccl-progress": one for the process, whatever the number of communicators.
//!
//! It drives engines that have asynchronous work and nobody who waits for it, and sleeps otherwise. It
//! starts with the first communicator that makes an asynchronous call and ends with the last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};

use tracing::error;

use super::shared::{Driven, SharedEngine};
use crate::discover::placement;
use crate::error::{Error, Result};

/// Counts one more engine that may need the thread; starts it for the first.
///
/// Errors: the system is out of threads.
pub(super) fn join() -> Result<()> {
    let mut state = lock();
    if state.pid != std::process::id() {
        // After fork the thread, its engines and its calls are the parent's.
        *state = State { pid: std::process::id(), ..State::NONE };
    }
    if !state.running {
        let thread = std::thread::Builder::new().name("ccl-progress".into()).spawn(run);
        thread.map_err(|error| {
            Error::system(
                "start the progress thread",
                error,
                "raise the limit on threads, or set CCL_PROGRESS_THREAD=0",
            )
        })?;
        state.running = true;
    }
    state.users += 1;
    Ok(())
}

/// Counts one engine less; the thread ends after the last.
pub(super) fn leave() {
    let mut state = lock();
    state.users = state.users.saturating_sub(1);
    if state.users == 0 {
        WORK.notify_one();
    }
}

/// Asks the thread to drive an engine until that is idle or somebody else drives it.
pub(super) fn call(engine: Weak<SharedEngine>) {
    lock().calls.push(engine);
    WORK.notify_one();
}

/// What the thread is told, and whether there is one.
struct State {
    /// The process it runs in.
    pid: u32,
    running: bool,
    users: usize,
    calls: Vec<Weak<SharedEngine>>,
}

impl State {
    const NONE: State = State { pid: 0, running: false, users: 0, calls: Vec::new() };
}

/// The second thread that communicators share, after the control thread.
static STATE: Mutex<State> = Mutex::new(State::NONE);
/// Signalled for calls, and when the last user leaves.
static WORK: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run() {
    placement::keep_off_bound_threads();
    let mut driven: Vec<Driven> = Vec::new();
    let mut turn = 0;
    while let Some(calls) = take_calls(driven.is_empty()) {
        driven.extend(calls.into_iter().map(Driven::new));
        let mut moved = false;
        driven.retain_mut(|engine| survive(engine, |engine| engine.drive(&mut moved)).unwrap_or(false));
        if !moved && !driven.is_empty() {
            // One pause for all: whose bell may end it changes from turn to turn.
            turn += 1;
            let chosen = turn % driven.len();
            if survive(&mut driven[chosen], Driven::pause).is_none() {
                driven.remove(chosen);
            }
        }
    }
}

/// Drives one engine. A panic ends its communicator, and no other; then there is nothing.
fn survive<R>(engine: &mut Driven, drive: impl FnOnce(&mut Driven) -> R) -> Option<R> {
    if let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| drive(engine))) {
        return Some(outcome);
    }
    error!(target: "ccl::progress", "a communicator ends by a panic: this is a bug in ccl");
    engine.forsake();
    None
}

/// The calls that have come; sleeps until there are some if there is nothing else to do. Nothing when
/// nobody needs the thread any more.
fn take_calls(is_idle: bool) -> Option<Vec<Weak<SharedEngine>>> {
    let mut state = lock();
    while state.users > 0 && is_idle && state.calls.is_empty() {
        state = WORK.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    if state.users == 0 {
        state.running = false;
        state.calls.clear();
        return None;
    }
    Some(std::mem::take(&mut state.calls))
}
