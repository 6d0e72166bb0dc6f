//! Folding the vectors of all ranks at once, from where they lie to wherever results go.

use std::ops::Range;

use ccl_plan::Dtype;

use super::copy::{self, stream};
use super::kernel::{TILE_BYTES, Tiles, scalar_bits};
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
        if outputs.is_empty() {
            return;
        }
        // SAFETY: the caller's contract.
        unsafe {
            let done = self.fold_straight(contributions, outputs, count, stores);
            self.fold_in_tiles(contributions, outputs, done..count, stores);
        }
        if stores == Stores::Streaming {
            copy::fence();
        }
    }

    /// Folds the last contribution straight to where results belong, in whole tiles; how many elements are done. None, unless all
    /// that is to be done is to fold, around the caches, to lines that begin alike in all outputs and were not just read (ADR 0132).
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold_all`].
    unsafe fn fold_straight(
        &self,
        contributions: &[Contribution],
        outputs: &[*mut u8],
        count: usize,
        stores: Stores,
    ) -> usize {
        let head_bytes = outputs[0].align_offset(LINE_BYTES);
        let just_read = |output: &*mut u8| contributions.iter().any(|other| other.start == *output);
        let head = head_bytes / self.size_bytes;
        let tiles = count.saturating_sub(head) * self.size_bytes / TILE_BYTES;
        let Some((last, others @ [_, ..])) = contributions.split_last() else { return 0 };
        let not_straight = stores == Stores::Cached || self.heeds != 0 || !alike(outputs);
        if not_straight || !head_bytes.is_multiple_of(self.size_bytes) || outputs.iter().any(just_read) {
            return 0;
        }
        // Of two nothing is kept aside.
        let most = if others.len() == 1 { tiles.max(1) } else { SHORT_TILE_BYTES / TILE_BYTES };
        let mut block = <Block>::uninit();
        // SAFETY: parts of the caller's ranges; tiles begin on lines of every output, and a block holds what is kept aside.
        unsafe {
            self.fold_in_tiles(contributions, outputs, 0..head.min(count), stores);
            for done in (0..tiles).step_by(most) {
                let number = most.min(tiles - done);
                let start_bytes = head_bytes + done * TILE_BYTES;
                let elements = number * TILE_BYTES / self.size_bytes;
                let folded = self.fold_tile(others, start_bytes, block.as_mut_ptr(), elements);
                let inputs = [folded, last.start.wrapping_add(start_bytes)];
                (self.kernels.combine_around)(Tiles { number, inputs, outputs, start_bytes });
            }
        }
        head.min(count) + tiles * TILE_BYTES / self.size_bytes
    }

    /// Folds these elements tile by tile, each of which is then stored to every output.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold_all`].
    unsafe fn fold_in_tiles(
        &self,
        contributions: &[Contribution],
        outputs: &[*mut u8],
        elements: Range<usize>,
        stores: Stores,
    ) {
        let (first, tile_bytes) = (outputs[0], tile_bytes(outputs, stores));
        let mut block = <Block>::uninit();
        let through_cache = stores == Stores::Cached && self.may_fold_into(first, contributions);
        let mut start = elements.start;
        while start < elements.end {
            let start_bytes = start * self.size_bytes;
            let target = first.wrapping_add(start_bytes);
            // Every tile ends on a line boundary of the first output, so that all but the first are whole lines.
            let most = (tile_bytes - target.addr() % LINE_BYTES) / self.size_bytes;
            let length = most.clamp(1, elements.end - start);
            let bytes = length * self.size_bytes;
            let target = if through_cache { target } else { block.as_mut_ptr() };
            // SAFETY: `start + length` is inside the caller's ranges; a block holds `length` elements;
            // every contribution was read before another output is written.
            unsafe {
                let folded = self.fold_tile(contributions, start_bytes, target, length);
                for output in outputs {
                    self.store(folded, output.add(start_bytes), bytes, stores);
                }
            }
            start += length;
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
    if stores == Stores::Streaming && alike(outputs) { SHORT_TILE_BYTES } else { BLOCK_BYTES }
}

/// Whether all outputs begin equally far into a line.
fn alike(outputs: &[*mut u8]) -> bool {
    outputs.windows(2).all(|pair| (pair[0].addr() ^ pair[1].addr()).is_multiple_of(LINE_BYTES))
}

/// Measured from 256 to 16,384 with two ranks: within a few percent of a loop that stores what it has in
/// registers.
const SHORT_TILE_BYTES: usize = 512;
