//! The slots of an edge: which is free, where in it a message lies, and who else reads each.
//!
//! Where each rank has a core, slots go from hand to hand ([`Exchange`]), and messages that go one way only through all of them in turn, and
//! through the room in each: lines that the other core still holds take long to take from it, and those of two MiB ago it no longer holds.
//! Ranks that share cores keep to the first free slot, which is in the cache of them all.
//!
//! A slot lies on the edge whose message it carries. A producer that has the same for other receivers need not fill a slot
//! of each: it tells them where the first one is. Such a slot is free again once all of them have released their
//! messages, of which they tell in the heads of their own edges; its receiver does not keep it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::exchange::{Exchange, NoSlot, SlotId, Spot};
use super::layout::{HeadLine, Region};

/// The slots of one edge, as its producer knows them.
#[derive(Debug)]
pub(super) struct Slots {
    /// How many its messages may be in at a time.
    number: usize,
    /// Who else was told of which, and may not have read it yet.
    told: Vec<Told>,
    /// Where the last message went, or goes, and its bytes.
    chosen: Spot,
    bytes: usize,
    order: Order,
}

/// Which slot comes next.
#[derive(Debug)]
enum Order {
    /// The first free one in a region.
    First(First),
    /// One that was read last, or whose turn it is; and those that others may still read.
    Exchanged(Exchange, Vec<SlotId>),
}

/// The slots of an edge of which the first free one comes next.
#[derive(Debug)]
struct First {
    region: usize,
    /// One more than the edge's message that last used each.
    last: Box<[u64]>,
    /// The one that was chosen for a message which is not sent yet.
    reserved: Option<usize>,
    /// How many its own receiver may not have read yet when a long message is to go in another.
    most_long: usize,
}

/// Messages of other edges that speak of a slot. Once all are read it serves for another slot.
#[derive(Debug)]
struct Told {
    slot: SlotId,
    readers: Vec<Reader>,
}

/// Whoever reads a slot of somebody else's edge.
#[derive(Debug)]
pub(in crate::transport) struct Reader {
    /// Its edge's head, and the region that it lies in.
    head: NonNull<HeadLine>,
    _region: Arc<Region>,
    /// What the head says once it has read.
    until: u64,
}

/// Where a payload lies in the regions of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) struct Location {
    /// The place of the region's owner among the ranks of the host.
    pub(super) local: u32,
    /// Bytes from the start of that region.
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

impl Slots {
    /// So many slots in the region of this number, the first free one of which is used; of long messages few are under way if it `spares` the
    /// caches (ADR 0119).
    pub(super) fn first(number: usize, region: usize, spares: bool) -> Slots {
        let most_long = if spares { FEW_LONG.min(number) } else { number };
        Slots::new(
            number,
            Order::First(First { region, last: vec![0; number].into(), reserved: None, most_long }),
        )
    }

    /// Messages are in so many slots at a time, whichever these are.
    pub(super) fn exchanged(number: usize, exchange: Exchange) -> Slots {
        Slots::new(number, Order::Exchanged(exchange, Vec::new()))
    }

    fn new(number: usize, order: Order) -> Slots {
        Slots { number, told: Vec::new(), chosen: Spot::default(), bytes: 0, order }
    }

    /// Where a message of `bytes` bytes goes. Free are slots of the edge's own messages below `released`, or what `head` says was given
    /// back for them; the same one until [`Slots::take`]. Errors: what was given back is no slot.
    pub(super) fn choose(
        &mut self,
        head: &HeadLine,
        released: u64,
        bytes: usize,
    ) -> Result<Option<Spot>, NoSlot> {
        self.told.iter_mut().for_each(Told::look);
        let told = &self.told;
        let is_read = |slot: SlotId| told.iter().any(|told| told.is_of(slot));
        let chosen = match &mut self.order {
            Order::First(first) => first.choose(released, bytes, is_read),
            Order::Exchanged(exchange, read) => {
                read.retain(|slot| is_read(*slot) || exchange.rest(*slot));
                // Relaxed: ordered by the acquire load of the head.
                let returned = |word: usize| head.returned[word].load(Ordering::Relaxed);
                exchange.collect(returned, released, |slot| {
                    if is_read(slot) {
                        read.push(slot);
                    }
                    !is_read(slot)
                })?;
                if exchange.is_full() {
                    return Ok(None);
                }
                exchange.choose_read(bytes).or_else(|| exchange.choose_rested(bytes))
            }
        };
        let Some(chosen) = chosen else { return Ok(None) };
        (self.chosen, self.bytes) = (chosen, bytes);
        Ok(Some(chosen))
    }

