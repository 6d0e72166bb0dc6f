//! The two ends of an edge in shared memory.
//!
//! A payload lies in the message's line if it is very short, beside the lines ([`Cells`]) if it is short, in a slot, or,
//! if it is *lent*, where the producer's user keeps it: the line then says where, and the consumer
//! reads it from there, with the producer's help ([`super::help`]). So it does if the payload is in a slot of another edge, since
//! somebody else is sent the same ([`Slots`]). What is lent is the producer's again when the slot is released, or when it withdraws everything
//! because the communicator failed; a consumer that was reading meanwhile learns of it and fails as well.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::cells::Cells;
use super::exchange::{Exchange, Pool, RETURNED, Spot};
use super::help::{Borrower, Lender, Progress, is_shared};
use super::layout::Region;
use super::marks::{CELL, ELSEWHERE, IN_LINE, LENT, SHARED, SHORT, TURNS, bytes_of, cell_of};
use super::pace::{Emptying, Filler, Filling, Pace};
use super::place::{Ends, Place, Way};
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

/// The producer's end; the edge lies in the receiver's region.
#[derive(Debug)]
pub(crate) struct MemorySend {
    producer: Producer,
    cells: Cells,
    pub(super) slots: Slots,
    /// The marks of what was acquired, if that is longer than a line takes: of a cell, or none of a slot.
    place_marks: u32,
    /// Not of collectives.
    of_messages: bool,
    pace: Pace,
    /// Of results that are stored one by one.
    folds: Pace,
    /// Of those that are computed aside and then copied.
    asides: Pace,
    place: Place,
    /// Bytes acquired; negative when nothing is.
    acquired: isize,
    lender: Lender,
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
    /// How far what is lent was read.
    borrower: Borrower,
    /// Of copies out of slots.
    pace: Pace,
}

