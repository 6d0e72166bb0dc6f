//! User memory that other ranks of the host can map.
//!
//! A [`Memory`] is anonymous shared memory with one owner. Nobody else sees it until its owner registers
//! it with a communicator; from then on the other ranks read and write it directly, and only inside calls
//! that the owner has made with it.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::region::{Backing, Mapping, MemoryFile};
use crate::element::Element;
use crate::error::{Error, Result};

/// Allocates `bytes` bytes of zeros that ranks of the same host can map: see [`Memory`].
///
/// Local: no other rank takes part. Costs pages only once they are touched.
///
/// # Errors
///
/// The system's: no more memory or descriptors.
///
/// ```
/// # fn main() -> ccl::Result<()> {
/// let mut memory = ccl::mem_alloc(4000)?;
/// let values = memory.as_mut_slice::<f32>();
/// values.fill(1.5);
/// assert_eq!(values.len(), 1000);
/// # Ok(()) }
/// ```
pub fn mem_alloc(bytes: usize) -> Result<Memory> {
    let pages = Pages::new(bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES))?;
    Ok(Memory { pages: Arc::new(pages), bytes })
}

/// Owned, zeroed bytes that start on a page boundary, from [`mem_alloc`].
///
/// It is used through slices, like any memory. Registered with
/// [`Communicator::register`](crate::Communicator::register), long collectives on it move data straight
/// between the ranks' buffers. Long allocations ask the system for huge pages.
///
/// Dropping it frees the memory, or leaves that to the last [`Window`](crate::Window) on it. A child made by
/// `fork` shares it rather than having a copy.
#[derive(Debug)]
pub struct Memory {
    pages: Arc<Pages>,
    bytes: usize,
}

impl Memory {
    /// Length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it was asked for with no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// As many elements as it holds; bytes that do not make another are left out.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        // SAFETY: the mapping starts on a page boundary, holds `bytes` bytes and lives as long as `self`;
        // its bytes are initialised, and any bits are an Element. Other ranks write to it only inside
        // calls that borrow it mutably.
        unsafe { std::slice::from_raw_parts(self.pages.at(0).cast(), self.bytes / size_of::<T>()) }
    }

    /// The same, to write.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; `self` is borrowed mutably, and a `Memory` is its pages' only owner.
        unsafe { std::slice::from_raw_parts_mut(self.pages.at(0).cast(), self.bytes / size_of::<T>()) }
    }

    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }
}

/// A memory's file and this process's view of it.
///
/// The file ends with a page that holds random bytes, by which those who map it know that it is the one
/// they were told of.
#[derive(Debug)]
pub(crate) struct Pages {
    file: MemoryFile,
    mapping: Mapping,
    nonce: [u8; 32],
    /// Whether part of the view is no longer of the file.
    detached: AtomicBool,
}

