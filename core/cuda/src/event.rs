//! Events: places in streams that others can wait for.

use cudarc::driver::sys;

use crate::context::{Context, report};
use crate::error::Result;
use crate::stream::{Progress, Stream, progress};
use crate::symbols::Handle;

/// An event. Usable from every thread.
#[derive(Debug)]
pub struct Event {
    context: Context,
    handle: Handle,
}

// SAFETY: the driver takes an event's handle from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// What an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Order only: the cheapest.
    Order,
    /// Order and time.
    Timed,
    /// Order, also for other processes ([`Event::share`]).
    Interprocess,
}

/// What another process opens an event by. Plain bytes; valid while the event is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedEvent(pub [u8; 64]);

impl Event {
    /// An event that has recorded nothing, and so counts as done.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(context: &Context, kind: EventKind) -> Result<Self> {
        use sys::CUevent_flags as Flags;

        let flags = match kind {
            EventKind::Order => Flags::CU_EVENT_DISABLE_TIMING as u32,
            EventKind::Timed => Flags::CU_EVENT_DEFAULT as u32,
            EventKind::Interprocess => {
                Flags::CU_EVENT_DISABLE_TIMING as u32 | Flags::CU_EVENT_INTERPROCESS as u32
            }
        };
        context.within(|| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the driver stores one handle, which the value gives back once.
            unsafe { context.table().cuEventCreate(&raw mut handle, flags) }?;
            Ok(Self { context: context.clone(), handle })
        })
    }

    /// The event of another process.
    ///
    /// # Errors
    ///
    /// The driver's: also if the event is of this process, or gone.
    pub fn open(context: &Context, shared: &SharedEvent) -> Result<Self> {
        let shared = sys::CUipcEventHandle { reserved: shared.0.map(u8::cast_signed) };
        context.within(|| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the driver checks the bytes and stores one handle, which the value gives back once.
            unsafe { context.table().cuIpcOpenEventHandle(&raw mut handle, shared) }?;
            Ok(Self { context: context.clone(), handle })
        })
    }

    /// What another process opens it by; only of [`EventKind::Interprocess`].
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn share(&self) -> Result<SharedEvent> {
        let mut shared = sys::CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: the event lives; the driver stores 64 bytes.
        self.within(|| unsafe { self.context.table().cuIpcGetEventHandle(&raw mut shared, self.handle) })?;
        Ok(SharedEvent(shared.reserved.map(i8::cast_unsigned)))
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.handle
    }

    /// Marks the place that `stream` has reached. Never blocks.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        self.within(|| unsafe { self.context.table().cuEventRecord(self.handle, stream.raw()) })
    }

    /// Marks the place that `stream` has reached; in a capture, each time the graph comes by, for waiters outside of it.
    ///
    /// # Errors
    ///
    /// The driver's; outside of a capture it is a plain record.
    pub fn record_external(&self, stream: &Stream) -> Result<()> {
        let flags = if stream.capture_status()?.is_capturing() { EXTERNAL } else { 0 };
        // SAFETY: both live.
        self.within(|| unsafe {
            self.context.table().cuEventRecordWithFlags(self.handle, stream.raw(), flags)
        })
    }

    /// Whether what it recorded last is done. Never blocks.
    ///
    /// # Errors
    ///
    /// The driver's, also for work that failed earlier.
    pub fn query(&self) -> Result<Progress> {
        // SAFETY: the event lives.
        progress(self.within(|| unsafe { self.context.table().cuEventQuery(self.handle) }))
    }

    /// Waits until what it recorded last is done. Blocks.
    ///
    /// # Errors
    ///
    /// The driver's, also for work that failed earlier.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.within(|| unsafe { self.context.table().cuEventSynchronize(self.handle) })
    }

    /// Time from `start` to this event, in nanoseconds, to about half a microsecond; both [`EventKind::Timed`] and done.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn ns_since(&self, start: &Self) -> Result<f64> {
        let mut milliseconds = 0.0f32;
        // SAFETY: both live; the driver stores one number.
        self.within(|| unsafe {
            self.context.table().cuEventElapsedTime(&raw mut milliseconds, start.handle, self.handle)
        })?;
        Ok(f64::from(milliseconds) * 1e6)
    }

    /// Gives the event back before it is dropped, and says whether that worked. Waiters keep what they wait for.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.context.within(work)
    }

    fn release(&mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: created once, destroyed once.
        self.within(|| unsafe { self.context.table().cuEventDestroy_v2(handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        report(self.release());
    }
}

/// `CU_EVENT_RECORD_EXTERNAL`.
const EXTERNAL: u32 = 1;
