//! What a profiler is told, as Rust says it.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};

use super::c::{
    CclProfilerCallV1, CclProfilerCommV1, CclProfilerEventV1, CclProfilerGroupV1, CclProfilerProxyOpV1,
    CclProfilerProxyStepV1, CclProfilerStateV1, CclProfilerSummaryV1,
};

/// What an event is. The numbers are those of `ccl_profiler.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum Kind {
    /// Calls launched together on one communicator, from the first step to the last.
    Group = 0,
    /// A collective at work.
    Coll = 1,
    /// A message at work.
    P2p = 2,
    /// What an operation exchanges with one peer over a network, in one channel and direction.
    ProxyOp = 3,
    /// One message of it.
    ProxyStep = 4,
    /// What the progress thread does.
    ProxyCtrl = 5,
    /// A launch, from the call to its return.
    GroupApi = 8,
    /// The call of a collective.
    CollApi = 9,
    /// The call of a send or receive.
    P2pApi = 10,
}

impl Kind {
    /// Every kind that hosts of this version start.
    pub const ALL: [Kind; 9] = [
        Kind::Group,
        Kind::Coll,
        Kind::P2p,
        Kind::ProxyOp,
        Kind::ProxyStep,
        Kind::ProxyCtrl,
        Kind::GroupApi,
        Kind::CollApi,
        Kind::P2pApi,
    ];

    /// The kind of a number.
    pub fn from_code(code: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == code)
    }

    /// Its bit in the mask.
    pub const fn bit(self) -> u64 {
        1 << self as u32
    }

    /// The bits any of which makes the host start events of this kind.
    pub const fn wanted_by(self) -> u64 {
        let steps = Kind::ProxyOp.bit() | Kind::ProxyStep.bit();
        match self {
            Kind::ProxyStep | Kind::ProxyCtrl => self.bit(),
            Kind::ProxyOp => steps,
            Kind::Coll | Kind::P2p => self.bit() | steps,
            Kind::Group => self.bit() | Kind::Coll.bit() | Kind::P2p.bit() | steps,
            Kind::CollApi => self.bit() | Kind::Coll.bit() | steps,
            Kind::P2pApi => self.bit() | Kind::P2p.bit() | steps,
            Kind::GroupApi => !Kind::ProxyCtrl.bit(),
        }
    }
}

/// What happened to an event. The numbers are those of `ccl_profiler.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum StateKind {
    /// The network has the message.
    SendWait = 9,
    /// The message is awaited.
    RecvWait = 10,
    /// It is there.
    RecvDone = 12,
    /// The progress thread leaves the communicator alone.
    CtrlIdle = 13,
    /// It drives the communicator.
    CtrlActive = 14,
    /// Nothing moves; it waits.
    CtrlSleep = 15,
    /// It goes on.
    CtrlWakeup = 16,
    /// Operations are handed to it.
    CtrlAppend = 17,
    /// So many were.
    CtrlAppendEnd = 18,
    /// The first message of a proxy operation is under way.
    ProxyOpProgress = 19,
    /// The data is ready for the network.
    SendPeerWait = 20,
    /// Calls are launched from here on.
    GroupStartStop = 23,
    /// All are launched.
    GroupEndStart = 24,
}

impl StateKind {
    /// Every state that hosts of this version record.
    pub const ALL: [StateKind; 13] = [
        StateKind::SendWait,
        StateKind::RecvWait,
        StateKind::RecvDone,
        StateKind::CtrlIdle,
        StateKind::CtrlActive,
        StateKind::CtrlSleep,
        StateKind::CtrlWakeup,
        StateKind::CtrlAppend,
        StateKind::CtrlAppendEnd,
        StateKind::ProxyOpProgress,
        StateKind::SendPeerWait,
        StateKind::GroupStartStop,
        StateKind::GroupEndStart,
    ];

    /// The state of a number.
    pub fn from_code(code: u32) -> Option<StateKind> {
        StateKind::ALL.into_iter().find(|state| *state as u32 == code)
    }
}

