//! Communicators: a fixed set of ranks, and the calls they make together.

mod device;
mod explain;
mod footprint;
pub(crate) mod group;
mod hello;
mod init;
pub mod local;
pub mod network;
mod out_of_band;
mod progress;
pub(crate) mod scope;
pub(crate) mod shared;
mod split;
pub mod tuner;
mod typed;
mod window;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccl_plan::select::Choice;
use ccl_plan::{Collective, Rank};

use self::shared::{ProgressThread, SharedEngine};
use crate::config::Config;
use crate::control::Control;
#[cfg(doc)]
use crate::error::Fault;
use crate::error::{Error, Result};
use crate::exec::engine::{Engine, Patience};
use crate::memory::Footprint;
use crate::memory::fork::Birthplace;
use crate::observe::flight::Recorded;
use crate::request::Request;
use crate::transport;

pub use self::explain::Explanation;
pub use self::init::{Joining, JoiningState};

/// One rank's handle on a communicator.
///
/// Ranks are processes, or threads of one process; each holds its own `Communicator`. All ranks
/// make the same collective calls in the same order. A handle belongs to one thread at a time: it
/// is `Send` but not `Sync`; [`Communicator::aborter`] gives a handle that any thread may use to
/// end whatever the communicator is doing.
///
/// Blocking calls return when this rank's part is complete and its buffers may be reused. Every
/// wait has a deadline (`CCL_TIMEOUT`). After any error but a usage error the communicator has
/// failed: every later call returns the same error, and the remedy is a new communicator.
///
/// Dropping a communicator leaves it without waiting for anyone. Asynchronous calls that are not complete end by that: their
/// streams fail, and no rank uses their memory once the drop has returned. A rank that uses it at that moment is waited for,
/// for a millisecond or so; a process that was stopped meanwhile for half a second.
///
/// After `fork` a communicator is the parent's, who may go on with it. In the child every call is a usage error, and dropping it
/// does nothing but that: the connections and the memory behind it stay as they are until the child ends or executes another
/// program. The child may make communicators of its own.
pub struct Communicator {
    rank: Rank,
    n: u32,
    config: Config,
    control: Arc<Control>,
    engine: RefCell<Ownership>,
    /// How often it was split.
    splits: Cell<u64>,
    recorded: Recorded,
    birthplace: Birthplace,
}

/// Who may touch the engine.
enum Ownership {
    /// Only this handle: no lock is needed.
    Alone(Box<Engine>),
    /// This handle and the progress thread.
    Shared(Arc<SharedEngine>),
    /// Nobody: the communicator is being dropped.
    Gone,
}

