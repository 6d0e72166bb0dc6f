//! Where the shared part of an edge lies: counters, sizes and slots, in device memory or pinned host memory.

use ccl_cuda::DeviceMemory;
use ccl_kernels::layout::{DeviceEdge, Direction};
use ccl_kernels::shape::Protocol;
use ccl_plan::{Channel, Rank};

/// How long the parts of an edge are. A *block* holds one edge: a line for the tail, a line for the head, the size of
/// each slot's payload, then the slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockShape {
    pub(super) slots: usize,
    /// Payload of a slot.
    pub(super) slot_bytes: usize,
}

impl BlockShape {
    pub(super) fn stride_bytes(self) -> usize {
        Protocol::Simple.stride_bytes(self.slot_bytes)
    }

    /// The shortest region.
    pub(super) const LEAST_BYTES: usize = 256;

    /// Of a whole block.
    pub(super) fn bytes(self) -> usize {
        self.slots_at() + self.slots * self.stride_bytes()
    }

    pub(super) fn slots_at(self) -> usize {
        SIZES_AT + (8 * self.slots).next_multiple_of(LINE_BYTES)
    }
}

/// Device memory of one rank in which all that it receives arrives from those that reach it directly, and in which
/// they say what they have consumed of its own messages. One block for each device rank of its host, channel and tag.
#[derive(Debug)]
pub(super) struct Region {
    memory: DeviceMemory,
}

/// The region of any rank as this rank sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionView {
    pub(super) address: u64,
    pub(super) shape: BlockShape,
    pub(super) channels: u16,
    pub(super) tags: u8,
}

impl Region {
    pub(super) fn new(memory: DeviceMemory) -> Region {
        Region { memory }
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }
}

impl RegionView {
    /// Bytes of a region for so many ranks.
    pub(super) fn bytes(&self, ranks: usize) -> usize {
        self.block(ranks, Channel(0), 0) as usize - self.address as usize
    }

    /// Where the block of the rank with this number among those of the host is.
    pub(super) fn block(&self, seat: usize, channel: Channel, tag: u8) -> u64 {
        let (channels, tags) = (usize::from(self.channels), usize::from(self.tags));
        let index = (seat * channels + channel.index()) * tags + usize::from(tag);
        self.address + (index * self.shape.bytes()) as u64
    }
}

/// One end of an edge as the kernel reads it: `data` is the block with tail, sizes and slots, `credit` that with the head.
pub(super) fn device_edge(
    shape: BlockShape,
    (data, credit): (u64, u64),
    (peer, channel, tag): (Rank, Channel, u8),
    direction: Direction,
) -> DeviceEdge {
    DeviceEdge {
        slots: data + shape.slots_at() as u64,
        tail: data + TAIL_AT as u64,
        head: credit + HEAD_AT as u64,
        sizes: data + SIZES_AT as u64,
        slot_bytes: shape.slot_bytes as u32,
        slot_count: shape.slots as u32,
        stride_bytes: shape.stride_bytes() as u32,
        protocol: Protocol::Simple as u32,
        peer: peer.0,
        channel: u32::from(channel.0),
        tag: u32::from(tag),
        direction: direction as u32,
        ..DeviceEdge::default()
    }
}

pub(super) const TAIL_AT: usize = 0;
pub(super) const HEAD_AT: usize = LINE_BYTES;
pub(super) const SIZES_AT: usize = 2 * LINE_BYTES;
const LINE_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_and_parts_do_not_overlap() {
        let shape = BlockShape { slots: 5, slot_bytes: 1000 };
        let view = RegionView { address: 1 << 20, shape, channels: 3, tags: 2 };
        assert_eq!((shape.slots_at(), shape.stride_bytes(), shape.bytes()), (384, 1024, 384 + 5 * 1024));
        assert_eq!(view.block(0, Channel(0), 1) - view.block(0, Channel(0), 0), shape.bytes() as u64);
        assert_eq!(view.block(1, Channel(0), 0) - view.address, 6 * shape.bytes() as u64);
        assert_eq!(view.bytes(2), 12 * shape.bytes());
        let at = (Rank(3), Channel(1), 1);
        let edge = device_edge(shape, (0x1000, 0x9000), at, Direction::Send);
        assert_eq!((edge.tail, edge.head, edge.sizes, edge.slots), (0x1000, 0x9080, 0x1100, 0x1180));
        assert_eq!((edge.peer, edge.channel, edge.tag, edge.direction), (3, 1, 1, 1));
    }
}
