//! The two ends of an edge in shared memory.
//!
//! A payload lies in the message's line if it is very short, beside it if it is short, in a slot, or,
//! if it is *lent*, where the producer's user keeps it: the line then says where, and the consumer
//! reads it from there. So it does if the payload is in a slot of another edge, since somebody else is sent the
//! same ([`Slots`]). What is
//! lent is the producer's again when the slot is released, or when it withdraws everything because
//! the communicator failed; a consumer that was reading meanwhile learns of it and fails as well.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ccl_plan::Channel;

use super::layout::{EdgePlace, HeadLine, Region, SLOT_ALIGNMENT, SlotLine};
use super::pace::{Filling, Pace};
use super::ring::{Consumer, Producer};
use super::slots::{Location, Reader, Slots};
use crate::error::{Error, Result};
use crate::memory::PeerMemory;
use crate::memory::lines::{ask_for_all, claim, claim_all};
use crate::transport::{Quick, Slot};

/// The regions of all ranks of a host, by place.
pub(crate) type Regions = Arc<[Arc<Region>]>;

/// Payloads up to this many bytes travel in the message's line, beside the flag.
pub(crate) const INLINE_BYTES: usize = 48;

/// The producer's end; the edge lies in the receiver's region.
#[derive(Debug)]
pub(crate) struct MemorySend {
    producer: Producer,
    slots: Slots,
    pace: Pace,
    place: Place,
    /// Bytes acquired; negative when nothing is.
    acquired: isize,
    receiver: Arc<Region>,
    /// The receiver's place among the ranks of the host.
    local: usize,
    /// Whether all slots are to be touched before the first is used.
    touches: bool,
}

/// The consumer's end; the edge lies in its own region.
#[derive(Debug)]
pub(crate) struct MemoryReceive {
    consumer: Consumer,
    place: Place,
    /// Where the edge lies; kept mapped.
    own: Arc<Region>,
    sender: Arc<Region>,
    /// The sender's other memory, if it may be read.
    lender: Option<PeerMemory>,
    /// The regions of all ranks of the host, if slots are shared.
    regions: Regions,
    /// Of the message last peeked.
    marks: u32,
    /// Messages that were read together with an earlier one, and not yet fetched.
    ahead: Ahead,
    /// Whether all slots are to be touched before the first is read.
    touches: bool,
}

/// Lent messages that have been read before they were asked for.
#[derive(Clone, Copy, Default, Debug)]
struct Ahead {
    /// Messages below this one have.
    until: u64,
    /// Where the next one lay, and where it was read to.
    from: u64,
    to: usize,
}

impl MemorySend {
    /// The edge from local rank `source` into the region of the receiver, which is at `local`; `turns`: messages go
    /// through all slots in turn. The caller makes at most one for each edge in the region's life.
    pub(crate) fn new(
        (local, receiver): (usize, Arc<Region>),
        source: usize,
        channel: Channel,
        tag: u8,
        turns: bool,
    ) -> Result<MemorySend> {
        let place = Place::find(&receiver, source, channel, tag, turns)?;
        let slots = receiver.layout().slots;
        let producer = Producer::new(place.lines_count, slots);
        Ok(MemorySend {
            producer,
            slots: Slots::new(slots, turns.then_some(place.slot_stride)),
            pace: Pace::new(),
            place,
            acquired: NOTHING,
            receiver,
            local,
            touches: turns,
        })
    }

