//! The two ends of an edge in shared memory.
//!
//! A payload lies in the slot's line if it is short, in the slot, or, if it is *lent*, where the
//! producer's user keeps it: the line then says where, and the consumer reads it from there. What is
//! lent is the producer's again when the slot is released, or when it withdraws everything because
//! the communicator failed; a consumer that was reading meanwhile learns of it and fails as well.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ccl_plan::Channel;

use super::layout::{EdgePlace, HeadLine, Region, SlotLine};
use super::ring::{Consumer, Producer};
use crate::error::{Error, Result};
use crate::memory::PeerMemory;
use crate::transport::Slot;

/// Payloads up to this many bytes travel in the slot's line, beside the flag.
pub(crate) const INLINE_BYTES: usize = 48;

/// The producer's end; the edge lies in the receiver's region.
#[derive(Debug)]
pub(crate) struct MemorySend {
    producer: Producer,
    place: Place,
    /// Bytes acquired; negative when nothing is.
    acquired: isize,
    in_line: bool,
    receiver: Arc<Region>,
}

/// The consumer's end; the edge lies in its own region.
#[derive(Debug)]
pub(crate) struct MemoryReceive {
    consumer: Consumer,
    place: Place,
    /// Where the edge lies; kept mapped.
    _own: Arc<Region>,
    sender: Arc<Region>,
    /// The sender's other memory, if it may be read.
    lender: Option<PeerMemory>,
    /// Whether the slot last peeked was lent.
    borrowed: bool,
}

impl MemorySend {
    /// The edge from local rank `source` into `receiver`'s region. The caller makes at most one for
    /// each edge in the region's life.
    pub(crate) fn new(receiver: Arc<Region>, source: usize, channel: Channel, tag: u8) -> Result<MemorySend> {
        let place = Place::find(&receiver, source, channel, tag)?;
        let producer = Producer::new(receiver.layout().slots);
        Ok(MemorySend { producer, place, acquired: NOTHING, in_line: false, receiver })
    }

    /// See [`crate::transport::SendEdge::acquire`].
    #[inline]
    pub(crate) fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        if bytes > self.place.capacity_bytes {
            return Err(too_long(bytes, self.place.capacity_bytes));
        }
        // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        let Some(slot) = self.producer.free(&head.head) else { return Ok(None) };
        self.acquired = bytes.cast_signed();
        self.in_line = bytes <= INLINE_BYTES;
        Ok(Some(if self.in_line { self.place.in_line(slot) } else { self.place.payload(slot) }))
    }

    /// See [`crate::transport::SendEdge::post`].
    #[inline]
    pub(crate) fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        if bytes.cast_signed() > self.acquired {
            return Err(not_acquired(bytes, self.acquired));
        }
        self.acquired = NOTHING;
        let line = self.place.line(self.producer.slot());
        // Relaxed: published by the release store of the sequence word.
        line.tag.store(tag, Ordering::Relaxed);
        line.bytes.store(bytes as u32 | (u32::from(self.in_line) * IN_LINE), Ordering::Relaxed);
        self.producer.publish(&line.sequence);
        self.receiver.bell().ring_if_awaited();
        Ok(())
    }

    /// See [`crate::transport::SendEdge::lend`].
    pub(crate) fn lend(&mut self, address: *const u8, bytes: usize, tag: u32) -> Result<()> {
        if self.acquired < 0 {
            return Err(not_acquired(bytes, self.acquired));
        }
        self.acquired = NOTHING;
        let slot = self.producer.slot();
        let line = self.place.line(slot);
        let words: NonNull<[u64; 2]> = self.place.in_line(slot).cast();
        // SAFETY: the line's payload is longer than two words, on an 8-byte boundary, and the
        // producer's until it publishes the slot.
        unsafe { words.write([address.addr() as u64, bytes as u64]) };
        line.tag.store(tag, Ordering::Relaxed);
        line.bytes.store(LENT, Ordering::Relaxed);
        self.producer.publish(&line.sequence);
        self.receiver.bell().ring_if_awaited();
        Ok(())
    }

    /// See [`crate::transport::SendEdge::all_released`].
    pub(crate) fn all_released(&self) -> bool {
        // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        self.producer.all_released(&head.head)
    }
}

