//! The producer's end of a network edge.

use std::ptr::NonNull;
use std::sync::Arc;

use ccl_plugin_host::{MemoryKind, Mr, NetError, Request, SendComm};

use super::network::{Line, SlotShape};
use super::opening::{Half, Opening};
use super::proxied::Proxied;
use super::slots::{APART, HEADER_BYTES, Header, PAYLOAD_TAG, Slots};
use crate::error::{Error, Result};
use crate::memory::Entry;
use crate::transport::edge::EdgeSend;

/// An edge from this rank over a network.
pub(crate) struct NetSend {
    /// Before `window`, so that the connection closes before its memory is freed.
    state: State,
    window: Window,
    acquired: Option<usize>,
    line: Line,
    /// With a profiler.
    proxied: Option<Proxied>,
}

/// Slots that become messages. `completed ≤ sent ≤ posted ≤ completed + slots`; the slots of
/// messages `completed..posted` are the network's, the others the producer's.
struct Window {
    slots: Slots,
    /// By slot: requests of messages `completed..sent`.
    requests: Vec<Option<Request>>,
    /// By slot: payloads of messages `completed..posted` that are lent.
    lent: Vec<Option<Lent>>,
    /// Whether the header of message `sent`, whose payload is lent, is on its way.
    header_sent: bool,
    completed: u64,
    sent: u64,
    posted: u64,
}

/// User memory on its way without a copy.
struct Lent {
    address: *const u8,
    bytes: usize,
    /// Once the network has it.
    request: Option<(Request, Mr)>,
}

// SAFETY: an address of memory that stays as it is until the request is done, by the contract of
// `SendEdge::lend`; whichever thread drives the edge is the only one to use it.
unsafe impl Send for Lent {}

enum State {
    Opening(Opening),
    Open(Link),
    Broken(Error),
}

struct Link {
    comm: SendComm,
    mr: Mr,
    _entry: Arc<Entry>,
}

impl NetSend {
    pub(super) fn new(line: Line, opening: Opening, shape: SlotShape) -> Result<NetSend> {
        let slots = Slots::new(shape, &line.ledger)?;
        let requests = (0..shape.slots).map(|_| None).collect();
        let lent = (0..shape.slots).map(|_| None).collect();
        let window = Window { slots, requests, lent, header_sent: false, completed: 0, sent: 0, posted: 0 };
        let proxied = line.proxied(true);
        Ok(NetSend { state: State::Opening(opening), window, acquired: None, line, proxied })
    }

    /// Whether user memory may be sent from where it is.
    pub(crate) fn lends(&self) -> bool {
        self.line.takes_any_memory
    }

    /// See [`crate::transport::SendEdge::lend`].
    pub(crate) fn lend(&mut self, address: *const u8, bytes: usize, tag: u32) -> Result<()> {
        if self.acquired.take().is_none() {
            return Err(Error::bug("expected a slot to be acquired, found none"));
        }
        self.window.lend(address, bytes, tag, self.line.signs.sign());
        self.note_post(bytes);
        self.pump()
    }

    /// Whether what is sent need not be in its slot.
    pub(crate) fn sends_from(&self) -> bool {
        self.line.sends_from
    }

    /// Hands the acquired slot over with a payload that is at `data`, and not used after this.
    ///
    /// # Safety
    ///
    /// `bytes` bytes at `data` are readable, and not in the slot.
    pub(crate) unsafe fn post_from(&mut self, data: *const u8, bytes: usize, tag: u32) -> Result<()> {
        if self.acquired.take().is_none_or(|acquired| bytes > acquired) {
            return Err(Error::bug(format!(
                "expected at most the bytes acquired to be posted, found {bytes}"
            )));
        }
        self.window.post(bytes, tag, self.line.signs.sign());
        self.note_post(bytes);
        // SAFETY: the caller's contract; the message is the one posted last.
        unsafe {
            let sent = match &mut self.state {
                State::Open(link) => self.window.send_last_from(link, data, bytes),
                _ => Ok(false),
            };
            match sent {
                Ok(true) => {}
                Ok(false) => self.window.fill_last(data, bytes),
                Err(error) => {
                    self.state = State::Broken(self.line.error(&error, "send to"));
                    return self.unbroken();
                }
            }
        }
        self.pump()
    }

    /// Gives up the connection if the network still has user memory: closing ends its use.
    pub(crate) fn withdraw(&mut self) {
        if self.window.lent.iter().any(Option::is_some) {
            self.state = State::Broken(self.line.broken("the communicator failed"));
        }
    }

