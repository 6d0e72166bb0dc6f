//! Streams: queues of a device.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::context::{Context, report};
use crate::error::{Error, Result, code};
use crate::event::Event;
use crate::symbols::Handle;

/// A stream: our own, or one that the caller lends.
///
/// Usable from every thread; work that several threads put on it has the order in which the driver was called. Dropping
/// it never blocks: what is queued still runs.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    handle: Handle,
    owned: bool,
}

// SAFETY: the driver takes a stream's handle from any thread; the per-thread handle means the stream of whoever calls.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Whether work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it.
    Done,
    /// Not yet.
    NotReady,
}

/// Which values end a wait on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// As great or greater, in cyclic order: the difference, as a signed number, is not negative.
    AtLeast,
    /// The same.
    Equal,
    /// Any bit in common.
    AnyBit,
}

impl Stream {
    /// A stream of our own with this priority ([`Context::stream_priorities`]). It does not wait for the legacy stream.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(context: &Context, priority: i32) -> Result<Self> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        context.within(|| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the driver stores one handle, which the value gives back once.
            unsafe { context.table().cuStreamCreateWithPriority(&raw mut handle, flags, priority) }?;
            Ok(Self { context: context.clone(), handle, owned: true })
        })
    }

    /// A stream of the caller's, such as a framework's `cudaStream_t`. 0 is the legacy stream, as are 1 and, for the
    /// calling thread's own, 2.
    ///
    /// # Safety
    ///
    /// `handle` must be a stream of `context` that outlives the value.
    #[must_use]
    pub unsafe fn borrowed(context: &Context, handle: *mut c_void) -> Self {
        Self { context: context.clone(), handle, owned: false }
    }

    /// The context's legacy stream, which waits for all blocking streams and for which they all wait.
    #[must_use]
    pub fn legacy(context: &Context) -> Self {
        Self { context: context.clone(), handle: LEGACY as Handle, owned: false }
    }

    /// The default stream of whichever thread makes the call.
    #[must_use]
    pub fn per_thread(context: &Context) -> Self {
        Self { context: context.clone(), handle: PER_THREAD as Handle, owned: false }
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle, which is also the runtime's `cudaStream_t`.
    #[must_use]
    pub fn raw(&self) -> *mut c_void {
        self.handle
    }

    /// The handle of the context it belongs to, as the driver says.
    ///
    /// # Errors
    ///
    /// The driver's: also while a legacy stream's context is captured.
    pub fn raw_context(&self) -> Result<*mut c_void> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream lives; the driver stores one handle.
        self.within(|| unsafe { self.context.table().cuStreamGetCtx(self.handle, &raw mut context) })?;
        Ok(context)
    }

    /// Its priority.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn priority(&self) -> Result<i32> {
        let mut priority = 0;
        // SAFETY: the stream lives; the driver stores one number.
        self.within(|| unsafe { self.context.table().cuStreamGetPriority(self.handle, &raw mut priority) })?;
        Ok(priority)
    }

    /// Whether it waits for the legacy stream, and that for it.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn is_blocking(&self) -> Result<bool> {
        let mut flags = 0;
        // SAFETY: the stream lives; the driver stores one number.
        self.within(|| unsafe { self.context.table().cuStreamGetFlags(self.handle, &raw mut flags) })?;
        Ok(flags & sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 0)
    }

    /// Whether all its work is done. Never blocks.
    ///
    /// # Errors
    ///
    /// The driver's, also for work that failed earlier.
    pub fn query(&self) -> Result<Progress> {
        // SAFETY: the stream lives.
        progress(self.within(|| unsafe { self.context.table().cuStreamQuery(self.handle) }))
    }

    /// Waits until all its work is done. Blocks.
    ///
    /// # Errors
    ///
    /// The driver's, also for work that failed earlier.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives.
        self.within(|| unsafe { self.context.table().cuStreamSynchronize(self.handle) })
    }

    /// Lets what is queued from now on wait for what `event` recorded last. Never blocks. In a capture the stream joins
    /// that of the event.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both live.
        self.within(|| unsafe { self.context.table().cuStreamWaitEvent(self.handle, event.raw(), 0) })
    }

    /// Calls `work` on a thread of the driver's when all that was queued before is done. It must not call the driver.
    /// If earlier work fails for good, `work` is neither called nor dropped.
    ///
    /// # Errors
    ///
    /// The driver's; and while the stream is captured, since a graph may call it many times or never: then use
    /// [`Stream::call`] with what a user object keeps.
    pub fn run_on_host(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        if self.capture_status()?.is_capturing() {
            let what = "expected a stream that is not captured; use `call` with data that the graph keeps";
            return Err(Error::Usage { call: "cuLaunchHostFunc", what: what.into() });
        }
        let data: *mut Box<dyn FnOnce() + Send> = Box::into_raw(Box::new(Box::new(work)));
        // SAFETY: the data goes over to the one call of `run_once`.
        let queued = unsafe { self.call(run_once, data.cast()) };
        if queued.is_err() {
            // SAFETY: the call was not queued, so the data is still ours.
            drop(unsafe { Box::from_raw(data) });
        }
        queued
    }

    /// Calls `function` with `data` on a thread of the driver's, each time the stream or the graph made from it comes
    /// to it.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// `data` must stay valid for as long as the call may happen, `function` must not unwind nor call the driver.
    pub unsafe fn call(&self, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> Result<()> {
        // SAFETY: the stream lives; the rest is the caller's contract.
        self.within(|| unsafe { self.context.table().cuLaunchHostFunc(self.handle, function, data) })
    }

    /// Stores `value` at `address` when all that was queued before is done and can be seen.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// `address` must be 4 aligned bytes that the device can write until then.
    pub unsafe fn write_u32(&self, address: u64, value: u32) -> Result<()> {
        // SAFETY: the caller's contract.
        self.within(|| unsafe {
            self.context.table().cuStreamWriteValue32_v2(self.handle, address, value, 0)
        })
    }

    /// As [`Stream::write_u32`], with 8 bytes.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// `address` must be 8 aligned bytes that the device can write until then.
    pub unsafe fn write_u64(&self, address: u64, value: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        self.within(|| unsafe {
            self.context.table().cuStreamWriteValue64_v2(self.handle, address, value, 0)
        })
    }

    /// Holds back what is queued from now on until the value at `address` is as `wait` says of `value`.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// `address` must be 4 aligned bytes that the device can read until then, and somebody must write them.
    pub unsafe fn wait_u32(&self, address: u64, value: u32, wait: WaitFor) -> Result<()> {
        let flags = wait.flags();
        // SAFETY: the caller's contract.
        self.within(|| unsafe {
            self.context.table().cuStreamWaitValue32_v2(self.handle, address, value, flags)
        })
    }

    /// As [`Stream::wait_u32`], with 8 bytes ([`crate::DeviceAbilities::wait_values`]).
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// `address` must be 8 aligned bytes that the device can read until then, and somebody must write them.
    pub unsafe fn wait_u64(&self, address: u64, value: u64, wait: WaitFor) -> Result<()> {
        let flags = wait.flags();
        // SAFETY: the caller's contract.
        self.within(|| unsafe {
            self.context.table().cuStreamWaitValue64_v2(self.handle, address, value, flags)
        })
    }

    /// Gives a stream of our own back before it is dropped, and says whether that worked. Never blocks.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    pub(crate) fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.context.within(work)
    }

    fn release(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.owned) {
            return Ok(());
        }
        // SAFETY: created once, destroyed once.
        self.within(|| unsafe { self.context.table().cuStreamDestroy_v2(self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        report(self.release());
    }
}

impl WaitFor {
    fn flags(self) -> u32 {
        use sys::CUstreamWaitValue_flags as Flags;

        match self {
            Self::AtLeast => Flags::CU_STREAM_WAIT_VALUE_GEQ as u32,
            Self::Equal => Flags::CU_STREAM_WAIT_VALUE_EQ as u32,
            Self::AnyBit => Flags::CU_STREAM_WAIT_VALUE_AND as u32,
        }
    }
}

/// "Not ready" as a value.
pub(crate) fn progress(answer: Result<()>) -> Result<Progress> {
    match answer {
        Ok(()) => Ok(Progress::Done),
        Err(error) if error.code() == Some(code::NOT_READY) => Ok(Progress::NotReady),
        Err(error) => Err(error),
    }
}

/// Calls what [`Stream::run_on_host`] queued.
unsafe extern "C" fn run_once(data: *mut c_void) {
    // SAFETY: the driver calls once, with what `run_on_host` handed over.
    let work = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // No unwinding into the driver; the panic's message was printed.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
}

const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
