//! Deciding which interfaces to use.
//!
//! In order:
//!
//! 1. Interfaces that cannot serve are left out: down, without carrier, without an address of the wished
//!    family that other hosts could reach.
//! 2. If `CCL_SOCKET_IFNAME` names interfaces, those are used, in its order, whatever they are; if it
//!    excludes some, the rest goes on.
//! 3. The interface by which the kernel routes to the root comes first, then those in the root's subnet.
//! 4. The others follow by kind (InfiniBand, adapters), the fastest first.
//! 5. Tunnels, bridges and loopback are used only if nothing better is left: bridges, then loopback.
//!    Tunnels only by name or as the route to the root.

use std::cmp::Reverse;
use std::fmt::Write;
use std::net::IpAddr;

use crate::config::{Config, Family, Kind, NameFilter};
use crate::discover::interfaces::{Address, Interface, InterfaceKind, LinkState};
use crate::error::{Error, Result};

/// What the user and the situation ask of an interface.
#[derive(Clone, Debug, Default)]
pub struct Wishes<'a> {
    /// Names to take or to leave.
    pub names: Option<&'a NameFilter>,
    /// The IP version to use.
    pub family: Option<Family>,
    /// The root's address, if it is known.
    pub root: Option<IpAddr>,
    /// The address from which the kernel would send to the root; see [`source_towards`](super::source_towards).
    pub route_source: Option<IpAddr>,
}

impl<'a> Wishes<'a> {
    /// The wishes of the settings.
    pub fn of(config: &'a Config) -> Wishes<'a> {
        Wishes {
            names: config.socket_ifname(),
            family: config.socket_family(),
            root: None,
            route_source: None,
        }
    }

    /// The same wishes, with the root's address and our address towards it.
    #[must_use]
    pub fn towards(mut self, root: IpAddr, route_source: Option<IpAddr>) -> Wishes<'a> {
        self.root = Some(root);
        self.route_source = route_source;
        self
    }
}

/// The interfaces to use, and why not the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The usable interfaces with the address to use, best first; never empty.
    pub chosen: Vec<Chosen>,
    /// The others.
    pub rejected: Vec<Rejected>,
}

/// An interface to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// The address to bind to and to publish.
    pub address: Address,
    /// What it is.
    pub kind: InterfaceKind,
    /// Why it stands where it stands, in words.
    pub reason: &'static str,
}

/// An interface that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Its name.
    pub name: String,
    /// Why not, in words.
    pub reason: String,
}

/// Decides which interfaces to use. Equal inputs give equal choices.
///
/// # Errors
/// None can be used. The error lists those present, each with its reason.
pub fn choose(interfaces: &[Interface], wishes: &Wishes<'_>) -> Result<Choice> {
    let mut rejected = Vec::new();
    let mut candidates = Vec::new();
    for (place, interface) in interfaces.iter().enumerate() {
        match consider(interface, wishes) {
            Ok(address) => candidates.push(Candidate::new(interface, address, place, wishes)),
            Err(reason) => rejected.push(Rejected { name: interface.name.clone(), reason }),
        }
    }
    candidates.sort_by_key(|candidate| candidate.key);
    let best = candidates.first().map(|candidate| candidate.key.class.is_last_resort());
    let mut chosen = Vec::new();
    for candidate in candidates {
        // A last resort stands alone: nothing is spread over a bridge and loopback together.
        if candidate.key.class.is_last_resort() && (best == Some(false) || !chosen.is_empty()) {
            rejected.push(Rejected { reason: candidate.kind_reason(), name: candidate.name });
        } else {
            chosen.push(candidate.into_chosen());
        }
    }
    match chosen.is_empty() {
        true => Err(none_usable(interfaces, &rejected, wishes)),
        false => Ok(Choice { chosen, rejected }),
    }
}

/// An interface that could serve.
struct Candidate {
    name: String,
    address: Address,
    kind: InterfaceKind,
    key: SortKey,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    class: Class,
    position: usize,
    kind: InterfaceKind,
    slowness: Reverse<u32>,
    place: usize,
}

/// Why an interface is taken, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Named,
    RouteToRoot,
    SubnetOfRoot,
    Plain,
    Bridge,
    Loopback,
}

impl Class {
    fn is_last_resort(self) -> bool {
        matches!(self, Class::Bridge | Class::Loopback)
    }

