//! Anonymous files and their mappings.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::error::{Error, Result};

/// What holds a memory file's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// Anonymous memory (`memfd`), or an unlinked file where the kernel refuses it.
    #[default]
    Anonymous,
    /// An unlinked file in the temporary directory.
    UnlinkedFile,
}

/// A file without a name whose pages exist once touched. Its descriptor closes on `exec`.
#[derive(Debug)]
pub struct MemoryFile {
    descriptor: OwnedFd,
    sealable: bool,
}

impl MemoryFile {
    /// Makes an empty file. Errors: the system's, when neither kind of backing can be had.
    pub fn create(backing: Backing) -> Result<MemoryFile> {
        if backing == Backing::Anonymous {
            match anonymous() {
                Ok(descriptor) => return Ok(MemoryFile { descriptor, sealable: true }),
                Err(error) => {
                    tracing::warn!(%error, "memfd_create is refused: shared memory is an unlinked file")
                }
            }
        }
        let file = tempfile::tempfile().map_err(|e| {
            Error::system(
                "create an unlinked file for shared memory",
                e,
                "point TMPDIR at a writable directory, or set CCL_SHM_DISABLE=1",
            )
        })?;
        Ok(MemoryFile { descriptor: file.into(), sealable: false })
    }

    /// Gives the file its one and final size. Costs no pages.
    pub fn fix_size(&self, bytes: usize) -> Result<()> {
        rustix::fs::ftruncate(&self.descriptor, bytes as u64)
            .map_err(|e| Error::system(&format!("size shared memory to {bytes} bytes"), e, ADVICE))?;
        if self.sealable {
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&self.descriptor, seals)
                .map_err(|e| Error::system("seal the size of shared memory", e, ADVICE))?;
        }
        Ok(())
    }

    /// Maps the whole file.
    pub fn map(&self, bytes: usize) -> Result<Mapping> {
        Mapping::of(self.descriptor.as_fd(), bytes)
    }

    /// Maps the whole file for user data: in huge pages if it is long and the system has them.
    pub(crate) fn map_user(&self, bytes: usize) -> Result<Mapping> {
        let mapping = self.map(bytes)?;
        mapping.advise_huge();
        Ok(mapping)
    }

    /// The descriptor's number, by which other threads of this process find it.
    pub fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A writable view of a memory file, shared with whoever maps it; unmapped when dropped.
///
/// Other ranks write to it at any time, so it hands out addresses, never references to data.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps the first `bytes` of a file. The file must be that long, or touching it is fatal: see
    /// [`Mapping::try_of_peer`].
    pub fn of(file: BorrowedFd<'_>, bytes: usize) -> Result<Mapping> {
        map(file, bytes).map_err(|e| Error::system(&format!("map {bytes} bytes of shared memory"), e, ADVICE))
    }

    /// Maps memory of this process alone, for a rank that has nobody to share it with.
    pub(crate) fn private(bytes: usize) -> Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = || {
            // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
            let start = unsafe {
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
            }?;
            NonNull::new(start.cast()).ok_or(Errno::NOMEM)
        };
        let start = mapped().map_err(|e| Error::system(&format!("map {bytes} bytes"), e, ADVICE))?;
        Ok(Mapping { start, bytes })
    }

    /// Maps a peer's file once it has exactly `bytes`; `None` while it is still empty.
    ///
    /// Errors are texts: the caller falls back to another path and logs them.
    pub fn try_of_peer(file: BorrowedFd<'_>, bytes: usize) -> Result<Option<Mapping>, String> {
        let found =
            rustix::fs::fstat(file).map_err(|e| format!("its descriptor cannot be examined: {e}"))?.st_size;
        match usize::try_from(found) {
            Ok(0) => Ok(None),
            Ok(found) if found == bytes => match map(file, bytes) {
                Ok(mapping) => Ok(Some(mapping)),
                Err(error) => Err(format!("its memory cannot be mapped: {error}")),
            },
            _ => Err(format!("expected {bytes} bytes of shared memory, found {found}")),
        }
    }

    /// The address `offset` bytes in.
    ///
    /// Panics if `offset` is past the end: offsets come from the layout, which is made for the size.
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes, "offset {offset} lies outside a mapping of {} bytes", self.bytes);
        // SAFETY: `start` begins a mapping of `bytes` bytes, and `offset` is within or one past it.
        unsafe { self.start.add(offset) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks for huge pages. A refusal only costs time.
    fn advise_huge(&self) {
        if self.bytes >= HUGE_PAGE_BYTES {
            self.advise(Advice::LinuxHugepage);
        }
    }

    /// Touches all pages. Where the system cannot, they come as they are used.
    pub(crate) fn populate(&self) {
        self.advise_huge();
        self.advise(Advice::LinuxPopulateWrite);
    }

    /// Touches the pages of `range`, in bytes from the start, so that whoever uses them first need not.
    pub(crate) fn populate_range(&self, range: Range<usize>) {
        let start = range.start / PAGE_BYTES * PAGE_BYTES;
        self.advise_range(start..range.end.min(self.bytes), Advice::LinuxPopulateWrite);
    }

    fn advise(&self, advice: Advice) {
        self.advise_range(0..self.bytes, advice);
    }

    fn advise_range(&self, range: Range<usize>, advice: Advice) {
        let (start, bytes) = (self.at(range.start), range.len());
        // SAFETY: all kinds of advice given here leave the contents of the mapping alone, and the range lies in it.
        let advised = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) };
        if let Err(error) = advised {
            tracing::debug!(%error, ?advice, bytes, "the system does not take advice on memory");
        }
    }

    /// Replaces the pages of `range` (whole pages, in bytes from the start) by private ones with the same
    /// contents, at the same addresses.
    ///
    /// # Errors
    ///
    /// The system's: nothing has changed then.
    ///
    /// # Safety
    ///
    /// The range lies inside, and nobody in this process uses it meanwhile.
    pub(super) unsafe fn make_private(&self, range: Range<usize>) -> Result<()> {
        let (place, bytes) = (self.at(range.start).as_ptr(), range.len());
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the copy is where nothing else is; it is moved over pages of this mapping, which stays
        // one range of addresses of the same length for `drop`, or unmapped.
        let moved = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags).and_then(|copy| {
                std::ptr::copy_nonoverlapping(place, copy.cast(), bytes);
                rustix::mm::mremap_fixed(copy, bytes, bytes, MremapFlags::MAYMOVE, place.cast())
                    .or_else(|error| rustix::mm::munmap(copy, bytes).and(Err(error)))
            })
        };
        moved.map(|_| ()).map_err(|e| Error::system("take back memory that was shared", e, ADVICE))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are what `mmap` returned, and whoever holds an address from
        // `at` also holds the mapping (through an `Arc`), so none is used after this.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping made by mmap can be unmapped");
    }
}

