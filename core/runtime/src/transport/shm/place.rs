//! Where everything of one edge lies in this process.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ccl_plan::Channel;

use super::exchange::{Pool, SlotId, Spot};
use super::layout::{EdgePlace, HeadLine, Region, SLOT_ALIGNMENT, SlotLine};
use crate::error::{Error, Result};
use crate::memory::lines::ask_for_all;

/// The two ranks of an edge, by their places among the ranks of the host; the edge lies in the receiver's region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) sender: usize,
    pub(crate) receiver: usize,
    pub(crate) channel: Channel,
    pub(crate) tag: u8,
}

/// How the edges between two ranks use their slots; both ends have it the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    /// The host has few ranks, and a core for each.
    pub(crate) roomy: bool,
    /// It has more than few ranks, which share cores: few long messages are to be under way.
    pub(crate) sparing: bool,
    /// This rank's part of the slots, if they go from hand to hand.
    pub(crate) pool: Option<Arc<Pool>>,
}

/// Addresses of one edge. Valid while the regions of both ends are kept.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) head: NonNull<HeadLine>,
    lines: NonNull<SlotLine>,
    pub(super) lines_count: usize,
    /// The first line's short payload.
    payload: NonNull<u8>,
    /// Most bytes of one.
    pub(super) short_bytes: usize,
    short_stride: usize,
    /// The slots in the region of the rank with the lower place, and in that of the other.
    slots: [NonNull<u8>; 2],
    /// Which of them messages may be in.
    usable: [bool; 2],
    /// The ones not touched yet.
    untouched: [bool; 2],
    pub(super) slots_count: usize,
    pub(super) slot_bytes: usize,
    pub(super) slot_stride: usize,
}

impl Ends {
    /// Which of the two regions is the receiver's: 1 if its place is the higher one.
    pub(super) fn receivers_region(&self) -> usize {
        usize::from(self.receiver > self.sender)
    }

    /// The regions of the sender and the receiver, by number.
    pub(super) fn in_order<'a>(
        &self,
        sender: &'a Arc<Region>,
        receiver: &'a Arc<Region>,
    ) -> [&'a Arc<Region>; 2] {
        if self.receivers_region() == 1 { [sender, receiver] } else { [receiver, sender] }
    }

    /// Whose region is the one of that number.
    pub(super) fn owner(&self, region: usize) -> usize {
        if region == self.receivers_region() { self.receiver } else { self.sender }
    }
}

impl Place {
    /// Of an edge whose slots go from hand to hand if `exchanged`, with the regions of its sender and its receiver. `roomy`: the host has
    /// few ranks, and a core for each.
    pub(super) fn find(
        ends: Ends,
        (sender, receiver): (&Region, &Region),
        exchanged: bool,
        roomy: bool,
    ) -> Result<Place> {
        let Ends { channel, tag, .. } = ends;
        let layout = receiver.layout();
        let place_of = |region: &Region, source: usize| {
            region.edge(source, channel, tag).ok_or_else(|| {
                Error::bug(format!("edge {source}/{}/{tag} lies outside the layout {layout:?}", channel.0))
            })
        };
        let EdgePlace { head, lines, payload, slots } = place_of(receiver, ends.sender)?;
        let receivers = ends.receivers_region();
        let mut both = [slots; 2];
        if exchanged {
            both[1 - receivers] = place_of(sender, ends.receiver)?.slots;
        }
        let (slots_count, slot_stride) = match exchanged {
            true => layout.exchanged(),
            false => (layout.slots, layout.stride()),
        };
        let usable = [0, 1].map(|region| exchanged || region == receivers);
        Ok(Place {
            head,
            lines,
            lines_count: layout.lines(),
            payload,
            short_bytes: layout.short_bytes_of(roomy),
            short_stride: layout.short_stride(),
            slots: both,
            usable,
            untouched: if roomy { usable } else { [false; 2] },
            slots_count,
            slot_bytes: layout.slot_bytes,
            slot_stride,
        })
    }

    #[inline]
    pub(super) fn line(&self, index: usize) -> &SlotLine {
        debug_assert!(index < self.lines_count);
        // SAFETY: the layout has `lines_count` lines here and cursors stay below it; everything in a
        // line is an atomic or in a cell.
        unsafe { self.lines.add(index).as_ref() }
    }

    #[inline]
    pub(super) fn in_line(&self, index: usize) -> NonNull<u8> {
        debug_assert!(index < self.lines_count);
        // SAFETY: the layout has `lines_count` lines here and cursors stay below it; the payload is a
        // field of the line.
        unsafe { self.lines.add(index).cast::<u8>().add(std::mem::offset_of!(SlotLine, payload)) }
    }

    /// What the producer says in a line of its help with what it lends there.
    pub(super) fn helped(&self, line: usize) -> &AtomicU64 {
        let word = self.in_line(line).cast::<AtomicU64>();
        // SAFETY: the payload has six words on 8-byte boundaries; lines of lent payloads have two others, and this one is only used as an
        // atomic while they speak of one.
        unsafe { word.add(HELPED).as_ref() }
    }

    #[inline]
    pub(super) fn short(&self, line: usize) -> NonNull<u8> {
        debug_assert!(line < self.lines_count);
        // SAFETY: the layout has a short payload for each of `lines_count` lines here.
        unsafe { self.payload.add(line * self.short_stride) }
    }

    /// Asks the processor for a short payload that is not there yet: it then comes when the producer has written it, and not
    /// only when its line has come and said so (ADR 0058).
    #[inline]
    pub(super) fn ask_for_short(&self, line: usize, bytes: usize) {
        ask_for_all(self.short(line).as_ptr(), bytes.min(self.short_bytes));
    }

    /// Where a spot for `bytes` bytes is; `None` outside of the slots that messages may be in.
    pub(super) fn checked(&self, spot: Spot, bytes: usize) -> Option<NonNull<u8>> {
        let inside = spot.offset.checked_add(bytes).is_some_and(|end| end <= self.slot_stride);
        let known = spot.slot.index() < self.slots_count && self.usable[spot.slot.region()];
        (known && inside && spot.offset.is_multiple_of(SLOT_ALIGNMENT)).then(|| self.slot(spot))
    }

    /// Where a spot is.
    #[inline]
    pub(super) fn slot(&self, spot: Spot) -> NonNull<u8> {
        let Spot { slot, offset } = spot;
        debug_assert!(slot.index() < self.slots_count && offset <= self.slot_stride);
        // SAFETY: the layout has `slots_count` slots of `slot_stride` bytes in either region.
        unsafe { self.slots[slot.region()].add(slot.index() * self.slot_stride + offset) }
    }

    /// Touches all slots in the region that `slot` lies in before the first of them is used; `regions` by number.
    #[inline]
    pub(super) fn touch(&mut self, slot: SlotId, regions: [&Arc<Region>; 2]) {
        if std::mem::take(&mut self.untouched[slot.region()]) {
            regions[slot.region()].touch(self.slots[slot.region()]);
        }
    }
}

// SAFETY: the addresses lie in shared mappings that the end keeps alive; a thread that has the end
// has its side of the edge to itself, and the other side is met through atomics.
unsafe impl Send for Place {}

/// The word behind those that say where a payload is.
const HELPED: usize = 2;
