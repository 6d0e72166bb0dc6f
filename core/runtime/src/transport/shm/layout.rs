//! Where everything lies in a region: a pure function of a few numbers that all ranks agree on.
//!
//! ```text
//! header       magic, digest, nonce; the bell; whether its owner is at work; turns of its core; one probe word for each local rank
//! control      for each edge: the head line, then the lines of messages
//! payload      for each edge: a short payload for each line, then slots, on page boundaries
//! ```
//!
//! Control lines lie together, so that small messages touch few pages; pages of edges that are never
//! used are never touched and cost nothing.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use ccl_plan::Channel;
use ccl_plan::cost::SHORT_BYTES;

use super::bell::BellLine;
use super::exchange::{MOST_EXCHANGED, RETURNED};
use super::help::Offers;
use super::presence::PresenceLine;
use super::turns::TurnLine;
use crate::memory::{Mapping, PeerMemory};

/// The shape of every region of one communicator on one host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Ranks of this host that may share memory.
    pub(crate) locals: usize,
    pub(crate) channels: usize,
    pub(crate) tags: usize,
    /// Long messages that may be under way on an edge.
    pub(crate) slots: usize,
    /// Most payload bytes of a message.
    pub(crate) slot_bytes: usize,
}

/// A mapped region, one's own or a peer's.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    layout: Layout,
}

#[repr(C)]
struct Header {
    /// [`MAGIC`] once the rest of this block is written.
    magic: AtomicU64,
    digest: AtomicU64,
    nonce: [AtomicU64; 4],
    /// Where this header is in its owner's address space.
    address: AtomicU64,
    /// Not 0 once the owner has taken back what it lent.
    withdrawn: AtomicU32,
    /// Not 0 while the owner uses the memory of other ranks.
    visiting: AtomicU32,
    bell: BellLine,
    presence: PresenceLine,
    turns: TurnLine,
}

/// So many ranks of a host can afford slots that are in no core's own cache when they are filled again (ADR 0055).
pub(crate) const FEW_RANKS: usize = 4;
/// So many ranks of a host can afford slots with room for several messages each, which go from hand to hand (ADR 0107).
pub(crate) const MOST_EXCHANGING_RANKS: usize = 8;

/// An edge's first line: written by its consumer, but for one word of the offers.
#[repr(C, align(128))]
pub(super) struct HeadLine {
    pub(super) head: AtomicU64,
    /// Which slots were given back, in the order of the messages that were in slots, where slots are exchanged.
    pub(super) returned: [AtomicU8; RETURNED],
    pub(super) offers: Offers,
}

/// A message's line: written by the producer alone.
#[repr(C, align(64))]
pub(super) struct SlotLine {
    pub(super) sequence: AtomicU64,
    pub(super) tag: AtomicU32,
    /// Payload bytes, where they are, and where the next message is: see [`super::marks`].
    pub(super) marks: AtomicU32,
    pub(super) payload: UnsafeCell<[u8; super::INLINE_BYTES]>,
}

/// An edge's place in a region.
#[derive(Clone, Copy)]
pub(super) struct EdgePlace {
    pub(super) head: NonNull<HeadLine>,
    pub(super) lines: NonNull<SlotLine>,
    pub(super) payload: NonNull<u8>,
    /// Where the first slot is, after the short payloads.
    pub(super) slots: NonNull<u8>,
}

impl Layout {
    /// Bytes of a region.
    pub(crate) fn bytes(&self) -> usize {
        self.payload_start() + self.edges() * self.payload_bytes()
    }

