//! A CUDA driver without a device: what tests load, by its path, instead of `libcuda.so.1`.
//!
//! Device memory is memory of the host that other processes can map, a stream is a thread with a queue, a launch runs the
//! kernel's own source in the emulator. It can show what the host code does with a driver: lifetimes, order, capture,
//! sharing between processes, failures. It cannot show that a real driver behaves as this one; for that the contract
//! checks of `ccl-cuda` run against both.
//!
//! | setting | what | if unset |
//! |---|---|---|
//! | `CCL_FAKE_DEVICES` | devices; 0 is a machine without any | 2 |
//! | `CCL_FAKE_DRIVER_VERSION` | what `cuDriverGetVersion` says | 13000 |
//! | `CCL_FAKE_MULTIPROCESSORS` | multiprocessors of each device, or of one after the other with commas | 16 |
//! | `CCL_FAKE_CAPABILITY` | compute capability of each device, times ten | 90 |
//! | `CCL_FAKE_MEMORY` | bytes of each device, at most 2³⁴ | 2³³ |
//! | `CCL_FAKE_HANG_MS` | how long a kernel may make no progress | 20000 |
//! | `CCL_FAKE_MAKING_WAITS` | 1: what makes or frees memory or loads code waits for all work of its device | 0 |
//! | `CCL_FAKE_CONNECTIONS` | queues of each device that streams share, in each of which nothing begins before what is ahead of it has | one for each stream |
//! | `CCL_FAKE_KERNELS` | kernels of each device that run at the same time | 0: any number |
//! | `CUDA_LAUNCH_BLOCKING` | 1: a launch returns when its kernel has ended, as everywhere | 0 |
//! | `CCL_FAKE_DEAF_DEVICE` | a device whose copy of multicast memory gets nothing | none |
//! | `CCL_FAKE_SEED` | the seed of the emulator's orders | 1 |
//! | `CCL_FAKE_PLANT` | the number of a bug planted in the kernels (`CCL_PLANT`) | 0: none |
//! | `CCL_FAKE_NVRTC_VERSION` | what `nvrtcVersion` says, as `cuDriverGetVersion` would | 13000 |
//! | `CCL_FAKE_NVRTC_TARGET` | the latest capability that NVRTC compiles for, times ten | 120 |
//! | `CCL_FAKE_NVRTC_MS` | how long a compilation takes | 0 |
//! | `CCL_FAKE_FAIL` | failures, as `function:nth:code,…` | none |
//!
//! Six more functions are exported: [`ccl_fake_fail`], [`ccl_fake_failed`], [`ccl_fake_reset`], [`ccl_fake_live`],
//! [`ccl_fake_kind`], [`ccl_fake_calls`].
//!
//! The library is an NVRTC, too, which looks whether all that is included is there and compiles nothing.
//!
//! Left out: copies to and from multicast objects, and members that have bound a part of one; nothing keeps a kernel from memory
//! of a device without peer access; timing.

mod arena;
mod capture;
mod code;
mod device;
mod event;
mod fail;
mod graph;
mod host;
mod ipc;
mod kernel;
mod launch;
mod memory;
mod multicast;
mod nvrtc;
mod state;
mod stream;
mod symbols;
mod user_object;
mod virtual_memory;

pub use fail::{
    ccl_fake_calls, ccl_fake_fail, ccl_fake_failed, ccl_fake_kind, ccl_fake_live, ccl_fake_reset,
};
