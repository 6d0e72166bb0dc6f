//! The alarm: whether the communicator has failed, in one load.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Error;

/// Raised once, for good, with the first cause of the communicator's failure.
#[derive(Default)]
pub struct Alarm {
    raised: AtomicBool,
    error: OnceLock<Error>,
    wakers: Mutex<Vec<Waker>>,
}

/// Called when the alarm is raised.
pub type Waker = Box<dyn Fn() + Send + Sync>;

impl Alarm {
    /// Whether the communicator has failed: one relaxed load, for the innermost loops.
    #[inline]
    pub fn raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// The first cause, if the communicator has failed.
    ///
    /// Never `None` after [`Alarm::raised`] was true in the same thread.
    pub fn error(&self) -> Option<Error> {
        // The relaxed load in `raised` orders nothing, so a reader may be a moment early: `wait` returns
        // once the error, which was stored before the flag, is there.
        match self.raised() {
            true => Some(self.error.wait().clone()),
            false => self.error.get().cloned(),
        }
    }

    /// Calls `waker` when the alarm is raised, at once if it is already; possibly twice.
    ///
    /// It runs in the thread that raises the alarm, must not block, and must not call this method.
    /// What it captures lives as long as the alarm: capture a `Weak` where that would be a circle.
    pub fn on_raise(&self, waker: Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.raised() {
            waker();
        }
        wakers.push(waker);
    }

    /// Raises the alarm; false if it had been raised before, whose error then stays.
    pub(crate) fn raise(&self, error: Error) -> bool {
        if self.error.set(error).is_err() {
            return false;
        }
        self.raised.store(true, Ordering::Release);
        // Taking the lock orders this behind any `on_raise` that still saw the flag down: its waker is
        // in the list by then.
        for waker in self.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            waker();
        }
        true
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("error", &self.error.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn the_first_cause_stays_and_wakes() {
        let (alarm, woken) = (Alarm::default(), Arc::new(AtomicUsize::new(0)));
        let count = |woken: &Arc<AtomicUsize>| {
            let woken = woken.clone();
            Box::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        alarm.on_raise(count(&woken));
        assert!(!alarm.raised() && alarm.error().is_none());
        assert!(alarm.raise(Error::bug("first")));
        assert!(!alarm.raise(Error::bug("second")));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert_eq!(alarm.error().unwrap().cause(), "first");
        alarm.on_raise(count(&woken));
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }
}
