//! Contexts: where the driver keeps what belongs to one device in one process.

use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result, code};
use crate::load::Driver;
use crate::symbols::{Handle, Table};

/// A device's context.
///
/// Each call of this crate makes its context current for its own duration and then puts back what was current, so a
/// caller's own current context is never changed, on any thread. Cheap to clone, usable from every thread at once.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    handle: Handle,
    owned: bool,
}

// SAFETY: the driver takes a context's handle from any thread; nothing else is behind the pointer for us.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Device memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What can still be had.
    pub free_bytes: usize,
    /// All there is.
    pub total_bytes: usize,
}

impl Context {
    /// The primary context of `device`, which frameworks use too. Made if need be, which may take a second; kept until
    /// the last clone and everything made in it is gone.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn primary(device: &Device) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver stores one handle, which `Inner` gives back once.
        unsafe { device.driver().table.cuDevicePrimaryCtxRetain(&raw mut handle, device.handle()) }?;
        Ok(Self { inner: Arc::new(Inner { device: device.clone(), handle, owned: true }) })
    }

    /// A context that somebody else keeps, such as that of a pointer or a stream.
    ///
    /// # Safety
    ///
    /// `handle` must be a context of `device` that outlives the value and everything made in it.
    #[must_use]
    pub unsafe fn borrowed(device: &Device, handle: *mut std::ffi::c_void) -> Self {
        Self { inner: Arc::new(Inner { device: device.clone(), handle, owned: false }) }
    }

    /// The context that is current on this thread, and its device; nothing if none is.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn current(driver: &Driver) -> Result<Option<(*mut std::ffi::c_void, Device)>> {
        let handle = current(&driver.table)?;
        if handle.is_null() {
            return Ok(None);
        }
        let mut device = 0;
        // SAFETY: a context is current; the driver stores one number.
        unsafe { driver.table.cuCtxGetDevice(&raw mut device) }?;
        Ok(Some((handle, Device::new(driver, device)?)))
    }

    /// Whether somebody in this process already keeps the device's primary context.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn is_active(device: &Device) -> Result<bool> {
        let (mut flags, mut active) = (0, 0);
        let table = &device.driver().table;
        // SAFETY: the driver stores two numbers.
        unsafe { table.cuDevicePrimaryCtxGetState(device.handle(), &raw mut flags, &raw mut active) }?;
        Ok(active != 0)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.inner.handle
    }

    pub(crate) fn table(&self) -> &Table {
        &self.inner.device.driver().table
    }

    /// Runs `work` with this context current on the calling thread, and puts back what was.
    ///
    /// # Errors
    ///
    /// The driver's, or what `work` returns.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if current(self.table())? == self.inner.handle {
            return work();
        }
        // SAFETY: the context lives; `Pushed` pops it.
        unsafe { self.table().cuCtxPushCurrent_v2(self.inner.handle) }?;
        let pushed = Pushed { table: self.table(), armed: true };
        let done = work()?;
        pushed.pop()?;
        Ok(done)
    }

    /// Makes this context current on the calling thread, for several calls. What was current before is again when the guard is
    /// dropped; guards go in the reverse order.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn enter(&self) -> Result<Current> {
        let _here = std::marker::PhantomData;
        if current(self.table())? == self.inner.handle {
            return Ok(Current { pushed: None, _here });
        }
        // SAFETY: the context lives; the guard pops it.
        unsafe { self.table().cuCtxPushCurrent_v2(self.inner.handle) }?;
        Ok(Current { pushed: Some(self.clone()), _here })
    }

    /// Waits for everything that was started in the context. Blocks; never call it while a kernel of this process waits
    /// for another that is not yet launched.
    ///
    /// # Errors
    ///
    /// The driver's, also for work that failed earlier.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the context is current.
        self.within(|| unsafe { self.table().cuCtxSynchronize() })
    }

    /// How much device memory there is.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn memory(&self) -> Result<MemoryInfo> {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: the driver stores two numbers.
        self.within(|| unsafe { self.table().cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total_bytes) })?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    /// The priorities that streams may have, (least, greatest). Greater priorities are smaller numbers.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn stream_priorities(&self) -> Result<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the driver stores two numbers.
        self.within(|| unsafe {
            self.table().cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
        })?;
        Ok((least, greatest))
    }

    /// Lets kernels and copies of this context use the memory of `peer`. Doing it again changes nothing.
    ///
    /// # Errors
    ///
    /// The driver's; see [`Device::link_to`] for whether it can work.
    pub fn enable_peer(&self, peer: &Self) -> Result<()> {
        // SAFETY: both contexts live.
        let enabled = self.within(|| unsafe { self.table().cuCtxEnablePeerAccess(peer.inner.handle, 0) });
        forgive(enabled, code::PEER_ACCESS_ALREADY_ENABLED)
    }

    /// Takes that leave back, for the whole process. Doing it again changes nothing.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn disable_peer(&self, peer: &Self) -> Result<()> {
        // SAFETY: both contexts live.
        let disabled = self.within(|| unsafe { self.table().cuCtxDisablePeerAccess(peer.inner.handle) });
        forgive(disabled, code::PEER_ACCESS_NOT_ENABLED)
    }

    /// Gives the context back before the value is dropped, and says whether that worked. Other clones keep it.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn release(self) -> Result<()> {
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => inner.release(),
            Err(_) => Ok(()),
        }
    }
}

impl Inner {
    fn release(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.owned) {
            return Ok(());
        }
        // SAFETY: retained once, released once; everything made in it is gone.
        unsafe { self.device.driver().table.cuDevicePrimaryCtxRelease_v2(self.device.handle()) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        report(self.release());
    }
}

/// A context is current on the calling thread, so that calls do not make it so one by one; until dropped, on the same thread.
#[derive(Debug)]
pub struct Current {
    /// Nothing if it was current before.
    pushed: Option<Context>,
    /// What is current is the thread's affair.
    _here: std::marker::PhantomData<*const ()>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(context) = &self.pushed {
            report(pop(context.table()));
        }
    }
}

/// A context that was pushed on this thread and is popped once.
struct Pushed<'a> {
    table: &'a Table,
    armed: bool,
}

impl Pushed<'_> {
    fn pop(mut self) -> Result<()> {
        self.armed = false;
        pop(self.table)
    }
}

impl Drop for Pushed<'_> {
    fn drop(&mut self) {
        if self.armed {
            report(pop(self.table));
        }
    }
}

fn pop(table: &Table) -> Result<()> {
    let mut popped = std::ptr::null_mut();
    // SAFETY: this thread pushed one; the driver stores its handle.
    unsafe { table.cuCtxPopCurrent_v2(&raw mut popped) }
}

fn current(table: &Table) -> Result<Handle> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: the driver stores one handle.
    unsafe { table.cuCtxGetCurrent(&raw mut handle) }?;
    Ok(handle)
}

/// Success also where the driver says that it was so before.
fn forgive(result: Result<()>, forgiven: i32) -> Result<()> {
    match result {
        Err(error) if error.code() == Some(forgiven) => Ok(()),
        other => other,
    }
}

/// What a drop can do with a failure: say it. After a sticky error nothing can be given back, and that was said before.
pub(crate) fn report(result: Result<()>) {
    if let Err(error) = result
        && error.code() != Some(DEINITIALIZED)
        && let Error::Failed(_) = error
    {
        tracing::warn!("{error}");
    }
}

/// The process ends, and the driver was gone first.
const DEINITIALIZED: i32 = 4;
