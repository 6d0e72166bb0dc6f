//! Every entry runs inside [`guard`]: panics become codes, errors keep their words.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::c::CclErrorV1;
use crate::code::Code;
use crate::error::{Error, Result};
use crate::forward;
use crate::net::Handle;

/// Runs one entry. `what` names plugin and entry in the log.
#[inline]
pub(crate) fn guard(what: (&str, &str), entry: impl FnOnce() -> Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(entry)) {
        Ok(Ok(())) => Code::OK.0,
        Ok(Err(error)) => keep(error),
        Err(payload) => panicked(what, payload),
    }
}

/// Fills `out` with the last failure of this thread; with code 0 if there was none.
pub(crate) fn fill_last_error(out: &mut CclErrorV1) {
    LAST.with_borrow(|last| match last {
        Some(error) => {
            out.code = error.code().0;
            out.os_error = error.os_error().unwrap_or(0);
            crate::net::copy_text(error.peer().unwrap_or_default(), &mut out.peer);
            crate::net::copy_text(error.message(), &mut out.message);
        }
        None => out.code = Code::OK.0,
    });
}

/// An object handed to the host as a pointer: it remembers whether an entry panicked in it.
pub(crate) struct Object<T> {
    sound: bool,
    value: T,
}

impl<T> Object<T> {
    pub(crate) fn leak(value: T) -> *mut std::ffi::c_void {
        Box::into_raw(Box::new(Object { sound: true, value })).cast()
    }

    /// Runs `f` on the object; it stays unsound if `f` panics.
    #[inline]
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        if !self.sound {
            return Err(unsound());
        }
        self.sound = false;
        let result = f(&mut self.value);
        self.sound = true;
        result
    }
}

/// Copies a handle from the host.
///
/// # Safety
///
/// `bytes` points to 128 readable bytes.
pub(crate) unsafe fn read_handle(bytes: *const u8) -> Handle {
    // SAFETY: the caller's promise; an array of bytes has no alignment.
    Handle(unsafe { bytes.cast::<[u8; crate::c::HANDLE_BYTES]>().read() })
}

#[cold]
fn unsound() -> Error {
    Error::new(Code::PANIC, "an earlier call panicked in this object, it can only be closed")
}

#[cold]
fn keep(error: Error) -> i32 {
    let code = if error.code() == Code::OK { Code::INTERNAL } else { error.code() };
    LAST.set(Some(error));
    code.0
}

#[cold]
fn panicked((plugin, entry): (&str, &str), payload: Box<dyn Any + Send>) -> i32 {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_string());
    // A payload's own drop may panic; it is not worth the process.
    std::mem::forget(payload);
    let message = format!("{plugin}: panic in {entry}: {text}");
    forward::log_line(crate::c::LOG_ERROR, None, 0, &message);
    keep(Error::new(Code::PANIC, message))
}

thread_local! {
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}
