//! One rank's connections to all others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ccl_plan::{Channel, Rank};
use ccl_plugin_host::NetPlugin;

use super::connected::Connected;
use super::net::{NetTurns, Network, Peers, SlotShape, sleep_on};
use super::shm::{FEW_RANKS, LONGEST_SLEEP, Layout, Lookout, Neighbours, Own, Presence, Regions, Turns};
use super::{Bell, EdgeKey, Path, PathKind, ReceiveEdge, Relay, SendEdge, TransportInfo};
use super::{SharedMemory, TransportSettings, WaitSettings, agree, host};
use crate::config::NameFilter;
use crate::discover::cache;
use crate::error::{Error, Result};
use crate::memory::fork;
use crate::memory::{Footprint, Ledger, Mailbox, MemoryFile, Windows};
use crate::observe::profiler::Emitter;

/// One rank's connections. Used by one thread at a time; dropping it never blocks.
pub struct Fabric {
    pub(super) settings: TransportSettings,
    pub(super) me: Rank,
    n: u32,
    pub(super) info: TransportInfo,
    /// Until connected.
    opening: Option<Opening>,
    /// Once connected.
    pub(super) connected: Option<Connected>,
    senders: Vec<SendEdge>,
    receivers: Vec<ReceiveEdge>,
    /// Those that have requests to move along.
    net_senders: Vec<usize>,
    net_receivers: Vec<usize>,
    /// For each peer, channel and tag, the index of its edge, or [`NO_EDGE`].
    sender_of: Vec<u32>,
    receiver_of: Vec<u32>,
    reads_directly: bool,
    /// Slots of an edge in memory, and most payload bytes of each.
    memory_slots: (usize, usize),
}

/// An edge's index within its fabric, on its side: senders and receivers count apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EdgeIndex(u32);

/// What a rank's edges, or all ranks' together, have to do with a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Networking {
    /// Some go through one.
    pub(crate) used: bool,
    /// Some go through memory.
    pub(crate) memory: bool,
    /// Those that go through a network lend on the way.
    pub(crate) lends: bool,
    /// The rank works on a device.
    pub(crate) device: bool,
}

impl Networking {
    /// As a vote, for the others.
    pub(crate) fn to_vote(self) -> Vec<u8> {
        [self.used, self.memory, self.lends, self.device].map(u8::from).to_vec()
    }

    /// What a rank has put behind its vote.
    pub(crate) fn beside(vote: &[u8]) -> &[u8] {
        vote.get(4..).unwrap_or_default()
    }

    /// Of all ranks together: what some use, and whether all lend.
    fn of_all(votes: &[Bytes]) -> Networking {
        let says = |vote: &[u8], question: usize| vote.get(question) == Some(&1);
        Networking {
            used: votes.iter().any(|vote| says(vote, 0)),
            memory: votes.iter().any(|vote| says(vote, 1)),
            lends: votes.iter().all(|vote| says(vote, 2)),
            device: votes.iter().any(|vote| says(vote, 3)),
        }
    }
}

/// What a rank that is not alone shares; nothing otherwise.
#[derive(Default)]
struct Opening {
    file: Option<MemoryFile>,
    mailbox: Option<Mailbox>,
}

impl Opening {
    fn new(settings: &TransportSettings) -> Result<Opening> {
        let file = MemoryFile::create(settings.backing)?;
        if !settings.mailboxes {
            return Ok(Opening { file: Some(file), mailbox: None });
        }
        let mailbox = Mailbox::bind()
            .inspect_err(|error| tracing::warn!(%error, "no Unix socket: descriptors go through /proc"))
            .ok();
        Ok(Opening { file: Some(file), mailbox })
    }
}

