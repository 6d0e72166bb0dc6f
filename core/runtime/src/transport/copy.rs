//! Slots as slices: for control, wrappers and tests. The one place that turns an edge's addresses
//! into references.

use super::{ReceiveEdge, SendEdge};
use crate::error::{Error, Result};

/// A filled slot as a slice, the consumer's until released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its payload.
    pub payload: &'a [u8],
    /// What the producer gave to `post`.
    pub tag: u32,
}

impl SendEdge {
    /// The slot to fill next, as a slice of `bytes`; otherwise as [`SendEdge::acquire`].
    pub fn slot(&mut self, bytes: usize) -> Result<Option<&mut [u8]>> {
        let Some(start) = self.acquire(bytes)? else { return Ok(None) };
        // SAFETY: `acquire` gives initialised memory with room for as many bytes as asked, nobody
        // else's until `post`, which borrows the edge as this slice does.
        Ok(Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }))
    }

    /// Sends a copy of `payload`; `false` while there is no credit. Never blocks. Errors as of
    /// [`SendEdge::acquire`].
    pub fn try_send(&mut self, payload: &[u8], tag: u32) -> Result<bool> {
        let Some(slot) = self.slot(payload.len())? else { return Ok(false) };
        slot.copy_from_slice(payload);
        self.post(payload.len(), tag)?;
        Ok(true)
    }
}

impl ReceiveEdge {
    /// The oldest filled slot, as a slice; otherwise as [`ReceiveEdge::peek`].
    pub fn message(&mut self) -> Result<Option<Message<'_>>> {
        let Some(slot) = self.peek()? else { return Ok(None) };
        if slot.lent {
            return Err(Error::bug("a lent slot is no slice"));
        }
        // SAFETY: a peeked slot has as many bytes as it says, and nobody writes to them until
        // `release`, which borrows the edge as this slice does.
        let payload = unsafe { std::slice::from_raw_parts(slot.data.as_ptr(), slot.bytes) };
        Ok(Some(Message { payload, tag: slot.tag }))
    }

    /// Appends the next message to `into`; its tag, or `None` while there is none. Never blocks.
    /// Errors as of [`ReceiveEdge::peek`].
    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<Option<u32>> {
        let Some(message) = self.message()? else { return Ok(None) };
        into.extend_from_slice(message.payload);
        let tag = message.tag;
        self.release()?;
        Ok(Some(tag))
    }
}
