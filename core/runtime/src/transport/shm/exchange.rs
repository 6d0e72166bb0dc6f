//! Slots that go from hand to hand between two ranks.
//!
//! Who fills a slot that the other rank read takes its lines out of the other core's cache, and the other takes them back to read them: two
//! transfers of every line for a message. A rank that has just read a slot has its lines already. So it keeps the slot for what it
//! sends next, and gives back another one of those that it has to spare, which nobody touches on the way: half of the transfers are gone
//! (ADR 0086).
//!
//! Each rank of a pair always has the same number of slots, free or with messages of its own that were not released, and more than messages that
//! may be under way: there is always one to give back, and what programs were proven for holds whichever slots these are. A rank keeps a slot only
//! for a message of its own that went before: what goes one way only stays in the slots it went through.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::layout::Layout;

/// One slot of those between two ranks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SlotId(u8);

/// Where a message lies, or goes: a slot, and how many bytes into it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Spot {
    pub(super) slot: SlotId,
    pub(super) offset: usize,
}

impl SlotId {
    /// Slot `index` of those in the region of the rank with the lower place (0) or of the other (1).
    pub(super) const fn new(index: usize, region: usize) -> SlotId {
        SlotId((index * 2 + region) as u8)
    }

    pub(super) const fn index(self) -> usize {
        (self.0 >> 1) as usize
    }

    pub(super) const fn region(self) -> usize {
        (self.0 & 1) as usize
    }

    pub(super) const fn to_byte(self) -> u8 {
        self.0
    }
}

impl Spot {
    /// As a line says it.
    pub(super) fn to_words(self) -> [u64; 2] {
        [u64::from(self.slot.0), self.offset as u64]
    }

    /// What a line says; `None` if that is no spot.
    pub(super) fn from_words([slot, offset]: [u64; 2]) -> Option<Spot> {
        Some(Spot { slot: SlotId(u8::try_from(slot).ok()?), offset: usize::try_from(offset).ok()? })
    }
}

/// The free slots of one rank of a pair. Its two ends of the pair's edges have it in common, and one thread at a time has both: the
/// atomics are there to share it without a lock, and order nothing.
#[derive(Debug)]
pub(crate) struct Pool {
    /// A bit for each slot that was not read of late.
    rested: AtomicU64,
    /// Where messages were that were read last, the last one last, and how many.
    read: [AtomicU64; MOST_READ],
    read_count: AtomicU32,
    /// The rested slot to use next, or the one after it.
    next: AtomicU32,
    /// Messages sent for each of which a slot may be kept.
    owed: AtomicU32,
}

impl Pool {
    /// What the rank at one place of the host has in the beginning for the one at another: the slots in that one's region.
    pub(crate) fn of_rank(layout: &Layout, own: usize, other: usize) -> Pool {
        Pool::new(layout.exchanged().0, usize::from(other > own))
    }

    /// The slots in the region of this number.
    fn new(slots: usize, region: usize) -> Pool {
        let rested = (0..slots).fold(0, |bits, index| bits | bit(SlotId::new(index, region)));
        Pool {
            rested: AtomicU64::new(rested),
            read: std::array::from_fn(|_| AtomicU64::new(0)),
            read_count: AtomicU32::new(0),
            next: AtomicU32::new(0),
            owed: AtomicU32::new(0),
        }
    }

    /// Takes out the rested slot whose turn it is.
    fn take_rested(&self) -> Option<SlotId> {
        let slot = self.next_rested()?;
        self.rested.store(get(&self.rested) & !bit(slot), Ordering::Relaxed);
        self.next.store(u32::from(slot.0) + 1, Ordering::Relaxed);
        Some(slot)
    }

    /// The rested slot whose turn it is, if no slot that was read goes before it.
    fn rested_next(&self) -> Option<SlotId> {
        if self.read_count.load(Ordering::Relaxed) == 0 { self.next_rested() } else { None }
    }

    fn next_rested(&self) -> Option<SlotId> {
        let rested = get(&self.rested);
        let from = rested & u64::MAX.checked_shl(self.next.load(Ordering::Relaxed)).unwrap_or(0);
        let among = if from != 0 { from } else { rested };
        (among != 0).then(|| SlotId(among.trailing_zeros() as u8))
    }

    fn pop_read(&self) -> Option<Spot> {
        let count = self.read_count.load(Ordering::Relaxed).checked_sub(1)?;
        self.read_count.store(count, Ordering::Relaxed);
        Some(unpack(get(&self.read[count as usize])))
    }

    fn push_read(&self, spot: Spot) {
        let mut count = self.read_count.load(Ordering::Relaxed) as usize;
        if count == MOST_READ {
            self.rest(unpack(get(&self.read[0])).slot);
            for at in 1..MOST_READ {
                self.read[at - 1].store(get(&self.read[at]), Ordering::Relaxed);
            }
            count -= 1;
        }
        self.read[count].store(pack(spot), Ordering::Relaxed);
        self.read_count.store(count as u32 + 1, Ordering::Relaxed);
    }

    /// Puts a slot back.
    fn rest(&self, slot: SlotId) {
        self.rested.store(get(&self.rested) | bit(slot), Ordering::Relaxed);
    }

    /// A message was sent in a slot.
    fn sent(&self) {
        let owed = self.owed.load(Ordering::Relaxed);
        self.owed.store((owed + 1).min(MOST_OWED), Ordering::Relaxed);
    }