impl Fabric {
    /// Before joining: makes this rank's memory and its Unix socket, unless it is the only rank. The
    /// second value is what peers must know.
    ///
    /// Errors: settings that make no sense, no memory to be had.
    pub fn open(settings: &TransportSettings, me: Rank, n: u32) -> Result<(Fabric, TransportInfo)> {
        settings.check()?;
        fork::watch()?;
        let opening = if n == 1 { Opening::default() } else { Opening::new(settings)? };
        let info = host::describe(settings, opening.file.as_ref(), opening.mailbox.as_ref())?;
        let edges = n as usize * usize::from(settings.channels) * usize::from(settings.tags);
        let fabric = Fabric {
            settings: settings.clone(),
            me,
            n,
            info: info.clone(),
            opening: Some(opening),
            connected: None,
            senders: Vec::new(),
            receivers: Vec::new(),
            net_senders: Vec::new(),
            net_receivers: Vec::new(),
            sender_of: vec![NO_EDGE; edges],
            receiver_of: vec![NO_EDGE; edges],
            reads_directly: false,
            memory_slots: (settings.slots, settings.slot_bytes),
        };
        Ok((fabric, info))
    }

    /// Where all ranks are. Errors: not connected.
    pub(crate) fn infos(&self) -> Result<&[TransportInfo]> {
        Ok(&self.connected()?.infos)
    }

    /// This rank's number among those of its host. Errors: not connected.
    pub(crate) fn local_rank(&self) -> Result<u32> {
        let before = &self.infos()?[..self.me.index()];
        Ok(before.iter().filter(|info| info.is_on_host_of(&self.info)).count() as u32)
    }

    /// What peers must know of this rank.
    pub(crate) fn info(&self) -> &TransportInfo {
        &self.info
    }

    /// After joining, and before anything is known of the peers: the network by itself, on the device that
    /// `names` prefers, with slots of this shape.
    ///
    /// Errors: no network, no such device.
    pub(crate) fn network_apart(
        &self,
        relay: Arc<dyn Relay>,
        names: Option<&NameFilter>,
        shape: SlotShape,
    ) -> Result<Network> {
        let settings = &self.settings;
        Network::start((&settings.net, names), shape, self.me, settings.secret, relay, Peers::Unknown)
    }

    /// After joining: maps local peers' memory, agrees with all ranks on a path for each pair, and
    /// checks a probe on each. `infos` is by rank. Blocks until all ranks have called it; gives up
    /// on memory halfway to `deadline`, and on ranks when the relay does.
    ///
    /// Errors: the relay's; memory that is shared but does not show the peer's probe.
    pub fn connect(
        &mut self,
        relay: &Arc<dyn Relay>,
        infos: Vec<TransportInfo>,
        deadline: Instant,
    ) -> Result<()> {
        let opening = self.opening.take().ok_or_else(|| Error::bug("a fabric is connected once"))?;
        if infos.len() != self.n as usize {
            return Err(Error::bug(format!("expected the infos of {} ranks, found {}", self.n, infos.len())));
        }
        self.memory_slots = self.choose_slots(&infos);
        let mut neighbours = self.map_neighbours(&opening, &infos, deadline, &|| relay.check())?;
        let votes = relay.all_gather(agree::vote(&self.settings, &neighbours)?)?;
        let agree::Verdict { not_directly, not_mapped } = agree::heed(&mut neighbours, self.me, &votes)?;
        neighbours.check_probes()?;
        let kind = |(peer, info)| agree::kind(&self.info, info, (self.me, Rank(peer)), &neighbours);
        let kinds: Vec<_> = (0..).zip(&infos).map(kind).collect();
        let vigil = self.is_watchable(&kinds).then(Arc::default);
        let bell = Bell::of(Arc::clone(neighbours.own())).with_vigil(vigil.clone());
        let wait = self.wait_settings(&infos, &kinds);
        self.reads_directly = not_directly.is_none() && !kinds.contains(&PathKind::Net);
        let relay = Arc::clone(relay);
        let regions = if not_mapped.is_none() { neighbours.regions() } else { Regions::default() };
        self.connected = Some(Connected {
            neighbours,
            regions,
            not_mapped,
            windows: Windows::default(),
            roomy: self.is_roomy(&infos),
            shares_cores: self.shares_cores(&infos),
            sparing: self.is_sparing(&infos),
            pools: HashMap::new(),
            cache_bytes: cache::last_level_bytes().unwrap_or(USUAL_CACHE_BYTES),
            kinds,
            not_directly,
            lends_to_network: false,
            bell,
            vigil,
            wait,
            ranks_of_a_core: self.count_ranks_of_a_core(&infos),
            turns: Turns::default(),
            net_turns: NetTurns::new(self.is_first_of_host(&infos)),
            relay,
            infos,
            network: None,
        });
        if tracing::enabled!(tracing::Level::DEBUG) {
            for peer in (0..self.n).map(Rank) {
                tracing::debug!(rank = self.me.0, peer = peer.0, path = %self.path(peer)?, "path");
            }
        }
        Ok(())
    }