    /// Differs for layouts that differ.
    pub(crate) fn digest(&self) -> u64 {
        let numbers = [self.locals, self.channels, self.tags, self.slots, self.slot_bytes];
        let hash = blake3::hash(&numbers.map(|number| (number as u64).to_le_bytes()).concat());
        hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn edges(&self) -> usize {
        self.locals * self.channels * self.tags
    }

    fn probe_start(&self) -> usize {
        size_of::<Header>().next_multiple_of(64)
    }

    fn control_start(&self) -> usize {
        (self.probe_start() + self.locals * 8).next_multiple_of(PAGE_BYTES)
    }

    fn control_bytes(&self) -> usize {
        (size_of::<HeadLine>() + self.lines() * size_of::<SlotLine>())
            .next_multiple_of(align_of::<HeadLine>())
    }

    fn payload_start(&self) -> usize {
        (self.control_start() + self.edges() * self.control_bytes()).next_multiple_of(PAGE_BYTES)
    }

    /// Short messages that may be under way on an edge: a rank that has many to send should not have
    /// to stop for each of its peers to run.
    pub(super) fn lines(&self) -> usize {
        self.slots.max(LINES)
    }

    /// Most bytes of a payload that needs no slot; `turns`: on an edge whose messages go through all slots in turn.
    pub(crate) fn short_bytes_of(&self, turns: bool) -> usize {
        if turns { SHORT_IN_TURN_BYTES.min(self.short_bytes()) } else { self.short_bytes() }
    }

    /// Most bytes that a short payload has room for.
    fn short_bytes(&self) -> usize {
        self.slot_bytes.min(SHORT_BYTES as usize)
    }

    /// Bytes from one short payload to the next.
    pub(super) fn short_stride(&self) -> usize {
        self.short_bytes().next_multiple_of(64)
    }

    /// Bytes from one slot to the next: a slot has room for several messages, of which one is in it.
    pub(super) fn stride(&self) -> usize {
        self.slot_bytes.next_multiple_of(SLOT_ALIGNMENT) * self.places()
    }

    /// Slots in a region that go from hand to hand, and bytes from one to the next: the room in each of the edge's slots, as far as that
    /// many can be told apart.
    pub(super) fn exchanged(&self) -> (usize, usize) {
        let places = self.places().min(MOST_EXCHANGED / self.slots).max(1);
        (self.slots * places, self.slot_bytes.next_multiple_of(SLOT_ALIGNMENT))
    }

    /// Longest messages that a slot has room for.
    fn places(&self) -> usize {
        match self.locals {
            0..=MOST_EXCHANGING_RANKS => 4,
            _ => 1,
        }
    }

    fn short_payload_bytes(&self) -> usize {
        (self.lines() * self.short_stride()).next_multiple_of(PAGE_BYTES)
    }

    fn payload_bytes(&self) -> usize {
        self.short_payload_bytes() + (self.slots * self.stride()).next_multiple_of(PAGE_BYTES)
    }
}

impl Region {
    /// A region over a mapping of `layout.bytes()` bytes.
    pub(crate) fn new(mapping: Mapping, layout: Layout) -> Region {
        assert_eq!(mapping.bytes(), layout.bytes(), "a region is mapped in the size of its layout");
        Region { mapping, layout }
    }

    /// Writes the header of a fresh region.
    pub(crate) fn sign(&self, nonce: &[u8; 32]) {
        let header = self.header();
        header.digest.store(self.layout.digest(), Ordering::Relaxed);
        for (word, value) in header.nonce.iter().zip(words(nonce)) {
            word.store(value, Ordering::Relaxed);
        }
        header.address.store(std::ptr::from_ref(header).addr() as u64, Ordering::Relaxed);
        // Release pairs with the load in `check`.
        header.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether the header is its rank's: `None` while unsigned, else whether nonce and layout agree.
    pub(crate) fn check(&self, nonce: &[u8; 32]) -> Option<Result<(), String>> {
        let header = self.header();
        // Acquire pairs with the store in `sign`.
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return None;
        }
        let found = header.nonce.each_ref().map(|word| word.load(Ordering::Relaxed));
        if found != words(nonce) {
            return Some(Err("its memory does not show the nonce it announced".to_owned()));
        }
        if header.digest.load(Ordering::Relaxed) != self.layout.digest() {
            return Some(Err("its memory is laid out with other settings".to_owned()));
        }
        Some(Ok(()))
    }

