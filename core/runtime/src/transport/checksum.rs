//! A checksum around every message (`CCL_CHECKSUM=1`), over any path.
//!
//! Eight bytes follow the payload: a CRC-32 over payload, tag and sequence, and the sequence's low
//! half. A flipped bit, a lost, repeated or foreign message is an error that names the edge.

use std::ptr::NonNull;

use super::edge::{EdgeName, EdgeReceive, EdgeSend};
use super::{ReceiveEdge, SendEdge, Slot};
use crate::error::{Error, Result};

/// Bytes that a slot needs beyond its payload.
pub(super) const TRAILER_BYTES: usize = 8;

/// Adds the trailer.
pub(super) struct ChecksumSend {
    inner: SendEdge,
    acquired: Option<usize>,
    sequence: u64,
}

/// Checks and removes the trailer.
pub(super) struct ChecksumReceive {
    inner: ReceiveEdge,
    name: EdgeName,
    /// Payload bytes of the slot that was peeked and found whole.
    checked: Option<usize>,
    sequence: u64,
}

impl ChecksumSend {
    pub(super) fn new(inner: SendEdge) -> ChecksumSend {
        ChecksumSend { inner, acquired: None, sequence: 0 }
    }
}

impl ChecksumReceive {
    pub(super) fn new(inner: ReceiveEdge, name: EdgeName) -> ChecksumReceive {
        ChecksumReceive { inner, name, checked: None, sequence: 0 }
    }

    /// The payload's bytes, if the message is whole.
    fn check(&mut self) -> Result<Option<usize>> {
        let Some(message) = self.inner.message()? else { return Ok(None) };
        let Some((payload, found)) = message.payload.split_last_chunk() else {
            return Err(damaged(&self.name, self.sequence, "a message without its checksum".to_owned()));
        };
        let expected = trailer(payload, message.tag, self.sequence);
        if *found == expected {
            return Ok(Some(payload.len()));
        }
        let [expected, found] = [expected, *found].map(u64::from_le_bytes);
        let words = format!("{} bytes with checksum {found:#018x}, computed {expected:#018x}", payload.len());
        Err(damaged(&self.name, self.sequence, words))
    }
}

impl EdgeSend for ChecksumSend {
    fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        let address = self.inner.acquire(bytes + TRAILER_BYTES)?;
        self.acquired = address.is_some().then_some(bytes);
        Ok(address)
    }

    fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        let acquired = self.acquired.take().filter(|acquired| bytes <= *acquired);
        let slot = acquired.map_or(Ok(None), |acquired| self.inner.slot(acquired + TRAILER_BYTES))?;
        let slot = slot
            .ok_or_else(|| Error::bug(format!("expected the bytes posted to be acquired, found {bytes}")))?;
        let trailer = trailer(&slot[..bytes], tag, self.sequence);
        slot[bytes..bytes + TRAILER_BYTES].copy_from_slice(&trailer);
        self.sequence += 1;
        self.inner.post(bytes + TRAILER_BYTES, tag)
    }

    fn progress(&mut self) -> Result<()> {
        self.inner.progress()
    }

    fn idle(&self) -> bool {
        self.inner.idle()
    }
}

impl EdgeReceive for ChecksumReceive {
    fn peek(&mut self) -> Result<Option<Slot>> {
        if self.checked.is_none() {
            self.checked = self.check()?;
        }
        let Some(bytes) = self.checked else { return Ok(None) };
        Ok(self.inner.peek()?.map(|slot| Slot { bytes, ..slot }))
    }

    fn release(&mut self) -> Result<()> {
        self.checked = None;
        self.sequence += 1;
        self.inner.release()
    }

    fn progress(&mut self) -> Result<()> {
        self.inner.progress()
    }
}

fn trailer(payload: &[u8], tag: u32, sequence: u64) -> [u8; TRAILER_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(payload);
    hasher.update(&tag.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    (u64::from(hasher.finalize()) | sequence << 32).to_le_bytes()
}

#[cold]
fn damaged(name: &EdgeName, sequence: u64, found: String) -> Error {
    Error::new(
        crate::Fault::Network,
        format!("expected chunk {sequence} of {name} to arrive as it was sent, found {found}"),
        "data was damaged on the way: check memory and network hardware of both hosts",
    )
    .with_peer(name.from)
}
