//! The sending end.

use ccl_plugin::net::{Memory, Mr, Request, SendBuffer, SendComm};
use ccl_plugin::{Error, Result};

use super::rules::FaultRules;
use super::slots::{Slots, kind, registered, unknown};
use super::{dropped, failed, passed_on};
use crate::net;

/// The sending end of a connection with faults.
pub(crate) struct FaultySend {
    /// None once it was dropped.
    inner: Option<net::SendComm>,
    rules: FaultRules,
    mrs: Slots<net::Mr>,
    /// For messages without bytes, which need no registration.
    nothing: Option<net::Mr>,
    requests: Slots<(u64, net::Request)>,
    posted: u64,
    sent: u64,
    broken: Option<Error>,
}

impl FaultySend {
    pub(super) fn new(inner: net::SendComm, rules: FaultRules) -> FaultySend {
        let (mrs, requests) = Default::default();
        FaultySend {
            inner: Some(inner),
            rules,
            mrs,
            nothing: None,
            requests,
            posted: 0,
            sent: 0,
            broken: None,
        }
    }

    fn inner(&mut self) -> Result<&mut net::SendComm> {
        if self.rules.drop_after.is_some_and(|after| self.sent >= after) {
            // The other end hears of it as of any connection that ends.
            self.inner = None;
        }
        match &mut self.inner {
            Some(inner) => Ok(inner),
            None => Err(dropped(self.sent)),
        }
    }
}

impl SendComm for FaultySend {
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        let mr = self.inner()?.register(memory.address as *const u8, memory.bytes, kind(memory));
        Ok(Mr(self.mrs.put(mr.map_err(passed_on)?).get()))
    }

    fn deregister(&mut self, mr: Mr) -> Result<()> {
        match (self.mrs.take(mr.0), &mut self.inner) {
            (Some(mr), Some(inner)) => inner.deregister(mr).map_err(passed_on),
            _ => Ok(()),
        }
    }

    fn send(&mut self, message: SendBuffer) -> Result<Option<Request>> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.inner()?;
        let Some(inner) = &mut self.inner else { return Err(dropped(self.sent)) };
        let mut data = message.data;
        let mr = if message.bytes == 0 {
            data = NOTHING.as_ptr();
            if self.nothing.is_none() {
                let mr = inner.register(data, NOTHING.len(), net::MemoryKind::Host);
                self.nothing = Some(mr.map_err(passed_on)?);
            }
            self.nothing.as_ref()
        } else {
            Some(registered(&self.mrs, message.mr)?)
        };
        let Some(mr) = mr else { return Err(dropped(self.sent)) };
        // SAFETY: the host's promise to us, passed on: the bytes stay until the request is done or the comm is
        // closed, at which the one inside is closed as well.
        let request = unsafe { inner.send(data, message.bytes, message.tag, mr) }.map_err(passed_on)?;
        Ok(request.map(|request| {
            let number = self.posted;
            self.posted += 1;
            Request(self.requests.put((number, request)))
        }))
    }

    fn test(&mut self, request: Request) -> Result<bool> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let Some((number, inner)) = self.requests.get_mut(request.0.get()) else {
            return Err(unknown(request));
        };
        if self.rules.error_from_test == Some(*number) {
            let error = failed(*number);
            self.broken = Some(error.clone());
            return Err(error);
        }
        let Some(comm) = &mut self.inner else { return Err(dropped(self.sent)) };
        let done = comm.test(inner).map_err(passed_on)?.is_some();
        if done {
            self.requests.take(request.0.get());
            self.sent += 1;
        }
        Ok(done)
    }
}

static NOTHING: [u8; 8] = [0; 8];
