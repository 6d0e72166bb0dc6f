//! The C layouts of NCCL's profilers, versions 1 to 6, with their sizes and offsets checked when this is compiled.
//!
//! Names are NCCL's in the spelling of Rust. What a later version changes stands beside the type. A part of a
//! descriptor that is written here is one that hosts without devices have.

#![allow(dead_code, reason = "a layout has all of its fields, and C reads them")]

use std::ffi::{c_char, c_int, c_void};

pub(crate) use crate::net::layout::Logger;

type Ptr = *mut c_void;
type Out = *mut *mut c_void;
type Text = *const c_char;

/// Versions 1 to 3: where the context goes, the mask.
pub(crate) type InitPlain = unsafe extern "C" fn(Out, *mut c_int) -> c_int;
/// Version 4, in addition: name, hash, hosts, ranks and rank of the communicator, and where lines of log go.
pub(crate) type InitV4 =
    unsafe extern "C" fn(Out, *mut c_int, Text, u64, c_int, c_int, c_int, Logger) -> c_int;
/// Versions 5 and 6: the hash stands before the mask.
pub(crate) type InitV5 =
    unsafe extern "C" fn(Out, u64, *mut c_int, Text, c_int, c_int, c_int, Logger) -> c_int;
/// Context, where the handle goes, a descriptor of the version.
pub(crate) type StartEvent = unsafe extern "C" fn(Ptr, Out, Ptr) -> c_int;
/// A handle, or a context.
pub(crate) type OnObject = unsafe extern "C" fn(Ptr) -> c_int;
/// Handle, state, arguments of the version.
pub(crate) type RecordEventState = unsafe extern "C" fn(Ptr, c_int, Ptr) -> c_int;

/// The table of a version whose `init` is `I`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Table<I> {
    pub(crate) name: Text,
    pub(crate) init: Option<I>,
    pub(crate) start_event: Option<StartEvent>,
    pub(crate) stop_event: Option<OnObject>,
    pub(crate) record_event_state: Option<RecordEventState>,
    pub(crate) finalize: Option<OnObject>,
}

/// The start of an event. `K` is 8 bits wide in versions 1 to 4, and 64 in later ones; `U` is what it is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Descriptor<K, U> {
    /// The kind's bit.
    pub(crate) kind: K,
    pub(crate) parent: Ptr,
    pub(crate) rank: c_int,
    pub(crate) of: U,
}

pub(crate) type DescriptorV1 = Descriptor<u8, OfV1>;
pub(crate) type DescriptorV2 = Descriptor<u8, OfV2>;
pub(crate) type DescriptorV3 = Descriptor<u8, OfV3>;
pub(crate) type DescriptorV4 = Descriptor<u8, OfV4>;
/// Versions 5 and 6.
pub(crate) type DescriptorV5 = Descriptor<u64, OfV5>;

/// Declares what events are about in one version; `zeros` words make up its whole size.
macro_rules! of {
    ($(#[$doc:meta])* $name:ident, $words:literal: $($member:ident: $type:ty,)*) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) union $name {
            pub(crate) zeros: [u64; $words],
            $(pub(crate) $member: $type,)*
            pub(crate) proxy_op: ProxyOp,
            pub(crate) proxy_step: ProxyStep,
        }
    };
}

