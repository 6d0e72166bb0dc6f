//! A connected fabric's parts, and how it makes edges of them.

use std::collections::HashMap;
use std::sync::Arc;

use ccl_plan::{Channel, Rank};

use super::checksum::{ChecksumReceive, ChecksumSend, TRAILER_BYTES};
use super::edge::{EdgeName, ReceiveKind, SendKind};
use super::fault;
use super::host;
use super::net::{NetTurns, Network, Peers, SlotShape, Vigil};
use super::shm::{
    Ends, MOST_EXCHANGED, MOST_EXCHANGING_RANKS, MemoryReceive, MemorySend, Neighbours, Pool, Regions, Reuse,
    Turns, Way,
};
use super::trace::{TraceReceive, TraceSend};
use super::{
    Bell, Checksum, EdgeKey, PathKind, ReceiveEdge, Relay, SendEdge, TransportInfo, TransportSettings,
    WaitSettings,
};
use crate::error::Result;
use crate::memory::Windows;

pub(super) struct Connected {
    pub(super) neighbours: Neighbours,
    /// The regions of all ranks, where slots are shared; else none.
    pub(super) regions: Regions,
    /// Why ranks cannot map each other's memory, if so; the same on all ranks.
    pub(super) not_mapped: Option<String>,
    /// Memory that all ranks registered.
    pub(super) windows: Windows,
    /// Whether this host has few ranks, and a core for each.
    pub(super) roomy: bool,
    /// Whether this host has more ranks than cores.
    pub(super) shares_cores: bool,
    /// Whether it has more than few such ranks, and slots as they are if nobody has said anything.
    pub(super) sparing: bool,
    /// This rank's slots of pairs whose slots go from hand to hand.
    pub(super) pools: HashMap<EdgeKey, Arc<Pool>>,
    /// What the last-level cache holds.
    pub(super) cache_bytes: usize,
    /// How each rank is reached.
    pub(super) kinds: Vec<PathKind>,
    /// Why long messages in memory are copied, if they are.
    pub(super) not_directly: Option<String>,
    /// Whether long messages over the network are sent from user memory.
    pub(super) lends_to_network: bool,
    pub(super) bell: Bell,
    /// What whoever sleeps on the bell watches, if that can be told of all peers.
    pub(super) vigil: Option<Arc<Vigil>>,
    pub(super) wait: WaitSettings,
    /// Ranks of this host for each core, if that comes out even; else 0.
    pub(super) ranks_of_a_core: usize,
    /// The order in which ranks of a core take turns.
    pub(super) turns: Turns,
    /// The same where their messages come over the network.
    pub(super) net_turns: NetTurns,
    pub(super) relay: Arc<dyn Relay>,
    pub(super) infos: Vec<TransportInfo>,
    /// Started when the first edge needs it.
    pub(super) network: Option<Network>,
}

impl Connected {
    /// The edge to a peer, with what the settings put around it.
    pub(super) fn sender(
        &mut self,
        settings: &TransportSettings,
        me: Rank,
        key: EdgeKey,
    ) -> Result<SendEdge> {
        let EdgeKey { peer, channel, tag } = key;
        let kind = match self.neighbours.reachable(peer) {
            Some((local, region)) => {
                let ends = Ends { sender: self.neighbours.me(), receiver: local, channel, tag };
                let regions = (Arc::clone(self.neighbours.own()), Arc::clone(region));
                let consumer = self.neighbours.memory(peer);
                SendKind::Memory(MemorySend::new(ends, regions, consumer, self.way(me, local, key))?)
            }
            None => {
                let shape = self.net_shape_to(settings, me, peer);
                SendKind::Net(Box::new(self.network(settings, me)?.sender(key, shape)?))
            }
        };
        let name = self.name(me, peer, key, channel);
        let mut edge = fault::around_send(kind.into(), name, &settings.faults);
        if settings.checksum == Checksum::Crc32 {
            edge = SendEdge::around(ChecksumSend::new(edge));
        }
        Ok(match &settings.trace {
            Some(log) => SendEdge::around(TraceSend { inner: edge, key, log: Arc::clone(log) }),
            None => edge,
        })
    }

