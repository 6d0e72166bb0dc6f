//! Buffers that start on a page and notice writes past their end.

/// Bytes that start on a page boundary, reused from point to point, with a guard behind them.
#[derive(Debug, Default)]
pub(crate) struct Area {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Area {
    /// Makes the area `len` bytes long, all of them [`POISON`]. Allocates only to grow.
    pub(crate) fn reset(&mut self, len: usize) {
        let needed = len + GUARD_BYTES + PAGE_BYTES;
        if self.bytes.len() < needed {
            self.bytes = vec![0; needed];
            self.start = self.bytes.as_ptr().align_offset(PAGE_BYTES);
        }
        self.len = len;
        self.bytes[self.start..self.start + len + GUARD_BYTES].fill(POISON);
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Bytes right behind the area that were written to.
    pub(crate) fn overrun_bytes(&self) -> usize {
        let guard = &self.bytes[self.start + self.len..][..GUARD_BYTES.min(self.bytes.len())];
        guard.iter().filter(|byte| **byte != POISON).count()
    }
}

/// What a buffer holds where nothing was written.
pub(crate) const POISON: u8 = 0xa5;
/// A cache line, the least that vector stores could spoil.
const GUARD_BYTES: usize = 64;
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
}
