//! Three words between host and kernels: the host's wish that they end, what the first that failed has to say, and how
//! many calls were made between windows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ccl_cuda::PinnedMemory;
use ccl_kernels::layout::{DeviceError, DeviceFault, record_of};

/// Pinned memory with the abort flag and the error record of one communicator.
#[derive(Debug)]
pub(super) struct Signals {
    memory: PinnedMemory,
}

impl Signals {
    pub(super) const BYTES: usize = 256;

    /// `memory` has [`Signals::BYTES`]; it is cleared.
    pub(super) fn new(memory: PinnedMemory) -> Signals {
        // SAFETY: the memory has that many bytes, and no kernel knows of it yet.
        unsafe { memory.as_ptr().write_bytes(0, Signals::BYTES.min(memory.bytes())) };
        Signals { memory }
    }

    /// Ends all kernels of the communicator, for good. Any thread may do so.
    pub(super) fn abort(&self) {
        self.word(ABORT_AT).store(1, Ordering::Release);
    }

    pub(super) fn abort_address(&self) -> u64 {
        self.memory.device_address() + ABORT_AT as u64
    }

    pub(super) fn error_address(&self) -> u64 {
        self.memory.device_address() + ERROR_AT as u64
    }

    pub(super) fn served_address(&self) -> u64 {
        self.memory.device_address() + SERVED_AT as u64
    }

    /// How many calls a kernel of their own has made between windows.
    pub(super) fn served(&self) -> u64 {
        // SAFETY: the word lies in the memory, which starts on a page and lives as long as `self`; all use it as an atomic.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().wrapping_add(SERVED_AT).cast()) }
            .load(Ordering::Relaxed)
    }

    /// What the first block that failed says, if one has.
    pub(super) fn error(&self) -> Option<(DeviceFault, DeviceError)> {
        // Acquire: the code is written last.
        let code = self.word(ERROR_AT).load(Ordering::Acquire);
        if code == 0 {
            return None;
        }
        // SAFETY: the record lies in the memory; it is complete once there is a code, and written once.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.memory.as_ptr().wrapping_add(ERROR_AT), size_of::<DeviceError>())
        };
        Some((DeviceFault::from_code(code)?, record_of(bytes)?))
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the word lies in the memory, which starts on a page and lives as long as `self`; all use it as an atomic.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().wrapping_add(offset).cast()) }
    }
}

const ABORT_AT: usize = 0;
const ERROR_AT: usize = 128;
const SERVED_AT: usize = 192;
