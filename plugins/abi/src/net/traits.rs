//! The traits a network implements.
//!
//! Nothing may block: a call that cannot finish says "not yet" with `None` or `false`, and progress
//! happens inside later calls. Dropping an object closes it at once, whatever is pending; after
//! that no buffer of the host is touched.

use std::ffi::CStr;

use super::types::{Elsewhere, Handle, Memory, Mr, Properties, RecvBuffer, Request, SendBuffer};
use crate::error::{Error, Result};
use crate::settings::Settings;

/// A network: one value per context, shared between the host's threads.
pub trait Net: Send + Sync + Sized + 'static {
    /// The network's name, as `CCL_NET` names it.
    const NAME: &'static CStr;
    /// Whether connections can be turned, all of them: then both `turn_` functions are there.
    const TWO_WAY: bool = false;
    /// Whether both `watch` functions are there: hosts then sleep while nothing happens, and wake up at once.
    const WATCHABLE: bool = false;
    /// Whether a send can take what it sends from anywhere: then [`SendComm::send_from`] is worth asking.
    const SENDS_FROM: bool = false;
    /// What accepts connections.
    type Listener: Listener<RecvComm = Self::RecvComm>;
    /// A connection being made.
    type Connecting: Connecting<SendComm = Self::SendComm>;
    /// The sending end of a connection.
    type SendComm: SendComm;
    /// The receiving end of a connection.
    type RecvComm: RecvComm;

    /// A context. Called for every communicator, from any thread, possibly at the same time.
    fn init(settings: &Settings) -> Result<Self>;

    /// Number of devices; the same each time.
    fn devices(&self) -> Result<u32>;

    /// Describes a device.
    fn properties(&self, device: u32) -> Result<Properties>;

    /// Starts listening on a device. The handle reaches the peer by other means.
    fn listen(&self, device: u32) -> Result<(Handle, Self::Listener)>;

    /// Starts connecting from a device to the listener that made the handle.
    fn connect(&self, device: u32, handle: &Handle) -> Result<Self::Connecting>;

    /// The other direction of a connection, once: receives what the peer sends. Each direction works
    /// and is closed by itself, as `ccl_net.h` says of `turn`.
    fn turn_send(comm: &mut Self::SendComm) -> Result<Self::RecvComm> {
        let _ = comm;
        Err(Error::unsupported("turn"))
    }

    /// The other direction of a connection, once: sends to the peer.
    fn turn_recv(comm: &mut Self::RecvComm) -> Result<Self::SendComm> {
        let _ = comm;
        Err(Error::unsupported("turn"))
    }

    /// Makes every later and pending call on the context's objects fail with
    /// [`Code::ABORTED`](crate::Code::ABORTED). Called from any thread, at any time.
    fn abort(&self) {}
}

/// Accepts connections: one handle can be connected to many times.
pub trait Listener: Send + 'static {
    /// What it accepts.
    type RecvComm: RecvComm;

    /// The next connection, or not yet.
    fn accept(&mut self) -> Result<Option<Self::RecvComm>>;
}

/// A connection being made.
pub trait Connecting: Send + 'static {
    /// What comes of it.
    type SendComm: SendComm;

    /// The connection, or not yet. Not called again after it gave one or failed.
    ///
    /// May wait for the peer to poll its listener; must not wait for more than that.
    fn poll(&mut self) -> Result<Option<Self::SendComm>>;
}

/// The sending end of a connection; used by one thread at a time.
pub trait SendComm: Send + 'static {
    /// Registers memory that messages will be sent from.
    ///
    /// A network that needs no registrations takes host memory without one, and no other.
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        memory.expect_host().map(|()| Mr::NONE)
    }

    /// Ends a registration; no request uses it.
    fn deregister(&mut self, mr: Mr) -> Result<()> {
        let _ = mr;
        Ok(())
    }

    /// Posts a message, or not now (the host asks again with the same message).
    fn send(&mut self, message: SendBuffer) -> Result<Option<Request>>;

    /// As `send`, of a message that another follows at once: it may wait for that one, or for a test.
    fn send_more(&mut self, message: SendBuffer) -> Result<Option<Request>> {
        self.send(message)
    }

    /// As `send`, of a message of which only the first bytes are where they belong: `of` says where the others
    /// are. What is not sent when this returns was copied to its place. Not now: nothing was written there.
    ///
    /// Offered by a network with [`Net::SENDS_FROM`].
    fn send_from(&mut self, message: SendBuffer, of: Elsewhere) -> Result<Option<Request>> {
        // SAFETY: the host's promise: both are as long as that, and apart.
        unsafe {
            let place = message.data.cast_mut().add(of.head_bytes);
            std::ptr::copy_nonoverlapping(of.data, place, message.bytes - of.head_bytes);
        }
        self.send(message)
    }

    /// Whether the message's bytes may be reused. After `true` the request is dead.
    fn test(&mut self, request: Request) -> Result<bool>;

    /// Where news of what is pending comes from: calls `at` with each descriptor and the events of `poll(2)`.
    /// None: the host wakes up by itself. As `ccl_net.h` says of `watch`.
    fn watch(&mut self, at: &mut dyn FnMut(i32, i16)) {
        let _ = at;
    }
}

/// The receiving end of a connection; used by one thread at a time.
pub trait RecvComm: Send + 'static {
    /// Registers memory that messages will be received into.
    ///
    /// A network that needs no registrations takes host memory without one, and no other.
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        memory.expect_host().map(|()| Mr::NONE)
    }

    /// Ends a registration; no request uses it.
    fn deregister(&mut self, mr: Mr) -> Result<()> {
        let _ = mr;
        Ok(())
    }

    /// Posts 1..=`max_recvs` receives as one request, or not now.
    fn receive(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>>;

    /// Whether all messages of the request arrived; then their lengths are in `sizes`, in the order
    /// of the buffers, and the request is dead. `sizes` is at least as long as the request's group.
    fn test(&mut self, request: Request, sizes: &mut [u64]) -> Result<bool>;

    /// Where news of what is pending comes from, as for [`SendComm::watch`].
    fn watch(&mut self, at: &mut dyn FnMut(i32, i16)) {
        let _ = at;
    }

    /// Makes received bytes visible to the device; `None` if there is nothing to wait for.
    fn flush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>> {
        let _ = buffers;
        Err(Error::unsupported("flush"))
    }
}