impl MemorySend {
    /// The edge from one's own region into the receiver's. The caller makes at most one for each edge in the region's life.
    pub(crate) fn new(
        ends: Ends,
        (own, receiver): (Arc<Region>, Arc<Region>),
        consumer: Option<PeerMemory>,
        Way { roomy, sparing, pool }: Way,
    ) -> Result<MemorySend> {
        let place = Place::find(ends, (&own, &receiver), pool.is_some(), roomy)?;
        let number = receiver.layout().slots;
        let slots = match pool {
            Some(pool) => {
                let exchange = Exchange::new(pool, number, (place.slots_count, place.slot_stride));
                Slots::exchanged(number, exchange)
            }
            None => Slots::first(number, ends.receivers_region(), sparing),
        };
        let producer = Producer::new(place.lines_count, number);
        Ok(MemorySend {
            producer,
            cells: Cells::new(place.lines_count),
            slots,
            place_marks: 0,
            // Messages have the last tag.
            of_messages: usize::from(ends.tag) + 1 == receiver.layout().tags,
            pace: Pace::new(),
            folds: Pace::of_folds(),
            asides: Pace::of_folds_aside(),
            place,
            acquired: NOTHING,
            lender: Lender::new(consumer),
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
        let payload = if bytes <= INLINE_BYTES {
            self.place.in_line(self.producer.line())
        } else if bytes <= self.place.short_bytes {
            self.short(bytes)?
        } else {
            match self.slot(bytes, false)? {
                Some(slot) => slot,
                None => return Ok(None),
            }
        };
        self.acquired = bytes.cast_signed();
        Ok(Some(payload))
    }

    /// Where a payload goes that is short, but too long for the line, which is free.
    #[inline(always)]
    fn short(&mut self, bytes: usize) -> Result<NonNull<u8>> {
        if bytes > HANDED_BYTES && is_of_amd() {
            return self.not_so_short(bytes);
        }
        let cell = self.cells.choose(self.producer.line(), self.producer.known_released());
        Ok(self.beside(cell))
    }

    #[inline(never)]
    fn not_so_short(&mut self, bytes: usize) -> Result<NonNull<u8>> {
        // Where more is under way, what waits for the receiver is better beside the lines, of which there are more (ADR 0111).
        if self.slots.go_to_and_fro()
            && let Some(slot) = self.slot(bytes, true)?
        {
            return Ok(slot);
        }
        let (line, known) = (self.producer.line(), self.producer.known_released());
        let cell = if self.keeps_to_few(bytes) {
            // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
            let head = unsafe { self.place.head.as_ref() };
            self.cells.choose_early(line, known, || self.producer.released(&head.head))
        } else {
            self.cells.choose(line, known)
        };
        Ok(self.beside(cell))
    }

    /// The cell that was chosen.
    #[inline(always)]
    fn beside(&mut self, cell: usize) -> NonNull<u8> {
        self.place_marks = SHORT | (cell as u32) << CELL.trailing_zeros();
        self.place.short(cell)
    }

    /// Whether a short payload goes to one of the first few cells: if it is a longer one of a message. Collectives with a root have many
    /// under way.
    fn keeps_to_few(&self, bytes: usize) -> bool {
        bytes > BESIDE_BYTES && self.of_messages && is_of_amd()
    }

    /// A slot for a payload: one that this rank has just read, or one of its own, `at_hand` only if the receiver has read everything.
    #[inline(always)]
    fn slot(&mut self, bytes: usize, at_hand: bool) -> Result<Option<NonNull<u8>>> {
        let spot = match self.slots.choose_read(bytes) {
            // Nothing was looked up that the receiver writes.
            Some(spot) => spot,
            None => {
                // SAFETY: the head line lies in `receiver`'s mapping and is only used as an atomic.
                let head = unsafe { self.place.head.as_ref() };
                let released = self.producer.released(&head.head);
                if at_hand && released != self.producer.next() {
                    return Ok(None);
                }
                let Some(spot) = self.slots.choose(head, released, bytes).map_err(|_| misplaced())? else {
                    return Ok(None);
                };
                spot
            }
        };
        Ok(Some(self.touched(spot)))
    }

    /// The slot that was chosen.
    fn touched(&mut self, spot: Spot) -> NonNull<u8> {
        self.place_marks = 0;
        self.place.touch(spot.slot, self.ends.in_order(&self.own, &self.receiver));
        self.place.slot(spot)
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
        let place = if acquired <= INLINE_BYTES { IN_LINE } else { self.take(marks) };
        self.publish_elsewhere(bytes as u32 | place, tag);
        Ok(())
    }

    /// The marks of a message in what was acquired, which is no line.
    #[inline]
    fn take(&mut self, marks: u32) -> u32 {
        if self.place_marks != 0 {
            return self.place_marks;
        }
        self.slots.take(self.producer.next());
        self.say(self.slots.chosen().to_words());
        marks
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
        if bytes <= INLINE_BYTES {
            return Quick::At(self.place.in_line(self.producer.line()));
        }
        self.short(bytes).map_or(Quick::Otherwise, Quick::At)
    }

    /// See [`crate::transport::SendEdge::post_short`].
    #[inline(always)]
    pub(crate) fn post_short(&mut self, bytes: usize, tag: u32) {
        self.acquired = NOTHING;
        if bytes <= INLINE_BYTES {
            return self.publish(bytes as u32 | IN_LINE, tag);
        }
        let place = self.take(0);
        self.publish_elsewhere(bytes as u32 | place, tag);
    }

    /// [`MemorySend::publish`] of a message whose payload is not in its line.
    #[inline(never)]
    fn publish_elsewhere(&mut self, marks: u32, tag: u32) {
        self.publish(marks, tag);
        if marks & (SHORT | LENT) == SHORT {
            self.cells.take(cell_of(marks), self.producer.next());
        }
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
        let bytes = bytes_of(marks);
        match kind {
            SHORT if bytes > ASKED_FOR_BYTES && !self.keeps_to_few(bytes) => {
                claim_all(self.place.short(line).as_ptr(), bytes)
            }
            0 if bytes <= if is_of_amd() { AMD_CLAIMED_BYTES } else { CLAIMED_BYTES } => {
                if let Some(spot) = self.slots.ahead(bytes) {
                    claim_all(self.place.slot(spot).as_ptr(), bytes);
                }
            }
            _ => {}
        }
    }

    /// See [`crate::transport::SendEdge::lend`].
    pub(crate) fn lend(&mut self, (address, bytes): (*const u8, usize), tag: u32, helps: bool) -> Result<()> {
        if self.acquired < 0 {
            return Err(not_acquired(bytes, self.acquired));
        }
        self.acquired = NOTHING;
        let line = self.producer.line();
        let (message, released) = (self.producer.next(), self.producer.known_released());
        let done = self.lender.lends((message, released), line, (address, bytes), helps);
        self.say([address.addr() as u64, bytes as u64]);
        // Relaxed: published with the line.
        self.place.helped(line).store(done, Ordering::Relaxed);
        self.publish(LENT, tag);
        Ok(())
    }

    /// See [`crate::transport::SendEdge::help`].
    pub(crate) fn help(&mut self) -> bool {
        // SAFETY: the head line lies in `receiver`'s mapping and is only used as atomics.
        let head = unsafe { self.place.head.as_ref() };
        if let Some((line, done)) = self.lender.is_ready(self.producer.released(&head.head)) {
            self.place.helped(line).store(done, Ordering::Release);
        }
        if !self.lender.is_asked(&head.offers) {
            return false;
        }
        self.own.begin_visit();
        let said = match self.receiver.withdrawn() {
            true => None,
            // SAFETY: what was lent and is not back has not left this rank's hands, and this is a visit.
            false => unsafe { self.lender.help(&head.offers, || self.producer.released(&head.head)) },
        };
        if let Some((line, done)) = said {
            // Release pairs with the load in `Borrower::read`: what the kernel wrote is there.
            self.place.helped(line).store(done, Ordering::Release);
        }
        self.own.end_visit();
        if said.is_some() {
            self.receiver.bell().ring_if_awaited();
        }
        said.is_some()
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
    /// The edge into one's own region; `sender` is the region of the other end, where its bell is. `regions`: of all ranks of the host, if
    /// slots are shared. `way` as the sender has it. The caller makes at most one for each edge in the region's life.
    pub(crate) fn new(
        ends: Ends,
        (own, regions): (Arc<Region>, Regions),
        (sender, lender): (Arc<Region>, Option<PeerMemory>),
        Way { roomy, pool, .. }: Way,
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
            borrower: Borrower::default(),
            pace: Pace::of_emptying(),
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
        let bytes = bytes_of(marks);
        let (data, most) = match marks & (IN_LINE | SHORT | LENT) {
            IN_LINE => (self.place.in_line(index), INLINE_BYTES),
            SHORT => (self.cell(marks).ok_or_else(misplaced)?, self.place.short_bytes),
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
        // Relaxed: ordered by the acquire load of the sequence word.
        let (marks, found) = (line.marks.load(Ordering::Relaxed), line.tag.load(Ordering::Relaxed));
        let place = marks & !TURNS;
        if in_line {
            if place != bytes as u32 | IN_LINE || found != tag {
                return Quick::Otherwise;
            }
            self.marks = marks;
            return Quick::At(self.place.in_line(index));
        }
        if found != tag || bytes > self.place.short_bytes {
            return Quick::Otherwise;
        }
        if place != bytes as u32 | SHORT | (index as u32) << CELL.trailing_zeros() {
            return self.expect_elsewhere((index, marks), bytes);
        }
        // Where that is follows from the line's number alone, so that the processor need not wait for the line to read there.
        self.marks = marks;
        Quick::At(self.place.short(index))
    }

    /// As [`MemoryReceive::expect_short`], of a message that is not in its line or beside it.
    #[inline(never)]
    fn expect_elsewhere(&mut self, (line, marks): (usize, u32), bytes: usize) -> Quick {
        let place = match marks & !TURNS {
            place if place == bytes as u32 => self.slot(line, bytes).ok(),
            place if place & !CELL == bytes as u32 | SHORT => self.cell(marks),
            _ => None,
        };
        let Some(place) = place else { return Quick::Otherwise };
        self.marks = marks;
        Quick::At(place)
    }

    /// The cell that a line speaks of, if there is one.
    #[inline]
    fn cell(&self, marks: u32) -> Option<NonNull<u8>> {
        let cell = cell_of(marks);
        (cell < self.place.lines_count).then(|| self.place.short(cell))
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

    /// See [`crate::transport::ReceiveEdge::emptying`].
    #[inline]
    pub(crate) fn emptying(&mut self, bytes: usize) -> Emptying {
        if IN_STRINGS_BYTES.contains(&bytes) && is_of_amd() { self.pace.emptying() } else { Emptying::Whole }
    }

    /// See [`crate::transport::ReceiveEdge::took`].
    pub(crate) fn took(&mut self, bytes: usize, since: Instant) {
        let now = Instant::now();
        self.pace.took(bytes, now - since, now);
    }

    /// What a payload that is not in its line asks for when its message is released.
    #[inline]
    fn release_payload(&mut self, marks: u32) -> Result<()> {
        match marks & (SHORT | LENT) {
            SHORT if bytes_of(marks) > HANDED_BYTES => {
                if let Some(pool) = &self.pool {
                    pool.hear();
                }
            }
            SHORT | ELSEWHERE => {}
            LENT if self.sender.withdrawn() => return Err(withdrawn()),
            LENT => {}
            _ => self.give_back(marks),
        }
        Ok(())
    }

    /// The slot of the message to be released goes back, or another one for it.
    #[inline]
    fn give_back(&mut self, marks: u32) {
        let Some(pool) = &self.pool else { return };
        pool.hear();
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
    pub(crate) unsafe fn fetch(&mut self, slot: &Slot, to: *mut u8) -> Result<bool> {
        if !is_shared(slot.bytes) {
            // SAFETY: the caller's contract.
            return unsafe { self.fetch_piece(slot, 0, to, slot.bytes) }.map(|()| true);
        }
        let lender = self.lender()?;
        let address = slot.data.addr().get() as u64;
        if slot.bytes >= WOKEN_FOR_BYTES {
            self.sender.bell().ring_if_awaited();
        }
        // SAFETY: the head line lies in `own`'s mapping and is only used as atomics.
        let offers = unsafe { &self.place.head.as_ref().offers };
        let done = self.place.helped(self.consumer.line());
        let read = |start: usize, bytes| {
            // SAFETY: what is read at a time lies in what is lent, for which the caller has room.
            unsafe { lender.read(address + start as u64, to.wrapping_add(start), bytes) }.map_err(unreadable)
        };
        match self.borrower.read((offers, done), self.consumer.next(), (to, slot.bytes), read)? {
            Progress::Done => Ok(true),
            Progress::Awaited if self.sender.withdrawn() => Err(withdrawn()),
            Progress::Awaited => Ok(false),
        }
    }

    fn lender(&self) -> Result<PeerMemory> {
        self.lender.ok_or_else(|| Error::bug("a slot is lent by a process that may not lend"))
    }

    /// See [`crate::transport::ReceiveEdge::withdraw`].
    pub(crate) fn withdraw(&mut self) {
        // SAFETY: the head line lies in `own`'s mapping and is only used as atomics.
        unsafe { self.place.head.as_ref() }.offers.withdraw();
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
        let lender = self.lender()?;
        let address = slot.data.addr().get() as u64 + from as u64;
        // SAFETY: the caller's contract.
        unsafe { lender.read(address, to, bytes) }.map_err(unreadable)
    }

    /// See [`crate::transport::ReceiveEdge::release`].
    #[inline(always)]
    pub(crate) fn release(&mut self) -> Result<()> {
        let marks = std::mem::take(&mut self.marks);
        if marks & IN_LINE == 0 {
            self.release_payload(marks)?;
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

const NOTHING: isize = -1;
/// Least bytes of what is lent that its sender is woken to help with.
const WOKEN_FOR_BYTES: usize = 1 << 20;
/// Longer payloads go to slots, too, where these go to and fro: shorter ones come sooner beside a line (ADR 0111).
const HANDED_BYTES: usize = 1024;
/// Longest payloads of messages that always lie beside their lines.
const BESIDE_BYTES: usize = 2048;
/// Payloads that may be copied in several strings: shorter and longer ones take longer so (ADR 0129).
const IN_STRINGS_BYTES: RangeInclusive<usize> = (16 << 10) + 1..=64 << 10;
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
mod tests;
