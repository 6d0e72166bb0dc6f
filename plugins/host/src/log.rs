//! What plugins say, on its way to the host's log.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use ccl_plugin::c::{self, CclHostV1};

/// One line from a plugin.
#[derive(Clone, Copy, Debug)]
pub struct LogLine<'a> {
    /// The plugin's name.
    pub plugin: &'a str,
    /// How important it is.
    pub level: tracing::Level,
    /// Source file, if the plugin said.
    pub file: Option<&'a str>,
    /// Line in the source file.
    pub line: u32,
    /// The text.
    pub message: &'a str,
}

/// Takes the lines of a plugin; called from any thread, may not call the plugin.
#[derive(Clone)]
pub struct LogFn {
    level: Arc<AtomicI32>,
    sink: Arc<dyn Fn(&LogLine<'_>) + Send + Sync>,
}

impl LogFn {
    /// Gives every line to `sink`.
    pub fn new(sink: impl Fn(&LogLine<'_>) + Send + Sync + 'static) -> LogFn {
        LogFn { level: Arc::new(AtomicI32::new(c::LOG_TRACE)), sink: Arc::new(sink) }
    }

    /// Gives every line to this process's `tracing`, target `ccl::plugin`.
    pub fn tracing() -> LogFn {
        LogFn::new(to_tracing)
    }

    /// Drops every line.
    pub fn none() -> LogFn {
        let log = LogFn::new(|_| ());
        log.set_level(None);
        log
    }

    /// Gives it a line.
    pub(crate) fn give(&self, line: &LogLine<'_>) {
        (self.sink)(line);
    }

    /// The least important level plugins need to bother with; `None` for none at all. At any time.
    pub fn set_level(&self, level: Option<tracing::Level>) {
        // Relaxed: a hint; a line more or less does no harm.
        self.level.store(level.map_or(0, code_of), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for LogFn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFn").field("level", &self.level).finish_non_exhaustive()
    }
}

/// The table a plugin gets, with what its context pointer points to.
pub(crate) struct Host {
    /// What the plugin sees. Its `context` points to this `Host`.
    pub(crate) table: CclHostV1,
    plugin: String,
    log: LogFn,
}

impl Host {
    /// Made on the heap, because the table points to its own place.
    pub(crate) fn leak(plugin: &str, log: LogFn) -> *mut Host {
        let host = Box::into_raw(Box::new(Host {
            table: CclHostV1 {
                size: size_of::<CclHostV1>() as u32,
                version: 1,
                context: std::ptr::null_mut(),
                enabled: Some(enabled),
                log: Some(line),
            },
            plugin: plugin.to_string(),
            log,
        }));
        // SAFETY: just made, nobody else has it.
        unsafe { (*host).table.context = host.cast() };
        host
    }
}

unsafe extern "C" fn enabled(context: *mut c_void, level: i32) -> i32 {
    // SAFETY: the context of a table made by `Host::leak`, valid until its plugin context is finalised.
    let host = unsafe { &*context.cast::<Host>() };
    (level <= host.log.level.load(Ordering::Relaxed)).into()
}

unsafe extern "C" fn line(
    context: *mut c_void,
    level: i32,
    file: *const c_char,
    line: u32,
    message: *const c_char,
) {
    // SAFETY: as in `enabled`.
    let host = unsafe { &*context.cast::<Host>() };
    if message.is_null() || level > host.log.level.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the contract asks for NUL-terminated strings that live through the call.
    let (message, file) =
        unsafe { (CStr::from_ptr(message), if file.is_null() { None } else { Some(CStr::from_ptr(file)) }) };
    let (message, file) = (message.to_string_lossy(), file.map(CStr::to_string_lossy));
    let line = LogLine {
        plugin: &host.plugin,
        level: level_of(level),
        file: file.as_deref(),
        line,
        message: &message,
    };
    // A sink that panics costs its line, not the process: we are called from C.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (host.log.sink)(&line))) {
        std::mem::forget(payload);
    }
}

fn to_tracing(line: &LogLine<'_>) {
    let (plugin, message) = (line.plugin, line.message);
    match line.level {
        tracing::Level::ERROR => tracing::error!(target: "ccl::plugin", plugin, "{message}"),
        tracing::Level::WARN => tracing::warn!(target: "ccl::plugin", plugin, "{message}"),
        tracing::Level::INFO => tracing::info!(target: "ccl::plugin", plugin, "{message}"),
        tracing::Level::DEBUG => tracing::debug!(target: "ccl::plugin", plugin, "{message}"),
        tracing::Level::TRACE => tracing::trace!(target: "ccl::plugin", plugin, "{message}"),
    }
}

fn level_of(code: i32) -> tracing::Level {
    match code {
        ..=c::LOG_ERROR => tracing::Level::ERROR,
        c::LOG_WARN => tracing::Level::WARN,
        c::LOG_INFO => tracing::Level::INFO,
        c::LOG_DEBUG => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    }
}

fn code_of(level: tracing::Level) -> i32 {
    match level {
        tracing::Level::ERROR => c::LOG_ERROR,
        tracing::Level::WARN => c::LOG_WARN,
        tracing::Level::INFO => c::LOG_INFO,
        tracing::Level::DEBUG => c::LOG_DEBUG,
        tracing::Level::TRACE => c::LOG_TRACE,
    }
}
