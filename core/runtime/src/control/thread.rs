//! The control thread, "ccl-control": one for the process, whatever the number of communicators.
//!
//! It serves [`Charge`]s, the sockets of members and roots, and sleeps in `poll` until one of them is
//! ready or due. It starts with the first charge and ends with the last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use tracing::error;

use crate::bootstrap::tcp::{self, Waker};
use crate::discover::placement;
use crate::error::{Error, Result};

/// Something that the control thread serves.
pub(crate) trait Charge: Send {
    /// Adds the sockets to watch.
    fn interests<'a>(&'a self, polled: &mut Vec<PollFd<'a>>);

    /// When to attend to it at the latest; absent if only when a socket is ready.
    fn due(&self) -> Option<Instant>;

    /// Takes in what happened: whether each of the last interests is ready, or nothing if it is the first
    /// time. Also called when it is due and when the thread was woken. Never blocks.
    fn attend(&mut self, ready: &[bool]) -> Attended;

    /// Closes everything and says so to whoever waits for that.
    fn end(self: Box<Self>);
}

/// Whether a charge goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attended {
    GoesOn,
    IsOver,
}

/// Serves `charge` from now on.
///
/// Errors: the system is out of descriptors or threads.
pub(crate) fn serve(charge: Box<dyn Charge>) -> Result<()> {
    let mut thread = lock();
    // After fork the thread is the parent's.
    if let Some(thread) = thread.as_mut().filter(|thread| thread.pid == std::process::id()) {
        thread.arrivals.push(charge);
        thread.waker.wake();
        return Ok(());
    }
    let waker = Arc::new(Waker::new()?);
    let own = Arc::clone(&waker);
    let started = std::thread::Builder::new().name("ccl-control".into()).spawn(move || run(&own));
    started.map_err(|error| {
        Error::system("start the thread ccl-control", error, "raise the limit of threads")
    })?;
    *thread = Some(Thread { pid: std::process::id(), waker, arrivals: vec![charge] });
    Ok(())
}

/// Makes the thread attend to all its charges soon.
pub(crate) fn wake() {
    if let Some(thread) = &*lock() {
        thread.waker.wake();
    }
}

/// The thread that runs, if one does: the only state of the process that communicators share but for
/// the table of plugins, so that their number does not become a number of threads.
static THREAD: Mutex<Option<Thread>> = Mutex::new(None);

struct Thread {
    /// The process it runs in.
    pid: u32,
    waker: Arc<Waker>,
    /// Charges that it has not taken over yet.
    arrivals: Vec<Box<dyn Charge>>,
}

fn lock() -> MutexGuard<'static, Option<Thread>> {
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(waker: &Arc<Waker>) {
    placement::keep_off_bound_threads();
    let mut charges: Vec<Box<dyn Charge>> = Vec::new();
    while let Some(arrivals) = next_arrivals(waker, charges.is_empty()) {
        for charge in arrivals {
            charges.extend(attend(charge, &[]));
        }
        turn(&mut charges, waker);
    }
}

/// The charges that have come since the last time. With none at all, the thread is over: nothing.
fn next_arrivals(waker: &Arc<Waker>, is_idle: bool) -> Option<Vec<Box<dyn Charge>>> {
    let mut thread = lock();
    let own = thread.as_mut().filter(|thread| Arc::ptr_eq(&thread.waker, waker))?;
    let arrivals = std::mem::take(&mut own.arrivals);
    if is_idle && arrivals.is_empty() {
        *thread = None;
        return None;
    }
    Some(arrivals)
}

/// Sleeps until something happens, and attends to those it concerns.
fn turn(charges: &mut Vec<Box<dyn Charge>>, waker: &Waker) {
    if charges.is_empty() {
        return;
    }
    let mut polled = vec![PollFd::new(waker, PollFlags::IN)];
    let mut ends = Vec::with_capacity(charges.len());
    for charge in &*charges {
        charge.interests(&mut polled);
        ends.push(polled.len());
    }
    let due = charges.iter().filter_map(|charge| charge.due()).min();
    tcp::wait(&mut polled, due.map(|due| due.saturating_duration_since(Instant::now())));
    let ready: Vec<bool> = polled.iter().map(|entry| !entry.revents().is_empty()).collect();
    let woken = ready[0];
    if woken {
        waker.clear();
    }
    let now = Instant::now();
    let mut start = 1;
    for (charge, end) in std::mem::take(charges).into_iter().zip(ends) {
        let ready = &ready[start..end];
        start = end;
        let concerned = woken || ready.contains(&true) || charge.due().is_some_and(|due| due <= now);
        if concerned {
            charges.extend(attend(charge, ready));
        } else {
            charges.push(charge);
        }
    }
}

/// Attends to one charge; nothing if it is over. A panic ends it, and no other.
fn attend(mut charge: Box<dyn Charge>, ready: &[bool]) -> Option<Box<dyn Charge>> {
    match catch_unwind(AssertUnwindSafe(|| charge.attend(ready))) {
        Ok(Attended::GoesOn) => return Some(charge),
        Ok(Attended::IsOver) => {}
        Err(_) => {
            error!(target: "ccl::control", "a control connection ends by a panic: this is a bug in ccl")
        }
    }
    charge.end();
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Says when it is attended to, and ends after so many times.
    struct Counter {
        left: u32,
        every: Duration,
        last: Instant,
        attended: Sender<(u32, std::thread::ThreadId)>,
    }

    impl Charge for Counter {
        fn interests<'a>(&'a self, _: &mut Vec<PollFd<'a>>) {}

        fn due(&self) -> Option<Instant> {
            Some(self.last + self.every)
        }

        fn attend(&mut self, _: &[bool]) -> Attended {
            self.last = Instant::now();
            if self.left == 0 {
                return Attended::IsOver;
            }
            self.left -= 1;
            assert!(self.left != PANICS, "this is what the test is about");
            self.attended.send((self.left, std::thread::current().id())).unwrap();
            Attended::GoesOn
        }

        fn end(self: Box<Self>) {
            let _ = self.attended.send((u32::MAX, std::thread::current().id()));
        }
    }

    #[test]
    fn charges_share_a_thread_and_end_one_by_one() {
        let (attended, heard) = channel();
        for left in [3, PANICS + 2, 5] {
            let every = Duration::from_millis(5);
            let counter = Counter { left, every, last: Instant::now(), attended: attended.clone() };
            serve(Box::new(counter)).unwrap();
        }
        drop(attended);
        let heard: Vec<_> = heard.iter().collect();
        assert_eq!(heard.iter().filter(|(left, _)| *left == u32::MAX).count(), 3, "each ends once");
        assert_eq!(heard.iter().filter(|(left, _)| *left != u32::MAX).count(), 3 + 1 + 5);
        let threads: std::collections::HashSet<_> = heard.iter().map(|(_, thread)| *thread).collect();
        assert_eq!(threads.len(), 1);
    }

    const PANICS: u32 = 1000;
}
