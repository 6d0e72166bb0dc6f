//! Contexts over a plugin, and what makes connections.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ccl_plugin::net::{self, Handle, Net, Properties};
use ccl_plugin::{CclHostV1, Code, Error, Result, Settings};

use super::comm::{Receiver, Sender};
use super::layout::{self, CommConfig};
use super::logger::Listening;
use super::plugin::Plugin;

/// A plugin in use by one communicator.
pub(crate) struct Network(Arc<Context>);

/// What all objects of a communicator share. Ended with the last of them.
pub(crate) struct Context {
    pub(crate) plugin: &'static Plugin,
    raw: *mut c_void,
    config: CommConfig,
    /// How long a connection may take; `None`: as long as the host waits.
    connect_wait: Option<Duration>,
    aborted: AtomicBool,
    /// Left after the context has ended.
    _listening: Listening,
}

// SAFETY: NCCL calls functions that take a context from any thread, at the same time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Network {
    /// A context; `host` hears what the plugin logs.
    ///
    /// # Safety
    ///
    /// `host` is null or a table that is valid until the context is finalised.
    pub(crate) unsafe fn start(
        plugin: &'static Plugin,
        settings: &Settings,
        host: *const CclHostV1,
    ) -> Result<Network> {
        let communicator = settings.parse("communicator", 0)?;
        let config = CommConfig { traffic_class: settings.parse("traffic_class", layout::UNDEFINED)? };
        let connect_wait_ms = settings.parse("connect_wait_ms", 0)?;
        let connect_wait = (connect_wait_ms > 0).then(|| Duration::from_millis(connect_wait_ms));
        // SAFETY: the caller's contract: a context keeps it for as long as it lives, and no longer.
        let listening = unsafe { plugin.slot.enter(host) };
        let raw = plugin.make_context(communicator, config)?;
        Ok(Network(Arc::new(Context {
            plugin,
            raw,
            config,
            connect_wait,
            aborted: false.into(),
            _listening: listening,
        })))
    }
}

impl Context {
    /// An error once the context was aborted: every call on its objects begins with this.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        // Relaxed: nothing else is read that the abort wrote.
        if self.aborted.load(Ordering::Relaxed) {
            return Err(Error::new(Code::ABORTED, "the context was aborted"));
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.plugin.report(self.plugin.end_context(self.raw));
    }
}

impl Net for Network {
    const NAME: &'static CStr = c"nccl";
    type Listener = Listener;
    type Connecting = Connecting;
    type SendComm = Sender;
    type RecvComm = Receiver;

    /// Nobody could say which plugin is meant; see [`Plugin::init`].
    fn init(_: &Settings) -> Result<Network> {
        Err(Error::unsupported("init without a plugin of NCCL's"))
    }

    fn devices(&self) -> Result<u32> {
        Ok(self.0.plugin.device_count())
    }

    fn properties(&self, device: u32) -> Result<Properties> {
        self.0.plugin.device(device).map(|(_, properties)| properties.clone())
    }

    fn listen(&self, device: u32) -> Result<(Handle, Listener)> {
        let Context { plugin, raw: context, .. } = *self.0;
        self.0.check()?;
        let (device, _) = *plugin.device(device)?;
        let (mut handle, mut raw) = (Place([0; _]), ptr::null_mut());
        // SAFETY: the plugin's context and device; a handle of 128 bytes.
        let result = unsafe { plugin.calls.listen(context, device, handle.address(), &mut raw) };
        plugin.outcome("listen", result)?;
        if raw.is_null() {
            return Err(Error::new(Code::INTERNAL, "expected a listener from listen, found a null pointer"));
        }
        Ok((Handle(handle.0), Listener { raw, is_taken: false, context: Arc::clone(&self.0) }))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Connecting> {
        let (device, _) = *self.0.plugin.device(device)?;
        Ok(Connecting {
            device,
            handle: Box::new(Place(handle.0)),
            began: Instant::now(),
            context: Arc::clone(&self.0),
        })
    }

    fn abort(&self) {
        self.0.aborted.store(true, Ordering::Relaxed);
    }
}

/// Accepts one connection, as NCCL does: what plugins do with a second is their own affair.
pub(crate) struct Listener {
    raw: *mut c_void,
    is_taken: bool,
    context: Arc<Context>,
}

// SAFETY: NCCL calls functions that take a listener from one thread at a time, not always the same.
unsafe impl Send for Listener {}

impl net::Listener for Listener {
    type RecvComm = Receiver;

    fn accept(&mut self) -> Result<Option<Receiver>> {
        self.context.check()?;
        if self.is_taken {
            return Ok(None);
        }
        let (plugin, mut raw) = (self.context.plugin, ptr::null_mut());
        // SAFETY: a listener that is open, borrowed mutably.
        plugin.outcome("accept", unsafe { plugin.calls.accept(self.raw, &mut raw) })?;
        self.is_taken = !raw.is_null();
        // SAFETY: a comm that `accept` just gave.
        Ok(self.is_taken.then(|| unsafe { Receiver::new(raw, Arc::clone(&self.context)) }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let plugin = self.context.plugin;
        // SAFETY: a listener that is open, and not used again.
        plugin.report(plugin.outcome("closeListen", unsafe { plugin.calls.close_listen(self.raw) }));
    }
}

/// A connection being made: `connect` is called until it gives a comm. The contract has no way to give up; what a
/// plugin keeps of a connection that was dropped before is lost.
pub(crate) struct Connecting {
    device: c_int,
    /// Always at the same place, because plugins keep the state of connecting in it.
    handle: Box<Place>,
    began: Instant,
    context: Arc<Context>,
}

impl net::Connecting for Connecting {
    type SendComm = Sender;

    fn poll(&mut self) -> Result<Option<Sender>> {
        let Context { plugin, raw: context, config, .. } = *self.context;
        self.context.check()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the plugin's context and device; the one handle of this connection.
        let result =
            unsafe { plugin.calls.connect((context, self.device), config, self.handle.address(), &mut raw) };
        plugin.outcome("connect", result)?;
        if let (true, Some(wait)) = (raw.is_null(), self.context.connect_wait)
            && self.began.elapsed() >= wait
        {
            return Err(no_connection(plugin.version(), wait));
        }
        // SAFETY: a comm that `connect` just gave.
        Ok((!raw.is_null()).then(|| unsafe { Sender::new(raw, Arc::clone(&self.context)) }))
    }
}

#[cold]
fn no_connection(version: u32, wait: Duration) -> Error {
    let wait = wait.as_secs_f32();
    let why = "the peer has not accepted it, or cannot be reached";
    let words = format!(
        "expected a connection from connect of contract v{version} within {wait} s, found none: {why}"
    );
    Error::new(Code::TIMEOUT, words)
}

/// A handle where plugins may keep whatever they like.
#[repr(C, align(16))]
struct Place([u8; layout::HANDLE_BYTES]);

impl Place {
    fn address(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}
