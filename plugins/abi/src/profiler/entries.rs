//! The C entries over a [`Profiler`]: null checks, boxes, and nothing else.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

use super::c::{
    CclProfilerCommV1, CclProfilerEventV1, CclProfilerStateV1, CclProfilerSummaryV1, CclProfilerV1,
};
use super::traits::Profiler;
use super::types::{Comm, Event, Kind, Mask, Of, State, Summary};
use crate::c::CclHostV1;
use crate::code::Code;
use crate::error::{Error, Result};
use crate::forward;
use crate::guard::guard;

/// The table of a profiler, for a host that links it in.
pub const fn table<P: Profiler>() -> &'static CclProfilerV1 {
    const { &Entries::<P>::table(Entries::<P>::init) }
}

/// What the entry `init` does, with a profiler that `make` makes: for hosts of several profilers behind one table, whose
/// `init` could not know which is meant.
///
/// # Safety
///
/// As `ccl_profiler.h` asks of a host that calls `init`.
pub unsafe fn init_by<P: Profiler>(
    make: impl FnOnce(&Comm, Mask) -> Result<P>,
    host: *const CclHostV1,
    comm: *const CclProfilerCommV1,
    mask: *mut u64,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { Entries::<P>::init_by(make, host, comm, mask, out) }
}

/// The table of a profiler that is loaded: it also forwards what the plugin logs.
pub(crate) const fn exported_table<P: Profiler>() -> CclProfilerV1 {
    Entries::<P>::table(Entries::<P>::init_exported)
}

type Init = unsafe extern "C" fn(*const CclHostV1, *const CclProfilerCommV1, *mut u64, *mut Ptr) -> i32;
type Ptr = *mut c_void;

struct Entries<P>(PhantomData<P>);

/// A profiler handed to the host as a pointer. Nothing of it is called after a panic.
struct Context<P> {
    profiler: P,
    sound: bool,
}

/// What is behind a handle.
struct Kept<H> {
    handle: H,
    kind: Kind,
}

// Safety of every entry below: it is called by a host that keeps the contract of `ccl_profiler.h`:
// contexts and handles came from the entry that makes them and are not dead, structs have the sizes
// they state, and of a context there is one call at a time.
impl<P: Profiler> Entries<P> {
    const fn table(init: Init) -> CclProfilerV1 {
        CclProfilerV1 {
            name: P::NAME.as_ptr(),
            init: Some(init),
            start_event: Some(Self::start_event),
            stop_event: Some(Self::stop_event),
            record_event_state: Some(Self::record_event_state),
            finalize: Some(Self::finalize),
            ..CclProfilerV1::EMPTY
        }
    }

    unsafe extern "C" fn init(
        host: *const CclHostV1,
        comm: *const CclProfilerCommV1,
        mask: *mut u64,
        out: *mut Ptr,
    ) -> i32 {
        // SAFETY: the contract of the entries.
        unsafe { Self::init_by(P::init, host, comm, mask, out) }
    }

