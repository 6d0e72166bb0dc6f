//! Descriptors: the start of an event as each version has it.

use std::ffi::{c_int, c_void};
use std::ptr;

use ccl_plugin::profiler::{Call, Kind, Of, ProxyOp, ProxyStep};

use super::layout::{
    self, CollApi, CollV1, CollV2, CollV3, CollV4, CollV5, DescriptorV1, DescriptorV2, DescriptorV3,
    DescriptorV4, DescriptorV5, GroupApi, OfV1, OfV2, OfV3, OfV4, OfV5, P2pApi, P2pV1, P2pV2, P2pV4, P2pV5,
};
use super::words::{PROTOCOL, algorithm, datatype, function, reduce_op};

type Ptr = *mut c_void;

/// The start of an event, in the layout of a version.
pub(crate) enum Descriptor {
    V1(DescriptorV1),
    V2(DescriptorV2),
    V3(DescriptorV3),
    V4(DescriptorV4),
    V5(DescriptorV5),
}

impl Descriptor {
    /// What the plugin is given.
    pub(crate) fn address(&mut self) -> Ptr {
        match self {
            Descriptor::V1(descriptor) => ptr::from_mut(descriptor).cast(),
            Descriptor::V2(descriptor) => ptr::from_mut(descriptor).cast(),
            Descriptor::V3(descriptor) => ptr::from_mut(descriptor).cast(),
            Descriptor::V4(descriptor) => ptr::from_mut(descriptor).cast(),
            Descriptor::V5(descriptor) => ptr::from_mut(descriptor).cast(),
        }
    }
}

/// An event, but for what it is about.
pub(crate) struct Start {
    pub(crate) kind: Kind,
    /// The plugin's handle of the parent, or null.
    pub(crate) parent: Ptr,
    /// The same of the group, where the parent is a call.
    pub(crate) group: Ptr,
    pub(crate) rank: u32,
    pub(crate) comm_hash: u64,
    /// Messages that a proxy operation will have, as far as can be said.
    pub(crate) steps: u64,
    /// Bytes of its messages.
    pub(crate) chunk_bytes: u64,
}

/// The descriptor of an event, in the layout of `version`.
pub(crate) fn describe(version: u32, start: &Start, of: &Of) -> Descriptor {
    macro_rules! descriptor {
        ($variant:ident, $kind:ty, $of:expr) => {
            Descriptor::$variant(layout::Descriptor {
                kind: start.kind.bit() as $kind,
                parent: start.parent,
                rank: start.rank as c_int,
                of: $of,
            })
        };
    }
    match version {
        1 => descriptor!(V1, u8, of_v1(start, of)),
        2 => descriptor!(V2, u8, of_v2(start, of)),
        3 => descriptor!(V3, u8, of_v3(start, of)),
        4 => descriptor!(V4, u8, of_v4(start, of)),
        _ => descriptor!(V5, u64, of_v5(start, of)),
    }
}

fn of_v1(start: &Start, of: &Of) -> OfV1 {
    let mut told = OfV1 { zeros: [0; _] };
    match (start.kind, of) {
        (Kind::Coll, Of::Call(call)) => {
            told.coll = CollV1 {
                name: ptr::null(),
                comm_hash: start.comm_hash,
                seq_number: call.sequence,
                func: function(call.func).code,
                send_buff: address(call.send),
                recv_buff: address(call.recv),
                count: call.count as usize,
                root: root(call),
                datatype: datatype(call.dtype).code,
                op: reduce_op(call.op.unwrap_or_default()),
                traffic_bytes: 0,
                n_max_channels: channels(call),
                n_warps: WARPS,
                algo: algorithm(call.algorithm.unwrap_or_default()).code,
                proto: PROTOCOL.code,
                is_collnet: 0,
                is_nvls: 0,
            };
        }
        (Kind::P2p, Of::Call(call)) => {
            told.p2p = P2pV1 {
                name: ptr::null(),
                comm_hash: start.comm_hash,
                func: function(call.func).code,
                buff: buffer(call),
                datatype: datatype(call.dtype).code,
                count: call.count as usize,
                peer: peer(call),
            };
        }
        (_, Of::ProxyOp(op)) => told.proxy_op = proxy_op(start, op),
        (_, Of::ProxyStep(step)) => told.proxy_step = proxy_step(step),
        _ => {}
    }
    told
}

fn of_v2(start: &Start, of: &Of) -> OfV2 {
    let mut told = OfV2 { zeros: [0; _] };
    match (start.kind, of) {
        (Kind::Coll, Of::Call(call)) => {
            let CollV4 { seq_number, func, send_buff, recv_buff, count, root, datatype, .. } = coll(call);
            let CollV4 { n_channels, n_warps, algo, proto, .. } = coll(call);
            told.coll = CollV2 {
                name: ptr::null(),
                comm_hash: start.comm_hash,
                seq_number,
                func,
                send_buff,
                recv_buff,
                count,
                root,
                datatype,
                traffic_bytes: 0,
                n_max_channels: n_channels,
                n_warps,
                algo,
                proto,
            };
        }
        (Kind::P2p, Of::Call(call)) => told.p2p = p2p_v2(start, call),
        (_, Of::ProxyOp(op)) => told.proxy_op = proxy_op(start, op),
        (_, Of::ProxyStep(step)) => told.proxy_step = proxy_step(step),
        _ => {}
    }
    told
}

