//! Edges over a network plugin.
//!
//! A connection is made when an edge is first used: one end listens and sends the handle through the
//! relay, the other connects, and they introduce themselves with hashes that only a holder of the
//! communicator's secret can make. Where connections can be turned (sockets can), one serves both edges
//! between two ranks, so that acknowledgements ride on answers. Then every slot is one message: 16 bytes of header, and the
//! payload. The receiver keeps a receive posted for each free slot, so the network never has to hold
//! more than the slots.
//!
//! A payload that the producer lends is a message of its own, from where the user keeps it to where
//! the consumer's user wants it: no slot holds it. Its header travels as any other and says so; the
//! consumer posts the receive when it has got there, and until then the network holds the sender
//! back. What was lent is back when the network has taken it.
//!
//! Nothing here blocks; whoever waits polls, or sleeps on what the rank's vigil watches.

#[cfg(test)]
pub(crate) mod counted;
mod errors;
mod greeting;
mod network;
mod opening;
mod proxied;
mod receive;
mod send;
mod slots;
mod turns;
mod vigil;

pub use network::NetSettings;
pub(crate) use network::{LONGEST_LENT_BYTES, Network, Peers, SlotShape};
pub(crate) use receive::NetReceive;
pub(crate) use send::NetSend;
pub(crate) use turns::NetTurns;
pub(crate) use vigil::{Vigil, sleep_on};
