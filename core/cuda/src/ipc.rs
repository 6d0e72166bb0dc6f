//! Memory of other processes of the same host, by the driver's older handles.

use cudarc::driver::sys;

use crate::context::{Context, report};
use crate::error::Result;
use crate::pointer::PointerFacts;

/// Memory of another process, mapped here until this is dropped.
#[derive(Debug)]
pub struct IpcMemory {
    context: Context,
    base: u64,
    shared: SharedMemory,
}

/// What another process opens memory by. Plain bytes; valid while the memory is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// The driver's handle, which means a whole allocation.
    pub handle: [u8; 64],
    /// Where in the allocation the shared memory begins.
    pub offset_bytes: u64,
}

impl SharedMemory {
    /// What another process opens the allocation around `address` by. Only memory of [`crate::DeviceMemory`]'s kind can
    /// be shared so ([`PointerFacts::ipc_capable`]).
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn of(context: &Context, address: u64) -> Result<Self> {
        let (base, _) = PointerFacts::range(context, address)?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the driver looks the address up and stores 64 bytes.
        context.within(|| unsafe { context.table().cuIpcGetMemHandle(&raw mut handle, base) })?;
        Ok(Self { handle: handle.reserved.map(i8::cast_unsigned), offset_bytes: address - base })
    }
}

impl IpcMemory {
    /// Maps the memory of another process, enabling access to its device if need be.
    ///
    /// # Errors
    ///
    /// The driver's: memory of this very process, memory that is gone, a device out of reach.
    pub fn open(context: &Context, shared: &SharedMemory) -> Result<Self> {
        let handle = sys::CUipcMemHandle { reserved: shared.handle.map(u8::cast_signed) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        context.within(|| {
            let mut base = 0;
            // SAFETY: the driver checks the handle and stores one address, which the value gives back once.
            unsafe { context.table().cuIpcOpenMemHandle_v2(&raw mut base, handle, flags) }?;
            Ok(Self { context: context.clone(), base, shared: *shared })
        })
    }

    /// Where the shared memory begins in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base + self.shared.offset_bytes
    }

    /// Unmaps the memory before the value is dropped, and says whether that worked.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let base = std::mem::take(&mut self.base);
        if base == 0 {
            return Ok(());
        }
        // SAFETY: opened once, closed once.
        self.context.within(|| unsafe { self.context.table().cuIpcCloseMemHandle(base) })
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        let _relaxed = crate::capture::RelaxedCapture::to_drop(self.context.driver());
        report(self.release());
    }
}
