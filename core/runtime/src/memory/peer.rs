//! Reading the memory of another process of this host, without its doing.
//!
//! Linux copies between address spaces in one pass (`process_vm_readv`), where both processes belong to
//! the same user and nothing forbids it (containers without `CAP_SYS_PTRACE` and Yama's
//! `ptrace_scope` do). A rank finds out by trying.

use std::io;

/// A process whose memory may be read.
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
}
