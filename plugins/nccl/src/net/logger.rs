//! What NCCL's plugins log, on its way to the host.
//!
//! A plugin gets a function like `printf` that says nothing of who calls. `logger.c` has sixteen of them: each
//! plugin of a process gets one of its own, by which its lines are known. They go to the host of its youngest
//! context, or to `tracing` while it has none; a plugin beyond the sixteenth shares the last.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock};

use ccl_plugin::CclHostV1;
use ccl_plugin::c;

use super::layout::Logger;

/// A plugin's place among the loggers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot(usize);

impl Slot {
    /// The place of another plugin.
    pub(crate) fn take(plugin: &str) -> Slot {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a number, no other memory.
        let slot = TAKEN.fetch_add(1, Ordering::Relaxed).min(LOGGERS - 1);
        write(slot, |listeners| listeners.plugin = plugin.to_string());
        Slot(slot)
    }

    /// The function that the plugin is given.
    pub(crate) fn logger(self) -> Logger {
        FUNCTIONS[self.0]
    }

    /// From now on `host` hears of the plugin, until what this returns is dropped: then its functions are not
    /// running, and are not called again.
    ///
    /// # Safety
    ///
    /// `host` is null or a host's table that stays valid until then.
    pub(crate) unsafe fn enter(self, host: *const CclHostV1) -> Listening {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: a number, no other memory.
        let listening = Listening { slot: self.0, key: NEXT.fetch_add(1, Ordering::Relaxed) };
        if host.is_null() {
            return listening;
        }
        // SAFETY: not null, and valid by the caller's promise; the size is read before what follows it.
        if (unsafe { (*host).size } as usize) < size_of::<CclHostV1>() {
            return listening;
        }
        // SAFETY: the table has all of the fields.
        let host = Host(unsafe { *host });
        write(self.0, |listeners| listeners.hosts.push((listening.key, host)));
        listening
    }

    /// What the plugin last warned of on this thread, once.
    pub(crate) fn last_warning(self) -> Option<String> {
        WARNING.take().and_then(|(slot, text)| (slot == self.0).then_some(text))
    }
}

/// A host that hears of a plugin while this lives.
pub(crate) struct Listening {
    slot: usize,
    key: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        write(self.slot, |listeners| listeners.hosts.retain(|(key, _)| *key != self.key));
    }
}

/// Who hears of a plugin.
struct Listeners {
    plugin: String,
    hosts: Vec<(u64, Host)>,
}

/// A host's table.
#[derive(Clone, Copy)]
struct Host(CclHostV1);

// SAFETY: the contract lets both of the host's functions be called from any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

fn write<R>(slot: usize, change: impl FnOnce(&mut Listeners) -> R) -> R {
    change(&mut LISTENERS[slot].write().unwrap_or_else(PoisonError::into_inner))
}

fn read<R>(slot: u32, look: impl FnOnce(&Listeners) -> R) -> R {
    let slot = (slot as usize).min(LOGGERS - 1);
    look(&LISTENERS[slot].read().unwrap_or_else(PoisonError::into_inner))
}

/// Whether a line is worth formatting.
unsafe extern "C" fn wanted(slot: u32, level: i32) -> i32 {
    let wanted = || {
        let level = level_of(level)?;
        // A warning is kept for the error that may follow.
        let wanted = level <= c::LOG_WARN || read(slot, |listeners| listeners.wants(level));
        Some(i32::from(wanted))
    };
    catch_unwind(AssertUnwindSafe(wanted)).ok().flatten().unwrap_or(0)
}

/// Takes a formatted line.
unsafe extern "C" fn line(slot: u32, level: i32, file: *const c_char, line: i32, text: *const c_char) {
    let taken = || {
        let Some(level) = level_of(level) else { return };
        // SAFETY: `logger.c` gives a text that ends in NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let text = text.trim_end();
        if level <= c::LOG_WARN {
            WARNING.set(Some((slot as usize, text.to_string())));
        }
        read(slot, |listeners| listeners.hear(level, file, line.try_into().unwrap_or(0), text));
    };
    // A subscriber that panics costs its line: the caller is C.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(taken)) {
        std::mem::forget(payload);
    }
}

impl Listeners {
    fn wants(&self, level: i32) -> bool {
        let Some((_, Host(CclHostV1 { enabled: Some(enabled), context, .. }))) = self.hosts.last() else {
            return true;
        };
        // SAFETY: the host's table is valid while it listens, whose end waits for the read lock held here.
        unsafe { enabled(*context, level) != 0 }
    }

