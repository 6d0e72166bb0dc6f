//! The receiving end: what arrives late, out of order, or changed.

use std::time::{Duration, Instant};

use ccl_plugin::c::MAX_RECVS;
use ccl_plugin::net::{Memory, Mr, RecvBuffer, RecvComm, Request};
use ccl_plugin::{Error, Result};

use super::rules::FaultRules;
use super::slots::{Slots, kind, registered, unknown};
use super::{dropped, failed, passed_on};
use crate::net;

/// The receiving end of a connection with faults.
pub(crate) struct FaultyRecv {
    /// None once it was dropped.
    inner: Option<net::RecvComm>,
    rules: FaultRules,
    mrs: Slots<net::Mr>,
    /// For room without bytes, which needs no registration.
    nothing: Option<net::Mr>,
    requests: Slots<Receive>,
    posted: u64,
    /// Messages that were reported received.
    received: u64,
    broken: Option<Error>,
}

/// A group of receives.
struct Receive {
    number: u64,
    inner: net::Request,
    first: RecvBuffer,
    count: usize,
    /// When it was done inside, and the sizes.
    done: Option<(Instant, [usize; MAX_RECVS])>,
}

impl FaultyRecv {
    pub(super) fn new(inner: net::RecvComm, rules: FaultRules) -> FaultyRecv {
        let (mrs, requests, inner) = (Slots::default(), Slots::default(), Some(inner));
        FaultyRecv { inner, rules, mrs, nothing: None, requests, posted: 0, received: 0, broken: None }
    }

    fn inner(&mut self) -> Result<&mut net::RecvComm> {
        if self.rules.drop_after.is_some_and(|after| self.received >= after) {
            self.inner = None;
        }
        match &mut self.inner {
            Some(inner) => Ok(inner),
            None => Err(dropped(self.received)),
        }
    }

    /// Looks inside; whether it is done there.
    fn progress(&mut self, request: Request) -> Result<()> {
        let Some(receive) = self.requests.get_mut(request.0.get()) else { return Err(unknown(request)) };
        if receive.done.is_some() {
            return Ok(());
        }
        let Some(comm) = &mut self.inner else { return Err(dropped(self.received)) };
        let mut sizes = [0; MAX_RECVS];
        if comm.test_group(&mut receive.inner, &mut sizes).map_err(passed_on)? {
            receive.done = Some((Instant::now(), sizes));
            self.corrupt(request, sizes[0]);
        }
        Ok(())
    }

    fn corrupt(&mut self, request: Request, bytes: usize) {
        let Some(receive) = self.requests.get(request.0.get()) else { return };
        if bytes == 0 || self.rules.corrupt_bit.is_none_or(|from| receive.number < from) {
            return;
        }
        let bit = (self.rules.random(receive.number) % (8 * bytes as u64)) as usize;
        // SAFETY: within the message, in room that is the plugin's until the receive is reported done.
        unsafe { *receive.first.data.add(bit / 8) ^= 1 << (bit % 8) };
        self.rules.corrupt_bit = None;
    }

    /// Whether it is done inside, but not to be told yet.
    fn is_held(&self, receive: &Receive, since: Instant) -> bool {
        let is_late = since.elapsed() < self.rules.delay;
        let younger_done =
            || self.requests.iter().any(|other| other.number > receive.number && other.done.is_some());
        let is_overtaken = self.rules.reorder
            && self.rules.random(receive.number) & 1 == 0
            && since.elapsed() < HOLD
            && !younger_done();
        is_late || is_overtaken
    }

    fn room(&mut self) -> Result<()> {
        let inner = self.inner()?;
        // Memory that nobody writes to: it is named with no bytes.
        let mr = inner.register(NOTHING.as_ptr().cast_mut(), NOTHING.len(), net::MemoryKind::Host);
        self.nothing = Some(mr.map_err(passed_on)?);
        Ok(())
    }
}

impl RecvComm for FaultyRecv {
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        let mr = self.inner()?.register(memory.address as *mut u8, memory.bytes, kind(memory));
        Ok(Mr(self.mrs.put(mr.map_err(passed_on)?).get()))
    }

    fn deregister(&mut self, mr: Mr) -> Result<()> {
        match (self.mrs.take(mr.0), &mut self.inner) {
            (Some(mr), Some(inner)) => inner.deregister(mr).map_err(passed_on),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.inner()?;
        if self.nothing.is_none() && buffers.iter().any(|buffer| buffer.bytes == 0) {
            self.room()?;
        }
        let (Some(inner), Some(first)) = (&mut self.inner, buffers.first()) else {
            return Err(dropped(self.received));
        };
        let mut group = Vec::with_capacity(buffers.len());
        for RecvBuffer { data, bytes, tag, mr } in buffers.iter().copied() {
            group.push(match &self.nothing {
                Some(mr) if bytes == 0 => {
                    net::RecvBuffer { data: NOTHING.as_ptr().cast_mut(), bytes, tag, mr }
                }
                _ => net::RecvBuffer { data, bytes, tag, mr: registered(&self.mrs, mr)? },
            });
        }
        // SAFETY: the host's promise to us, passed on: the memory stays until the request is done or the comm is
        // closed, at which the one inside is closed as well.
        let request = unsafe { inner.recv_group(&group) }.map_err(passed_on)?;
        Ok(request.map(|inner| {
            let (number, first, count) = (self.posted, *first, buffers.len());
            self.posted += 1;
            Request(self.requests.put(Receive { number, inner, first, count, done: None }))
        }))
    }

    fn test(&mut self, request: Request, sizes: &mut [u64]) -> Result<bool> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let number = self.requests.get(request.0.get()).ok_or_else(|| unknown(request))?.number;
        if self.rules.error_from_test == Some(number) {
            let error = failed(number);
            self.broken = Some(error.clone());
            return Err(error);
        }
        self.inner()?;
        self.progress(request)?;
        let Some(receive) = self.requests.get(request.0.get()) else { return Err(unknown(request)) };
        let Some((since, found)) = receive.done else { return Ok(false) };
        if self.is_held(receive, since) {
            return Ok(false);
        }
        sizes.iter_mut().zip(&found[..receive.count]).for_each(|(to, from)| *to = *from as u64);
        self.received += receive.count as u64;
        self.requests.take(request.0.get());
        Ok(true)
    }
}

static NOTHING: [u8; 8] = [0; 8];
/// How long a receive waits to be overtaken.
const HOLD: Duration = Duration::from_millis(2);