    /// Messages wait in their slots until the connection is open: a program that sends before it
    /// receives must not wait for a peer that does the same.
    fn has_credit(&self) -> bool {
        !matches!(self.state, State::Broken(_)) && self.window.has_room()
    }

    /// Opens once the connection is there.
    fn connect(&mut self, opening: &Opening) -> Result<()> {
        match opening.take_send().and_then(|half| half.map(|half| self.link(half)).transpose()) {
            Ok(None) if self.idle() => {}
            Ok(None) => self.line.nothing_yet(|_| false),
            Ok(Some(link)) => self.state = State::Open(link),
            Err(error) => self.state = State::Broken(error),
        }
        self.unbroken()
    }

    fn link(&self, half: Half<SendComm>) -> Result<Link> {
        let Half { mut comm, entry } = half;
        let (start, bytes) = self.window.slots.whole();
        let mr = comm.register(start.as_ptr(), bytes, MemoryKind::Host);
        let mr = mr.map_err(|e| self.line.error(&e, "register memory for"))?;
        Ok(Link { comm, mr, _entry: entry })
    }

    fn note_post(&mut self, bytes: usize) {
        if let Some(proxied) = &mut self.proxied {
            proxied.posted(self.window.posted - 1, bytes);
        }
    }

    /// Sends what is posted and reaps what is done.
    fn pump(&mut self) -> Result<()> {
        let State::Open(link) = &mut self.state else { return Ok(()) };
        let sent = self.window.sent;
        let pumped = self.window.send_posted(link).and_then(|()| self.window.reap(link));
        if let Some(proxied) = &mut self.proxied {
            proxied.given(sent, self.window.sent);
            proxied.over(self.window.completed);
        }
        if let Err(error) = pumped {
            self.state = State::Broken(self.line.error(&error, "send to"));
        } else if self.window.completed < self.window.posted {
            self.line.nothing_yet(|at| link.comm.watch(at).unwrap_or(false));
        }
        self.unbroken()
    }

