//! Connections to a store: over TCP, or on one node by a name.
//!
//! The name is an abstract Unix socket's: it is no file, so nothing stays behind. It has no permissions
//! either, so both sides look at who the other is and refuse another user.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::bootstrap::store::wait::left;
use crate::config::Endpoint;

/// Where a store listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(Endpoint),
    /// A name on this node, in this network namespace.
    Node(String),
}

impl Address {
    /// Connects once; waits at most until `deadline`.
    pub(super) fn connect(&self, deadline: Instant) -> io::Result<Stream> {
        match self {
            Address::Tcp(endpoint) => connect_tcp(endpoint, deadline).map(Stream::Tcp),
            Address::Node(name) => {
                let stream = UnixStream::connect_addr(&unix::SocketAddr::from_abstract_name(name)?)?;
                check_user(&stream)?;
                Ok(Stream::Unix(stream))
            }
        }
    }

    /// Listens, and does not block when accepting.
    pub(super) fn listen(&self) -> io::Result<Listener> {
        match self {
            Address::Tcp(endpoint) => {
                let listener = listen_tcp(endpoint)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
            Address::Node(name) => {
                let listener = UnixListener::bind_addr(&unix::SocketAddr::from_abstract_name(name)?)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(endpoint) => write!(f, "the store at {endpoint}"),
            Address::Node(name) => write!(f, "the store called {name} on this node"),
        }
    }
}

/// A connection to a store.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Limits each read and write from now on.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)).and(tcp.set_write_timeout(Some(timeout))),
            Stream::Unix(unix) => {
                unix.set_read_timeout(Some(timeout)).and(unix.set_write_timeout(Some(timeout)))
            }
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.set_nonblocking(true),
            Stream::Unix(unix) => unix.set_nonblocking(true),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => tcp.read(bytes),
            Stream::Unix(unix) => unix.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => tcp.write(bytes),
            Stream::Unix(unix) => unix.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(tcp) => tcp.as_fd(),
            Stream::Unix(unix) => unix.as_fd(),
        }
    }
}

/// Where connections arrive.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The next connection, which does not block either; another user's is refused.
    pub(super) fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Listener::Tcp(tcp) => Stream::Tcp(tcp.accept()?.0),
            Listener::Unix(unix) => {
                let stream = unix.accept()?.0;
                check_user(&stream)?;
                Stream::Unix(stream)
            }
        };
        stream.set_nonblocking()?;
        Ok(stream)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(tcp) => tcp.as_fd(),
            Listener::Unix(unix) => unix.as_fd(),
        }
    }
}

fn connect_tcp(endpoint: &Endpoint, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", endpoint.host));
    for address in resolve(endpoint)? {
        let Some(left) = left(deadline) else { return Err(io::ErrorKind::TimedOut.into()) };
        match TcpStream::connect_timeout(&address, left.min(LONGEST_CONNECT)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens at the endpoint's own address, or, where this host does not have it (behind a service's or a
/// translated address), at all of this host's.
fn listen_tcp(endpoint: &Endpoint) -> io::Result<TcpListener> {
    let addresses = resolve(endpoint)?;
    match TcpListener::bind(addresses.as_slice()) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let any: &[SocketAddr] = &[([0u16; 8], endpoint.port).into(), ([0u8; 4], endpoint.port).into()];
            TcpListener::bind(any)
        }
        bound => bound,
    }
}

fn resolve(endpoint: &Endpoint) -> io::Result<Vec<SocketAddr>> {
    let addresses = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", endpoint.host));
    addresses.map(Iterator::collect).map_err(named)
}

fn check_user(stream: &UnixStream) -> io::Result<()> {
    let peer = socket_peercred(stream)?.uid;
    match peer == geteuid() {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to user {}", peer.as_raw()),
        )),
    }
}

/// A host that drops packets must not use up the deadline at its first address.
const LONGEST_CONNECT: Duration = Duration::from_secs(5);
