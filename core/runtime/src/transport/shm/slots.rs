//! The slots of an edge: which is free, where in it a message lies, and who else reads each.
//!
//! Where each rank has a core, messages go through all slots in turn, and through the room in each: lines that the
//! other core still holds take long to take from it, and those of two MiB ago it no longer holds. Ranks that share cores
//! keep to the first free slot, which is in the cache of them all.
//!
//! A slot lies on the edge whose message it carries. A producer that has the same for other receivers need not fill a slot
//! of each: it tells them where the first one is. Such a slot is free again once all of them have released their
//! messages, of which they tell in the heads of their own edges.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::{HeadLine, Region, SLOT_ALIGNMENT};

/// The slots of one edge, as its producer knows them.
#[derive(Debug)]
pub(super) struct Slots {
    /// One more than the edge's message that last used each.
    last: Box<[u64]>,
    /// Messages of other edges that speak of one.
    readers: Vec<(usize, Reader)>,
    /// The one that was given out last, and how many bytes into it.
    chosen: usize,
    offset: usize,
    /// If messages go through them in turn.
    turns: Option<Turns>,
}

/// Where messages go that go through all slots in turn.
#[derive(Debug)]
struct Turns {
    /// The slot after the last one that was used.
    next: usize,
    /// Where the next message in each goes.
    starts: Box<[usize]>,
    /// What a slot has room for.
    room_bytes: usize,
    /// The message that has been chosen for.
    bytes: usize,
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
    /// So many slots, all free; with room for so many bytes each if messages go through them in turn.
    pub(super) fn new(slots: usize, turns: Option<usize>) -> Slots {
        let turns =
            turns.map(|room_bytes| Turns { next: 0, starts: vec![0; slots].into(), room_bytes, bytes: 0 });
        Slots { last: vec![0; slots].into(), readers: Vec::new(), chosen: 0, offset: 0, turns }
    }

    /// A free slot for `bytes` bytes, and how far into it they go: the next one in turn, or the first. Free are those of the
    /// edge's own messages below `released`.
    pub(super) fn choose(&mut self, released: u64, bytes: usize) -> Option<(usize, usize)> {
        self.readers.retain(|(_, reader)| !reader.has_read());
        let free = |slot: &usize| self.last[*slot] <= released && !self.is_read(*slot);
        let from = self.turns.as_ref().map_or(0, |turns| turns.next);
        self.chosen = (from..self.last.len()).chain(0..from).find(free)?;
        self.offset = 0;
        if let Some(turns) = &mut self.turns {
            self.offset = turns.offset(self.chosen, bytes);
            turns.bytes = bytes;
        }
        Some((self.chosen, self.offset))
    }

    /// Where a next message of `bytes` bytes goes, if slots are used in turn and the next is among the free ones by then:
    /// its slot, and how far into it.
    pub(super) fn ahead(&self, released: u64, bytes: usize) -> Option<(usize, usize)> {
        let turns = self.turns.as_ref()?;
        if self.last[turns.next] > released || self.is_read(turns.next) {
            return None;
        }
        Some((turns.next, turns.offset(turns.next, bytes)))
    }

    /// The slot that was chosen last, and how far into it the message goes.
    pub(super) fn chosen(&self) -> (usize, usize) {
        (self.chosen, self.offset)
    }

    /// The edge's message `message` uses the chosen slot.
    pub(super) fn take(&mut self, message: u64) {
        self.last[self.chosen] = message + 1;
        if let Some(turns) = &mut self.turns {
            turns.starts[self.chosen] = (self.offset + turns.bytes).next_multiple_of(SLOT_ALIGNMENT);
            turns.next = if self.chosen + 1 == self.last.len() { 0 } else { self.chosen + 1 };
        }
    }

