//! Where the shared part of an edge lies: counters, sizes, lent addresses and slots, in device memory or pinned host memory.

use ccl_cuda::DeviceMemory;
use ccl_kernels::layout::{DeviceEdge, Direction};
use ccl_kernels::shape::Protocol;
use ccl_plan::{Channel, Rank};

use super::protocol::Lines;
use crate::exec::host::EDGE_TAGS;

/// How long the parts of an edge are. A *block* holds one edge under one protocol: a line for the tail, a line for the head,
/// the size of each slot's payload, where each lies that was lent, then the slots. What one protocol leaves in slots would look like
/// flags to another, so each has blocks of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockShape {
    pub(super) protocol: Protocol,
    pub(super) slots: usize,
    /// Payload of a slot.
    pub(super) slot_bytes: usize,
}

impl BlockShape {
    pub(super) fn stride_bytes(self) -> usize {
        self.protocol.stride_bytes(self.slot_bytes)
    }

    /// The shortest region.
    pub(super) const LEAST_BYTES: usize = 256;

    /// Of a whole block.
    pub(super) fn bytes(self) -> usize {
        self.slots_at() + self.slots * self.stride_bytes()
    }

    pub(super) fn slots_at(self) -> usize {
        SIZES_AT + (16 * self.slots).next_multiple_of(LINE_BYTES)
    }

    /// Where the slots' payloads lie that were lent.
    fn lent_at(self) -> usize {
        SIZES_AT + 8 * self.slots
    }
}

/// Device memory of one rank in which all that it receives arrives from those that reach it directly, and in which
/// they say what they have consumed of its own messages. One block for each device rank of its host, channel, tag and protocol.
#[derive(Debug)]
pub(super) struct Region {
    memory: DeviceMemory,
}

/// The region of any rank as this rank sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionView {
    pub(super) address: u64,
    pub(super) slots: usize,
    /// Payload of a slot under simple, and at most so much under the others.
    pub(super) slot_bytes: usize,
    pub(super) channels: u16,
    pub(super) tags: u8,
    /// Which protocols there are blocks for; always for simple.
    pub(super) has: [bool; 3],
    /// Behind all blocks.
    pub(super) inbox_bytes: usize,
    /// Behind the inbox.
    pub(super) mail_bytes: usize,
}

