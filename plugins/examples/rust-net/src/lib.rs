//! A network within one process, in Rust: an example to start from.
//!
//!     cargo build --release -p ccl-net-example
//!     ccl plugin check target/release/libccl_net_example.so
//!
//! There is one type for each kind of object of the contract, and one trait for each type. This file is what the host
//! sees; `link.rs` moves the bytes, and is what you replace with your hardware. Nothing here waits: what is not there
//! yet is `None` or `false`, and the host asks again. Dropping an object closes it.
//!
//! What it does not do: reach another process, group receives, register memory, or `turn`, `watch` and `flush`, which
//! the traits have for networks that can.

mod link;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_plugin::net::{self, Handle, Net, Properties, RecvBuffer, Request, SendBuffer};
use ccl_plugin::{Code, Error, Result, Settings};

use crate::link::Link;

// The one line that makes a plugin of a `Net`: it exports the table `cclNet_v1`.
ccl_plugin::export_net!(Loopback);

/// A context: one for each communicator, any number at a time. Whatever contexts share must say so, as `LISTENERS` does.
struct Loopback(Alive);

impl Net for Loopback {
    /// What logs and errors call it.
    const NAME: &'static CStr = c"loopback-rust";
    type Listener = Listener;
    type Connecting = Connecting;
    type SendComm = Sender;
    type RecvComm = Receiver;

    /// Settings of your own are read here, as in `settings.parse("queue_depth", 64)?`. This network has none.
    fn init(_: &Settings) -> Result<Loopback> {
        Ok(Loopback(Alive::default()))
    }

    /// In order of preference: ranks use device 0.
    fn devices(&self) -> Result<u32> {
        Ok(1)
    }

    /// The defaults promise little: host memory, no groups, 8 requests in flight.
    fn properties(&self, device: u32) -> Result<Properties> {
        exists(device)?;
        let max_requests = SLOTS as u32;
        Ok(Properties {
            name: "loopback0".to_owned(),
            speed_mbps: 100_000,
            max_requests,
            ..Properties::default()
        })
    }

    /// The handle is all that the peer gets: an address, and a secret by which only those who saw it are let in.
    fn listen(&self, device: u32) -> Result<(Handle, Listener)> {
        self.0.check()?;
        exists(device)?;
        let secret = RandomState::new().build_hasher().finish();
        let mut handle = Handle([0; _]);
        handle.0[..8].copy_from_slice(&secret.to_ne_bytes());
        lock(&LISTENERS).insert(secret, VecDeque::new());
        Ok((handle, Listener { secret, alive: self.0.clone() }))
    }

    /// Starts only: the peer may be busy for long, and `poll` is there to ask.
    fn connect(&self, device: u32, handle: &Handle) -> Result<Connecting> {
        self.0.check()?;
        exists(device)?;
        let secret = handle.0.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let link = Arc::new(Mutex::new(Link::default()));
        match lock(&LISTENERS).get_mut(&secret) {
            Some(waiting) => waiting.push_back(Arc::clone(&link)),
            None => return Err(gone("no listener has this handle")),
        }
        Ok(Connecting(Some(Sender { link, in_flight: 0, alive: self.0.clone() })))
    }

