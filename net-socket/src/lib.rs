//! The network over TCP sockets: always there, and the model of a plugin in Rust.
//!
//! Written against `ccl-plugin` only. A program that wants it linked in asks [`table`] for it:
//!
//! ```
//! let table = ccl_net_socket::table();
//! assert_eq!(table.version, 1);
//! ```
//!
//! The crate `ccl-net-socket-plugin` beside it exports the same table from `libccl_net_socket.so`.
//!
//! Devices are interfaces: those the host lists, or those that are up. All listeners of a device
//! share one port and are told apart by a cookie; a connection proves with a key that it has seen
//! the listener's handle, and until then it is a stranger with a deadline. A connection is one or
//! several sockets (`sockets`); long messages are striped over them. A connection that is turned
//! carries messages both ways on the same sockets, where acknowledgements ride on the answers. There
//! are no threads: progress happens inside calls, none of which blocks. Writing is one system call per
//! message, reading one per message or less; reads go straight into the buffer that is expected to
//! match.
//!
//! What it does not do: encrypt, use device memory (the runtime stages it), or retry a connection
//! that broke.

mod acceptor;
mod config;
mod connect;
mod convoy;
mod halving;
mod interfaces;
mod listen;
mod pacing;
mod recv;
mod rest;
mod send;
mod slots;
mod staging;
mod stream;
mod turn;
mod wire;

use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ccl_plugin::net::{Handle, Net, Properties};
use ccl_plugin::{CclNetV1, Code, Error, Settings};

use crate::acceptor::Port;
use crate::config::Config;
use crate::connect::SocketConnecting;
use crate::interfaces::{Interface, interfaces};
use crate::listen::{SocketListener, random};
use crate::recv::SocketRecv;
use crate::send::SocketSend;
use crate::wire::Target;

/// The table of this network, for a program that links it in.
pub const fn table() -> &'static CclNetV1 {
    ccl_plugin::net::table::<SocketNet>()
}

/// The network over TCP sockets: one value per context.
#[derive(Debug)]
pub struct SocketNet {
    config: Config,
    interfaces: Vec<Interface>,
    /// The port of each device, while any listener uses it.
    ports: Mutex<Vec<Weak<Mutex<Port>>>>,
    context: Arc<Context>,
}

/// What all that is opened in a context shares.
#[derive(Debug, Default)]
struct Context {
    aborted: AtomicBool,
    /// Messages written so far, around the end.
    writes: AtomicU32,
    /// How often nothing had come.
    waits: AtomicU32,
}

impl SocketNet {
    fn address(&self, device: u32) -> Result<SocketAddr, Error> {
        let interface = self.interfaces.get(device as usize).ok_or_else(|| Error::no_device(device))?;
        Ok(interface.address)
    }

    fn port(&self, device: u32) -> Result<Arc<Mutex<Port>>, Error> {
        let address = self.address(device)?;
        let mut ports = lock(&self.ports);
        if let Some(port) = ports[device as usize].upgrade() {
            return Ok(port);
        }
        let port = Arc::new(Mutex::new(Port::open(address, &self.config)?));
        ports[device as usize] = Arc::downgrade(&port);
        Ok(port)
    }
}

impl Net for SocketNet {
    const NAME: &'static CStr = c"socket";
    const TWO_WAY: bool = true;
    const WATCHABLE: bool = true;
    const SENDS_FROM: bool = true;
    type Listener = SocketListener;
    type Connecting = SocketConnecting;
    type SendComm = SocketSend;
    type RecvComm = SocketRecv;

    fn init(settings: &Settings) -> Result<SocketNet, Error> {
        let config = Config::parse(settings)?;
        let interfaces = interfaces(&config)?;
        for (index, interface) in interfaces.iter().enumerate() {
            tracing::info!("device {index} is {} at {}", interface.name, interface.address.ip());
        }
        let ports = Mutex::new(interfaces.iter().map(|_| Weak::new()).collect());
        Ok(SocketNet { config, interfaces, ports, context: Arc::default() })
    }

    fn devices(&self) -> Result<u32, Error> {
        Ok(self.interfaces.len() as u32)
    }

    fn properties(&self, device: u32) -> Result<Properties, Error> {
        let interface = self.interfaces.get(device as usize).ok_or_else(|| Error::no_device(device))?;
        Ok(interface.properties(device))
    }

    fn listen(&self, device: u32) -> Result<(Handle, SocketListener), Error> {
        self.context.check()?;
        let port = self.port(device)?;
        let target =
            Target { address: lock(&port).address(), cookie: u64::from_le_bytes(random()?), key: random()? };
        lock(&port).open_door(&target);
        Ok((target.to_handle(), SocketListener::new(port, target.cookie, self.context.clone())))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<SocketConnecting, Error> {
        self.context.check()?;
        let from = self.address(device)?;
        let target = Target::from_handle(handle)
            .ok_or_else(|| Error::invalid("the handle is not one of the socket network"))?;
        let connection = u64::from_le_bytes(random()?);
        SocketConnecting::start(from, &target, connection, &self.config, self.context.clone(), Instant::now())
    }

    fn turn_send(comm: &mut SocketSend) -> Result<SocketRecv, Error> {
        comm.turn()
    }

    fn turn_recv(comm: &mut SocketRecv) -> Result<SocketSend, Error> {
        comm.turn()
    }

    fn abort(&self) {
        // Relaxed: a flag alone, nothing is published with it.
        self.context.aborted.store(true, Ordering::Relaxed);
    }
}

impl Context {
    #[inline]
    fn check(&self) -> Result<(), Error> {
        // Relaxed: pairs with the store in `abort`, which publishes nothing else.
        if self.aborted.load(Ordering::Relaxed) {
            return Err(Error::new(Code::ABORTED, "the context was aborted"));
        }
        Ok(())
    }

    /// A message was written.
    #[inline]
    fn count_write(&self) {
        count(&self.writes);
    }

    #[inline]
    fn writes(&self) -> u32 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Nothing had come.
    #[inline]
    fn count_wait(&self) {
        count(&self.waits);
    }

    #[inline]
    fn waits(&self) -> u32 {
        self.waits.load(Ordering::Relaxed)
    }
}

/// Counts one more. A hint, of no order with anything: two threads may count as one.
#[inline]
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cold]
fn turned_before() -> Error {
    Error::invalid("expected a connection whose other direction nobody has, found one that was turned")
}

/// A panic while a lock was held left nothing half done: what is guarded is sockets in lists.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
