//! Element-wise folds of user data, for every dtype and reduce operation.
//!
//! A [`Reduction`] is made once per launch and used for every Move of it. [`Reduction::fold`] folds
//! up to four inputs left to right and stores the result to up to four outputs; [`copy`] is the
//! same for data that is only moved.
//!
//! # Bits
//!
//! The result depends on the inputs and their order only: never on the processor, the alignment,
//! the count, an element's position or how inputs are grouped into calls. To that end
//!
//! - every single operation rounds to the dtype, to nearest even. Narrow floats (f16, bf16, both
//!   f8) compute one operation in binary32 and round at once;
//! - f8 results beyond the largest finite number become that number (as CUDA's conversions do by
//!   default), infinities included; f16 and bf16 results become infinite;
//! - a NaN that results from an operation is the dtype's NaN with all bits set but the sign (what
//!   NVIDIA devices produce). A NaN that is only moved keeps its bits;
//! - max and min are NaN if either side is, and −0 is less than +0;
//! - integers wrap; an average of integers is the wrapped sum divided by n, towards zero;
//! - a scalar is first rounded to the dtype (integers: truncated, saturating).
//!
//! The default floating-point environment is assumed: round to nearest, subnormals kept.

mod copy;
mod element;
mod f16c;
mod kernel;
mod lanes;
mod level;
mod many;
mod narrow;
mod ordered;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use ccl_plan::{Dtype, ReduceOp};

use self::copy::stream;
pub use self::copy::{copy, copy_in_strings, copy_long};
use self::kernel::Kernels;
use self::level::Level;
pub(crate) use self::many::{Contribution, Stores};
use crate::memory::lines::claim_all;

/// The instruction set that folds use on this processor, by name.
pub fn instruction_set() -> &'static str {
    Level::detect().name()
}

/// What is applied beside the fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Finish(u8);

impl Finish {
    /// Nothing: partial results are folded into a partial result.
    pub const NONE: Finish = Finish(0);

    /// Multiply input i by the scalar first for every bit i of `inputs` (bits 0 to 3). Only
    /// [`ReduceOp::PreMulSum`] does anything.
    #[must_use]
    pub const fn scaling(self, inputs: u8) -> Finish {
        Finish(self.0 | (inputs & SCALE_ALL))
    }

    /// The result is the complete reduction. Only [`ReduceOp::Average`] does anything: it divides.
    #[must_use]
    pub const fn completing(self) -> Finish {
        Finish(self.0 | COMPLETE)
    }

    const fn scales(self, input: usize) -> bool {
        self.0 >> input & 1 != 0
    }

    const fn completes(self) -> bool {
        self.0 & COMPLETE != 0
    }
}

/// How contributions of one launch are combined. Small, plain data; making one costs nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    level: Level,
    kernels: Kernels,
    /// What `kernels.apply` applies: the scalar in the dtype's bits, or n.
    operand: u64,
    size_bytes: usize,
    /// The bits of [`Finish`] that mean something for the reduce operation.
    heeds: u8,
}

impl Reduction {
    /// The reduction of a launch over `n` ranks. `scalar` matters to [`ReduceOp::PreMulSum`] only.
    pub fn new(dtype: Dtype, op: ReduceOp, n: u32, scalar: f64) -> Reduction {
        Reduction::at(Level::detect(), dtype, op, n, scalar)
    }

    fn at(level: Level, dtype: Dtype, op: ReduceOp, n: u32, scalar: f64) -> Reduction {
        let (operand, heeds) = match op {
            ReduceOp::Average => (u64::from(n.max(1)), COMPLETE),
            ReduceOp::PreMulSum => (kernel::scalar_bits(dtype, scalar), SCALE_ALL),
            _ => (0, 0),
        };
        let kernels = Kernels::new(level, dtype, op);
        Reduction { level, kernels, operand, size_bytes: dtype.size_bytes(), heeds }
    }

    /// Folds `inputs` left to right and stores the result to every output: 1 to 4 of each, `count`
    /// elements. Does not block or allocate.
    ///
    /// # Safety
    ///
    /// Every input is valid for reads and every output for writes of `count` elements, at any
    /// alignment, and nobody else writes or reads them meanwhile. An output may equal an input;
    /// otherwise outputs overlap neither inputs nor each other.
    #[inline]
    pub unsafe fn fold(&self, inputs: &[*const u8], outputs: &[*mut u8], count: usize, finish: Finish) {
        let finish = Finish(finish.0 & self.heeds);
        match (inputs, outputs) {
            // SAFETY: the caller's contract, for the one pair and its output.
            (&[a, b], &[out]) if finish == Finish::NONE => unsafe {
                (self.kernels.combine)(out, a, b, count)
            },
            // SAFETY: the caller's contract, in bytes.
            (&[input], _) if finish == Finish::NONE => unsafe {
                copy(input, outputs, count * self.size_bytes)
            },
            // SAFETY: the caller's contract.
            _ => unsafe { self.fold_in_blocks(inputs, outputs, count, finish) },
        }
    }

