//! What is going on in the plugin: which calls are running, and since when.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Shared between the threads of a clause and who waits for it.
pub(crate) struct Pulse {
    /// How long anything that must come may take.
    pub(crate) patience: Duration,
    running: Mutex<HashMap<ThreadId, (&'static str, Instant)>>,
    complaints: Mutex<Vec<String>>,
}

impl Pulse {
    pub(crate) fn new(patience: Duration) -> Pulse {
        Pulse { patience, running: Mutex::default(), complaints: Mutex::default() }
    }

    /// Runs a call of the plugin, and notes that it runs.
    pub(crate) fn during<R>(&self, call: &'static str, run: impl FnOnce() -> R) -> R {
        let me = thread::current().id();
        lock(&self.running).insert(me, (call, Instant::now()));
        let returned = run();
        lock(&self.running).remove(&me);
        returned
    }

    /// A call that has not returned for longer than a wait may take.
    pub(crate) fn stuck(&self) -> Option<&'static str> {
        let running = lock(&self.running);
        running.values().find(|(_, since)| since.elapsed() > self.patience).map(|(call, _)| *call)
    }

    /// Notes what went wrong where nobody could be told, as in a close.
    pub(crate) fn complain(&self, words: String) {
        lock(&self.complaints).push(words);
    }

    pub(crate) fn complaint(&self) -> Option<String> {
        lock(&self.complaints).first().cloned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
