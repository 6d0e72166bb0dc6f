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
//!
//! Slots that nobody read of late are used in turn where each rank has a core, so that what is filled has left the near caches. Where ranks share
//! cores, and those of the pair do not, it depends on what the pair does (ADR 0107): a rank that answers each message before the next
//! fills the first free slot, one that sends many before it is answered all of them, and one that is never answered a few.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::Layout;

/// One slot of those between two ranks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SlotId(u32);

/// Where a message lies, or goes: a slot, and how many bytes into it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Spot {
    pub(super) slot: SlotId,
    pub(super) offset: usize,
}

impl SlotId {
    /// Slot `index` of those in the region of the rank with the lower place (0) or of the other (1).
    pub(super) const fn new(index: usize, region: usize) -> SlotId {
        SlotId((index * 2 + region) as u32)
    }

    pub(super) const fn index(self) -> usize {
        (self.0 >> 1) as usize
    }

    pub(super) const fn region(self) -> usize {
        (self.0 & 1) as usize
    }

    /// As it is given back: of those that go from hand to hand there are few.
    pub(super) const fn to_byte(self) -> u8 {
        self.0 as u8
    }
}

impl Spot {
    /// As a line says it.
    pub(super) fn to_words(self) -> [u64; 2] {
        [u64::from(self.slot.0), self.offset as u64]
    }

    /// What a line says; `None` if that is no spot.
    pub(super) fn from_words([slot, offset]: [u64; 2]) -> Option<Spot> {
        Some(Spot { slot: SlotId(u32::try_from(slot).ok()?), offset: usize::try_from(offset).ok()? })
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
    reuse: Reuse,
    /// For so many more messages this counts as a rank that is answered.
    answered: AtomicU32,
    /// So many more payloads that would fit beside a line may go to slots, since the other rank sends such ones, too.
    heard: AtomicU32,
}

/// In which order slots are used that were not read of late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reuse {
    /// All in turn.
    InTurn,
    /// As many in turn as suits what goes to and fro: for ranks that share their cores with others.
    AsItGoes,
}

impl Pool {
    /// What the rank at one place of the host has in the beginning for the one at another: the slots in that one's region.
    pub(crate) fn of_rank(layout: &Layout, (own, other): (usize, usize), reuse: Reuse) -> Pool {
        Pool::new(layout.exchanged().0, usize::from(other > own), reuse)
    }

    /// The slots in the region of this number.
    fn new(slots: usize, region: usize, reuse: Reuse) -> Pool {
        let rested = (0..slots).fold(0, |bits, index| bits | bit(SlotId::new(index, region)));
        Pool {
            rested: AtomicU64::new(rested),
            read: std::array::from_fn(|_| AtomicU64::new(0)),
            read_count: AtomicU32::new(0),
            next: AtomicU32::new(0),
            owed: AtomicU32::new(0),
            reuse,
            answered: AtomicU32::new(0),
            heard: AtomicU32::new(0),
        }
    }

    /// The other rank sent a payload that a slot is worth while for.
    #[inline]
    pub(super) fn hear(&self) {
        if self.heard.load(Ordering::Relaxed) != HEARD {
            self.heard.store(HEARD, Ordering::Relaxed);
        }
    }

