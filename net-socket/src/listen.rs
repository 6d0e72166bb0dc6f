//! A listener: one door of its device's port.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

use ccl_plugin::net::Listener;
use ccl_plugin::{Code, Error};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::acceptor::{Arrival, Port};
use crate::recv::SocketRecv;
use crate::wire::{ANSWER, ANSWER_BYTES};
use crate::{Context, lock};

/// Accepts connections that know its cookie and key.
pub struct SocketListener {
    port: Arc<Mutex<Port>>,
    cookie: u64,
    context: Arc<Context>,
}

impl SocketListener {
    pub(crate) fn new(port: Arc<Mutex<Port>>, cookie: u64, context: Arc<Context>) -> SocketListener {
        SocketListener { port, cookie, context }
    }

    /// The next connection that is complete. Another thread at the port means: not yet.
    fn arrival(&mut self) -> Result<Option<Arrival>, Error> {
        let mut port = match self.port.try_lock() {
            Ok(port) => port,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let waiting = port.arrival(self.cookie);
        if waiting.is_some() {
            return Ok(waiting);
        }
        port.poll(Instant::now())?;
        Ok(port.arrival(self.cookie))
    }
}

impl Listener for SocketListener {
    type RecvComm = SocketRecv;

    fn accept(&mut self) -> Result<Option<SocketRecv>, Error> {
        self.context.check()?;
        while let Some(Arrival { streams, peer, stripe_min_bytes }) = self.arrival()? {
            // The first bytes in an empty buffer always fit.
            match streams[0].write(&ANSWER) {
                Ok(Some(ANSWER_BYTES)) => {
                    return Ok(Some(SocketRecv::new(streams, peer, stripe_min_bytes, self.context.clone())));
                }
                _ => tracing::warn!("{peer} went away before its connection was accepted"),
            }
        }
        Ok(None)
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        lock(&self.port).close_door(self.cookie);
    }
}

/// Bytes nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        // Up to 256 bytes come at once or not at all.
        Ok(got) if got == N => Ok(bytes),
        Ok(got) => Err(Error::new(Code::SYSTEM, format!("expected {N} random bytes, found {got}"))),
        Err(error) => Err(Error::system("ask for random bytes", &error.into())),
    }
}