impl MemoryReceive {
    /// The edge from local rank `source` into one's own region; `sender` is that rank's region,
    /// where its bell is. The caller makes at most one for each edge in the region's life.
    pub(crate) fn new(
        own: Arc<Region>,
        (sender, lender): (Arc<Region>, Option<PeerMemory>),
        source: usize,
        channel: Channel,
        tag: u8,
    ) -> Result<MemoryReceive> {
        let place = Place::find(&own, source, channel, tag)?;
        let consumer = Consumer::new(own.layout().slots);
        Ok(MemoryReceive { consumer, place, _own: own, sender, lender, borrowed: false })
    }

    /// See [`crate::transport::ReceiveEdge::peek`].
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Slot>> {
        let slot = self.consumer.slot();
        let line = self.place.line(slot);
        if !self.consumer.ready(&line.sequence) {
            return Ok(None);
        }
        // Relaxed: ordered by the acquire load of the sequence word.
        let (marked, tag) = (line.bytes.load(Ordering::Relaxed), line.tag.load(Ordering::Relaxed));
        if marked == LENT {
            return self.borrow(slot, tag).map(Some);
        }
        let bytes = (marked & !IN_LINE) as usize;
        let in_line = marked & IN_LINE != 0;
        if bytes > if in_line { INLINE_BYTES } else { self.place.capacity_bytes } {
            return Err(overwritten(bytes, self.place.capacity_bytes));
        }
        let data = if in_line { self.place.in_line(slot) } else { self.place.payload(slot) };
        Ok(Some(Slot { data, bytes, tag, lent: false }))
    }

    #[cold]
    fn borrow(&mut self, slot: usize, tag: u32) -> Result<Slot> {
        let words: NonNull<[u64; 2]> = self.place.in_line(slot).cast();
        // SAFETY: the line's payload is longer than two words, on an 8-byte boundary, and the
        // consumer's until it releases the slot.
        let [address, bytes] = unsafe { words.read() };
        self.borrowed = true;
        let data = NonNull::new(std::ptr::without_provenance_mut(address as usize));
        let data = data.ok_or_else(|| Error::bug("a slot is lent at the null address"))?;
        Ok(Slot { data, bytes: bytes as usize, tag, lent: true })
    }

    /// See [`crate::transport::ReceiveEdge::fetch`].
    pub(crate) unsafe fn fetch(&self, slot: &Slot, from: usize, to: *mut u8, bytes: usize) -> Result<()> {
        let lender =
            self.lender.ok_or_else(|| Error::bug("a slot is lent by a process that may not lend"))?;
        let address = slot.data.addr().get() as u64 + from as u64;
        // SAFETY: the caller's contract.
        unsafe { lender.read(address, to, bytes) }.map_err(unreadable)
    }

    /// See [`crate::transport::ReceiveEdge::release`].
    #[inline]
    pub(crate) fn release(&mut self) -> Result<()> {
        if std::mem::take(&mut self.borrowed) && self.sender.withdrawn() {
            return Err(withdrawn());
        }
        // SAFETY: the head line lies in `own`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        self.consumer.release(&head.head);
        self.sender.bell().ring_if_awaited();
        Ok(())
    }
}

/// Addresses of one edge. Valid while the region that holds it is kept.
#[derive(Debug)]
struct Place {
    head: NonNull<HeadLine>,
    lines: NonNull<SlotLine>,
    payload: NonNull<u8>,
    stride: usize,
    slots: usize,
    capacity_bytes: usize,
}

impl Place {
    fn find(region: &Region, source: usize, channel: Channel, tag: u8) -> Result<Place> {
        let layout = region.layout();
        let EdgePlace { head, lines, payload, stride } =
            region.edge(source, channel, tag).ok_or_else(|| {
                Error::bug(format!("edge {source}/{channel}/{tag} lies outside the layout {layout:?}"))
            })?;
        let (slots, capacity_bytes) = (layout.slots, layout.slot_bytes);
        Ok(Place { head, lines, payload, stride, slots, capacity_bytes })
    }

    #[inline]
    fn line(&self, slot: usize) -> &SlotLine {
        debug_assert!(slot < self.slots);
        // SAFETY: the layout has `slots` lines here and cursors stay below `slots`; everything in a
        // line is an atomic or in a cell.
        unsafe { self.lines.add(slot).as_ref() }
    }

