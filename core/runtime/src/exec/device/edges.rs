//! The edges that one rank's kernels use: made when a program first needs them, never moved.

use std::collections::HashSet;

use ccl_cuda::{DeviceMemory, HostCaching, PinnedMemory, Stream};
use ccl_kernels::layout::{DeviceEdge, Direction, WINDOW_SLOTS, bytes_of, edge_index};
use ccl_kernels::shape::{EdgeUse, Protocol};
use ccl_plan::{Channel, Rank};

use super::peers::{Link, Peers};
use super::pump::{Block, Pump};
use super::region::{RegionView, device_edge};
use super::switch::Copies;
use super::{Opened, failed};
use crate::error::Result;
use crate::exec::host::EDGE_TAGS;
use crate::transport::Fabric;

/// What edges are for: programs of messages name them as those of collectives do, and get others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Purpose {
    Collectives,
    Messages,
}

impl Purpose {
    /// What is added to the tags that programs name.
    fn first_tag(self) -> u8 {
        match self {
            Purpose::Collectives => 0,
            Purpose::Messages => EDGE_TAGS - 1,
        }
    }

    /// How many tags programs name.
    pub(super) fn tags(self) -> u8 {
        match self {
            Purpose::Collectives => EDGE_TAGS - 1,
            Purpose::Messages => 1,
        }
    }
}

/// The tables of edges, in device memory, and the pumps of those that go through the host. Each edge is there for every protocol,
/// one after the other; through the host there is only simple.
pub(super) struct Edges {
    me: Rank,
    n: u32,
    pub(super) view: RegionView,
    table: DeviceMemory,
    /// By [`Purpose`].
    indexes: [DeviceMemory; 2],
    /// Where windows that are lent begin: see [`Leases`](super::leases::Leases).
    pub(super) windows: DeviceMemory,
    /// Where other ranks' shared slots are here, if there are any.
    pub(super) copies: Option<Copies>,
    known: HashSet<(Purpose, usize)>,
    used: u32,
    pub(super) pumps: Vec<Pump>,
}

impl Edges {
    pub(super) fn new(
        (me, n): (Rank, u32),
        view: RegionView,
        opened: &Opened,
        stream: &Stream,
    ) -> Result<Edges> {
        let ends = n as usize * usize::from(view.channels) * 2;
        let table = opened.memory(ends * usize::from(EDGE_TAGS) * EACH_BYTES)?;
        let index = |purpose: Purpose| {
            let memory = opened.memory(ends * usize::from(purpose.tags()) * size_of::<u32>())?;
            memory.fill(0xff, stream).map_err(failed)?;
            Ok(memory)
        };
        let indexes = [index(Purpose::Collectives)?, index(Purpose::Messages)?];
        let windows = opened.memory(n as usize * WINDOW_SLOTS * size_of::<u64>())?;
        windows.fill(0, stream).map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        let known = HashSet::new();
        Ok(Edges { me, n, view, table, indexes, windows, copies: None, known, used: 0, pumps: Vec::new() })
    }

    /// All device memory of these tables.
    pub(super) fn memory(&self) -> impl Iterator<Item = &DeviceMemory> {
        self.indexes.iter().chain([&self.table, &self.windows])
    }

    /// The edges of a protocol: those that the indexes number.
    pub(super) fn table_address(&self, protocol: Protocol) -> u64 {
        self.table.address() + (protocol as usize * size_of::<DeviceEdge>()) as u64
    }

    pub(super) fn index_address(&self, purpose: Purpose) -> u64 {
        self.indexes[purpose as usize].address()
    }