of! {
    /// Numbers where later versions have strings.
    OfV1, 12: coll: CollV1, p2p: P2pV1,
}
of! {
    /// Strings for functions, types and plans.
    OfV2, 13: coll: CollV2, p2p: P2pV2,
}
of! {
    /// No traffic; channels of kernels and events of networks, which are not here.
    OfV3, 12: coll: CollV3, p2p: P2pV2,
}
of! {
    /// The communicator is told of by `init`.
    OfV4, 10: coll: CollV4, p2p: P2pV4,
}
of! {
    /// Calls, and parents among them.
    OfV5, 11: coll: CollV5, p2p: P2pV5, group_api: GroupApi, coll_api: CollApi, p2p_api: P2pApi,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV1 {
    pub(crate) name: Text,
    pub(crate) comm_hash: u64,
    pub(crate) seq_number: u64,
    pub(crate) func: u8,
    pub(crate) send_buff: Ptr,
    pub(crate) recv_buff: Ptr,
    pub(crate) count: usize,
    pub(crate) root: c_int,
    pub(crate) datatype: u8,
    pub(crate) op: u32,
    pub(crate) traffic_bytes: usize,
    pub(crate) n_max_channels: u8,
    pub(crate) n_warps: u8,
    pub(crate) algo: u8,
    pub(crate) proto: u8,
    pub(crate) is_collnet: c_int,
    pub(crate) is_nvls: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV2 {
    pub(crate) name: Text,
    pub(crate) comm_hash: u64,
    pub(crate) seq_number: u64,
    pub(crate) func: Text,
    pub(crate) send_buff: Ptr,
    pub(crate) recv_buff: Ptr,
    pub(crate) count: usize,
    pub(crate) root: c_int,
    pub(crate) datatype: Text,
    pub(crate) traffic_bytes: usize,
    pub(crate) n_max_channels: u8,
    pub(crate) n_warps: u8,
    pub(crate) algo: Text,
    pub(crate) proto: Text,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV3 {
    pub(crate) name: Text,
    pub(crate) comm_hash: u64,
    pub(crate) seq_number: u64,
    pub(crate) func: Text,
    pub(crate) send_buff: Ptr,
    pub(crate) recv_buff: Ptr,
    pub(crate) count: usize,
    pub(crate) root: c_int,
    pub(crate) datatype: Text,
    pub(crate) n_max_channels: u8,
    pub(crate) n_warps: u8,
    pub(crate) algo: Text,
    pub(crate) proto: Text,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV4 {
    pub(crate) seq_number: u64,
    pub(crate) func: Text,
    pub(crate) send_buff: Ptr,
    pub(crate) recv_buff: Ptr,
    pub(crate) count: usize,
    pub(crate) root: c_int,
    pub(crate) datatype: Text,
    pub(crate) n_channels: u8,
    pub(crate) n_warps: u8,
    pub(crate) algo: Text,
    pub(crate) proto: Text,
}

/// Version 4's, with the handle of the event of its group: the parent is the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollV5 {
    pub(crate) v4: CollV4,
    pub(crate) parent_group: Ptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV1 {
    pub(crate) name: Text,
    pub(crate) comm_hash: u64,
    pub(crate) func: u8,
    pub(crate) buff: Ptr,
    pub(crate) datatype: u8,
    pub(crate) count: usize,
    pub(crate) peer: c_int,
}

/// Versions 2 and 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV2 {
    pub(crate) name: Text,
    pub(crate) comm_hash: u64,
    pub(crate) func: Text,
    pub(crate) buff: Ptr,
    pub(crate) datatype: Text,
    pub(crate) count: usize,
    pub(crate) peer: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV4 {
    pub(crate) func: Text,
    pub(crate) buff: Ptr,
    pub(crate) datatype: Text,
    pub(crate) count: usize,
    pub(crate) peer: c_int,
    pub(crate) n_channels: u8,
}

/// Version 4's, with the handle of the event of its group.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pV5 {
    pub(crate) v4: P2pV4,
    pub(crate) parent_group: Ptr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GroupApi {
    pub(crate) graph_captured: bool,
    pub(crate) group_depth: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CollApi {
    pub(crate) func: Text,
    pub(crate) count: usize,
    pub(crate) datatype: Text,
    pub(crate) root: c_int,
    pub(crate) stream: Ptr,
    pub(crate) graph_captured: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct P2pApi {
    pub(crate) func: Text,
    pub(crate) count: usize,
    pub(crate) datatype: Text,
    pub(crate) stream: Ptr,
    pub(crate) graph_captured: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProxyOp {
    pub(crate) pid: c_int,
    pub(crate) channel_id: u8,
    pub(crate) peer: c_int,
    pub(crate) n_steps: c_int,
    pub(crate) chunk_size: c_int,
    pub(crate) is_send: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProxyStep {
    pub(crate) step: c_int,
}

/// Arguments of a state in versions 1 to 3. Later ones have the first eight bytes only.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union StateArgs {
    pub(crate) zeros: [u64; 2],
    /// Bytes, versions 4 and up.
    pub(crate) trans_size: usize,
    pub(crate) appended_proxy_ops: c_int,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Table<InitV5>>() == 48);
    assert!(offset_of!(Table<InitV5>, start_event) == 16);
    assert!(offset_of!(Table<InitV5>, record_event_state) == 32);
    assert!(offset_of!(Table<InitV5>, finalize) == 40);
    assert!(size_of::<DescriptorV1>() == 120);
    assert!(size_of::<DescriptorV2>() == 128);
    assert!(size_of::<DescriptorV3>() == 120);
    assert!(size_of::<DescriptorV4>() == 104);
    assert!(size_of::<DescriptorV5>() == 112);
    assert!(offset_of!(DescriptorV1, parent) == 8 && offset_of!(DescriptorV5, parent) == 8);
    assert!(offset_of!(DescriptorV1, rank) == 16 && offset_of!(DescriptorV5, rank) == 16);
    assert!(offset_of!(DescriptorV1, of) == 24 && offset_of!(DescriptorV5, of) == 24);
    // From here on offsets are counted from that of `of`, 24.
    assert!(offset_of!(CollV1, func) == 24 && offset_of!(CollV1, datatype) == 60);
    assert!(offset_of!(CollV1, op) == 64 && offset_of!(CollV1, traffic_bytes) == 72);
    assert!(offset_of!(CollV1, n_max_channels) == 80 && offset_of!(CollV1, proto) == 83);
    assert!(offset_of!(CollV1, is_collnet) == 84 && offset_of!(CollV1, is_nvls) == 88);
    assert!(offset_of!(CollV2, datatype) == 64 && offset_of!(CollV2, traffic_bytes) == 72);
    assert!(offset_of!(CollV2, n_max_channels) == 80 && offset_of!(CollV2, proto) == 96);
    assert!(offset_of!(CollV3, n_max_channels) == 72 && offset_of!(CollV3, n_warps) == 73);
    assert!(offset_of!(CollV3, algo) == 80 && offset_of!(CollV3, proto) == 88);
    assert!(offset_of!(CollV4, func) == 8 && offset_of!(CollV4, root) == 40);
    assert!(offset_of!(CollV4, n_channels) == 56 && offset_of!(CollV4, proto) == 72);
    assert!(offset_of!(CollV5, parent_group) == 80);
    assert!(offset_of!(P2pV1, func) == 16 && offset_of!(P2pV1, buff) == 24);
    assert!(offset_of!(P2pV1, datatype) == 32 && offset_of!(P2pV1, peer) == 48);
    assert!(offset_of!(P2pV2, datatype) == 32 && offset_of!(P2pV2, peer) == 48);
    assert!(offset_of!(P2pV4, peer) == 32 && offset_of!(P2pV4, n_channels) == 36);
    assert!(offset_of!(P2pV5, parent_group) == 40);
    assert!(offset_of!(GroupApi, group_depth) == 4);
    assert!(offset_of!(CollApi, root) == 24 && offset_of!(CollApi, graph_captured) == 40);
    assert!(offset_of!(P2pApi, stream) == 24 && offset_of!(P2pApi, graph_captured) == 32);
    assert!(offset_of!(ProxyOp, channel_id) == 4 && offset_of!(ProxyOp, peer) == 8);
    assert!(offset_of!(ProxyOp, n_steps) == 12 && offset_of!(ProxyOp, is_send) == 20);
    assert!(size_of::<StateArgs>() == 16);
};