    /// # Safety
    ///
    /// Arguments as for the entry `init`.
    unsafe fn init_by(
        make: impl FnOnce(&Comm, Mask) -> Result<P>,
        host: *const CclHostV1,
        comm: *const CclProfilerCommV1,
        mask: *mut u64,
        out: *mut Ptr,
    ) -> i32 {
        // The host hears what `init` logs, also that it panicked, under a key no context can have.
        let key: Ptr = out.cast();
        // SAFETY: the host's table is valid during this call, at the end of which we leave.
        unsafe { forward::enter(key, host) };
        let code = guard(Self::at("init"), || {
            // SAFETY: the host says how much of the struct is there.
            if unsafe { (*comm).size } < size_of::<CclProfilerCommV1>() as u32 {
                return Err(Error::invalid("expected a communicator's description of version 1"));
            }
            // SAFETY: the contract: the strings are NUL-terminated, the mask is an aligned word that
            // both sides only touch atomically and that lives as long as the process.
            let (comm, mask) = unsafe { (Comm::from_c(&*comm), &*mask.cast::<AtomicU64>()) };
            let profiler = make(&comm, Mask::new(mask))?;
            let context: Ptr = Box::into_raw(Box::new(Context { profiler, sound: true })).cast();
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
        comm: *const CclProfilerCommV1,
        mask: *mut u64,
        out: *mut Ptr,
    ) -> i32 {
        forward::install();
        // SAFETY: the same contract.
        unsafe { Self::init(host, comm, mask, out) }
    }

    unsafe extern "C" fn start_event(
        context: Ptr,
        event: *const CclProfilerEventV1,
        handle: *mut Ptr,
    ) -> i32 {
        // SAFETY: the host says how much of the struct is there.
        if unsafe { (*event).size } < size_of::<CclProfilerEventV1>() as u32 {
            return Code::INVALID.0;
        }
        // SAFETY: as above.
        let event = unsafe { &*event };
        let Some(kind) = Kind::from_code(event.kind) else { return Code::UNSUPPORTED.0 };
        Self::with(context, "startEvent", |profiler| {
            // SAFETY: a handle of this table that is not dead.
            let parent = unsafe { event.parent.cast::<Kept<P::Handle>>().as_ref() };
            // SAFETY: the member is by kind; its strings live as long as the process.
            let of = unsafe { Of::from_c(kind, event) };
            let started = profiler.start_event(&Event {
                kind,
                id: event.id,
                time_ns: event.time_ns,
                parent: parent.map(|kept| (&kept.handle, kept.kind)),
                parent_id: Some(event.parent_id).filter(|id| *id != 0),
                rank: event.rank,
                of,
            });
            if let Some(made) = started {
                let kept: Ptr = Box::into_raw(Box::new(Kept { handle: made, kind })).cast();
                // SAFETY: the contract of the entries.
                unsafe { handle.write(kept) };
            }
        })
    }

    unsafe extern "C" fn stop_event(context: Ptr, handle: Ptr, time_ns: u64) -> i32 {
        // SAFETY: a handle of `start_event` that dies here.
        let kept = unsafe { Box::from_raw(handle.cast::<Kept<P::Handle>>()) };
        Self::with(context, "stopEvent", |profiler| profiler.stop_event(kept.handle, time_ns))
    }

    unsafe extern "C" fn record_event_state(
        context: Ptr,
        handle: Ptr,
        state: *const CclProfilerStateV1,
    ) -> i32 {
        // SAFETY: the host says how much of the struct is there.
        if unsafe { (*state).size } < size_of::<CclProfilerStateV1>() as u32 {
            return Code::INVALID.0;
        }
        // SAFETY: as above; a handle of `start_event`, used by this call only.
        let (state, kept) = unsafe { (&*state, &mut *handle.cast::<Kept<P::Handle>>()) };
        let Some(state) = State::from_c(state) else { return Code::UNSUPPORTED.0 };
        Self::with(context, "recordEventState", |profiler| {
            profiler.record_event_state(&mut kept.handle, &state);
        })
    }

    unsafe extern "C" fn finalize(context: Ptr, summary: *const CclProfilerSummaryV1) -> i32 {
        let code = guard(Self::at("finalize"), || {
            // SAFETY: a context from `init`, used no more.
            let context = unsafe { Box::from_raw(context.cast::<Context<P>>()) };
            // SAFETY: the host says how much of the struct is there.
            if context.sound && unsafe { (*summary).size } >= size_of::<CclProfilerSummaryV1>() as u32 {
                // SAFETY: as above.
                context.profiler.finalize(&Summary::from(unsafe { &*summary }));
            }
            Ok(())
        });
        forward::leave(context);
        code
    }

    /// Runs `entry` with the profiler, unless one has panicked before.
    fn with(context: Ptr, name: &'static str, entry: impl FnOnce(&mut P)) -> i32 {
        // SAFETY: a context from `init`, used by this call only.
        let context = unsafe { &mut *context.cast::<Context<P>>() };
        if !context.sound {
            return Code::PANIC.0;
        }
        context.sound = false;
        let code = guard(Self::at(name), || {
            entry(&mut context.profiler);
            Ok(())
        });
        context.sound = code == Code::OK.0;
        code
    }

    fn at(entry: &'static str) -> (&'static str, &'static str) {
        (P::NAME.to_str().unwrap_or("profiler"), entry)
    }
}
