//! The C layouts of NCCL's tuner plugins, versions 2 to 6, with their sizes checked when this is compiled.
//!
//! Names are NCCL's in the spelling of Rust. Functions return NCCL's results.

#![allow(dead_code, reason = "a layout has all of its fields, also those that nobody reads")]

use std::ffi::{c_char, c_int, c_ulong, c_void};

type Ptr = *mut c_void;

/// Takes a line of log: level, subsystem bits, file, line, and a format as of `printf` with its arguments.
pub(crate) type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// `init` of versions 2 to 4: ranks, nodes, logger, where the context goes.
pub(crate) type InitPlain = unsafe extern "C" fn(usize, usize, Logger, *mut Ptr) -> c_int;
/// `init` of versions 5 and 6: where the context goes, the communicator's hash, ranks, nodes, logger, domains,
/// constants of the cost model that may be changed.
pub(crate) type InitTold =
    unsafe extern "C" fn(*mut Ptr, u64, usize, usize, Logger, *mut Domains, *mut Constants) -> c_int;

/// `getCollInfo` of version 2: context, collective, bytes, whether there is CollNet, whether there is NVLS, pipelined
/// calls, and where algorithm, protocol and channels go.
pub(crate) type InfoV2 =
    unsafe extern "C" fn(Ptr, c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
/// Version 3: context, collective, bytes, pipelined calls, the table of costs with its two sides, channels.
pub(crate) type InfoV3 =
    unsafe extern "C" fn(Ptr, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> c_int;
/// Versions 4 to 6: the same, with whether buffers are registered before the channels.
pub(crate) type InfoV4 =
    unsafe extern "C" fn(Ptr, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> c_int;
/// `getChunkSize` of version 6: context, collective, bytes, algorithm, protocol, channels, the chunk's bytes.
pub(crate) type ChunkSize = unsafe extern "C" fn(Ptr, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int;
/// `destroy`, from version 5 on `finalize`.
pub(crate) type Finalize = unsafe extern "C" fn(Ptr) -> c_int;

/// A table of versions 2 to 5, which differ in their functions only.
#[repr(C)]
pub(crate) struct Table<Init, Info> {
    pub(crate) name: *const c_char,
    pub(crate) init: Option<Init>,
    pub(crate) get_coll_info: Option<Info>,
    pub(crate) finalize: Option<Finalize>,
}

/// The table of version 6.
#[repr(C)]
pub(crate) struct TableV6 {
    pub(crate) before: Table<InitTold, InfoV4>,
    /// May be null.
    pub(crate) get_chunk_size: Option<ChunkSize>,
}

/// Domains of fast links, versions 5 and 6: here nodes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Domains {
    pub(crate) count: c_int,
    pub(crate) min_ranks: c_int,
    pub(crate) max_ranks: c_int,
}

/// Constants of NCCL's cost model, versions 5 and 6.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants(pub(crate) [f64; 144]);

/// Algorithms of NCCL's, the rows of a table of costs.
pub(crate) const ALGORITHMS: usize = 7;
/// Protocols, the columns.
pub(crate) const PROTOCOLS: usize = 3;
/// A cell that says "not offered".
pub(crate) const IGNORE: f32 = -1.0;
/// Neither an algorithm nor a protocol.
pub(crate) const UNDEFINED: c_int = -1;

const _: () = {
    assert!(size_of::<Table<InitPlain, InfoV2>>() == 32);
    assert!(size_of::<Table<InitPlain, InfoV3>>() == 32);
    assert!(size_of::<Table<InitPlain, InfoV4>>() == 32);
    assert!(size_of::<Table<InitTold, InfoV4>>() == 32);
    assert!(size_of::<TableV6>() == 40);
    assert!(size_of::<Domains>() == 12);
    assert!(size_of::<Constants>() == 1152);
};
