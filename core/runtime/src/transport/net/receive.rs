//! The consumer's end of a network edge.

use std::mem;
use std::sync::Arc;

use ccl_plugin_host::{MemoryKind, Mr, RecvComm, Request};

use super::network::{Line, SlotShape};
use super::opening::{Half, Opening};
use super::proxied::Proxied;
use super::slots::{HEADER_BYTES, Header, PAYLOAD_TAG, Slots};
use crate::error::{Error, Result};
use crate::memory::Entry;
use crate::transport::Slot;
use crate::transport::edge::EdgeReceive;

/// Slots that messages arrive in. `released ≤ posted ≤ released + slots`; the slots of messages
/// `released..posted` are the network's, but for the filled one, which is the consumer's.
pub(crate) struct NetReceive {
    state: State,
    shape: SlotShape,
    released: u64,
    filled: Option<Header>,
    fetching: Fetching,
    line: Line,
    /// With a profiler.
    proxied: Option<Proxied>,
}

/// A lent payload's way to where the consumer wants it.
enum Fetching {
    Nothing,
    Pending(Request, Mr),
    /// It is there.
    Done,
}

enum State {
    Opening(Opening),
    Open(Link),
    Broken(Error),
}

/// A connection, and the memory its receives are posted to.
struct Link {
    /// Before `slots`, so that the connection closes before its memory is freed.
    comm: RecvComm,
    mr: Mr,
    slots: Slots,
    /// By slot.
    requests: Vec<Option<Request>>,
    posted: u64,
    _entry: Arc<Entry>,
}

impl NetReceive {
    pub(super) fn new(line: Line, opening: Opening, shape: SlotShape) -> NetReceive {
        let (state, fetching) = (State::Opening(opening), Fetching::Nothing);
        let proxied = line.proxied(false);
        NetReceive { state, shape, released: 0, filled: None, fetching, line, proxied }
    }

    /// Opens once the connection is there.
    fn connect(&mut self) -> Result<()> {
        let State::Opening(opening) = &self.state else { return Ok(()) };
        if let Some(half) = opening.take_receive()? {
            self.state = State::Open(Link::new(half, &self.line, self.shape)?);
        }
        Ok(())
    }

    /// Whether the next message is here.
    fn look(&mut self) -> Result<Option<Header>> {
        let State::Open(link) = &mut self.state else {
            self.line.nothing_yet(|_| false);
            return Ok(None);
        };
        // What has arrived counts even if the peer has closed the connection since.
        let posted = link.post_receives(self.released, &self.line);
        let slot = link.slots.of(self.released);
        let Some(request) = &mut link.requests[slot] else {
            self.line.nothing_yet(|_| false);
            return posted.map(|()| None);
        };
        let arrived = link.comm.test(request).map_err(|e| self.line.error(&e, "receive from"))?;
        let Some(arrived) = arrived else {
            self.line.nothing_yet(|at| link.comm.watch(at).unwrap_or(false));
            return Ok(None);
        };
        link.requests[slot] = None;
        link.read(slot, arrived, self.released, &self.line).map(Some)
    }

    fn try_peek(&mut self) -> Result<()> {
        if let Some(proxied) = &mut self.proxied {
            proxied.awaits(self.released);
        }
        self.connect()?;
        self.filled = self.look()?;
        if let (Some(proxied), Some(header)) = (&mut self.proxied, &self.filled) {
            proxied.arrived(self.released, header.payload_bytes());
        }
        Ok(())
    }

    /// The filled slot.
    fn head(&self) -> Option<Slot> {
        let (State::Open(link), Some(header)) = (&self.state, self.filled) else { return None };
        let data = link.slots.payload(link.slots.of(self.released));
        Some(Slot { data, bytes: header.payload_bytes(), tag: header.tag, lent: header.is_apart() })
    }

    /// Brings the filled slot's payload, which is lent, to `to`; whether it is there.
    ///
    /// # Safety
    ///
    /// As of [`crate::transport::ReceiveEdge::fetch`], until it is there or the edge withdraws.
    pub(crate) unsafe fn fetch(&mut self, to: *mut u8, bytes: usize) -> Result<bool> {
        // SAFETY: the caller's contract.
        let fetched = unsafe { self.try_fetch(to, bytes) };
        self.keep(fetched)
    }