    /// From any thread, at any time, so it only sets a flag that every call looks at.
    fn abort(&self) {
        // Relaxed: nothing else is read that the abort wrote.
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts connections until it is dropped.
struct Listener {
    secret: u64,
    alive: Alive,
}

impl net::Listener for Listener {
    type RecvComm = Receiver;

    /// The oldest that waits. Over a real wire a stranger at the port is none: forget it, and answer "not yet".
    fn accept(&mut self) -> Result<Option<Receiver>> {
        self.alive.check()?;
        let waiting = lock(&LISTENERS).get_mut(&self.secret).and_then(VecDeque::pop_front);
        Ok(waiting.map(|link| {
            lock(&link).is_accepted = true;
            Receiver { link, in_flight: 0, alive: self.alive.clone() }
        }))
    }
}

impl Drop for Listener {
    /// Whoever still waits is told that nobody will come.
    fn drop(&mut self) {
        let waiting = lock(&LISTENERS).remove(&self.secret).unwrap_or_default();
        waiting.iter().for_each(|link| lock(link).close_recv());
    }
}

/// A connection being made: the sending end, until it is given. Dropped before, it closes that end.
struct Connecting(Option<Sender>);

impl net::Connecting for Connecting {
    type SendComm = Sender;

    fn poll(&mut self) -> Result<Option<Sender>> {
        let Some(sender) = &self.0 else { return Ok(None) };
        sender.alive.check()?;
        let link = lock(&sender.link);
        if link.is_recv_closed {
            return Err(gone("the listener is gone"));
        }
        let is_accepted = link.is_accepted;
        drop(link);
        Ok(if is_accepted { self.0.take() } else { None })
    }
}

/// The sending end of a connection. One thread uses it at a time, but not always the same.
struct Sender {
    link: Arc<Mutex<Link>>,
    /// Requests that were given and not yet reported done.
    in_flight: usize,
    alive: Alive,
}

impl net::SendComm for Sender {
    /// "Not now" when all places are taken: then nothing of the message is posted, and the host comes again.
    fn send(&mut self, message: SendBuffer) -> Result<Option<Request>> {
        self.alive.check()?;
        let mut link = lock(&self.link);
        if link.is_recv_closed {
            return Err(gone("the receiving end is closed"));
        }
        let request = if self.in_flight < SLOTS { link.post_send(message) } else { None };
        self.in_flight += usize::from(request.is_some());
        Ok(request)
    }

    /// Done comes first: what was sent before a failure was sent.
    fn test(&mut self, request: Request) -> Result<bool> {
        let mut link = lock(&self.link);
        if link.take_done(request).is_some() {
            self.in_flight -= 1;
            return Ok(true);
        }
        self.alive.check()?;
        if link.is_recv_closed { Err(gone("the receiving end is closed")) } else { Ok(false) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        lock(&self.link).close_send();
    }
}

/// The receiving end of a connection.
struct Receiver {
    link: Arc<Mutex<Link>>,
    in_flight: usize,
    alive: Alive,
}

impl net::RecvComm for Receiver {
    /// One buffer at a time, because `properties` leaves `max_recvs` at 1.
    fn receive(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>> {
        self.alive.check()?;
        let &[room] = buffers else {
            return Err(Error::invalid(format!("expected 1 buffer, found {}", buffers.len())));
        };
        let request = if self.in_flight < SLOTS { lock(&self.link).post_recv(room) } else { None };
        self.in_flight += usize::from(request.is_some());
        Ok(request)
    }

    /// Progress happens in calls like this one: there are no threads. What arrived before a failure is still told.
    fn test(&mut self, request: Request, sizes: &mut [u64]) -> Result<bool> {
        self.alive.check()?;
        let mut link = lock(&self.link);
        let delivered = link.deliver();
        if let Some(bytes) = link.take_done(request) {
            self.in_flight -= 1;
            sizes[0] = bytes;
            return Ok(true);
        }
        delivered?;
        if link.is_send_closed { Err(gone("the sending end is closed")) } else { Ok(false) }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        lock(&self.link).close_recv();
    }
}

/// Whether a context was aborted; shared by everything made from it.
#[derive(Clone, Default)]
struct Alive(Arc<AtomicBool>);

impl Alive {
    fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::new(Code::ABORTED, "the context was aborted")),
        }
    }
}

fn exists(device: u32) -> Result<()> {
    if device == 0 { Ok(()) } else { Err(Error::no_device(device)) }
}

/// The peer's failure, with the peer's address in whatever form the network has.
fn gone(words: &str) -> Error {
    Error::remote(words).with_peer("loopback")
}

/// Also after a panic, which the host sees as an error of the call where it happened.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listeners of the process by their secrets, and who waits at each.
static LISTENERS: Mutex<BTreeMap<u64, VecDeque<Arc<Mutex<Link>>>>> = Mutex::new(BTreeMap::new());
/// Requests in flight at each end.
const SLOTS: usize = 32;