    /// The edge to a peer, made on first use.
    ///
    /// Errors: not connected; a channel, tag or peer outside the settings; no network where one is
    /// needed.
    pub fn send_edge(&mut self, peer: Rank, channel: Channel, tag: u8) -> Result<EdgeIndex> {
        let place = self.place(peer, channel, tag)?;
        if self.sender_of[place] == NO_EDGE {
            let (settings, me) = (&self.settings, self.me);
            let connected = self.connected.as_mut().ok_or_else(unconnected)?;
            let edge = connected.sender(settings, me, EdgeKey { peer, channel, tag })?;
            self.sender_of[place] = self.senders.len() as u32;
            if connected.is_networked(peer) {
                self.net_senders.push(self.senders.len());
            }
            self.senders.push(edge);
        }
        Ok(EdgeIndex(self.sender_of[place]))
    }

    /// The edge from a peer, made on first use. Errors as [`Fabric::send_edge`].
    pub fn receive_edge(&mut self, peer: Rank, channel: Channel, tag: u8) -> Result<EdgeIndex> {
        let place = self.place(peer, channel, tag)?;
        if self.receiver_of[place] == NO_EDGE {
            let (settings, me) = (&self.settings, self.me);
            let connected = self.connected.as_mut().ok_or_else(unconnected)?;
            let edge = connected.receiver(settings, me, EdgeKey { peer, channel, tag })?;
            self.receiver_of[place] = self.receivers.len() as u32;
            if connected.is_networked(peer) {
                self.net_receivers.push(self.receivers.len());
            }
            self.receivers.push(edge);
        }
        Ok(EdgeIndex(self.receiver_of[place]))
    }

    /// A sending edge. Panics if the index is another fabric's.
    #[inline]
    pub fn sender(&mut self, edge: EdgeIndex) -> &mut SendEdge {
        &mut self.senders[edge.0 as usize]
    }

    /// A receiving edge. Panics if the index is another fabric's.
    #[inline]
    pub fn receiver(&mut self, edge: EdgeIndex) -> &mut ReceiveEdge {
        &mut self.receivers[edge.0 as usize]
    }

    /// Hands a line of an edge over whose payload of `bytes` bytes is what was last posted on another edge, in a slot.
    /// Only where [`Fabric::shares_slots`], and [`SendEdge::may_share`] of the other edge.
    ///
    /// Errors: nothing acquired, not edges in memory.
    pub(crate) fn point(&mut self, edge: EdgeIndex, to: EdgeIndex, bytes: usize, tag: u32) -> Result<()> {
        let location = self.sender(to).location(bytes)?;
        let reader = self.sender(edge).point_to(location, tag)?;
        self.sender(to).share(reader)
    }

