//! What a tuner is told and asked, as Rust has it.

use std::ffi::{CStr, c_char};

use super::c::{CclTunerCallV1, CclTunerCandidateV1, CclTunerCommV1, FORBIDDEN};

/// The communicator that a tuner advises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comm<'a> {
    /// Who asks: 0.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Hosts that the ranks are on.
    pub nnodes: u32,
    /// Different for other communicators.
    pub comm_id: u64,
    /// Its name, if it has one.
    pub name: Option<&'a str>,
    /// How the farthest two ranks reach each other: `memory`, `memory_direct`, `loopback`, `network`, `devices`, `multicast`.
    pub reach: &'a str,
    /// Ranks of the host that has the fewest.
    pub min_node_ranks: u32,
    /// Ranks of the host that has the most.
    pub max_node_ranks: u32,
    /// Most channels a call may have.
    pub max_channels: u32,
    /// How data is cut where nobody advises otherwise.
    pub chunk_bytes: u64,
}

/// What advice is asked for; used for calls of `least_bytes` to `most_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The collective, as `all_reduce`.
    pub collective: &'a str,
    /// The type of the elements; `None`: any.
    pub dtype: Option<&'a str>,
    /// Bytes of the vector, of all blocks together.
    pub bytes: u64,
    /// The smallest call that the answer is for.
    pub least_bytes: u64,
    /// The largest.
    pub most_bytes: u64,
    /// Calls of the kind that are launched together.
    pub pipelined: u32,
    /// Whether ranks may reach the buffers of all others.
    pub mapped: bool,
}

/// One algorithm that may serve a call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate<'a> {
    /// Its name, as `ring`.
    pub algorithm: &'a str,
    /// How data passes from rank to rank; `None`: the host chooses.
    pub protocol: Option<&'a str>,
    /// Nanoseconds it takes: predicted, then advised. A negative number forbids it.
    pub cost_ns: f64,
    /// Over how many channels.
    pub channels: u32,
    /// Bytes to cut at; 0: as always.
    pub chunk_bytes: u64,
}

impl Candidate<'_> {
    /// Takes it out of the choice.
    pub fn forbid(&mut self) {
        self.cost_ns = FORBIDDEN;
    }

    /// Makes it the cheapest there can be.
    pub fn prefer(&mut self) {
        self.cost_ns = 0.0;
    }
}

impl<'a> Comm<'a> {
    /// # Safety
    ///
    /// Strings are null or end in NUL, and live as long as `'a`.
    pub(super) unsafe fn from_c(comm: &'a CclTunerCommV1) -> Comm<'a> {
        Comm {
            rank: comm.rank,
            nranks: comm.nranks,
            nnodes: comm.nnodes,
            comm_id: comm.comm_id,
            // SAFETY: the caller's contract.
            name: unsafe { text(comm.name) },
            // SAFETY: the caller's contract.
            reach: unsafe { text(comm.reach) }.unwrap_or_default(),
            min_node_ranks: comm.min_node_ranks,
            max_node_ranks: comm.max_node_ranks,
            max_channels: comm.max_channels,
            chunk_bytes: comm.chunk_bytes,
        }
    }
}

impl<'a> Call<'a> {
    /// # Safety
    ///
    /// As for [`Comm::from_c`].
    pub(super) unsafe fn from_c(call: &'a CclTunerCallV1) -> Call<'a> {
        Call {
            // SAFETY: the caller's contract.
            collective: unsafe { text(call.collective) }.unwrap_or_default(),
            // SAFETY: the caller's contract.
            dtype: unsafe { text(call.dtype) },
            bytes: call.bytes,
            least_bytes: call.least_bytes,
            most_bytes: call.most_bytes,
            pipelined: call.pipelined,
            mapped: call.mapped != 0,
        }
    }
}

impl<'a> Candidate<'a> {
    /// # Safety
    ///
    /// As for [`Comm::from_c`].
    pub(super) unsafe fn from_c(candidate: &CclTunerCandidateV1) -> Candidate<'a> {
        Candidate {
            // SAFETY: the caller's contract.
            algorithm: unsafe { text(candidate.algorithm) }.unwrap_or_default(),
            // SAFETY: the caller's contract.
            protocol: unsafe { text(candidate.protocol) },
            cost_ns: candidate.cost_ns,
            channels: candidate.channels,
            chunk_bytes: candidate.chunk_bytes,
        }
    }
}

/// # Safety
///
/// As for [`Comm::from_c`].
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null; the rest is the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
