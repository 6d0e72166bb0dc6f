//! Buffers that start on a page and notice writes past their end.

use ccl::{Communicator, Memory, Result, Window};

/// Bytes that start on a page boundary, reused from point to point, with a guard behind them.
#[derive(Debug, Default)]
pub(crate) struct Area {
    backing: Backing,
    start: usize,
    len: usize,
}

/// What an area lies in.
#[derive(Debug)]
enum Backing {
    Ordinary(Vec<u8>),
    /// Kept with the window that lets other ranks map it.
    Mapped(Memory, #[expect(dead_code, reason = "only its being there matters")] Window),
}

impl Area {
    /// Makes the area `len` bytes long, all of them [`POISON`]. Allocates only to grow.
    pub(crate) fn reset(&mut self, len: usize) {
        let needed = len + GUARD_BYTES + PAGE_BYTES;
        if self.backing.bytes().len() < needed {
            self.backing = Backing::Ordinary(vec![0; needed]);
        }
        self.start = self.backing.bytes().as_ptr().align_offset(PAGE_BYTES);
        self.len = len;
        let (start, end) = (self.start, self.start + len + GUARD_BYTES);
        self.backing.bytes_mut()[start..end].fill(POISON);
    }

    /// Puts the area in memory that all ranks map, with room for `len` bytes. All ranks do so with the same
    /// length; blocks until they have.
    pub(crate) fn map(&mut self, comm: &Communicator, len: usize) -> Result<()> {
        let needed = len + GUARD_BYTES + PAGE_BYTES;
        if !matches!(&self.backing, Backing::Mapped(memory, _) if memory.len() >= needed) {
            let memory = ccl::mem_alloc(needed)?;
            let window = comm.register(&memory)?;
            if let Some(reason) = window.refusal() {
                crate::text::complain(&format!("ccl perf: memory is not mapped: {reason}"));
            }
            self.backing = Backing::Mapped(memory, window);
        }
        Ok(())
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.backing.bytes()[self.start..self.start + self.len]
    }

    /// The bytes, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.backing.bytes_mut()[self.start..self.start + self.len]
    }

    /// The bytes and the guard behind them.
    pub(crate) fn guarded(&self) -> &[u8] {
        let end = (self.start + self.len + GUARD_BYTES).min(self.backing.bytes().len());
        &self.backing.bytes()[self.start..end]
    }

    /// The same, to write.
    pub(crate) fn guarded_mut(&mut self) -> &mut [u8] {
        let end = (self.start + self.len + GUARD_BYTES).min(self.backing.bytes().len());
        &mut self.backing.bytes_mut()[self.start..end]
    }

    /// Bytes right behind the area that were written to.
    pub(crate) fn overrun_bytes(&self) -> usize {
        let bytes = self.backing.bytes();
        let guard = &bytes[self.start + self.len..][..GUARD_BYTES.min(bytes.len())];
        guard.iter().filter(|byte| **byte != POISON).count()
    }
}

impl Backing {
    fn bytes(&self) -> &[u8] {
        match self {
            Backing::Ordinary(bytes) => bytes,
            Backing::Mapped(memory, _) => memory.as_slice(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Backing::Ordinary(bytes) => bytes,
            Backing::Mapped(memory, _) => memory.as_mut_slice(),
        }
    }
}

impl Default for Backing {
    fn default() -> Backing {
        Backing::Ordinary(Vec::new())
    }
}

/// What a buffer holds where nothing was written.
pub(crate) const POISON: u8 = 0xa5;
/// A cache line, the least that vector stores could spoil.
pub(crate) const GUARD_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_start_on_a_page_and_notice_overruns() {
        let mut area = Area::default();
        for len in [0, 1, 5000, 10] {
            area.reset(len);
            assert_eq!((area.bytes().len(), area.overrun_bytes()), (len, 0));
            assert_eq!(area.bytes().as_ptr().align_offset(PAGE_BYTES), 0);
            assert!(area.bytes().iter().all(|byte| *byte == POISON));
        }
        area.len = 11;
        area.bytes_mut()[10] = 0;
        area.len = 10;
        assert_eq!(area.overrun_bytes(), 1);
    }

    #[test]
    fn mapped_areas_are_like_others() {
        ccl::local::run(2, |comm| {
            let mut area = Area::default();
            for len in [5000, 10, 70_000] {
                area.map(&comm, len)?;
                area.reset(len);
                assert!(matches!(area.backing, Backing::Mapped(..)));
                assert_eq!((area.bytes().len(), area.overrun_bytes()), (len, 0));
                assert!(area.bytes().iter().all(|byte| *byte == POISON));
            }
            Ok(())
        })
        .unwrap();
    }
}
