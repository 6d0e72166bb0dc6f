//! Where threads of a block meet: barriers, and functions of a warp.

use crate::line::PART_BYTES;

/// A barrier of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier {
    /// How often it was passed.
    pub(crate) generation: u64,
    /// Threads that wait.
    pub(crate) waiting: Vec<usize>,
    threads: usize,
    line: u32,
    vote: bool,
}

impl Barrier {
    /// A thread arrives. Some: all have, and this is whether any said true.
    pub(crate) fn arrive(&mut self, thread: usize, call: BarrierCall) -> Result<Option<bool>, String> {
        if self.waiting.is_empty() {
            (self.threads, self.line, self.vote) = (call.threads, call.line, false);
        }
        if self.threads != call.threads || (call.id == 0 && self.line != call.line) {
            return Err(format!(
                "barrier {}: thread {thread} comes from line {} for {} threads, others wait in line {} for {}",
                call.id, call.line, call.threads, self.line, self.threads
            ));
        }
        self.waiting.push(thread);
        self.vote |= call.vote;
        if self.waiting.len() < self.threads {
            return Ok(None);
        }
        self.generation += 1;
        Ok(Some(self.vote))
    }
}

/// What a thread says at a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierCall {
    pub(crate) id: usize,
    pub(crate) threads: usize,
    pub(crate) vote: bool,
    pub(crate) line: u32,
}

/// Lanes of a warp on the way to one function.
#[derive(Clone, Debug)]
pub(crate) struct Gathering {
    pub(crate) code: u32,
    pub(crate) line: u32,
    /// Who must come, as bits.
    pub(crate) lanes: u32,
    /// Who has come.
    pub(crate) here: u32,
    values: [u64; LANES],
    arguments: [u32; LANES],
    pub(crate) parts: Vec<(usize, [u8; PART_BYTES])>,
}

impl Gathering {
    pub(crate) fn new(code: u32, line: u32, lanes: u32) -> Gathering {
        let parts = vec![(0, [0; PART_BYTES]); LANES];
        Gathering { code, line, lanes, here: 0, values: [0; LANES], arguments: [0; LANES], parts }
    }

    /// A lane arrives. Whether all have.
    pub(crate) fn arrive(&mut self, lane: usize, value: u64, argument: u32) -> bool {
        self.values[lane] = value;
        self.arguments[lane] = argument;
        self.here |= 1 << lane;
        self.here == self.lanes
    }

    /// What a lane gets.
    pub(crate) fn answer(&self, lane: usize) -> u64 {
        let argument = self.arguments[lane] as usize;
        let from = match self.code {
            SHFL => argument % LANES,
            SHFL_XOR => lane ^ argument,
            SHFL_DOWN => lane + argument,
            SHFL_UP => lane.wrapping_sub(argument),
            BALLOT => return self.voters(),
            ALL => return u64::from(self.voters() == u64::from(self.lanes)),
            _ => return 0,
        };
        self.values.get(from).copied().unwrap_or(self.values[lane])
    }

    fn voters(&self) -> u64 {
        (0..LANES).filter(|lane| self.values[*lane] != 0).map(|lane| 1 << lane).sum()
    }
}

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// The functions of a warp, `CclEmuWarpFunction` of `ccl_device_emu.h`.
pub(crate) const SYNC: u32 = 0;
const SHFL: u32 = 1;
const SHFL_XOR: u32 = 2;
const SHFL_DOWN: u32 = 3;
const SHFL_UP: u32 = 4;
const BALLOT: u32 = 5;
const ALL: u32 = 6;
