//! Host streams: order between asynchronous operations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::comm::shared::{Driver, SharedEngine};
use crate::error::{Error, Result};

/// An ordered queue of asynchronous operations, possibly of several communicators.
///
/// Operations enqueued on a stream run one after the other, in the order they were enqueued.
/// Nothing runs on the stream itself: whoever waits ([`Stream::synchronize`]) drives the
/// operations, and the progress thread does so when nobody waits. Cheap to clone; clones are the same
/// stream. May be used from any thread.
#[derive(Clone, Default)]
pub struct Stream {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    enqueued: AtomicU64,
    passed: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    failed: Option<Error>,
    /// Engines with operations on this stream.
    engines: Vec<Arc<SharedEngine>>,
}

impl Stream {
    /// An empty stream.
    pub fn new() -> Stream {
        Stream::default()
    }

    /// Whether everything enqueued so far is complete. Never blocks; drives nothing.
    pub fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `Gate::pass`, so that results are visible.
        self.state.passed.load(Ordering::Acquire) >= self.state.enqueued.load(Ordering::Relaxed)
    }

    /// Drives until everything enqueued so far is complete. Blocks, at most until the deadline of
    /// each operation.
    ///
    /// # Errors
    ///
    /// The first error of any operation on the stream.
    pub fn synchronize(&self) -> Result<()> {
        let target = self.state.enqueued.load(Ordering::Relaxed);
        let engines = if self.is_idle() { Vec::new() } else { self.lock().engines.clone() };
        let mut drivers: Vec<_> = engines.iter().map(|engine| engine.drive()).collect();
        while self.state.passed.load(Ordering::Acquire) < target {
            if let Some(error) = &self.lock().failed {
                return Err(error.clone());
            }
            drivers.iter_mut().try_for_each(Driver::round)?;
        }
        drop(drivers);
        let mut inner = self.lock();
        match inner.failed.clone() {
            Some(error) => Err(error),
            None => {
                inner.engines.retain(|engine| !engine.is_idle());
                Ok(())
            }
        }
    }

    /// A gate for the next operation, which `engine` will run.
    pub(crate) fn enqueue(&self, engine: &Arc<SharedEngine>) -> Gate {
        let ticket = self.state.enqueued.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.lock();
        if !inner.engines.iter().any(|known| Arc::ptr_eq(known, engine)) {
            inner.engines.push(Arc::clone(engine));
        }
        Gate { state: Arc::clone(&self.state), ticket }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.state.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation's place in a stream.
pub(crate) struct Gate {
    state: Arc<State>,
    ticket: u64,
}

impl Gate {
    /// Whether everything before it on the stream is complete.
    pub(crate) fn is_open(&self) -> bool {
        // Acquire: pairs with the Release in `pass`: what earlier operations wrote is visible.
        self.state.passed.load(Ordering::Acquire) >= self.ticket
    }

    /// The operation is complete.
    pub(crate) fn pass(self) {
        // Release: pairs with the Acquire loads above.
        self.state.passed.store(self.ticket + 1, Ordering::Release);
    }

    /// The operation will never complete.
    pub(crate) fn fail(self, error: Error) {
        let mut inner = self.state.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.failed.get_or_insert(error);
    }
}
