//! What plugins of every kind are given to log with.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ccl_plugin::c::{self, CclHostV1};

/// A host that writes errors and warnings to standard error.
pub(crate) fn host() -> Box<CclHostV1> {
    Box::new(CclHostV1 {
        size: size_of::<CclHostV1>() as u32,
        version: 1,
        context: ptr::null_mut(),
        // May be null, by the contract.
        enabled: None,
        log: Some(log),
    })
}

/// The last error or warning that was logged, by whatever is checked in this process.
pub(crate) fn last_line() -> Option<String> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

unsafe extern "C" fn log(_: *mut c_void, level: i32, _: *const c_char, _: u32, message: *const c_char) {
    if level <= c::LOG_WARN && !message.is_null() {
        // SAFETY: the contract asks for a NUL-terminated string that lives through the call.
        let message = unsafe { CStr::from_ptr(message) };
        let message = message.to_string_lossy();
        eprintln!("{message}");
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.into_owned());
    }
}

static LAST: Mutex<Option<String>> = Mutex::new(None);
