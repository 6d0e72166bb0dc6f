//! What went wrong, and where every thread was.

use std::fmt;

/// Why an emulation ended before its kernels did.
#[derive(Clone, Debug)]
pub struct Report {
    /// What kind of thing happened.
    pub cause: Cause,
    /// The seed that makes it happen again.
    pub seed: u64,
    /// Turns of fibers until then.
    pub turns: u64,
    /// The threads that had not ended.
    pub threads: Vec<ThreadState>,
}

/// What kind of thing ended an emulation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Every thread waits, and what they wait for does not change.
    Hang,
    /// Threads that should meet do not.
    Divergence(String),
    /// A kernel stopped itself, an assertion failed, or an address was outside of what is allowed.
    Stopped(String),
    /// More turns than [`Options::most_turns`](crate::Options::most_turns).
    Endless,
}

/// Where a thread was.
#[derive(Clone, Debug)]
pub struct ThreadState {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Which of the emulation's launches.
    pub launch: usize,
    /// Its block.
    pub block: u32,
    /// Its index in the block.
    pub thread: u32,
    /// What it did.
    pub doing: Doing,
}

/// What a thread was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Doing {
    /// Its launch waits for the one before.
    Queued,
    /// It could run.
    Running,
    /// It waits until what is at an address changes.
    Spin {
        /// The address.
        at: usize,
        /// The 32 bits there.
        value: u32,
    },
    /// It waits at a barrier of its block.
    Barrier {
        /// 0 is the barrier of all threads.
        id: usize,
        /// How often it was passed.
        generation: u64,
        /// The line of the source.
        line: u32,
    },
    /// It waits for other lanes of its warp.
    Warp {
        /// The line of the source.
        line: u32,
    },
}

impl Report {
    /// The threads by what they did: one of each kind with the number of others.
    fn groups(&self) -> Vec<(&ThreadState, usize)> {
        let mut groups: Vec<(&ThreadState, usize)> = Vec::new();
        for state in &self.threads {
            let same = |group: &&mut (&ThreadState, usize)| {
                let seen = group.0;
                (seen.launch, seen.block, seen.doing) == (state.launch, state.block, state.doing)
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.1 += 1,
                None => groups.push((state, 0)),
            }
        }
        groups
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (seed {}, after {} turns)", self.cause, self.seed, self.turns)?;
        for (state, others) in self.groups() {
            write!(f, "\n  {state}")?;
            if others > 0 {
                write!(f, ", and {others} more")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Hang => f.write_str("every thread waits for what does not happen"),
            Cause::Divergence(what) | Cause::Stopped(what) => f.write_str(what),
            Cause::Endless => f.write_str("more turns than allowed"),
        }
    }
}

impl fmt::Display for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ThreadState { kernel, launch, block, thread, doing } = self;
        write!(f, "{kernel} (launch {launch}) block {block} thread {thread}: {doing}")
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doing::Queued => f.write_str("not begun"),
            Doing::Running => f.write_str("running"),
            Doing::Spin { at, value } => write!(f, "spins at {at:#x}, where {value:#x} is"),
            Doing::Barrier { id, generation, line } => {
                write!(f, "at barrier {id}, generation {generation}, line {line}")
            }
            Doing::Warp { line } => write!(f, "waits for its warp in line {line}"),
        }
    }
}
