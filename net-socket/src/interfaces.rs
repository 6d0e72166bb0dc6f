//! Interfaces of this machine, as devices.

use std::fs;
use std::net::{SocketAddr, SocketAddrV6};

use ccl_plugin::Error;
use ccl_plugin::net::Properties;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::config::{self, Config};

/// One interface with the address that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// With port 0; an IPv6 address has its scope.
    pub(crate) address: SocketAddr,
}

impl Interface {
    pub(crate) fn properties(&self, index: u32) -> Properties {
        let directory = format!("/sys/class/net/{}", self.name);
        let device = fs::canonicalize(format!("{directory}/device")).ok();
        let speed = fs::read_to_string(format!("{directory}/speed")).ok();
        let mbps = speed.and_then(|text| text.trim().parse::<u32>().ok()).filter(|mbps| *mbps > 0);
        Properties {
            name: self.name.clone(),
            pci_path: device.map(|path| path.to_string_lossy().into_owned()),
            guid: u64::from(index),
            speed_mbps: mbps.unwrap_or(10_000),
            ..config::properties()
        }
    }
}

/// The interfaces of a context: the host's list, or what is found.
pub(crate) fn interfaces(config: &Config) -> Result<Vec<Interface>, Error> {
    let found = detect()?;
    if config.interfaces.is_empty() {
        return Ok(choose(found));
    }
    let listed = config.interfaces.iter().map(|(name, ip)| {
        let same = found.iter().find(|f| f.interface.name == *name && f.interface.address.ip() == *ip);
        let address = same.map_or(SocketAddr::new(*ip, 0), |f| f.interface.address);
        Interface { name: name.clone(), address }
    });
    Ok(listed.collect())
}

/// An address of an interface that is up, and what speaks for or against it.
#[derive(Clone, Debug)]
struct Found {
    interface: Interface,
    loopback: bool,
    /// Has a device behind it, so it is not a bridge, tunnel or container end.
    hardware: bool,
}

/// One address for each interface, IPv4 if it has one. Hardware comes first, then bonds and the
/// like; bridges and tunnels, and then loopback, only if there is nothing else.
fn choose(mut found: Vec<Found>) -> Vec<Interface> {
    let rank = |f: &Found| u8::from(is_local_bridge(&f.interface.name)) + 2 * u8::from(f.loopback);
    let best = found.iter().map(rank).min().unwrap_or(0);
    found.retain(|f| rank(f) == best);
    found.sort_by_key(|f| (f.interface.address.is_ipv6(), !f.hardware));
    let mut chosen: Vec<Interface> = Vec::new();
    for Found { interface, .. } in found {
        if chosen.iter().all(|other| other.name != interface.name) {
            chosen.push(interface);
        }
    }
    chosen
}

fn is_local_bridge(name: &str) -> bool {
    ["docker", "br-", "veth", "virbr", "cni", "flannel", "tun", "tap", "ip6tnl"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn detect() -> Result<Vec<Found>, Error> {
    let entries =
        getifaddrs().map_err(|error| Error::system("list the network interfaces", &error.into()))?;
    Ok(entries.filter_map(read_entry).collect())
}

/// The entry of an interface that is up, if it is about an IP address.
fn read_entry(entry: InterfaceAddress) -> Option<Found> {
    if !entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING) {
        return None;
    }
    let address = entry.address?;
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), 0)));
    let v6 = || {
        let v6 = address.as_sockaddr_in6()?;
        Some(SocketAddr::V6(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id())))
    };
    let address = v4.or_else(v6)?;
    let name = entry.interface_name;
    let hardware = fs::exists(format!("/sys/class/net/{name}/device")).unwrap_or(false);
    let loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
    Some(Found { interface: Interface { name, address }, loopback, hardware })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, address: &str, loopback: bool, hardware: bool) -> Found {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        Found { interface: Interface { name: name.to_string(), address }, loopback, hardware }
    }

    fn names(found: Vec<Found>) -> Vec<String> {
        choose(found).into_iter().map(|i| format!("{}={}", i.name, i.address.ip())).collect()
    }

    #[test]
    fn hardware_is_chosen_before_bridges_and_loopback_last() {
        let lo = found("lo", "127.0.0.1", true, false);
        let docker = found("docker0", "172.17.0.1", false, false);
        let bond = found("bond0", "10.1.0.1", false, false);
        let eth6 = found("eth0", "fe80::1", false, true);
        let eth = found("eth0", "10.0.0.1", false, true);
        assert_eq!(names(vec![lo.clone()]), ["lo=127.0.0.1"]);
        assert_eq!(names(vec![lo.clone(), docker.clone()]), ["docker0=172.17.0.1"]);
        assert_eq!(names(vec![lo.clone(), docker.clone(), bond.clone()]), ["bond0=10.1.0.1"]);
        assert_eq!(names(vec![lo, docker, bond, eth6, eth]), ["eth0=10.0.0.1", "bond0=10.1.0.1"]);
    }

    #[test]
    fn this_machine_has_some_interface() {
        assert!(!choose(detect().unwrap()).is_empty());
    }
}