    /// As [`Slots::choose`], if that is where this rank has just read, and if it is known without a look that a message may be sent.
    pub(super) fn choose_read(&mut self, bytes: usize) -> Option<Spot> {
        let Order::Exchanged(exchange, _) = &mut self.order else { return None };
        if exchange.is_full() {
            return None;
        }
        let chosen = exchange.choose_read(bytes)?;
        (self.chosen, self.bytes) = (chosen, bytes);
        Some(chosen)
    }

    /// Whether slots go to and fro: the receiver sends what fits one, too.
    #[inline]
    pub(super) fn go_to_and_fro(&self) -> bool {
        match &self.order {
            Order::First(_) => false,
            Order::Exchanged(exchange, _) => exchange.has_heard(),
        }
    }

    /// Where a next message of `bytes` bytes goes that will not be in a slot that this rank has just read, as far as is known.
    pub(super) fn ahead(&self, bytes: usize) -> Option<Spot> {
        match &self.order {
            Order::First(_) => None,
            Order::Exchanged(exchange, _) => exchange.ahead(bytes),
        }
    }

    /// Where the last message went that was chosen for.
    pub(super) fn chosen(&self) -> Spot {
        self.chosen
    }

    /// The edge's message `message` uses the chosen slot.
    pub(super) fn take(&mut self, message: u64) {
        match &mut self.order {
            Order::First(first) => first.take(self.chosen.slot, message),
            Order::Exchanged(exchange, _) => exchange.take(message, self.chosen, self.bytes),
        }
    }

    /// Whether others may be told of the chosen slot. Not so many slots may wait for them that the edge's own receiver
    /// could be kept waiting: its credit has to depend on itself alone, as it does in the proofs of programs.
    pub(super) fn may_share(&self) -> bool {
        let shared =
            self.told.iter().filter(|told| !told.readers.is_empty() && told.slot != self.chosen.slot);
        shared.count() + CREDIT < self.number
    }

    /// Somebody else reads the chosen slot.
    pub(super) fn share(&mut self, reader: Reader) {
        let slot = self.chosen.slot;
        let same = self.told.iter().position(|told| told.is_of(slot));
        let place = same.or_else(|| self.told.iter().position(|told| told.readers.is_empty()));
        let place = place.unwrap_or_else(|| {
            self.told.push(Told { slot, readers: Vec::new() });
            self.told.len() - 1
        });
        let told = &mut self.told[place];
        told.slot = slot;
        told.readers.push(reader);
    }
}

impl Told {
    /// Forgets those who have read, the last ones first, up to one that has not.
    fn look(&mut self) {
        while self.readers.pop_if(|reader| reader.has_read()).is_some() {}
    }

    /// Whether somebody may still read this slot.
    fn is_of(&self, slot: SlotId) -> bool {
        !self.readers.is_empty() && self.slot == slot
    }
}

impl First {
    fn choose(&mut self, released: u64, bytes: usize, is_read: impl Fn(SlotId) -> bool) -> Option<Spot> {
        if self.reserved.is_none() {
            // What others have not read does not count: the receiver's credit depends on itself alone.
            let unread = || self.last.iter().filter(|last| **last > released).count();
            if bytes > LONG_BYTES && self.most_long < self.last.len() && unread() >= self.most_long {
                return None;
            }
            let free =
                |index: &usize| self.last[*index] <= released && !is_read(SlotId::new(*index, self.region));
            self.reserved = (0..self.last.len()).find(free);
        }
        self.reserved.map(|index| Spot { slot: SlotId::new(index, self.region), offset: 0 })
    }

