//! What every edge can do, whatever carries it.

use std::fmt;
use std::ptr::NonNull;
use std::time::Instant;

use ccl_plan::{Channel, Rank};

use super::PathKind;
use super::net::{NetReceive, NetSend};
use super::shm::{Emptying, Filler, Filling, Location, MemoryReceive, MemorySend, Reader};
use crate::error::{Error, Result};

/// An edge's name at one of its ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EdgeKey {
    /// The rank at the other end.
    pub peer: Rank,
    /// The channel it belongs to.
    pub channel: Channel,
    /// Which of the channel's edges to that peer.
    pub tag: u8,
}

/// An edge's name on both sides, for errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EdgeName {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) channel: Channel,
    pub(super) tag: u8,
    pub(super) path: PathKind,
}

/// A filled slot, the consumer's until it releases it.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Where the payload is; aligned to at least 8 bytes.
    pub data: NonNull<u8>,
    /// Payload bytes.
    pub bytes: usize,
    /// What the producer gave to `post`.
    pub tag: u32,
    /// Whether `data` is an address of the producer's process, and nothing here.
    pub lent: bool,
}

/// What came of asking an edge for something short.
pub(crate) enum Quick {
    /// Where the payload is, or goes.
    At(NonNull<u8>),
    /// The other side has not done its part.
    NotYet,
    /// The long way finds out what it is.
    Otherwise,
}

/// How an edge carries what is lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lends {
    /// Not at all: everything is copied to a slot.
    Nothing,
    /// The consumer reads it where it is.
    InPlace,
    /// As a message of its own, straight to where the consumer wants it: not in pieces.
    OnTheWay,
}

/// The producer's end of an edge of any kind.
pub struct SendEdge(SendKind);

/// The consumer's end of an edge of any kind.
pub struct ReceiveEdge(ReceiveKind);

/// What is behind a [`SendEdge`]: a match is cheaper than a virtual call.
#[expect(
    clippy::large_enum_variant,
    reason = "most edges are the large ones, and their fields one line nearer so"
)]
pub(super) enum SendKind {
    Memory(MemorySend),
    Net(Box<NetSend>),
    Wrapped(Box<dyn EdgeSend>),
}

/// What is behind a [`ReceiveEdge`].
#[expect(
    clippy::large_enum_variant,
    reason = "most edges are the large ones, and their fields one line nearer so"
)]
pub(super) enum ReceiveKind {
    Memory(MemoryReceive),
    Net(Box<NetReceive>),
    Wrapped(Box<dyn EdgeReceive>),
}

