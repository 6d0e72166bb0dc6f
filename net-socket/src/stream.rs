//! One non-blocking TCP socket, and the two system calls on its hot path.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use ccl_plugin::Error;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::config::Config;
use crate::convoy::Convoy;
use crate::halving::Halving;
use crate::pacing;

/// A connected, or connecting, non-blocking socket. The two directions of a turned connection share
/// it: one only writes, the other only reads.
pub(crate) struct Stream {
    socket: Arc<Socket>,
    /// Whether it leaves no host.
    is_near: bool,
}

/// Memory for one system call. Only addresses: who makes the call answers for them.
pub(crate) type Piece = libc::iovec;

/// A piece of memory.
#[inline]
pub(crate) fn piece(data: *const u8, bytes: usize) -> Piece {
    Piece { iov_base: data.cast_mut().cast(), iov_len: bytes }
}

impl Stream {
    /// A socket for connecting to `to` from the address `from`.
    pub(crate) fn dial(from: SocketAddr, to: SocketAddr, config: &Config) -> Result<Stream, Error> {
        let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))
            .map_err(|error| Error::system("make a socket", &error))?;
        let near = stays_on_host(from, to);
        tune(&socket, config, near);
        if near {
            pacing::turn_off(&socket);
        }
        if from.is_ipv4() == to.is_ipv4() {
            no_port_yet(&socket);
            socket
                .bind(&from.into())
                .map_err(|error| Error::system(format_args!("bind to {}", from.ip()), &error))?;
        }
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                Err(connect_error(&error, from, to))
            }
            _ => Ok(Stream { socket: Arc::new(socket), is_near: near }),
        }
    }

    /// A socket that was accepted where pacing is off. `may_pace`: the system would have it on.
    pub(crate) fn accepted(socket: Socket, config: &Config, may_pace: bool) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        // A peer that is gone again has no address; that will be noticed.
        let end = |address: io::Result<SockAddr>| address.ok()?.as_socket();
        let ends = end(socket.local_addr()).zip(end(socket.peer_addr()));
        let near = ends.is_some_and(|(from, to)| stays_on_host(from, to));
        tune(&socket, config, near);
        if may_pace && !near {
            pacing::turn_on(&socket);
        }
        Ok(Stream { socket: Arc::new(socket), is_near: near })
    }

    /// The same socket, for the other direction.
    pub(crate) fn turned(&self) -> Stream {
        Stream { socket: Arc::clone(&self.socket), is_near: self.is_near }
    }

    /// Whether its messages wait for company, from now on.
    pub(crate) fn convoy(&self) -> Convoy {
        Convoy::new(self.is_near)
    }

    /// Which of its messages are written in halves.
    pub(crate) fn halving(&self) -> Halving {
        Halving::new(self.is_near)
    }

    /// Lets what is written leave at once, or wait until what went before it is acknowledged; whether the kernel complies.
    #[cold]
    pub(crate) fn go_alone(&self, alone: bool) -> bool {
        self.socket.set_tcp_nodelay(alone).is_ok()
    }

    #[cfg(test)]
    pub(crate) fn goes_alone(&self) -> bool {
        self.socket.tcp_nodelay().unwrap()
    }

    /// Acknowledges what was read, if that has not been done.
    pub(crate) fn acknowledge(&self) {
        // Even, unlike 1: those after it are put off again.
        let once: libc::c_int = 2;
        // SAFETY: an int option. A refusal costs time only.
        unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_QUICKACK,
                (&raw const once).cast(),
                size_of_val(&once) as libc::socklen_t,
            );
        }
    }

    /// What to poll.
    pub(crate) fn descriptor(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Nothing more will be written: the peer hears of it after all that was. Where nobody else has the
    /// socket, closing says as much.
    pub(crate) fn end_writing(&self) {
        if Arc::strong_count(&self.socket) > 1 {
            // A connection that is broken needs no end.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Whether the connection is made yet.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads what is there; `None`: nothing yet; `Some(0)`: the peer closed.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        not_yet(rustix::net::recv(&self.socket, into, RecvFlags::empty()).map(|(_, bytes)| bytes))
    }

    /// Writes what fits; `None`: nothing now.
    pub(crate) fn write(&self, from: &[u8]) -> io::Result<Option<usize>> {
        not_yet(rustix::net::send(&self.socket, from, SendFlags::NOSIGNAL))
    }

    /// Lets acknowledgements wait for company: without this the kernel sends one for every short
    /// message as soon as it is read, where little travels the other way on this socket. The kernel
    /// forgets it after each pause of some 40 ms. A refusal costs speed only.
    pub(crate) fn delay_acks(&self) {
        let _ = self.socket.set_tcp_quickack(false);
    }

    /// Reads into several pieces with one call, as [`Stream::read`] does.
    ///
    /// # Safety
    ///
    /// Every piece is writable, and nobody else uses it during the call.
    #[inline]
    pub(crate) unsafe fn read_pieces(&self, pieces: &[Piece]) -> io::Result<Option<usize>> {
        if let [only] = pieces {
            // The plain call costs the kernel less, and polling makes it most often.
            // SAFETY: the caller's promise; the kernel only writes.
            let into =
                unsafe { slice::from_raw_parts_mut(only.iov_base.cast::<MaybeUninit<u8>>(), only.iov_len) };
            return not_yet(
                rustix::net::recv(&self.socket, into, RecvFlags::empty()).map(|(_, bytes)| bytes),
            );
        }
        // SAFETY: the caller's promise; the count is the slice's.
        let read = unsafe { libc::readv(self.socket.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32) };
        not_yet(usize::try_from(read).map_err(|_| last_error()))
    }

    /// Writes several pieces with one call, as [`Stream::write`] does. Raises no signal.
    ///
    /// # Safety
    ///
    /// Every piece is readable, and nobody changes it during the call.
    #[inline]
    pub(crate) unsafe fn write_pieces(&self, pieces: &[Piece]) -> io::Result<Option<usize>> {
        if total(pieces) <= GATHERED_BYTES {
            let mut gathered = [MaybeUninit::<u8>::uninit(); GATHERED_BYTES];
            let start = gathered.as_mut_ptr().cast::<u8>();
            let mut bytes = 0;
            for piece in pieces {
                // SAFETY: the caller's promise; all pieces together fit the array.
                unsafe {
                    std::ptr::copy_nonoverlapping(piece.iov_base.cast(), start.add(bytes), piece.iov_len);
                }
                bytes += piece.iov_len;
            }
            // SAFETY: so many bytes were just written there.
            return self.write(unsafe { slice::from_raw_parts(start, bytes) });
        }
        // SAFETY: all zeros is an empty message header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: the caller's promise; `sendmsg` only reads the header and the pieces.
        let wrote = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        not_yet(usize::try_from(wrote).map_err(|_| last_error()))
    }
}

/// Bytes of all pieces.
pub(crate) fn total(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// Keeps the first `most` bytes of them; how many pieces that takes.
pub(crate) fn truncate(pieces: &mut [Piece], most: usize) -> usize {
    let mut left = most;
    for (index, piece) in pieces.iter_mut().enumerate() {
        if piece.iov_len >= left {
            piece.iov_len = left;
            return index + usize::from(left > 0);
        }
        left -= piece.iov_len;
    }
    pieces.len()
}

/// Shorter messages are copied together: the kernel takes one piece faster than two.
const GATHERED_BYTES: usize = 1024;

/// The error of a connection that could not be made.
pub(crate) fn connect_error(error: &io::Error, from: SocketAddr, to: SocketAddr) -> Error {
    Error::system(format_args!("connect from {} to {to}", from.ip()), error)
        .with_code(ccl_plugin::Code::REMOTE)
        .with_peer(to)
}

#[inline]
fn not_yet(result: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        // An interrupted call is asked for again by whoever polls.
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Why the last call of libc on this thread failed.
fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Options whose refusal costs speed or a late diagnosis, never correctness: a line of log each.
fn tune(socket: &Socket, config: &Config, near: bool) {
    let log = |what: &str, result: io::Result<()>| {
        if let Err(error) = result {
            tracing::warn!("cannot set {what} on a socket: {error}");
        }
    };
    log("TCP_NODELAY", socket.set_tcp_nodelay(true));
    let send_buffer_bytes = match config.send_buffer_bytes {
        0 if near => NEAR_SEND_BUFFER_BYTES,
        bytes => bytes,
    };
    if send_buffer_bytes > 0 {
        log("SO_SNDBUF", socket.set_send_buffer_size(send_buffer_bytes));
    }
    if config.recv_buffer_bytes > 0 {
        log("SO_RCVBUF", socket.set_recv_buffer_size(config.recv_buffer_bytes));
    }
    if config.user_timeout > Duration::ZERO {
        log("TCP_USER_TIMEOUT", socket.set_tcp_user_timeout(Some(config.user_timeout)));
    }
    if config.keepalive > Duration::ZERO {
        let interval = (config.keepalive / 3).max(Duration::from_secs(1));
        let idle = config.keepalive.max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(3);
        log("keepalive", socket.set_tcp_keepalive(&keepalive));
    }
}

/// Whether a connection between these addresses leaves no host.
fn stays_on_host(from: SocketAddr, to: SocketAddr) -> bool {
    from.ip() == to.ip() || to.ip().is_loopback()
}

/// What may be under way within a host, where nothing takes time to arrive: more would only leave the caches before
/// it is read (ADR 0059).
const NEAR_SEND_BUFFER_BYTES: usize = 256 << 10;

/// Lets the kernel pick the port at connect, when it knows the peer: far more connections fit.
fn no_port_yet(socket: &Socket) {
    let on: libc::c_int = 1;
    // SAFETY: an int option; a kernel that does not know it says so, which is as good.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_within_a_host_are_told_from_others() {
        let at = |address: &str| -> SocketAddr { address.parse().unwrap() };
        for (from, to, near) in [
            ("127.0.0.1:1", "127.0.0.1:2", true),
            ("10.0.0.1:1", "127.0.0.2:2", true),
            ("10.0.0.1:1", "10.0.0.1:2", true),
            ("10.0.0.1:1", "10.0.0.2:2", false),
            ("[::1]:1", "[::1]:2", true),
            ("[fe80::1]:1", "[fe80::2]:2", false),
        ] {
            assert_eq!(stays_on_host(at(from), at(to)), near, "{from} {to}");
        }
    }

    #[test]
    fn pieces_are_cut_after_so_many_bytes() {
        let memory = [0u8; 64];
        for (most, lengths) in
            [(0, vec![]), (3, vec![3]), (8, vec![8]), (9, vec![8, 1]), (24, vec![8, 16]), (99, vec![8, 16])]
        {
            let mut pieces = [piece(memory.as_ptr(), 8), piece(memory.as_ptr(), 16)];
            let count = truncate(&mut pieces, most);
            assert_eq!(
                pieces[..count].iter().map(|piece| piece.iov_len).collect::<Vec<_>>(),
                lengths,
                "{most}"
            );
        }
    }

    #[test]
    fn little_is_under_way_within_a_host_unless_somebody_says_otherwise() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sizes = |config: &Config| {
            let to = listener.local_addr().unwrap();
            let dialled = Stream::dial("127.0.0.1:0".parse().unwrap(), to, config).unwrap();
            let accepted = Stream::accepted(listener.accept().unwrap().0.into(), config, false).unwrap();
            [dialled, accepted].map(|stream| stream.socket.send_buffer_size().unwrap())
        };
        let mut config = Config::parse(&ccl_plugin::Settings::default()).unwrap();
        // The kernel doubles what it is told.
        assert_eq!(sizes(&config), [2 * NEAR_SEND_BUFFER_BYTES; 2]);
        config.send_buffer_bytes = 64 << 10;
        assert_eq!(sizes(&config), [128 << 10; 2]);
    }
}