// SAFETY: the mapping is plain shared memory; it only hands out raw addresses, and whoever
// dereferences them answers for the synchronisation.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

fn anonymous() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL; some later ones insist on it.
    rustix::fs::memfd_create("ccl", flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
        Errno::INVAL => rustix::fs::memfd_create("ccl", flags),
        other => Err(other),
    })
}

fn map(file: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let start = if bytes < HUGE_PAGE_BYTES {
        // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?
    } else {
        map_aligned(file, bytes, protection)?
    };
    let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
    Ok(Mapping { start, bytes })
}

/// Maps a file where huge pages may begin, which the kernel alone does not see to.
fn map_aligned(file: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> Result<*mut c_void, Errno> {
    let reserved_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
    let (null, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: the kernel reserves a range that nothing else uses, longer than needed; the file is mapped
    // inside it, and what is left at either end is given back.
    unsafe {
        let reserved = rustix::mm::mmap_anonymous(null, reserved_bytes, ProtFlags::empty(), flags)?;
        let before = reserved.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        let start = reserved.byte_add(before);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        if let Err(error) = rustix::mm::mmap(start, bytes, protection, flags, file, 0) {
            rustix::mm::munmap(reserved, reserved_bytes)?;
            return Err(error);
        }
        give_back(reserved, before)?;
        let end = bytes.next_multiple_of(PAGE_BYTES);
        give_back(start.byte_add(end), reserved_bytes - before - end)?;
        Ok(start)
    }
}

/// Unmaps a range that may be empty.
///
/// # Safety
///
/// Nothing in it is used.
unsafe fn give_back(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    if bytes == 0 { Ok(()) } else { unsafe { rustix::mm::munmap(start, bytes) } }
}

/// What mappings are cut in, at least.
const PAGE_BYTES: usize = 4096;
/// Huge pages of the usual size. Longer mappings start on a boundary of them; shorter ones have no use for it.
const HUGE_PAGE_BYTES: usize = 2 << 20;
const ADVICE: &str = "check the memory limit of the container, or set CCL_SHM_DISABLE=1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_backings_share_bytes_between_mappings() {
        for backing in [Backing::Anonymous, Backing::UnlinkedFile] {
            let file = MemoryFile::create(backing).unwrap();
            assert!(Mapping::try_of_peer(file.as_fd(), 8192).unwrap().is_none());
            file.fix_size(8192).unwrap();
            let ours = file.map(8192).unwrap();
            let theirs = Mapping::try_of_peer(file.as_fd(), 8192).unwrap().unwrap();
            // SAFETY: offset 5000 lies within both mappings and nobody else has them.
            unsafe {
                ours.at(5000).write(7);
                assert_eq!(theirs.at(5000).read(), 7);
            }
        }
    }

    #[test]
    fn a_file_of_another_size_is_refused_with_both_sizes() {
        let file = MemoryFile::create(Backing::Anonymous).unwrap();
        file.fix_size(4096).unwrap();
        let refusal = Mapping::try_of_peer(file.as_fd(), 8192).unwrap_err();
        assert!(refusal.contains("8192") && refusal.contains("4096"), "{refusal}");
    }

    #[test]
    fn the_size_of_anonymous_memory_is_sealed() {
        let file = MemoryFile::create(Backing::Anonymous).unwrap();
        file.fix_size(4096).unwrap();
        assert_eq!(rustix::fs::ftruncate(&file.descriptor, 0), Err(Errno::PERM));
        let flags = rustix::io::fcntl_getfd(&file.descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