impl SendEdge {
    /// Where to write up to `bytes` (at most the slot's) of payload; `None` while there is no
    /// credit. Never blocks. Asking again before [`SendEdge::post`] names the same slot, for the
    /// bytes asked last. The address is valid until the post and aligned to at least 8 bytes.
    ///
    /// Errors: more bytes than a slot has, a broken connection.
    #[inline]
    pub fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.acquire(bytes),
            SendKind::Net(edge) => edge.acquire(bytes),
            SendKind::Wrapped(edge) => edge.acquire(bytes),
        }
    }

    /// Hands the acquired slot over with its first `bytes` (at most those acquired; 0 is a signal) and
    /// `tag`, which the consumer sees. Never blocks.
    ///
    /// Errors: nothing acquired, a broken connection.
    #[inline]
    pub fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.post(bytes, tag),
            SendKind::Net(edge) => edge.post(bytes, tag),
            SendKind::Wrapped(edge) => edge.post(bytes, tag),
        }
    }

    /// [`SendEdge::post`] of a payload that others may be told of.
    pub(crate) fn post_shared(&mut self, bytes: usize, tag: u32) -> Result<()> {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.post_shared(bytes, tag),
            SendKind::Net(_) | SendKind::Wrapped(_) => self.post(bytes, tag),
        }
    }

    /// [`SendEdge::acquire`] with fewer instructions where a payload goes in or beside a line of memory.
    #[inline(always)]
    pub(crate) fn acquire_short(&mut self, bytes: usize) -> Result<Quick> {
        match &mut self.0 {
            SendKind::Memory(edge) => Ok(edge.acquire_short(bytes)),
            _ => Ok(self.acquire(bytes)?.map_or(Quick::NotYet, Quick::At)),
        }
    }

    /// [`SendEdge::post`] of all the bytes for which [`SendEdge::acquire_short`] has just told where they go.
    #[inline(always)]
    pub(crate) fn post_short(&mut self, bytes: usize, tag: u32) -> Result<()> {
        match &mut self.0 {
            SendKind::Memory(edge) => {
                edge.post_short(bytes, tag);
                Ok(())
            }
            _ => self.post(bytes, tag),
        }
    }

    /// How what was acquired last is best filled with this.
    #[inline]
    pub(crate) fn filling(&mut self, filler: Filler) -> Filling {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.filling(filler),
            SendKind::Net(_) | SendKind::Wrapped(_) => Filling::Cached,
        }
    }

    /// Filling `bytes` of what was acquired last through the caches with this has taken from then until now.
    pub(crate) fn took(&mut self, filler: Filler, bytes: usize, since: Instant) {
        if let SendKind::Memory(edge) = &mut self.0 {
            edge.took(filler, bytes, since);
        }
    }

    /// How the edge carries what is lent.
    pub(crate) fn lends(&self) -> Lends {
        match &self.0 {
            SendKind::Memory(_) => Lends::InPlace,
            SendKind::Net(edge) if edge.lends() => Lends::OnTheWay,
            SendKind::Net(_) | SendKind::Wrapped(_) => Lends::Nothing,
        }
    }

    /// Hands the acquired slot over with no payload but where it is: `bytes` bytes at `address` in
    /// this process, which must not change until [`SendEdge::all_released`]. In memory only where
    /// [`super::Fabric::reads_directly`]; `helps`: this rank is about to have nothing to do but [`SendEdge::help`]. Never blocks.
    ///
    /// Errors: nothing acquired, an edge that cannot.
    pub(crate) fn lend(&mut self, (address, bytes): (*const u8, usize), tag: u32, helps: bool) -> Result<()> {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.lend((address, bytes), tag, helps),
            SendKind::Net(edge) => edge.lend(address, bytes, tag),
            SendKind::Wrapped(_) => Err(Error::bug("this edge lends nothing")),
        }
    }

    /// Whether [`SendEdge::post_from`] saves the copy to a slot.
    pub(crate) fn sends_from(&self) -> bool {
        matches!(&self.0, SendKind::Net(edge) if edge.sends_from())
    }

    /// [`SendEdge::post`] of a payload that is at `data`, and not in the slot. It is sent or copied when this returns.
    ///
    /// Errors: as of [`SendEdge::post`]; an edge that cannot.
    ///
    /// # Safety
    ///
    /// `bytes` bytes at `data` are readable, and not in the slot.
    pub(crate) unsafe fn post_from(&mut self, data: *const u8, bytes: usize, tag: u32) -> Result<()> {
        match &mut self.0 {
            // SAFETY: the caller's contract.
            SendKind::Net(edge) => unsafe { edge.post_from(data, bytes, tag) },
            SendKind::Memory(_) | SendKind::Wrapped(_) => Err(Error::bug("this edge sends from slots only")),
        }
    }

    /// Whether others may be told where the payload is that was posted last, or is about to be.
    pub(crate) fn may_share(&self) -> bool {
        match &self.0 {
            SendKind::Memory(edge) => edge.may_share(),
            SendKind::Net(_) | SendKind::Wrapped(_) => false,
        }
    }

    /// Where the payload is that was posted last, in a slot. Errors: an edge that has none in memory.
    pub(super) fn location(&self, bytes: usize) -> Result<Location> {
        match &self.0 {
            SendKind::Memory(edge) => Ok(edge.location(bytes)),
            SendKind::Net(_) | SendKind::Wrapped(_) => Err(Error::bug("this edge shares no slots")),
        }
    }

    /// Hands the acquired line over with no payload but where it is.
    ///
    /// Errors: nothing acquired, an edge that cannot.
    pub(super) fn point_to(&mut self, location: Location, tag: u32) -> Result<Reader> {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.point_to(location, tag),
            SendKind::Net(_) | SendKind::Wrapped(_) => Err(Error::bug("this edge shares no slots")),
        }
    }

    /// What was posted last is free once this reader has read it, too. Errors: an edge that cannot.
    pub(super) fn share(&mut self, reader: Reader) -> Result<()> {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.share(reader),
            SendKind::Net(_) | SendKind::Wrapped(_) => return Err(Error::bug("this edge shares no slots")),
        }
        Ok(())
    }

    /// Whether everything lent so far is the caller's again: read by the consumer, or taken by the
    /// network.
    pub(crate) fn all_released(&self) -> bool {
        match &self.0 {
            SendKind::Memory(edge) => edge.all_released(),
            SendKind::Net(edge) => edge.idle(),
            SendKind::Wrapped(_) => true,
        }
    }

    /// Copies a part of what is lent to where the consumer asks to have it, if it does; whether that took time. For ranks that
    /// have nothing else to do: both ends then work on it (ADR 0117). Never blocks.
    pub(crate) fn help(&mut self) -> bool {
        match &mut self.0 {
            SendKind::Memory(edge) => edge.help(),
            SendKind::Net(_) | SendKind::Wrapped(_) => false,
        }
    }

    /// Takes back what is lent, so that nobody uses it once this returns. The edge may be useless
    /// afterwards.
    pub(crate) fn withdraw(&mut self) {
        if let SendKind::Net(edge) = &mut self.0 {
            edge.withdraw();
        }
    }

    /// Moves pending requests along; nothing to do for memory. Never blocks.
    #[inline]
    pub fn progress(&mut self) -> Result<()> {
        match &mut self.0 {
            SendKind::Memory(_) => Ok(()),
            SendKind::Net(edge) => edge.progress(),
            SendKind::Wrapped(edge) => edge.progress(),
        }
    }

    /// Whether all that was posted has left.
    #[inline]
    pub fn idle(&self) -> bool {
        match &self.0 {
            SendKind::Memory(_) => true,
            SendKind::Net(edge) => edge.idle(),
            SendKind::Wrapped(edge) => edge.idle(),
        }
    }
}