    /// Whether all ranks map each other's regions, so that one slot may serve several of them. The same on all ranks.
    pub(crate) fn shares_slots(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| !connected.regions.is_empty())
    }

    /// Most payload bytes of a message in memory that takes no slot.
    pub(crate) fn short_bytes(&self) -> usize {
        self.settings.layout(1).short_bytes_of(self.is_roomy_here())
    }

    /// Most payload bytes of a slot in memory.
    pub fn slot_bytes(&self) -> usize {
        self.memory_slots.1
    }

    /// Whether slots in memory are fewer and longer than settings say. The same on all ranks.
    pub(crate) fn has_long_slots(&self) -> bool {
        self.memory_slots.1 > self.settings.slot_bytes
    }

    /// Most payload bytes of a slot towards a network.
    pub fn net_slot_bytes(&self) -> usize {
        self.settings.net_slot_bytes
    }

    /// Starts the network if any peer needs one; what this rank's edges have to do with it.
    ///
    /// Errors: not connected, no network.
    pub(crate) fn start_network(&mut self) -> Result<Networking> {
        let (settings, me) = (&self.settings, self.me);
        let connected = self.connected.as_mut().ok_or_else(unconnected)?;
        let mut others = connected.kinds.iter().enumerate().filter(|(peer, _)| *peer != me.index());
        let memory = others.any(|(_, kind)| *kind != PathKind::Net);
        if !connected.kinds.contains(&PathKind::Net) {
            return Ok(Networking { used: false, memory, lends: true, device: false });
        }
        let lends = connected.network(settings, me)?.takes_any_memory() && !settings.wraps_edges();
        connected.lends_to_network = lends;
        Ok(Networking { used: true, memory, lends, device: false })
    }

    /// What all ranks' edges together have to do with a network. Those of this rank send user memory from where it is only if all do:
    /// who receives it must be able to. Before the first edge, after [`Fabric::start_network`].
    pub(crate) fn settle_networking(&mut self, votes: &[Bytes]) -> Networking {
        let all = Networking::of_all(votes);
        if let (false, Some(connected)) = (all.lends, &mut self.connected) {
            connected.lends_to_network = false;
            connected.network.iter_mut().for_each(Network::take_from_slots_only);
        }
        all
    }

    /// The network that is there to be used.
    pub(crate) fn net_plugin(&self) -> Option<NetPlugin> {
        self.settings.net.plugin
    }

    /// Network edges tell a profiler what they do: before the first edge, after [`Fabric::start_network`].
    pub(crate) fn profile(&mut self, emitter: &Arc<Emitter>) {
        let network = self.connected.as_mut().and_then(|connected| connected.network.as_mut());
        network.into_iter().for_each(|network| network.profile(emitter));
    }

    /// How a peer is reached; nothing before connecting, or of no such rank.
    pub(crate) fn way_to(&self, peer: Rank) -> Option<PathKind> {
        self.connected.as_ref()?.kinds.get(peer.index()).copied()
    }

    /// A number that is the same on all ranks, and another for every other communicator. Errors: not connected.
    pub(crate) fn number(&self) -> Result<u64> {
        let infos = &self.connected()?.infos;
        let nonce = infos.first().map_or([0; 32], |info| info.seat.nonce);
        let hash = blake3::hash(&nonce);
        Ok(hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Slots of every edge in memory.
    pub fn slots(&self) -> usize {
        self.memory_slots.0
    }

    /// Slots of every edge, and most payload bytes of each, as settings say.
    pub(crate) fn usual_slots(&self) -> (usize, usize) {
        (self.settings.slots, self.settings.slot_bytes)
    }

    /// How a peer is reached, and why.
    ///
    /// Errors: not connected, no such rank.
    pub fn path(&self, peer: Rank) -> Result<Path> {
        let connected = self.connected()?;
        let Connected { infos, neighbours, not_directly, lends_to_network, .. } = connected;
        if peer.0 >= self.n {
            return Err(Error::bug(format!("expected a rank below {}, found {peer}", self.n)));
        }
        let mut path = agree::path(&self.info, infos, self.me, peer, neighbours);
        if peer != self.me {
            path.reason +=
                &agree::how_long_messages_go(path.kind, not_directly.as_deref(), *lends_to_network);
        }
        Ok(path)
    }

    /// Moves connections being made and pending requests of all edges along. Never blocks. Nothing
    /// to do where all peers are reached through memory.
    ///
    /// Errors: of edges with something on its way out; others tell when used.
    #[inline]
    pub fn progress(&mut self) -> Result<()> {
        for edge in &self.net_receivers {
            self.receivers[*edge].progress()?;
        }
        for edge in &self.net_senders {
            self.senders[*edge].progress()?;
        }
        Ok(())
    }

    /// What this rank's end takes of its process and host, the control connection aside. Sockets are
    /// counted as connections.
    ///
    /// Errors: not connected.
    pub(crate) fn footprint(&self) -> Result<Footprint> {
        let connected = self.connected()?;
        let own_bytes = connected.neighbours.own().bytes() as u64;
        let ledger = connected.network.as_ref().map(Network::ledger);
        let (private_bytes, connections) = ledger.map_or((0, 0), Ledger::now);
        Ok(match self.n {
            1 => Footprint { private_bytes: own_bytes, ..Footprint::default() },
            _ => Footprint {
                shared_bytes: own_bytes,
                mapped_bytes: connected.neighbours.mapped_bytes() as u64,
                private_bytes,
                connections,
                sockets: 0,
            },
        })
    }

    /// Whether every rank reads what any other lends: [`SendEdge::lend`] may then be used on every
    /// edge. The same on all ranks.
    pub(crate) fn reads_directly(&self) -> bool {
        self.reads_directly
    }

    /// The network that is there for those that need one.
    pub(crate) fn network_plugin(&self) -> Option<NetPlugin> {
        self.settings.net.plugin
    }

    /// What a fabric among some of these ranks is told, but for its number of ranks.
    ///
    /// Errors: not connected.
    pub(crate) fn settings_of_branch(&self, branch: u64) -> Result<TransportSettings> {
        let connected = self.connected()?;
        let mut hasher = blake3::Hasher::new_keyed(&self.settings.secret);
        hasher.update(b"ccl branch").update(&branch.to_le_bytes());
        // All ranks say the same of each other, so all of a branch know whether they need no sockets.
        let mailboxes = connected.not_directly.is_some() && !connected.neighbours.all_threads();
        Ok(TransportSettings { secret: hasher.finalize().into(), mailboxes, ..self.settings.clone() })
    }

    /// How many cores the ranks share, if all are on one host; 0 if not. The same on all ranks. Errors: not
    /// connected.
    pub(crate) fn cores_of_one_host(&self) -> Result<u32> {
        let infos = &self.connected()?.infos;
        let one_host = infos.iter().all(|info| info.is_on_host_of(&self.info));
        Ok(if one_host { host::cores(infos.iter()) as u32 } else { 0 })
    }

    /// Whether all ranks are on one host, few, and have a core each. Errors: not connected.
    pub(crate) fn is_roomy_for_all(&self) -> Result<bool> {
        Ok(self.cores_of_one_host()? > 0 && self.is_roomy(&self.connected()?.infos))
    }

    /// Whether all ranks are on one host, and few. Errors: not connected.
    pub(crate) fn are_few_for_all(&self) -> Result<bool> {
        Ok(self.cores_of_one_host()? > 0 && self.connected()?.infos.len() <= FEW_RANKS)
    }

    /// Whether this rank's host has few ranks, and a core for each.
    fn is_roomy(&self, infos: &[TransportInfo]) -> bool {
        let (ranks, cores) = self.ranks_and_cores(infos);
        ranks <= FEW_RANKS && cores >= ranks
    }

    /// Whether this rank's host has more ranks than cores.
    fn shares_cores(&self, infos: &[TransportInfo]) -> bool {
        let (ranks, cores) = self.ranks_and_cores(infos);
        ranks > cores
    }

    /// Whether all ranks are on one host, more than few, share its cores, and keep few long messages under way. Errors: not connected.
    pub(crate) fn is_sparing_for_all(&self) -> Result<bool> {
        Ok(self.cores_of_one_host()? > 0 && self.is_sparing(&self.connected()?.infos))
    }

    /// Whether few long messages are to be under way on this rank's host.
    fn is_sparing(&self, infos: &[TransportInfo]) -> bool {
        let (ranks, cores) = self.ranks_and_cores(infos);
        self.settings.spares(ranks, cores)
    }

    /// How many ranks this rank's host has, and how many cores those may use.
    fn ranks_and_cores(&self, infos: &[TransportInfo]) -> (usize, usize) {
        let here = || infos.iter().filter(|info| info.is_on_host_of(&self.info));
        (here().count(), host::cores(here()))
    }

    /// How many processes the ranks of this rank's host are, where they need all its cores; 0 where a core is left.
    /// Errors: not connected.
    pub(crate) fn processes_without_a_core_left(&self) -> Result<usize> {
        let infos = &self.connected()?.infos;
        let here = || infos.iter().filter(|info| info.is_on_host_of(&self.info));
        let processes: HashSet<(u64, u32)> =
            here().map(|info| (info.process.namespace, info.process.number)).collect();
        Ok(if host::cores(here()) > here().count() { 0 } else { processes.len() })
    }

    /// How many ranks each host has, of those that follow each other. The same on all ranks. Errors: not connected.
    pub(crate) fn nodes(&self) -> Result<Vec<u32>> {
        let infos = &self.connected()?.infos;
        let hosts = infos.chunk_by(|one, next| one.is_on_host_of(next));
        Ok(hosts.map(|ranks| ranks.len() as u32).collect())
    }

    /// Whether the ranks of every host follow each other. The same on all ranks. Errors: not connected.
    pub(crate) fn hosts_are_whole(&self) -> Result<bool> {
        let infos = &self.connected()?.infos;
        let hosts = infos.chunk_by(|one, next| one.is_on_host_of(next));
        let mut names: Vec<&str> = hosts.map(|ranks| ranks[0].process.host.as_str()).collect();
        names.sort_unstable();
        Ok(names.windows(2).all(|pair| pair[0] != pair[1]))
    }

    /// Whether everything posted is on its way: nothing waits in this process for the network.
    pub fn is_flushed(&self) -> bool {
        self.net_senders.iter().all(|edge| self.senders[*edge].idle())
    }

    /// Makes calls into the network fail at once, for good, takes back what was lent, and wakes
    /// whoever sleeps on the bell.
    pub fn abort(&mut self) {
        self.senders.iter_mut().for_each(SendEdge::withdraw);
        self.receivers.iter_mut().for_each(ReceiveEdge::withdraw);
        if let Some(connected) = &self.connected {
            connected.neighbours.withdraw();
            connected.network.iter().for_each(Network::abort);
            connected.bell.ring();
        }
    }

    /// This rank's bell, on which to sleep. Errors: not connected.
    pub fn bell(&self) -> Result<&Bell> {
        Ok(&self.connected()?.bell)
    }

    /// Whether to look again for a message of `peer`, or a piece of a `long` one, before the core is given away: it may be at work on
    /// another one.
    pub(crate) fn stays(&self, lookout: &mut Lookout, peer: Option<Rank>, long: bool) -> bool {
        let (Some(peer), Some(connected)) = (peer, &self.connected) else { return false };
        let Some((_, region)) = connected.neighbours.reachable(peer) else { return false };
        let (own, theirs) = (Presence::of(connected.neighbours.own()), Presence::of(region));
        lookout.stays(own, theirs, connected.ranks_of_a_core == 2, long)
    }

    /// Whether this host has few ranks, and a core for each.
    pub(crate) fn is_roomy_here(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| connected.roomy)
    }

    /// Ranks of this host for each core, if that comes out even; else, or before it is connected, 0.
    pub(crate) fn ranks_of_a_core(&self) -> usize {
        self.connected.as_ref().map_or(0, |connected| connected.ranks_of_a_core)
    }

    /// Lets others have the core.
    pub(crate) fn yield_core(&self) {
        match &self.connected {
            Some(connected) => connected.bell.yield_core(),
            None => std::thread::yield_now(),
        }
    }

    /// Lets others have the core, to come back behind `peer` if that shares it. A message of it is waited for.
    pub(crate) fn give_turn(&mut self, peer: Rank) {
        // Messages have the last tag.
        let edge =
            self.place(peer, Channel(0), self.settings.tags - 1).map_or(NO_EDGE, |at| self.receiver_of[at]);
        let Some(connected) = &mut self.connected else { return std::thread::yield_now() };
        let networked = connected.is_networked(peer);
        let Connected { turns, neighbours, net_turns, bell, network, infos, .. } = connected;
        let Some(network) = network.as_ref().filter(|_| networked) else {
            return turns.give(neighbours, peer);
        };
        let beside = infos[peer.index()].is_on_host_of(&self.info);
        let mut watched = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MOST_WATCHED];
        let mut count = 0;
        if net_turns.end(network.signs(), (peer, beside))
            && let Some(edge) = self.receivers.get_mut(edge as usize)
        {
            edge.watch(&mut |fd, events| {
                if let Some(at) = watched.get_mut(count) {
                    (*at, count) = (libc::pollfd { fd, events, revents: 0 }, count + 1);
                }
            });
        }
        bell.leave_core(|| match count {
            0 => std::thread::yield_now(),
            _ => drop(sleep_on(&mut watched[..count], LONGEST_SLEEP)),
        });
        net_turns.begin();
    }

    /// How to wait, given this host's ranks and cores. Errors: not connected.
    pub fn wait(&self) -> Result<&WaitSettings> {
        Ok(&self.connected()?.wait)
    }

    /// Ends all connections. Never blocks; peers find the edges silent.
    pub fn close(self) {}

    pub(super) fn connected(&self) -> Result<&Connected> {
        self.connected.as_ref().ok_or_else(unconnected)
    }

    fn place(&self, peer: Rank, channel: Channel, tag: u8) -> Result<usize> {
        let (channels, tags) = (usize::from(self.settings.channels), usize::from(self.settings.tags));
        if peer.0 >= self.n || channel.index() >= channels || usize::from(tag) >= tags {
            return Err(Error::bug(format!(
                "expected an edge of {} ranks, {channels} channels and {tags} tags, found {peer}/{channel}/{tag}",
                self.n
            )));
        }
        Ok((peer.index() * channels + channel.index()) * tags + usize::from(tag))
    }

    fn map_neighbours(
        &self,
        opening: &Opening,
        infos: &[TransportInfo],
        deadline: Instant,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Neighbours> {
        let all = agree::neighbours(&self.info, infos, self.me);
        let me = all.iter().position(|peer| peer.rank == self.me).unwrap_or(0);
        let (slots, slot_bytes) = self.memory_slots;
        let layout = match self.has_long_slots() {
            true => Layout { slots, slot_bytes, ..self.settings.layout(all.len()) },
            false => self.settings.layout(all.len()),
        };
        let Some(file) = &opening.file else {
            return Neighbours::alone(layout, &all[me], self.settings.secret);
        };
        let now = Instant::now();
        let halfway = now + deadline.saturating_duration_since(now) / 2;
        let own = Own { file, mailbox: opening.mailbox.as_ref(), secret: self.settings.secret };
        Neighbours::connect(&own, layout, &all, me, halfway, check)
    }

    /// The slots of edges in memory, and their bytes: others than settings say where all ranks are on one host, and few or share
    /// its cores.
    fn choose_slots(&self, infos: &[TransportInfo]) -> (usize, usize) {
        let one_host = infos.iter().all(|info| info.is_on_host_of(&self.info));
        let shares_memory = self.settings.shared_memory == SharedMemory::Use;
        let cores = host::cores(infos.iter()).max(1);
        match one_host && shares_memory && (infos.len() <= FEW_RANKS || infos.len() > cores) {
            true => self.settings.long_slots(),
            false => (self.settings.slots, self.settings.slot_bytes),
        }
    }

    fn wait_settings(&self, infos: &[TransportInfo], kinds: &[PathKind]) -> WaitSettings {
        let (ranks, cores) = self.ranks_and_cores(infos);
        let wait = self.settings.wait.on_host(ranks, cores);
        match kinds.contains(&PathKind::Net) {
            true if self.is_watchable(kinds) => wait.with_watched_network(),
            true => wait.with_network(),
            false => wait,
        }
    }

    fn is_first_of_host(&self, infos: &[TransportInfo]) -> bool {
        !infos[..self.me.index()].iter().any(|info| info.is_on_host_of(&self.info))
    }

    fn count_ranks_of_a_core(&self, infos: &[TransportInfo]) -> usize {
        let (ranks, cores) = self.ranks_and_cores(infos);
        if ranks.is_multiple_of(cores) { ranks / cores } else { 0 }
    }

    /// Whether all others are reached through a network that says where its news come from.
    fn is_watchable(&self, kinds: &[PathKind]) -> bool {
        let mut others = kinds.iter().enumerate().filter(|(peer, _)| *peer != self.me.index()).peekable();
        let plugin = self.settings.net.plugin;
        others.peek().is_some()
            && others.all(|(_, kind)| *kind == PathKind::Net)
            && plugin.is_none_or(|plugin| plugin.is_watchable())
            && !self.settings.wraps_edges()
    }
}

#[cold]
pub(super) fn unconnected() -> Error {
    Error::bug("a fabric is connected before it is used")
}

/// Of an edge's sockets, those that a rank watches which waits for its turn: the first carries all short messages.
const MOST_WATCHED: usize = 4;
const NO_EDGE: u32 = u32::MAX;
/// What a last-level cache is taken to hold where the system does not tell.
const USUAL_CACHE_BYTES: usize = 32 << 20;
