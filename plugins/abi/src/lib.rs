//! What a plugin of ccl is: the C tables, and the safe traits Rust authors write instead of them.
//!
//! A plugin is a shared library with one exported symbol, a static table of C functions. For a
//! network it is `cclNet_v1`, a [`CclNetV1`]; `plugins/include/ccl_net.h` is the same contract for
//! C and C++, complete enough to implement from alone. In Rust, implement [`Net`] and write one line:
//!
//! ```
//! use ccl_plugin::net::*;
//! use ccl_plugin::{Error, Settings};
//!
//! /// A network without devices.
//! struct Nowhere;
//!
//! impl Net for Nowhere {
//!     const NAME: &'static std::ffi::CStr = c"nowhere";
//!     type Listener = Void;
//!     type Connecting = Void;
//!     type SendComm = Void;
//!     type RecvComm = Void;
//!
//!     fn init(_: &Settings) -> Result<Self, Error> { Ok(Nowhere) }
//!     fn devices(&self) -> Result<u32, Error> { Ok(0) }
//!     fn properties(&self, device: u32) -> Result<Properties, Error> { Err(Error::no_device(device)) }
//!     fn listen(&self, device: u32) -> Result<(Handle, Void), Error> { Err(Error::no_device(device)) }
//!     fn connect(&self, device: u32, _: &Handle) -> Result<Void, Error> { Err(Error::no_device(device)) }
//! }
//!
//! // In the root of the crate that is built as a `cdylib`, and only there:
//! ccl_plugin::export_net!(Nowhere);
//! # enum VoidInner {}
//! # struct Void(VoidInner);
//! # impl Listener for Void { type RecvComm = Void;
//! #     fn accept(&mut self) -> Result<Option<Void>, Error> { Ok(None) } }
//! # impl Connecting for Void { type SendComm = Void;
//! #     fn poll(&mut self) -> Result<Option<Void>, Error> { Ok(None) } }
//! # impl SendComm for Void {
//! #     fn send(&mut self, _: SendBuffer) -> Result<Option<Request>, Error> { Ok(None) }
//! #     fn test(&mut self, _: Request) -> Result<bool, Error> { Ok(false) } }
//! # impl RecvComm for Void {
//! #     fn receive(&mut self, _: &[RecvBuffer]) -> Result<Option<Request>, Error> { Ok(None) }
//! #     fn test(&mut self, _: Request, _: &mut [u64]) -> Result<bool, Error> { Ok(false) } }
//! ```
//!
//! The library around the trait makes the table, turns a panic in any entry into
//! [`Code::PANIC`] and a log line, keeps the text of the last error for the host, and sends what the
//! plugin logs through `tracing` to the host (each shared library has its own `tracing`).
//! [`export_net!`] also exports an `abi_stable` root module, from which the host checks the layout
//! of a Rust plugin before it calls anything, so a plugin from an incompatible version is refused
//! with words.
//!
//! To link a network in instead of loading it, put the implementation into an ordinary library, use
//! [`net::table`], and keep [`export_net!`] in a second crate of one line: an exported symbol in an
//! ordinary library would clash with those of other networks and leak from everything that links it.
//!
//! A profiler is a [`Profiler`], exported with [`export_profiler!`] as `cclProfiler_v1`; its header is
//! `plugins/include/ccl_profiler.h`. A tuner is a [`Tuner`], exported with [`export_tuner!`] as `cclTuner_v1`; its header
//! is `plugins/include/ccl_tuner.h`.
//!
//! A source of settings is an [`Env`], exported with [`export_env!`] as `cclEnv_v1`; its header is
//! `plugins/include/ccl_env.h`.
//!
//! What this crate does not do: load anything (that is `ccl-plugin-host`), or know about plans,
//! ranks or devices' programs. No type of CUDA appears; device memory is an address with a kind.

#[doc(hidden)]
pub use abi_stable;

pub mod c;
mod code;
pub mod env;
mod error;
mod export;
mod forward;
mod guard;
pub mod net;
pub mod profiler;
mod settings;
pub mod tuner;

#[doc(hidden)]
pub use c::CclNetV1Ref as __NetModule;
pub use c::{CclErrorV1, CclHostV1, CclMemoryV1, CclNetPropertiesV1, CclNetV1, CclSettingV1};
pub use code::Code;
pub use env::Env;
#[doc(hidden)]
pub use env::c::CclEnvV1Ref as __EnvModule;
pub use error::{Error, Result};
#[doc(hidden)]
pub use export::{
    __env_module, __exported_env, __exported_profiler, __exported_table, __exported_tuner, __profiler_module,
    __root_module, __tuner_module,
};
pub use net::Net;
pub use profiler::Profiler;
#[doc(hidden)]
pub use profiler::c::CclProfilerV1Ref as __ProfilerModule;
pub use settings::Settings;
pub use tuner::Tuner;
#[doc(hidden)]
pub use tuner::c::CclTunerV1Ref as __TunerModule;