impl ReceiveEdge {
    /// The oldest filled slot; `None` while there is none. The same until [`ReceiveEdge::release`].
    /// Never blocks.
    ///
    /// Errors: a broken connection, a payload that arrived damaged.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Slot>> {
        match &mut self.0 {
            ReceiveKind::Memory(edge) => edge.peek(),
            ReceiveKind::Net(edge) => edge.peek(),
            ReceiveKind::Wrapped(edge) => edge.peek(),
        }
    }

    /// Says what descriptors news of the next message come from; whether that is known.
    pub(crate) fn watch(&mut self, at: &mut dyn FnMut(i32, i16)) -> bool {
        match &mut self.0 {
            ReceiveKind::Net(edge) => edge.watch(at),
            ReceiveKind::Memory(_) | ReceiveKind::Wrapped(_) => false,
        }
    }

    /// [`ReceiveEdge::peek`] for a payload of so many bytes with this tag that was not lent; anything else is
    /// [`Quick::Otherwise`]. Fewer instructions where it is in or beside a line of memory.
    #[inline(always)]
    pub(crate) fn expect_short(&mut self, bytes: usize, tag: u32) -> Result<Quick> {
        match &mut self.0 {
            ReceiveKind::Memory(edge) => Ok(edge.expect_short(bytes, tag)),
            _ => Ok(match self.peek()? {
                None => Quick::NotYet,
                Some(slot) if slot.tag == tag && slot.bytes == bytes && !slot.lent => Quick::At(slot.data),
                Some(_) => Quick::Otherwise,
            }),
        }
    }

    /// Copies all of a lent slot to `to`; whether it is there. Ask again, with the same address, until
    /// it is. In memory the producer may copy a part of it, too: see [`SendEdge::help`].
    ///
    /// What was copied counts only if [`ReceiveEdge::release`] succeeds.
    ///
    /// Errors: the producer's memory cannot be read, a broken connection, an edge that borrows nothing.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of the slot's bytes, and nobody else uses them until they are there, or
    /// [`ReceiveEdge::withdraw`] was called and no rank of the host visits.
    pub(crate) unsafe fn fetch(&mut self, slot: &Slot, to: *mut u8) -> Result<bool> {
        match &mut self.0 {
            // SAFETY: the caller's contract.
            ReceiveKind::Memory(edge) => unsafe { edge.fetch(slot, to) },
            // SAFETY: the caller's contract.
            ReceiveKind::Net(edge) => unsafe { edge.fetch(to, slot.bytes) },
            ReceiveKind::Wrapped(_) => Err(Error::bug("this edge borrows nothing")),
        }
    }

    /// Copies `bytes` bytes of a lent slot in memory, from its byte `from` on, to `to`.
    ///
    /// Counts and errors as of [`ReceiveEdge::fetch`]; only memory can be read in pieces.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of `bytes` bytes, and nobody else uses them meanwhile.
    pub(crate) unsafe fn fetch_piece(
        &self,
        slot: &Slot,
        from: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        match &self.0 {
            // SAFETY: the caller's contract.
            ReceiveKind::Memory(edge) => unsafe { edge.fetch_piece(slot, from, to, bytes) },
            ReceiveKind::Net(_) | ReceiveKind::Wrapped(_) => Err(Error::bug("this edge lends no pieces")),
        }
    }

    /// Ends what [`ReceiveEdge::fetch`] began, so that nobody writes there once this returns. The edge
    /// may be useless afterwards.
    pub(crate) fn withdraw(&mut self) {
        match &mut self.0 {
            ReceiveKind::Memory(edge) => edge.withdraw(),
            ReceiveKind::Net(edge) => edge.withdraw(),
            ReceiveKind::Wrapped(_) => {}
        }
    }

    /// Whether this rank keeps the peeked slot for what it sends next.
    pub(crate) fn takes_slot(&self) -> bool {
        match &self.0 {
            ReceiveKind::Memory(edge) => edge.takes_slot(),
            ReceiveKind::Net(_) | ReceiveKind::Wrapped(_) => false,
        }
    }

    /// How `bytes` bytes are best copied out of the peeked slot.
    #[inline]
    pub(crate) fn emptying(&mut self, bytes: usize) -> Emptying {
        match &mut self.0 {
            ReceiveKind::Memory(edge) => edge.emptying(bytes),
            ReceiveKind::Net(_) | ReceiveKind::Wrapped(_) => Emptying::Whole,
        }
    }

    /// Copying `bytes` bytes out of it in one string has taken from then until now.
    pub(crate) fn took(&mut self, bytes: usize, since: Instant) {
        if let ReceiveKind::Memory(edge) = &mut self.0 {
            edge.took(bytes, since);
        }
    }

    /// Gives the peeked slot back to the producer. Never blocks.
    ///
    /// Errors: nothing peeked, a broken connection.
    #[inline(always)]
    pub fn release(&mut self) -> Result<()> {
        match &mut self.0 {
            ReceiveKind::Memory(edge) => edge.release(),
            ReceiveKind::Net(edge) => edge.release(),
            ReceiveKind::Wrapped(edge) => edge.release(),
        }
    }

    /// Moves pending requests along; nothing to do for memory. Never blocks.
    #[inline]
    pub fn progress(&mut self) -> Result<()> {
        match &mut self.0 {
            ReceiveKind::Memory(_) => Ok(()),
            ReceiveKind::Net(edge) => edge.progress(),
            ReceiveKind::Wrapped(edge) => edge.progress(),
        }
    }
}