    fn reason(self) -> &'static str {
        match self {
            Class::Named => "CCL_SOCKET_IFNAME names it",
            Class::RouteToRoot => "the route to the root goes through it",
            Class::SubnetOfRoot => "the root is in its subnet",
            Class::Plain => "it is up and has an address that others can reach",
            Class::Bridge => "nothing but bridges is left",
            Class::Loopback => "nothing but loopback is left: ranks on other nodes cannot reach it",
        }
    }
}

impl Candidate {
    fn new(interface: &Interface, address: Address, place: usize, wishes: &Wishes<'_>) -> Candidate {
        let position = wishes.names.and_then(|names| names.position(&interface.name));
        let class = match position {
            Some(_) => Class::Named,
            None => class_of(interface, wishes),
        };
        let slowness = Reverse(interface.speed_mbit_per_s.unwrap_or(0));
        let key = SortKey { class, position: position.unwrap_or(0), kind: interface.kind, slowness, place };
        Candidate { name: interface.name.clone(), address, kind: interface.kind, key }
    }

    fn kind_reason(&self) -> String {
        format!("it is a {}, and something better is left", self.kind)
    }

    fn into_chosen(self) -> Chosen {
        Chosen { name: self.name, address: self.address, kind: self.kind, reason: self.key.class.reason() }
    }
}

/// The class of an interface that nobody named.
fn class_of(interface: &Interface, wishes: &Wishes<'_>) -> Class {
    let routed = routes_to_root(interface, wishes);
    let near = |root| interface.addresses.iter().any(|address| address.reaches(root));
    match interface.kind {
        _ if routed => Class::RouteToRoot,
        InterfaceKind::Bridge => Class::Bridge,
        InterfaceKind::Loopback => Class::Loopback,
        _ if wishes.root.is_some_and(near) => Class::SubnetOfRoot,
        _ => Class::Plain,
    }
}

/// Whether the route to the root starts at `interface`. A root on this host is reached through loopback, and that
/// says nothing about how the others come.
fn routes_to_root(interface: &Interface, wishes: &Wishes<'_>) -> bool {
    let source = wishes.route_source.filter(|source| !source.is_loopback());
    source.is_some_and(|source| interface.addresses.iter().any(|address| address.ip == source))
}

/// The address to use of an interface, or why it cannot serve.
fn consider(interface: &Interface, wishes: &Wishes<'_>) -> Result<Address, String> {
    let named = wishes.names.is_some_and(|names| names.position(&interface.name).is_some());
    if let Some(names) = wishes.names.filter(|names| !names.allows(&interface.name)) {
        return Err(format!("CCL_SOCKET_IFNAME ({}) leaves it out", names.print()));
    }
    match interface.state {
        LinkState::Down => return Err("it is down".into()),
        LinkState::NoCarrier => return Err("it has no carrier".into()),
        LinkState::Up => {}
    }
    if interface.kind == InterfaceKind::Tunnel && !named && !routes_to_root(interface, wishes) {
        return Err("it is a tunnel; CCL_SOCKET_IFNAME can name it".into());
    }
    usable_address(interface, wishes)
}

/// The best usable address: the one the kernel would use, then one in the root's subnet, then IPv4.
fn usable_address(interface: &Interface, wishes: &Wishes<'_>) -> Result<Address, String> {
    if interface.addresses.is_empty() {
        return Err("it has no address".into());
    }
    let of_family = |address: &&Address| match wishes.family {
        Some(Family::Inet) => address.ip.is_ipv4(),
        Some(Family::Inet6) => address.ip.is_ipv6(),
        None => true,
    };
    let usable: Vec<_> = interface.addresses.iter().filter(of_family).collect();
    if usable.is_empty() {
        let family = wishes.family.map_or(String::new(), |family| family.print());
        return Err(format!("it has no {family} address (CCL_SOCKET_FAMILY)"));
    }
    let reachable = usable.into_iter().filter(|address| is_reachable(address.ip));
    let best = reachable.min_by_key(|address| {
        let other_family = wishes.root.is_some_and(|root| root.is_ipv4() != address.ip.is_ipv4());
        let routed = wishes.route_source == Some(address.ip);
        let near = wishes.root.is_some_and(|root| address.reaches(root));
        (!routed, !near, other_family, address.ip.is_ipv6())
    });
    best.copied()
        .ok_or_else(|| "its addresses are link-local: they mean nothing without the interface".into())
}