    /// [`Reduction::fold`] into a block aside, from which all outputs are copied: for outputs that are written faster in long strings
    /// than one register after the other.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold`].
    pub(crate) unsafe fn fold_aside(
        &self,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        count: usize,
        finish: Finish,
    ) {
        let mut aside = Block::<ASIDE_BYTES>::uninit();
        let aside = aside.as_mut_ptr();
        let mut starts = [std::ptr::null(); 4];
        let mut start = 0;
        while start < count {
            let length = (ASIDE_BYTES / self.size_bytes).min(count - start);
            for (start_of, input) in starts.iter_mut().zip(inputs) {
                *start_of = input.wrapping_add(start * self.size_bytes);
            }
            // SAFETY: `start + length <= count`, so the ranges are inside the caller's; the block holds `length` elements.
            unsafe {
                self.fold(&starts[..inputs.len()], &[aside], length, finish);
                for output in outputs {
                    let to = output.add(start * self.size_bytes);
                    std::ptr::copy_nonoverlapping(aside, to, length * self.size_bytes);
                }
            }
            start += length;
        }
    }

    /// [`Reduction::fold`] for long data, with non-temporal stores to all but the first `cached` outputs, as
    /// [`copy_long`]; `taken` has a bit for each input, the lowest for the first.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold`].
    pub unsafe fn fold_long(
        &self,
        (inputs, taken): (&[*const u8], u8),
        (outputs, cached): (&[*mut u8], usize),
        count: usize,
        finish: Finish,
    ) {
        let finish = Finish(finish.0 & self.heeds);
        let mut aside = <Block>::uninit();
        let mut start = 0;
        while start < count {
            let start_bytes = start * self.size_bytes;
            let most = copy::tile_bytes(outputs, cached, start_bytes) / self.size_bytes;
            let length = most.min(count - start);
            let ahead = copy::ahead(start_bytes, count * self.size_bytes);
            for (index, input) in inputs.iter().enumerate() {
                copy::ask(*input, taken >> index & 1 != 0, &ahead);
            }
            for output in &outputs[..cached] {
                claim_all(output.wrapping_add(ahead.start), ahead.len());
            }
            let result = match outputs[..cached].first() {
                Some(first) => first.wrapping_add(start_bytes),
                None => aside.as_mut_ptr(),
            };
            // SAFETY: `start + length <= count`, so the ranges are inside the caller's; the block aside holds
            // a tile and overlaps nothing; outputs are stored after all inputs were read.
            unsafe {
                self.fold_block(inputs, start_bytes, result, length, finish);
                let bytes = length * self.size_bytes;
                for output in outputs[..cached].iter().skip(1) {
                    std::ptr::copy_nonoverlapping(result, output.add(start_bytes), bytes);
                }
                for output in &outputs[cached..] {
                    stream(self.level, result, output.add(start_bytes), bytes);
                }
            }
            start += length;
        }
        if cached < outputs.len() {
            copy::fence();
        }
    }

    /// The general case: block by block, so that whatever is read twice is in a near cache.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold`].
    unsafe fn fold_in_blocks(&self, inputs: &[*const u8], outputs: &[*mut u8], count: usize, finish: Finish) {
        let Some((&first, others)) = outputs.split_first() else { return };
        let (most, most_copied) = (BLOCK_BYTES / self.size_bytes, copy::block_bytes(count * self.size_bytes));
        let mut start = 0;
        while start < count {
            let part_start = start * self.size_bytes;
            let end = count.min(start + most_copied / self.size_bytes);
            while start < end {
                let length = most.min(end - start);
                let start_bytes = start * self.size_bytes;
                // SAFETY: `start + length <= count`, so the ranges are inside the caller's.
                unsafe { self.fold_block(inputs, start_bytes, first.add(start_bytes), length, finish) };
                start += length;
            }
            for other in others {
                let bytes = end * self.size_bytes - part_start;
                // SAFETY: inside the caller's ranges. `fold_block` has read every input when it returns, so the other
                // outputs may equal any of them.
                unsafe {
                    std::ptr::copy_nonoverlapping(first.add(part_start), other.add(part_start), bytes);
                }
            }
        }
    }

