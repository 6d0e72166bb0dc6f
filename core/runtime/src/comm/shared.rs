//! An engine shared between the caller and a progress thread, once there is asynchronous work.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::Result;
use crate::exec::engine::Engine;
use crate::exec::host::Poll;

/// One rank's engine behind a lock.
pub(crate) struct SharedEngine {
    engine: Mutex<Option<Engine>>,
    /// Callers that drive or are about to; the progress thread keeps away while there are any.
    drivers: AtomicU32,
    work: Condvar,
}

impl SharedEngine {
    /// Wraps an engine and, if wanted, starts the thread that drives it when nobody else does.
    pub(crate) fn new(engine: Engine, thread: ProgressThread) -> Result<Arc<SharedEngine>> {
        let shared = Arc::new(SharedEngine {
            engine: Mutex::new(Some(engine)),
            drivers: AtomicU32::new(0),
            work: Condvar::new(),
        });
        if thread == ProgressThread::WhenIdle {
            let weak = Arc::downgrade(&shared);
            std::thread::Builder::new().name("ccl-progress".into()).spawn(move || progress(&weak)).map_err(
                |error| {
                    crate::Error::system(
                        "start the progress thread",
                        error,
                        "raise the limit on threads, or set CCL_PROGRESS_THREAD=0",
                    )
                },
            )?;
        }
        Ok(shared)
    }

    /// Runs `f` with the engine; `None` after it was taken.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.drivers.fetch_add(1, Ordering::Relaxed);
        let result = self.lock().as_mut().map(f);
        self.drivers.fetch_sub(1, Ordering::Relaxed);
        self.work.notify_one();
        result
    }

    /// One round of driving by a caller that waits.
    pub(crate) fn drive_once(&self) -> Result<()> {
        let outcome = self.with(|engine| match engine.poll() {
            Ok(Poll::Stalled) => {
                let mut patience = engine.patience();
                engine.stalled(&mut patience)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        });
        outcome.unwrap_or(Ok(()))
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().as_ref().is_none_or(Engine::is_idle)
    }

    /// Takes the engine away for good.
    pub(crate) fn take(&self) -> Option<Engine> {
        let engine = self.lock().take();
        self.work.notify_all();
        engine
    }

    fn lock(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether asynchronous operations progress when nobody waits for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgressThread {
    /// Never: only waiting callers drive.
    Never,
    /// A thread drives while work is outstanding and nobody else does.
    WhenIdle,
}

/// The progress thread: sleeps while there is nothing to do or somebody else does it, ends with
/// the engine.
fn progress(weak: &Weak<SharedEngine>) {
    while let Some(shared) = weak.upgrade() {
        let mut guard = shared.lock();
        let Some(engine) = guard.as_mut() else { return };
        if engine.is_idle() || engine.failure().is_some() || shared.drivers.load(Ordering::Relaxed) > 0 {
            let wait = shared.work.wait_timeout(guard, IDLE_CHECK);
            drop(wait);
            continue;
        }
        let mut patience = engine.patience();
        for _ in 0..POLLS_PER_LOCK {
            let stalled = match engine.poll() {
                Ok(Poll::Done) | Err(_) => break,
                Ok(Poll::Progress) => continue,
                Ok(Poll::Stalled) => engine.stalled(&mut patience),
            };
            if stalled.is_err() || shared.drivers.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
    }
}

/// How often an idle progress thread looks whether its communicator is gone.
const IDLE_CHECK: Duration = Duration::from_millis(100);
/// Polls between releases of the lock.
const POLLS_PER_LOCK: usize = 256;
