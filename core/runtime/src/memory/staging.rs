//! Memory of this process alone that a network sends from and receives into.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

use super::{Entry, Ledger};
use crate::error::{Error, Result};

/// Zeroed, page-aligned bytes at an address that stays.
///
/// A network may read and write them while requests are pending, so this hands out addresses, never
/// references; whoever uses one answers for the synchronisation.
#[derive(Debug)]
pub(crate) struct Staging {
    start: NonNull<u8>,
    layout: Layout,
    _entry: Entry,
}

impl Staging {
    /// Takes `bytes` (at least 1) from the heap; large ones cost pages only once touched. The ledger
    /// counts them.
    pub(crate) fn new(bytes: usize, ledger: &Ledger) -> Result<Staging> {
        let refuse = || {
            Error::new(
                crate::Fault::System { errno: None },
                format!("expected {bytes} bytes of memory for network slots, found none"),
                "make slots fewer or smaller, or raise the memory limit",
            )
        };
        let layout = Layout::from_size_align(bytes.max(1), PAGE_BYTES).map_err(|_| refuse())?;
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(refuse)?;
        Ok(Staging { start, layout, _entry: ledger.memory(layout.size()) })
    }

    /// The address `offset` bytes in. Panics past the end.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.layout.size(), "offset {offset} lies outside {:?}", self.layout);
        // SAFETY: within the allocation, or one past it.
        unsafe { self.start.add(offset) }
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; nobody uses an address after its owner.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: plain memory with one owner; see the type's text for who answers for accesses.
unsafe impl Send for Staging {}

const PAGE_BYTES: usize = 4096;
