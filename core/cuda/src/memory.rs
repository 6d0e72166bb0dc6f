//! Memory of a device, and host memory that devices reach.

use std::ffi::c_void;

use cudarc::driver::sys;

use crate::capture::RelaxedCapture;
use crate::context::{Context, report};
use crate::error::{Error, Result};
use crate::stream::Stream;

/// Device memory of our own, freed when dropped. Freeing waits for the device: drop it when its kernels are done. Dropping it
/// breaks no capture, as [`DeviceMemory::free`] may.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: u64,
    bytes: usize,
}

/// Host memory of our own that cannot be paged out, and that every device reaches at [`PinnedMemory::device_address`].
#[derive(Debug)]
pub struct PinnedMemory {
    context: Context,
    host: *mut u8,
    device_address: u64,
    bytes: usize,
}

/// Host memory of somebody else's, made known to the devices until this is dropped.
#[derive(Debug)]
pub struct HostRegistration {
    context: Context,
    host: *mut u8,
    device_address: u64,
    bytes: usize,
}

// SAFETY: the memory is not tied to a thread, and only raw addresses of it are handed out.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}
// SAFETY: as above.
unsafe impl Send for HostRegistration {}
// SAFETY: as above.
unsafe impl Sync for HostRegistration {}

/// Whose writes host memory is optimised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCaching {
    /// Reads and writes of the host are cached as always.
    Cached,
    /// The host only writes; the device then reads faster.
    WriteCombined,
}

impl DeviceMemory {
    /// `bytes` of device memory, aligned to 256, with nothing known in them.
    ///
    /// # Errors
    ///
    /// The driver's: out of memory.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        context.within(|| {
            let mut address = 0;
            // SAFETY: the driver stores one address, which the value gives back once.
            unsafe { context.table().cuMemAlloc_v2(&raw mut address, bytes) }?;
            Ok(Self { context: context.clone(), address, bytes })
        })
    }

    /// Where it is, for kernels and for the driver.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies `from` into the memory, through `stream`, and waits for that. Blocks.
    ///
    /// # Errors
    ///
    /// The driver's; a range outside the memory.
    pub fn write(&self, offset_bytes: usize, from: &[u8], stream: &Stream) -> Result<()> {
        let to = self.range(offset_bytes, from.len())?;
        // SAFETY: both ranges are valid until the copy is waited for.
        unsafe { copy(stream, to, from.as_ptr() as u64, from.len()) }?;
        stream.synchronize()
    }

    /// Copies out of the memory into `to`, through `stream`, and waits for that. Blocks.
    ///
    /// # Errors
    ///
    /// The driver's; a range outside the memory.
    pub fn read(&self, offset_bytes: usize, to: &mut [u8], stream: &Stream) -> Result<()> {
        let from = self.range(offset_bytes, to.len())?;
        // SAFETY: both ranges are valid until the copy is waited for.
        unsafe { copy(stream, to.as_mut_ptr() as u64, from, to.len()) }?;
        stream.synchronize()
    }

    /// Fills the memory with `byte` when `stream` comes to it. Never blocks; the memory must outlive that.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<()> {
        // SAFETY: the whole range is ours; freeing waits for the device.
        unsafe { fill(stream, self.address, byte, self.bytes) }
    }

    /// Frees the memory before it is dropped, and says whether that worked. May wait for the device.
    ///
    /// # Errors
    ///
    /// The driver's, also for work that failed earlier.
    pub fn free(mut self) -> Result<()> {
        self.release()
    }

    fn range(&self, offset_bytes: usize, bytes: usize) -> Result<u64> {
        if offset_bytes.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(self.address + offset_bytes as u64);
        }
        let what = format!(
            "expected a range inside {} bytes of device memory, found {bytes} bytes at {offset_bytes}",
            self.bytes
        );
        Err(Error::Usage { call: "cuMemcpyAsync", what })
    }

    fn release(&mut self) -> Result<()> {
        let address = std::mem::take(&mut self.address);
        if address == 0 {
            return Ok(());
        }
        // SAFETY: allocated once, freed once.
        self.context.within(|| unsafe { self.context.table().cuMemFree_v2(address) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _relaxed = RelaxedCapture::to_drop(self.context.driver());
        report(self.release());
    }
}

impl PinnedMemory {
    /// `bytes` of host memory, page aligned, for every device of the process.
    ///
    /// # Errors
    ///
    /// The driver's: out of memory.
    pub fn new(context: &Context, bytes: usize, caching: HostCaching) -> Result<Self> {
        let combined = match caching {
            HostCaching::Cached => 0,
            HostCaching::WriteCombined => sys::CU_MEMHOSTALLOC_WRITECOMBINED,
        };
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP | combined;
        context.within(|| {
            let mut host = std::ptr::null_mut();
            // SAFETY: the driver stores one address, which the value gives back once.
            unsafe { context.table().cuMemHostAlloc(&raw mut host, bytes, flags) }?;
            let mut memory = Self { context: context.clone(), host: host.cast(), device_address: 0, bytes };
            memory.device_address = device_address(context, host)?;
            Ok(memory)
        })
    }

    /// Where the host finds it. Devices may write it at any time: read and write what they use with atomics or volatile.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.host
    }

    /// Where devices find it.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees the memory before it is dropped, and says whether that worked. May wait for the device.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn free(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let host = std::mem::replace(&mut self.host, std::ptr::null_mut());
        if host.is_null() {
            return Ok(());
        }
        // SAFETY: allocated once, freed once.
        self.context.within(|| unsafe { self.context.table().cuMemFreeHost(host.cast()) })
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let _relaxed = RelaxedCapture::to_drop(self.context.driver());
        report(self.release());
    }
}

