//! The C layouts of NCCL's network plugins, versions 6 to 12, with their sizes checked when this is compiled.
//!
//! Names are NCCL's in the spelling of Rust. What a later version changes stands beside the type.

#![allow(dead_code, reason = "a layout has all of its fields, also those that nobody reads")]

mod parts;
mod properties;
mod tables;

pub(crate) use parts::{CommConfig, Logger, ProfilerCallback};
pub(crate) use properties::{
    PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
};
pub(crate) use tables::{
    AcceptOffloaded, AcceptPlain, Devices, GetPropertiesV6, GetPropertiesV7, GetPropertiesV8,
    GetPropertiesV9, GetPropertiesV11, GetPropertiesV12, IFlush, NetV6, NetV7, NetV8, NetV9, NetV10, NetV11,
    NetV12, OnObject, OnTwo, RegMrDmaBuf, RegMrNarrow, RegMrWide, Test, connect, init, irecv, isend, listen,
};

/// Bytes of a connection handle.
pub(crate) const HANDLE_BYTES: usize = 128;
/// Sizes that a test of a receive may fill in.
pub(crate) const TESTED_SIZES: usize = 64;
/// Longest message of versions that do not say: 2³⁰ bytes.
pub(crate) const ASSUMED_MESSAGE_BYTES: usize = 1 << 30;
/// The largest message length a plugin may name: 2⁴⁰ bytes.
pub(crate) const LARGEST_MESSAGE_BYTES: usize = 1 << 40;
/// Kind of memory, also a bit of what a device takes: host memory.
pub(crate) const PTR_HOST: i32 = 1;
/// The same: CUDA memory.
pub(crate) const PTR_CUDA: i32 = 2;
/// Bit of what a device takes: CUDA memory as a dma-buf.
pub(crate) const PTR_DMABUF: i32 = 4;
/// The type of a device whose receives the host completes.
pub(crate) const DEVICE_HOST: i32 = 0;
/// A traffic class, rail or plane that is not known.
pub(crate) const UNDEFINED: i32 = -1;
