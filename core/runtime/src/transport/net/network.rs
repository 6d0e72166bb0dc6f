//! What the network edges of one rank share.

use std::collections::HashMap;
use std::sync::Arc;

use ccl_plan::{Channel, Rank};
use ccl_plugin_host::net::FLAG_ANY_MEMORY;
use ccl_plugin_host::{LogFn, NetContext, NetPlugin, Properties};

use super::greeting::{Ends, GREETING_BYTES, greeting};
use super::opening::{Opening, Serves};
use super::proxied::Proxied;
use super::slots::HEADER_BYTES;
use super::turns::Signs;
use super::vigil::Vigil;
use super::{NetReceive, NetSend, errors};
use crate::config::{Kind, NameFilter};
use crate::error::{Error, Result};
use crate::memory::Ledger;
use crate::observe::profiler::Emitter;
use crate::transport::edge::{ReceiveKind, SendKind};
use crate::transport::relay::NET_TOPICS;
use crate::transport::{EdgeKey, ReceiveEdge, Relay, SendEdge, TransportInfo};

/// Which network, and how it is set.
#[derive(Clone, Debug, Default)]
pub struct NetSettings {
    /// The plugin; `None`: the sockets that are linked in.
    pub plugin: Option<NetPlugin>,
    /// Keys and values for its `init`.
    pub settings: Vec<(String, String)>,
    /// The device; `None`: the fastest, ranks spread over equals.
    pub device: Option<u32>,
}

/// A network in use by one rank.
pub(crate) struct Network {
    context: NetContext,
    device: u32,
    takes_any_memory: bool,
    sends_from: bool,
    me: Rank,
    secret: [u8; 32],
    relay: Arc<dyn Relay>,
    peers: Peers,
    ledger: Ledger,
    /// Connections that serve both ways, by the edges they serve.
    turned: HashMap<EdgeKey, Opening>,
    /// To be told where news come from.
    vigil: Option<Arc<Vigil>>,
    /// Of this rank's turns.
    signs: Arc<Signs>,
    /// To be told what edges do.
    emitter: Option<Arc<Emitter>>,
}

/// Shape of an edge's slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotShape {
    pub(crate) slots: usize,
    /// So many of them are used, in turn; there is memory for all.
    pub(crate) used: usize,
    pub(crate) slot_bytes: usize,
}

/// What is known of the peers.
pub(crate) enum Peers {
    /// Where each runs and the nonce it drew, by rank.
    Known(Vec<PeerName>),
    /// Nothing yet: their infos are still to come, over this network.
    Unknown,
}

pub(crate) struct PeerName {
    host: String,
    nonce: [u8; 32],
}

/// Two ranks' share of the network, for a channel and tag: what either needs to connect and to name the
/// other.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) context: NetContext,
    pub(super) device: u32,
    /// Whether user memory may be registered for one message.
    pub(super) takes_any_memory: bool,
    /// Whether messages may be sent from anywhere.
    pub(super) sends_from: bool,
    pub(super) relay: Arc<dyn Relay>,
    pub(super) ledger: Ledger,
    vigil: Option<Arc<Vigil>>,
    pub(super) signs: Arc<Signs>,
    emitter: Option<Arc<Emitter>>,
    pub(super) me: Rank,
    pub(super) peer: Rank,
    pub(super) topic: u32,
    host: String,
    secret: [u8; 32],
    channel: Channel,
    tag: u8,
    /// Mine and the peer's.
    nonces: [[u8; 32]; 2],
}

impl Network {
    /// Starts the plugin and picks a device: the first that `names` prefers, if there are such wishes.
    ///
    /// Errors: the plugin's; no device of these names, or that takes host memory and slots of that size.
    pub(crate) fn start(
        (settings, names): (&NetSettings, Option<&NameFilter>),
        shape: SlotShape,
        me: Rank,
        secret: [u8; 32],
        relay: Arc<dyn Relay>,
        peers: Peers,
    ) -> Result<Network> {
        let linked = || NetPlugin::linked(ccl_net_socket::table());
        let plugin = settings
            .plugin
            .map_or_else(linked, Ok)
            .map_err(|e| errors::alone(&e, "use the socket network"))?;
        let communicator = number(&secret).to_string();
        let pairs = settings.settings.iter().map(|(key, value)| (&**key, &**value));
        let pairs: Vec<_> = pairs.chain([("communicator", &*communicator)]).collect();
        let context = plugin
            .init(&pairs, LogFn::tracing())
            .map_err(|e| errors::alone(&e, &format!("start network {}", plugin.name())))?;
        let device = match (names, settings.device) {
            (Some(names), _) => named(&context, names)?,
            (None, Some(device)) => device,
            (None, None) => fastest(&context, me)?,
        };
        let properties = check_device(&context, device, shape)?;
        let takes_any_memory = properties.flags & FLAG_ANY_MEMORY != 0
            && properties.max_message_bytes >= LONGEST_LENT_BYTES as u64;
        let sends_from = plugin.sends_from();
        tracing::info!(rank = me.0, network = plugin.name(), device, "network started");
        let (ledger, turned) = (Ledger::default(), HashMap::new());
        Ok(Network {
            context,
            device,
            takes_any_memory,
            sends_from,
            me,
            secret,
            relay,
            peers,
            ledger,
            turned,
            vigil: None,
            signs: Arc::default(),
            emitter: None,
        })
    }

