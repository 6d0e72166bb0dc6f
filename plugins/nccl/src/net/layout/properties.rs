//! What a device is, in each version's words.
//!
//! Version 10 has the properties of version 9. A new field may stand in the middle: each version is a type of its own.

use std::ffi::{c_char, c_int};

use super::parts::VirtualDevice;

macro_rules! properties {
    ($(#[$doc:meta])* $name:ident, $bytes:literal: $($field:ident: $type:ty = $offset:literal,)*) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $bytes);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

properties! {
    /// The first that is adapted.
    PropertiesV6, 48:
    name: *const c_char = 0,
    pci_path: *const c_char = 8,
    guid: u64 = 16,
    ptr_support: c_int = 24,
    speed: c_int = 28,
    port: c_int = 32,
    latency: f32 = 36,
    max_comms: c_int = 40,
    max_recvs: c_int = 44,
}

properties! {
    /// Says whether the device completes receives by itself.
    PropertiesV7, 56:
    name: *const c_char = 0,
    pci_path: *const c_char = 8,
    guid: u64 = 16,
    ptr_support: c_int = 24,
    speed: c_int = 28,
    port: c_int = 32,
    latency: f32 = 36,
    max_comms: c_int = 40,
    max_recvs: c_int = 44,
    device_type: c_int = 48,
    device_version: c_int = 52,
}

properties! {
    /// Says whether a registration serves all connections.
    PropertiesV8, 64:
    name: *const c_char = 0,
    pci_path: *const c_char = 8,
    guid: u64 = 16,
    ptr_support: c_int = 24,
    reg_is_global: c_int = 28,
    speed: c_int = 32,
    port: c_int = 36,
    latency: f32 = 40,
    max_comms: c_int = 44,
    max_recvs: c_int = 48,
    device_type: c_int = 52,
    device_version: c_int = 56,
}

properties! {
    /// Says how long messages may be, whether receives need a flush, and which devices it is made of.
    PropertiesV9, 104:
    name: *const c_char = 0,
    pci_path: *const c_char = 8,
    guid: u64 = 16,
    ptr_support: c_int = 24,
    reg_is_global: c_int = 28,
    force_flush: c_int = 32,
    speed: c_int = 36,
    port: c_int = 40,
    latency: f32 = 44,
    max_comms: c_int = 48,
    max_recvs: c_int = 52,
    device_type: c_int = 56,
    device_version: c_int = 60,
    virtual_device: VirtualDevice<4> = 64,
    max_p2p_bytes: usize = 88,
    max_coll_bytes: usize = 96,
}

properties! {
    /// Says how many requests one may stand for.
    PropertiesV11, 112:
    name: *const c_char = 0,
    pci_path: *const c_char = 8,
    guid: u64 = 16,
    ptr_support: c_int = 24,
    reg_is_global: c_int = 28,
    force_flush: c_int = 32,
    speed: c_int = 36,
    port: c_int = 40,
    latency: f32 = 44,
    max_comms: c_int = 48,
    max_recvs: c_int = 52,
    device_type: c_int = 56,
    device_version: c_int = 60,
    virtual_device: VirtualDevice<4> = 64,
    max_p2p_bytes: usize = 88,
    max_coll_bytes: usize = 96,
    max_multi_request: c_int = 104,
}

properties! {
    /// Says on which rail and plane it lies, and fuses up to eight devices.
    PropertiesV12, 128:
    name: *const c_char = 0,
    pci_path: *const c_char = 8,
    guid: u64 = 16,
    ptr_support: c_int = 24,
    reg_is_global: c_int = 28,
    force_flush: c_int = 32,
    speed: c_int = 36,
    port: c_int = 40,
    latency: f32 = 44,
    max_comms: c_int = 48,
    max_recvs: c_int = 52,
    device_type: c_int = 56,
    device_version: c_int = 60,
    virtual_device: VirtualDevice<8> = 64,
    max_p2p_bytes: usize = 104,
    max_coll_bytes: usize = 112,
    max_multi_request: c_int = 120,
    rail: i16 = 124,
    plane: i16 = 126,
}
