//! States: which of NCCL's a state of ccl's is, in each version.

use std::ffi::c_int;

use ccl_plugin::profiler::{State, StateKind};

use super::layout::StateArgs;

/// What is recorded for a state, in order: each with its arguments, if it has any.
pub(crate) fn states(version: u32, state: &State) -> impl Iterator<Item = (c_int, Option<StateArgs>)> {
    let zeros = StateArgs { zeros: [0; 2] };
    // Over zeros, since versions 1 to 3 have a second number.
    let (mut bytes, mut appended) = (zeros, zeros);
    bytes.trans_size = if version < 4 { 0 } else { state.bytes as usize };
    appended.appended_proxy_ops = c_int::try_from(state.count).unwrap_or(c_int::MAX);
    let own = state.kind as c_int;
    let (first, second) = match state.kind {
        // The place was there all along.
        StateKind::SendPeerWait if version < 4 => (Some((SEND_GPU_WAIT, Some(zeros))), None),
        StateKind::SendPeerWait => (Some((SEND_GPU_WAIT, Some(zeros))), Some((own, Some(bytes)))),
        // Nothing is flushed on the way to host memory.
        StateKind::RecvDone => (Some((RECV_FLUSH_WAIT, Some(bytes))), Some((own, Some(bytes)))),
        StateKind::SendWait | StateKind::RecvWait => (Some((own, Some(bytes))), None),
        StateKind::CtrlAppendEnd => (Some((own, Some(appended))), None),
        StateKind::ProxyOpProgress if version < 4 => (None, None),
        StateKind::GroupStartStop | StateKind::GroupEndStart if version < 5 => (None, None),
        StateKind::GroupStartStop | StateKind::GroupEndStart => (Some((own, None)), None),
        _ => (Some((own, Some(zeros))), None),
    };
    first.into_iter().chain(second)
}

/// A send has a place to be put into; before the data is ready.
const SEND_GPU_WAIT: c_int = 8;
/// A message is there, and not yet visible.
const RECV_FLUSH_WAIT: c_int = 11;
