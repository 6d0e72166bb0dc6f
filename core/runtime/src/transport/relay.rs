//! What a fabric needs of the control connections.

use bytes::Bytes;
use ccl_plan::Rank;

use crate::error::Result;

/// Slow, reliable messages between ranks, in order for each topic. Shared by threads.
pub trait Relay: Send + Sync {
    /// Sends `bytes` to a rank under a topic. Does not wait for the receiver.
    fn send(&self, to: Rank, topic: u32, bytes: Vec<u8>) -> Result<()>;

    /// Takes the next message of that rank and topic, if one is here. Never blocks.
    fn try_take(&self, from: Rank, topic: u32) -> Option<Vec<u8>>;

    /// Every rank's bytes, by rank. Blocks until all ranks have called it.
    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Bytes>>;

    /// An error once there is no point in waiting for peers any longer.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Topics from here on, 2²⁴ of them, are the network edges': one for each channel and tag.
pub(super) const NET_TOPICS: u32 = 0x4e00_0000;