    /// # Safety
    ///
    /// As of [`NetReceive::fetch`].
    unsafe fn try_fetch(&mut self, to: *mut u8, bytes: usize) -> Result<bool> {
        let State::Open(link) = &mut self.state else { return Err(Error::bug("nothing was peeked")) };
        let failed = |error| self.line.error(&error, "receive from");
        if matches!(self.fetching, Fetching::Nothing) {
            let mr = link.comm.register(to, bytes, MemoryKind::Host).map_err(failed)?;
            // SAFETY: the caller's contract.
            match unsafe { link.comm.recv(to, bytes, PAYLOAD_TAG, &mr) }.map_err(failed)? {
                Some(request) => self.fetching = Fetching::Pending(request, mr),
                None => {
                    self.line.nothing_yet(|_| false);
                    return link.comm.deregister(mr).map_err(failed).map(|()| false);
                }
            }
        }
        if let Fetching::Pending(request, _) = &mut self.fetching {
            let Some(arrived) = link.comm.test(request).map_err(failed)? else {
                self.line.nothing_yet(|at| link.comm.watch(at).unwrap_or(false));
                return Ok(false);
            };
            if arrived != bytes {
                let words = format!("expected a payload of {bytes} bytes as announced, found {arrived}");
                return Err(self.line.broken(words));
            }
            if let Fetching::Pending(_, mr) = mem::replace(&mut self.fetching, Fetching::Done) {
                link.comm.deregister(mr).map_err(failed)?;
            }
        }
        Ok(true)
    }

    /// Gives up the connection if the network may still write to user memory: closing ends that.
    pub(crate) fn withdraw(&mut self) {
        if matches!(self.fetching, Fetching::Pending(..)) {
            self.state = State::Broken(self.line.broken("the communicator failed"));
            self.fetching = Fetching::Nothing;
        }
    }

    /// Says what descriptors news of the next message come from; whether that is known.
    pub(crate) fn watch(&mut self, at: &mut dyn FnMut(i32, i16)) -> bool {
        let State::Open(link) = &mut self.state else { return false };
        link.comm.watch(at).unwrap_or(false)
    }

    /// Remembers an error: a broken connection stays broken.
    fn keep<T>(&mut self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.state = State::Broken(error.clone()))
    }
}

impl Link {
    fn new(half: Half<RecvComm>, line: &Line, shape: SlotShape) -> Result<Link> {
        let Half { mut comm, entry } = half;
        let slots = Slots::new(shape, &line.ledger)?;
        let (start, bytes) = slots.whole();
        let mr = comm.register(start.as_ptr(), bytes, MemoryKind::Host);
        let mr = mr.map_err(|e| line.error(&e, "register memory for"))?;
        let requests = (0..shape.slots).map(|_| None).collect();
        Ok(Link { comm, mr, slots, requests, posted: 0, _entry: entry })
    }

    /// Posts a receive for every slot that is neither filled nor posted.
    fn post_receives(&mut self, released: u64, line: &Line) -> Result<()> {
        while self.posted < released + self.slots.count() {
            let slot = self.slots.of(self.posted);
            let request = self.receive(slot, self.slots.message_bytes());
            let Some(request) = request.map_err(|e| line.error(&e, "receive from"))? else { break };
            self.requests[slot] = Some(request);
            self.posted += 1;
        }
        Ok(())
    }

    fn receive(&mut self, slot: usize, bytes: usize) -> Result<Option<Request>, ccl_plugin_host::NetError> {
        // SAFETY: the slot's message was released, or never arrived: it is the network's until its
        // request is done. The memory outlives the connection, which is declared before it.
        unsafe { self.comm.recv(self.slots.message(slot).as_ptr(), bytes, 0, &self.mr) }
    }

    /// What arrived in a slot.
    fn read(&self, slot: usize, arrived: usize, sequence: u64, line: &Line) -> Result<Header> {
        if arrived < HEADER_BYTES {
            return Err(
                line.broken(format!("expected a message of at least {HEADER_BYTES} bytes, found {arrived}"))
            );
        }
        // SAFETY: the receive into the slot is done.
        let header = unsafe { self.slots.read_header(slot) };
        let payload_bytes = if header.is_apart() { 0 } else { header.payload_bytes() };
        if header.sequence != sequence as u32 || payload_bytes != arrived - HEADER_BYTES {
            let bytes = arrived - HEADER_BYTES;
            return Err(line.broken(format!(
                "expected message {sequence} with {bytes} bytes of payload, found {} with {payload_bytes}",
                header.sequence
            )));
        }
        line.signs.hear(line.peer, header.sign);
        Ok(header)
    }
}

impl EdgeReceive for NetReceive {
    fn peek(&mut self) -> Result<Option<Slot>> {
        if let State::Broken(error) = &self.state {
            return Err(error.clone());
        }
        if self.filled.is_none() {
            let peeked = self.try_peek();
            self.keep(peeked)?;
        }
        Ok(self.head())
    }

    fn release(&mut self) -> Result<()> {
        if self.filled.take().is_none() {
            return Err(Error::bug("expected a peeked slot to be released, found none"));
        }
        self.fetching = Fetching::Nothing;
        self.released += 1;
        if let Some(proxied) = &mut self.proxied {
            proxied.over(self.released);
        }
        if let State::Open(link) = &mut self.state {
            // The peer may be done and gone; whoever wants more hears of it from `peek`.
            let _ = link.post_receives(self.released, &self.line);
        }
        Ok(())
    }

    /// An edge that nobody waits on may break unnoticed: `peek` tells.
    fn progress(&mut self) -> Result<()> {
        let connected = self.connect();
        let _ = self.keep(connected);
        Ok(())
    }
}