    /// Whether the owner's memory can be read through `peer`: whether the nonce is found there.
    pub(super) fn shows_through(&self, peer: PeerMemory) -> std::io::Result<bool> {
        let header = self.header();
        let offset = std::mem::offset_of!(Header, nonce) as u64;
        let address = header.address.load(Ordering::Relaxed).wrapping_add(offset);
        let mut found = [0u64; 4];
        // SAFETY: `found` is as long as asked, and nobody else's.
        unsafe { peer.read(address, found.as_mut_ptr().cast(), size_of_val(&found))? };
        Ok(found == header.nonce.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The owner takes back all that it lent.
    pub(super) fn withdraw(&self) {
        self.header().withdrawn.store(1, Ordering::SeqCst);
        // Whoever still finds 0 finished reading before the owner's next writes.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Whether the owner has. Ask after reading what was lent.
    #[inline]
    pub(super) fn withdrawn(&self) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.header().withdrawn.load(Ordering::SeqCst) != 0
    }

    /// The owner is about to use the memory of other ranks, unless it then finds that they took it back.
    pub(super) fn begin_visit(&self) {
        self.header().visiting.store(1, Ordering::SeqCst);
        // Pairs with the fence in `withdraw`: either this rank finds the other's memory withdrawn, or the
        // other finds this rank visiting.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// The owner has used it.
    pub(super) fn end_visit(&self) {
        // Release pairs with the load in `is_visiting`: what was read and written is done.
        self.header().visiting.store(0, Ordering::Release);
    }

    /// Whether the owner uses the memory of other ranks. Ask after withdrawing one's own.
    pub(super) fn is_visiting(&self) -> bool {
        // Acquire pairs with the store in `end_visit`.
        self.header().visiting.load(Ordering::Acquire) != 0
    }

    /// The probe word that local rank `writer` writes.
    pub(crate) fn probe(&self, writer: usize) -> &AtomicU64 {
        assert!(writer < self.layout.locals, "the writer is one of the host's ranks");
        let word = self.mapping.at(self.layout.probe_start() + writer * 8).cast();
        // SAFETY: the word lies in the header block, aligned, is only ever used as an atomic, and
        // lives as long as the mapping that `self` owns.
        unsafe { word.as_ref() }
    }

    pub(super) fn bell(&self) -> &BellLine {
        &self.header().bell
    }

    pub(super) fn presence(&self) -> &PresenceLine {
        &self.header().presence
    }

    pub(super) fn turns(&self) -> &TurnLine {
        &self.header().turns
    }

    /// Where the edge from local rank `source` lies; `None` outside the layout.
    pub(super) fn edge(&self, source: usize, channel: Channel, tag: u8) -> Option<EdgePlace> {
        let layout = &self.layout;
        let (channel, tag) = (channel.index(), usize::from(tag));
        if source >= layout.locals || channel >= layout.channels || tag >= layout.tags {
            return None;
        }
        let index = (source * layout.channels + channel) * layout.tags + tag;
        let control = layout.control_start() + index * layout.control_bytes();
        let payload = layout.payload_start() + index * layout.payload_bytes();
        Some(EdgePlace {
            head: self.mapping.at(control).cast(),
            lines: self.mapping.at(control + size_of::<HeadLine>()).cast(),
            payload: self.mapping.at(payload),
            slots: self.mapping.at(payload + layout.short_payload_bytes()),
        })
    }

    /// How far from the start of the region a payload is that lies in it.
    pub(super) fn offset_of(&self, payload: NonNull<u8>) -> u64 {
        (payload.addr().get() - self.mapping.at(0).addr().get()) as u64
    }

    /// The payload of `bytes` bytes that is so far from the start; `None` outside of where payloads are.
    pub(super) fn payload(&self, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let start = usize::try_from(offset).ok()?;
        let inside = start >= self.layout.payload_start() && start.checked_add(bytes)? <= self.layout.bytes();
        (inside && start.is_multiple_of(SLOT_ALIGNMENT)).then(|| self.mapping.at(start))
    }

    /// Touches the slots of an edge that lies in the region, so that none of its messages has to.
    pub(super) fn touch(&self, slots: NonNull<u8>) {
        let start = self.offset_of(slots) as usize;
        self.mapping.populate_range(start..start + self.layout.slots * self.layout.stride());
    }

    /// Bytes that are mapped.
    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping starts on a page boundary, is longer than the header, lives as long
        // as `self`, and every field is atomic and valid for any bits.
        unsafe { self.mapping.at(0).cast().as_ref() }
    }

    /// A signed region of its own, with `locals` ranks.
    #[cfg(test)]
    pub(super) fn for_tests(locals: usize) -> Region {
        Region::of_layout(Layout { locals, channels: 1, tags: 1, slots: 2, slot_bytes: 256 })
    }

    #[cfg(test)]
    pub(super) fn of_layout(layout: Layout) -> Region {
        let file = crate::memory::MemoryFile::create(crate::memory::Backing::Anonymous).unwrap();
        file.fix_size(layout.bytes()).unwrap();
        let region = Region::new(file.map(layout.bytes()).unwrap(), layout);
        region.sign(&[1; 32]);
        region
    }
}

fn words(nonce: &[u8; 32]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(nonce.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

const PAGE_BYTES: usize = 4096;
pub(super) const SLOT_ALIGNMENT: usize = 64;
/// Eight ranks on two cores broadcast 8 bytes in 4.4 µs with 8 lines, in 2.0 with 32, in 1.4 with 128.
const LINES: usize = 64;
/// Slots in turn serve longer messages better: the few lines that short payloads go round are in the caches of both
/// cores, and each takes them from the other again (ADR 0060).
const SHORT_IN_TURN_BYTES: usize = 2048;
const MAGIC: u64 = u64::from_le_bytes(*b"cclshm05");

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// Every range of a region that somebody writes.
    fn ranges(region: &Region) -> Vec<Range<usize>> {
        let layout = *region.layout();
        let base = region.mapping.at(0).addr().get();
        let mut ranges = Vec::new();
        ranges.push(0..size_of::<Header>());
        for local in 0..layout.locals {
            let probe = std::ptr::from_ref(region.probe(local)).addr() - base;
            ranges.push(probe..probe + 8);
            for channel in 0..layout.channels {
                for tag in 0..layout.tags {
                    let place = region.edge(local, Channel(channel as u16), tag as u8).unwrap();
                    let offset = |address: NonNull<u8>| address.addr().get() - base;
                    let (head, lines) = (offset(place.head.cast()), offset(place.lines.cast()));
                    ranges.push(head..head + size_of::<HeadLine>());
                    ranges.push(lines..lines + layout.lines() * size_of::<SlotLine>());
                    let payload = offset(place.payload);
                    let slots = offset(place.slots);
                    ranges.push(payload..payload + layout.lines() * layout.short_stride());
                    ranges.push(slots..slots + layout.slots * layout.stride());
                    assert_eq!((head % 128, lines % 64, payload % PAGE_BYTES), (0, 0, 0));
                }
            }
        }
        ranges
    }

    #[test]
    fn nothing_overlaps_and_all_lies_inside() {
        for (locals, channels, tags, slots, slot_bytes) in
            [(1, 1, 1, 1, 1), (3, 2, 2, 8, 4096), (5, 1, 3, 2, 1000), (600, 1, 1, 1, 64)]
        {
            let region = Region::of_layout(Layout { locals, channels, tags, slots, slot_bytes });
            let mut ranges = ranges(&region);
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(ranges.last().unwrap().end <= region.layout.bytes());
        }
    }

    #[test]
    fn a_slot_line_is_one_cache_line() {
        assert_eq!(size_of::<SlotLine>(), 64);
    }

    #[test]
    fn a_region_shows_its_nonce_and_layout() {
        let region = Region::for_tests(2);
        assert_eq!(region.check(&[1; 32]), Some(Ok(())));
        assert!(region.check(&[2; 32]).unwrap().unwrap_err().contains("nonce"));
    }

    #[test]
    fn an_edge_outside_the_layout_is_none() {
        let region = Region::for_tests(2);
        assert!(region.edge(2, Channel(0), 0).is_none());
        assert!(region.edge(0, Channel(1), 0).is_none());
        assert!(region.edge(0, Channel(0), 1).is_none());
    }
}