impl Region {
    pub(super) fn new(memory: DeviceMemory) -> Region {
        Region { memory }
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl RegionView {
    /// Of slots, and payload of each, at no address yet, without inbox and mail.
    pub(super) fn of((slots, slot_bytes): (usize, usize), channels: u16, has: [bool; 3]) -> RegionView {
        let (address, tags, inbox_bytes, mail_bytes) = (0, EDGE_TAGS, 0, 0);
        RegionView { address, slots, slot_bytes, channels, tags, has, inbox_bytes, mail_bytes }
    }

    /// Bytes of a region for so many ranks.
    pub(super) fn bytes(&self, ranks: usize) -> usize {
        self.mail(ranks) as usize - self.address as usize + self.mail_bytes
    }

    /// Where lines arrive in a region for so many ranks that belong to no edge.
    pub(super) fn inbox(&self, ranks: usize) -> u64 {
        self.block(Protocol::Simple, (ranks, Channel(0), 0))
    }

    /// Where mail arrives in a region for so many ranks.
    pub(super) fn mail(&self, ranks: usize) -> u64 {
        self.inbox(ranks) + self.inbox_bytes.next_multiple_of(MAIL_ALIGNMENT) as u64
    }

    /// The blocks of a protocol.
    pub(super) fn shape(&self, protocol: Protocol) -> BlockShape {
        let slot_bytes = match protocol {
            Protocol::Simple => self.slot_bytes,
            Protocol::Ll | Protocol::Ll128 => self.slot_bytes.min(Lines::SLOT_BYTES),
        };
        BlockShape { protocol, slots: self.slots, slot_bytes }
    }

    /// The protocols that there are blocks for.
    pub(super) fn protocols(self) -> impl Iterator<Item = Protocol> {
        let has = self.has;
        Protocol::ALL.into_iter().filter(move |protocol| has[*protocol as usize])
    }

    /// Where the block of the rank with this number among those of the host is.
    pub(super) fn block(&self, protocol: Protocol, (seat, channel, tag): (usize, Channel, u8)) -> u64 {
        let (channels, tags) = (usize::from(self.channels), usize::from(self.tags));
        let index = (seat * channels + channel.index()) * tags + usize::from(tag);
        let bytes = |protocol: Protocol| self.shape(protocol).bytes();
        let before: usize = self.protocols().take_while(|other| *other != protocol).map(bytes).sum();
        self.address + (index * self.protocols().map(bytes).sum::<usize>() + before) as u64
    }
}

/// One end of an edge as the kernel reads it: `data` is the block with tail, sizes and slots, `credit` that with the head.
pub(super) fn device_edge(
    shape: BlockShape,
    (data, credit): (u64, u64),
    (peer, channel, tag): (Rank, Channel, u8),
    direction: Direction,
) -> DeviceEdge {
    let is_simple = shape.protocol == Protocol::Simple;
    DeviceEdge {
        slots: data + shape.slots_at() as u64,
        tail: data + TAIL_AT as u64,
        head: credit + HEAD_AT as u64,
        // Lines say themselves whose they are and that they are there.
        sizes: if is_simple { data + SIZES_AT as u64 } else { 0 },
        lent: if is_simple { data + shape.lent_at() as u64 } else { 0 },
        slot_bytes: shape.slot_bytes as u32,
        slot_count: shape.slots as u32,
        stride_bytes: shape.stride_bytes() as u32,
        protocol: shape.protocol as u32,
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
const MAIL_ALIGNMENT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_and_parts_do_not_overlap() {
        let has = [true, false, true];
        let view = RegionView {
            address: 1 << 20,
            slots: 5,
            slot_bytes: 1000,
            channels: 3,
            tags: 2,
            has,
            inbox_bytes: 0,
            mail_bytes: 0,
        };
        let (simple, ll128) = (view.shape(Protocol::Simple), view.shape(Protocol::Ll128));
        assert_eq!((simple.slots_at(), simple.stride_bytes(), simple.bytes()), (384, 1024, 384 + 5 * 1024));
        assert_eq!((ll128.stride_bytes(), ll128.bytes()), (1152, 384 + 5 * 1152));
        let both = (simple.bytes() + ll128.bytes()) as u64;
        let at = |protocol, seat, tag| view.block(protocol, (seat, Channel(0), tag)) - view.address;
        assert_eq!(at(Protocol::Simple, 0, 1), both);
        assert_eq!(at(Protocol::Ll128, 0, 1), both + simple.bytes() as u64);
        assert_eq!(at(Protocol::Simple, 1, 0), 6 * both);
        assert_eq!(view.bytes(2) as u64, 12 * both);
        let longer = RegionView { inbox_bytes: 64, ..view };
        assert_eq!((longer.inbox(2) - longer.address, longer.bytes(2) as u64), (12 * both, 12 * both + 64));
        let both_more = RegionView { inbox_bytes: 96, mail_bytes: 640, ..view };
        assert_eq!(both_more.mail(2) - both_more.inbox(2), 128, "mail begins on 64 bytes");
        assert_eq!(both_more.bytes(2) as u64, 12 * both + 128 + 640);
        let at = (Rank(3), Channel(1), 1);
        let edge = device_edge(simple, (0x1000, 0x9000), at, Direction::Send);
        assert_eq!((edge.tail, edge.head, edge.sizes, edge.slots), (0x1000, 0x9080, 0x1100, 0x1180));
        assert_eq!(edge.lent, 0x1128);
        assert_eq!((edge.peer, edge.channel, edge.tag, edge.direction), (3, 1, 1, 1));
        let edge = device_edge(ll128, (0x1000, 0x9000), at, Direction::Send);
        assert_eq!(
            (edge.slots, edge.sizes, edge.lent, edge.protocol),
            (0x1180, 0, 0, Protocol::Ll128 as u32)
        );
    }
}
