//! What the network edges of one rank share.

use std::sync::Arc;

use ccl_plan::{Channel, Rank};
use ccl_plugin_host::net::FLAG_ANY_MEMORY;
use ccl_plugin_host::{LogFn, NetContext, NetPlugin, Properties};

use super::greeting::{Ends, GREETING_BYTES, greeting};
use super::slots::HEADER_BYTES;
use super::{NetReceive, NetSend, errors};
use crate::error::{Error, Result};
use crate::memory::Ledger;
use crate::transport::relay::NET_TOPICS;
use crate::transport::{Relay, TransportInfo};

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
    me: Rank,
    secret: [u8; 32],
    relay: Arc<dyn Relay>,
    peers: Vec<PeerName>,
    ledger: Ledger,
}

/// Shape of an edge's slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotShape {
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

struct PeerName {
    host: String,
    nonce: [u8; 32],
}

/// One edge's share of the network: what either end needs to connect and to name its peer.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) context: NetContext,
    pub(super) device: u32,
    /// Whether user memory may be registered for one message.
    pub(super) takes_any_memory: bool,
    pub(super) relay: Arc<dyn Relay>,
    pub(super) ledger: Ledger,
    pub(super) peer: Rank,
    pub(super) topic: u32,
    host: String,
    secret: [u8; 32],
    ends: Ends,
    /// The sender's and the receiver's.
    nonces: [[u8; 32]; 2],
}

impl Network {
    /// Starts the plugin and picks a device.
    ///
    /// Errors: the plugin's; no device that takes host memory and slots of that size.
    pub(crate) fn start(
        settings: &NetSettings,
        shape: SlotShape,
        me: Rank,
        secret: [u8; 32],
        relay: Arc<dyn Relay>,
        infos: &[TransportInfo],
    ) -> Result<Network> {
        let linked = || NetPlugin::linked(ccl_net_socket::table());
        let plugin = settings
            .plugin
            .map_or_else(linked, Ok)
            .map_err(|e| errors::alone(&e, "use the socket network"))?;
        let pairs: Vec<_> = settings.settings.iter().map(|(key, value)| (&**key, &**value)).collect();
        let context = plugin
            .init(&pairs, LogFn::tracing())
            .map_err(|e| errors::alone(&e, &format!("start network {}", plugin.name())))?;
        let device = match settings.device {
            Some(device) => device,
            None => fastest(&context, me)?,
        };
        let properties = check_device(&context, device, shape)?;
        let takes_any_memory = properties.flags & FLAG_ANY_MEMORY != 0
            && properties.max_message_bytes >= LONGEST_LENT_BYTES as u64;
        tracing::info!(rank = me.0, network = plugin.name(), device, "network started");
        let peers = infos
            .iter()
            .map(|info| PeerName { host: info.process.host_name.clone(), nonce: info.seat.nonce })
            .collect();
        Ok(Network { context, device, takes_any_memory, me, secret, relay, peers, ledger: Ledger::default() })
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
    pub(crate) fn sender(&self, peer: Rank, channel: Channel, tag: u8, shape: SlotShape) -> Result<NetSend> {
        NetSend::new(self.line(peer, Ends { sender: self.me, receiver: peer, channel, tag }), shape)
    }

    /// The receiving end of an edge, listening.
    pub(crate) fn receiver(
        &self,
        peer: Rank,
        channel: Channel,
        tag: u8,
        shape: SlotShape,
    ) -> Result<NetReceive> {
        NetReceive::new(self.line(peer, Ends { sender: peer, receiver: self.me, channel, tag }), shape)
    }

    /// Ends every pending call of this rank's network at once; later calls fail.
    pub(crate) fn abort(&self) {
        if let Err(error) = self.context.abort() {
            tracing::debug!(%error, "the network cannot be aborted; closing it");
        }
    }

    fn line(&self, peer: Rank, ends: Ends) -> Line {
        let nonce = |rank: Rank| self.peers[rank.index()].nonce;
        Line {
            context: self.context.clone(),
            device: self.device,
            takes_any_memory: self.takes_any_memory,
            relay: Arc::clone(&self.relay),
            ledger: self.ledger.clone(),
            peer,
            topic: NET_TOPICS | u32::from(ends.channel.0) << 8 | u32::from(ends.tag),
            host: self.peers[peer.index()].host.clone(),
            secret: self.secret,
            ends,
            nonces: [nonce(ends.sender), nonce(ends.receiver)],
        }
    }
}

impl Line {
    /// The greeting of this edge over the listener that made `handle`.
    pub(super) fn greeting(&self, handle: &[u8]) -> [u8; GREETING_BYTES] {
        let [sender, receiver] = &self.nonces;
        greeting(&self.secret, &self.ends, [sender, receiver], handle)
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

/// The fastest device that takes host memory; `me` picks among equals.
fn fastest(context: &NetContext, me: Rank) -> Result<u32> {
    let describe = |device| Ok((device, context.properties(device)?));
    let devices: Result<Vec<(u32, Properties)>, _> = (0..context.device_count()).map(describe).collect();
    let mut devices = devices.map_err(|e| errors::alone(&e, "describe network devices"))?;
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

/// Longest payload that is lent to a network in one message.
pub(crate) const LONGEST_LENT_BYTES: usize = 1 << 20;
