//! Whether this process is a fork's child of the one in which something was made.
//!
//! A child inherits the memory that its parent shares with other ranks, and the parent's connections: a call
//! of the child would write into messages of its parent. So whatever can reach either remembers in which
//! process it was made, and asks first. That is one comparison; the system counts forks for it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birthplace {
    generation: u32,
    pid: u32,
}

impl Birthplace {
    /// This process. Its children are known from it once [`watch`] has been called.
    pub(crate) fn here() -> Birthplace {
        // Relaxed: the count changes only in a process that has one thread then.
        Birthplace { generation: GENERATION.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this process is a child, or a child's child, of that one.
    #[inline(always)]
    pub(crate) fn is_left(self) -> bool {
        // Relaxed: as in `here`.
        self.generation != GENERATION.load(Ordering::Relaxed)
    }

    /// What whoever asks for something that its parent made is told.
    #[cold]
    pub(crate) fn error(self) -> Error {
        let cause =
            format!("expected process {}, found its child after fork ({})", self.pid, std::process::id());
        Error::usage(cause, "make a new communicator after fork, and streams for it; the parent's is whole")
    }

    /// Refuses whatever is asked of it in a child.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_left() { Err(self.error()) } else { Ok(()) }
    }
}

/// From now on children are known. Call it before memory or connections are made.
///
/// Errors: the system's, which is out of memory.
pub(crate) fn watch() -> Result<()> {
    static WATCHED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler does nothing but count, which is safe wherever a fork may happen. The C library
    // forgets it when a library that holds this code is unloaded.
    let errno = *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(count)) });
    match errno {
        0 => Ok(()),
        errno => Err(Error::system(
            "have forks counted",
            std::io::Error::from_raw_os_error(errno),
            "free memory, or raise the limit on it",
        )),
    }
}

/// Runs in every child, before `fork` returns there.
extern "C" fn count() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between this process and one that no communicator was made in.
static GENERATION: AtomicU32 = AtomicU32::new(0);
