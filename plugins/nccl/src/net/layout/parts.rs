//! Types that tables and properties refer to.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// Takes a line of log: level, subsystem bits, file, line, and a format as of `printf` with its arguments.
pub(crate) type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// Takes an event of the plugin's own: where its handle is kept, what happens to it (start 0, stop 1, update 2,
/// both 3), the handle given to a send or receive, the kind of event, its data. Versions 10 and up.
pub(crate) type ProfilerCallback =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

/// What a communicator asks of a network. To `connect` in version 10, to `init` from version 11 on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommConfig {
    pub(crate) traffic_class: c_int,
}

/// A device that completes receives by itself. Versions 7 to 12; never asked for here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceHandle {
    pub(crate) device_type: c_int,
    pub(crate) device_version: c_int,
    pub(crate) handle: *mut c_void,
    pub(crate) size: usize,
    pub(crate) needs_proxy_progress: c_int,
}

/// Physical devices that one virtual device is made of: `N` is 4 in versions 9 to 11, and 8 in version 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VirtualDevice<const N: usize> {
    pub(crate) count: c_int,
    pub(crate) devices: [c_int; N],
}

/// How many connections and transfers one direction has at a time. Versions 11 and 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommAttributes {
    pub(crate) most_peers: i32,
    pub(crate) least_peers: i32,
    pub(crate) most_flows_per_peer: i32,
    pub(crate) least_flows_per_peer: i32,
}

/// What a communicator is about to do, as a hint. Versions 11 and 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) send: CommAttributes,
    pub(crate) receive: CommAttributes,
    pub(crate) operation: u32,
    pub(crate) algorithm: u32,
    pub(crate) protocol: u32,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<CommConfig>() == 4);
    assert!(size_of::<DeviceHandle>() == 32);
    assert!(offset_of!(DeviceHandle, device_version) == 4);
    assert!(offset_of!(DeviceHandle, handle) == 8);
    assert!(offset_of!(DeviceHandle, size) == 16);
    assert!(offset_of!(DeviceHandle, needs_proxy_progress) == 24);
    assert!(size_of::<VirtualDevice<4>>() == 20);
    assert!(size_of::<VirtualDevice<8>>() == 36);
    assert!(offset_of!(VirtualDevice<8>, devices) == 4);
    assert!(size_of::<CommAttributes>() == 16);
    assert!(size_of::<Attributes>() == 44);
    assert!(offset_of!(Attributes, receive) == 16);
    assert!(offset_of!(Attributes, operation) == 32);
    assert!(offset_of!(Attributes, protocol) == 40);
};
