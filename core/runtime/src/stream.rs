//! Host streams: order between asynchronous operations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::comm::shared::{Driver, SharedEngine};
use crate::error::{Error, Result};
use crate::exec::device::failed;

/// An ordered queue of asynchronous operations, possibly of several communicators.
///
/// Operations enqueued on a stream run one after the other, in the order they were enqueued.
/// Nothing runs on the stream itself: whoever waits ([`Stream::synchronize`]) drives the
/// operations, and the progress thread does so when nobody waits. Cheap to clone; clones are the same
/// stream. May be used from any thread.
///
/// A stream made by [`Stream::on_device`] or [`Stream::cuda`] is a CUDA stream: operations of ranks that work on its
/// device are put on it.
#[derive(Clone, Default)]
pub struct Stream {
    state: Arc<State>,
    device: Option<Arc<ccl_cuda::Stream>>,
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
        if let Some(device) = &self.device
            && !matches!(device.query(), Ok(ccl_cuda::Progress::Done))
        {
            return false;
        }
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
        if let Some(device) = &self.device {
            self.synchronize_device(device)?;
        }
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

    /// A CUDA stream.
    pub(crate) fn of_device(device: Arc<ccl_cuda::Stream>) -> Stream {
        Stream { state: Arc::default(), device: Some(device) }
    }

    /// The CUDA stream, if it is one.
    pub(crate) fn device(&self) -> Option<&Arc<ccl_cuda::Stream>> {
        self.device.as_ref()
    }

    /// From now on whoever waits for the stream drives the engine.
    pub(crate) fn is_used_by(&self, engine: &Arc<SharedEngine>) {
        let mut inner = self.lock();
        if !inner.engines.iter().any(|known| Arc::ptr_eq(known, engine)) {
            inner.engines.push(Arc::clone(engine));
        }
    }

    /// Drives until the CUDA stream is idle.
    fn synchronize_device(&self, device: &ccl_cuda::Stream) -> Result<()> {
        let engines = self.lock().engines.clone();
        let mut drivers: Vec<_> = engines.iter().map(|engine| engine.drive()).collect();
        let idle = loop {
            match device.query() {
                Ok(ccl_cuda::Progress::NotReady) => drivers.iter_mut().try_for_each(Driver::round)?,
                idle => break idle,
            }
            std::thread::yield_now();
        };
        // Calls whose kernels have ended may have failed, which says more than the stream does, or have more to do.
        drivers.iter_mut().try_for_each(Driver::round)?;
        idle.map_err(failed)?;
        drop(drivers);
        self.lock().engines.retain(|engine| !engine.is_idle());
        Ok(())
    }

    /// A gate for the next operation, which `engine` will run.
    pub(crate) fn enqueue(&self, engine: &Arc<SharedEngine>) -> Gate {
        let ticket = self.state.enqueued.fetch_add(1, Ordering::Relaxed);
        self.is_used_by(engine);
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
