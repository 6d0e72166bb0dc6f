//! How many channels calls may use, and how long the slots between devices are, where the user has not said.
//!
//! A channel is a block of threads, and a block moves a small part of what a device can. What several cost is multiprocessors, which
//! blocks of all ranks of the device must share, and slots.

/// Most channels of a communicator's calls. The same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Channels {
    pub(crate) collectives: u16,
    /// Of each message: blocks of a group's messages run side by side.
    pub(crate) messages: u16,
}

/// What all ranks know of their edges before they meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCut {
    /// Slots of an edge, and the payload of each, where some end is on the host.
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    /// Most payload of a slot between devices.
    near_bytes: usize,
    /// A program of this rank's may need all slots, also between devices.
    pub(super) needs_all_slots: bool,
    /// Channels, if the user has said how many.
    pub(crate) channels: Option<u16>,
}

impl Channels {
    /// So many for all calls.
    pub(crate) const fn all(channels: u16) -> Channels {
        Channels { collectives: channels, messages: channels }
    }

    /// Those of `n` ranks with devices that reach each other. Each has `room` multiprocessors, at least, and may take so many bytes
    /// for slots, of which a channel takes `each_bytes`.
    pub(super) fn between(n: u32, room: u32, (each_bytes, most_bytes): (usize, usize)) -> Channels {
        let blocks = room / ROOM_FOR;
        let slots = u32::try_from(most_bytes / each_bytes.max(1)).unwrap_or(u32::MAX);
        let collectives = power(blocks.min(slots).min(MOST_CHANNELS));
        Channels { collectives, messages: power(blocks / n.max(1)).min(collectives) }
    }

    /// Those of ranks with a whole device each that nobody has seen.
    pub(crate) fn assumed(n: u32) -> Channels {
        Channels::between(n, ASSUMED_ROOM, (1, usize::MAX))
    }
}

impl DeviceCut {
    /// Of settings on which all ranks agree, but for `needs_all_slots`.
    pub(crate) fn new(
        (slots, slot_bytes): (usize, usize),
        needs_all_slots: bool,
        chunk_bytes: usize,
        channels: Option<u16>,
    ) -> DeviceCut {
        let near_bytes = chunk_bytes.max(LEAST_SLOT_BYTES).next_multiple_of(64);
        DeviceCut { slots, slot_bytes, near_bytes, needs_all_slots, channels }
    }

    /// Slots between devices: half as many of twice the length, unless a program of some rank's needs all, and no longer ones
    /// than chunks are. Each costs a block of threads 4 µs beside what it holds (ADR 0097).
    pub(super) fn near(&self, some_need_all: bool) -> (usize, usize) {
        let slots = if some_need_all { self.slots } else { (self.slots / 2).max(2) };
        (slots, (self.slots * self.slot_bytes / slots / 64 * 64).min(self.near_bytes))
    }
}

/// The largest power of two that is not larger; 1 for none.
fn power(most: u32) -> u16 {
    1 << most.clamp(1, 1 << 15).ilog2()
}

/// Blocks of 22 GB/s, as chunks of 128 KiB make them, fill a link of 700 GB/s. NCCL takes 16 to 32 on such links.
const MOST_CHANNELS: u32 = 32;
/// A channel may have two blocks, where programs have two lanes, and as many again are for messages and the caller's kernels.
const ROOM_FOR: u32 = 4;
/// For slots of all ranks that share a device, unless one channel takes more.
pub(super) const MOST_BYTES: usize = 512 << 20;
/// What a chunk is where nobody says.
const LEAST_SLOT_BYTES: usize = 32 << 10;
/// Multiprocessors of an H100.
const ASSUMED_ROOM: u32 = 132;

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 ranks' slots of a channel under all protocols, as settings make them where nothing is set.
    const EACH: usize = 3 * 8 * (905 << 10);

    #[test]
    fn channels_are_those_that_fit() {
        let golden = [
            // A device for each: H100, A100, L4, and one that holds less than four blocks.
            (8, 132, EACH, 16, 4),
            (2, 132, EACH, 16, 16),
            (2, 132, EACH / 4, 32, 16),
            (8, 108, EACH, 16, 2),
            (8, 58, EACH, 8, 1),
            (2, 3, EACH, 1, 1),
            // Several on one.
            (2, 132 / 2, EACH / 4, 16, 8),
            (8, 132 / 8, EACH, 4, 1),
            (5, 0, EACH, 1, 1),
            // Slots that take more.
            (8, 132, 4 * EACH, 4, 4),
            (8, 132, MOST_BYTES + 1, 1, 1),
            (72, 132, EACH, 16, 1),
        ];
        for (n, room, each_bytes, collectives, messages) in golden {
            let found = Channels::between(n, room, (each_bytes, MOST_BYTES));
            assert_eq!(found, Channels { collectives, messages }, "{n} ranks, {room}, {each_bytes} bytes");
            assert!(u32::from(messages) * 2 * n <= room.max(2 * n), "messages with all ranks fit");
        }
        assert_eq!(Channels::assumed(8), Channels { collectives: 32, messages: 4 });
    }

    #[test]
    fn slots_between_devices_hold_a_chunk() {
        let near = |cut, needs_all, chunk| DeviceCut::new(cut, false, chunk, None).near(needs_all);
        assert_eq!(near((8, 64 << 10), false, 32 << 10), (4, 32 << 10));
        assert_eq!(near((8, 64 << 10), true, 128 << 10), (8, 64 << 10));
        assert_eq!(near((8, 64 << 10), false, 48 << 10), (4, 48 << 10));
        assert_eq!(near((8, 64 << 10), false, 1 << 20), (4, 128 << 10));
        assert_eq!(near((2, 4096), false, 64), (2, 4096));
    }
}