    /// Whether the slot of a message that is there would be kept.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0 && get(&self.rested) != 0
    }

    /// What to give back for a slot that was read: another one, if this one is kept.
    pub(super) fn give_for(&self, spot: Spot) -> SlotId {
        if !self.keeps() {
            return spot.slot;
        }
        self.owed.store(self.owed.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let rested = get(&self.rested);
        // The one that was last in turn.
        let before = rested & !u64::MAX.checked_shl(self.next.load(Ordering::Relaxed)).unwrap_or(0);
        let among = if before != 0 { before } else { rested };
        let given = SlotId(among.ilog2() as u8);
        self.rested.store(rested & !bit(given), Ordering::Relaxed);
        self.push_read(spot);
        given
    }
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn bit(slot: SlotId) -> u64 {
    1 << slot.0
}

fn pack(spot: Spot) -> u64 {
    u64::from(spot.slot.0) | (spot.offset as u64) << 8
}

fn unpack(word: u64) -> Spot {
    Spot { slot: SlotId(word as u8), offset: (word >> 8) as usize }
}

/// A slot for the next message.
#[derive(Clone, Copy, Debug)]
enum Reserved {
    /// This rank has read there.
    Read(Spot),
    Rested(SlotId),
}

/// The producer's part: its free slots, and what the receiver gives back.
#[derive(Debug)]
pub(super) struct Exchange {
    pool: Arc<Pool>,
    /// A slot that was taken out for a message which is not sent yet.
    reserved: Option<Reserved>,
    /// Messages in slots that were not known to be released.
    under_way: VecDeque<u64>,
    most_under_way: usize,
    /// Slots that came back so far.
    collected: usize,
    /// Where the next message goes in each slot that is used in turn.
    starts: Box<[usize]>,
    /// What a slot has room for.
    room_bytes: usize,
}

impl Exchange {
    /// With so many slots in either region, which have room for so many bytes each, and messages in at most `most_under_way` at a time.
    pub(super) fn new(
        pool: Arc<Pool>,
        most_under_way: usize,
        (slots, room_bytes): (usize, usize),
    ) -> Exchange {
        let (under_way, starts) = (VecDeque::with_capacity(most_under_way), vec![0; 2 * slots].into());
        Exchange { pool, reserved: None, under_way, most_under_way, collected: 0, starts, room_bytes }
    }

    /// Takes the slots that `returned` says came back for messages below `released`, but those that `is_free` denies. Errors: a slot that
    /// is not one.
    pub(super) fn collect(
        &mut self,
        returned: &[AtomicU8; RETURNED],
        released: u64,
        mut is_free: impl FnMut(SlotId) -> bool,
    ) -> Result<(), NoSlot> {
        while self.under_way.front().is_some_and(|message| *message < released) {
            // Relaxed: ordered by the acquire load of the head.
            let slot = SlotId(returned[self.collected % RETURNED].load(Ordering::Relaxed));
            if usize::from(slot.0) >= self.starts.len() {
                return Err(NoSlot);
            }
            self.under_way.pop_front();
            self.collected += 1;
            if is_free(slot) {
                self.pool.rest(slot);
            }
        }
        Ok(())
    }

    /// Takes a slot that came back earlier. Never one to be kept: `false`.
    pub(super) fn rest(&self, slot: SlotId) -> bool {
        self.pool.rest(slot);
        false
    }

    /// Where a message of `bytes` bytes goes, if that is in the slot that was read last; the same slot until [`Exchange::take`].
    pub(super) fn choose_read(&mut self, bytes: usize) -> Option<Spot> {
        if self.reserved.is_none() {
            self.reserved = self.pool.pop_read().map(Reserved::Read);
        }
        match self.reserved? {
            Reserved::Read(spot) => Some(self.again(spot, bytes)),
            Reserved::Rested(_) => None,
        }
    }

    /// Whether as many messages are under way as may be, as far as is known.
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() == self.most_under_way
    }

    /// The same in a rested slot.
    pub(super) fn choose_rested(&mut self, bytes: usize) -> Option<Spot> {
        if self.reserved.is_none() {
            self.reserved = self.pool.take_rested().map(Reserved::Rested);
        }
        match self.reserved? {
            Reserved::Rested(slot) => Some(self.in_turn(slot, bytes)),
            Reserved::Read(_) => None,
        }
    }

    /// Where a next message of `bytes` bytes goes that goes to a rested slot, as far as is known.
    pub(super) fn ahead(&self, bytes: usize) -> Option<Spot> {
        match self.reserved {
            None => self.pool.rested_next().map(|slot| self.in_turn(slot, bytes)),
            Some(_) => None,
        }
    }

    /// Message `message`, of `bytes` bytes, is in the chosen slot.
    pub(super) fn take(&mut self, message: u64, spot: Spot, bytes: usize) {
        self.reserved = None;
        self.pool.sent();
        self.under_way.push_back(message);
        self.starts[usize::from(spot.slot.0)] =
            (spot.offset + bytes).next_multiple_of(super::layout::SLOT_ALIGNMENT);
    }

    /// Where the last message was, if this one fits there.
    fn again(&self, spot: Spot, bytes: usize) -> Spot {
        if spot.offset + bytes <= self.room_bytes { spot } else { Spot { offset: 0, ..spot } }
    }

    /// Behind the last message in a slot, while there is room.
    fn in_turn(&self, slot: SlotId, bytes: usize) -> Spot {
        let start = self.starts[usize::from(slot.0)];
        Spot { slot, offset: if start + bytes <= self.room_bytes { start } else { 0 } }
    }
}

/// What the receiver gave back is no slot.
#[derive(Debug)]
pub(super) struct NoSlot;

/// Most slots in a region that go from hand to hand: a pair has twice as many, each with a bit in a word.
pub(crate) const MOST_EXCHANGED: usize = 32;
/// Words of what comes back: more than messages in slots can be under way.
pub(super) const RETURNED: usize = 64;
/// Slots that are used again before others.
const MOST_READ: usize = 16;
/// Most slots that are kept in a row without sending in between.
const MOST_OWED: u32 = 32;