impl Pages {
    /// `bytes` are whole pages.
    fn new(bytes: usize) -> Result<Pages> {
        let mut nonce = [0; 32];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::system("draw random bytes", e, "allow the getrandom system call"))?;
        let file_bytes = bytes.checked_add(PAGE_BYTES).ok_or_else(|| too_long(bytes))?;
        let file = MemoryFile::create(Backing::Anonymous)?;
        file.fix_size(file_bytes)?;
        let mapping = file.map_user(file_bytes)?;
        // SAFETY: the last page lies within the mapping, and nobody else has it yet.
        unsafe { mapping.at(bytes).cast().write(nonce) };
        Ok(Pages { file, mapping, nonce, detached: AtomicBool::new(false) })
    }

    /// Bytes of user memory, whole pages.
    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes() - PAGE_BYTES
    }

    /// The address `offset` bytes in.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.mapping.at(offset).as_ptr()
    }

    /// How far into it `bytes` bytes from `address` on begin, if they lie in it.
    pub(crate) fn offset_of(&self, address: *const u8, bytes: usize) -> Option<usize> {
        let offset = address.addr().checked_sub(self.at(0).addr())?;
        (offset.checked_add(bytes)? <= self.bytes()).then_some(offset)
    }

    pub(crate) fn nonce(&self) -> [u8; 32] {
        self.nonce
    }

    /// The descriptor's number, by which other threads of this process find it.
    pub(crate) fn number(&self) -> i32 {
        self.file.number()
    }

    /// Brings all pages into this process's view, so that calls need not.
    pub(crate) fn populate(&self) {
        self.mapping.populate();
    }

    /// A peer's memory of `bytes` bytes (whole pages), whose owner announced `nonce`.
    ///
    /// Errors are texts: reasons not to use it.
    pub(crate) fn map_peer(file: BorrowedFd<'_>, bytes: usize, nonce: &[u8; 32]) -> Result<Mapping, String> {
        let mapping = Mapping::try_of_peer(file, bytes + PAGE_BYTES)?
            .ok_or_else(|| "its memory has no size".to_owned())?;
        // SAFETY: the last page lies within the mapping, and its owner writes it only before it is shared.
        let found: [u8; 32] = unsafe { mapping.at(bytes).cast().read() };
        if found != *nonce {
            return Err("its memory does not show the nonce it announced".to_owned());
        }
        mapping.populate();
        Ok(mapping)
    }

    /// Keeps whoever else maps the whole pages in `range` (bytes from the start) from changing what is seen
    /// here: they get private pages with the same contents. What is left of them at either end stays
    /// shared. From then on the memory is nobody's to register.
    ///
    /// # Errors
    ///
    /// The system's: nothing has changed then.
    ///
    /// # Safety
    ///
    /// Nobody in this process uses the range meanwhile.
    pub(crate) unsafe fn detach(&self, range: Range<usize>) -> Result<()> {
        let whole = range.start.next_multiple_of(PAGE_BYTES)..range.end / PAGE_BYTES * PAGE_BYTES;
        self.detached.store(true, Ordering::Release);
        if whole.start >= whole.end || whole.end > self.bytes() {
            return Ok(());
        }
        // SAFETY: the caller's contract, for part of the range.
        unsafe { self.mapping.make_private(whole) }
    }

    /// Whether what is seen here may differ from what others see.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }
}

impl AsFd for Pages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn too_long(bytes: usize) -> Error {
    Error::usage(
        format!("expected a length that fits the address space, found {bytes} bytes"),
        "ask for less",
    )
}

/// Pages of most systems; where they are longer, `detach` fails and says so.
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_starts_on_a_page() {
        for bytes in [0, 1, 4095, 4096, 100_001, 5 << 20] {
            let mut memory = mem_alloc(bytes).unwrap();
            assert_eq!((memory.len(), memory.is_empty()), (bytes, bytes == 0));
            assert_eq!(memory.as_slice::<u8>().as_ptr().addr() % PAGE_BYTES, 0);
            assert!(memory.as_slice::<u8>().iter().all(|byte| *byte == 0));
            memory.as_mut_slice::<f64>().fill(0.5);
            assert_eq!(memory.as_slice::<f64>(), vec![0.5; bytes / 8]);
        }
    }

    #[test]
    fn a_peer_maps_what_it_was_told_of_and_nothing_else() {
        let mut memory = mem_alloc(10_000).unwrap();
        let pages = Arc::clone(memory.pages());
        let mapping = Pages::map_peer(pages.as_fd(), pages.bytes(), &pages.nonce()).unwrap();
        memory.as_mut_slice::<u8>()[9_999] = 7;
        // SAFETY: the byte lies in the mapping, and nobody writes to it now.
        assert_eq!(unsafe { mapping.at(9_999).read() }, 7);
        let refusal = Pages::map_peer(pages.as_fd(), pages.bytes(), &[0; 32]).unwrap_err();
        assert!(refusal.contains("nonce"), "{refusal}");
        let refusal = Pages::map_peer(pages.as_fd(), 4096, &pages.nonce()).unwrap_err();
        assert!(refusal.contains("expected 8192"), "{refusal}");
    }

    #[test]
    fn detached_pages_keep_their_contents_and_nobody_else_changes_them() {
        let mut memory = mem_alloc(5 * PAGE_BYTES).unwrap();
        let pages = Arc::clone(memory.pages());
        let peer = Pages::map_peer(pages.as_fd(), pages.bytes(), &pages.nonce()).unwrap();
        memory.as_mut_slice::<u8>().fill(1);
        // SAFETY: nobody uses the memory now.
        unsafe { pages.detach(100..4 * PAGE_BYTES + 1).unwrap() };
        assert!(pages.is_detached());
        for page in 0..5 {
            // SAFETY: the peer's mapping is as long, and nobody else uses it now.
            unsafe { peer.at(page * PAGE_BYTES).write(2) };
        }
        let seen: Vec<u8> = memory.as_slice::<u8>().iter().step_by(PAGE_BYTES).copied().collect();
        assert_eq!(seen, [2, 1, 1, 1, 2]);
    }
}