    /// Whether others may be told of the chosen slot. Not so many slots may wait for them that the edge's own receiver
    /// could be kept waiting: its credit has to depend on itself alone, as it does in the proofs of programs.
    pub(super) fn may_share(&self) -> bool {
        let shared = (0..self.last.len()).filter(|slot| *slot != self.chosen && self.is_read(*slot)).count();
        shared + CREDIT < self.last.len()
    }

    /// Somebody else reads the chosen slot.
    pub(super) fn share(&mut self, reader: Reader) {
        self.readers.push((self.chosen, reader));
    }

    /// Whether somebody else may still read a slot.
    fn is_read(&self, slot: usize) -> bool {
        self.readers.iter().any(|(other, _)| *other == slot)
    }
}

impl Turns {
    /// How far into a slot its next message goes, of so many bytes: behind the last one while there is room.
    fn offset(&self, slot: usize, bytes: usize) -> usize {
        let start = self.starts[slot];
        if start + bytes <= self.room_bytes { start } else { 0 }
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

#[cfg(test)]
mod tests {
    use ccl_plan::Channel;

    use super::super::edge::{MemoryReceive, MemorySend, Regions};
    use super::super::layout::Layout;
    use super::*;

    const LAYOUT: Layout = Layout { locals: 3, channels: 1, tags: 1, slots: 4, slot_bytes: 9000 };

    /// Rank 0's edges to ranks 1 and 2, and their ends of them.
    fn edges(turns: bool) -> ([MemorySend; 2], [MemoryReceive; 2]) {
        let regions: Regions = (0..3).map(|_| Arc::new(Region::of_layout(LAYOUT))).collect();
        let send =
            |to: usize| MemorySend::new((to, Arc::clone(&regions[to])), 0, Channel(0), 0, turns).unwrap();
        let receive = |at: usize| {
            let own = (Arc::clone(&regions[at]), Arc::clone(&regions));
            MemoryReceive::new(own, (Arc::clone(&regions[0]), None), 0, Channel(0), 0, turns).unwrap()
        };
        ([send(1), send(2)], [receive(1), receive(2)])
    }

    fn fill(edge: &mut MemorySend, byte: u8, tag: u32) -> bool {
        let Some(payload) = edge.acquire(9000).unwrap() else { return false };
        // SAFETY: the slot was acquired for as many bytes.
        unsafe { payload.write_bytes(byte, 9000) };
        edge.post(9000, tag).unwrap();
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
    fn what_is_ahead_is_where_the_next_message_goes() {
        let mut slots = Slots::new(3, Some(9000));
        let (mut known, mut unknown) = (0, 0);
        for message in 0..50u64 {
            let (released, bytes) = (message.saturating_sub(2), 1000 + 1700 * (message as usize % 4));
            let ahead = slots.ahead(released.saturating_sub(message % 2), bytes);
            let chosen = slots.choose(released, bytes).unwrap();
            match ahead {
                Some(ahead) => assert_eq!(ahead, chosen, "message {message}"),
                None => unknown += 1,
            }
            known += usize::from(ahead.is_some());
            slots.take(message);
        }
        assert!(known > 20 && unknown > 10, "{known} {unknown}");
        assert_eq!(Slots::new(3, None).ahead(9, 10), None, "no turns, and no slot is the next");
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

    /// Where messages of so many bytes go, one after the other.
    fn places(turns: bool, bytes: usize, messages: usize) -> Vec<(usize, usize)> {
        let mut slots = Slots::new(4, turns.then_some(1000));
        let place = |message| {
            let place = slots.choose(message, bytes).unwrap();
            slots.take(message);
            place
        };
        (0..messages as u64).map(place).collect()
    }

    #[test]
    fn messages_go_through_all_slots_and_the_room_in_each_or_keep_to_the_first() {
        assert_eq!(places(false, 300, 6), [(0, 0); 6]);
        let found = places(true, 300, 17);
        let expected = (0..17).map(|message| (message % 4, message / 4 % 3 * 320));
        assert!(found.iter().copied().eq(expected), "{found:?}");
    }
}