    fn hear(&self, level: i32, file: *const c_char, line: u32, text: &str) {
        let Some((_, Host(host))) = self.hosts.last() else {
            return to_tracing(&self.plugin, level, text);
        };
        if let (Some(log), Ok(text)) = (host.log, CString::new(text)) {
            // SAFETY: the host's table is valid while it listens, whose end waits for the read lock that is held
            // here; the strings live through the call.
            unsafe { log(host.context, level, file, line, text.as_ptr()) };
        }
    }
}

fn to_tracing(plugin: &str, level: i32, text: &str) {
    match level {
        c::LOG_ERROR => tracing::error!(target: "ccl::plugin", plugin, "{text}"),
        c::LOG_WARN => tracing::warn!(target: "ccl::plugin", plugin, "{text}"),
        c::LOG_INFO => tracing::info!(target: "ccl::plugin", plugin, "{text}"),
        c::LOG_DEBUG => tracing::debug!(target: "ccl::plugin", plugin, "{text}"),
        _ => tracing::trace!(target: "ccl::plugin", plugin, "{text}"),
    }
}

/// NCCL's level in ccl's; `None` for its level "none".
fn level_of(level: c_int) -> Option<i32> {
    match level {
        ..=0 => None,
        1 => Some(c::LOG_DEBUG),
        2 => Some(c::LOG_WARN),
        3 => Some(c::LOG_INFO),
        4 => Some(c::LOG_DEBUG),
        _ => Some(c::LOG_TRACE),
    }
}

type Wanted = unsafe extern "C" fn(u32, i32) -> i32;
type Line = unsafe extern "C" fn(u32, i32, *const c_char, i32, *const c_char);

unsafe extern "C" {
    fn ccl_nccl_net_loggers(wanted: Wanted, line: Line, loggers: *mut Logger);
}

/// As many as `logger.c` has.
const LOGGERS: usize = 16;

static FUNCTIONS: LazyLock<[Logger; LOGGERS]> = LazyLock::new(|| {
    let mut loggers = MaybeUninit::<[Logger; LOGGERS]>::uninit();
    // SAFETY: room for as many functions as it fills in, all of them; called once.
    unsafe {
        ccl_nccl_net_loggers(wanted, line, loggers.as_mut_ptr().cast::<Logger>());
        loggers.assume_init()
    }
});
static LISTENERS: [RwLock<Listeners>; LOGGERS] =
    [const { RwLock::new(Listeners { plugin: String::new(), hosts: Vec::new() }) }; LOGGERS];

thread_local! {
    static WARNING: RefCell<Option<(usize, String)>> = const { RefCell::new(None) };
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::Mutex;

    use super::*;

    static LINES: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn keep(_: *mut c_void, level: i32, _: *const c_char, _: u32, text: *const c_char) {
        // SAFETY: a text that ends in NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_string();
        LINES.lock().unwrap().push((level, text));
    }

    unsafe extern "C" fn no_trace(_: *mut c_void, level: i32) -> i32 {
        (level < c::LOG_TRACE).into()
    }

    #[test]
    fn lines_are_formatted_and_reach_the_youngest_host() {
        let slot = Slot::take("toy");
        let host = CclHostV1 {
            size: size_of::<CclHostV1>() as u32,
            version: 1,
            context: std::ptr::null_mut(),
            enabled: Some(no_trace),
            log: Some(keep),
        };
        // SAFETY: the table outlives the test.
        let listening = unsafe { slot.enter(&host) };
        let log = slot.logger();
        // SAFETY: formats and their arguments.
        unsafe {
            log(2, 8, c"net.c".as_ptr(), 7, c"%d of %s, %.2f%%".as_ptr(), 3_i32, c"four".as_ptr(), 75.0_f64);
            log(5, 8, c"net.c".as_ptr(), 8, c"nobody wants this".as_ptr());
            log(3, 8, std::ptr::null(), 9, c"up".as_ptr());
            log(3, 8, std::ptr::null(), 9, std::ptr::null());
        }
        drop(listening);
        // SAFETY: as above.
        unsafe { log(3, 8, std::ptr::null(), 10, c"to tracing".as_ptr()) };
        let expected = [(c::LOG_WARN, "3 of four, 75.00%".to_string()), (c::LOG_INFO, "up".to_string())];
        assert_eq!(*LINES.lock().unwrap(), expected);
        assert_eq!(slot.last_warning().as_deref(), Some("3 of four, 75.00%"));
        assert_eq!(slot.last_warning(), None);
    }
}