impl SendEdge {
    /// An edge of another kind, usually around another edge.
    pub(super) fn around(edge: impl EdgeSend + 'static) -> SendEdge {
        SendEdge(SendKind::Wrapped(Box::new(edge)))
    }
}

impl ReceiveEdge {
    /// An edge of another kind, usually around another edge.
    pub(super) fn around(edge: impl EdgeReceive + 'static) -> ReceiveEdge {
        ReceiveEdge(ReceiveKind::Wrapped(Box::new(edge)))
    }
}

impl From<SendKind> for SendEdge {
    fn from(kind: SendKind) -> SendEdge {
        SendEdge(kind)
    }
}

impl From<ReceiveKind> for ReceiveEdge {
    fn from(kind: ReceiveKind) -> ReceiveEdge {
        ReceiveEdge(kind)
    }
}

/// The producer's end of an edge: methods as of [`SendEdge`], whose contract implementers keep.
pub(super) trait EdgeSend: Send {
    fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>>;
    fn post(&mut self, bytes: usize, tag: u32) -> Result<()>;
    fn progress(&mut self) -> Result<()>;
    fn idle(&self) -> bool;
}

/// The consumer's end of an edge: methods as of [`ReceiveEdge`], whose contract implementers keep.
pub(super) trait EdgeReceive: Send {
    fn peek(&mut self) -> Result<Option<Slot>>;
    fn release(&mut self) -> Result<()>;
    fn progress(&mut self) -> Result<()>;
}

impl fmt::Display for EdgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EdgeName { from, to, channel, tag, path } = self;
        write!(
            f,
            "the edge from rank {from} to rank {to} (channel {channel}, tag {tag}, over {})",
            path.name()
        )
    }
}
