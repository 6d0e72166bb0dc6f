//! The C side of the tuner contract, field for field what `plugins/include/ccl_tuner.h` declares.
//!
//! The header has the prose. A test compiles it with the C compiler and compares sizes and offsets.

use std::ffi::{c_char, c_void};

use abi_stable::StableAbi;

use crate::c::{CclHostV1, CclSettingV1};

/// The version of the tuner contract these types describe.
pub const TUNER_VERSION: u32 = 1;
/// The symbol a tuner plugin exports, a [`CclTunerV1`].
pub const TUNER_SYMBOL: &std::ffi::CStr = c"cclTuner_v1";
/// A cost that forbids a candidate.
pub const FORBIDDEN: f64 = -1.0;

/// The communicator of a context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclTunerCommV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// Who asks.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Hosts that the ranks are on.
    pub nnodes: u32,
    /// Different for other communicators.
    pub comm_id: u64,
    /// Its name, or null.
    pub name: *const c_char,
    /// How the farthest two ranks reach each other.
    pub reach: *const c_char,
    /// Ranks of the host that has the fewest.
    pub min_node_ranks: u32,
    /// Ranks of the host that has the most.
    pub max_node_ranks: u32,
    /// Most channels a call may have.
    pub max_channels: u32,
    /// Zero.
    pub reserved: u32,
    /// How data is cut where nobody advises otherwise.
    pub chunk_bytes: u64,
}

/// What advice is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclTunerCallV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// Calls of the kind that are launched together.
    pub pipelined: u32,
    /// The collective, as "all_reduce".
    pub collective: *const c_char,
    /// The type of the elements, or null for any.
    pub dtype: *const c_char,
    /// Bytes of the vector, of all blocks together.
    pub bytes: u64,
    /// The smallest call that the answer is for.
    pub least_bytes: u64,
    /// The largest.
    pub most_bytes: u64,
    /// 1: ranks may reach the buffers of all others.
    pub mapped: u32,
    /// Zero.
    pub reserved: u32,
}

/// One algorithm that may serve a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclTunerCandidateV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// Over how many channels.
    pub channels: u32,
    /// Its name, as "ring".
    pub algorithm: *const c_char,
    /// How data passes from rank to rank, or null.
    pub protocol: *const c_char,
    /// Nanoseconds it takes; negative: forbidden.
    pub cost_ns: f64,
    /// Bytes to cut at; 0: as always.
    pub chunk_bytes: u64,
}

/// A tuner plugin: the table exported as `cclTuner_v1`.
///
/// Grows only at its end. All entries are required. Every entry returns a [`Code`](crate::Code).
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
#[sabi(kind(Prefix(prefix_ref = CclTunerV1Ref, prefix_fields = CclTunerV1Fields)))]
#[sabi(missing_field(panic))]
pub struct CclTunerV1 {
    /// Bytes of this table as the plugin knows it.
    pub size: u32,
    /// [`TUNER_VERSION`].
    pub version: u32,
    /// Name of the tuner, NUL-terminated, valid as long as the library is loaded.
    pub name: *const c_char,
    /// Makes a context for a communicator.
    #[sabi(unsafe_opaque_field)]
    pub init: Option<
        unsafe extern "C" fn(
            host: *const CclHostV1,
            comm: *const CclTunerCommV1,
            settings: *const CclSettingV1,
            count: u32,
            context: *mut *mut c_void,
        ) -> i32,
    >,
    /// Advises on one call.
    #[sabi(unsafe_opaque_field)]
    pub advise: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            call: *const CclTunerCallV1,
            candidates: *const *mut CclTunerCandidateV1,
            count: u32,
        ) -> i32,
    >,
    /// Ends a context.
    #[sabi(last_prefix_field)]
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
}

// SAFETY: the table is only ever read, and its name points to a static string, by the contract.
unsafe impl Sync for CclTunerV1 {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for CclTunerV1 {}
// SAFETY: the fields of the table above, for the layout check.
unsafe impl Sync for CclTunerV1Fields {}
// SAFETY: as above.
unsafe impl Send for CclTunerV1Fields {}

impl CclTunerV1 {
    /// A table with nothing in it but its size and version.
    pub const EMPTY: CclTunerV1 = CclTunerV1 {
        size: size_of::<CclTunerV1>() as u32,
        version: TUNER_VERSION,
        name: c"".as_ptr(),
        init: None,
        advise: None,
        finalize: None,
    };
}
