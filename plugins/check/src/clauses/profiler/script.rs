//! What a profiler is told: launches as communicators have them.

use std::ffi::CStr;
use std::ptr;

use ccl_plugin::profiler::c::{
    CclProfilerCallV1, CclProfilerGroupV1, CclProfilerOfV1, CclProfilerProxyOpV1, CclProfilerProxyStepV1,
};
use ccl_plugin::profiler::{Kind, StateKind};

use super::context::{Context, Told};
use crate::breach::{Outcome, skip};

/// What a group is about.
pub(crate) fn group() -> CclProfilerOfV1 {
    // Over the longest member, whose bytes are then all known.
    let mut of = call(None);
    of.group = CclProfilerGroupV1 { depth: 0, reserved: 0 };
    of
}

/// What a call is about: an all-reduce, asked for by the event `call_id` where it is work.
pub(crate) fn call(work: Option<u64>) -> CclProfilerOfV1 {
    CclProfilerOfV1 { call: all_reduce(work) }
}

/// The same of a message.
pub(crate) fn message(work: Option<u64>) -> CclProfilerOfV1 {
    let func = c"send".as_ptr();
    CclProfilerOfV1 {
        call: CclProfilerCallV1 { func, op: ptr::null(), peer: 2, recv: 0, ..all_reduce(work) },
    }
}

fn all_reduce(work: Option<u64>) -> CclProfilerCallV1 {
    let of_work = |text: &'static CStr| if work.is_some() { text.as_ptr() } else { ptr::null() };
    CclProfilerCallV1 {
        func: c"all_reduce".as_ptr(),
        dtype: c"float".as_ptr(),
        op: c"sum".as_ptr(),
        algorithm: of_work(c"all_reduce.ring"),
        protocol: of_work(c"slots"),
        path: ptr::null(),
        count: 1024,
        bytes: 4096,
        sequence: work.unwrap_or(0),
        call_id: work.unwrap_or(0),
        send: 0x1000,
        recv: 0x2000,
        chunk_bytes: if work.is_some() { 4096 } else { 0 },
        root: -1,
        peer: -1,
        channels: u32::from(work.is_some()),
        in_place: 0,
    }
}

fn proxy_op(is_send: bool) -> CclProfilerOfV1 {
    let mut of = call(None);
    of.proxy_op = CclProfilerProxyOpV1 {
        path: c"net".as_ptr(),
        chunk_bytes: if is_send { 4096 } else { 0 },
        channel: 0,
        peer: 2,
        is_send: is_send.into(),
        process: std::process::id(),
    };
    of
}

/// What a message of a proxy operation is about.
pub(crate) fn proxy_step(is_send: bool) -> CclProfilerOfV1 {
    let mut of = call(None);
    of.proxy_step = CclProfilerProxyStepV1 { step: 0, bytes: if is_send { 4096 } else { 0 } };
    of
}

/// Kinds of a parent and its children.
pub(crate) type Family = (Kind, Kind);

impl Context {
    /// A parent and children that the plugin wants; skips the clause if there are none.
    pub(crate) fn family(&self) -> Outcome<Family> {
        let bits = self.interest().bits();
        let wanted = FAMILIES.into_iter().find(|(_, child)| bits & child.wanted_by() != 0);
        wanted.map_or_else(|| skip("it asks for no kind that there are several of in a launch"), Ok)
    }

    /// Tells of the start of a parent.
    pub(crate) fn start_parent(&mut self, (kind, _): Family) -> Told {
        self.start(kind as u32, None, group())
    }

    /// Tells of the start of one of its children.
    pub(crate) fn start_child(&mut self, (_, kind): Family, parent: &Told) -> Told {
        let work = matches!(kind, Kind::Coll | Kind::P2p).then_some(0);
        let of = if matches!(kind, Kind::Coll | Kind::CollApi) { call(work) } else { message(work) };
        self.start(kind as u32, Some(parent), of)
    }

    /// Tells of a start if the plugin wants the kind.
    pub(crate) fn wanted(&mut self, kind: Kind, parent: Option<&Told>, of: CclProfilerOfV1) -> Option<Told> {
        let is_wanted = self.interest().bits() & kind.wanted_by() != 0;
        is_wanted.then(|| self.start(kind as u32, parent, of))
    }

    fn stop_all<const N: usize>(&mut self, told: [Option<Told>; N]) {
        told.into_iter().flatten().for_each(|told| self.stop(told));
    }

    /// A launch of a collective and a message with all that belongs to them, as far as the plugin wants it; how many
    /// events it was told of.
    pub(crate) fn launch(&mut self) -> u64 {
        let api = self.wanted(Kind::GroupApi, None, group());
        api.iter().for_each(|api| self.states(api, &[StateKind::GroupStartStop]));
        let coll_api = self.wanted(Kind::CollApi, api.as_ref(), call(None));
        let p2p_api = self.wanted(Kind::P2pApi, api.as_ref(), message(None));
        let work = self.wanted(Kind::Group, None, group());
        let coll = self.wanted(Kind::Coll, work.as_ref(), call(Some(id(coll_api))));
        let p2p = self.wanted(Kind::P2p, work.as_ref(), message(Some(id(p2p_api))));
        api.iter().for_each(|api| self.states(api, &[StateKind::GroupEndStart]));
        let mut told = [api, coll_api, p2p_api, work, coll, p2p].iter().flatten().count() as u64;
        for (parent, is_send) in [(coll, true), (coll, false), (p2p, true)] {
            told += self.exchange(parent.as_ref(), is_send);
        }
        self.stop_all([coll, p2p, work, coll_api, p2p_api, api]);
        let ctrl = self.wanted(Kind::ProxyCtrl, None, group());
        ctrl.iter().for_each(|ctrl| self.states(ctrl, &[StateKind::CtrlAppend, StateKind::CtrlAppendEnd]));
        self.stop_all([ctrl]);
        told + u64::from(ctrl.is_some())
    }

    /// A proxy operation with one message.
    pub(crate) fn exchange(&mut self, parent: Option<&Told>, is_send: bool) -> u64 {
        let op = self.wanted(Kind::ProxyOp, parent, proxy_op(is_send));
        op.iter().for_each(|op| self.states(op, &[StateKind::ProxyOpProgress]));
        let step = self.wanted(Kind::ProxyStep, op.as_ref(), proxy_step(is_send));
        let states = match is_send {
            true => [StateKind::SendPeerWait, StateKind::SendWait],
            false => [StateKind::RecvWait, StateKind::RecvDone],
        };
        step.iter().for_each(|step| self.states(step, &states));
        self.stop_all([step, op]);
        [op, step].iter().flatten().count() as u64
    }
}

/// The id of an event; of one that nobody was told of 0.
fn id(told: Option<Told>) -> u64 {
    told.map_or(0, |told| told.id)
}

const FAMILIES: [Family; 4] = [
    (Kind::Group, Kind::Coll),
    (Kind::Group, Kind::P2p),
    (Kind::GroupApi, Kind::CollApi),
    (Kind::GroupApi, Kind::P2pApi),
];
