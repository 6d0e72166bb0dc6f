//! Sockets for the control connection: framed, non-blocking, never inherited by other programs.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::bootstrap::BootstrapSettings;
use crate::bootstrap::machine::Ending;
use crate::bootstrap::wire::{Decoder, Frame, MEMBER_BYTES};
use crate::error::{Error, Result};

/// Frames on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that are out already.
    sent: usize,
    size_bytes: usize,
}

impl Outbox {
    /// Adds a frame; false if the other side is so slow that too much waits already.
    pub(crate) fn push(&mut self, frame: Frame) -> bool {
        if self.size_bytes > OUTBOX_BYTES {
            return false;
        }
        self.size_bytes += frame.len();
        self.frames.push_back(frame);
        true
    }

    /// Sends what the socket takes without blocking.
    pub(crate) fn flush(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        while let Some(frame) = self.frames.front() {
            match stream.write(&frame[self.sent..]) {
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        if let Some(frame) = self.frames.front().filter(|frame| frame.len() == self.sent) {
            (self.size_bytes, self.sent) = (self.size_bytes - frame.len(), 0);
            self.frames.pop_front();
        }
    }
}

/// Reads what is there, up to a bounded amount, and hands each whole frame to `take`.
///
/// An error says how the connection ended.
pub(crate) fn receive(
    mut stream: &TcpStream,
    decoder: &mut Decoder,
    mut take: impl FnMut(Vec<u8>),
) -> Result<(), Ending> {
    let mut buffer = [0; READ_BYTES];
    for _ in 0..READS_PER_TURN {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(Ending::Closed),
            Ok(count) => decoder.push(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ending(&error)),
        }
        loop {
            match decoder.pop() {
                Ok(Some(body)) => take(body),
                Ok(None) => break,
                Err(long) => {
                    let (found, most) = (long.size_bytes, long.limit_bytes);
                    return Err(Ending::Broken(format!(
                        "expected frames of at most {most} bytes, found {found}"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// What an error says about how the connection ended.
pub(crate) fn ending(error: &io::Error) -> Ending {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            Ending::Closed
        }
        _ => Ending::Unreachable(error.to_string()),
    }
}

/// Wakes a thread out of [`wait`].
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> Result<Waker> {
        match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
            Ok(descriptor) => Ok(Waker(descriptor)),
            Err(error) => {
                Err(Error::system("eventfd", error, "raise the limit of open descriptors (ulimit -n)"))
            }
        }
    }

    /// Wakes the thread now or when it next waits. A full counter is as good as a wake.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets the wakes so far.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `polled` is ready or `timeout` has passed; a signal counts as ready.
pub(crate) fn wait(polled: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.map(|time| Timespec {
        tv_sec: time.as_secs().min(LONGEST_WAIT_S) as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    if rustix::event::poll(polled, timeout.as_ref()).is_err() {
        for entry in polled {
            entry.clear_revents();
        }
    }
}

/// What to poll a connection for.
pub(crate) fn interest(outbox: &Outbox) -> PollFlags {
    match outbox.is_empty() {
        true => PollFlags::IN,
        false => PollFlags::IN | PollFlags::OUT,
    }
}

/// A listener on the chosen address, at a port of the chosen range.
pub(crate) fn listen(settings: &BootstrapSettings) -> Result<TcpListener> {
    let address = settings.bind.unwrap_or_else(primary_address);
    let (first, last) = settings.port_range.clone().unwrap_or(0..=0).into_inner();
    let mut failure = io::Error::from(io::ErrorKind::AddrInUse);
    for port in first..=last {
        match listen_at(SocketAddr::new(address, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    let doing = format!("listen at {address}, ports {first} to {last}");
    Err(Error::system(
        &doing,
        failure,
        "choose another port range or interface, see `ss -ltnp` for who has the ports",
    ))
}

/// The addresses at which others reach `listener`, best first.
pub(crate) fn reachable(listener: &TcpListener) -> Result<Vec<SocketAddr>> {
    let advice = "this is the listening socket's own address: report this";
    let local = listener.local_addr().map_err(|error| Error::system("getsockname", error, advice))?;
    if !local.ip().is_unspecified() {
        return Ok(vec![local]);
    }
    let mut addresses = vec![primary_address(), IpAddr::V4(Ipv4Addr::LOCALHOST)];
    addresses.dedup();
    Ok(addresses.into_iter().map(|address| SocketAddr::new(address, local.port())).collect())
}

pub(crate) fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Starts to connect; the socket is writable when that is over, see [`connected`].
pub(crate) fn connect(address: SocketAddr, settings: &BootstrapSettings) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    let stream = socket.into();
    tune(&stream, settings)?;
    Ok(stream)
}

/// Whether a connection that became writable is there.
pub(crate) fn connected(stream: &TcpStream) -> io::Result<()> {
    match stream.take_error()? {
        Some(error) => Err(error),
        None => stream.peer_addr().map(|_| ()),
    }
}

/// No delay; the kernel notices a dead path by itself, even when nothing is sent.
pub(crate) fn tune(stream: &TcpStream, settings: &BootstrapSettings) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let pause = settings.heartbeat.clamp(Duration::from_secs(1), LONGEST_KEEPALIVE);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(pause).with_interval(pause))?;
    socket.set_tcp_user_timeout(Some(settings.link_timeout.min(LONGEST_LINK_TIMEOUT)))
}

/// The address from which this host reaches others; loopback if it reaches none. Sends nothing.
fn primary_address() -> IpAddr {
    let towards = |from: &str, to: &str| -> io::Result<IpAddr> {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        Ok(socket.local_addr()?.ip())
    };
    let found = towards("0.0.0.0:0", "192.0.2.1:9").or_else(|_| towards("[::]:0", "[2001:db8::1]:9"));
    found.ok().filter(|address| !address.is_unspecified()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Bytes that may wait for a slow receiver before it counts as unreachable.
const OUTBOX_BYTES: usize = 2 * MEMBER_BYTES;
const READ_BYTES: usize = 16 << 10;
const READS_PER_TURN: usize = 64;
const BACKLOG: i32 = 4096;
/// The longest pauses the kernel takes are 32767 s between signs of life, 2^31 ms without answer.
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(32_000);
const LONGEST_LINK_TIMEOUT: Duration = Duration::from_secs(3600 * 24);
const LONGEST_WAIT_S: u64 = 1 << 30;
