//! What a plugin logs, on its way to the host.
//!
//! A shared library has its own `tracing`, whose events nobody would see. The first `init` of an
//! exported table installs a subscriber that hands every event to the host. Events go to the most
//! recent context that is still alive. A network that is linked in shares the host's `tracing`, and
//! nothing is installed.

use std::ffi::{CString, c_void};
use std::fmt::{self, Write};
use std::sync::{Once, RwLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::c::{self, CclHostV1};

/// Makes the host of `context` the one that hears of everything, until [`leave`].
///
/// # Safety
///
/// `host` is null or a host table that stays valid until [`leave`] for the same context.
pub(crate) unsafe fn enter(context: *mut c_void, host: *const CclHostV1) {
    if host.is_null() {
        return;
    }
    // SAFETY: not null, and valid by the caller's promise. `size` is read before what follows it.
    let size = unsafe { (*host).size } as usize;
    if size < size_of::<CclHostV1>() {
        return;
    }
    // SAFETY: the host says the table has all of the fields.
    let table = unsafe { *host };
    if let Ok(mut live) = LIVE.write() {
        live.push(Live { context: context as usize, host: table });
    }
}

/// Forgets the host of `context`; after this its functions are not called.
pub(crate) fn leave(context: *mut c_void) {
    if let Ok(mut live) = LIVE.write() {
        live.retain(|entry| entry.context != context as usize);
    }
}

/// Installs the subscriber of this library; only for exported tables.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An author who installed another subscriber wanted another.
        let _ = tracing::subscriber::set_global_default(Forward);
    });
}

/// One line to the host, if there is one.
pub(crate) fn log_line(level: i32, file: Option<&str>, line: u32, message: &str) {
    let Ok(live) = LIVE.read() else { return };
    let Some((host, log)) = live.last().and_then(|entry| Some((entry.host, entry.host.log?))) else { return };
    let message = c_text(message);
    let file = file.map(c_text);
    let file_text = file.as_ref().map_or(std::ptr::null(), |file| file.as_ptr());
    // SAFETY: the host's table is valid until `leave`, which waits for this read lock; strings are
    // NUL-terminated and live through the call.
    unsafe { log(host.context, level, file_text, line, message.as_ptr()) };
}

fn wanted(level: i32) -> bool {
    let Ok(live) = LIVE.read() else { return false };
    match live.last().map(|entry| entry.host) {
        // SAFETY: the host's table is valid until `leave`, which waits for this read lock.
        Some(CclHostV1 { enabled: Some(enabled), context, .. }) => unsafe { enabled(context, level) != 0 },
        Some(_) => true,
        None => false,
    }
}

struct Live {
    context: usize,
    host: CclHostV1,
}

// SAFETY: the contract lets both of the host's functions be called from any thread.
unsafe impl Send for Live {}
// SAFETY: as above.
unsafe impl Sync for Live {}

struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && wanted(code_of(metadata.level()))
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // Spans carry nothing to the host; events are asked about each time, since levels change.
        if metadata.is_event() {
            tracing::subscriber::Interest::sometimes()
        } else {
            tracing::subscriber::Interest::never()
        }
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let metadata = event.metadata();
        log_line(code_of(metadata.level()), metadata.file(), metadata.line().unwrap_or(0), &text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{space}{value:?}"),
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}

fn code_of(level: &Level) -> i32 {
    match *level {
        Level::ERROR => c::LOG_ERROR,
        Level::WARN => c::LOG_WARN,
        Level::INFO => c::LOG_INFO,
        Level::DEBUG => c::LOG_DEBUG,
        Level::TRACE => c::LOG_TRACE,
    }
}

fn c_text(text: &str) -> CString {
    let mut bytes = text.as_bytes().to_vec();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

static LIVE: RwLock<Vec<Live>> = RwLock::new(Vec::new());
