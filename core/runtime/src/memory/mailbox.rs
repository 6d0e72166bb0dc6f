//! A Unix datagram socket that carries notes with descriptors attached.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One rank's end: a socket under a random abstract name, gone with its process.
#[derive(Debug)]
pub struct Mailbox {
    socket: OwnedFd,
    name: MailboxName,
}

/// A name that nobody else has drawn. It reads as the socket's name does in `/proc/net/unix`, but for the `@`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MailboxName([u8; 16]);

/// What became of a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It is in the peer's queue.
    Sent,
    /// A queue is full: try again.
    Full,
    /// Nobody has that name here: another network namespace, or the peer is gone.
    Unreachable,
}

/// A note as it arrived, from anybody.
#[derive(Debug)]
pub struct Note {
    /// Its bytes, cut at 128.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

impl Mailbox {
    /// Binds a socket under a fresh random name.
    pub fn bind() -> Result<Mailbox> {
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::system("draw random bytes", e, ADVICE))?;
        let name = MailboxName(random);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(|e| Error::system("open a Unix socket", e, ADVICE))?;
        name.address()
            .and_then(|address| rustix::net::bind(&socket, &address))
            .map_err(|e| Error::system("bind an abstract Unix socket", e, ADVICE))?;
        Ok(Mailbox { socket, name })
    }

    /// The name by which peers reach it.
    pub fn name(&self) -> MailboxName {
        self.name
    }

    /// Sends a note with descriptors, at most `MOST_DESCRIPTORS`. Never blocks.
    pub fn post(&self, to: MailboxName, note: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Delivery> {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        let fit = descriptors.len() <= MOST_DESCRIPTORS;
        if !(fit && attached.push(SendAncillaryMessage::ScmRights(descriptors))) {
            return Err(Error::bug(format!("{} descriptors for one note", descriptors.len())));
        }
        let sent = to.address().and_then(|address| {
            let parts = [IoSlice::new(note)];
            rustix::net::sendmsg_addr(&self.socket, &address, &parts, &mut attached, SendFlags::NOSIGNAL)
        });
        match sent {
            Ok(_) => Ok(Delivery::Sent),
            // TOOMANYREFS: too many descriptors in flight; they land as peers read.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::INTR) => Ok(Delivery::Full),
            Err(Errno::CONNREFUSED | Errno::NOENT | Errno::PERM | Errno::ACCESS) => Ok(Delivery::Unreachable),
            Err(error) => Err(Error::system("pass a descriptor over a Unix socket", error, ADVICE)),
        }
    }

    /// The next note, if one is here. Never blocks.
    pub fn take(&self) -> Result<Option<Note>> {
        let mut bytes = vec![0; NOTE_BYTES];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut attached = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let length = match rustix::net::recvmsg(&self.socket, &mut parts, &mut attached, flags) {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(Error::system("read a Unix socket", error, ADVICE)),
        };
        let mut descriptors = Vec::new();
        for message in attached.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        bytes.truncate(length);
        Ok(Some(Note { bytes, descriptors }))
    }

    /// Blocks until a note may be here, at most `limit`.
    pub fn wait(&self, limit: Duration) {
        let timeout = Timespec::try_from(limit).ok();
        // An early return, for whatever reason, only makes the caller look again.
        let _ =
            rustix::event::poll(&mut [PollFd::new(&self.socket.as_fd(), PollFlags::IN)], timeout.as_ref());
    }
}

impl MailboxName {
    fn address(self) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new_abstract_name(self.to_string().as_bytes())
    }
}

impl fmt::Display for MailboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ccl-{:032x}", u128::from_be_bytes(self.0))
    }
}

/// How many descriptors come with one note. The system counts those that nobody has read yet against the limit of open files
/// of the user, 1024 as a rule.
pub(crate) const MOST_DESCRIPTORS: usize = 32;

/// Longest note that is read.
const NOTE_BYTES: usize = 128;
/// What descriptors take beside a note.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

const ADVICE: &str = "set CCL_SHM_DISABLE=1 to use the network between ranks of this host";