    /// See [`crate::transport::SendEdge::acquire`].
    #[inline]
    pub(crate) fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        if bytes > self.place.slot_bytes {
            return Err(too_long(bytes, self.place.slot_bytes));
        }
        // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        if !self.producer.free(&head.head) {
            return Ok(None);
        }
        let line = self.producer.line();
        let payload = if bytes <= INLINE_BYTES {
            self.place.in_line(line)
        } else if bytes <= self.place.short_bytes {
            self.place.short(line)
        } else {
            if std::mem::take(&mut self.touches) {
                self.receiver.touch(self.place.slots);
            }
            let released = self.producer.released(&head.head);
            let Some((slot, offset)) = self.slots.choose(released, bytes) else { return Ok(None) };
            self.place.slot(slot, offset)
        };
        self.acquired = bytes.cast_signed();
        Ok(Some(payload))
    }

    /// See [`crate::transport::SendEdge::post`].
    #[inline]
    pub(crate) fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        if bytes.cast_signed() > self.acquired {
            return Err(not_acquired(bytes, self.acquired));
        }
        let acquired = std::mem::replace(&mut self.acquired, NOTHING) as usize;
        let kind = if acquired <= INLINE_BYTES {
            IN_LINE
        } else if acquired <= self.place.short_bytes {
            SHORT
        } else {
            self.slots.take(self.producer.next());
            let (slot, offset) = self.slots.chosen();
            self.say([slot as u64, offset as u64]);
            0
        };
        self.publish(bytes as u32 | kind, tag);
        Ok(())
    }

    /// See [`crate::transport::SendEdge::acquire_short`].
    #[inline(always)]
    pub(crate) fn acquire_short(&mut self, bytes: usize) -> Quick {
        if bytes > self.place.short_bytes {
            return Quick::Otherwise;
        }
        // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        if !self.producer.free(&head.head) {
            return Quick::NotYet;
        }
        let line = self.producer.line();
        Quick::At(if bytes <= INLINE_BYTES { self.place.in_line(line) } else { self.place.short(line) })
    }

    /// See [`crate::transport::SendEdge::post_short`].
    #[inline(always)]
    pub(crate) fn post_short(&mut self, bytes: usize, tag: u32) {
        let kind = if bytes <= INLINE_BYTES { IN_LINE } else { SHORT };
        self.acquired = NOTHING;
        self.publish(bytes as u32 | kind, tag);
    }

    #[inline(always)]
    fn publish(&mut self, marks: u32, tag: u32) {
        // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        let turns = self.producer.turns(&head.head);
        let line = self.place.line(self.producer.line());
        // Relaxed: published by the release store of the sequence word.
        line.tag.store(tag, Ordering::Relaxed);
        line.marks.store(marks | if turns { TURNS } else { 0 }, Ordering::Relaxed);
        self.producer.publish(&line.sequence, turns);
        self.claim_ahead(marks);
        self.receiver.bell().ring_if_awaited();
    }

    /// Takes what the next message will fill, if it is as long as this one, out of the receiver's cache, which has held
    /// it since it was read there a round ago: it is there then when it is filled (ADR 0066).
    #[inline(always)]
    fn claim_ahead(&self, marks: u32) {
        if !self.producer.next_is_free() {
            return;
        }
        let line = self.producer.line();
        claim(self.place.in_line(line).as_ptr());
        let bytes = (marks & BYTES) as usize;
        match marks & (IN_LINE | SHORT | LENT) {
            SHORT if bytes > ASKED_FOR_BYTES => claim_all(self.place.short(line).as_ptr(), bytes),
            0 if bytes <= CLAIMED_BYTES => {
                if let Some((slot, offset)) = self.slots.ahead(self.producer.known_released(), bytes) {
                    claim_all(self.place.slot(slot, offset).as_ptr(), bytes);
                }
            }
            _ => {}
        }
    }

    /// See [`crate::transport::SendEdge::lend`].
    pub(crate) fn lend(&mut self, address: *const u8, bytes: usize, tag: u32) -> Result<()> {
        if self.acquired < 0 {
            return Err(not_acquired(bytes, self.acquired));
        }
        self.acquired = NOTHING;
        self.say([address.addr() as u64, bytes as u64]);
        self.publish(LENT, tag);
        Ok(())
    }

    /// See [`crate::transport::SendEdge::filling`].
    #[inline]
    pub(crate) fn filling(&mut self, timely: bool) -> Filling {
        if self.acquired > self.place.short_bytes.cast_signed() {
            self.pace.filling(timely, Instant::now)
        } else {
            Filling::Cached
        }
    }

    /// See [`crate::transport::SendEdge::took`].
    pub(crate) fn took(&mut self, bytes: usize, since: Instant) {
        let now = Instant::now();
        self.pace.took(bytes, now - since, now);
    }

    /// Whether others may be sent what was posted last, or is about to be, by [`MemorySend::point_to`].
    pub(in crate::transport) fn may_share(&self) -> bool {
        self.slots.may_share()
    }

    /// Where the long payload is that was posted last.
    pub(in crate::transport) fn location(&self, bytes: usize) -> Location {
        let (slot, offset) = self.slots.chosen();
        let slot = self.place.slot(slot, offset);
        Location { local: self.local as u32, offset: self.receiver.offset_of(slot), bytes }
    }

    /// Hands the acquired line over, with a payload that lies in a slot of another edge of this producer; who reads
    /// it there, for [`MemorySend::share`] of that edge.
    ///
    /// Errors: nothing acquired.
    pub(in crate::transport) fn point_to(&mut self, location: Location, tag: u32) -> Result<Reader> {
        if self.acquired < 0 {
            return Err(not_acquired(location.bytes, self.acquired));
        }
        self.acquired = NOTHING;
        self.say([u64::from(location.local), location.offset]);
        let reader = Reader::new(self.place.head, Arc::clone(&self.receiver), self.producer.next());
        self.publish(location.bytes as u32 | ELSEWHERE, tag);
        Ok(reader)
    }

    /// What was posted last is the receiver's and this reader's until both have released it.
    pub(in crate::transport) fn share(&mut self, reader: Reader) {
        self.slots.share(reader);
    }

    /// Writes two words into the line about to be published.
    fn say(&mut self, said: [u64; 2]) {
        let words: NonNull<[u64; 2]> = self.place.in_line(self.producer.line()).cast();
        // SAFETY: the line's payload is longer than two words, on an 8-byte boundary, and the
        // producer's until it publishes the line.
        unsafe { words.write(said) };
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
    /// where its bell is. `regions`: of all ranks of the host, if slots are shared. `turns` as the sender has it. The caller makes at most one for
    /// each edge in the region's life.
    pub(crate) fn new(
        (own, regions): (Arc<Region>, Regions),
        (sender, lender): (Arc<Region>, Option<PeerMemory>),
        source: usize,
        channel: Channel,
        tag: u8,
        turns: bool,
    ) -> Result<MemoryReceive> {
        let place = Place::find(&own, source, channel, tag, turns)?;
        let consumer = Consumer::new(place.lines_count);
        Ok(MemoryReceive {
            consumer,
            place,
            own,
            sender,
            lender,
            regions,
            marks: 0,
            ahead: Ahead::default(),
            touches: turns,
        })
    }

    /// See [`crate::transport::ReceiveEdge::peek`].
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Slot>> {
        let index = self.consumer.line();
        let line = self.place.line(index);
        if !self.consumer.ready(&line.sequence) {
            return Ok(None);
        }
        // Relaxed: ordered by the acquire load of the sequence word.
        let (marks, tag) = (line.marks.load(Ordering::Relaxed), line.tag.load(Ordering::Relaxed));
        self.marks = marks;
        let bytes = (marks & BYTES) as usize;
        let (data, most) = match marks & (IN_LINE | SHORT | LENT) {
            IN_LINE => (self.place.in_line(index), INLINE_BYTES),
            SHORT => (self.place.short(index), self.place.short_bytes),
            0 => (self.own_slot(index, bytes)?, self.place.slot_bytes),
            ELSEWHERE => (self.elsewhere(index, bytes)?, self.place.slot_bytes),
            _ => return self.borrow(index, tag).map(Some),
        };
        if bytes > most {
            return Err(overwritten(bytes, most));
        }
        Ok(Some(Slot { data, bytes, tag, lent: false }))
    }

    /// See [`crate::transport::ReceiveEdge::expect_short`].
    #[inline(always)]
    pub(crate) fn expect_short(&mut self, bytes: usize, tag: u32) -> Quick {
        let index = self.consumer.line();
        let line = self.place.line(index);
        let in_line = bytes <= INLINE_BYTES;
        if !self.consumer.ready(&line.sequence) {
            if !in_line && bytes <= ASKED_FOR_BYTES {
                self.place.ask_for_short(index, bytes);
            }
            return Quick::NotYet;
        }
        let kind = if in_line { IN_LINE } else { SHORT };
        // Relaxed: ordered by the acquire load of the sequence word.
        let (marks, found) = (line.marks.load(Ordering::Relaxed), line.tag.load(Ordering::Relaxed));
        if marks & !TURNS != bytes as u32 | kind || found != tag || bytes > self.place.short_bytes {
            return Quick::Otherwise;
        }
        self.marks = marks;
        Quick::At(if in_line { self.place.in_line(index) } else { self.place.short(index) })
    }

    /// The slot of this edge that a line speaks of.
    fn own_slot(&mut self, line: usize, bytes: usize) -> Result<NonNull<u8>> {
        if std::mem::take(&mut self.touches) {
            self.own.touch(self.place.slots);
        }
        let [slot, offset] = self.said(line).map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.place.slot_stride);
        match slot < self.place.slots_count && inside && offset.is_multiple_of(SLOT_ALIGNMENT) {
            true => Ok(self.place.slot(slot, offset)),
            false => Err(misplaced()),
        }
    }

    /// The slot of another edge that a line speaks of.
    fn elsewhere(&self, line: usize, bytes: usize) -> Result<NonNull<u8>> {
        let [local, offset] = self.said(line);
        let region = usize::try_from(local).ok().and_then(|local| self.regions.get(local));
        region.and_then(|region| region.payload(offset, bytes)).ok_or_else(misplaced)
    }

    /// The two words in a line that was published.
    fn said(&self, line: usize) -> [u64; 2] {
        let words: NonNull<[u64; 2]> = self.place.in_line(line).cast();
        // SAFETY: the line's payload is longer than two words, on an 8-byte boundary, and the
        // consumer's until it releases the line.
        unsafe { words.read() }
    }

    #[cold]
    fn borrow(&mut self, line: usize, tag: u32) -> Result<Slot> {
        let [address, bytes] = self.said(line);
        let data = NonNull::new(std::ptr::without_provenance_mut(address as usize));
        let data = data.ok_or_else(|| Error::bug("a slot is lent at the null address"))?;
        Ok(Slot { data, bytes: bytes as usize, tag, lent: true })
    }

    /// See [`crate::transport::ReceiveEdge::fetch`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(crate) unsafe fn fetch(&mut self, slot: &Slot, to: *mut u8, room: usize) -> Result<()> {
        let from = slot.data.addr().get() as u64;
        let known = self.ahead;
        if self.consumer.next() >= known.until || (known.from, known.to) != (from, to.addr()) {
            let (until, bytes) = self.run(slot, room.min(LONGEST_RUN_BYTES));
            // SAFETY: the caller's contract, and no run is longer than the room there.
            unsafe { self.fetch_piece(slot, 0, to, bytes)? };
            self.ahead.until = until;
        }
        (self.ahead.from, self.ahead.to) = (from + slot.bytes as u64, to.addr() + slot.bytes);
        Ok(())
    }

    /// The messages from the one that is to be fetched on which lie one behind the other, at most `room` bytes of them but always
    /// that one: the first message behind them, and their bytes.
    fn run(&self, slot: &Slot, room: usize) -> (u64, usize) {
        let (mut line, mut marks) = (self.consumer.line(), self.marks);
        let (mut messages, mut bytes) = (1, slot.bytes);
        while bytes < room {
            line = self.consumer.line_after(line, marks & TURNS != 0);
            let next = self.place.line(line);
            if !self.consumer.ready_after(messages, &next.sequence) {
                break;
            }
            // Relaxed: ordered by the acquire load of the sequence word.
            marks = next.marks.load(Ordering::Relaxed);
            let [address, more] = self.said(line);
            let lent =
                marks & (IN_LINE | SHORT | LENT) == LENT && next.tag.load(Ordering::Relaxed) == slot.tag;
            let behind = address == slot.data.addr().get() as u64 + bytes as u64;
            if !(lent && behind && more <= (room - bytes) as u64) {
                break;
            }
            messages += 1;
            bytes += more as usize;
        }
        (self.consumer.next() + messages, bytes)
    }

    /// See [`crate::transport::ReceiveEdge::fetch_piece`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(crate) unsafe fn fetch_piece(
        &self,
        slot: &Slot,
        from: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let lender =
            self.lender.ok_or_else(|| Error::bug("a slot is lent by a process that may not lend"))?;
        let address = slot.data.addr().get() as u64 + from as u64;
        // SAFETY: the caller's contract.
        unsafe { lender.read(address, to, bytes) }.map_err(unreadable)
    }

    /// See [`crate::transport::ReceiveEdge::release`].
    #[inline(always)]
    pub(crate) fn release(&mut self) -> Result<()> {
        let marks = std::mem::take(&mut self.marks);
        if marks & (IN_LINE | SHORT | LENT) == LENT && self.sender.withdrawn() {
            return Err(withdrawn());
        }
        // SAFETY: the head line lies in `own`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        self.consumer.release(&head.head, marks & TURNS != 0);
        self.sender.bell().ring_if_awaited();
        Ok(())
    }
}

