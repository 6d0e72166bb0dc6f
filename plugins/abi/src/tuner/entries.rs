//! The C entries over a [`Tuner`]: sizes, copies, and nothing else.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::slice;

use super::c::{CclTunerCallV1, CclTunerCandidateV1, CclTunerCommV1, CclTunerV1};
use super::traits::Tuner;
use super::types::{Call, Candidate, Comm};
use crate::c::{CclHostV1, CclSettingV1, LOG_WARN};
use crate::code::Code;
use crate::error::{Error, Result};
use crate::forward;
use crate::guard::guard;
use crate::settings::Settings;

/// The table of a tuner, for a host that links it in.
pub const fn table<T: Tuner>() -> &'static CclTunerV1 {
    const { &Entries::<T>::table(Entries::<T>::init) }
}

/// What the entry `init` of [`table`] does, with `make` in place of [`Tuner::init`]: for tuners that share one
/// type and one table, of which `init` alone could not tell which is meant. The context is used with that table.
///
/// # Safety
///
/// `host`, `comm`, `settings`, `count` and `out` are as `ccl_tuner.h` asks of a host that calls `init`.
pub unsafe fn init_by<T: Tuner>(
    make: impl FnOnce(&Comm<'_>, &Settings) -> Result<T>,
    (host, comm): (*const CclHostV1, *const CclTunerCommV1),
    (settings, count): (*const CclSettingV1, u32),
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { Entries::<T>::init_by(make, (host, comm), (settings, count), out) }
}

/// The table of a tuner that is loaded: it also forwards what the plugin logs.
pub(crate) const fn exported_table<T: Tuner>() -> CclTunerV1 {
    Entries::<T>::table(Entries::<T>::init_exported)
}

type Ptr = *mut c_void;
type Init =
    unsafe extern "C" fn(*const CclHostV1, *const CclTunerCommV1, *const CclSettingV1, u32, *mut Ptr) -> i32;

struct Entries<T>(PhantomData<T>);

/// A tuner handed to the host as a pointer, which no other context has while this one lives. Nothing of it is called
/// after a panic.
struct Context<T> {
    tuner: T,
    sound: bool,
}

// Safety of every entry below: it is called by a host that keeps the contract of `ccl_tuner.h`: contexts came from
// `init` and are not finalised, structs have the sizes they state, arrays the stated lengths, and of a context there is
// one call at a time.
impl<T: Tuner> Entries<T> {
    const fn table(init: Init) -> CclTunerV1 {
        CclTunerV1 {
            name: T::NAME.as_ptr(),
            init: Some(init),
            advise: Some(Self::advise),
            finalize: Some(Self::finalize),
            ..CclTunerV1::EMPTY
        }
    }

    unsafe extern "C" fn init(
        host: *const CclHostV1,
        comm: *const CclTunerCommV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut Ptr,
    ) -> i32 {
        // SAFETY: the contract of the entries.
        unsafe { Self::init_by(T::init, (host, comm), (settings, count), out) }
    }

    /// # Safety
    ///
    /// Arguments as for the entry `init`.
    unsafe fn init_by(
        make: impl FnOnce(&Comm<'_>, &Settings) -> Result<T>,
        (host, comm): (*const CclHostV1, *const CclTunerCommV1),
        (settings, count): (*const CclSettingV1, u32),
        out: *mut Ptr,
    ) -> i32 {
        // The host hears what `init` logs, also that it panicked, under a key no context can have.
        let key: Ptr = out.cast();
        // SAFETY: the host's table is valid during this call, at the end of which we leave.
        unsafe { forward::enter(key, host) };
        let code = guard(Self::at("init"), || {
            // SAFETY: the host says how much of the struct is there.
            if unsafe { (*comm).size } < size_of::<CclTunerCommV1>() as u32 {
                return Err(Error::invalid("expected a communicator's description of version 1"));
            }
            // SAFETY: as above; its strings are NUL-terminated and valid during this call.
            let comm = unsafe { Comm::from_c(&*comm) };
            // SAFETY: the contract of the entries.
            let settings = unsafe { Settings::from_c(settings, count) }?;
            let context = Context { tuner: said(make(&comm, &settings))?, sound: true };
            let context: Ptr = Box::into_raw(Box::new(context)).cast();
            // SAFETY: the host's table is valid until `finalize`, where we leave.
            unsafe { forward::enter(context, host) };
            // SAFETY: the contract of the entries.
            unsafe { out.write(context) };
            Ok(())
        });
        forward::leave(key);
        code
    }

    unsafe extern "C" fn init_exported(
        host: *const CclHostV1,
        comm: *const CclTunerCommV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut Ptr,
    ) -> i32 {
        forward::install();
        // SAFETY: the same contract.
        unsafe { Self::init(host, comm, settings, count, out) }
    }

    unsafe extern "C" fn advise(
        context: Ptr,
        call: *const CclTunerCallV1,
        candidates: *const *mut CclTunerCandidateV1,
        count: u32,
    ) -> i32 {
        // SAFETY: a context from `init`, used by this call only.
        let context = unsafe { &mut *context.cast::<Context<T>>() };
        if !context.sound {
            return Code::PANIC.0;
        }
        let code = guard(Self::at("advise"), || {
            // SAFETY: the host says how much of the struct is there.
            if unsafe { (*call).size } < size_of::<CclTunerCallV1>() as u32 {
                return Err(Error::invalid("expected a call's description of version 1"));
            }
            // SAFETY: as above; `count` pointers to candidates, of which each is valid and the host's during this call.
            let (call, places) =
                unsafe { (Call::from_c(&*call), slice::from_raw_parts(candidates, count as usize)) };
            // SAFETY: as above.
            let mut copies = unsafe { copied(places) }?;
            said(context.tuner.advise(&call, &mut copies))?;
            for (place, copy) in places.iter().zip(&copies) {
                // SAFETY: as above, and `copied` has checked the size.
                let place = unsafe { &mut **place };
                (place.cost_ns, place.channels, place.chunk_bytes) =
                    (copy.cost_ns, copy.channels, copy.chunk_bytes);
            }
            Ok(())
        });
        context.sound = code != Code::PANIC.0;
        code
    }

    unsafe extern "C" fn finalize(context: Ptr) -> i32 {
        let code = guard(Self::at("finalize"), || {
            // SAFETY: a context from `init`, used no more.
            drop(unsafe { Box::from_raw(context.cast::<Context<T>>()) });
            Ok(())
        });
        forward::leave(context);
        code
    }

    fn at(entry: &'static str) -> (&'static str, &'static str) {
        (T::NAME.to_str().unwrap_or("tuner"), entry)
    }
}

/// Puts the words of an error into the log, since a code has none.
fn said<R>(result: Result<R>) -> Result<R> {
    result.inspect_err(|error| forward::log_line(LOG_WARN, None, 0, &error.to_string()))
}

/// # Safety
///
/// Each place is a candidate as large as it says, with strings that live as long as `'a`.
unsafe fn copied<'a>(places: &[*mut CclTunerCandidateV1]) -> Result<Vec<Candidate<'a>>> {
    let copy = |place: &*mut CclTunerCandidateV1| {
        // SAFETY: the caller's contract.
        if unsafe { (**place).size } < size_of::<CclTunerCandidateV1>() as u32 {
            return Err(Error::invalid("expected candidates of version 1"));
        }
        // SAFETY: the caller's contract.
        Ok(unsafe { Candidate::from_c(&**place) })
    };
    places.iter().map(copy).collect()
}
