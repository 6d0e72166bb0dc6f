//! Folding the vectors of all ranks at once, from where they lie to wherever results go.

use ccl_plan::Dtype;

use super::copy::{self, stream};
use super::kernel::scalar_bits;
use super::{BLOCK_BYTES, Block, COMPLETE, Reduction, SCALE_ALL};
use crate::memory::lines::LINE_BYTES;

/// How results are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stores {
    /// Through the cache.
    Cached,
    /// Around it: for results that will not fit.
    Streaming,
}

/// One rank's vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contribution {
    /// Where it begins.
    pub(crate) start: *const u8,
    /// Its scalar in the dtype's bits; only pre-multiplied sums look at it.
    pub(crate) scalar: u64,
}

impl Reduction {
    /// A rank's scalar as [`Contribution`] has it.
    pub(crate) fn scalar(dtype: Dtype, scalar: f64) -> u64 {
        scalar_bits(dtype, scalar)
    }

    /// The complete reduction of `count` elements of any number of contributions, left to right, each
    /// multiplied by its own scalar first if that is the operation, stored to every output. Does not
    /// block or allocate. Other threads see the results after whatever publishes them.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold`], but an output may equal any contribution.
    pub(crate) unsafe fn fold_all(
        &self,
        contributions: &[Contribution],
        outputs: &[*mut u8],
        count: usize,
        stores: Stores,
    ) {
        let Some(&first) = outputs.first() else { return };
        let tile_bytes = tile_bytes(outputs, stores);
        // The first tile ends on a line boundary of the first output, so that all others are whole lines.
        let head_bytes = first.align_offset(LINE_BYTES).min(LINE_BYTES);
        let mut block = <Block>::uninit();
        let through_cache = stores == Stores::Cached && self.may_fold_into(first, contributions);
        let mut start = 0;
        while start < count {
            let most = if start == 0 { tile_bytes - LINE_BYTES + head_bytes } else { tile_bytes };
            let length = (most / self.size_bytes).clamp(1, count - start);
            let (start_bytes, bytes) = (start * self.size_bytes, length * self.size_bytes);
            let target = if through_cache { first.wrapping_add(start_bytes) } else { block.as_mut_ptr() };
            // SAFETY: `start + length <= count`, so the ranges are inside the caller's; a block holds
            // `length` elements; every contribution was read before another output is written.
            unsafe {
                let folded = self.fold_tile(contributions, start_bytes, target, length);
                for output in outputs {
                    self.store(folded, output.add(start_bytes), bytes, stores);
                }
            }
            start += length;
        }
        if stores == Stores::Streaming {
            copy::fence();
        }
    }

    /// Whether partial results may be kept in the output at `first`: no contribution there is read after the
    /// first of them is stored.
    fn may_fold_into(&self, first: *mut u8, contributions: &[Contribution]) -> bool {
        let read_before = if self.scales() { 1 } else { 2 };
        contributions.iter().skip(read_before).all(|other| !std::ptr::eq(other.start, first))
    }

    fn scales(&self) -> bool {
        self.heeds & SCALE_ALL != 0
    }

    /// Folds the tile that starts `start_bytes` into the contributions; where the result is: at `target`, or
    /// in the only contribution.
    ///
    /// # Safety
    ///
    /// Every contribution is valid for reads and `target` for writes of the tile, which is at most
    /// [`BLOCK_BYTES`]. `target` is no contribution but one that [`Reduction::may_fold_into`] allows.
    #[inline]
    unsafe fn fold_tile(
        &self,
        contributions: &[Contribution],
        start_bytes: usize,
        target: *mut u8,
        count: usize,
    ) -> *const u8 {
        let mut scaled = <Block>::uninit();
        let mut folded = std::ptr::null();
        for (index, contribution) in contributions.iter().enumerate() {
            let mut operand = contribution.start.wrapping_add(start_bytes);
            // SAFETY: valid for the tile by contract, or because a `Block` is that long; results go where
            // an operand is or where nothing is.
            unsafe {
                if self.scales() {
                    let place = if index == 0 { target } else { scaled.as_mut_ptr() };
                    (self.kernels.apply)(place, operand, contribution.scalar, count);
                    operand = place;
                }
                if index == 0 {
                    folded = operand;
                } else {
                    (self.kernels.combine)(target, folded, operand, count);
                    folded = target;
                }
            }
        }
        if self.heeds & COMPLETE != 0 {
            // SAFETY: as above.
            unsafe { (self.kernels.apply)(target, folded, self.operand, count) };
            folded = target;
        }
        folded
    }

    /// Stores a tile that may already be where it belongs.
    ///
    /// # Safety
    ///
    /// Both are valid for `bytes` bytes, and equal or apart.
    #[inline]
    unsafe fn store(&self, tile: *const u8, output: *mut u8, bytes: usize, stores: Stores) {
        if std::ptr::eq(tile, output) {
            return;
        }
        // SAFETY: the caller's contract, and they are not equal.
        unsafe {
            match stores {
                Stores::Cached => std::ptr::copy_nonoverlapping(tile, output, bytes),
                Stores::Streaming => stream(self.level, tile, output, bytes),
            }
        }
    }
}

/// Bytes folded before they are stored. Around the cache loads and stores should overlap, so tiles are short
/// where all outputs begin equally far into a line; otherwise every tile has ends that are no lines.
fn tile_bytes(outputs: &[*mut u8], stores: Stores) -> usize {
    let alike = outputs.iter().all(|output| (output.addr() ^ outputs[0].addr()).is_multiple_of(LINE_BYTES));
    if stores == Stores::Streaming && alike { SHORT_TILE_BYTES } else { BLOCK_BYTES }
}

/// Measured from 256 to 16,384 with two ranks: within a few percent of a loop that stores what it has in
/// registers.
const SHORT_TILE_BYTES: usize = 512;
