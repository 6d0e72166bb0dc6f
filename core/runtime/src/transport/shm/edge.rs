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

use super::exchange::{Exchange, Pool, RETURNED, Spot};
use super::layout::Region;
use super::pace::{Filler, Filling, Pace};
use super::place::{Ends, Place};
use super::ring::{Consumer, Producer};
use super::slots::{Location, Reader, Slots};
use crate::discover::processor::is_of_amd;
use crate::error::{Error, Result};
use crate::memory::PeerMemory;
use crate::memory::lines::{claim, claim_all};
use crate::transport::{Quick, Slot};

/// The regions of all ranks of a host, by place.
pub(crate) type Regions = Arc<[Arc<Region>]>;

/// Payloads up to this many bytes travel in the message's line, beside the flag.
pub(crate) const INLINE_BYTES: usize = 48;

/// How the edges between two ranks use their slots; both ends have it the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    /// The host has few ranks, and a core for each.
    pub(crate) roomy: bool,
    /// This rank's part of the slots, if they go from hand to hand.
    pub(crate) pool: Option<Arc<Pool>>,
}

/// The producer's end; the edge lies in the receiver's region.
#[derive(Debug)]
pub(crate) struct MemorySend {
    producer: Producer,
    pub(super) slots: Slots,
    pace: Pace,
    /// Of results that are stored one by one.
    folds: Pace,
    /// Of those that are computed aside and then copied.
    asides: Pace,
    place: Place,
    /// Bytes acquired; negative when nothing is.
    acquired: isize,
    receiver: Arc<Region>,
    own: Arc<Region>,
    ends: Ends,
}

/// The consumer's end; the edge lies in its own region.
#[derive(Debug)]
pub(crate) struct MemoryReceive {
    consumer: Consumer,
    pub(super) place: Place,
    /// Where the edge lies; kept mapped.
    own: Arc<Region>,
    sender: Arc<Region>,
    ends: Ends,
    /// This rank's part of the slots, if they go from hand to hand, and how many it gave back for messages.
    pool: Option<Arc<Pool>>,
    pub(super) given: usize,
    /// Messages below this one were looked at, and their slots taken.
    taken: u64,
    /// The sender's other memory, if it may be read.
    lender: Option<PeerMemory>,
    /// The regions of all ranks of the host, if slots are shared.
    regions: Regions,
    /// Of the message last peeked,
    marks: u32,
    /// and where it is, if in a slot between the two ranks: what its line said when that was found to be one.
    spot: Spot,
    /// Messages that were read together with an earlier one, and not yet fetched.
    ahead: Ahead,
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
    /// The edge from one's own region into the receiver's. The caller makes at most one for each edge in the region's life.
    pub(crate) fn new(
        ends: Ends,
        (own, receiver): (Arc<Region>, Arc<Region>),
        Way { roomy, pool }: Way,
    ) -> Result<MemorySend> {
        let place = Place::find(ends, (&own, &receiver), pool.is_some(), roomy)?;
        let number = receiver.layout().slots;
        let slots = match pool {
            Some(pool) => {
                let exchange = Exchange::new(pool, number, (place.slots_count, place.slot_stride));
                Slots::exchanged(number, exchange)
            }
            None => Slots::first(number, ends.receivers_region()),
        };
        let producer = Producer::new(place.lines_count, number);
        Ok(MemorySend {
            producer,
            slots,
            pace: Pace::new(),
            folds: Pace::of_folds(),
            asides: Pace::of_folds_aside(),
            place,
            acquired: NOTHING,
            receiver,
            own,
            ends,
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
            let chosen = match self.slots.choose_read(bytes) {
                // Nothing was looked up that the receiver writes.
                Some(spot) => Some(spot),
                None => {
                    let released = self.producer.released(&head.head);
                    self.slots.choose(head, released, bytes).map_err(|_| misplaced())?
                }
            };
            let Some(spot) = chosen else { return Ok(None) };
            self.place.touch(spot.slot, self.ends.in_order(&self.own, &self.receiver));
            self.place.slot(spot)
        };
        self.acquired = bytes.cast_signed();
        Ok(Some(payload))
    }

    /// See [`crate::transport::SendEdge::post`].
    #[inline]
    pub(crate) fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        self.post_for(bytes, tag, 0)
    }

    /// [`MemorySend::post`] of what others may be told of by [`MemorySend::point_to`].
    pub(in crate::transport) fn post_shared(&mut self, bytes: usize, tag: u32) -> Result<()> {
        self.post_for(bytes, tag, SHARED)
    }

