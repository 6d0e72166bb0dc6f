//! Memory that several ranks of one host map: anonymous files and their passing by descriptor.
//!
//! Nothing here has a name in a file system, so nothing is left behind however a process ends, and
//! the size of `/dev/shm` does not matter.

mod alloc;
mod exchange;
pub(crate) mod footprint;
pub(crate) mod fork;
pub(crate) mod lines;
mod mailbox;
mod peer;
mod region;
pub(crate) mod scratch;
mod staging;
mod window;

pub(crate) use alloc::Pages;
pub use alloc::{Memory, mem_alloc};
pub use exchange::{Exchange, Neighbour, Parcel};
pub use footprint::{DeviceFootprint, Footprint};
pub(crate) use footprint::{Entry, Ledger};
pub(crate) use mailbox::{Delivery, MOST_DESCRIPTORS};
pub use mailbox::{Mailbox, MailboxName};
pub(crate) use peer::PeerMemory;
pub use region::{Backing, Mapping, MemoryFile};
pub(crate) use staging::Staging;
pub use window::Window;
pub(crate) use window::{Place, Views, Windows};
