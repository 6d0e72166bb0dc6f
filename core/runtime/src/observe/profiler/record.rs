//! Records: what is put down of an event, as words.

use std::ffi::{CStr, c_char};
use std::ptr;

use ccl_plugin_host::profiler::{
    CclProfilerCallV1, CclProfilerGroupV1, CclProfilerOfV1, CclProfilerProxyOpV1, CclProfilerProxyStepV1,
    Kind, StateKind,
};

/// Words of a record.
pub(super) const WORDS: usize = 20;
/// Which of them says when it happened, in all records.
pub(super) const TIME_WORD: usize = 2;

/// What is put down.
#[derive(Clone, Copy, Debug)]
pub(super) enum Record {
    /// Event `id` starts; `parent` is the nearest ancestor that was put down.
    Start { kind: Kind, id: u64, parent: u64, time_ns: u64, body: Body },
    /// It stops.
    Stop { id: u64, time_ns: u64 },
    /// Something happens to it.
    State { id: u64, state: StateKind, time_ns: u64, bytes: u64, count: u64 },
}

/// What an event is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// Collectives, messages, and their calls.
    Call(Call),
    /// Groups; 1 for calls that were collected.
    Group { depth: u32 },
    /// One edge's part in an operation.
    ProxyOp { chunk_bytes: u64, channel: u32, peer: u32, is_send: bool },
    /// One message of it.
    ProxyStep { step: u64, bytes: u64 },
    /// Nothing but its kind.
    Bare,
}

/// A call, in words that fit a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call {
    pub(crate) func: Name,
    pub(crate) dtype: Name,
    pub(crate) op: Name,
    pub(crate) algorithm: Name,
    pub(crate) protocol: Name,
    pub(crate) path: Name,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) sequence: u64,
    pub(crate) call_id: u64,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) root: Option<u32>,
    pub(crate) peer: Option<u32>,
    pub(crate) channels: u16,
    pub(crate) in_place: bool,
}

/// A string that lives as long as the process, or none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Name(pub(super) Option<&'static CStr>);

impl Name {
    fn to_word(self) -> u64 {
        self.0.map_or(0, |name| name.as_ptr().expose_provenance() as u64)
    }

    fn of_word(word: u64) -> *const c_char {
        if word == 0 { ptr::null() } else { ptr::with_exposed_provenance(word as usize) }
    }
}

/// A record as it comes out of the ring: bodies as the contract has them.
pub(super) enum Taken {
    Start { kind: Kind, id: u64, parent: u64, time_ns: u64, of: CclProfilerOfV1 },
    Stop { id: u64, time_ns: u64 },
    State { id: u64, state: StateKind, time_ns: u64, bytes: u64, count: u64 },
}

impl Record {
    /// As words: what and which kind; id; time; parent; the rest by kind.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        match self {
            Record::Start { kind, id, parent, time_ns, body } => {
                words[..4].copy_from_slice(&[START | (kind as u64) << 8, id, time_ns, parent]);
                body.write(&mut words[4..]);
            }
            Record::Stop { id, time_ns } => words[..3].copy_from_slice(&[STOP, id, time_ns]),
            Record::State { id, state, time_ns, bytes, count } => {
                words[..5].copy_from_slice(&[STATE | (state as u64) << 8, id, time_ns, bytes, count]);
            }
        }
        words
    }
}

impl Taken {
    /// `None` for words that no record has.
    pub(super) fn from_words(words: &[u64; WORDS]) -> Option<Taken> {
        let [head, id, time_ns, fourth, fifth, ..] = *words;
        let code = (head >> 8) as u32;
        Some(match head & 0xff {
            START => {
                let kind = Kind::from_code(code)?;
                Taken::Start { kind, id, parent: fourth, time_ns, of: read(kind, &words[4..]) }
            }
            STOP => Taken::Stop { id, time_ns },
            STATE => {
                let state = StateKind::from_code(code)?;
                Taken::State { id, state, time_ns, bytes: fourth, count: fifth }
            }
            _ => return None,
        })
    }
}

impl Body {
    fn write(self, words: &mut [u64]) {
        match self {
            Body::Call(call) => {
                let rank = |rank: Option<u32>| u64::from(rank.map_or(u32::MAX, |rank| rank));
                words[..16].copy_from_slice(&[
                    call.func.to_word(),
                    call.dtype.to_word(),
                    call.op.to_word(),
                    call.algorithm.to_word(),
                    call.protocol.to_word(),
                    call.path.to_word(),
                    call.count,
                    call.bytes,
                    call.sequence,
                    call.call_id,
                    call.send,
                    call.recv,
                    call.chunk_bytes,
                    rank(call.root),
                    rank(call.peer),
                    u64::from(call.channels) << 1 | u64::from(call.in_place),
                ]);
            }
            Body::Group { depth } => words[0] = u64::from(depth),
            Body::ProxyOp { chunk_bytes, channel, peer, is_send } => {
                words[..4].copy_from_slice(&[chunk_bytes, channel.into(), peer.into(), is_send.into()]);
            }
            Body::ProxyStep { step, bytes } => words[..2].copy_from_slice(&[step, bytes]),
            Body::Bare => {}
        }
    }
}

/// A body as the contract has it.
fn read(kind: Kind, words: &[u64]) -> CclProfilerOfV1 {
    match kind {
        Kind::Coll | Kind::P2p | Kind::CollApi | Kind::P2pApi => {
            let name = |at: usize| Name::of_word(words[at]);
            let call = CclProfilerCallV1 {
                func: name(0),
                dtype: name(1),
                op: name(2),
                algorithm: name(3),
                protocol: name(4),
                path: name(5),
                count: words[6],
                bytes: words[7],
                sequence: words[8],
                call_id: words[9],
                send: words[10],
                recv: words[11],
                chunk_bytes: words[12],
                // None was written as all ones.
                root: words[13] as u32 as i32,
                peer: words[14] as u32 as i32,
                channels: (words[15] >> 1) as u32,
                in_place: (words[15] & 1) as u32,
            };
            CclProfilerOfV1 { call }
        }
        Kind::ProxyOp => CclProfilerOfV1 {
            proxy_op: CclProfilerProxyOpV1 {
                path: c"net".as_ptr(),
                chunk_bytes: words[0],
                channel: words[1] as u32,
                peer: words[2] as i32,
                is_send: words[3] as u32,
                process: std::process::id(),
            },
        },
        Kind::ProxyStep => {
            CclProfilerOfV1 { proxy_step: CclProfilerProxyStepV1 { step: words[0], bytes: words[1] } }
        }
        _ => CclProfilerOfV1 { group: CclProfilerGroupV1 { depth: words[0] as u32, reserved: 0 } },
    }
}

const START: u64 = 1;
const STOP: u64 = 2;
const STATE: u64 = 3;
