//! The memory of one device: one sparse memory file, so that other processes can map parts of it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::code::{Answer, INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY};

/// The memory of one device. Freed parts cannot be touched, so that use after free is seen at once.
pub(crate) struct Arena {
    file: OwnedFd,
    base: u64,
    bytes: usize,
    /// Offsets and lengths of allocations.
    taken: Mutex<BTreeMap<usize, usize>>,
}

impl Arena {
    /// # Panics
    ///
    /// If the system has no anonymous memory: nothing can be tested then.
    pub(crate) fn new(bytes: usize) -> Self {
        let file = memory_file("ccl-fake-device", bytes).expect("the system has memory files");
        // SAFETY: a new mapping of a new file, at an address that the system chooses.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::empty(),
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )
        };
        let base = base.expect("the system has addresses") as u64;
        Self { file, base, bytes, taken: Mutex::default() }
    }

    /// Takes `bytes`, zeroed, at the first place that is free.
    pub(crate) fn take(&self, bytes: usize) -> Answer<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = 0;
        for (&offset, &length) in taken.iter() {
            if offset - place >= bytes {
                break;
            }
            place = offset + length;
        }
        if self.bytes - place < bytes {
            return Err(OUT_OF_MEMORY);
        }
        self.protect(place, bytes, MprotectFlags::READ | MprotectFlags::WRITE)?;
        taken.insert(place, bytes);
        Ok(self.base + place as u64)
    }

    /// Gives back what was taken at `address`.
    pub(crate) fn give(&self, address: u64) -> Answer {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = address.wrapping_sub(self.base) as usize;
        let bytes = taken.remove(&offset).ok_or(INVALID_VALUE)?;
        self.protect(offset, bytes, MprotectFlags::empty())?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, offset as u64, bytes as u64).map_err(|_| OPERATING_SYSTEM)
    }

    /// Whether an address is this device's, taken or not.
    pub(crate) fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes as u64
    }

    /// Bytes that are not taken.
    pub(crate) fn free_bytes(&self) -> usize {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.bytes - taken.values().sum::<usize>()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// What another process finds an address by: descriptor and offset.
    pub(crate) fn place(&self, address: u64) -> (i32, u64) {
        (self.file.as_raw_fd(), address - self.base)
    }

    fn protect(&self, offset: usize, bytes: usize, flags: MprotectFlags) -> Answer {
        let start = (self.base as usize + offset) as *mut std::ffi::c_void;
        // SAFETY: the range is part of this arena's own mapping, and nobody uses what is not taken.
        unsafe { rustix::mm::mprotect(start, bytes, flags) }.map_err(|_| OPERATING_SYSTEM)
    }
}

/// Anonymous memory that has a descriptor.
pub(crate) fn memory_file(name: &str, bytes: usize) -> Answer<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(|_| OPERATING_SYSTEM)?;
    rustix::fs::ftruncate(&file, bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file)
}

pub(crate) const PAGE: usize = 4096;
