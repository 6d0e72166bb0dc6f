//! The staging memory of a network edge: for each slot a message, header and payload in one piece.

use std::ptr::NonNull;

use super::network::SlotShape;
use crate::error::Result;
use crate::memory::{Ledger, Staging};

/// Slots of one end. Whether a slot's bytes may be touched is the ends' business.
#[derive(Debug)]
pub(super) struct Slots {
    staging: Staging,
    count: usize,
    capacity_bytes: usize,
}

/// What goes before a payload on the wire, 16 bytes, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) tag: u32,
    /// Of the payload; with [`APART`] if it is a message of its own.
    pub(super) bytes: u32,
    /// Its lower half: no more messages are under way.
    pub(super) sequence: u32,
    /// Of the sender's turn: [`super::turns`].
    pub(super) sign: u32,
}

impl Slots {
    pub(super) fn new(shape: SlotShape, ledger: &Ledger) -> Result<Slots> {
        let staging = Staging::new(shape.staging_bytes(), ledger)?;
        Ok(Slots { staging, count: shape.used, capacity_bytes: shape.slot_bytes })
    }

    /// The slot of a message.
    #[inline]
    pub(super) fn of(&self, sequence: u64) -> usize {
        (sequence % self.count as u64) as usize
    }

    pub(super) fn count(&self) -> u64 {
        self.count as u64
    }

    /// Most payload bytes of a slot.
    pub(super) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Most bytes of a message.
    pub(super) fn message_bytes(&self) -> usize {
        HEADER_BYTES + self.capacity_bytes
    }

    /// All of it, for registration.
    pub(super) fn whole(&self) -> (NonNull<u8>, usize) {
        (self.staging.at(0), self.staging.bytes())
    }

    /// Where a slot's message begins.
    #[inline]
    pub(super) fn message(&self, slot: usize) -> NonNull<u8> {
        self.staging.at(slot * Slots::stride_of(self.capacity_bytes) + LINE_BYTES - HEADER_BYTES)
    }

    /// Where a slot's payload begins: on a cache line.
    #[inline]
    pub(super) fn payload(&self, slot: usize) -> NonNull<u8> {
        self.staging.at(slot * Slots::stride_of(self.capacity_bytes) + LINE_BYTES)
    }

    /// # Safety
    ///
    /// No request is pending on the slot.
    pub(super) unsafe fn write_header(&self, slot: usize, header: Header) {
        // SAFETY: sixteen bytes before the payload, inside the slot, ours by the caller's promise.
        unsafe { self.message(slot).cast().write_unaligned(header.to_bytes()) };
    }

    /// # Safety
    ///
    /// No request is pending on the slot.
    pub(super) unsafe fn read_header(&self, slot: usize) -> Header {
        // SAFETY: as in `write_header`; any bytes are valid.
        Header::from_bytes(unsafe { self.message(slot).cast().read_unaligned() })
    }

    fn stride_of(capacity_bytes: usize) -> usize {
        LINE_BYTES + capacity_bytes.next_multiple_of(LINE_BYTES)
    }
}

impl SlotShape {
    /// Bytes of one end's slots.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.slots * Slots::stride_of(self.slot_bytes)
    }
}

impl Header {
    /// Bytes of the payload, wherever it is.
    pub(super) fn payload_bytes(&self) -> usize {
        (self.bytes & !APART) as usize
    }

    pub(super) fn is_apart(&self) -> bool {
        self.bytes & APART != 0
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let low = u128::from(self.tag) | u128::from(self.bytes) << 32;
        let words = low | u128::from(self.sequence) << 64 | u128::from(self.sign) << 96;
        words.to_le_bytes()
    }

    fn from_bytes(bytes: [u8; HEADER_BYTES]) -> Header {
        let words = u128::from_le_bytes(bytes);
        let word = |index: u32| (words >> (32 * index)) as u32;
        Header { tag: word(0), bytes: word(1), sequence: word(2), sign: word(3) }
    }
}

pub(super) const HEADER_BYTES: usize = 16;
/// Marks a header whose payload follows as a message of its own, with the network's tag
/// [`PAYLOAD_TAG`].
pub(super) const APART: u32 = 1 << 31;
pub(super) const PAYLOAD_TAG: u32 = 1;
const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let header = Header { tag: 0xdead_beef, bytes: 77, sequence: 1 << 31, sign: 5 };
        assert_eq!(Header::from_bytes(header.to_bytes()), header);
        assert_eq!(header.to_bytes()[..4], 0xdead_beef_u32.to_le_bytes());
    }

    #[test]
    fn messages_do_not_overlap_and_payloads_are_aligned() {
        for capacity in [1, 63, 64, 1000] {
            let shape = SlotShape { slots: 3, used: 3, slot_bytes: capacity };
            let slots = Slots::new(shape, &Ledger::default()).unwrap();
            for slot in 0..shape.slots {
                let (message, payload) = (slots.message(slot).addr().get(), slots.payload(slot).addr().get());
                assert_eq!((payload % 64, payload - message), (0, HEADER_BYTES));
                let next = slots.whole().0.addr().get() + slots.whole().1;
                let next = if slot + 1 < shape.slots { slots.message(slot + 1).addr().get() } else { next };
                assert!(message + slots.message_bytes() <= next);
            }
        }
    }
}