impl HostRegistration {
    /// Makes `bytes` at `host` known to every device of the process. The range is pinned; whole pages are taken.
    ///
    /// # Errors
    ///
    /// The driver's: registered before, memory of a kind that cannot be pinned.
    ///
    /// # Safety
    ///
    /// The range must stay mapped where it is until the registration is gone.
    pub unsafe fn new(context: &Context, host: *mut u8, bytes: usize) -> Result<Self> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        context.within(|| {
            // SAFETY: the caller's contract.
            unsafe { context.table().cuMemHostRegister_v2(host.cast(), bytes, flags) }?;
            let mut registration = Self { context: context.clone(), host, device_address: 0, bytes };
            registration.device_address = device_address(context, host.cast())?;
            Ok(registration)
        })
    }

    /// Where devices find the range.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// How long the range is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the registration back before it is dropped, and says whether that worked. May wait for the device.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let host = std::mem::replace(&mut self.host, std::ptr::null_mut());
        if host.is_null() {
            return Ok(());
        }
        // SAFETY: registered once, taken back once; the caller keeps the range until then.
        self.context.within(|| unsafe { self.context.table().cuMemHostUnregister(host.cast()) })
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let _relaxed = RelaxedCapture::to_drop(self.context.driver());
        report(self.release());
    }
}

/// Copies between any two addresses, of the host or of devices, when `stream` comes to it. Does not block if host memory
/// is pinned or registered; else it may.
///
/// # Errors
///
/// The driver's.
///
/// # Safety
///
/// Both ranges must be valid until the copy is done, and nobody may write `from`, or touch `to`, meanwhile.
pub unsafe fn copy(stream: &Stream, to: u64, from: u64, bytes: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    stream.within(|| unsafe { stream.context().table().cuMemcpyAsync(to, from, bytes, stream.raw()) })
}

/// Fills `bytes` at `address` with one byte when `stream` comes to it. Never blocks.
///
/// # Errors
///
/// The driver's.
///
/// # Safety
///
/// The range must be valid until the fill is done, and nobody may touch it meanwhile.
pub unsafe fn fill(stream: &Stream, address: u64, byte: u8, bytes: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    stream.within(|| unsafe { stream.context().table().cuMemsetD8Async(address, byte, bytes, stream.raw()) })
}

/// As [`fill`], with `count` words of 4 bytes.
///
/// # Errors
///
/// The driver's.
///
/// # Safety
///
/// As [`fill`]; the address must be a multiple of 4.
pub unsafe fn fill_u32(stream: &Stream, address: u64, value: u32, count: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    stream
        .within(|| unsafe { stream.context().table().cuMemsetD32Async(address, value, count, stream.raw()) })
}

/// Where devices find host memory that the driver knows.
fn device_address(context: &Context, host: *mut c_void) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the driver looks the address up and stores another.
    unsafe { context.table().cuMemHostGetDevicePointer_v2(&raw mut address, host, 0) }?;
    Ok(address)
}
