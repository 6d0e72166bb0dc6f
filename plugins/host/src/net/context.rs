//! Contexts, and what makes connections.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ccl_plugin::c::{self, CclNetPropertiesV1};
use ccl_plugin::net::{Handle, Properties};

use crate::error::NetError;
use crate::log::Host;
use crate::net::call;
use crate::net::comm::{RecvComm, SendComm};
use crate::net::plugin::{NetPlugin, text};

/// A network in use. Clones share it; it is finalised when the last clone and the last object made
/// from it are gone.
#[derive(Clone, Debug)]
pub struct NetContext(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    plugin: NetPlugin,
    raw: NonNull<c_void>,
    host: *mut Host,
    device_count: u32,
}

// SAFETY: the contract lets context entries be called from any thread, at the same time; the host
// table is only freed in drop, and its functions are thread-safe.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl NetContext {
    /// # Safety
    ///
    /// `raw` is what `init` of `plugin` gave for the table in `host`, which came from
    /// [`Host::leak`]. On success the context owns both, on failure the caller keeps `host`.
    pub(super) unsafe fn from_raw(
        plugin: NetPlugin,
        raw: *mut c_void,
        host: *mut Host,
    ) -> Result<NetContext, NetError> {
        let raw = object(plugin, "init", raw)?;
        let mut device_count = 0;
        if let Err(error) = call!(plugin, devices(raw.as_ptr(), &raw mut device_count)) {
            // The device error is the one worth reporting.
            let _: Result<(), NetError> = call!(plugin, finalize(raw.as_ptr()));
            return Err(error);
        }
        Ok(NetContext(Arc::new(Inner { plugin, raw, host, device_count })))
    }

    /// The plugin it is a context of.
    pub fn plugin(&self) -> NetPlugin {
        self.0.plugin
    }

    /// Number of devices; may be 0.
    pub fn device_count(&self) -> u32 {
        self.0.device_count
    }

    /// Describes a device.
    ///
    /// # Errors
    ///
    /// [`NetError::NoDevice`] for an index out of range; [`NetError::Plugin`] for properties that
    /// break the contract.
    pub fn properties(&self, device: u32) -> Result<Properties, NetError> {
        self.check_device("properties", device)?;
        let mut out = CclNetPropertiesV1 {
            size: size_of::<CclNetPropertiesV1>() as u32,
            memory_kinds: 0,
            flags: 0,
            port: 0,
            guid: 0,
            max_message_bytes: 0,
            speed_mbps: 0,
            latency_ns: 0,
            max_comms: 0,
            max_recvs: 0,
            max_requests: 0,
            rail: -1,
            plane: -1,
            reserved: 0,
            name: [0; _],
            pci_path: [0; _],
        };
        call!(self.0.plugin, properties(self.0.raw.as_ptr(), device, &raw mut out))?;
        self.checked(&out)
    }

    /// Starts listening on a device. The handle goes to the peers, by other means; each may connect
    /// any number of times.
    ///
    /// # Errors
    ///
    /// [`NetError::System`] if no port could be had, naming address and range.
    pub fn listen(&self, device: u32) -> Result<(Handle, Listener), NetError> {
        self.check_device("listen", device)?;
        let (mut handle, mut raw) = (Handle([0; c::HANDLE_BYTES]), ptr::null_mut());
        call!(self.0.plugin, listen(self.0.raw.as_ptr(), device, handle.0.as_mut_ptr(), &raw mut raw))?;
        let raw = object(self.0.plugin, "listen", raw)?;
        Ok((handle, Listener { raw, context: self.clone() }))
    }

    /// Starts connecting from a device to the listener behind `handle`.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] if the handle is not this network's; what else goes wrong is told by
    /// [`Connecting::poll`].
    pub fn connect(&self, device: u32, handle: Handle) -> Result<Connecting, NetError> {
        self.check_device("connect", device)?;
        let mut raw = ptr::null_mut();
        call!(self.0.plugin, connect(self.0.raw.as_ptr(), device, handle.0.as_ptr(), &raw mut raw))?;
        let raw = object(self.0.plugin, "connect", raw)?;
        Ok(Connecting { raw, context: self.clone() })
    }

    /// Makes every later call on this context's objects fail with [`NetError::Aborted`]. From any
    /// thread, at any time, more than once.
    ///
    /// # Errors
    ///
    /// [`NetError::Unsupported`] if the plugin has no such entry: then drop the objects instead.
    pub fn abort(&self) -> Result<(), NetError> {
        call!(self.0.plugin, abort(self.0.raw.as_ptr()))
    }

    fn check_device(&self, call: &'static str, device: u32) -> Result<(), NetError> {
        if device < self.0.device_count {
            return Ok(());
        }
        let message = format!("expected a device below {}, found {device}", self.0.device_count);
        Err(NetError::NoDevice(Box::new(crate::Detail {
            plugin: self.0.plugin.name().to_string(),
            call,
            message,
            ..Default::default()
        })))
    }

    fn checked(&self, out: &CclNetPropertiesV1) -> Result<Properties, NetError> {
        let broken = |words: String| Err(NetError::broken(self.0.plugin.name(), "properties", words));
        if !(1..=c::MAX_RECVS as u32).contains(&out.max_recvs) {
            return broken(format!("expected max_recvs 1 to {}, found {}", c::MAX_RECVS, out.max_recvs));
        }
        if out.max_requests < 8 {
            return broken(format!("expected max_requests of at least 8, found {}", out.max_requests));
        }
        Ok(Properties {
            name: text(&out.name),
            pci_path: Some(text(&out.pci_path)).filter(|path| !path.is_empty()),
            guid: out.guid,
            port: out.port,
            speed_mbps: out.speed_mbps,
            latency_ns: out.latency_ns,
            max_comms: out.max_comms,
            max_recvs: out.max_recvs,
            max_requests: out.max_requests,
            max_message_bytes: out.max_message_bytes,
            memory_kinds: out.memory_kinds,
            flags: out.flags,
            rail: u16::try_from(out.rail).ok(),
            plane: u16::try_from(out.plane).ok(),
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = call!(self.plugin, finalize(self.raw.as_ptr())) {
            tracing::warn!("{error}");
        }
        // SAFETY: from `Host::leak`; the contract says that a finalised context uses it no more.
        drop(unsafe { Box::from_raw(self.host) });
    }
}

/// Accepts connections on one device. Closes when dropped; what it accepted lives on.
#[derive(Debug)]
pub struct Listener {
    raw: NonNull<c_void>,
    context: NetContext,
}

// SAFETY: the contract asks for one thread at a time, not for one thread; calls take `&mut self`.
unsafe impl Send for Listener {}

impl Listener {
    /// The next connection, or not yet. Does not block; strangers at the port cannot make it fail.
    ///
    /// # Errors
    ///
    /// [`NetError::System`], [`NetError::Aborted`].
    pub fn poll(&mut self) -> Result<Option<RecvComm>, NetError> {
        let mut raw = ptr::null_mut();
        call!(self.context.plugin(), accept(self.raw.as_ptr(), &raw mut raw))?;
        // SAFETY: a comm that `accept` just gave.
        Ok(NonNull::new(raw).map(|raw| unsafe { RecvComm::from_raw(raw, self.context.clone()) }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Err(error) = call!(self.context.plugin(), close_listen(self.raw.as_ptr())) {
            tracing::warn!("{error}");
        }
    }
}

/// A connection being made. Gives up when dropped.
#[derive(Debug)]
pub struct Connecting {
    raw: NonNull<c_void>,
    context: NetContext,
}

// SAFETY: as for `Listener`.
unsafe impl Send for Connecting {}

impl Connecting {
    /// The sending end once the connection is made, or not yet. Does not block. The peer may have
    /// to poll its listener for it.
    ///
    /// # Errors
    ///
    /// [`NetError::Remote`], [`NetError::Timeout`] or [`NetError::System`], naming the peer's
    /// address; then there is nothing left to poll.
    pub fn poll(&mut self) -> Result<Option<SendComm>, NetError> {
        let mut raw = ptr::null_mut();
        call!(self.context.plugin(), poll_connect(self.raw.as_ptr(), &raw mut raw))?;
        // SAFETY: a comm that `poll_connect` just gave.
        Ok(NonNull::new(raw).map(|raw| unsafe { SendComm::from_raw(raw, self.context.clone()) }))
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Err(error) = call!(self.context.plugin(), close_connect(self.raw.as_ptr())) {
            tracing::warn!("{error}");
        }
    }
}

pub(super) fn object(
    plugin: NetPlugin,
    call: &'static str,
    raw: *mut c_void,
) -> Result<NonNull<c_void>, NetError> {
    NonNull::new(raw)
        .ok_or_else(|| NetError::broken(plugin.name(), call, "success was reported, with a null pointer"))
}
