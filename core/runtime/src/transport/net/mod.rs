//! Edges over a network plugin.
//!
//! A connection is made when an edge is first used: its receiver listens and sends the handle
//! through the relay, its sender connects and introduces itself with a hash that only a holder of
//! the communicator's secret can make. Then every slot is one message: 16 bytes of header, and the
//! payload. The receiver keeps a receive posted for each free slot, so the network never has to hold
//! more than the slots.
//!
//! Nothing here blocks; whoever waits polls.

mod errors;
mod greeting;
mod network;
mod receive;
mod send;
mod slots;

pub use network::NetSettings;
pub(crate) use network::{Network, SlotShape};
pub(crate) use receive::NetReceive;
pub(crate) use send::NetSend;
