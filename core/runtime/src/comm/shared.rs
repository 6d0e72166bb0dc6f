//! An engine shared between the caller and the progress thread, once there is asynchronous work.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::progress;
use crate::error::Result;
use crate::exec::engine::{Engine, Patience};
use crate::exec::host::Poll;

/// One rank's engine behind a lock.
pub(crate) struct SharedEngine {
    engine: Mutex<Option<Engine>>,
    /// Callers that drive or are about to; the progress thread keeps away while there are any.
    drivers: AtomicU32,
    /// The progress thread has the engine, or will find it among its calls.
    called: AtomicBool,
    thread: ProgressThread,
    this: Weak<SharedEngine>,
}

impl SharedEngine {
    /// Wraps an engine; if wanted, the process's progress thread drives it when nobody else does.
    pub(crate) fn new(engine: Engine, thread: ProgressThread) -> Result<Arc<SharedEngine>> {
        if thread == ProgressThread::WhenIdle {
            progress::join()?;
        }
        Ok(Arc::new_cyclic(|this| SharedEngine {
            engine: Mutex::new(Some(engine)),
            drivers: AtomicU32::new(0),
            called: AtomicBool::new(false),
            thread,
            this: this.clone(),
        }))
    }

    /// Runs `f` with the engine; `None` after it was taken. What it leaves outstanding goes on.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let _driver = self.drive();
        self.lock().as_mut().map(f)
    }

    /// Keeps the progress thread away for as long as the caller drives.
    pub(crate) fn drive(&self) -> Driver<'_> {
        // SeqCst: see `Driver::drop`.
        self.drivers.fetch_add(1, Ordering::SeqCst);
        Driver { shared: self, patience: None }
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().as_ref().is_none_or(Engine::is_quiet)
    }

    /// Takes the engine away for good.
    pub(crate) fn take(&self) -> Option<Engine> {
        self.lock().take()
    }

    /// Whether the progress thread would have something to do, were it not for drivers.
    fn has_work(&self) -> bool {
        self.lock().as_ref().is_some_and(|engine| !engine.is_quiet() && engine.failure().is_none())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One round of driving; what to wait for if nothing moved.
    fn round(&self, patience: &mut Patience) -> Result<Round> {
        let mut engine = self.lock();
        let Some(engine) = engine.as_mut() else { return Ok(Round::Idle) };
        Ok(match engine.poll()? {
            Poll::Done => Round::Idle,
            Poll::Progress => {
                patience.renew();
                Round::Moved
            }
            Poll::Stalled => {
                engine.look_for_alarm()?;
                Round::Stalled
            }
        })
    }

    /// Waits a little, without holding the engine; fails it when the deadline has passed.
    fn pause(&self, patience: &mut Patience) -> Result<()> {
        let Some(bell) = self.lock().as_ref().map(|engine| engine.bell().clone()) else { return Ok(()) };
        match patience.pause(&bell) {
            true => self.lock().as_mut().map_or(Ok(()), |engine| Err(engine.expire())),
            false => Ok(()),
        }
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        if self.thread == ProgressThread::WhenIdle {
            progress::leave();
        }
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

enum Round {
    Idle,
    Moved,
    Stalled,
}

/// A caller that drives an engine.
pub(crate) struct Driver<'a> {
    shared: &'a SharedEngine,
    patience: Option<Patience>,
}

impl Driver<'_> {
    /// One round of driving by a caller that waits; pauses if nothing moved.
    pub(crate) fn round(&mut self) -> Result<()> {
        let patience = match &mut self.patience {
            Some(patience) => patience,
            None => {
                let Some(fresh) = self.shared.lock().as_ref().map(Engine::patience) else { return Ok(()) };
                self.patience.insert(fresh)
            }
        };
        match self.shared.round(patience)? {
            Round::Idle | Round::Moved => Ok(()),
            Round::Stalled => self.shared.pause(patience),
        }
    }
}

impl Drop for Driver<'_> {
    /// Leaves what is outstanding to the progress thread, unless it has it already.
    fn drop(&mut self) {
        let shared = self.shared;
        // SeqCst, here and in `Driven::give_up`: either this decrement is seen there, or the flag that was
        // lowered there is seen here.
        let others = shared.drivers.fetch_sub(1, Ordering::SeqCst) > 1;
        if others || shared.thread == ProgressThread::Never || !shared.has_work() {
            return;
        }
        if !shared.called.swap(true, Ordering::SeqCst) {
            progress::call(shared.this.clone());
        }
    }
}

/// An engine in the hands of the progress thread.
pub(super) struct Driven {
    engine: Weak<SharedEngine>,
    patience: Patience,
}

impl Driven {
    /// Nothing if the engine is gone.
    pub(super) fn new(engine: Weak<SharedEngine>) -> Option<Driven> {
        let patience = engine.upgrade()?.lock().as_ref()?.patience();
        Some(Driven { engine, patience })
    }

    /// Drives for a moment, says whether anything moved, and whether to go on.
    pub(super) fn drive(&mut self, moved: &mut bool) -> bool {
        let Some(shared) = self.engine.upgrade() else { return false };
        for _ in 0..ROUNDS_PER_TURN {
            if shared.drivers.load(Ordering::Relaxed) > 0 {
                return self.give_up(&shared);
            }
            match shared.round(&mut self.patience) {
                Ok(Round::Moved) => *moved = true,
                Ok(Round::Stalled) => return true,
                // A failure stays in the engine, where the next call finds it.
                Ok(Round::Idle) | Err(_) => return self.give_up(&shared),
            }
        }
        true
    }

    /// Waits a little for the engine's peers.
    pub(super) fn pause(&mut self) {
        if let Some(shared) = self.engine.upgrade() {
            // A missed deadline stays in the engine, where the next call finds it.
            let _ = shared.pause(&mut self.patience);
        }
    }

    /// Lets the engine go, unless its driver has just left; whether to go on.
    fn give_up(&self, shared: &SharedEngine) -> bool {
        // SeqCst: see `Driver::drop`.
        shared.called.store(false, Ordering::SeqCst);
        let alone = shared.drivers.load(Ordering::SeqCst) == 0;
        alone && shared.has_work() && !shared.called.swap(true, Ordering::SeqCst)
    }
}

/// Rounds before other engines have their turn.
const ROUNDS_PER_TURN: usize = 64;