/// Addresses of one edge. Valid while the region that holds it is kept.
#[derive(Debug)]
struct Place {
    head: NonNull<HeadLine>,
    lines: NonNull<SlotLine>,
    lines_count: usize,
    /// The first line's short payload.
    payload: NonNull<u8>,
    /// Most bytes of one.
    short_bytes: usize,
    short_stride: usize,
    slots: NonNull<u8>,
    slots_count: usize,
    slot_bytes: usize,
    slot_stride: usize,
}

impl Place {
    fn find(region: &Region, source: usize, channel: Channel, tag: u8, turns: bool) -> Result<Place> {
        let layout = region.layout();
        let EdgePlace { head, lines, payload, slots } =
            region.edge(source, channel, tag).ok_or_else(|| {
                Error::bug(format!("edge {source}/{channel}/{tag} lies outside the layout {layout:?}"))
            })?;
        Ok(Place {
            head,
            lines,
            lines_count: layout.lines(),
            payload,
            short_bytes: layout.short_bytes_of(turns),
            short_stride: layout.short_stride(),
            slots,
            slots_count: layout.slots,
            slot_bytes: layout.slot_bytes,
            slot_stride: layout.stride(),
        })
    }

    #[inline]
    fn line(&self, index: usize) -> &SlotLine {
        debug_assert!(index < self.lines_count);
        // SAFETY: the layout has `lines_count` lines here and cursors stay below it; everything in a
        // line is an atomic or in a cell.
        unsafe { self.lines.add(index).as_ref() }
    }

