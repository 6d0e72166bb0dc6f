//! Transports: what carries edges.
//!
//! An *edge* is the single-producer single-consumer FIFO from one rank to another within one channel
//! and tag, with a fixed number of slots. The producer acquires a slot, writes into it and posts it;
//! the consumer peeks, reads and releases. Nothing blocks: "not yet" is a value, and who has nothing
//! else to do waits with a [`Waiter`].
//!
//! A [`Fabric`] is one rank's connections. It decides the path to each peer once, by trying it, and
//! makes edges on first use.
//!
//! ```text
//! let (mut fabric, info) = Fabric::open(settings, me, n)?;   // before joining
//! fabric.connect(&relay, infos, deadline)?;                  // after
//! let edge = fabric.send_edge(peer, Channel(0), 0)?;
//! if let Some(address) = fabric.sender(edge).acquire(4)? {   // None: no credit yet
//!     // … write 4 bytes at `address` …
//!     fabric.sender(edge).post(4, operation)?;
//! }
//! ```
//!
//! Transports know nothing of plans, reductions or streams.

mod agree;
mod checksum;
mod connected;
mod copy;
mod edge;
mod fabric;
mod fault;
mod host;
mod mapped;
mod net;
mod path;
mod relay;
mod settings;
mod shm;
mod trace;
pub mod waiting;

pub use copy::Message;
pub use edge::{EdgeKey, ReceiveEdge, SendEdge, Slot};
pub(crate) use edge::{Lends, Quick};
pub(crate) use fabric::Networking;
pub use fabric::{EdgeIndex, Fabric};
pub use fault::{FaultKind, FaultRule};
pub use net::NetSettings;
#[cfg(test)]
pub(crate) use net::counted;
pub(crate) use net::{LONGEST_LENT_BYTES, Network, SlotShape};
pub use path::{Path, PathKind};
pub use relay::Relay;
pub use settings::{Checksum, ProcessInfo, SeatInfo, SharedMemory, TransportInfo, TransportSettings};
pub use shm::Bell;
pub(crate) use shm::{Emptying, FEW_RANKS, Filler, Filling, INLINE_BYTES, Lookout, Visitors};
pub use trace::{TraceEvent, TraceLog, TraceRecord};
pub use waiting::{WaitSettings, Waiter};
