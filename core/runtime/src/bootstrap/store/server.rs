//! A store in rank 0's process, for as long as one exchange takes.
//!
//! It is served by the call that sets the key, in the caller's thread, until every other rank has the value. It
//! answers WAIT and GET for that one key, and takes note of who says to have it. Whatever else
//! arrives is left without an answer until the end: it may be a client of a store that will listen
//! here next, and such clients try again when their connection closes.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::time::Instant;

use ccl_plan::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bootstrap::store::Store;
use crate::bootstrap::store::client::seen_key;
use crate::bootstrap::store::link::{Address, Listener, Stream};
use crate::bootstrap::store::wait::{left, ranks_missing};
use crate::bootstrap::store::wire::{Parsed, Request, STOP_WAITING, encode_bytes};
use crate::error::{Error, Result};

/// A store that rank 0 hosts.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: Address,
    /// The ranks that each key is for.
    others: BTreeSet<u32>,
}

impl Server {
    /// Listens at `address` for the other ranks of `nranks`.
    ///
    /// # Errors
    /// The system's, as when somebody listens there already.
    pub fn listen(address: Address, nranks: u32) -> io::Result<Server> {
        Server::listen_for(address, (1..nranks).collect())
    }

    /// Listens at `address` for these ranks.
    pub(super) fn listen_for(address: Address, others: BTreeSet<u32>) -> io::Result<Server> {
        Ok(Server { listener: address.listen()?, address, others })
    }

    /// From now on the keys are for these ranks.
    pub(super) fn expect(&mut self, others: BTreeSet<u32>) {
        self.others = others;
    }

    fn serve(&self, service: &mut Service, deadline: Instant) -> Result<()> {
        let mut callers: Vec<Caller> = Vec::new();
        while !service.missing.is_empty() {
            let Some(left) = left(deadline) else {
                let missing: Vec<_> = service.missing.iter().copied().collect();
                return Err(ranks_missing(
                    &service.key,
                    &self.address.to_string(),
                    &missing,
                    self.others.len(),
                ));
            };
            let timeout = Timespec::try_from(left).ok();
            let ready = wait_ready(&self.listener, &callers, timeout.as_ref()).map_err(|error| {
                Error::system(&format!("wait for ranks at {}", self.address), error, "see poll(2)")
            })?;
            if ready[0] {
                self.accept(&mut callers);
            }
            let mut ready = ready.into_iter().skip(1);
            callers.retain_mut(|caller| !ready.next().unwrap_or(false) || caller.advance(service));
        }
        Ok(())
    }

    /// Takes one waiting connection. One that fails is that peer's affair. The oldest gives way to the newest
    /// where there are too many.
    fn accept(&self, callers: &mut Vec<Caller>) {
        if callers.len() > self.others.len() + STRANGERS {
            callers.remove(0);
        }
        callers.extend(self.listener.accept().ok().map(Caller::new));
    }
}

impl Store for Server {
    fn set(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<()> {
        self.serve(&mut Service::new(key, value, self.others.clone()), deadline)
    }

    fn get(&mut self, key: &str, _: Instant) -> Result<Vec<u8>> {
        Err(Error::bug(format!("a rank asked the store that it hosts for key `{key}`")))
    }
}

/// What the store knows: one key, its value, and who is still to get it.
struct Service {
    key: String,
    value: Vec<u8>,
    missing: BTreeSet<u32>,
}

impl Service {
    fn new(key: &str, value: &[u8], others: BTreeSet<u32>) -> Service {
        Service { key: key.to_owned(), value: value.to_owned(), missing: others }
    }

    /// The answer to a request; `None` if it is none that an exchange makes.
    fn on(&mut self, request: &Request) -> Option<Vec<u8>> {
        match request {
            Request::Validate => Some(Vec::new()),
            Request::Wait { keys } => self.knows(keys).then(|| vec![STOP_WAITING]),
            Request::Get { key } => self.knows(std::slice::from_ref(key)).then(|| encode_bytes(&self.value)),
            Request::Set { key, .. } => {
                let rank = self.missing.iter().copied().find(|&rank| *key == seen_key(&self.key, Rank(rank)));
                rank.map(|rank| {
                    self.missing.remove(&rank);
                    Vec::new()
                })
            }
        }
    }

    fn knows(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| key == self.key.as_bytes())
    }
}

/// A connection and what it sent so far.
struct Caller {
    stream: Stream,
    bytes: Vec<u8>,
    /// It said something that has no answer here; what else it says is dropped.
    parked: bool,
    validated: bool,
}

impl Caller {
    fn new(stream: Stream) -> Caller {
        Caller { stream, bytes: Vec::new(), parked: false, validated: false }
    }

    /// Reads what has arrived and answers it. Says whether to keep the connection.
    fn advance(&mut self, service: &mut Service) -> bool {
        let mut bytes = [0; 4096];
        let count = match self.stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        if self.parked {
            return true;
        }
        self.bytes.extend_from_slice(&bytes[..count]);
        let answer = self.digest(service);
        // Answers are shorter than any socket's buffer; a peer that lets it fill is not one of ours.
        self.stream.write_all(&answer).is_ok()
    }

    fn digest(&mut self, service: &mut Service) -> Vec<u8> {
        let mut answers = Vec::new();
        while !self.parked {
            match Request::parse(&self.bytes) {
                Parsed::Request(request, taken) if self.validated || request == Request::Validate => {
                    self.validated = true;
                    self.bytes.drain(..taken);
                    match service.on(&request) {
                        Some(answer) => answers.extend(answer),
                        None => self.parked = true,
                    }
                }
                Parsed::Partial => break,
                Parsed::Request(..) | Parsed::Foreign => self.parked = true,
            }
        }
        answers
    }
}

/// Which of the listener and the callers have something to read. A parked caller only
/// counts once it hangs up.
fn wait_ready(listener: &Listener, callers: &[Caller], timeout: Option<&Timespec>) -> io::Result<Vec<bool>> {
    let interest = |parked: bool| if parked { PollFlags::empty() } else { PollFlags::IN };
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(callers.iter().map(|caller| PollFd::new(&caller.stream, interest(caller.parked))));
    match poll(&mut polled, timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {
            Ok(polled.iter().map(|one| !one.revents().is_empty()).collect())
        }
        Err(error) => Err(error.into()),
    }
}

/// Connections beyond one per rank.
const STRANGERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_answers_for_its_key_only() {
        let mut service = Service::new("k", b"value", (1..3).collect());
        let wait = |key: &str| Request::Wait { keys: vec![key.into()] };
        assert_eq!(service.on(&wait("k")), Some(vec![STOP_WAITING]));
        assert_eq!(service.on(&wait("k2")), None);
        assert_eq!(service.on(&Request::Get { key: b"k".into() }), Some(encode_bytes(b"value")));
        assert_eq!(service.on(&Request::Get { key: b"x".into() }), None);
        // Nobody replaces the value, and nobody speaks for a rank that does not exist.
        for key in ["k", "k/seen/3", "k/seen/0", "k/seen/x"] {
            assert_eq!(service.on(&Request::Set { key: key.into(), value: vec![] }), None, "{key}");
        }
        for rank in [2, 1] {
            let seen = Request::Set { key: seen_key("k", Rank(rank)), value: vec![1] };
            assert_eq!(service.on(&seen), Some(Vec::new()));
        }
        assert!(service.missing.is_empty());
    }
}
