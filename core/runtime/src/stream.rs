//! Host streams: order between asynchronous operations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::comm::shared::{Driver, SharedEngine};
use crate::error::{Error, Fault, Result};
use crate::exec::device::failed;
use crate::memory::fork::Birthplace;

/// An ordered queue of asynchronous operations, possibly of several communicators.
///
/// Operations enqueued on a stream run one after the other, in the order they were enqueued.
/// Nothing runs on the stream itself: whoever waits ([`Stream::synchronize`]) drives the
/// operations, and the progress thread does so when nobody waits. Cheap to clone; clones are the same
/// stream. May be used from any thread; in a child after `fork` every use is a usage error.
///
/// A stream has failed once one of its operations has, or will never be made because its communicator was dropped. What is
/// behind that on the stream is not made either, which ends its communicator as well, on all ranks: they would wait for calls
/// that never come. Calls that are put on it afterwards are usage errors, and change nothing.
///
/// A stream made by [`Stream::on_device`] or [`Stream::cuda`] is a CUDA stream: operations of ranks that work on its
/// device are put on it.
#[derive(Clone, Default)]
pub struct Stream {
    state: Arc<State>,
    device: Option<Arc<ccl_cuda::Stream>>,
}

struct State {
    enqueued: AtomicU64,
    passed: AtomicU64,
    /// The first operation that will never complete: none behind it begins.
    lost: AtomicU64,
    inner: Mutex<Inner>,
    birthplace: Birthplace,
}

impl Default for State {
    fn default() -> State {
        let (enqueued, passed, lost) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(u64::MAX));
        State { enqueued, passed, lost, inner: Mutex::default(), birthplace: Birthplace::here() }
    }
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
        if let Some(device) = &self.device {
            let _relaxed = leave_captures_alone(device);
            if !matches!(device.query(), Ok(ccl_cuda::Progress::Done)) {
                return false;
            }
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
        self.state.birthplace.check()?;
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
        let _relaxed = leave_captures_alone(device);
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock()
    }
}

/// Lets this thread look at a stream while others capture theirs.
fn leave_captures_alone(stream: &ccl_cuda::Stream) -> Option<ccl_cuda::RelaxedCapture> {
    ccl_cuda::RelaxedCapture::enter(stream.context().driver()).ok()
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next place on a stream, for an operation of an engine that takes it once the engine has accepted the operation.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    stream: &'a Stream,
    engine: &'a Arc<SharedEngine>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(stream: &'a Stream, engine: &'a Arc<SharedEngine>) -> Turn<'a> {
        Turn { stream, engine }
    }

    /// The stream.
    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Refuses a stream that has failed, or is another process's. Nothing happens.
    pub(crate) fn check(&self) -> Result<()> {
        self.stream.state.birthplace.check()?;
        let Some(error) = &self.stream.lock().failed else { return Ok(()) };
        let cause = format!("expected a stream that has not failed, found one that has: {}", error.cause());
        Err(Error::usage(cause, "put calls on another stream"))
    }

    /// The gate of the operation, which the engine will run.
    pub(crate) fn take(self) -> Gate {
        let ticket = self.stream.state.enqueued.fetch_add(1, Ordering::Relaxed);
        self.stream.is_used_by(self.engine);
        Gate { state: Arc::clone(&self.stream.state), ticket, is_settled: false }
    }
}

/// An operation's place in a stream. One that is dropped without a word fails: the stream must not wait for it.
pub(crate) struct Gate {
    state: Arc<State>,
    ticket: u64,
    /// Whether it is known what became of the operation.
    is_settled: bool,
}

impl Gate {
    /// Whether everything before it on the stream is complete.
    pub(crate) fn is_open(&self) -> bool {
        // Acquire: pairs with the Release in `pass`: what earlier operations wrote is visible.
        self.state.passed.load(Ordering::Acquire) >= self.ticket
    }

    /// Why it will never open, if so: an operation before it has failed.
    pub(crate) fn lost(&self) -> Option<Error> {
        // Acquire: pairs with the Release in `lose`, after the error was put down.
        if self.state.lost.load(Ordering::Acquire) >= self.ticket {
            return None;
        }
        let inner = self.state.lock();
        let first = inner.failed.as_ref().map_or("nobody knows how", Error::cause);
        let cause =
            format!("expected the stream to come to this call, found that one before it failed: {first}");
        let advice =
            "see that call's own error; calls that are not to end together go on streams of their own";
        Some(Error::new(Fault::Aborted, cause, advice))
    }

    /// The operation is complete.
    pub(crate) fn pass(mut self) {
        self.is_settled = true;
        // Release: pairs with the Acquire loads above.
        self.state.passed.store(self.ticket + 1, Ordering::Release);
    }

    /// The operation will never complete.
    pub(crate) fn fail(mut self, error: Error) {
        self.lose(error);
    }

    fn lose(&mut self, error: Error) {
        self.is_settled = true;
        let mut inner = self.state.lock();
        inner.failed.get_or_insert(error);
        // Release: pairs with the Acquire in `lost`: who finds it finds the error.
        self.state.lost.fetch_min(self.ticket, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if !self.is_settled {
            self.lose(not_made());
        }
    }
}

#[cold]
fn not_made() -> Error {
    let cause = "expected every call on the stream to be made, found one that was given up";
    Error::new(Fault::Aborted, cause, "see what that call returned")
}
