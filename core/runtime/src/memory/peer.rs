//! Reading and writing the memory of another process of this host, without its doing.
//!
//! Linux copies between address spaces in one pass (`process_vm_readv`, `process_vm_writev`), where both processes belong to
//! the same user and nothing forbids it (containers without `CAP_SYS_PTRACE` and Yama's
//! `ptrace_scope` do). A rank finds out by trying.

use std::io;

/// A process whose memory may be read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerMemory {
    process: libc::pid_t,
}

impl PeerMemory {
    /// The memory of a process, by its number in this process's namespace. Nothing is tried yet.
    pub(crate) fn of(process: u32) -> PeerMemory {
        PeerMemory { process: process.cast_signed() }
    }

    /// Copies `bytes` bytes from `address` there to `to` here.
    ///
    /// # Errors
    ///
    /// The system's: not permitted, no such process, not mapped there.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of `bytes` bytes, and nobody else uses them meanwhile. `address` may
    /// be anything: it is the kernel that reads.
    pub(crate) unsafe fn read(self, address: u64, to: *mut u8, bytes: usize) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let here = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: bytes - done };
            let there = libc::iovec {
                iov_base: std::ptr::without_provenance_mut((address as usize).wrapping_add(done)),
                iov_len: bytes - done,
            };
            // SAFETY: both lists have one entry; `here` lies within the caller's range, and `there` is
            // the kernel's to check.
            let copied =
                unsafe { libc::process_vm_readv(self.process, &raw const here, 1, &raw const there, 1, 0) };
            match copied {
                ..=-1 => return Err(io::Error::last_os_error()),
                0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                _ => done += copied.cast_unsigned(),
            }
        }
        Ok(())
    }

    /// Copies `bytes` bytes from `from` here to where `there` says, an `iovec` that its owner may empty meanwhile. Whether all of it
    /// was written: not if that is elsewhere than one stretch of so many bytes that may be written.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `bytes` bytes, `there` is where an `iovec` may be read.
    pub(crate) unsafe fn write_listed(
        self,
        from: *const u8,
        bytes: usize,
        there: *const libc::iovec,
    ) -> bool {
        let here = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: bytes };
        // SAFETY: both lists have one entry; `here` lies within the caller's range and is only read, and what `there` says is
        // the kernel's to check.
        let copied = unsafe { libc::process_vm_writev(self.process, &raw const here, 1, there, 1, 0) };
        copied == bytes.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> PeerMemory {
        PeerMemory::of(std::process::id())
    }

    #[test]
    fn what_lies_there_is_copied() {
        let source: Vec<u8> = (0..100_003u32).map(|i| i as u8).collect();
        let mut target = vec![0; source.len()];
        // SAFETY: the target is as long as asked and nobody else's.
        unsafe { own().read(source.as_ptr().addr() as u64, target.as_mut_ptr(), target.len()) }.unwrap();
        assert_eq!(target, source);
    }

    #[test]
    fn what_is_not_mapped_or_not_there_is_an_error() {
        let mut target = [0; 8];
        // SAFETY: the target is as long as asked and nobody else's.
        let read = |peer: PeerMemory, target: &mut [u8; 8]| unsafe { peer.read(64, target.as_mut_ptr(), 8) };
        assert_eq!(read(own(), &mut target).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        let nobody = PeerMemory::of(i32::MAX as u32);
        assert_eq!(read(nobody, &mut target).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn all_of_it_is_written_or_it_says_so() {
        let source: Vec<u8> = (0..100_003u32).map(|i| i as u8).collect();
        let mut target = vec![0u8; source.len()];
        let there = |bytes| libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: bytes };
        let write = |peer: PeerMemory, there: &libc::iovec| {
            // SAFETY: the source is as long as said, and the target as it says, or less.
            unsafe { peer.write_listed(source.as_ptr(), source.len(), std::ptr::from_ref(there)) }
        };
        let [all, some, none] = [source.len(), 5000, 0].map(there);
        let nowhere = libc::iovec { iov_base: std::ptr::without_provenance_mut(64), iov_len: source.len() };
        assert!(!write(own(), &none) && !write(own(), &nowhere));
        assert!(!write(PeerMemory::of(i32::MAX as u32), &all));
        assert!(target.iter().all(|byte| *byte == 0));
        assert!(!write(own(), &some));
        assert!(write(own(), &all));
        assert_eq!(target, source);
    }
}
