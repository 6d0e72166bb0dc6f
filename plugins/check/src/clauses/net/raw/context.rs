//! Contexts, and what makes connections.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use ccl_plugin::c::{self, CclHostV1, CclNetPropertiesV1, CclSettingV1};

use super::{RecvEnd, SendEnd, Table, entry, optional};
use crate::breach::{Failed, Outcome, breach};
use crate::host::host;

/// A context; finalised when the last clone and all made from it are gone.
#[derive(Clone)]
pub(crate) struct Context(Arc<Inner>);

struct Inner {
    table: Table,
    raw: *mut c_void,
    /// What the plugin has until `finalize`.
    _host: Box<CclHostV1>,
}

// SAFETY: the contract lets context entries be called from any thread, at the same time.
unsafe impl Send for Inner {}
// SAFETY: as above; the host's table is never changed.
unsafe impl Sync for Inner {}

impl Context {
    pub(crate) fn new(table: &Table, settings: &[(String, String)]) -> Outcome<Context> {
        let text = |text: &String| CString::new(text.as_bytes()).unwrap_or_default();
        let texts: Vec<_> = settings.iter().map(|(key, value)| (text(key), text(value))).collect();
        let pairs: Vec<_> = texts
            .iter()
            .map(|(key, value)| CclSettingV1 { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let host = host();
        let mut raw = ptr::null_mut();
        // SAFETY: the host's table lives until `finalize`, the settings through the call.
        table.call("init", || unsafe {
            table.plugin.init_raw(&raw const *host, pairs.as_ptr(), pairs.len() as u32, &raw mut raw)
        })?;
        if raw.is_null() {
            return breach("init reported success and gave no context");
        }
        Ok(Context(Arc::new(Inner { table: table.clone(), raw, _host: host })))
    }

    pub(crate) fn table(&self) -> &Table {
        &self.0.table
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.0.raw
    }

    pub(crate) fn devices(&self) -> Result<u32, Failed> {
        let mut count = u32::MAX;
        let devices = entry!(self.table(), devices);
        // SAFETY: a context that is alive, a writable number.
        self.table().call("devices", || unsafe { devices(self.raw(), &raw mut count) })?;
        Ok(count)
    }

    /// What a device is, in a struct of which the plugin may fill `size` bytes.
    pub(crate) fn properties(&self, device: u32, out: &mut CclNetPropertiesV1) -> Result<(), Failed> {
        // SAFETY: a context that is alive, a writable struct of at least the size it states.
        self.table().call("properties", || unsafe {
            entry!(self.table(), properties)(self.raw(), device, &raw mut *out)
        })
    }

    /// A listener, and `room` with the handle in its first 128 bytes.
    pub(crate) fn listen_into(&self, device: u32, room: &mut [u8; 256]) -> Result<Listener, Failed> {
        let mut raw = ptr::null_mut();
        // SAFETY: a context that is alive, and more than 128 writable bytes.
        self.table().call("listen", || unsafe {
            entry!(self.table(), listen)(self.raw(), device, room.as_mut_ptr(), &raw mut raw)
        })?;
        if raw.is_null() {
            return Err(nothing("listen"));
        }
        Ok(Listener { raw, context: self.clone() })
    }

    pub(crate) fn listen(&self, device: u32) -> Result<(Handle, Listener), Failed> {
        let mut room = [0; 256];
        let listener = self.listen_into(device, &mut room)?;
        let mut handle = [0; c::HANDLE_BYTES];
        handle.copy_from_slice(&room[..c::HANDLE_BYTES]);
        Ok((handle, listener))
    }

    pub(crate) fn connect(&self, device: u32, handle: &Handle) -> Result<Connecting, Failed> {
        // Overwritten when the call is over: the plugin must have copied it.
        let (mut copy, mut raw) = (*handle, ptr::null_mut());
        // SAFETY: a context that is alive, 128 readable bytes.
        self.table().call("connect", || unsafe {
            entry!(self.table(), connect)(self.raw(), device, copy.as_ptr(), &raw mut raw)
        })?;
        copy.fill(0xdd);
        std::hint::black_box(&copy);
        if raw.is_null() {
            return Err(nothing("connect"));
        }
        Ok(Connecting { raw, context: self.clone() })
    }

    pub(crate) fn abort(&self) -> Outcome<()> {
        let abort = optional!(self.table(), abort);
        // SAFETY: a context that is alive.
        Ok(self.table().call("abort", || unsafe { abort(self.raw()) })?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a context of which nothing is left open: everything made from it keeps it alive.
        self.table.close("finalize", || unsafe { entry!(self.table, finalize)(self.raw) });
    }
}

pub(crate) type Handle = [u8; c::HANDLE_BYTES];

/// Accepts connections; closed when dropped.
pub(crate) struct Listener {
    raw: *mut c_void,
    context: Context,
}

// SAFETY: the contract asks for one thread at a time, not for one thread; calls take `&mut self`.
unsafe impl Send for Listener {}

impl Listener {
    pub(crate) fn accept(&mut self) -> Result<Option<RecvEnd>, Failed> {
        let (table, mut raw) = (self.context.table(), ptr::null_mut());
        // SAFETY: a listener that is open.
        table.call("accept", || unsafe { entry!(table, accept)(self.raw, &raw mut raw) })?;
        Ok(RecvEnd::from_raw(raw, &self.context))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let table = self.context.table();
        // SAFETY: a listener that is open, closed once.
        table.close("close_listen", || unsafe { entry!(table, close_listen)(self.raw) });
    }
}

/// A connection being made; closed when dropped.
pub(crate) struct Connecting {
    raw: *mut c_void,
    context: Context,
}

// SAFETY: as for `Listener`.
unsafe impl Send for Connecting {}

impl Connecting {
    pub(crate) fn poll(&mut self) -> Result<Option<SendEnd>, Failed> {
        let (table, mut raw) = (self.context.table(), ptr::null_mut());
        // SAFETY: a connecting that is open, and gave neither a comm nor an error yet.
        table.call("poll_connect", || unsafe { entry!(table, poll_connect)(self.raw, &raw mut raw) })?;
        Ok(SendEnd::from_raw(raw, &self.context))
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let table = self.context.table();
        // SAFETY: a connecting that is open, closed once.
        table.close("close_connect", || unsafe { entry!(table, close_connect)(self.raw) });
    }
}

/// Properties that nobody filled in.
pub(crate) fn empty_properties() -> CclNetPropertiesV1 {
    CclNetPropertiesV1 {
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
        rail: 0,
        plane: 0,
        reserved: 0,
        name: [0; _],
        pci_path: [0; _],
    }
}

fn nothing(call: &'static str) -> Failed {
    Failed { call, message: "success was reported, with a null pointer".to_owned(), ..Failed::default() }
}
