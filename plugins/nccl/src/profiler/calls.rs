//! The functions of any version behind one form.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::describe::Descriptor;
use super::layout::{self, InitPlain, InitV4, InitV5, Logger, StateArgs, Table};

type Ptr = *mut c_void;

/// A plugin's functions.
pub(crate) struct Calls {
    init: Init,
    start_event: layout::StartEvent,
    stop_event: layout::OnObject,
    record_event_state: layout::RecordEventState,
    finalize: layout::OnObject,
}

enum Init {
    Plain(InitPlain),
    V4(InitV4),
    V5(InitV5),
}

/// The communicator, as `init` of the later versions is told of it.
pub(crate) struct About<'a> {
    pub(crate) name: Option<&'a CStr>,
    pub(crate) hash: u64,
    pub(crate) nnodes: c_int,
    pub(crate) nranks: c_int,
    pub(crate) rank: c_int,
}

impl Calls {
    /// Reads a table, and its name; or says which function it lacks.
    ///
    /// # Safety
    ///
    /// `table` is a table of `version`, whose library stays loaded.
    pub(crate) unsafe fn read(
        version: u32,
        table: *const c_void,
    ) -> Result<(Calls, *const c_char), &'static str> {
        macro_rules! read {
            ($init:ident, $type:ty) => {{
                // SAFETY: the caller's contract; functions that are null are `None`.
                let table = unsafe { *table.cast::<Table<$type>>() };
                let calls = Calls {
                    init: Init::$init(table.init.ok_or("init")?),
                    start_event: table.start_event.ok_or("startEvent")?,
                    stop_event: table.stop_event.ok_or("stopEvent")?,
                    record_event_state: table.record_event_state.ok_or("recordEventState")?,
                    finalize: table.finalize.ok_or("finalize")?,
                };
                Ok((calls, table.name))
            }};
        }
        match version {
            1..=3 => read!(Plain, InitPlain),
            4 => read!(V4, InitV4),
            5..=6 => read!(V5, InitV5),
            _ => Err("a version from 1 to 6"),
        }
    }
}

// Safety of every call below: the plugin was loaded from a table of its version; contexts and handles came from the
// function that makes such objects and were not ended, and are used by one thread at a time.
impl Calls {
    /// `mask` is written by the plugin for as long as the process lives.
    pub(crate) unsafe fn init(
        &self,
        context: &mut Ptr,
        mask: *mut c_int,
        about: &About<'_>,
        logger: Logger,
    ) -> c_int {
        let About { hash, nnodes, nranks, rank, .. } = *about;
        let name = about.name.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the contract above; the logger lives as long as the process.
        unsafe {
            match self.init {
                Init::Plain(init) => init(context, mask),
                Init::V4(init) => init(context, mask, name, hash, nnodes, nranks, rank, logger),
                Init::V5(init) => init(context, hash, mask, name, nnodes, nranks, rank, logger),
            }
        }
    }

    /// The handle; null if the plugin refuses the event, which an error does as well.
    pub(crate) unsafe fn start_event(&self, context: Ptr, descriptor: &mut Descriptor) -> Ptr {
        let mut handle = ptr::null_mut();
        // SAFETY: the contract above; a descriptor of the version.
        let result = unsafe { (self.start_event)(context, &raw mut handle, descriptor.address()) };
        if result == 0 { handle } else { ptr::null_mut() }
    }

    pub(crate) unsafe fn stop_event(&self, handle: Ptr) {
        // SAFETY: the contract above.
        unsafe { (self.stop_event)(handle) };
    }

    /// `None` for states that have no arguments.
    pub(crate) unsafe fn record_event_state(&self, handle: Ptr, state: c_int, args: Option<StateArgs>) {
        let mut args = args;
        let place = args.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the contract above; arguments of the longest version.
        unsafe { (self.record_event_state)(handle, state, place.cast()) };
    }

    pub(crate) unsafe fn finalize(&self, context: Ptr) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.finalize)(context) }
    }
}
