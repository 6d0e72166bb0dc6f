//! The C entries over an [`Env`]: null checks, boxes, strings that live on, and nothing else.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::c::{CclEnvV1, InitEnv};
use super::traits::Env;
use crate::c::{CclHostV1, LOG_ERROR};
use crate::error::{Error, Result};
use crate::forward;
use crate::guard::guard;

/// The table of an env plugin, for a host that links it in.
pub const fn table<E: Env>() -> &'static CclEnvV1 {
    const { &Entries::<E>::table(Entries::<E>::init) }
}

/// What the entry `init` of [`table`] does, with another way to make the plugin: for those that share a table and
/// cannot be told apart in it.
///
/// # Safety
///
/// `host`, `release` and `out` are as `ccl_env.h` asks of a host that calls `init`.
pub unsafe fn init_by<E: Env>(
    make: impl FnOnce(&str) -> Result<E>,
    host: *const CclHostV1,
    release: *const c_char,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { Entries::<E>::init_by(make, host, release, out) }
}

/// The table of an env plugin that is loaded: it also forwards what the plugin logs.
pub(crate) const fn exported_table<E: Env>() -> CclEnvV1 {
    Entries::<E>::table(Entries::<E>::init_exported)
}

type Ptr = *mut c_void;

struct Entries<E>(PhantomData<E>);

/// An env plugin handed to the host as a pointer. Nothing of it is called after a panic.
struct Context<E> {
    env: E,
    sound: AtomicBool,
    /// Every answer that was given, since the host may look at it until the end.
    answers: Mutex<HashSet<CString>>,
}

// Safety of every entry below: it is called by a host that keeps the contract of `ccl_env.h`: a context came from
// `init` and is not finalised, strings end in NUL, and out pointers are writable.
impl<E: Env> Entries<E> {
    const fn table(init: InitEnv) -> CclEnvV1 {
        CclEnvV1 {
            name: E::NAME.as_ptr(),
            init: Some(init),
            get_env: Some(Self::get_env),
            finalize: Some(Self::finalize),
            ..CclEnvV1::EMPTY
        }
    }

    unsafe extern "C" fn init(host: *const CclHostV1, release: *const c_char, out: *mut Ptr) -> i32 {
        // SAFETY: the same contract.
        unsafe { Self::init_by(E::init, host, release, out) }
    }

    unsafe extern "C" fn init_exported(host: *const CclHostV1, release: *const c_char, out: *mut Ptr) -> i32 {
        forward::install();
        // SAFETY: the same contract.
        unsafe { Self::init(host, release, out) }
    }

    /// # Safety
    ///
    /// Arguments as for the entry `init`.
    unsafe fn init_by(
        make: impl FnOnce(&str) -> Result<E>,
        host: *const CclHostV1,
        release: *const c_char,
        out: *mut Ptr,
    ) -> i32 {
        // The host hears what `init` logs, also that it panicked, under a key no context can have.
        let key: Ptr = out.cast();
        // SAFETY: the host's table is valid during this call, at the end of which we leave.
        unsafe { forward::enter(key, host) };
        let code = guard(Self::at("init"), || {
            // SAFETY: the contract of the entries.
            let release = unsafe { text(release) }.ok_or_else(|| Error::invalid("expected a release"))?;
            // The contract has no way for words but the log.
            let env = make(release).inspect_err(|error| {
                forward::log_line(LOG_ERROR, None, 0, error.message());
            })?;
            let (sound, answers) = (AtomicBool::new(true), Mutex::default());
            let context: Ptr = Box::into_raw(Box::new(Context { env, sound, answers })).cast();
            // SAFETY: the host's table is valid until `finalize`, where we leave.
            unsafe { forward::enter(context, host) };
            // SAFETY: the contract of the entries.
            unsafe { out.write(context) };
            Ok(())
        });
        forward::leave(key);
        code
    }

    unsafe extern "C" fn get_env(context: Ptr, name: *const c_char, found: *const c_char) -> *const c_char {
        // SAFETY: a context from `init` that is not finalised; it is only ever shared.
        let context = unsafe { &*context.cast::<Context<E>>() };
        // Relaxed: whoever comes too late panics once more.
        if !context.sound.load(Ordering::Relaxed) {
            return found;
        }
        let mut answer = found;
        let code = guard(Self::at("getEnv"), || {
            // SAFETY: the contract of the entries.
            let (asked, before) = unsafe { (text(name), text(found)) };
            let Some(asked) = asked else { return Ok(()) };
            answer = match context.env.get(asked, before) {
                None => ptr::null(),
                Some(same) if Some(&*same) == before => found,
                Some(other) => context.keep(&other)?,
            };
            Ok(())
        });
        context.sound.fetch_and(code == 0, Ordering::Relaxed);
        answer
    }

    unsafe extern "C" fn finalize(context: Ptr) -> i32 {
        let code = guard(Self::at("finalize"), || {
            // SAFETY: a context from `init`, used no more.
            let context = unsafe { Box::from_raw(context.cast::<Context<E>>()) };
            if context.sound.into_inner() {
                context.env.finalize();
            }
            Ok(())
        });
        forward::leave(context);
        code
    }

    fn at(entry: &'static str) -> (&'static str, &'static str) {
        (E::NAME.to_str().unwrap_or("env"), entry)
    }
}

impl<E> Context<E> {
    /// A copy of the answer that lives as long as the context.
    fn keep(&self, answer: &str) -> Result<*const c_char> {
        let answer = CString::new(answer).map_err(|_| Error::invalid("an answer has a NUL in it"))?;
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = answers.get(&answer) {
            return Ok(kept.as_ptr());
        }
        // The text is on the heap, and stays where it is when the set moves its owner.
        let kept = answer.as_ptr();
        answers.insert(answer);
        Ok(kept)
    }
}

/// A text of the host's; nothing if it is null or not UTF-8.
///
/// # Safety
///
/// `text` is null, or ends in NUL and lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
