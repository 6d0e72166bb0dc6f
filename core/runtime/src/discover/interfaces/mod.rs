//! Network interfaces: which there are, and which one to use.
//!
//! [`list`] asks the system; [`choose`] decides over any list and says, for each interface it leaves out,
//! why. [`source_towards`] asks the kernel by which of our addresses it would reach another.

mod choose;
mod list;

use std::fmt;
use std::net::IpAddr;

pub use choose::{Choice, Chosen, Rejected, Wishes, choose};
pub(crate) use list::list_lately;
pub use list::{list, source_towards};

/// A network interface and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, as in "eth0".
    pub name: String,
    /// What it is.
    pub kind: InterfaceKind,
    /// Whether it can carry data now.
    pub state: LinkState,
    /// Its speed, if the system knows it, in 10⁶ bits per second.
    pub speed_mbit_per_s: Option<u32>,
    /// Its addresses, in the system's order.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The bits of it that name the subnet.
    pub prefix_bits: u8,
}

/// What an interface is, as far as it matters to the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterfaceKind {
    /// IP over InfiniBand.
    Infiniband,
    /// A network adapter, real or the host's virtual one, or a bond or VLAN over one.
    Ethernet,
    /// A tunnel: tun, WireGuard, 6in4, GRE.
    Tunnel,
    /// A bridge or a container's end of one: docker, podman, virbr, veth.
    Bridge,
    /// The way back to this host.
    Loopback,
}

/// Whether an interface can carry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It can.
    Up,
    /// Nobody switched it on.
    Down,
    /// It is on and has no carrier.
    NoCarrier,
}

impl Address {
    /// Whether `other` is in the address's subnet.
    pub fn reaches(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same_prefix(own.to_bits().into(), other.to_bits().into(), 32, self.prefix_bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                same_prefix(own.to_bits(), other.to_bits(), 128, self.prefix_bits)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_bits)
    }
}

impl fmt::Display for InterfaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InterfaceKind::Infiniband => "InfiniBand",
            InterfaceKind::Ethernet => "adapter",
            InterfaceKind::Tunnel => "tunnel",
            InterfaceKind::Bridge => "bridge",
            InterfaceKind::Loopback => "loopback",
        })
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkState::Up => "up",
            LinkState::Down => "down",
            LinkState::NoCarrier => "up without carrier",
        })
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {}", self.name, self.kind, self.state)?;
        match self.addresses.is_empty() {
            true => write!(f, ", no address")?,
            false => self.addresses.iter().try_for_each(|address| write!(f, ", {address}"))?,
        }
        write!(f, ")")
    }
}

fn same_prefix(one: u128, other: u128, width: u32, prefix_bits: u8) -> bool {
    let free_bits = width.saturating_sub(prefix_bits.into());
    free_bits >= width || one >> free_bits == other >> free_bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_reach_their_own() {
        let address = Address { ip: [10, 1, 2, 3].into(), prefix_bits: 16 };
        assert!(address.reaches([10, 1, 99, 99].into()));
        assert!(!address.reaches([10, 2, 2, 3].into()));
        assert!(!address.reaches("::1".parse().unwrap()));
        assert!(Address { prefix_bits: 0, ..address }.reaches([8, 8, 8, 8].into()));
        assert!(!Address { prefix_bits: 32, ..address }.reaches([10, 1, 2, 4].into()));
        let address = Address { ip: "fd00::1".parse().unwrap(), prefix_bits: 64 };
        assert!(address.reaches("fd00::ffff".parse().unwrap()));
        assert!(!address.reaches("fd00:0:0:1::1".parse().unwrap()));
    }
}
