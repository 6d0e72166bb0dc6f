//! One listening port, shared by all listeners of a device.
//!
//! A connection is a stranger until its hello names a listener's cookie and key. Strangers have a
//! deadline, there are never more than [`MAX_STRANGERS`] of them (the oldest goes), and each costs
//! one buffer of a hello's size. Nothing here waits: [`Port::poll`] does what can be done now.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use ccl_plugin::Error;
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;
use crate::pacing;
use crate::stream::Stream;
use crate::wire::{HELLO_BYTES, Hello, Target};

/// A connection whose sockets are all there.
pub(crate) struct Arrival {
    /// One for each lane, in order.
    pub(crate) streams: Vec<Stream>,
    pub(crate) peer: SocketAddr,
    pub(crate) stripe_min_bytes: u64,
}

/// The port of one device.
pub(crate) struct Port {
    socket: Socket,
    /// Whether the system would pace its connections, which begin without.
    may_pace: bool,
    address: SocketAddr,
    config: Config,
    strangers: VecDeque<Stranger>,
    groups: Vec<Group>,
    doors: Vec<Door>,
}

/// A listener, seen from its port.
struct Door {
    cookie: u64,
    key: [u8; 32],
    arrivals: VecDeque<Arrival>,
}

/// An accepted socket that has not said its hello.
struct Stranger {
    stream: Stream,
    peer: SocketAddr,
    bytes: [u8; HELLO_BYTES],
    filled: usize,
    deadline: Instant,
}

/// A connection some of whose sockets are there.
struct Group {
    hello: Hello,
    peer: SocketAddr,
    streams: Vec<Option<Stream>>,
    deadline: Instant,
}

impl Port {
    /// Listens on the interface's address, on a free port of the configured range.
    pub(crate) fn open(address: SocketAddr, config: &Config) -> Result<Port, Error> {
        let (first, last) = config.port_range.clone().into_inner();
        let mut failed = None;
        for port in first..=last {
            let mut at = address;
            at.set_port(port);
            match bind(at) {
                Ok(socket) => return Port::from_socket(socket, config),
                Err(error) => failed = Some(error),
            }
        }
        let error = failed.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable));
        let place = match last {
            0 => format!("listen on {}", address.ip()),
            _ => format!("listen on {} in ports {first}-{last}", address.ip()),
        };
        Err(Error::system(place, &error))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a listener.
    pub(crate) fn open_door(&mut self, target: &Target) {
        self.doors.push(Door { cookie: target.cookie, key: target.key, arrivals: VecDeque::new() });
    }

    /// Removes a listener; connections it did not take are closed.
    pub(crate) fn close_door(&mut self, cookie: u64) {
        self.doors.retain(|door| door.cookie != cookie);
        self.groups.retain(|group| group.hello.cookie != cookie);
    }

    /// The next connection of a listener that [`Port::poll`] completed.
    pub(crate) fn arrival(&mut self, cookie: u64) -> Option<Arrival> {
        self.doors.iter_mut().find(|door| door.cookie == cookie)?.arrivals.pop_front()
    }

    /// Accepts, reads hellos, and drops who is late.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<(), Error> {
        for _ in 0..ACCEPTS_PER_POLL {
            match self.socket.accept_raw() {
                Ok((socket, peer)) => self.admit(socket, peer.as_socket(), now),
                Err(error) if is_passing(&error) => break,
                // Strangers hold what is short: the oldest has had the longest time.
                Err(error) if is_shortage(&error) && self.strangers.pop_front().is_some() => break,
                Err(error) => return Err(Error::system(format_args!("accept on {}", self.address), &error)),
            }
        }
        self.read_hellos(now);
        self.groups.retain(|group| now < group.deadline);
        Ok(())
    }

    fn from_socket(socket: Socket, config: &Config) -> Result<Port, Error> {
        let address = socket
            .local_addr()
            .and_then(|address| address.as_socket().ok_or(io::ErrorKind::Unsupported.into()))
            .map_err(|error| Error::system("ask for the port that was given", &error))?;
        let (config, may_pace) = (config.clone(), pacing::turn_off(&socket));
        Ok(Port {
            socket,
            may_pace,
            address,
            config,
            strangers: VecDeque::new(),
            groups: Vec::new(),
            doors: Vec::new(),
        })
    }

    fn admit(&mut self, socket: Socket, peer: Option<SocketAddr>, now: Instant) {
        let Some(peer) = peer else { return };
        let Ok(stream) = Stream::accepted(socket, &self.config, self.may_pace) else { return };
        if self.strangers.len() == MAX_STRANGERS
            && let Some(oldest) = self.strangers.pop_front()
        {
            tracing::warn!("{MAX_STRANGERS} connections without a hello; dropped that of {}", oldest.peer);
        }
        let deadline = now + self.config.handshake_timeout;
        self.strangers.push_back(Stranger { stream, peer, bytes: [0; HELLO_BYTES], filled: 0, deadline });
    }

    fn read_hellos(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(stranger) = self.strangers.get_mut(index) {
            let verdict = stranger.on_poll(now);
            if matches!(verdict, Ok(None)) {
                index += 1;
                continue;
            }
            // The order of strangers is their age; the queue is short.
            let Some(Stranger { stream, peer, .. }) = self.strangers.remove(index) else { break };
            let greeted = match verdict {
                Ok(Some(hello)) => self.greet(stream, peer, hello, now),
                Ok(None) => Ok(()),
                Err(why) => Err(why),
            };
            if let Err(why) = greeted {
                tracing::warn!("dropped a connection from {peer}: {why}");
            }
        }
    }

    /// Puts a socket with its hello where it belongs.
    fn greet(
        &mut self,
        stream: Stream,
        peer: SocketAddr,
        hello: Hello,
        now: Instant,
    ) -> Result<(), &'static str> {
        let Some(door) = self.doors.iter_mut().find(|door| door.cookie == hello.cookie) else {
            return Err("no listener has its cookie");
        };
        if !same_key(&door.key, &hello.key) {
            return Err("its key is not the listener's");
        }
        let deadline = now + self.config.handshake_timeout;
        let found = self.groups.iter().position(|group| group.is_of(&hello));
        let index = found.unwrap_or_else(|| {
            self.groups.push(Group::new(hello, peer, deadline));
            self.groups.len() - 1
        });
        let group = &mut self.groups[index];
        group.deadline = deadline;
        if group.streams[usize::from(hello.lane)].replace(stream).is_some() {
            self.groups.swap_remove(index);
            return Err("it said twice that it is the same socket of a connection");
        }
        if group.streams.iter().all(Option::is_some) {
            let Group { hello, peer, streams, .. } = self.groups.swap_remove(index);
            let streams = streams.into_iter().flatten().collect();
            door.arrivals.push_back(Arrival { streams, peer, stripe_min_bytes: hello.stripe_min_bytes });
        }
        Ok(())
    }
}