    /// What messages say of turns.
    pub(crate) fn signs(&self) -> &Signs {
        &self.signs
    }

    /// The same, whose edges tell `vigil` where news of them come from.
    pub(crate) fn watched_by(self, vigil: Option<Arc<Vigil>>) -> Network {
        Network { vigil, ..self }
    }

    /// Edges made from here on tell a profiler what they do.
    pub(crate) fn profile(&mut self, emitter: &Arc<Emitter>) {
        self.emitter = Some(Arc::clone(emitter));
    }

    /// Edges made from here on send no user memory from where it is.
    pub(crate) fn take_from_slots_only(&mut self) {
        self.takes_any_memory = false;
    }

    /// Whether edges send user memory from where it is.
    pub(crate) fn takes_any_memory(&self) -> bool {
        self.takes_any_memory
    }

    /// What its edges take of this process.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The sending end of an edge, not connected yet.
    pub(crate) fn sender(&mut self, key: EdgeKey, shape: SlotShape) -> Result<NetSend> {
        let opening = self.opening(key, Serves::Sending)?;
        NetSend::new(self.line(key), opening, shape)
    }

    /// The receiving end of an edge, not connected yet.
    pub(crate) fn receiver(&mut self, key: EdgeKey, shape: SlotShape) -> Result<NetReceive> {
        let opening = self.opening(key, Serves::Receiving)?;
        Ok(NetReceive::new(self.line(key), opening, shape))
    }

    /// Edges to and from a peer apart from those of all channels, not connected yet.
    pub(crate) fn edges_apart(&mut self, peer: Rank, shape: SlotShape) -> Result<(SendEdge, ReceiveEdge)> {
        let key = EdgeKey { peer, channel: APART, tag: 0 };
        let send = SendKind::Net(Box::new(self.sender(key, shape)?));
        Ok((send.into(), ReceiveKind::Net(Box::new(self.receiver(key, shape)?)).into()))
    }

    /// What it is and which device it uses, for people.
    pub(crate) fn name(&self) -> String {
        format!("network {}, device {}", self.context.plugin().name(), self.device)
    }

    /// Ends every pending call of this rank's network at once; later calls fail.
    pub(crate) fn abort(&self) {
        if let Err(error) = self.context.abort() {
            tracing::debug!(%error, "the network cannot be aborted; closing it");
        }
    }

    /// The connection of an edge: one that serves both ways where the network has such.
    fn opening(&mut self, key: EdgeKey, alone: Serves) -> Result<Opening> {
        if !self.context.plugin().turns() {
            return Opening::new(self.line(key), alone);
        }
        if let Some(opening) = self.turned.get(&key) {
            return Ok(opening.clone());
        }
        let opening = Opening::new(self.line(key), Serves::BothWays)?;
        self.turned.insert(key, opening.clone());
        Ok(opening)
    }

    fn line(&self, key: EdgeKey) -> Line {
        let EdgeKey { peer, channel, tag } = key;
        let nonce = |rank| self.peers.nonce(rank);
        Line {
            context: self.context.clone(),
            device: self.device,
            takes_any_memory: self.takes_any_memory,
            sends_from: self.sends_from,
            relay: Arc::clone(&self.relay),
            ledger: self.ledger.clone(),
            vigil: self.vigil.clone(),
            signs: Arc::clone(&self.signs),
            emitter: self.emitter.clone(),
            me: self.me,
            peer,
            topic: NET_TOPICS | u32::from(channel.0) << 8 | u32::from(tag),
            host: self.peers.host(peer).to_owned(),
            secret: self.secret,
            channel,
            tag,
            nonces: [nonce(self.me), nonce(peer)],
        }
    }
}

impl Peers {
    pub(crate) fn of(infos: &[TransportInfo]) -> Peers {
        let name =
            |info: &TransportInfo| PeerName { host: info.process.host_name.clone(), nonce: info.seat.nonce };
        Peers::Known(infos.iter().map(name).collect())
    }

    fn host(&self, rank: Rank) -> &str {
        match self {
            Peers::Known(names) => &names[rank.index()].host,
            Peers::Unknown => "its host is not known yet",
        }
    }

    /// Without nonces a greeting is as fresh as the handle of the listener that it is for.
    fn nonce(&self, rank: Rank) -> [u8; 32] {
        match self {
            Peers::Known(names) => names[rank.index()].nonce,
            Peers::Unknown => [0; 32],
        }
    }
}