    /// With these marks if it is in a slot.
    #[inline]
    fn post_for(&mut self, bytes: usize, tag: u32, marks: u32) -> Result<()> {
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
            self.say(self.slots.chosen().to_words());
            marks
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

    /// Takes what a message to come will fill, if it is as long as this one, out of the receiver's cache, which has held
    /// it since it was read there a round ago: it is there then when it is filled (ADR 0066). In a stream of short messages the next
    /// one is filled before its line can come over a distance, so it is done for one after it (ADR 0096).
    #[inline(always)]
    fn claim_ahead(&self, marks: u32) {
        let kind = marks & (IN_LINE | SHORT | LENT);
        let after = if matches!(kind, IN_LINE | SHORT) { SHORT_AHEAD } else { 0 };
        let Some(line) = self.producer.free_after(after) else { return };
        claim(self.place.in_line(line).as_ptr());
        let bytes = (marks & BYTES) as usize;
        match kind {
            SHORT if bytes > ASKED_FOR_BYTES => claim_all(self.place.short(line).as_ptr(), bytes),
            0 if bytes <= if is_of_amd() { AMD_CLAIMED_BYTES } else { CLAIMED_BYTES } => {
                if let Some(spot) = self.slots.ahead(bytes) {
                    claim_all(self.place.slot(spot).as_ptr(), bytes);
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
    pub(crate) fn filling(&mut self, filler: Filler) -> Filling {
        if self.acquired <= self.place.short_bytes.cast_signed() {
            return Filling::Cached;
        }
        let copies = self.pace.filling(filler == Filler::Copy, Instant::now);
        if copies == Filling::Streaming || filler != Filler::Fold || !is_of_amd() {
            return copies;
        }
        match self.folds.filling(true, Instant::now) {
            Filling::Streaming => match self.asides.filling(true, Instant::now) {
                Filling::Cached => Filling::Aside,
                Filling::Timed => Filling::AsideTimed,
                filling => filling,
            },
            filling => filling,
        }
    }

    /// See [`crate::transport::SendEdge::took`].
    pub(crate) fn took(&mut self, filler: Filler, bytes: usize, since: Instant) {
        let now = Instant::now();
        let pace = match filler {
            Filler::Copy => &mut self.pace,
            Filler::Aside => &mut self.asides,
            Filler::Fold | Filler::Other => &mut self.folds,
        };
        pace.took(bytes, now - since, now);
    }

    /// Whether others may be sent what was posted last, or is about to be, by [`MemorySend::point_to`].
    pub(in crate::transport) fn may_share(&self) -> bool {
        self.slots.may_share()
    }

    /// Where the long payload is that was posted last.
    pub(in crate::transport) fn location(&self, bytes: usize) -> Location {
        let spot = self.slots.chosen();
        let region = spot.slot.region();
        let offset = self.ends.in_order(&self.own, &self.receiver)[region].offset_of(self.place.slot(spot));
        Location { local: self.ends.owner(region) as u32, offset, bytes }
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
    /// The edge into one's own region; `sender` is the region of the other end,
    /// where its bell is. `regions`: of all ranks of the host, if slots are shared. `way` as the sender has it. The caller makes at most one
    /// for each edge in the region's life.
    pub(crate) fn new(
        ends: Ends,
        (own, regions): (Arc<Region>, Regions),
        (sender, lender): (Arc<Region>, Option<PeerMemory>),
        Way { roomy, pool }: Way,
    ) -> Result<MemoryReceive> {
        let place = Place::find(ends, (&sender, &own), pool.is_some(), roomy)?;
        let consumer = Consumer::new(place.lines_count);
        Ok(MemoryReceive {
            consumer,
            place,
            own,
            sender,
            ends,
            pool,
            given: 0,
            taken: 0,
            lender,
            regions,
            marks: 0,
            spot: Spot::default(),
            ahead: Ahead::default(),
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
            0 => (self.slot(index, bytes)?, self.place.slot_bytes),
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

    /// The slot between the two ranks that a line speaks of.
    fn slot(&mut self, line: usize, bytes: usize) -> Result<NonNull<u8>> {
        let spot = Spot::from_words(self.said(line)).ok_or_else(misplaced)?;
        let data = self.place.checked(spot, bytes).ok_or_else(misplaced)?;
        self.spot = spot;
        self.place.touch(spot.slot, self.ends.in_order(&self.sender, &self.own));
        if !is_of_amd() && self.taken < self.consumer.next() + 1 && self.takes_slot() {
            // Its lines come to be written, too, and once. On AMD processors the copy waits for them (ADR 0110).
            self.taken = self.consumer.next() + 1;
            claim_all(data.as_ptr(), if bytes <= CLAIMED_BYTES { bytes } else { LONG_CLAIMED_BYTES });
        }
        Ok(data)
    }

    /// See [`crate::transport::ReceiveEdge::takes_slot`].
    pub(crate) fn takes_slot(&self) -> bool {
        let in_slot = self.marks & (IN_LINE | SHORT | LENT | SHARED) == 0;
        in_slot && self.pool.as_ref().is_some_and(|pool| pool.keeps())
    }

    /// The slot of the message to be released goes back, or another one for it.
    #[inline]
    fn give_back(&mut self, marks: u32) {
        let Some(pool) = &self.pool else { return };
        let given = if marks & SHARED == 0 { pool.give_for(self.spot) } else { self.spot.slot };
        // SAFETY: the head line lies in `own`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        // Relaxed: published by the release store of the head.
        head.returned[self.given % RETURNED].store(given.to_byte(), Ordering::Relaxed);
        self.given += 1;
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
        if marks & (IN_LINE | SHORT | LENT) == 0 {
            self.give_back(marks);
        }
        // SAFETY: the head line lies in `own`'s mapping and is only used as an atomic.
        let head = unsafe { self.place.head.as_ref() };
        self.consumer.release(&head.head, marks & TURNS != 0);
        self.sender.bell().ring_if_awaited();
        Ok(())
    }
}

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
/// Others may be told of the slot: its receiver gives it back.
const SHARED: u32 = 1 << 27;
/// The payload's bytes, unless lent.
const BYTES: u32 = SHARED - 1;
const NOTHING: isize = -1;
/// No more is read in one go than a lane moves in a turn (`TURN_BYTES` of `exec::step`): while a rank reads it lends nothing.
const LONGEST_RUN_BYTES: usize = 256 << 10;
/// Messages between a short one and the one whose line is claimed.
const SHORT_AHEAD: usize = 2;
/// Longest payloads that are asked for before they are there; longer ones take the longer for it.
const ASKED_FOR_BYTES: usize = 512;
/// Longest payloads in slots of which the next one's place is claimed: longer ones take as long either way.
const CLAIMED_BYTES: usize = 16 << 10;
/// The same where the producer claims what it fills itself, on AMD processors (ADR 0102).
const AMD_CLAIMED_BYTES: usize = 4 << 10;
/// What is claimed at once of longer ones; who copies them claims the rest on the way.
const LONG_CLAIMED_BYTES: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ccl_plan::Channel;

    use super::super::layout::Layout;
    use super::*;

    /// An edge from a region to another of the same process.
    fn edge() -> (MemorySend, MemoryReceive, Arc<Region>) {
        edge_between([Region::for_tests(2), Region::for_tests(2)])
    }

    /// The same between these two.
    fn edge_between(regions: [Region; 2]) -> (MemorySend, MemoryReceive, Arc<Region>) {
        let [from, into] = regions.map(Arc::new);
        let memory = PeerMemory::of(std::process::id());
        assert!(from.shows_through(memory).unwrap());
        let ends = Ends { sender: 0, receiver: 1, channel: Channel(0), tag: 0 };
        let regions = (Arc::clone(&from), Arc::clone(&into));
        let send = MemorySend::new(ends, regions, Way::default()).unwrap();
        let sender = (Arc::clone(&from), Some(memory));
        (send, MemoryReceive::new(ends, (into, Arc::default()), sender, Way::default()).unwrap(), from)
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

    /// How a slot is filled with 2000 results, one after the other, where each that is timed seems to take so long.
    fn ways(edge: &mut MemorySend, took: impl Fn(Filler) -> Duration) -> Vec<Filling> {
        edge.acquire(9000).unwrap().unwrap();
        let mut fill = || {
            let filling = edge.filling(Filler::Fold);
            let timed = match filling {
                Filling::Timed => Some(Filler::Fold),
                Filling::AsideTimed => Some(Filler::Aside),
                _ => None,
            };
            if let Some(filler) = timed {
                edge.took(filler, 9000, Instant::now() - took(filler));
            }
            filling
        };
        (0..2000).map(|_| fill()).collect()
    }

    #[test]
    fn results_go_aside_where_storing_them_is_slow_and_around_the_caches_where_copies_are_too() {
        let layout = Layout { locals: 2, channels: 1, tags: 1, slots: 2, slot_bytes: 9000 };
        let (none, long) = (Duration::ZERO, Duration::from_secs(1));
        let used = |took: &dyn Fn(Filler) -> Duration| {
            let (mut send, ..) = edge_between([0, 1].map(|_| Region::of_layout(layout)));
            let ways = ways(&mut send, took);
            [Filling::Aside, Filling::Streaming].map(|way| ways.contains(&way))
        };
        assert_eq!(used(&|_| none), [false, false]);
        let fold_is_slow = |filler| if filler == Filler::Fold { long } else { none };
        // Other processors store results as they store copies, which alone are timed.
        assert_eq!(used(&fold_is_slow), [is_of_amd(), false]);
        assert_eq!(used(&|_| long), [is_of_amd(); 2]);
    }
}