/// Which events a profiler is told of. May be kept, and changed by any thread at any time.
#[derive(Clone, Copy, Debug)]
pub struct Mask(&'static AtomicU64);

impl Mask {
    /// Asks for these kinds and no others, from the next launch on.
    pub fn ask(&self, kinds: &[Kind]) {
        self.set(kinds.iter().fold(0, |mask, kind| mask | kind.bit()));
    }

    /// The same by bits.
    pub fn set(&self, bits: u64) {
        // Relaxed: the host only looks which events are wanted.
        self.0.store(bits, Ordering::Relaxed);
    }

    /// The bits now.
    pub fn bits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn new(word: &'static AtomicU64) -> Mask {
        Mask(word)
    }
}

/// The communicator of a context.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Comm {
    /// This process's or thread's rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Hosts that the ranks are on.
    pub nnodes: u32,
    /// The same on all ranks, different for other communicators.
    pub id: u64,
    /// The operating system's id of this process.
    pub process: u64,
    /// Its name, if it has one.
    pub name: Option<String>,
}

impl Comm {
    /// # Safety
    ///
    /// The name is null or a NUL-terminated string.
    pub(super) unsafe fn from_c(comm: &CclProfilerCommV1) -> Comm {
        // SAFETY: the caller's promise.
        let name = (!comm.name.is_null()).then(|| unsafe { CStr::from_ptr(comm.name) });
        Comm {
            rank: comm.rank,
            nranks: comm.nranks,
            nnodes: comm.nnodes,
            id: comm.comm_id,
            process: comm.process,
            name: name.map(|name| name.to_string_lossy().into_owned()),
        }
    }
}

/// The start of an event.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a, H> {
    /// What it is.
    pub kind: Kind,
    /// Different from all others of the context, never 0.
    pub id: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// What was made for the nearest ancestor that was not refused, and its kind.
    pub parent: Option<(&'a H, Kind)>,
    /// Id of the event's own parent, refused or not.
    pub parent_id: Option<u64>,
    /// The rank.
    pub rank: u32,
    /// What it is about.
    pub of: Of,
}

/// What an event is about.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Of {
    /// Of [`Kind::Coll`], [`Kind::P2p`], [`Kind::CollApi`] and [`Kind::P2pApi`].
    Call(Call),
    /// Of [`Kind::Group`] and [`Kind::GroupApi`].
    Group(Group),
    /// Of [`Kind::ProxyOp`].
    ProxyOp(ProxyOp),
    /// Of [`Kind::ProxyStep`].
    ProxyStep(ProxyStep),
    /// Of [`Kind::ProxyCtrl`].
    Nothing,
}

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Call {
    /// What is asked, as "all_reduce".
    pub func: &'static str,
    /// The type of the elements.
    pub dtype: &'static str,
    /// The reduce op, where something is reduced.
    pub op: Option<&'static str>,
    /// The plan chosen; not in API events.
    pub algorithm: Option<&'static str>,
    /// How data passes from rank to rank; not in API events.
    pub protocol: Option<&'static str>,
    /// How the peer of a message is reached.
    pub path: Option<&'static str>,
    /// Elements, as the caller gave them.
    pub count: u64,
    /// Bytes of the vector, of all blocks together.
    pub bytes: u64,
    /// Number of the collective in its communicator; 0 of messages and in API events.
    pub sequence: u64,
    /// Id of the API event that asked for it.
    pub call_id: Option<u64>,
    /// Addresses of the buffers, 0 where there is none.
    pub send: u64,
    /// See `send`.
    pub recv: u64,
    /// What one step of a channel moves; 0 in API events.
    pub chunk_bytes: u64,
    /// Root of rooted collectives.
    pub root: Option<u32>,
    /// Peer of messages.
    pub peer: Option<u32>,
    /// Channels; 0 in API events.
    pub channels: u32,
    /// Whether one buffer serves for both.
    pub in_place: bool,
}

