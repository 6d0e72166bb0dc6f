//! Copies to one or several outputs, through the cache or around it.

/// Copies `bytes` bytes to every output, 1 to 4, in one pass over the input.
///
/// # Safety
///
/// The input is valid for reads and every output for writes of `bytes` bytes, and nobody else
/// writes or reads them meanwhile. An output may equal the input; otherwise none overlap.
#[inline]
pub unsafe fn copy(input: *const u8, outputs: &[*mut u8], bytes: usize) {
    match *outputs {
        // SAFETY: the caller's contract; apart, because they are not equal.
        [output] if !std::ptr::eq(output, input) => unsafe {
            std::ptr::copy_nonoverlapping(input, output, bytes);
        },
        [_] => {}
        // SAFETY: the caller's contract.
        _ => unsafe {
            in_blocks(input, outputs, bytes, 0, |from, to, bytes| {
                if !std::ptr::eq(to, from) {
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                }
            })
        },
    }
}

/// [`copy`] with non-temporal stores, for outputs that will not fit the cache. The stores are
/// complete for other threads after whatever publishes them, as after ordinary stores.
///
/// # Safety
///
/// As [`copy`].
pub unsafe fn copy_streaming(input: *const u8, outputs: &[*mut u8], bytes: usize) {
    let head = outputs.first().map_or(0, |output| output.align_offset(LINE_BYTES));
    // SAFETY: the caller's contract.
    unsafe {
        in_blocks(input, outputs, bytes, head, |from, to, bytes| {
            if !std::ptr::eq(to, from) {
                stream(from, to, bytes);
            }
        });
    }
    fence();
}

/// Calls `store` for every output of every block, so that all but the first read the cache. The first
/// block is `head` bytes more than whole lines.
///
/// # Safety
///
/// As [`copy`].
#[inline(always)]
unsafe fn in_blocks(
    input: *const u8,
    outputs: &[*mut u8],
    bytes: usize,
    head: usize,
    store: impl Fn(*const u8, *mut u8, usize),
) {
    let mut start = 0;
    while start < bytes {
        let length = if start == 0 { head + BLOCK_BYTES - LINE_BYTES } else { BLOCK_BYTES };
        let length = length.min(bytes - start);
        for output in outputs {
            // SAFETY: `start < bytes`, inside the caller's ranges.
            unsafe { store(input.add(start), output.add(start), length) };
        }
        start += length;
    }
}

/// Copies a block with non-temporal stores to the whole lines of the output.
///
/// # Safety
///
/// As [`copy`], and apart. [`fence`] must follow before the output is published.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn stream(input: *const u8, output: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};

    let head = output.align_offset(LINE_BYTES).min(bytes);
    let end = bytes - (bytes - head) % LINE_BYTES;
    // SAFETY: the caller's contract, for parts of the range; `output + head` is aligned to a line when
    // any whole line follows, and every x86-64 has the instructions.
    unsafe {
        std::ptr::copy_nonoverlapping(input, output, head);
        for line in (head..end).step_by(LINE_BYTES) {
            for part in (line..line + LINE_BYTES).step_by(16) {
                _mm_stream_si128(output.add(part).cast(), _mm_loadu_si128(input.add(part).cast()));
            }
        }
        std::ptr::copy_nonoverlapping(input.add(end), output.add(end), bytes - end);
    }
}

/// Copies a block.
///
/// # Safety
///
/// As [`copy`], and apart.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn stream(input: *const u8, output: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(input, output, bytes) }
}

/// Orders non-temporal stores before all later ones.
#[inline]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it has no operands.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Bytes copied at a time to several outputs: a small part of the first-level cache.
const BLOCK_BYTES: usize = 4096;
