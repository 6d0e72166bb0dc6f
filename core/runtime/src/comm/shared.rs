//! An engine shared between the caller and the progress thread, once there is asynchronous work.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use super::progress;
use crate::error::Result;
use crate::exec::engine::{Engine, Patience};
use crate::exec::host::Poll;
use crate::memory::fork::Birthplace;
use crate::observe::profiler::{Ctrl, now_ns};
use crate::transport::Bell;

/// One rank's engine behind a lock.
pub(crate) struct SharedEngine {
    engine: Mutex<Option<Engine>>,
    /// Callers that drive or are about to; the progress thread keeps away while there are any.
    drivers: AtomicU32,
    /// The progress thread has the engine, or will find it among its calls.
    called: AtomicBool,
    thread: ProgressThread,
    this: Weak<SharedEngine>,
    birthplace: Birthplace,
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
            birthplace: Birthplace::here(),
        }))
    }

    /// Runs `f` with the engine; `None` after it was taken. What it leaves outstanding goes on.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let _driver = self.drive();
        self.lock().as_mut().map(|engine| engine.guarded(f))
    }

    /// Refuses to be used in a child after `fork`, where the lock may be held by a thread that is not there.
    pub(crate) fn check_birthplace(&self) -> Result<()> {
        self.birthplace.check()
    }

    /// Keeps the progress thread away for as long as the caller drives.
    pub(crate) fn drive(&self) -> Driver<'_> {
        // SeqCst: see `Driver::drop`.
        self.drivers.fetch_add(1, Ordering::SeqCst);
        Driver { shared: self, patience: None }
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        // Whoever holds the engine is a driver: see `Driven::give_up`.
        let _driver = self.drive();
        self.lock().as_ref().is_none_or(Engine::is_quiet)
    }

    /// Takes the engine away for good.
    pub(crate) fn take(&self) -> Option<Engine> {
        self.lock().take()
    }

    /// Whether the progress thread would have something to do, were it not for drivers.
    fn has_work(&self) -> bool {
        has_work(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine, unless somebody else has it: he may keep it for as long as he waits.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Engine>>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
        if self.thread == ProgressThread::WhenIdle && !self.birthplace.is_left() {
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

/// One round of driving.
fn round(engine: &mut Engine, patience: &mut Patience) -> Result<Round> {
    Ok(match engine.guarded(Engine::poll)? {
        Poll::Done => {
            // A graph may give it more to do at any time.
            patience.renew();
            Round::Idle
        }
        Poll::Progress => {
            patience.renew();
            Round::Moved
        }
        Poll::Stalled => {
            engine.look_for_alarm()?;
            // Who stays looks again as if something had moved.
            if engine.stays(patience) { Round::Moved } else { Round::Stalled }
        }
    })
}

/// A caller that drives an engine.
pub(crate) struct Driver<'a> {
    shared: &'a SharedEngine,
    patience: Option<Patience>,
}

impl Driver<'_> {
    /// One round of driving by a caller that waits; pauses if nothing moved.
    pub(crate) fn round(&mut self) -> Result<()> {
        self.shared.check_birthplace()?;
        let patience = match &mut self.patience {
            Some(patience) => patience,
            None => {
                let Some(fresh) = self.shared.lock().as_ref().map(Engine::patience) else { return Ok(()) };
                self.patience.insert(fresh)
            }
        };
        let driven = self.shared.lock().as_mut().map_or(Ok(Round::Idle), |engine| round(engine, patience));
        match driven? {
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
        if shared.birthplace.is_left()
            || others
            || shared.thread == ProgressThread::Never
            || !shared.has_work()
        {
            return;
        }
        if !shared.called.swap(true, Ordering::SeqCst) {
            progress::call(shared.this.clone());
        }
    }
}

/// An engine in the hands of the progress thread, which never waits for whoever holds it: others' work
/// may be what he waits for.
pub(super) struct Driven {
    engine: Weak<SharedEngine>,
    /// How to wait for the engine's peers, from the first round on.
    waiting: Option<(Patience, Bell)>,
    /// From then on, with a profiler.
    ctrl: Option<Ctrl>,
}

impl Driven {
    pub(super) fn new(engine: Weak<SharedEngine>) -> Driven {
        Driven { engine, waiting: None, ctrl: None }
    }

    /// Drives for a moment, says whether anything moved, and whether to go on.
    pub(super) fn drive(&mut self, moved: &mut bool) -> bool {
        let Some(shared) = self.engine.upgrade() else { return false };
        for _ in 0..ROUNDS_PER_TURN {
            if shared.drivers.load(Ordering::Relaxed) > 0 {
                return Driven::give_up(&shared);
            }
            let Some(mut engine) = shared.try_lock() else { return true };
            let Some(held) = engine.as_mut() else { return false };
            if self.waiting.is_none() {
                let ctrl = |emitter| Ctrl::taken_on(emitter, held.outstanding());
                self.ctrl = held.emitter().map(ctrl);
            }
            let (patience, _) =
                self.waiting.get_or_insert_with(|| (held.patience_of_thread(), held.bell().clone()));
            match round(held, patience) {
                Ok(Round::Moved) => *moved = true,
                Ok(Round::Stalled) => return true,
                // A failure stays in the engine, where the next call finds it.
                Ok(Round::Idle) | Err(_) => {
                    drop(engine);
                    return Driven::give_up(&shared);
                }
            }
        }
        true
    }

    /// Waits a little for the engine's peers.
    pub(super) fn pause(&mut self) {
        let Some((patience, bell)) = &mut self.waiting else { return std::thread::yield_now() };
        let since = self.ctrl.as_ref().map(|ctrl| (ctrl, now_ns()));
        let overdue = patience.pause(bell);
        if let Some((ctrl, since_ns)) = since {
            ctrl.slept(since_ns);
        }
        if !overdue {
            return;
        }
        let Some(shared) = self.engine.upgrade() else { return };
        if let Some(Some(engine)) = shared.try_lock().as_deref_mut() {
            // The missed deadline stays in the engine, where the next call finds it.
            engine.expire();
        }
    }

    /// Lets the engine go after a panic.
    pub(super) fn forsake(&self) {
        if let Some(shared) = self.engine.upgrade() {
            shared.called.store(false, Ordering::SeqCst);
        }
    }

    /// Lets the engine go, unless its driver has just left; whether to go on.
    fn give_up(shared: &SharedEngine) -> bool {
        // SeqCst: see `Driver::drop`.
        shared.called.store(false, Ordering::SeqCst);
        if shared.drivers.load(Ordering::SeqCst) > 0 {
            return false;
        }
        // Whoever holds the engine now is a driver, who looks at the flag when he leaves.
        let has_work = shared.try_lock().is_some_and(|engine| has_work(&engine));
        has_work && !shared.called.swap(true, Ordering::SeqCst)
    }
}

fn has_work(engine: &Option<Engine>) -> bool {
    engine.as_ref().is_some_and(|engine| !engine.is_quiet() && engine.failure().is_none())
}

/// Rounds before other engines have their turn.
const ROUNDS_PER_TURN: usize = 64;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ccl_plan::{Rank, ReduceOp};

    use super::*;
    use crate::error::Fault;
    use crate::local;

    #[test]
    fn a_panic_half_way_fails_the_communicator() {
        for is_shared in [false, true] {
            let outcome = local::run(2, |comm| {
                if is_shared {
                    comm.share()?;
                }
                if comm.rank() == Rank(0) {
                    let panic = || comm.with_engine(|_| -> Result<()> { panic!("what the test is about") });
                    assert!(catch_unwind(AssertUnwindSafe(panic)).is_err());
                }
                let first = comm.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum).unwrap_err();
                assert!(comm.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum).is_err(), "and stays so");
                assert_eq!(*first.fault() == Fault::Bug, comm.rank() == Rank(0), "{first}");
                Ok(())
            });
            outcome.unwrap();
        }
    }
}