impl Communicator {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.n
    }

    /// The settings this communicator was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes one call and waits until this rank's part is complete.
    ///
    /// # Errors
    ///
    /// [`Fault::Usage`] if the request does not fit itself or the communicator (nothing has
    /// happened then), otherwise the communicator's failure.
    pub fn run(&self, mut request: Request<'_>) -> Result<()> {
        self.with_engine(|engine| engine.run(&mut request))
    }

    /// Waits until no rank is outside this call.
    ///
    /// # Errors
    ///
    /// As [`Communicator::run`].
    pub fn barrier(&self) -> Result<()> {
        self.run(Request::barrier())
    }

    /// The failure of this communicator, if it has failed: for callers that only make asynchronous
    /// calls. Never blocks.
    pub fn async_error(&self) -> Option<Error> {
        self.with_engine(|engine| engine.failure_now())
    }

    /// A handle by which any thread can end the communicator's work.
    pub fn aborter(&self) -> Aborter {
        Aborter { control: Arc::clone(&self.control) }
    }

    /// How data travels between this rank and `peer`, and why better paths were not taken.
    ///
    /// # Errors
    ///
    /// No such rank.
    pub fn path(&self, peer: Rank) -> Result<transport::Path> {
        self.with_engine(|engine| engine.path(peer))
    }

    /// What selection chooses for a call of `bytes`.
    ///
    /// # Errors
    ///
    /// The communicator is being dropped.
    pub fn choice(&self, collective: Collective, bytes: usize) -> Result<Choice> {
        self.with_engine(|engine| Ok(engine.plans().selection().choose(collective, bytes as u64)))
    }

    /// What this rank of the communicator takes of its process and host now. Never blocks.
    ///
    /// # Errors
    ///
    /// The communicator is being dropped.
    pub fn memory(&self) -> Result<Footprint> {
        let footprint = self.with_engine(|engine| engine.fabric().footprint())?;
        let control = u64::from(self.control.is_connected());
        Ok(footprint.with_sockets(control, &self.config))
    }

    /// Writes what this rank did of late into a file, whose path is `prefix` and the rank's number behind it; that path. PyTorch's
    /// analyser (`torchfrtrace`) reads the files of all ranks together and says who is behind.
    ///
    /// In it are the last 64 collectives of the communicator that this rank joined and of all that were split from it, and the
    /// sends and receives of this one that are under way. The rank is that in the communicator that was joined. With
    /// `CCL_FLIGHT_FILE` the same is written when a communicator fails, before any call returns the failure. Blocks
    /// for the disk.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_flight(&self, prefix: &Path) -> Result<PathBuf> {
        let messages = self.with_engine(|engine| Ok(engine.messages_under_way()))?;
        self.recorded.flight.write_to(prefix, self.control.board(), &messages)
    }

    /// Runs `f` with the engine, locked only if the progress thread shares it.
    pub(crate) fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R
    where
        R: OrRefused,
    {
        if self.birthplace.is_left() {
            return self.refused_after_fork();
        }
        match &mut *self.engine.borrow_mut() {
            Ownership::Alone(engine) => engine.guarded(f),
            Ownership::Shared(shared) => shared.with(f).unwrap_or_else(|| R::refused(closed())),
            Ownership::Gone => R::refused(closed()),
        }
    }

    #[cold]
    #[inline(never)]
    fn refused_after_fork<R: OrRefused>(&self) -> R {
        R::refused(self.birthplace.error().on(self.rank))
    }

    /// The engine behind a lock, from now on.
    pub(crate) fn share(&self) -> Result<Arc<SharedEngine>> {
        self.birthplace.check().map_err(|error| error.on(self.rank))?;
        let mut ownership = self.engine.borrow_mut();
        let engine = match std::mem::replace(&mut *ownership, Ownership::Gone) {
            Ownership::Alone(engine) => engine,
            Ownership::Shared(shared) => {
                *ownership = Ownership::Shared(Arc::clone(&shared));
                return Ok(shared);
            }
            Ownership::Gone => return Err(closed()),
        };
        let thread =
            if self.config.progress_thread() { ProgressThread::WhenIdle } else { ProgressThread::Never };
        let shared = SharedEngine::new(*engine, thread)?;
        *ownership = Ownership::Shared(Arc::clone(&shared));
        Ok(shared)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let ownership = self.engine.replace(Ownership::Gone);
        if self.birthplace.is_left() {
            // What ends a connection ends it for the parent as well, and so do goodbyes in shared memory. A
            // lock may be held by a thread that is not here, and a device is not either. All of it stays as it is.
            std::mem::forget(ownership);
            return;
        }
        match ownership {
            Ownership::Alone(engine) => engine.close(),
            Ownership::Shared(shared) => {
                if let Some(engine) = shared.take() {
                    engine.close();
                }
            }
            Ownership::Gone => {}
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("rank", &self.rank).field("n", &self.n).finish_non_exhaustive()
    }
}

/// Ends a communicator's work from any thread. Cheap to clone.
#[derive(Clone)]
pub struct Aborter {
    control: Arc<Control>,
}

impl Aborter {
    /// Ends whatever the communicator is doing, here and on every other rank.
    ///
    /// Does nothing in a child after `fork`. Local, idempotent, never blocks: calls under way on this rank return an error within
    /// milliseconds whether or not the other ranks are alive; the others are told.
    pub fn abort(&self, reason: &str) {
        self.control.abort(reason);
    }
}

/// What to answer when the engine is gone, or another process's.
pub(crate) trait OrRefused {
    fn refused(error: Error) -> Self;
}

impl<T> OrRefused for Result<T> {
    fn refused(error: Error) -> Self {
        Err(error)
    }
}

impl OrRefused for Option<Patience> {
    fn refused(_: Error) -> Self {
        None
    }
}

impl OrRefused for Option<Error> {
    fn refused(error: Error) -> Self {
        Some(error)
    }
}

pub(crate) fn closed() -> Error {
    Error::usage(
        "expected an open communicator, found one that is being dropped",
        "keep it until its calls are complete",
    )
}
