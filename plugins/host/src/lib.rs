//! Finds, loads and checks plugins, and offers each contract as a safe type.
//!
//! ```no_run
//! use ccl_plugin_host::{LogFn, NetPlugin};
//!
//! let (candidates, chosen) = NetPlugin::load("socket");
//! for candidate in &candidates {
//!     eprintln!("{candidate}");
//! }
//! let net = chosen?.init(&[("sockets", "2")], LogFn::tracing())?;
//! let (handle, mut listener) = net.listen(0)?;
//! let mut connecting = net.connect(0, handle)?;
//! let (mut send, mut recv) = (None, None);
//! while send.is_none() || recv.is_none() {
//!     if send.is_none() { send = connecting.poll()?; }
//!     if recv.is_none() { recv = listener.poll()?; }
//! }
//! # Ok::<(), ccl_plugin_host::NetError>(())
//! ```
//!
//! A library that was opened is never closed again: plugins leave threads and thread-local
//! destructors behind. A context that is dropped is finalised; its code stays mapped, and loading
//! the same file again gives the same plugin.
//!
//! What this crate does not do: choose between networks (the runtime does, with what it knows of
//! devices and topology), or trust a table: size, version, name and required entries are checked
//! before the first call, and a Rust plugin's layout as well.

mod check;
pub mod env;
mod error;
mod fault;
mod library;
mod log;
mod nccl;
pub mod net;
pub mod profiler;
mod search;
pub mod tuner;

pub use env::EnvPlugin;
pub use error::{Detail, NetError};
pub use library::exported;
pub use log::{LogFn, LogLine};
pub use net::{
    Connecting, Handle, Listener, MemoryKind, Mr, NetContext, NetPlugin, Properties, RecvBuffer, RecvComm,
    Request, SendComm,
};
pub use profiler::ProfilerPlugin;
pub use search::{Candidate, Verdict};
pub use tuner::TunerPlugin;