/// Calls launched together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Group {
    /// 0: one call by itself; 1: calls collected in a group.
    pub depth: u32,
}

/// What an operation exchanges with one peer in one channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProxyOp {
    /// How the peer is reached.
    pub path: Option<&'static str>,
    /// Bytes of its first message.
    pub chunk_bytes: u64,
    /// The channel.
    pub channel: u32,
    /// The peer.
    pub peer: u32,
    /// To the peer, rather than from it.
    pub is_send: bool,
    /// The process that does it.
    pub process: u32,
}

/// One message of a proxy operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProxyStep {
    /// Its number, from 0.
    pub step: u64,
    /// Bytes of a send; 0 of a receive.
    pub bytes: u64,
}

/// A state of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct State {
    /// Which.
    pub kind: StateKind,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Bytes, where the state has any.
    pub bytes: u64,
    /// A number, where the state has one.
    pub count: u64,
}

/// What became of all events of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
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

impl From<&CclProfilerSummaryV1> for Summary {
    fn from(summary: &CclProfilerSummaryV1) -> Summary {
        Summary {
            time_ns: summary.time_ns,
            started: summary.started,
            refused: summary.refused,
            dropped_events: summary.dropped_events,
            dropped_states: summary.dropped_states,
        }
    }
}

impl State {
    /// `None` for a state of a later version.
    pub(super) fn from_c(state: &CclProfilerStateV1) -> Option<State> {
        let kind = StateKind::from_code(state.state)?;
        Some(State { kind, time_ns: state.time_ns, bytes: state.bytes, count: state.count })
    }
}

impl Of {
    /// # Safety
    ///
    /// The union has the member of `kind`, whose strings live as long as the process.
    pub(super) unsafe fn from_c(kind: Kind, event: &CclProfilerEventV1) -> Of {
        // SAFETY: of each: the caller's promise.
        unsafe {
            match kind {
                Kind::Group | Kind::GroupApi => {
                    let CclProfilerGroupV1 { depth, .. } = event.of.group;
                    Of::Group(Group { depth })
                }
                Kind::Coll | Kind::P2p | Kind::CollApi | Kind::P2pApi => {
                    Of::Call(Call::from_c(&event.of.call))
                }
                Kind::ProxyOp => {
                    let CclProfilerProxyOpV1 { path, chunk_bytes, channel, peer, is_send, process } =
                        event.of.proxy_op;
                    let (path, peer, is_send) = (text(path), peer as u32, is_send != 0);
                    Of::ProxyOp(ProxyOp { path, chunk_bytes, channel, peer, is_send, process })
                }
                Kind::ProxyStep => {
                    let CclProfilerProxyStepV1 { step, bytes } = event.of.proxy_step;
                    Of::ProxyStep(ProxyStep { step, bytes })
                }
                Kind::ProxyCtrl => Of::Nothing,
            }
        }
    }
}

impl Call {
    /// # Safety
    ///
    /// Strings are null or live as long as the process.
    unsafe fn from_c(call: &CclProfilerCallV1) -> Call {
        // SAFETY: the caller's promise.
        let [func, dtype, op, algorithm, protocol, path] =
            [call.func, call.dtype, call.op, call.algorithm, call.protocol, call.path]
                .map(|string| unsafe { text(string) });
        Call {
            func: func.unwrap_or_default(),
            dtype: dtype.unwrap_or_default(),
            op,
            algorithm,
            protocol,
            path,
            count: call.count,
            bytes: call.bytes,
            sequence: call.sequence,
            call_id: Some(call.call_id).filter(|id| *id != 0),
            send: call.send,
            recv: call.recv,
            chunk_bytes: call.chunk_bytes,
            root: u32::try_from(call.root).ok(),
            peer: u32::try_from(call.peer).ok(),
            channels: call.channels,
            in_place: call.in_place != 0,
        }
    }
}

/// # Safety
///
/// The string is null, or NUL-terminated and lives as long as the process.
unsafe fn text(string: *const c_char) -> Option<&'static str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }.to_str().ok()
}