/// Whether an address means the same to other hosts as to this one (or is loopback, which is judged by kind).
fn is_reachable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_unspecified() && !v4.is_multicast(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_unspecified() && !v6.is_multicast(),
    }
}

fn none_usable(interfaces: &[Interface], rejected: &[Rejected], wishes: &Wishes<'_>) -> Error {
    let wish = wishes
        .names
        .map_or(String::new(), |names| format!(" that CCL_SOCKET_IFNAME={} allows", names.print()));
    let mut cause = format!("expected a usable network interface{wish}, found");
    for (interface, separator) in interfaces.iter().zip([" "].into_iter().chain(std::iter::repeat("; "))) {
        let reason =
            rejected.iter().find(|other| other.name == interface.name).map_or("", |other| &other.reason);
        // Writing to a string cannot fail.
        let _ = write!(cause, "{separator}{interface}: {reason}");
    }
    if interfaces.is_empty() {
        cause.push_str(" no interface at all");
    }
    Error::usage(cause, "name an interface of this list in CCL_SOCKET_IFNAME, or bring one up")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface(name: &str, kind: InterfaceKind, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|text| {
            let (ip, bits) = text.split_once('/').unwrap();
            Address { ip: ip.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
        });
        Interface {
            name: name.into(),
            kind,
            state: LinkState::Up,
            speed_mbit_per_s: None,
            addresses: addresses.collect(),
        }
    }

    /// A machine with one of everything.
    fn zoo() -> Vec<Interface> {
        let mut down = interface("eth9", InterfaceKind::Ethernet, &["10.9.0.1/16"]);
        down.state = LinkState::Down;
        let mut unplugged = interface("eth8", InterfaceKind::Ethernet, &["10.8.0.1/16"]);
        unplugged.state = LinkState::NoCarrier;
        let mut fast = interface("eth1", InterfaceKind::Ethernet, &["10.1.0.1/16"]);
        fast.speed_mbit_per_s = Some(100_000);
        vec![
            interface("lo", InterfaceKind::Loopback, &["127.0.0.1/8", "::1/128"]),
            interface("ip6tnl0", InterfaceKind::Tunnel, &["fd77::1/64"]),
            interface("docker0", InterfaceKind::Bridge, &["172.17.0.1/16"]),
            down,
            unplugged,
            interface("eth0", InterfaceKind::Ethernet, &["10.0.0.1/16", "fd00::1/64"]),
            fast,
            interface("eth2", InterfaceKind::Ethernet, &["fe80::1/64"]),
            interface("eth3", InterfaceKind::Ethernet, &[]),
        ]
    }

    fn names(choice: &Choice) -> Vec<&str> {
        choice.chosen.iter().map(|chosen| chosen.name.as_str()).collect()
    }

    fn filter(text: &str) -> NameFilter {
        NameFilter::parse(text).unwrap()
    }

    #[test]
    fn adapters_come_first_and_every_other_has_its_reason() {
        let choice = choose(&zoo(), &Wishes::default()).unwrap();
        assert_eq!(names(&choice), ["eth1", "eth0"]);
        let reason = |name| choice.rejected.iter().find(|one| one.name == name).unwrap().reason.clone();
        for (name, part) in [
            ("lo", "loopback"),
            ("ip6tnl0", "tunnel"),
            ("docker0", "bridge"),
            ("eth9", "down"),
            ("eth8", "carrier"),
            ("eth2", "link-local"),
            ("eth3", "no address"),
        ] {
            assert!(reason(name).contains(part), "{name}: {}", reason(name));
        }
    }

    #[test]
    fn infiniband_comes_before_ethernet() {
        let mut machine = zoo();
        machine.push(interface("ib0", InterfaceKind::Infiniband, &["10.4.0.1/16"]));
        assert_eq!(names(&choose(&machine, &Wishes::default()).unwrap()), ["ib0", "eth1", "eth0"]);
    }

    #[test]
    fn the_route_to_the_root_beats_speed_and_kind() {
        let root = "10.0.7.7".parse().unwrap();
        let near = choose(&zoo(), &Wishes::default().towards(root, None)).unwrap();
        assert_eq!((names(&near)[0], near.chosen[0].reason), ("eth0", "the root is in its subnet"));
        let by_tunnel =
            Wishes::default().towards("fd99::1".parse().unwrap(), Some("fd77::1".parse().unwrap()));
        assert_eq!(names(&choose(&zoo(), &by_tunnel).unwrap())[0], "ip6tnl0");
        let v6 = Wishes::default().towards("fd00::5".parse().unwrap(), Some("fd00::1".parse().unwrap()));
        let choice = choose(&zoo(), &v6).unwrap();
        assert_eq!(choice.chosen[0].address.ip, "fd00::1".parse::<IpAddr>().unwrap());
        // A root on this host does not make everyone meet on loopback.
        let own = "127.0.0.1".parse().unwrap();
        assert_eq!(
            names(&choose(&zoo(), &Wishes::default().towards(own, Some(own))).unwrap()),
            ["eth1", "eth0"]
        );
    }

    #[test]
    fn a_named_interface_is_taken_whatever_it_is() {
        for (text, expected) in [
            ("lo", vec!["lo"]),
            ("docker,eth", vec!["docker0", "eth1", "eth0"]),
            ("=eth0,ip6tnl0", vec!["eth0", "ip6tnl0"]),
            ("^eth1", vec!["eth0"]),
            ("^eth", vec!["docker0"]),
            ("^eth,docker", vec!["lo"]),
        ] {
            let names_wished = filter(text);
            let wishes = Wishes { names: Some(&names_wished), ..Wishes::default() };
            assert_eq!(names(&choose(&zoo(), &wishes).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn the_family_decides_the_address() {
        let wishes = |family| Wishes { family: Some(family), ..Wishes::default() };
        let choice = choose(&zoo(), &wishes(Family::Inet6)).unwrap();
        assert_eq!(names(&choice), ["eth0"]);
        assert!(choice.chosen[0].address.ip.is_ipv6());
        assert!(choice.rejected.iter().any(|one| one.name == "eth1" && one.reason.contains("AF_INET6")));
        assert_eq!(names(&choose(&zoo(), &wishes(Family::Inet)).unwrap()), ["eth1", "eth0"]);
    }

    #[test]
    fn a_name_that_fits_nothing_is_an_error_that_lists_what_is_there() {
        let wished = filter("enp7s0");
        let error = choose(&zoo(), &Wishes { names: Some(&wished), ..Wishes::default() }).unwrap_err();
        for part in [
            "CCL_SOCKET_IFNAME=enp7s0",
            "eth0 (adapter, up, 10.0.0.1/16",
            "eth9 (adapter, down",
            "leaves it out",
        ] {
            assert!(error.cause().contains(part), "{part}: {error}");
        }
        let down = filter("eth9");
        let error = choose(&zoo(), &Wishes { names: Some(&down), ..Wishes::default() }).unwrap_err();
        assert!(error.cause().contains("it is down"), "{error}");
        assert!(choose(&[], &Wishes::default()).unwrap_err().cause().contains("no interface at all"));
    }

    #[test]
    fn loopback_is_the_last_resort_and_says_so() {
        let machine: Vec<_> =
            zoo().into_iter().filter(|one| one.name == "lo" || one.name == "eth9").collect();
        let choice = choose(&machine, &Wishes::default()).unwrap();
        assert_eq!(names(&choice), ["lo"]);
        assert!(choice.chosen[0].reason.contains("other nodes cannot reach it"));
    }

    proptest! {
        #[test]
        fn every_interface_is_chosen_or_has_a_reason(mask: u16, order: u64) {
            let mut machine: Vec<_> = zoo().into_iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, one)| one).collect();
            let turn = (order as usize).checked_rem(machine.len()).unwrap_or(0);
            machine.rotate_left(turn);
            if let Ok(choice) = choose(&machine, &Wishes::default()) {
                prop_assert_eq!(choice.chosen.len() + choice.rejected.len(), machine.len());
                prop_assert!(choice.rejected.iter().all(|one| !one.reason.is_empty()));
                let usable = |name: &str| machine.iter().any(|one| one.name == name && one.state == LinkState::Up);
                prop_assert!(choice.chosen.iter().all(|one| usable(&one.name)));
            }
        }
    }
}
