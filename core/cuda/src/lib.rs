//! The CUDA driver as values: loaded at run time, every call checked, nothing that panics.
//!
//! ```no_run
//! use ccl_cuda::{Context, DeviceMemory, Driver, Stream};
//!
//! let driver = match Driver::load(None) {
//!     Ok(driver) => driver,
//!     Err(absent) => {
//!         println!("{absent}");
//!         return Ok(());
//!     }
//! };
//! for device in driver.devices()? {
//!     let context = Context::primary(&device)?;
//!     let stream = Stream::new(&context, 0)?;
//!     let memory = DeviceMemory::new(&context, 1 << 20)?;
//!     memory.write(0, b"bytes", &stream)?;
//!     println!("{} has {:?}", device.name()?, context.memory()?);
//! }
//! # Ok::<(), ccl_cuda::Error>(())
//! ```
//!
//! Three layers, of which only the last is public. The *table* ([`SYMBOLS`]) finds functions in the library, each with a
//! signature of our own that returns a number, and leaves out those that the driver's version lacks. A *call* checks the
//! code and names the function in its [`Error`]. The *values* own what the driver made, make their context current for
//! the duration of each call, and give back what they own when they are dropped; a drop that fails is logged, `close`
//! and `free` return the failure instead.
//!
//! **Threads.** Every value may be used from every thread, whatever context is current there; graphs only by one at a
//! time. **Blocking.** A function that waits for the device says so. **Capture.** Functions that allocate or wait break
//! captures of the [`CaptureMode::Global`] kind on any thread, unless within [`RelaxedCapture`]; dropping a value breaks none.
//!
//! [`Nvrtc`] is NVIDIA's compiler in the same manner: a library that is looked for, a table, values.
//!
//! What it deliberately does not do: link to or need CUDA at build time; track which stream uses which memory; use the
//! CUDA runtime library; choose kernels, devices or sizes. Layouts and constants are those of `cudarc::driver::sys`; its
//! functions are not called, since they panic where there is no driver.

mod capture;
mod context;
mod device;
mod error;
mod event;
mod graph;
mod image;
mod ipc;
mod launch;
mod load;
mod memory;
mod module;
mod multicast;
mod nvml;
mod nvrtc;
mod physical;
mod pointer;
mod stream;
mod symbols;
mod user_object;

pub use capture::{CaptureInfo, CaptureMode, CaptureStatus, Node, RelaxedCapture};
pub use context::{Context, Current, MemoryInfo};
pub use device::{Device, DeviceAbilities, DeviceLimits, DeviceLink};
pub use error::{Error, Failure, Fault, Result, code};
pub use event::{Event, EventKind, SharedEvent};
pub use graph::{Graph, GraphExec, GraphUpdate};
pub use ipc::{IpcMemory, SharedMemory};
pub use launch::{Launch, LaunchAttribute};
pub use load::{Absent, Driver, MINIMUM_VERSION};
pub use memory::{DeviceMemory, HostCaching, HostRegistration, PinnedMemory, copy, fill, fill_u32};
pub use module::{Function, FunctionAttributes, Library, Module};
pub use multicast::Multicast;
pub use nvml::{NvmlAbsent, NvmlDevice, NvmlLink, nvml_devices};
pub use nvrtc::{
    MINIMUM_NVRTC, NVRTC_SYMBOLS, Nvrtc, NvrtcAbsent, NvrtcCode, NvrtcError, NvrtcSource, NvrtcTarget,
};
pub use physical::{FabricHandle, Mapping, PhysicalMemory, Sharing, dma_buf};
pub use pointer::{PointerFacts, PointerKind};
pub use stream::{Progress, Stream, WaitFor};
pub use symbols::{SYMBOLS, Symbol};