    fn take(&mut self, slot: SlotId, message: u64) {
        self.reserved = None;
        self.last[slot.index()] = message + 1;
    }
}

impl Reader {
    /// Whoever gives back message `message` of an edge in `region`.
    pub(super) fn new(head: NonNull<HeadLine>, region: Arc<Region>, message: u64) -> Reader {
        Reader { head, _region: region, until: message + 1 }
    }

    fn has_read(&self) -> bool {
        // SAFETY: the head line lies in a region that is kept mapped, and is only used as an atomic.
        let head = unsafe { self.head.as_ref() };
        // Acquire pairs with the store in `Consumer::release`: its reads of the slot happen before our writes.
        head.head.load(Ordering::Acquire) >= self.until
    }
}

// SAFETY: the head lies in a region that it keeps mapped, and is only used as an atomic.
unsafe impl Send for Reader {}

/// Slots that are never shared: what the library's own programs need to run without ever waiting for each other for good.
const CREDIT: usize = 2;
/// Long messages that may be under way where more than few ranks share cores, whose nearest caches hold so many of all edges (ADR 0119).
const FEW_LONG: usize = 3;
const _: () = assert!(FEW_LONG >= CREDIT);
/// What is longer is long.
const LONG_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use ccl_plan::Channel;

    use super::super::edge::{MemoryReceive, MemorySend, Regions};
    use super::super::exchange::{Pool, Reuse};
    use super::super::layout::Layout;
    use super::super::place::{Ends, Way};
    use super::*;

    const LAYOUT: Layout = Layout { locals: 3, channels: 1, tags: 1, slots: 4, slot_bytes: 9000 };

    /// Rank 0's edges to ranks 1 and 2, and their ends of them.
    fn edges(exchanged: bool) -> ([MemorySend; 2], [MemoryReceive; 2]) {
        let ([first, second, _], [one, two, _]) = edges_and_back(exchanged);
        ([first, second], [one, two])
    }

    /// The same, and the edge from rank 1 to rank 0.
    fn edges_and_back(exchanged: bool) -> ([MemorySend; 3], [MemoryReceive; 3]) {
        let regions: Regions = (0..3).map(|_| Arc::new(Region::of_layout(LAYOUT))).collect();
        let region = |at: usize| Arc::clone(&regions[at]);
        let ends = |sender, receiver| Ends { sender, receiver, channel: Channel(0), tag: 0 };
        let way = |own, other| Way {
            roomy: exchanged,
            sparing: false,
            pool: exchanged.then(|| Arc::new(Pool::of_rank(&LAYOUT, (own, other), Reuse::InTurn))),
        };
        let (of_0, of_1) = (way(0, 1), way(1, 0));
        let edge = |(from, to), (of_sender, of_receiver)| {
            let own = (region(to), Arc::clone(&regions));
            (
                MemorySend::new(ends(from, to), (region(from), region(to)), None, of_sender).unwrap(),
                MemoryReceive::new(ends(from, to), own, (region(from), None), of_receiver).unwrap(),
            )
        };
        let (first, one) = edge((0, 1), (of_0.clone(), of_1.clone()));
        let (second, two) = edge((0, 2), (way(0, 2), way(2, 0)));
        let (back, zero) = edge((1, 0), (of_1, of_0));
        ([first, second, back], [one, two, zero])
    }

    fn fill(edge: &mut MemorySend, byte: u8, tag: u32) -> bool {
        let Some(payload) = edge.acquire(9000).unwrap() else { return false };
        // SAFETY: the slot was acquired for as many bytes.
        unsafe { payload.write_bytes(byte, 9000) };
        edge.post_shared(9000, tag).unwrap();
        true
    }

    fn point(from: &mut MemorySend, to: &mut MemorySend, tag: u32) {
        from.acquire(0).unwrap().unwrap();
        let reader = from.point_to(to.location(9000), tag).unwrap();
        to.share(reader);
    }

    /// The byte that all of the oldest message consists of.
    fn read(edge: &mut MemoryReceive) -> u8 {
        let slot = edge.peek().unwrap().unwrap();
        assert!(!slot.lent);
        // SAFETY: the slot is the consumer's until it releases it.
        let bytes = unsafe { std::slice::from_raw_parts(slot.data.as_ptr(), slot.bytes) };
        assert!(bytes.len() == 9000 && bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    #[test]
    fn a_slot_is_free_once_all_have_read_it() {
        a_slot_is_free_once_all_have_read(false);
        a_slot_is_free_once_all_have_read(true);
    }

    fn a_slot_is_free_once_all_have_read(turns: bool) {
        let ([mut first, mut second], [mut one, mut two]) = edges(turns);
        for round in 0..20u8 {
            assert!(fill(&mut first, round, 0));
            let place = first.location(9000);
            point(&mut second, &mut first, 0);
            assert_eq!(read(&mut one), round);
            one.release().unwrap();
            // The first receiver is done with it, the second one not.
            assert!(fill(&mut first, 100 + round, 0));
            assert_ne!(first.location(9000), place);
            assert_eq!((read(&mut one), read(&mut two)), (100 + round, round));
            one.release().unwrap();
            two.release().unwrap();
        }
    }

    #[test]
    fn a_slot_waits_for_the_last_message_that_speaks_of_it() {
        let ([mut first, mut second], [mut one, mut two]) = edges(false);
        for round in 0..20u8 {
            assert!(fill(&mut first, round, 0));
            let place = first.location(9000);
            point(&mut second, &mut first, 0);
            point(&mut second, &mut first, 0);
            assert_eq!((read(&mut one), read(&mut two)), (round, round));
            one.release().unwrap();
            two.release().unwrap();
            // One of the two is read, and the other one not.
            assert!(fill(&mut first, 100, 0));
            assert_ne!(first.location(9000), place);
            assert_eq!((read(&mut one), read(&mut two)), (100, round));
            one.release().unwrap();
            two.release().unwrap();
            assert!(fill(&mut first, 200, 0));
            assert_eq!((first.location(9000), read(&mut one)), (place, 200));
            one.release().unwrap();
            assert_eq!(first.slots.told.len(), 1, "what was told of is used again");
        }
    }

    #[test]
    fn others_may_be_told_of_a_slot_that_was_kept() {
        let ([mut first, mut second, mut back], [mut one, mut two, mut zero]) = edges_and_back(true);
        let mut kept = 0;
        for round in 0..40u8 {
            let payload = back.acquire(9000).unwrap().unwrap();
            // SAFETY: the slot was acquired for as many bytes.
            unsafe { payload.write_bytes(round, 9000) };
            back.post(9000, 0).unwrap();
            let sent = back.slots.chosen();
            assert_eq!(read(&mut zero), round);
            zero.release().unwrap();
            assert!(fill(&mut first, 100 + round, 0));
            kept += usize::from(first.slots.chosen() == sent);
            point(&mut second, &mut first, 0);
            assert_eq!(read(&mut one), 100 + round);
            one.release().unwrap();
            // Rank 1 gave it back, and neither of the two fills it while rank 2 has not read it.
            assert!(fill(&mut back, 200, 0) && fill(&mut first, 201, 0));
            assert_eq!((read(&mut zero), read(&mut one)), (200, 201));
            zero.release().unwrap();
            one.release().unwrap();
            assert_eq!(read(&mut two), 100 + round);
            two.release().unwrap();
        }
        assert!(kept > 30, "{kept}");
    }

    #[test]
    fn few_long_messages_are_under_way_where_caches_are_spared_whatever_others_have_not_read() {
        let (long, short) = (LONG_BYTES + 1, LONG_BYTES);
        let first = |spares| match Slots::first(8, 0, spares).order {
            Order::First(first) => first,
            Order::Exchanged(..) => unreachable!("the first free slot is used"),
        };
        let send = |first: &mut First, (message, released), bytes, read_by_others: &[usize]| {
            let place = first.choose(released, bytes, |slot| read_by_others.contains(&slot.index()))?;
            first.take(place.slot, message);
            Some(place.slot.index())
        };
        let mut all = first(false);
        let placed: Vec<_> = (0..9).map(|message| send(&mut all, (message, 0), long, &[])).collect();
        assert_eq!(placed, (0..8).map(Some).chain([None]).collect::<Vec<_>>());

        let mut few = first(true);
        let placed: Vec<_> = (0..4).map(|message| send(&mut few, (message, 0), long, &[])).collect();
        assert_eq!(placed, [Some(0), Some(1), Some(2), None]);
        assert_eq!(send(&mut few, (3, 0), short, &[]), Some(3));
        // The receiver has released the first two, which others have not read.
        assert_eq!(send(&mut few, (4, 2), long, &[0, 1]), Some(4));
        assert_eq!(send(&mut few, (5, 2), long, &[0, 1]), None);
        assert_eq!(send(&mut few, (5, 3), long, &[0, 1]), Some(2));
    }

    #[test]
    fn a_receiver_that_stands_still_keeps_no_other_waiting() {
        waits_for_nobody_else(false);
        waits_for_nobody_else(true);
    }

    fn waits_for_nobody_else(turns: bool) {
        let ([mut first, mut second], [mut one, mut two]) = edges(turns);
        let mut shared = Vec::new();
        for round in 0..30 {
            assert!(fill(&mut first, round, 0), "{round}");
            if first.may_share() {
                point(&mut second, &mut first, 0);
                shared.push(round);
            }
            assert_eq!(read(&mut one), round);
            one.release().unwrap();
        }
        // Two slots are left to the first receiver, however many the second one has not read.
        assert_eq!(shared, [0, 1]);
        for round in shared {
            assert_eq!(read(&mut two), round);
            two.release().unwrap();
        }
        assert!(fill(&mut first, 0, 0) && first.may_share());
    }

    #[test]
    fn what_lies_outside_of_all_slots_is_refused() {
        for (local, offset) in [(3, 1 << 16), (1, 0), (1, 1 << 40), (1, u64::MAX), (2, (1 << 16) + 1)] {
            let ([_, mut second], [_, mut two]) = edges(false);
            second.acquire(0).unwrap().unwrap();
            second.point_to(Location { local, offset, bytes: 9000 }, 0).unwrap();
            let error = two.peek().unwrap_err();
            assert!(error.cause().contains("which slot it is in"), "{local} {offset}: {error}");
        }
    }

    /// Where messages of so many bytes go that go one way, one after the other.
    fn places(exchanged: bool, bytes: usize, messages: usize) -> Vec<(usize, usize)> {
        let ([mut first, _], [mut one, _]) = edges(exchanged);
        let mut place = || {
            first.acquire(bytes).unwrap().unwrap();
            first.post(bytes, 0).unwrap();
            one.peek().unwrap().unwrap();
            one.release().unwrap();
            let spot = first.slots.chosen();
            (spot.slot.index(), spot.offset)
        };
        (0..messages).map(|_| place()).collect()
    }

    #[test]
    fn messages_that_go_one_way_go_through_all_slots_and_the_room_in_each_or_keep_to_the_first() {
        assert_eq!(places(false, 2500, 6), [(0, 0); 6]);
        let found = places(true, 2500, 60);
        let expected = (0..60).map(|message| (message % 16, message / 16 % 3 * 2560));
        assert!(found.iter().copied().eq(expected), "{found:?}");
    }
}