    /// Folds the block that starts `start_bytes` into the inputs to `out`. Every input was read when it
    /// returns.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold`], for at most [`BLOCK_BYTES`].
    #[inline(always)]
    unsafe fn fold_block(
        &self,
        inputs: &[*const u8],
        start_bytes: usize,
        out: *mut u8,
        count: usize,
        finish: Finish,
    ) {
        let block = |input: &*const u8| input.wrapping_add(start_bytes);
        let needed_later = inputs.iter().skip(2).any(|input| std::ptr::eq(block(input), out));
        if needed_later || finish.0 & SCALE_ALL != 0 {
            // SAFETY: the caller's contract.
            return unsafe { self.fold_block_aside(inputs, start_bytes, out, count, finish) };
        }
        let Some((first, others)) = inputs.split_first() else { return };
        let mut folded = block(first);
        for input in others {
            // SAFETY: valid by contract; from the second turn on, `out` is no input.
            unsafe { (self.kernels.combine)(out, folded, block(input), count) };
            folded = out;
        }
        // SAFETY: valid by contract, and equal or apart.
        unsafe { self.complete(folded, out, count, finish) };
    }

    /// [`Reduction::fold_block`] when inputs are scaled first, or `out` equals an input that is read
    /// after the first result is stored.
    ///
    /// # Safety
    ///
    /// As [`Reduction::fold_block`].
    #[inline(never)]
    unsafe fn fold_block_aside(
        &self,
        inputs: &[*const u8],
        start_bytes: usize,
        out: *mut u8,
        count: usize,
        finish: Finish,
    ) {
        let (mut partial, mut scaled) = (<Block>::uninit(), <Block>::uninit());
        let mut folded = std::ptr::null();
        for (i, input) in inputs.iter().enumerate() {
            let input = input.wrapping_add(start_bytes);
            let target = if i + 1 == inputs.len() { out } else { partial.as_mut_ptr() };
            let scaled = if i == 0 { target } else { scaled.as_mut_ptr() };
            // SAFETY: all pointers are valid for the block, by contract or because a `Block` is that long;
            // results go where an operand is or where nothing is.
            unsafe {
                let operand = if finish.scales(i) { self.apply(input, scaled, count) } else { input };
                if i == 0 {
                    folded = operand;
                } else {
                    (self.kernels.combine)(target, folded, operand, count);
                    folded = target;
                }
            }
        }
        // SAFETY: valid by contract, and equal or apart.
        unsafe { self.complete(folded, out, count, finish) };
    }

    /// Brings the folded block to `out`, divided if that is due.
    ///
    /// # Safety
    ///
    /// Both are valid for `count` elements and equal or apart.
    #[inline(always)]
    unsafe fn complete(&self, folded: *const u8, out: *mut u8, count: usize, finish: Finish) {
        // SAFETY: the caller's contract.
        unsafe {
            if finish.completes() {
                self.apply(folded, out, count);
            } else if !std::ptr::eq(folded, out) {
                std::ptr::copy_nonoverlapping(folded, out, count * self.size_bytes);
            }
        }
    }

    /// Scales or divides `input` into `out` and returns it.
    ///
    /// # Safety
    ///
    /// Both are valid for `count` elements and equal or apart.
    unsafe fn apply(&self, input: *const u8, out: *mut u8, count: usize) -> *const u8 {
        // SAFETY: the caller's contract.
        unsafe { (self.kernels.apply)(out, input, self.operand, count) };
        out
    }
}

/// Scratch for a part of the data that stays in a near cache.
#[repr(align(64))]
struct Block<const BYTES: usize = BLOCK_BYTES>([MaybeUninit<u8>; BYTES]);

impl<const BYTES: usize> Block<BYTES> {
    const fn uninit() -> Block<BYTES> {
        Block([MaybeUninit::uninit(); BYTES])
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// The bits of [`Finish`] that scale an input.
const SCALE_ALL: u8 = 0x0f;

/// The bit of [`Finish`] that completes.
const COMPLETE: u8 = 0x10;

/// Bytes folded aside at a time: half of the first-level cache at most, and long enough a string.
const ASIDE_BYTES: usize = 16 << 10;

/// Bytes folded at a time in the general case: seven such blocks fit a 32 KiB cache.
const BLOCK_BYTES: usize = 4096;