impl Stranger {
    /// The hello once all of it is there; why the socket is to be closed if it never will be.
    fn on_poll(&mut self, now: Instant) -> Result<Option<Hello>, &'static str> {
        match self.stream.read(&mut self.bytes[self.filled..]) {
            Ok(Some(0)) => return Err("it closed before its hello"),
            Ok(Some(bytes)) => self.filled += bytes,
            Ok(None) if now >= self.deadline => return Err("its hello did not come in time"),
            Ok(None) => return Ok(None),
            Err(_) => return Err("it was reset before its hello"),
        }
        if self.filled < HELLO_BYTES {
            // Trickling bytes does not buy time.
            return if now >= self.deadline { Err("its hello did not come in time") } else { Ok(None) };
        }
        Hello::decode(&self.bytes).map(Some)
    }
}

impl Group {
    fn new(hello: Hello, peer: SocketAddr, deadline: Instant) -> Group {
        let streams = std::iter::repeat_with(|| None).take(usize::from(hello.lanes)).collect();
        Group { hello, peer, streams, deadline }
    }

    fn is_of(&self, hello: &Hello) -> bool {
        (self.hello.cookie, self.hello.connection, self.hello.lanes)
            == (hello.cookie, hello.connection, hello.lanes)
    }
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    // Ports of a fixed range are wanted again right after a job ends. On Linux this still refuses a
    // port that somebody listens on.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Errors of accept that mean that something is used up.
fn is_shortage(error: &io::Error) -> bool {
    let used_up = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| used_up.contains(&errno))
}

/// Errors of accept that are about one connection, or about now; on Linux also those that its network had.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
        || error.raw_os_error().is_some_and(|errno| OF_ONE_CONNECTION.contains(&errno))
}

/// Takes the same time wherever the keys differ.
fn same_key(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Accepted sockets that may wait for their hello at a time.
const MAX_STRANGERS: usize = 128;
/// So that a flood cannot keep one poll busy.
const ACCEPTS_PER_POLL: usize = 32;
/// What Linux has `accept` say of a connection that broke before it was taken.
const OF_ONE_CONNECTION: [i32; 8] = [
    libc::EPROTO,
    libc::ENETDOWN,
    libc::ENETUNREACH,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::ENONET,
    libc::ENOPROTOOPT,
    libc::EOPNOTSUPP,
];
const BACKLOG: i32 = 4096;