    /// The edge from a peer, with what the settings put around it.
    pub(super) fn receiver(
        &mut self,
        settings: &TransportSettings,
        me: Rank,
        key: EdgeKey,
    ) -> Result<ReceiveEdge> {
        let EdgeKey { peer, channel, tag } = key;
        let kind = match self.neighbours.reachable(peer) {
            Some((local, region)) => {
                let ends = Ends { sender: local, receiver: self.neighbours.me(), channel, tag };
                let own = (Arc::clone(self.neighbours.own()), Arc::clone(&self.regions));
                let sender = (Arc::clone(region), self.neighbours.memory(peer));
                ReceiveKind::Memory(MemoryReceive::new(ends, own, sender, self.way(me, local, key))?)
            }
            None => {
                let shape = self.net_shape_to(settings, me, peer);
                ReceiveKind::Net(Box::new(self.network(settings, me)?.receiver(key, shape)?))
            }
        };
        let name = self.name(peer, me, key, channel);
        let mut edge = fault::around_receive(kind.into(), name, &settings.faults);
        if settings.checksum == Checksum::Crc32 {
            edge = ReceiveEdge::around(ChecksumReceive::new(edge, name));
        }
        Ok(match &settings.trace {
            Some(log) => ReceiveEdge::around(TraceReceive { inner: edge, key, log: Arc::clone(log) }),
            None => edge,
        })
    }

    /// How the edges between rank `me` and a peer, which is at this place of the host, use their slots.
    fn way(&mut self, me: Rank, local: usize, key: EdgeKey) -> Way {
        let (own, layout) = (self.neighbours.me(), self.neighbours.own().layout());
        let reuse = if self.roomy { Reuse::InTurn } else { Reuse::AsItGoes };
        let exchanged = (self.roomy || self.is_apart(me, key.peer)) && layout.slots <= MOST_EXCHANGED;
        let pool = (exchanged && local != own).then(|| {
            let new = || Arc::new(Pool::of_rank(layout, (own, local), reuse));
            Arc::clone(self.pools.entry(key).or_insert_with(new))
        });
        Way { roomy: self.roomy, sparing: self.sparing, pool }
    }

    /// Whether two ranks of a host whose ranks share cores have none in common. The same seen from both.
    fn is_apart(&self, me: Rank, peer: Rank) -> bool {
        let few = self.neighbours.own().layout().locals <= MOST_EXCHANGING_RANKS;
        let [own, theirs] = [me, peer].map(|rank| &self.infos[rank.index()].process.cpus);
        few && self.shares_cores && host::are_apart(own, theirs)
    }

    /// Whether a peer's edges go through the network.
    pub(super) fn is_networked(&self, peer: Rank) -> bool {
        self.kinds[peer.index()] == PathKind::Net
    }

    /// The slots of a network edge to a peer: within a host whose ranks have a core each so few that caches keep them
    /// (ADR 0070).
    fn net_shape_to(&self, settings: &TransportSettings, me: Rank, peer: Rank) -> SlotShape {
        let shape = net_shape(settings);
        let is_near = self.infos[peer.index()].is_on_host_of(&self.infos[me.index()]) && !self.wait.crowded();
        SlotShape { used: if is_near { settings.near_slots.min(shape.slots) } else { shape.slots }, ..shape }
    }

    fn name(&self, from: Rank, to: Rank, key: EdgeKey, channel: Channel) -> EdgeName {
        EdgeName { from, to, channel, tag: key.tag, path: self.kinds[key.peer.index()] }
    }

    pub(super) fn network(&mut self, settings: &TransportSettings, me: Rank) -> Result<&mut Network> {
        let network = match self.network.take() {
            Some(network) => network,
            None => {
                let (relay, peers) = (Arc::clone(&self.relay), Peers::of(&self.infos));
                let net = (&settings.net, None);
                let network = Network::start(net, net_shape(settings), me, settings.secret, relay, peers)?;
                network.watched_by(self.vigil.clone())
            }
        };
        Ok(self.network.insert(network))
    }
}

/// The slots of memory edges beneath all wrappers.
pub(super) fn inner_shape(settings: &TransportSettings) -> SlotShape {
    shape(settings, settings.slot_bytes)
}

/// The slots of network edges beneath all wrappers.
pub(super) fn net_shape(settings: &TransportSettings) -> SlotShape {
    shape(settings, settings.net_slot_bytes)
}

fn shape(settings: &TransportSettings, slot_bytes: usize) -> SlotShape {
    let trailer_bytes = match settings.checksum {
        Checksum::Off => 0,
        Checksum::Crc32 => TRAILER_BYTES,
    };
    SlotShape { slots: settings.slots, used: settings.slots, slot_bytes: slot_bytes + trailer_bytes }
}