    #[inline]
    fn in_line(&self, slot: usize) -> NonNull<u8> {
        debug_assert!(slot < self.slots);
        // SAFETY: the layout has `slots` lines here and cursors stay below `slots`; the payload is
        // a field of the line.
        unsafe { self.lines.add(slot).cast::<u8>().add(std::mem::offset_of!(SlotLine, payload)) }
    }

    #[inline]
    fn payload(&self, slot: usize) -> NonNull<u8> {
        debug_assert!(slot < self.slots);
        // SAFETY: the layout has `slots` payloads of `stride` bytes here.
        unsafe { self.payload.add(slot * self.stride) }
    }
}

// SAFETY: the addresses lie in shared mappings that the end keeps alive; a thread that has the end
// has its side of the edge to itself, and the other side is met through atomics.
unsafe impl Send for Place {}

#[cold]
fn too_long(bytes: usize, capacity_bytes: usize) -> Error {
    Error::bug(format!("expected at most {capacity_bytes} bytes for a slot, found {bytes}"))
}

#[cold]
fn not_acquired(bytes: usize, acquired: isize) -> Error {
    Error::bug(format!("expected at most the bytes acquired ({acquired}) to be posted, found {bytes}"))
}

#[cold]
fn overwritten(bytes: usize, capacity_bytes: usize) -> Error {
    Error::new(
        crate::Fault::System { errno: None },
        format!("expected at most {capacity_bytes} bytes in a slot of shared memory, found {bytes}"),
        "something wrote over shared memory: run with CCL_CHECKSUM=1, and look for stray writes in the peer",
    )
}

#[cold]
fn unreadable(error: std::io::Error) -> Error {
    Error::system(
        "read the memory of a rank of this host",
        error,
        "look for what happened to that rank, or set CCL_DIRECT_BYTES=0",
    )
}

#[cold]
fn withdrawn() -> Error {
    Error::new(crate::Fault::Network, "the peer gave up while its buffer was read", "look for its own error")
}

/// Marks a payload that is in the slot's line.
pub(super) const IN_LINE: u32 = 1 << 31;
/// Marks a payload that is lent.
pub(super) const LENT: u32 = u32::MAX;
const NOTHING: isize = -1;

#[cfg(test)]
mod tests {
    use super::*;

    /// An edge from a region to another of the same process.
    fn edge() -> (MemorySend, MemoryReceive, Arc<Region>) {
        let (from, into) = (Arc::new(Region::for_tests(2)), Arc::new(Region::for_tests(2)));
        let memory = PeerMemory::of(std::process::id());
        assert!(from.shows_through(memory).unwrap());
        let send = MemorySend::new(Arc::clone(&into), 0, Channel(0), 0).unwrap();
        let sender = (Arc::clone(&from), Some(memory));
        (send, MemoryReceive::new(into, sender, 0, Channel(0), 0).unwrap(), from)
    }

    fn fetched(receive: &MemoryReceive, slot: &Slot) -> Vec<u8> {
        let mut found = vec![0; slot.bytes];
        // SAFETY: the vector is as long as asked.
        unsafe { receive.fetch(slot, 0, found.as_mut_ptr(), slot.bytes) }.unwrap();
        found
    }

    #[test]
    fn what_is_lent_is_read_where_it_is_and_comes_back() {
        let (mut send, mut receive, _from) = edge();
        let payload: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        assert!(send.lend(payload.as_ptr(), payload.len(), 7).is_err(), "nothing was acquired");
        for round in 0..5 {
            send.acquire(0).unwrap().unwrap();
            send.lend(payload.as_ptr(), payload.len(), round).unwrap();
            let slot = receive.peek().unwrap().unwrap();
            assert_eq!((slot.lent, slot.bytes, slot.tag), (true, payload.len(), round));
            assert_eq!(fetched(&receive, &slot), payload);
            assert!(!send.all_released());
            receive.release().unwrap();
            assert!(send.all_released());
        }
    }

    #[test]
    fn reading_what_was_taken_back_is_an_error() {
        let (mut send, mut receive, from) = edge();
        let payload = [1u8; 1000];
        send.acquire(0).unwrap().unwrap();
        send.lend(payload.as_ptr(), payload.len(), 0).unwrap();
        let slot = receive.peek().unwrap().unwrap();
        fetched(&receive, &slot);
        from.withdraw();
        let error = receive.release().unwrap_err();
        assert!(error.cause().contains("gave up while its buffer was read"), "{error}");
    }
}
