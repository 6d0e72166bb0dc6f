//! Edges over a network plugin.
//!
//! A connection is made when an edge is first used: its receiver listens and sends the handle
//! through the relay, its sender connects and introduces itself with a hash that only a holder of
//! the communicator's secret can make. Then every slot is one message: 16 bytes of header, and the
//! payload. The receiver keeps a receive posted for each free slot, so the network never has to hold
//! more than the slots.
//!
//! A payload that the producer lends is a message of its own, from where the user keeps it to where
//! the consumer's user wants it: no slot holds it. Its header travels as any other and says so; the
//! consumer posts the receive when it has got there, and until then the network holds the sender
//! back. What was lent is back when the network has taken it.
//!
//! Nothing here blocks; whoever waits polls.

mod errors;
mod greeting;
mod network;
mod receive;
mod send;
mod slots;

pub use network::NetSettings;
pub(crate) use network::{LONGEST_LENT_BYTES, Network, SlotShape};
pub(crate) use receive::NetReceive;
pub(crate) use send::NetSend;
