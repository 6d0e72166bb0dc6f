//! The C layouts of NCCL's env plugins, versions 1 and 2, with their sizes checked when this is compiled.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;

use crate::net::layout::Logger;

/// Version 1: the release of NCCL as three numbers and a suffix.
pub(super) type InitV1 = unsafe extern "C" fn(u8, u8, u8, *const c_char) -> c_int;
/// Version 2: and a logger.
pub(super) type InitV2 = unsafe extern "C" fn(u8, u8, u8, *const c_char, Logger) -> c_int;
pub(super) type Finalize = unsafe extern "C" fn() -> c_int;
pub(super) type GetEnv = unsafe extern "C" fn(*const c_char) -> *const c_char;

/// A table, whose versions differ in `init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table<Init> {
    pub(super) name: *const c_char,
    pub(super) init: Option<Init>,
    pub(super) finalize: Option<Finalize>,
    pub(super) get_env: Option<GetEnv>,
}

const _: () = assert!(size_of::<Table<InitV1>>() == 32 && size_of::<Table<InitV2>>() == 32);
const _: () = assert!(offset_of!(Table<InitV1>, init) == 8 && offset_of!(Table<InitV1>, finalize) == 16);
const _: () = assert!(offset_of!(Table<InitV1>, get_env) == 24);
