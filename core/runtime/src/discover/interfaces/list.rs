//! Asking the system for its interfaces.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::discover::interfaces::{Address, Interface, InterfaceKind, LinkState};
use crate::error::{Error, Result};

/// The interfaces of this network namespace, in the system's order.
///
/// # Errors
/// The system refuses to list them.
pub fn list() -> Result<Vec<Interface>> {
    let found = getifaddrs().map_err(|error| {
        Error::system(
            "list the network interfaces",
            io::Error::from(error),
            "check that the process may use the network",
        )
    })?;
    Ok(collect(found, Path::new("/sys/class/net")))
}

/// [`list`], or what it was less than a tenth of a second ago: ranks of one process that join together look once.
///
/// # Errors
/// As [`list`].
pub(crate) fn list_lately() -> Result<Vec<Interface>> {
    static LATELY: Mutex<Option<(Instant, Vec<Interface>)>> = Mutex::new(None);
    let mut lately = LATELY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, interfaces)) = &*lately
        && at.elapsed() < LATELY_IS
    {
        return Ok(interfaces.clone());
    }
    let found = list()?;
    *lately = Some((Instant::now(), found.clone()));
    Ok(found)
}

/// The address from which the kernel would send to `target`, by its routes. Sends nothing.
///
/// # Errors
/// There is no route.
pub fn source_towards(target: IpAddr) -> Result<IpAddr> {
    let any: IpAddr = match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket only looks the route up. The port is one that is never answered: discard.
    let ask = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.connect(SocketAddr::new(target, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    ask().map_err(|error| {
        Error::system(
            &format!("find a route to {target}"),
            error,
            "check the address and the routes (ip route get)",
        )
    })
}

/// Joins the system's entries, one per address, into interfaces.
fn collect(entries: impl Iterator<Item = InterfaceAddress>, sysfs: &Path) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut places = BTreeMap::new();
    for entry in entries {
        let place = *places.entry(entry.interface_name.clone()).or_insert_with(|| {
            interfaces.push(describe(&entry, sysfs));
            interfaces.len() - 1
        });
        interfaces[place].addresses.extend(address_of(&entry));
    }
    interfaces
}

fn describe(entry: &InterfaceAddress, sysfs: &Path) -> Interface {
    let name = &entry.interface_name;
    let folder = sysfs.join(name);
    Interface {
        name: name.clone(),
        kind: kind_of(name, entry.flags, &folder),
        state: state_of(entry.flags, &folder),
        speed_mbit_per_s: read(&folder, "speed")
            .and_then(|speed| speed.parse().ok())
            .filter(|&speed| speed > 0),
        addresses: Vec::new(),
    }
}

fn address_of(entry: &InterfaceAddress) -> Option<Address> {
    let ip = ip_of(entry.address.as_ref()?)?;
    let ones = match entry.netmask.as_ref().and_then(ip_of) {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None => 0,
    };
    Some(Address { ip, prefix_bits: u8::try_from(ones).unwrap_or(0) })
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn state_of(flags: InterfaceFlags, folder: &Path) -> LinkState {
    let carrier = read(folder, "carrier").is_none_or(|carrier| carrier != "0");
    match (flags.contains(InterfaceFlags::IFF_UP), flags.contains(InterfaceFlags::IFF_RUNNING) && carrier) {
        (false, _) => LinkState::Down,
        (true, false) => LinkState::NoCarrier,
        (true, true) => LinkState::Up,
    }
}

/// What the kernel's files say first, names where they are missing (a container may not see them).
fn kind_of(name: &str, flags: InterfaceFlags, folder: &Path) -> InterfaceKind {
    if flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        return InterfaceKind::Loopback;
    }
    let hardware = read(folder, "type").and_then(|hardware| hardware.parse::<u32>().ok());
    match hardware {
        Some(ARPHRD_INFINIBAND) => InterfaceKind::Infiniband,
        Some(hardware) if TUNNEL_TYPES.contains(&hardware) => InterfaceKind::Tunnel,
        _ if folder.join("bridge").exists() || has_prefix(name, &BRIDGE_NAMES) => InterfaceKind::Bridge,
        _ if folder.join("tun_flags").exists() || has_prefix(name, &TUNNEL_NAMES) => InterfaceKind::Tunnel,
        None if name.starts_with("ib") => InterfaceKind::Infiniband,
        _ => InterfaceKind::Ethernet,
    }
}

fn has_prefix(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

fn read(folder: &Path, file: &str) -> Option<String> {
    fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned())
}

/// Hardware types, from the kernel's `if_arp.h`.
const ARPHRD_INFINIBAND: u32 = 32;

/// PPP, IP in IP, IP in IPv6, SIT, GRE, IPv6 GRE, and none (tun, WireGuard).
const TUNNEL_TYPES: [u32; 7] = [512, 768, 769, 776, 778, 823, 65534];

const BRIDGE_NAMES: [&str; 9] = ["docker", "br-", "virbr", "veth", "cni", "podman", "lxcbr", "lxdbr", "cali"];

const TUNNEL_NAMES: [&str; 9] = ["tun", "tap", "wg", "sit", "gre", "ip6tnl", "tunl", "tailscale", "flannel"];

const LATELY_IS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback_interface() {
        let interfaces = list().unwrap();
        let loopback = interfaces.iter().find(|one| one.kind == InterfaceKind::Loopback).unwrap();
        let v4 = loopback.addresses.iter().find(|address| address.ip.is_ipv4()).unwrap();
        assert!(v4.ip.is_loopback());
        assert_eq!(v4.prefix_bits, 8);
        assert_eq!(loopback.state, LinkState::Up);
    }

    #[test]
    fn the_route_to_loopback_starts_there() {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(source_towards(loopback), Ok(loopback));
        // Nothing routes to the broadcast address of nowhere without a permission a plain socket lacks.
        let error = source_towards(Ipv4Addr::BROADCAST.into()).unwrap_err();
        assert!(error.cause().contains("255.255.255.255"), "{error}");
    }

    #[test]
    fn kinds_follow_files_before_names() {
        let folder = std::env::temp_dir().join(format!("ccl-interfaces-{}", std::process::id()));
        fs::create_dir_all(folder.join("bridge")).unwrap();
        let flags = InterfaceFlags::IFF_UP;
        assert_eq!(kind_of("mybridge", flags, &folder), InterfaceKind::Bridge);
        fs::write(folder.join("type"), "32\n").unwrap();
        assert_eq!(kind_of("eth0", flags, &folder), InterfaceKind::Infiniband);
        fs::write(folder.join("type"), "65534\n").unwrap();
        assert_eq!(kind_of("eth0", flags, &folder), InterfaceKind::Tunnel);
        fs::remove_dir_all(&folder).unwrap();
        for (name, kind) in [
            ("docker0", InterfaceKind::Bridge),
            ("wg0", InterfaceKind::Tunnel),
            ("ib0", InterfaceKind::Infiniband),
            ("enp3s0", InterfaceKind::Ethernet),
        ] {
            assert_eq!(kind_of(name, flags, &folder), kind, "{name}");
        }
        assert_eq!(kind_of("lo", InterfaceFlags::IFF_LOOPBACK, &folder), InterfaceKind::Loopback);
    }

    #[test]
    fn a_link_without_carrier_is_not_up() {
        let nowhere = Path::new("/nonexistent");
        let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        assert_eq!(state_of(running, nowhere), LinkState::Up);
        assert_eq!(state_of(InterfaceFlags::IFF_UP, nowhere), LinkState::NoCarrier);
        assert_eq!(state_of(InterfaceFlags::IFF_RUNNING, nowhere), LinkState::Down);
    }
}
