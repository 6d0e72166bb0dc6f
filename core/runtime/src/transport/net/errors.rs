//! A plugin's errors in ccl's words.

use ccl_plan::Rank;
use ccl_plugin_host::NetError;

use crate::error::{Error, Fault};

/// `error`, met while `doing` something with `peer`, which runs on `host`.
pub(super) fn with_peer(error: &NetError, doing: &str, peer: Rank, host: &str) -> Error {
    let address = error.detail().peer.as_deref();
    let at = address.map_or_else(|| host.to_owned(), |address| format!("{host}, {address}"));
    let (fault, advice) = fault_of(error, peer);
    Error::new(fault, format!("{doing} rank {peer} ({at}): {error}"), advice).with_peer(peer)
}

/// `error`, met while `doing` something alone.
pub(super) fn alone(error: &NetError, doing: &str) -> Error {
    let (fault, advice) = fault_of(error, Rank(u32::MAX));
    Error::new(fault, format!("{doing}: {error}"), advice)
}

fn fault_of(error: &NetError, peer: Rank) -> (Fault, &'static str) {
    let plugin = || Fault::Plugin { name: error.detail().plugin.clone() };
    match error {
        NetError::Remote(_) => {
            (Fault::Remote { rank: peer }, "see the log of that rank: it ended or closed the connection")
        }
        NetError::Timeout(_) => {
            (Fault::Network, "check that the peer's address is reachable from here, and firewalls")
        }
        NetError::System(_) => {
            (Fault::Network, "check the interface (CCL_SOCKET_IFNAME), routes and limits of this host")
        }
        NetError::Aborted(_) => (Fault::Aborted, "the communicator was aborted"),
        NetError::Exhausted(_) => (Fault::System { errno: None }, "raise the limit on descriptors or memory"),
        NetError::NoDevice(_) | NetError::Load(_) => (plugin(), "choose another network with CCL_NET_PLUGIN"),
        _ => (plugin(), "run `ccl plugin check` on the plugin, and tell its author"),
    }
}