    #[inline]
    fn in_line(&self, index: usize) -> NonNull<u8> {
        debug_assert!(index < self.lines_count);
        // SAFETY: the layout has `lines_count` lines here and cursors stay below it; the payload is a
        // field of the line.
        unsafe { self.lines.add(index).cast::<u8>().add(std::mem::offset_of!(SlotLine, payload)) }
    }

    #[inline]
    fn short(&self, line: usize) -> NonNull<u8> {
        debug_assert!(line < self.lines_count);
        // SAFETY: the layout has a short payload for each of `lines_count` lines here.
        unsafe { self.payload.add(line * self.short_stride) }
    }

    /// Asks the processor for a short payload that is not there yet: it then comes when the producer has written it, and not
    /// only when its line has come and said so (ADR 0058).
    #[inline]
    fn ask_for_short(&self, line: usize, bytes: usize) {
        ask_for_all(self.short(line).as_ptr(), bytes.min(self.short_bytes));
    }

    #[inline]
    fn slot(&self, index: usize, offset: usize) -> NonNull<u8> {
        debug_assert!(index < self.slots_count && offset <= self.slot_stride);
        // SAFETY: the layout has `slots_count` slots of `slot_stride` bytes here.
        unsafe { self.slots.add(index * self.slot_stride + offset) }
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
fn misplaced() -> Error {
    Error::new(
        crate::Fault::System { errno: None },
        "expected a message in shared memory to say which slot it is in, found none there",
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

/// A line's marks: where the payload is; none of these: in the slot that the line names.
const IN_LINE: u32 = 1 << 31;
/// Beside the line.
const SHORT: u32 = 1 << 30;
/// In the producer's memory.
const LENT: u32 = 1 << 29;
/// In a slot of another edge.
const ELSEWHERE: u32 = SHORT | LENT;
/// The next message is in line 0.
const TURNS: u32 = 1 << 28;
/// The payload's bytes, unless lent.
const BYTES: u32 = TURNS - 1;
const NOTHING: isize = -1;
/// No more is read in one go than a lane moves in a turn (`TURN_BYTES` of `exec::step`): while a rank reads it lends nothing.
const LONGEST_RUN_BYTES: usize = 256 << 10;
/// Longest payloads that are asked for before they are there; longer ones take the longer for it.
const ASKED_FOR_BYTES: usize = 512;
/// Longest payloads in slots of which the next one's place is claimed: longer ones take as long either way.
const CLAIMED_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::super::layout::Layout;
    use super::*;

    /// An edge from a region to another of the same process.
    fn edge() -> (MemorySend, MemoryReceive, Arc<Region>) {
        let (from, into) = (Arc::new(Region::for_tests(2)), Arc::new(Region::for_tests(2)));
        let memory = PeerMemory::of(std::process::id());
        assert!(from.shows_through(memory).unwrap());
        let send = MemorySend::new((1, Arc::clone(&into)), 0, Channel(0), 0, false).unwrap();
        let sender = (Arc::clone(&from), Some(memory));
        (send, MemoryReceive::new((into, Arc::default()), sender, 0, Channel(0), 0, false).unwrap(), from)
    }

    fn fetched(receive: &mut MemoryReceive, slot: &Slot) -> Vec<u8> {
        let mut found = vec![0; slot.bytes];
        // SAFETY: the vector is as long as asked.
        unsafe { receive.fetch(slot, found.as_mut_ptr(), slot.bytes) }.unwrap();
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
            assert_eq!(fetched(&mut receive, &slot), payload);
            assert!(!send.all_released());
            receive.release().unwrap();
            assert!(send.all_released());
        }
    }

    /// Lends these ranges of `payload`, two at a time, and fetches them one after the other to where they lie in it, with this much
    /// room; how many were not there before they were fetched.
    fn reads(payload: &[u8], lent: &[(usize, usize, u32)], room: impl Fn(usize) -> usize) -> usize {
        let (mut send, mut receive, _from) = edge();
        let mut found = vec![0; payload.len()];
        let mut reads = 0;
        for two in lent.chunks(2) {
            for (start, bytes, tag) in two {
                send.acquire(0).unwrap().unwrap();
                send.lend(payload[*start..].as_ptr(), *bytes, *tag).unwrap();
            }
            for (start, bytes, tag) in two {
                let slot = receive.peek().unwrap().unwrap();
                assert_eq!((slot.lent, slot.bytes, slot.tag), (true, *bytes, *tag));
                reads += usize::from(found[*start..][..*bytes] != payload[*start..][..*bytes]);
                // SAFETY: the vector is as long as the payload, and `room` is asked to keep to it.
                unsafe { receive.fetch(&slot, found[*start..].as_mut_ptr(), room(*start)) }.unwrap();
                assert_eq!(found[*start..][..*bytes], payload[*start..][..*bytes]);
                receive.release().unwrap();
            }
        }
        let outside =
            |at: &usize| !lent.iter().any(|(start, bytes, _)| (*start..*start + *bytes).contains(at));
        assert!((0..payload.len()).filter(outside).all(|at| found[at] == 0), "more was written than lent");
        reads
    }

    #[test]
    fn what_is_lent_piece_by_piece_is_read_in_one_go_as_far_as_there_is_room() {
        let payload: Vec<u8> = (0..1000u32).map(|i| (i % 251 + 1) as u8).collect();
        let two = [(0, 100, 7), (100, 100, 7)];
        assert_eq!(reads(&payload, &two, |start| 200 - start), 1);
        assert_eq!(reads(&payload, &two, |start| 1000 - start), 1);
        assert_eq!(reads(&payload, &two, |start| 199 - start), 2);
        assert_eq!(reads(&payload, &two, |_| 0), 2);
        assert_eq!(reads(&payload, &[(0, 100, 7), (100, 100, 8)], |start| 200 - start), 2, "another message");
        assert_eq!(reads(&payload, &[(0, 100, 7), (101, 100, 7)], |start| 500 - start), 2, "a gap");
        assert_eq!(reads(&payload, &[(100, 100, 7), (0, 100, 7)], |start| 200 - start), 2, "back to front");
        let six: Vec<_> = (0..6).map(|piece| (piece * 100, 100, 7)).collect();
        assert_eq!(reads(&payload, &six, |start| 600 - start), 3, "over the end of the ring");
    }

    #[test]
    fn reading_what_was_taken_back_is_an_error() {
        let (mut send, mut receive, from) = edge();
        let payload = [1u8; 1000];
        send.acquire(0).unwrap().unwrap();
        send.lend(payload.as_ptr(), payload.len(), 0).unwrap();
        let slot = receive.peek().unwrap().unwrap();
        fetched(&mut receive, &slot);
        from.withdraw();
        let error = receive.release().unwrap_err();
        assert!(error.cause().contains("gave up while its buffer was read"), "{error}");
    }

    /// Fills `bytes` bytes with what message `message` carries.
    fn carried(message: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 + message * 7) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Messages of all lengths arrive whole and in order, however far behind the consumer is, and
        /// as many of the longest as there are slots are under way.
        #[test]
        fn messages_of_all_lengths_keep_their_order(
            lengths in prop::collection::vec(prop_oneof![0..=INLINE_BYTES, 49..=4096usize, 4097..=9000usize], 1..300),
            pauses in any::<u64>(),
            turns in any::<bool>(),
        ) {
            let layout = Layout { locals: 2, channels: 1, tags: 1, slots: 3, slot_bytes: 9000 };
            let region = Arc::new(Region::of_layout(layout));
            let mut send = MemorySend::new((1, Arc::clone(&region)), 0, Channel(0), 0, turns).unwrap();
            let sender = (Arc::clone(&region), None);
            let mut receive = MemoryReceive::new((region, Arc::default()), sender, 0, Channel(0), 0, turns).unwrap();
            let mut under_way = VecDeque::new();
            for (message, bytes) in lengths.into_iter().enumerate() {
                let eager = pauses >> (message % 64) & 1 == 1;
                loop {
                    let acquired = send.acquire(bytes).unwrap();
                    if let Some(payload) = acquired {
                        // SAFETY: the slot was acquired for as many bytes.
                        unsafe { payload.copy_from_nonoverlapping(NonNull::from(&carried(message, bytes)[..]).cast(), bytes) };
                        send.post(bytes, message as u32).unwrap();
                        under_way.push_back((message, bytes));
                    }
                    prop_assert!(acquired.is_some() || under_way.len() >= 3, "{under_way:?}");
                    if acquired.is_some() && !(eager && under_way.len() > 2) {
                        break;
                    }
                    let (oldest, bytes) = under_way.pop_front().unwrap();
                    let slot = receive.peek().unwrap().unwrap();
                    prop_assert_eq!((slot.bytes, slot.tag), (bytes, oldest as u32));
                    // SAFETY: the slot is the consumer's until it releases it.
                    let found = unsafe { std::slice::from_raw_parts(slot.data.as_ptr(), bytes) };
                    prop_assert_eq!(found, &carried(oldest, bytes)[..]);
                    receive.release().unwrap();
                    if acquired.is_some() {
                        break;
                    }
                }
            }
        }
    }
}
