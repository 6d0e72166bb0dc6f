//! Memory that several ranks of one host map: anonymous files and their passing by descriptor.
//!
//! Nothing here has a name in a file system, so nothing is left behind however a process ends, and
//! the size of `/dev/shm` does not matter.

mod exchange;
pub(crate) mod footprint;
mod mailbox;
mod peer;
mod region;
pub(crate) mod scratch;
mod staging;

pub use exchange::{Exchange, Neighbour, Parcel};
pub use footprint::Footprint;
pub(crate) use footprint::{Entry, Ledger};
pub use mailbox::Mailbox;
pub(crate) use peer::PeerMemory;
pub use region::{Backing, Mapping, MemoryFile};
pub(crate) use staging::Staging;