    fn unbroken(&self) -> Result<()> {
        match &self.state {
            State::Broken(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl Window {
    fn has_room(&self) -> bool {
        self.posted - self.completed < self.slots.count()
    }

    /// Where the next message's payload goes.
    fn payload(&self) -> NonNull<u8> {
        self.slots.payload(self.slots.of(self.posted))
    }

    fn post(&mut self, bytes: usize, tag: u32, sign: u32) {
        let header = Header { tag, bytes: bytes as u32, sequence: self.posted as u32, sign };
        // SAFETY: the caller has seen room, so no request is pending on the slot.
        unsafe { self.slots.write_header(self.slots.of(self.posted), header) };
        self.posted += 1;
    }

    /// Posts a message whose payload is elsewhere.
    fn lend(&mut self, address: *const u8, bytes: usize, tag: u32, sign: u32) {
        let slot = self.slots.of(self.posted);
        self.lent[slot] = Some(Lent { address, bytes, request: None });
        let header = Header { tag, bytes: bytes as u32 | APART, sequence: self.posted as u32, sign };
        // SAFETY: the caller has seen room, so no request is pending on the slot.
        unsafe { self.slots.write_header(slot, header) };
        self.posted += 1;
    }

    /// Sends the message posted last, of which only the header is in its slot, if none waits before it; whether it did.
    ///
    /// # Safety
    ///
    /// As [`NetSend::post_from`].
    unsafe fn send_last_from(
        &mut self,
        link: &mut Link,
        data: *const u8,
        bytes: usize,
    ) -> Result<bool, NetError> {
        if self.sent + 1 != self.posted || self.header_sent || bytes == 0 {
            return Ok(false);
        }
        let slot = self.slots.of(self.sent);
        let message = (self.slots.message(slot).as_ptr(), HEADER_BYTES + bytes, 0);
        // SAFETY: as in `send`; the payload is the caller's promise.
        let request = unsafe { link.comm.send_from(message, &link.mr, (HEADER_BYTES, data))? };
        let sent = request.is_some();
        if sent {
            self.requests[slot] = request;
            self.sent += 1;
        }
        Ok(sent)
    }

    /// Brings the payload of the message posted last to its slot.
    ///
    /// # Safety
    ///
    /// As [`NetSend::post_from`].
    unsafe fn fill_last(&mut self, data: *const u8, bytes: usize) {
        let slot = self.slots.payload(self.slots.of(self.posted - 1));
        // SAFETY: the caller's contract; a slot that is posted and not sent is the producer's.
        unsafe { std::ptr::copy_nonoverlapping(data, slot.as_ptr(), bytes) };
    }

    fn send_posted(&mut self, link: &mut Link) -> Result<(), NetError> {
        while self.sent < self.posted {
            let slot = self.slots.of(self.sent);
            if !self.header_sent {
                let request = match self.lent[slot] {
                    Some(_) => self.send_header(link, slot)?,
                    None => {
                        // SAFETY: the message is posted but not sent: no request is pending on its slot.
                        let header = unsafe { self.slots.read_header(slot) };
                        self.send(link, slot, HEADER_BYTES + header.payload_bytes())?
                    }
                };
                let Some(request) = request else { break };
                self.requests[slot] = Some(request);
            }
            if let Some(lent) = &mut self.lent[slot] {
                self.header_sent = !lent.send(link)?;
                if self.header_sent {
                    break;
                }
            }
            self.sent += 1;
        }
        Ok(())
    }

    fn reap(&mut self, link: &mut Link) -> Result<(), NetError> {
        while self.completed < self.sent {
            let slot = self.slots.of(self.completed);
            if let Some(request) = &mut self.requests[slot]
                && link.comm.test(request)?.is_none()
            {
                break;
            }
            self.requests[slot] = None;
            if let Some(lent) = &mut self.lent[slot]
                && !lent.is_back(link)?
            {
                break;
            }
            self.lent[slot] = None;
            self.completed += 1;
        }
        Ok(())
    }

    /// Hands the message of a slot to the network; `None`: not now.
    fn send(&self, link: &mut Link, slot: usize, bytes: usize) -> Result<Option<Request>, NetError> {
        let message = self.slots.message(slot).as_ptr();
        // SAFETY: the slot is the network's until its request is done (see the type's text), and
        // the memory outlives the connection, which is declared before it.
        unsafe { link.comm.send(message, bytes, 0, &link.mr) }
    }

    /// The same of a header whose payload follows at once.
    fn send_header(&self, link: &mut Link, slot: usize) -> Result<Option<Request>, NetError> {
        let message = self.slots.message(slot).as_ptr();
        // SAFETY: as in `send`.
        unsafe { link.comm.send_more(message, HEADER_BYTES, 0, &link.mr) }
    }
}

impl Lent {
    /// Hands the payload to the network; whether it took it.
    fn send(&mut self, link: &mut Link) -> Result<bool, NetError> {
        let mr = link.comm.register(self.address, self.bytes, MemoryKind::Host)?;
        // SAFETY: lent memory stays as it is until the request is done, by the contract of
        // `SendEdge::lend`, or until the connection is closed.
        match unsafe { link.comm.send(self.address, self.bytes, PAYLOAD_TAG, &mr)? } {
            Some(request) => {
                self.request = Some((request, mr));
                Ok(true)
            }
            None => link.comm.deregister(mr).map(|()| false),
        }
    }

    /// Whether the network is done with the payload.
    fn is_back(&mut self, link: &mut Link) -> Result<bool, NetError> {
        let Some((request, _)) = &mut self.request else { return Ok(false) };
        if link.comm.test(request)?.is_none() {
            return Ok(false);
        }
        self.request.take().map_or(Ok(()), |(_, mr)| link.comm.deregister(mr)).map(|()| true)
    }
}

impl EdgeSend for NetSend {
    fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        let most = self.window.slots.capacity_bytes();
        if bytes > most {
            return Err(Error::bug(format!("expected at most {most} bytes for a slot, found {bytes}")));
        }
        if !self.has_credit() {
            self.progress()?;
        }
        self.acquired = self.has_credit().then_some(bytes);
        Ok(self.acquired.map(|_| self.window.payload()))
    }

    fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        if self.acquired.take().is_none_or(|acquired| bytes > acquired) {
            return Err(Error::bug(format!(
                "expected at most the bytes acquired to be posted, found {bytes}"
            )));
        }
        self.window.post(bytes, tag, self.line.signs.sign());
        self.note_post(bytes);
        self.pump()
    }

    fn progress(&mut self) -> Result<()> {
        match &self.state {
            State::Open(_) if self.idle() => Ok(()),
            State::Open(_) => self.pump(),
            State::Broken(error) => Err(error.clone()),
            State::Opening(opening) => {
                let opening = opening.clone();
                self.connect(&opening)
            }
        }
    }

    fn idle(&self) -> bool {
        self.window.completed == self.window.posted || matches!(self.state, State::Broken(_))
    }
}