    /// Makes the edge if it is not there. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver, or of the fabric for edges through the host.
    pub(super) fn ensure(
        &mut self,
        (purpose, of, channel): (Purpose, EdgeUse, Channel),
        peers: &Peers,
        (opened, stream): (&Opened, &Stream),
        fabric: &mut Fabric,
    ) -> Result<()> {
        let shape = (u32::from(self.view.channels), u32::from(purpose.tags()));
        let index = edge_index(shape, of.peer, channel, of.tag, of.direction);
        if of.peer.0 >= self.n || !self.known.insert((purpose, index)) {
            return Ok(());
        }
        let at = (of.peer, channel, of.tag + purpose.first_tag());
        let (place, number) = (self.used as usize * EACH_BYTES, self.used * Protocol::ALL.len() as u32);
        let mut ends = Vec::with_capacity(EACH_BYTES);
        for protocol in self.view.protocols() {
            ends.resize(protocol as usize * size_of::<DeviceEdge>(), 0);
            let (blocks, lends) = match &peers.links[of.peer.index()] {
                Link::Direct { address, borrows, .. } => {
                    let by_address = if *borrows { DeviceEdge::BY_ADDRESS } else { 0 };
                    let blocks = self.direct(*address, peers, (protocol, at), of.direction);
                    (blocks, by_address | DeviceEdge::BY_WINDOW)
                }
                Link::Proxied(_) if protocol == Protocol::Simple => {
                    (self.proxied(at, of.direction, opened, fabric)?, 0)
                }
                Link::Proxied(_) => continue,
            };
            let mut edge = device_edge(self.view.shape(protocol), blocks, at, of.direction);
            let words = edge.lent;
            if lends == 0 {
                edge.lent = 0;
            }
            if of.direction == Direction::Send {
                edge.lends = lends;
            }
            if let (Some(copies), Protocol::Simple, Purpose::Collectives) = (self.copies, protocol, purpose) {
                match of.direction {
                    Direction::Send => edge.shared = words,
                    Direction::Receive => (edge.lent, edge.shared) = (words, copies.of((of.peer, channel))),
                }
            }
            edge.tag = u32::from(of.tag);
            edge.others = self.table.address() + place as u64;
            ends.extend_from_slice(bytes_of(&edge));
        }
        ends.resize(EACH_BYTES, 0);
        self.used += 1;
        self.table.write(place, &ends, stream).map_err(failed)?;
        let memory = &self.indexes[purpose as usize];
        memory.write(index * size_of::<u32>(), &number.to_le_bytes(), stream).map_err(failed)
    }

    /// The blocks with the slots and with the head of an edge whose ends reach each other: slots are the receiver's,
    /// the head is the sender's.
    fn direct(
        &self,
        theirs: u64,
        peers: &Peers,
        (protocol, (peer, channel, tag)): (Protocol, (Rank, Channel, u8)),
        direction: Direction,
    ) -> (u64, u64) {
        let own = RegionView { address: peers.own.address(), ..self.view };
        let theirs = RegionView { address: theirs, ..self.view };
        let here = own.block(protocol, (peers.seats[peer.index()], channel, tag));
        let there = theirs.block(protocol, (peers.seats[self.me.index()], channel, tag));
        match direction {
            Direction::Send => (there, here),
            Direction::Receive => (here, there),
        }
    }

    /// A block in pinned memory and the pump that serves it.
    fn proxied(
        &mut self,
        (peer, channel, tag): (Rank, Channel, u8),
        direction: Direction,
        opened: &Opened,
        fabric: &mut Fabric,
    ) -> Result<(u64, u64)> {
        let edge = match direction {
            Direction::Send => fabric.send_edge(peer, channel, tag)?,
            Direction::Receive => fabric.receive_edge(peer, channel, tag)?,
        };
        let shape = self.view.shape(Protocol::Simple);
        let memory =
            PinnedMemory::new(&opened.context, shape.bytes(), HostCaching::Cached).map_err(failed)?;
        let block = Block::new(memory, shape)?;
        let address = block.device_address();
        self.pumps.push(Pump::new(block, edge, peer, direction));
        Ok((address, address))
    }
}

/// The records of one end of an edge.
const EACH_BYTES: usize = Protocol::ALL.len() * size_of::<DeviceEdge>();
