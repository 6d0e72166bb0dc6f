//! A rank that uses a store which somebody else hosts.

use std::io::{self, Read, Write};
use std::time::Instant;

use ccl_plan::Rank;

use crate::bootstrap::store::Store;
use crate::bootstrap::store::link::{Address, Stream};
use crate::bootstrap::store::wait::{Pauses, key_missing, left};
use crate::bootstrap::store::wire::{MOST_VALUE_BYTES, Request, STOP_WAITING};
use crate::error::{Error, Fault, Result};

/// A client of a store that speaks the protocol of torch's TCPStore, ours or torch's.
///
/// A store that is not there yet, or goes away while a key is awaited, is tried again until the deadline.
#[derive(Debug)]
pub struct Client {
    address: Address,
    rank: Rank,
    host: Rank,
}

impl Client {
    /// A client for `rank`. Connects at each call.
    pub fn new(address: Address, rank: Rank) -> Client {
        Client { address, rank, host: Rank(0) }
    }

    /// The same where `host`, and not rank 0, sets the keys.
    pub(super) fn set_by(self, host: Rank) -> Client {
        Client { host, ..self }
    }

    /// Repeats `attempt` until it succeeds.
    fn insist<T>(
        &self,
        key: &str,
        deadline: Instant,
        attempt: impl Fn(&mut Stream) -> io::Result<T>,
    ) -> Result<T> {
        let mut pauses = Pauses::new();
        loop {
            let last = match self.open(deadline).and_then(|mut stream| attempt(&mut stream)) {
                Ok(value) => return Ok(value),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(self.misspoken(&error));
                }
                Err(error) => error,
            };
            if !pauses.pause(deadline) || left(deadline).is_none() {
                return Err(key_missing(key, self.host, &self.address.to_string(), &words(&last)));
            }
        }
    }

    fn open(&self, deadline: Instant) -> io::Result<Stream> {
        let mut stream = self.address.connect(deadline)?;
        stream.set_timeout(left(deadline).ok_or(io::ErrorKind::TimedOut)?)?;
        stream.write_all(&Request::Validate.encode())?;
        Ok(stream)
    }

    fn misspoken(&self, error: &io::Error) -> Error {
        let cause =
            format!("expected {} to speak the protocol of torch's TCPStore, found {error}", self.address);
        Error::new(
            Fault::Network,
            cause,
            "check that address and port are the store's, and not another service's",
        )
    }
}

impl Store for Client {
    fn set(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<()> {
        self.insist(key, deadline, |stream| {
            let set = Request::Set { key: key.into(), value: value.into() };
            stream.write_all(&set.encode())?;
            // SET has no answer; that the key is there is one.
            wait_for(stream, key, deadline)
        })
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>> {
        self.insist(key, deadline, |stream| {
            wait_for(stream, key, deadline)?;
            stream.write_all(&Request::Get { key: key.into() }.encode())?;
            let value = read_value(stream, deadline)?;
            // Tells a store in rank 0's process who has been served. A store that is already gone needs no telling.
            let seen = Request::Set { key: seen_key(key, self.rank), value: vec![1] };
            let _ = stream.write_all(&seen.encode());
            Ok(value)
        })
    }
}

/// The key by which `rank` says that it has the value of `key`.
pub(super) fn seen_key(key: &str, rank: Rank) -> Vec<u8> {
    format!("{key}/seen/{rank}").into_bytes()
}

fn wait_for(stream: &mut Stream, key: &str, deadline: Instant) -> io::Result<()> {
    stream.write_all(&Request::Wait { keys: vec![key.into()] }.encode())?;
    let mut answer = [0];
    read(stream, &mut answer, deadline)?;
    match answer {
        [STOP_WAITING] => Ok(()),
        [other] => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{other} as the answer to WAIT"))),
    }
}

fn read_value(stream: &mut Stream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    read(stream, &mut length, deadline)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MOST_VALUE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a value of {length} bytes")));
    }
    let mut value = vec![0; length];
    read(stream, &mut value, deadline)?;
    Ok(value)
}

fn read(stream: &mut Stream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    stream.set_timeout(left(deadline).ok_or(io::ErrorKind::TimedOut)?)?;
    stream.read_exact(bytes)
}

/// An error in words: what a timed-out read says of itself ("try again") is no help.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it answered nothing".into(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "it closed the connection".into(),
        io::ErrorKind::ConnectionRefused => "nobody listens there".into(),
        _ => error.to_string(),
    }
}
