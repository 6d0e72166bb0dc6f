//! The C side of the profiler contract, field for field what `plugins/include/ccl_profiler.h` declares.
//!
//! The header has the prose. A test compiles it with the C compiler and compares sizes and offsets.

use std::ffi::{c_char, c_void};

use abi_stable::StableAbi;

use crate::c::CclHostV1;

/// The version of the profiler contract these types describe.
pub const PROFILER_VERSION: u32 = 1;
/// The symbol a profiler plugin exports, a [`CclProfilerV1`].
pub const PROFILER_SYMBOL: &std::ffi::CStr = c"cclProfiler_v1";

/// The communicator of a context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerCommV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// This process's or thread's rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Hosts that the ranks are on.
    pub nnodes: u32,
    /// The same on all ranks, different for other communicators.
    pub comm_id: u64,
    /// The operating system's id of this process.
    pub process: u64,
    /// Its name, or null.
    pub name: *const c_char,
}

/// A call: collectives, messages and their API events.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerCallV1 {
    /// What is asked, as "all_reduce".
    pub func: *const c_char,
    /// The type of the elements.
    pub dtype: *const c_char,
    /// The reduce op; null where nothing is reduced.
    pub op: *const c_char,
    /// The plan chosen; null in API events.
    pub algorithm: *const c_char,
    /// How data passes from rank to rank; null in API events.
    pub protocol: *const c_char,
    /// How the peer of a message is reached; else null.
    pub path: *const c_char,
    /// Elements, as the caller gave them.
    pub count: u64,
    /// Bytes of the vector, of all blocks together.
    pub bytes: u64,
    /// Number of the collective in its communicator; 0 of messages and in API events.
    pub sequence: u64,
    /// Id of the API event that asked for it; 0 if that was not recorded.
    pub call_id: u64,
    /// Address of the send buffer, or 0.
    pub send: u64,
    /// Address of the receive buffer, or 0.
    pub recv: u64,
    /// What one step of a channel moves.
    pub chunk_bytes: u64,
    /// Root of rooted collectives; else -1.
    pub root: i32,
    /// Peer of messages; else -1.
    pub peer: i32,
    /// Channels; 0 in API events.
    pub channels: u32,
    /// 0 or 1.
    pub in_place: u32,
}

/// Calls launched together.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerGroupV1 {
    /// 0: one call by itself; 1: calls collected in a group.
    pub depth: u32,
    /// Zero.
    pub reserved: u32,
}

/// What an operation exchanges with one peer over a network in one channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerProxyOpV1 {
    /// How the peer is reached.
    pub path: *const c_char,
    /// Bytes of its first message.
    pub chunk_bytes: u64,
    /// The channel.
    pub channel: u32,
    /// The peer.
    pub peer: i32,
    /// 1: to the peer; 0: from it.
    pub is_send: u32,
    /// The process that does it.
    pub process: u32,
}

/// One message of a proxy operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerProxyStepV1 {
    /// Its number, from 0.
    pub step: u64,
    /// Bytes of a send; 0 of a receive.
    pub bytes: u64,
}

/// What an event is about, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CclProfilerOfV1 {
    /// Of collectives, messages and their API events.
    pub call: CclProfilerCallV1,
    /// Of groups and their API events.
    pub group: CclProfilerGroupV1,
    /// Of proxy operations.
    pub proxy_op: CclProfilerProxyOpV1,
    /// Of proxy steps.
    pub proxy_step: CclProfilerProxyStepV1,
}

/// The start of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CclProfilerEventV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// One of [`Kind`](super::Kind).
    pub kind: u32,
    /// Never 0; different from all others of the context.
    pub id: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Handle of the nearest ancestor that was taken, or null.
    pub parent: *mut c_void,
    /// Id of the event's own parent; 0 for none.
    pub parent_id: u64,
    /// Kind of `parent`; 0 with null.
    pub parent_kind: u32,
    /// The rank.
    pub rank: u32,
    /// By kind.
    pub of: CclProfilerOfV1,
}

/// A state of an event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerStateV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// One of the numbers in [`State`](super::State).
    pub state: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Bytes, where the state has any.
    pub bytes: u64,
    /// A number, where the state has one.
    pub count: u64,
}

/// What became of all events of a context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclProfilerSummaryV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
    /// When the communicator was closed.
    pub time_ns: u64,
    /// Events that were offered.
    pub started: u64,
    /// Those of them that were refused.
    pub refused: u64,
    /// Events that were not offered for want of room.
    pub dropped_events: u64,
    /// States that were not, of events that were.
    pub dropped_states: u64,
}

/// A profiler plugin: the table exported as `cclProfiler_v1`.
///
/// Grows only at its end. All entries are required. Every entry returns a [`Code`](crate::Code), of
/// which only that of `init` matters.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
#[sabi(kind(Prefix(prefix_ref = CclProfilerV1Ref, prefix_fields = CclProfilerV1Fields)))]
#[sabi(missing_field(panic))]
pub struct CclProfilerV1 {
    /// Bytes of this table as the plugin knows it.
    pub size: u32,
    /// [`PROFILER_VERSION`].
    pub version: u32,
    /// Name of the profiler, NUL-terminated, valid as long as the library is loaded.
    pub name: *const c_char,
    /// Makes a context for a communicator.
    #[sabi(unsafe_opaque_field)]
    pub init: Option<
        unsafe extern "C" fn(
            host: *const CclHostV1,
            comm: *const CclProfilerCommV1,
            mask: *mut u64,
            context: *mut *mut c_void,
        ) -> i32,
    >,
    /// An event starts; a null handle refuses it.
    #[sabi(unsafe_opaque_field)]
    pub start_event: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            event: *const CclProfilerEventV1,
            handle: *mut *mut c_void,
        ) -> i32,
    >,
    /// It stops.
    pub stop_event:
        Option<unsafe extern "C" fn(context: *mut c_void, handle: *mut c_void, time_ns: u64) -> i32>,
    /// Something happened to an open event.
    #[sabi(unsafe_opaque_field)]
    pub record_event_state: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            handle: *mut c_void,
            state: *const CclProfilerStateV1,
        ) -> i32,
    >,
    /// Ends a context.
    #[sabi(last_prefix_field)]
    #[sabi(unsafe_opaque_field)]
    pub finalize:
        Option<unsafe extern "C" fn(context: *mut c_void, summary: *const CclProfilerSummaryV1) -> i32>,
}

// SAFETY: the table is only ever read, and its name points to a static string, by the contract.
unsafe impl Sync for CclProfilerV1 {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for CclProfilerV1 {}
// SAFETY: the fields of the table above, for the layout check.
unsafe impl Sync for CclProfilerV1Fields {}
// SAFETY: as above.
unsafe impl Send for CclProfilerV1Fields {}

impl CclProfilerV1 {
    /// A table with nothing in it but its size and version.
    pub const EMPTY: CclProfilerV1 = CclProfilerV1 {
        size: size_of::<CclProfilerV1>() as u32,
        version: PROFILER_VERSION,
        name: c"".as_ptr(),
        init: None,
        start_event: None,
        stop_event: None,
        record_event_state: None,
        finalize: None,
    };
}
