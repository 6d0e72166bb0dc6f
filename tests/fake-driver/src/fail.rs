//! Failures on purpose, and what there still is.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, Mutex, OnceLock};

use crate::code::{self, Answer, NOT_PERMITTED, UNKNOWN};
use crate::state::{self, State};

/// A function that fails once.
struct Rule {
    function: String,
    /// Calls of it that still succeed, and the one that fails.
    left: u64,
    code: i32,
}

#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    calls: HashMap<&'static str, u64>,
    failed: HashMap<&'static str, u64>,
}

static RULES: LazyLock<Mutex<Rules>> = LazyLock::new(|| Mutex::new(from_environment()));

thread_local! {
    /// Whether this thread is in a function that the driver called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// How the failure of a call is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The call does nothing.
    Instead,
    /// The call does what it should and tells an earlier failure, as functions that give things back do.
    Afterwards,
    /// Allowed after a sticky failure, and without a context.
    Always,
}

/// Runs one entry: counts it, lets it fail if it should, and keeps panics inside.
pub(crate) fn entry(name: &'static str, way: Way, work: impl FnOnce() -> Answer) -> i32 {
    let injected = count(name);
    if way != Way::Afterwards
        && let Some(code) = injected
    {
        if name == "cuStreamEndCapture" {
            crate::capture::abandon();
        }
        return stick(code);
    }
    if IN_CALLBACK.get() && way != Way::Always {
        return NOT_PERMITTED;
    }
    if way == Way::Instead
        && let Some(code) = state::sticky()
    {
        return code;
    }
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(Err(UNKNOWN));
    match (done, injected) {
        (_, Some(code)) => stick(code),
        (Ok(()), None) => 0,
        (Err(code), None) => code,
    }
}

/// Calls a function of the program's, which must not call back.
pub(crate) fn call_back(function: unsafe extern "C" fn(*mut std::ffi::c_void), data: usize) {
    let before = IN_CALLBACK.replace(true);
    // SAFETY: the program gave both for this one call.
    unsafe { function(data as *mut std::ffi::c_void) };
    IN_CALLBACK.set(before);
}

/// The `nth` call of `function` from now on, counted from 1, fails with `code`; a sticky code stays.
///
/// # Safety
///
/// `function` must point to a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_fake_fail(function: *const c_char, nth: u64, code: i32) {
    // SAFETY: the caller's contract.
    let function = unsafe { CStr::from_ptr(function) }.to_string_lossy().into_owned();
    rules().rules.push(Rule { function, left: nth, code });
}

/// Forgets all failures: those to come, and the sticky ones.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_fake_reset() {
    *rules() = Rules::default();
    for device in &state::devices().all {
        device.sticky.store(0, Ordering::Relaxed);
    }
}

/// How many objects of a kind there are: `context`, `stream`, `event`, `module`, `memory` (of devices), `host`,
/// `registration`, `ipc`, `physical`, `reservation`, `mapping`, `graph`, `exec`, `object`, or `all`.
///
/// # Safety
///
/// `kind` must point to a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_fake_live(kind: *const c_char) -> u64 {
    // SAFETY: the caller's contract.
    let kind = unsafe { CStr::from_ptr(kind) }.to_string_lossy();
    let counts = state::lock(State::live);
    let wanted = |(name, _): &&(&str, usize)| *name == kind || kind == "all";
    counts.iter().filter(wanted).map(|(_, count)| *count as u64).sum()
}

/// The name of a kind of objects, for [`ccl_fake_live`]; null if there are not so many kinds. It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_fake_kind(index: usize) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = || state::lock(State::live).into_iter().flat_map(|(name, _)| CString::new(name)).collect();
    NAMES.get_or_init(names).get(index).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Counts what is no call, by a name that no function has.
pub(crate) fn note(name: &'static str, count: u64) {
    *rules().calls.entry(name).or_default() += count;
}

/// How many calls of `function` there were since the last reset; of `blocks`, how many were launched.
///
/// # Safety
///
/// `function` must point to a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_fake_calls(function: *const c_char) -> u64 {
    // SAFETY: the caller's contract.
    let function = unsafe { CStr::from_ptr(function) }.to_string_lossy();
    rules().calls.get(&*function).copied().unwrap_or(0)
}

/// How many calls of `function` failed on purpose since the last reset.
///
/// # Safety
///
/// `function` must point to a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_fake_failed(function: *const c_char) -> u64 {
    // SAFETY: the caller's contract.
    let function = unsafe { CStr::from_ptr(function) }.to_string_lossy();
    rules().failed.get(&*function).copied().unwrap_or(0)
}

/// Counts a call, and says the code that it fails with.
fn count(name: &'static str) -> Option<i32> {
    let mut rules = rules();
    *rules.calls.entry(name).or_default() += 1;
    let rule = rules.rules.iter_mut().find(|rule| rule.function == name && rule.left > 0)?;
    rule.left -= 1;
    let code = (rule.left == 0).then_some(rule.code)?;
    *rules.failed.entry(name).or_default() += 1;
    Some(code)
}

fn stick(code: i32) -> i32 {
    if code::is_sticky(code) {
        state::stick(code);
    }
    code
}

fn rules() -> std::sync::MutexGuard<'static, Rules> {
    RULES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn from_environment() -> Rules {
    let text = std::env::var("CCL_FAKE_FAIL").unwrap_or_default();
    let rules = text.split(',').filter_map(|rule| {
        let mut parts = rule.split(':');
        let function = parts.next()?.to_owned();
        Some(Rule { function, left: parts.next()?.parse().ok()?, code: parts.next()?.parse().ok()? })
    });
    Rules { rules: rules.collect(), ..Rules::default() }
}
