//! The delivery thread, "ccl-profiler": one for the process, and only while a profiler is in use.
//!
//! It passes on what was put down and is the only thread that calls profilers. It sleeps while there is
//! nothing; whoever puts something down wakes it, and it then looks again after a moment rather than for
//! each record.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::delivery::Delivery;
use super::emitter::now_ns;
use super::share::Share;
use crate::discover::placement;
use crate::error::{Error, Result};

/// What wakes the thread.
#[derive(Default)]
pub(super) struct Bell {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    /// Wakes the thread if it sleeps for want of news.
    pub(super) fn wake_if_asleep(&self) {
        // Relaxed: the fences of `Emitter::put` and `doze` order it.
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the thread whatever it does.
    pub(super) fn wake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Sleeps until there is news, unless there is some already.
    fn doze(&self, has_news: impl Fn() -> bool) {
        self.asleep.store(true, Ordering::Relaxed);
        // SeqCst: see `Emitter::put`.
        fence(Ordering::SeqCst);
        if has_news() {
            self.asleep.store(false, Ordering::Relaxed);
        } else {
            std::thread::park();
        }
    }
}

/// That a communicator's profiler was finalised.
#[derive(Default)]
pub(super) struct Done(Mutex<bool>, Condvar);

impl Done {
    /// Waits until it was, for so long at most; whether it was.
    pub(super) fn wait(&self, most: Duration) -> bool {
        let done = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.1.wait_timeout_while(done, most, |done| !*done);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn tell(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }
}

/// Has the thread serve another communicator, whose delivery `make` makes with the thread's bell.
///
/// Errors: the system is out of threads.
pub(super) fn serve<T>(done: Arc<Done>, make: impl FnOnce(Arc<Bell>) -> (Delivery, T)) -> Result<T> {
    let mut state = lock();
    if state.pid != std::process::id() {
        // After fork the thread and its deliveries are the parent's; the copies here are not touched.
        std::mem::forget(std::mem::replace(&mut *state, State { pid: std::process::id(), ..State::NONE }));
    }
    let bell = match &state.bell {
        Some(bell) => Arc::clone(bell),
        None => {
            let bell = Arc::<Bell>::default();
            let its = Arc::clone(&bell);
            let thread = std::thread::Builder::new().name("ccl-profiler".into()).spawn(move || run(&its));
            let thread = thread.map_err(|error| {
                Error::system("start the profilers' thread", error, "raise the limit on threads")
            })?;
            // Nobody else sets it, and the thread waits for this lock before it sleeps.
            let _ = bell.thread.set(thread.thread().clone());
            state.bell = Some(Arc::clone(&bell));
            bell
        }
    };
    let (delivery, value) = make(Arc::clone(&bell));
    state.arrived.push((delivery, done));
    drop(state);
    bell.wake();
    Ok(value)
}

/// What the thread is told, and whether there is one.
struct State {
    /// The process it runs in.
    pid: u32,
    /// Of the thread, while it runs.
    bell: Option<Arc<Bell>>,
    arrived: Vec<(Delivery, Arc<Done>)>,
}

impl State {
    const NONE: State = State { pid: 0, bell: None, arrived: Vec::new() };
}

/// The third thread that communicators share, after the control and the progress thread.
static STATE: Mutex<State> = Mutex::new(State::NONE);

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(bell: &Arc<Bell>) {
    placement::keep_off_bound_threads();
    let mut served: Vec<(Delivery, Arc<Done>)> = Vec::new();
    loop {
        {
            let mut state = lock();
            served.append(&mut state.arrived);
            if served.is_empty() {
                state.bell = None;
                return;
            }
        }
        let (mut moved, begun) = (false, worked());
        for index in (0..served.len()).rev() {
            let (delivery, _) = &mut served[index];
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                moved |= delivery.deliver();
                delivery.is_over()
            }));
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    let (delivery, done) = served.swap_remove(index);
                    let _ = catch_unwind(AssertUnwindSafe(|| delivery.finish()));
                    done.tell();
                    moved = true;
                }
                Err(_) => {
                    tracing::error!(target: "ccl::profiler", "delivery ends by a panic: this is a bug in ccl");
                    served.swap_remove(index).1.tell();
                }
            }
        }
        let due = served.iter().filter_map(|(delivery, _)| delivery.due_ns()).min();
        if let Some(due) = due {
            let left = Duration::from_nanos(due.saturating_sub(now_ns()));
            std::thread::park_timeout(left.min(Share::MOMENT));
        } else if moved {
            // What gathers meanwhile is passed on together; and where ranks need this core, they have it meanwhile.
            let busy = worked().saturating_sub(begun);
            let share = served.iter().map(|(delivery, _)| delivery.share()).max().unwrap_or(Share::ALL);
            std::thread::park_timeout(share.rest(busy));
        } else {
            bell.doze(|| {
                !lock().arrived.is_empty() || served.iter().any(|(delivery, _)| delivery.has_news())
            });
        }
    }
}

/// How long this thread has had a core: what a profiler waits for, and what ranks take, is nobody's work.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_no_work() {
        let begun = worked();
        std::thread::sleep(Duration::from_millis(50));
        assert!(worked() - begun < Duration::from_millis(25));
        while worked() - begun < Duration::from_millis(25) {
            std::hint::spin_loop();
        }
    }
}