impl Line {
    /// What this rank and its peer say over a connection of the listener that made `handle`.
    pub(super) fn greetings(&self, handle: &[u8]) -> [[u8; GREETING_BYTES]; 2] {
        let [mine, theirs] = &self.nonces;
        let ends = |sender, receiver| Ends { sender, receiver, channel: self.channel, tag: self.tag };
        [
            greeting(&self.secret, &ends(self.me, self.peer), [mine, theirs], handle),
            greeting(&self.secret, &ends(self.peer, self.me), [theirs, mine], handle),
        ]
    }

    /// What a profiler hears of one end of the edge.
    pub(super) fn proxied(&self, is_send: bool) -> Option<Proxied> {
        let emitter = self.emitter.as_ref()?;
        Some(Proxied::new(Arc::clone(emitter), (self.peer, self.channel), is_send))
    }

    /// Nothing was done: whoever is about to sleep is told what `watch` finds, or that news come from elsewhere
    /// too.
    #[inline]
    pub(super) fn nothing_yet(&self, watch: impl FnOnce(&mut dyn FnMut(i32, i16)) -> bool) {
        if let Some(vigil) = &self.vigil
            && vigil.is_on()
            && !watch(&mut |descriptor, events| vigil.add(descriptor, events))
        {
            vigil.add_unknown();
        }
    }

    /// A plugin's error, with the peer and its host.
    #[cold]
    pub(super) fn error(&self, error: &ccl_plugin_host::NetError, doing: &str) -> Error {
        errors::with_peer(error, doing, self.peer, &self.host)
    }

    /// The peer sent what it may not.
    #[cold]
    pub(super) fn broken(&self, found: impl Into<String>) -> Error {
        let advice = "run the same version of ccl with the same settings on all ranks, and CCL_CHECKSUM=1";
        Error::new(
            crate::Fault::Network,
            format!("from rank {} ({}): {}", self.peer, self.host, found.into()),
            advice,
        )
        .with_peer(self.peer)
    }
}

/// A number of the communicator, the same on all ranks; the secret does not follow from it.
fn number(secret: &[u8; 32]) -> u64 {
    let hash = blake3::derive_key("ccl: the number of a communicator, for network plugins", secret);
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The fastest device that takes host memory; `me` picks among equals.
fn fastest(context: &NetContext, me: Rank) -> Result<u32> {
    let describe = |device| Ok((device, context.properties(device)?));
    let devices: Result<Vec<(u32, Properties)>, _> = (0..context.device_count()).map(describe).collect();
    let mut devices = devices.map_err(|e| errors::alone(&e, DESCRIBE))?;
    let fastest = devices.iter().map(|(_, properties)| properties.speed_mbps).max().unwrap_or(0);
    devices.retain(|(_, properties)| properties.speed_mbps == fastest);
    match devices.len() {
        0 => Err(Error::new(
            crate::Fault::Plugin { name: context.plugin().name().to_owned() },
            "expected at least one network device, found none",
            "choose another network with CCL_NET_PLUGIN, or another interface with CCL_SOCKET_IFNAME",
        )),
        count => Ok(devices[me.index() % count].0),
    }
}

/// The device whose name stands first in `names`; of several, the first. A name may have the port behind it.
fn named(context: &NetContext, names: &NameFilter) -> Result<u32> {
    let mut best = None;
    let mut seen = Vec::new();
    for device in 0..context.device_count() {
        let Properties { name, port, .. } =
            context.properties(device).map_err(|e| errors::alone(&e, DESCRIBE))?;
        let spellings = [format!("{name}:{port}"), name];
        let place = match names.only_excludes() {
            true => spellings.iter().all(|name| names.allows(name)).then_some(0),
            false => spellings.iter().filter_map(|name| names.position(name)).min(),
        };
        best = best.into_iter().chain(place.map(|place| (place, device))).min();
        let [_, name] = spellings;
        seen.push(name);
    }
    best.map(|(_, device)| device).ok_or_else(|| {
        let (wish, network) = (names.print(), context.plugin().name());
        let seen = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
        let cause = format!(
            "expected a device of network {network} that CCL_OOB_NET_IFNAME={wish} allows, found {seen}"
        );
        let advice = "name one of the devices, or unset it for the first; the devices of the socket network are the \
                      interfaces that CCL_SOCKET_IFNAME allows";
        Error::usage(cause, advice)
    })
}

fn check_device(context: &NetContext, device: u32, shape: SlotShape) -> Result<Properties> {
    let properties =
        context.properties(device).map_err(|e| errors::alone(&e, "describe the network device"))?;
    let needed = (HEADER_BYTES + shape.slot_bytes) as u64;
    if properties.max_message_bytes >= needed {
        return Ok(properties);
    }
    let (name, most) = (properties.name, properties.max_message_bytes);
    let cause =
        format!("expected messages of {needed} bytes to fit the network, found {name} to take {most}");
    Err(Error::usage(cause, "make slots smaller"))
}

/// A channel that no settings allow.
const APART: Channel = Channel(u16::MAX);
const DESCRIBE: &str = "describe network devices";
/// Longest payload that is lent to a network in one message.
pub(crate) const LONGEST_LENT_BYTES: usize = 1 << 20;