fn of_v3(start: &Start, of: &Of) -> OfV3 {
    let mut told = OfV3 { zeros: [0; _] };
    match (start.kind, of) {
        (Kind::Coll, Of::Call(call)) => {
            let CollV4 { seq_number, func, send_buff, recv_buff, count, root, datatype, .. } = coll(call);
            let CollV4 { n_channels, n_warps, algo, proto, .. } = coll(call);
            told.coll = CollV3 {
                name: ptr::null(),
                comm_hash: start.comm_hash,
                seq_number,
                func,
                send_buff,
                recv_buff,
                count,
                root,
                datatype,
                n_max_channels: n_channels,
                n_warps,
                algo,
                proto,
            };
        }
        (Kind::P2p, Of::Call(call)) => told.p2p = p2p_v2(start, call),
        (_, Of::ProxyOp(op)) => told.proxy_op = proxy_op(start, op),
        (_, Of::ProxyStep(step)) => told.proxy_step = proxy_step(step),
        _ => {}
    }
    told
}

fn of_v4(start: &Start, of: &Of) -> OfV4 {
    let mut told = OfV4 { zeros: [0; _] };
    match (start.kind, of) {
        (Kind::Coll, Of::Call(call)) => told.coll = coll(call),
        (Kind::P2p, Of::Call(call)) => told.p2p = p2p(call),
        (_, Of::ProxyOp(op)) => told.proxy_op = proxy_op(start, op),
        (_, Of::ProxyStep(step)) => told.proxy_step = proxy_step(step),
        _ => {}
    }
    told
}

fn of_v5(start: &Start, of: &Of) -> OfV5 {
    let mut told = OfV5 { zeros: [0; _] };
    let (graph_captured, stream, parent_group) = (false, ptr::null_mut(), start.group);
    match (start.kind, of) {
        (Kind::Coll, Of::Call(call)) => told.coll = CollV5 { v4: coll(call), parent_group },
        (Kind::P2p, Of::Call(call)) => told.p2p = P2pV5 { v4: p2p(call), parent_group },
        (Kind::CollApi, Of::Call(call)) => {
            let CollV4 { func, count, root, datatype, .. } = coll(call);
            told.coll_api = CollApi { func, count, datatype, root, stream, graph_captured };
        }
        (Kind::P2pApi, Of::Call(call)) => {
            let P2pV4 { func, datatype, count, .. } = p2p(call);
            told.p2p_api = P2pApi { func, count, datatype, stream, graph_captured };
        }
        (Kind::GroupApi, Of::Group(group)) => {
            told.group_api = GroupApi { graph_captured, group_depth: group.depth as c_int };
        }
        (_, Of::ProxyOp(op)) => told.proxy_op = proxy_op(start, op),
        (_, Of::ProxyStep(step)) => told.proxy_step = proxy_step(step),
        _ => {}
    }
    told
}

fn coll(call: &Call) -> CollV4 {
    CollV4 {
        seq_number: call.sequence,
        func: function(call.func).text.as_ptr(),
        send_buff: address(call.send),
        recv_buff: address(call.recv),
        count: call.count as usize,
        root: root(call),
        datatype: datatype(call.dtype).text.as_ptr(),
        n_channels: channels(call),
        n_warps: WARPS,
        algo: algorithm(call.algorithm.unwrap_or_default()).text.as_ptr(),
        proto: PROTOCOL.text.as_ptr(),
    }
}

fn p2p_v2(start: &Start, call: &Call) -> P2pV2 {
    let P2pV4 { func, buff, datatype, count, peer, .. } = p2p(call);
    P2pV2 { name: ptr::null(), comm_hash: start.comm_hash, func, buff, datatype, count, peer }
}

fn p2p(call: &Call) -> P2pV4 {
    P2pV4 {
        func: function(call.func).text.as_ptr(),
        buff: buffer(call),
        datatype: datatype(call.dtype).text.as_ptr(),
        count: call.count as usize,
        peer: peer(call),
        n_channels: channels(call),
    }
}

fn proxy_op(start: &Start, op: &ProxyOp) -> layout::ProxyOp {
    layout::ProxyOp {
        pid: op.process as c_int,
        channel_id: u8::try_from(op.channel).unwrap_or(u8::MAX),
        peer: op.peer as c_int,
        n_steps: narrow(start.steps),
        chunk_size: narrow(start.chunk_bytes),
        is_send: op.is_send.into(),
    }
}

fn proxy_step(step: &ProxyStep) -> layout::ProxyStep {
    layout::ProxyStep { step: narrow(step.step) }
}

fn narrow(number: u64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn channels(call: &Call) -> u8 {
    u8::try_from(call.channels).unwrap_or(u8::MAX)
}

/// NCCL's root of collectives that have none is 0.
fn root(call: &Call) -> c_int {
    call.root.map_or(0, |root| root as c_int)
}

fn peer(call: &Call) -> c_int {
    call.peer.map_or(-1, |peer| peer as c_int)
}

/// A message has one buffer.
fn buffer(call: &Call) -> Ptr {
    address(if call.func == "recv" { call.recv } else { call.send })
}

/// An address to be looked at, not to be read from.
fn address(address: u64) -> Ptr {
    ptr::without_provenance_mut(address as usize)
}

/// Nothing here runs in warps; profilers may divide by their number.
const WARPS: u8 = 1;