    /// Whether it did so of late, so that slots go to and fro.
    #[inline]
    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > 0
    }

    /// Of how many slots in each region those that were not read of late are used in turn, by messages of `bytes` bytes.
    fn slots_in_turn(&self, bytes: usize) -> u32 {
        match self.reuse {
            Reuse::InTurn => MOST_EXCHANGED as u32,
            Reuse::AsItGoes if self.answered.load(Ordering::Relaxed) == 0 => match bytes {
                ..=SHORTER_BYTES => SHORTER_IN_TURN,
                _ => FEW_IN_TURN,
            },
            Reuse::AsItGoes if self.owed.load(Ordering::Relaxed) >= MOST_READ as u32 => MOST_EXCHANGED as u32,
            Reuse::AsItGoes => 1,
        }
    }

    /// Takes out the rested slot whose turn it is, for a message of `bytes` bytes.
    fn take_rested(&self, bytes: usize) -> Option<SlotId> {
        let slot = self.next_rested()?;
        self.rested.store(get(&self.rested) & !bit(slot), Ordering::Relaxed);
        let next = slot.0 + 1;
        self.next.store(if next < 2 * self.slots_in_turn(bytes) { next } else { 0 }, Ordering::Relaxed);
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
        (among != 0).then(|| SlotId(among.trailing_zeros()))
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
        let answered = self.answered.load(Ordering::Relaxed);
        self.answered.store(answered.saturating_sub(1), Ordering::Relaxed);
        self.heard.store(self.heard.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
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
        self.answered.store(ANSWERED, Ordering::Relaxed);
        let rested = get(&self.rested);
        // The one that was last in turn.
        let before = rested & !u64::MAX.checked_shl(self.next.load(Ordering::Relaxed)).unwrap_or(0);
        let among = if before != 0 { before } else { rested };
        let given = SlotId(among.ilog2());
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
    u64::from(spot.slot.0) | (spot.offset as u64) << 32
}

fn unpack(word: u64) -> Spot {
    Spot { slot: SlotId(word as u32), offset: (word >> 32) as usize }
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

    /// Takes the slots that came back for messages below `released`, but those that `is_free` denies; `returned` is what the receiver
    /// wrote into a word. Errors: a slot that is not one.
    #[inline]
    pub(super) fn collect(
        &mut self,
        returned: impl Fn(usize) -> u8,
        released: u64,
        mut is_free: impl FnMut(SlotId) -> bool,
    ) -> Result<(), NoSlot> {
        while self.under_way.front().is_some_and(|message| *message < released) {
            let slot = SlotId(returned(self.collected % RETURNED).into());
            if slot.0 as usize >= self.starts.len() {
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
            self.reserved = self.pool.take_rested(bytes).map(Reserved::Rested);
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
        self.starts[spot.slot.0 as usize] =
            (spot.offset + bytes).next_multiple_of(super::layout::SLOT_ALIGNMENT);
    }

    /// See [`Pool::has_heard`].
    #[inline]
    pub(super) fn has_heard(&self) -> bool {
        self.pool.has_heard()
    }

    /// Where the last message was, if this one fits there.
    fn again(&self, spot: Spot, bytes: usize) -> Spot {
        if spot.offset + bytes <= self.room_bytes { spot } else { Spot { offset: 0, ..spot } }
    }

    /// Behind the last message in a slot, while there is room, where slots are used in turn.
    fn in_turn(&self, slot: SlotId, bytes: usize) -> Spot {
        let start = if self.pool.slots_in_turn(bytes) > 1 { self.starts[slot.0 as usize] } else { 0 };
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
/// Slots in each region that one who is never answered uses in turn.
const FEW_IN_TURN: u32 = 4;
/// Messages that are short enough for more of them to stay in the near caches, and how many of those (ADR 0112).
const SHORTER_BYTES: usize = 64 << 10;
const SHORTER_IN_TURN: u32 = 8;
/// So many messages after it kept a slot a rank still counts as one that is answered.
const ANSWERED: u32 = 4096;
/// So many messages in slots after it heard of the other rank last, one still expects to hear of it again.
const HEARD: u32 = 16;

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::ptr::NonNull;
    use std::time::{Duration, Instant};

    use ccl_plan::Channel;
    use proptest::prelude::*;

    use super::super::edge::{INLINE_BYTES, MemoryReceive, MemorySend};
    use super::super::layout::Region;
    use super::super::place::{Ends, Way};
    use super::*;

    const REUSES: [Option<Reuse>; 3] = [None, Some(Reuse::InTurn), Some(Reuse::AsItGoes)];

    /// Fills `bytes` bytes with what message `message` carries.
    fn carried(message: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 + message * 7) as u8).collect()
    }

    /// Both ends of both ranks of a pair, with 3 slots of 9,000 bytes, which go from hand to hand and are used again so, if they do.
    fn pair(reuse: Option<Reuse>) -> [(MemorySend, MemoryReceive); 2] {
        pair_with(3, reuse)
    }

    /// The same with so many slots.
    fn pair_with(slots: usize, reuse: Option<Reuse>) -> [(MemorySend, MemoryReceive); 2] {
        let layout = Layout { locals: 2, channels: 1, tags: 1, slots, slot_bytes: 9000 };
        let regions = [0, 1].map(|_| Arc::new(Region::of_layout(layout)));
        [(0, 1), (1, 0)].map(|(me, other)| {
            let pool = reuse.map(|reuse| Arc::new(Pool::of_rank(&layout, (me, other), reuse)));
            let way = Way { roomy: reuse == Some(Reuse::InTurn), sparing: false, pool };
            let (own, theirs) = (&regions[me], &regions[other]);
            let out = Ends { sender: me, receiver: other, channel: Channel(0), tag: 0 };
            let send =
                MemorySend::new(out, (Arc::clone(own), Arc::clone(theirs)), None, way.clone()).unwrap();
            let into = Ends { sender: other, receiver: me, channel: Channel(0), tag: 0 };
            let own = (Arc::clone(own), Arc::default());
            (send, MemoryReceive::new(into, own, (Arc::clone(theirs), None), way).unwrap())
        })
    }

    /// Sends a message if there is room for it.
    fn sends(edge: &mut MemorySend, message: usize, bytes: usize) -> bool {
        let Some(payload) = edge.acquire(bytes).unwrap() else { return false };
        let carried = carried(message, bytes);
        // SAFETY: the slot was acquired for as many bytes.
        unsafe { payload.copy_from_nonoverlapping(NonNull::from(&carried[..]).cast(), bytes) };
        edge.post(bytes, message as u32).unwrap();
        true
    }

    /// Whether the oldest message is this one, whole.
    fn finds(edge: &mut MemoryReceive, message: usize, bytes: usize) -> bool {
        let slot = edge.peek().unwrap().unwrap();
        // SAFETY: the slot is the consumer's until it releases it.
        let found = unsafe { std::slice::from_raw_parts(slot.data.as_ptr(), slot.bytes) };
        let as_sent = found == carried(message, bytes) && slot.tag == message as u32;
        edge.release().unwrap();
        as_sent
    }

    /// Messages of a pair in this order: from whom, how long, and how many may be under way before the oldest is read.
    fn exchange(reuse: Option<Reuse>, messages: &[(bool, usize, usize)]) {
        let mut ranks = pair(reuse);
        let mut under_way = [VecDeque::new(), VecDeque::new()];
        for (message, (from, bytes, lag)) in messages.iter().copied().enumerate() {
            let (from, to) = (usize::from(from), usize::from(!from));
            while !sends(&mut ranks[from].0, message, bytes) {
                assert!(under_way[from].len() >= 3, "{under_way:?}");
                let (oldest, bytes) = under_way[from].pop_front().unwrap();
                assert!(finds(&mut ranks[to].1, oldest, bytes), "{oldest}");
            }
            under_way[from].push_back((message, bytes));
            while under_way[from].len() > lag {
                let (oldest, bytes) = under_way[from].pop_front().unwrap();
                assert!(finds(&mut ranks[to].1, oldest, bytes), "{oldest}");
            }
        }
    }

    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0..=INLINE_BYTES, 49..=4096usize, 4097..=9000usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Messages of all lengths arrive whole and in order, whichever way they go and however far behind the consumer is, and
        /// as many of the longest as there are slots are under way.
        #[test]
        fn messages_of_all_lengths_keep_their_order(
            messages in prop::collection::vec((any::<bool>(), lengths(), 0..5usize), 1..300),
            reuse in prop::sample::select(REUSES.to_vec()),
        ) {
            exchange(reuse, &messages);
        }
    }

    #[test]
    fn as_many_messages_as_slots_are_under_way() {
        let [none, in_turn, as_it_goes] = REUSES;
        for (slots, reuse) in
            [(3, none), (3, in_turn), (3, as_it_goes), (32, in_turn), (32, as_it_goes), (300, none)]
        {
            let mut ranks = pair_with(slots, reuse);
            for message in 0..slots {
                assert!(sends(&mut ranks[0].0, message, 9000), "{message} of {slots}");
            }
            assert!(!sends(&mut ranks[0].0, slots, 9000), "{slots}");
            for message in 0..slots {
                assert!(finds(&mut ranks[1].1, message, 9000), "{message} of {slots}");
            }
        }
    }

    #[test]
    fn who_asks_again_is_told_of_the_same_slot() {
        for reuse in REUSES {
            let mut ranks = pair(reuse);
            assert!(sends(&mut ranks[0].0, 0, 9000));
            let asked = ranks[0].0.acquire(9000).unwrap().unwrap();
            assert!(finds(&mut ranks[1].1, 0, 9000));
            assert_eq!(ranks[0].0.acquire(9000).unwrap(), Some(asked), "{reuse:?}");
        }
    }

    /// Writes over what the first line says of its message.
    fn write_over(edge: &MemoryReceive, words: [u64; 2]) {
        // SAFETY: the line's payload is longer than two words, on an 8-byte boundary, and nobody else looks at it now.
        unsafe { edge.place.in_line(0).cast::<[u64; 2]>().write(words) };
    }

    #[test]
    fn the_slot_that_is_kept_is_the_one_that_was_found() {
        let mut ranks = pair(REUSES[1]);
        assert!(sends(&mut ranks[1].0, 0, 9000) && finds(&mut ranks[0].1, 0, 9000));
        assert!(sends(&mut ranks[0].0, 1, 9000));
        let found = ranks[0].0.slots.chosen();
        ranks[1].1.peek().unwrap().unwrap();
        write_over(&ranks[1].1, [200, 1 << 40]);
        ranks[1].1.release().unwrap();
        assert!(sends(&mut ranks[1].0, 2, 9000));
        assert_eq!(ranks[1].0.slots.chosen(), found);
    }

    #[test]
    fn what_is_no_slot_is_refused() {
        let refused = |error: crate::Error| assert!(error.cause().contains("which slot it is in"), "{error}");
        for words in [
            [24, 0],
            [255, 0],
            [1 << 32, 0],
            [u64::MAX, 0],
            [0, 1],
            [0, 64],
            [0, 1 << 40],
            [0, u64::MAX - 63],
        ] {
            let mut ranks = pair(REUSES[1]);
            assert!(sends(&mut ranks[0].0, 0, 9000));
            write_over(&ranks[1].1, words);
            refused(ranks[1].1.peek().unwrap_err());
        }
        for given in [24, 255] {
            let mut ranks = pair(REUSES[1]);
            assert!(sends(&mut ranks[0].0, 0, 9000) && finds(&mut ranks[1].1, 0, 9000));
            // SAFETY: the head line lies in a region that the edge keeps mapped.
            unsafe { ranks[1].1.place.head.as_ref() }.returned[0].store(given, Ordering::Relaxed);
            refused(ranks[0].0.acquire(9000).unwrap_err());
        }
    }

    #[test]
    fn what_is_read_is_filled_next_and_what_goes_one_way_stays_there() {
        let mut ranks = pair(REUSES[1]);
        let mut places = Vec::new();
        for message in 0..20 {
            let (from, to) = (message % 2, 1 - message % 2);
            assert!(sends(&mut ranks[from].0, message, 9000));
            let spot = ranks[from].0.slots.chosen();
            places.push((spot.slot, spot.offset));
            assert!(finds(&mut ranks[to].1, message, 9000));
        }
        assert!(places[1..].iter().all(|place| *place == places[1]), "{places:?}");
        let mut region = Vec::new();
        for message in 0..40 {
            assert!(sends(&mut ranks[0].0, message, 9000));
            region.push(ranks[0].0.slots.chosen().slot);
            assert!(finds(&mut ranks[1].1, message, 9000));
        }
        // Once all that is owed for earlier messages is kept, the same twelve slots are used in turn.
        let settled = &region[12..];
        assert!(settled.windows(13).all(|some| some[0] == some[12] && some[0] != some[1]), "{region:?}");
    }

    /// Sends so many messages one way; the slots that they were in.
    fn slots_of(ranks: &mut [(MemorySend, MemoryReceive); 2], from: usize, messages: usize) -> Vec<SlotId> {
        let mut send = |message| {
            assert!(sends(&mut ranks[from].0, message, 9000) && finds(&mut ranks[1 - from].1, message, 9000));
            ranks[from].0.slots.chosen().slot
        };
        (0..messages).map(&mut send).collect()
    }

    #[test]
    fn where_cores_are_shared_it_depends_on_answers_how_many_slots_are_used() {
        let different = |slots: &[SlotId]| slots.iter().map(|slot| slot.0).collect::<HashSet<_>>().len();
        let mut ranks = pair_with(4, Some(Reuse::AsItGoes));
        // Never answered: a few.
        assert_eq!(different(&slots_of(&mut ranks, 0, 100)), SHORTER_IN_TURN as usize);
        // Each message answered: what was read.
        for _ in 0..40 {
            slots_of(&mut ranks, 0, 1);
            slots_of(&mut ranks, 1, 1);
        }
        let answered: Vec<_> =
            (0..40).flat_map(|_| [0, 1].map(|from| slots_of(&mut ranks, from, 1)[0])).collect();
        assert_eq!(different(&answered), 1);
        // Many, and only then an answer: all that there are.
        for _ in 0..4 {
            slots_of(&mut ranks, 0, 64);
            slots_of(&mut ranks, 1, 64);
        }
        assert!(different(&slots_of(&mut ranks, 0, 64)) > 16);
        // No more answers for long: a few again.
        slots_of(&mut ranks, 0, 5000);
        assert!(different(&slots_of(&mut ranks, 0, 100)) <= 2 * SHORTER_IN_TURN as usize);
    }

    #[test]
    fn more_slots_are_in_turn_for_messages_of_which_more_stay_in_the_near_caches() {
        let in_turn = |reuse, bytes| Pool::new(16, 0, reuse).slots_in_turn(bytes);
        let as_it_goes = [1, SHORTER_BYTES, SHORTER_BYTES + 1].map(|bytes| in_turn(Reuse::AsItGoes, bytes));
        assert_eq!(as_it_goes, [SHORTER_IN_TURN, SHORTER_IN_TURN, FEW_IN_TURN]);
        assert_eq!(in_turn(Reuse::InTurn, 1), in_turn(Reuse::InTurn, 1 << 20));
    }

    #[test]
    fn ranks_that_exchange_at_the_same_time_find_what_was_sent() {
        for reuse in &REUSES[1..] {
            ranks_exchange_at_the_same_time(*reuse);
        }
    }

    fn ranks_exchange_at_the_same_time(reuse: Option<Reuse>) {
        let [one, other] = pair(reuse);
        std::thread::scope(|scope| {
            for (mut send, mut receive) in [one, other] {
                scope.spawn(move || {
                    let (mut sent, mut received) = (0usize, 0usize);
                    let bytes = |message: usize| 2000 + message * 577 % 7000;
                    let deadline = Instant::now() + Duration::from_secs(60);
                    while sent.min(received) < 20_000 {
                        assert!(Instant::now() < deadline, "{sent} sent, {received} received");
                        let ahead = sent < received + 1 + sent / 64 % 4;
                        if sent < 20_000 && ahead && sends(&mut send, sent, bytes(sent)) {
                            sent += 1;
                        }
                        if receive.peek().unwrap().is_some() {
                            assert!(finds(&mut receive, received, bytes(received)), "{received}");
                            received += 1;
                        } else {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn what_others_are_told_of_is_given_back() {
        let mut ranks = pair(REUSES[1]);
        for message in 0..12 {
            let (from, to) = (message % 2, 1 - message % 2);
            assert!(sends(&mut ranks[from].0, message, 9000));
            assert!(finds(&mut ranks[to].1, message, 9000));
        }
        for message in 0..9 {
            let payload = ranks[0].0.acquire(9000).unwrap().unwrap();
            // SAFETY: the slot was acquired for as many bytes.
            unsafe { payload.write_bytes(message, 9000) };
            ranks[0].0.post_shared(9000, 0).unwrap();
            let given = ranks[1].1.given;
            let spot = ranks[0].0.slots.chosen();
            ranks[1].1.peek().unwrap().unwrap();
            ranks[1].1.release().unwrap();
            // SAFETY: the head line lies in a region that the edge keeps mapped.
            let head = unsafe { ranks[1].1.place.head.as_ref() };
            assert_eq!(head.returned[given % RETURNED].load(Ordering::Relaxed), spot.slot.to_byte());
        }
    }
}
