//! Edges through memory that both ranks map.
//!
//! An edge lives in its *receiver's* region. One slot costs one cache line when the payload is small:
//! the line carries the payload, its tag and the flag that publishes it.

mod bell;
mod beside;
mod cells;
mod edge;
mod exchange;
mod help;
mod layout;
mod marks;
mod neighbours;
mod pace;
mod place;
mod presence;
mod ring;
mod slots;
mod turns;
mod visits;

pub use bell::Bell;
pub(super) use bell::NETWORK_SLEEP;
pub(crate) use edge::{INLINE_BYTES, MemoryReceive, MemorySend, Regions};
pub(crate) use exchange::{MOST_EXCHANGED, Pool, Reuse};
pub(crate) use layout::{FEW_RANKS, Layout, MOST_EXCHANGING_RANKS};
pub(crate) use neighbours::{Neighbours, Own};
pub(crate) use pace::{Emptying, Filler, Filling};
pub(crate) use place::{Ends, Way};
pub(crate) use presence::{Lookout, Presence};
pub(super) use slots::{Location, Reader};
pub(crate) use turns::{LONGEST_SLEEP, TurnPatience, Turns};
pub(crate) use visits::Visitors;
