//! Copies to one or several outputs, through the cache or around it.

use super::level::Level;

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
            in_blocks(input, outputs, bytes, 0, |_, from, to, bytes| {
                if !std::ptr::eq(to, from) {
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                }
            })
        },
    }
}

/// [`copy`] with non-temporal stores to all but the first `cached` outputs: for outputs that will not fit the
/// cache, or are better not in it. The stores are complete for other threads after whatever publishes them,
/// as after ordinary stores.
///
/// # Safety
///
/// As [`copy`].
pub unsafe fn copy_streaming(input: *const u8, outputs: &[*mut u8], cached: usize, bytes: usize) {
    let head = outputs.get(cached).map_or(0, |output| output.align_offset(LINE_BYTES));
    let level = Level::detect();
    // SAFETY: the caller's contract.
    unsafe {
        in_blocks(input, outputs, bytes, head, |index, from, to, bytes| {
            if std::ptr::eq(to, from) {
            } else if index < cached {
                std::ptr::copy_nonoverlapping(from, to, bytes);
            } else {
                stream(level, from, to, bytes);
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
    store: impl Fn(usize, *const u8, *mut u8, usize),
) {
    let mut start = 0;
    while start < bytes {
        let length = if start == 0 { head + BLOCK_BYTES - LINE_BYTES } else { BLOCK_BYTES };
        let length = length.min(bytes - start);
        for (index, output) in outputs.iter().enumerate() {
            // SAFETY: `start < bytes`, inside the caller's ranges.
            unsafe { store(index, input.add(start), output.add(start), length) };
        }
        start += length;
    }
}

/// Copies a block with non-temporal stores to the whole lines of the output.
///
/// # Safety
///
/// As [`copy`], and apart. [`fence`] must follow before the output is published. The processor has the
/// level.
#[inline]
pub(super) unsafe fn stream(level: Level, input: *const u8, output: *mut u8, bytes: usize) {
    let head = output.align_offset(LINE_BYTES).min(bytes);
    let tail = (bytes - head) % LINE_BYTES;
    let lines = bytes - head - tail;
    // SAFETY: the caller's contract, for parts of the range; `output + head` is aligned to a line when
    // any whole line follows.
    unsafe {
        std::ptr::copy_nonoverlapping(input, output, head);
        stream_lines(level, input.add(head), output.add(head), lines);
        std::ptr::copy_nonoverlapping(input.add(head + lines), output.add(head + lines), tail);
    }
}

/// Whole lines. The wider the stores, the fewer lines are only partly gathered when they have to go.
///
/// # Safety
///
/// As [`stream`]; `output` is aligned to a line and `bytes` are whole lines.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream_lines(level: Level, input: *const u8, output: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match level {
            Level::Baseline => x86::stream_16(input, output, bytes),
            Level::Avx2 => x86::stream_32(input, output, bytes),
            Level::Avx512 => x86::stream_64(input, output, bytes),
        }
    }
}

/// Whole lines, with ordinary stores.
///
/// # Safety
///
/// As [`stream`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn stream_lines(_: Level, input: *const u8, output: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(input, output, bytes) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    macro_rules! stream {
        ($(#[$attribute:meta])* $name:ident, $register:ty, $load:ident, $store:ident) => {
            /// # Safety
            ///
            /// As [`super::stream_lines`]; the processor has the instructions.
            $(#[$attribute])*
            #[inline]
            pub(super) unsafe fn $name(input: *const u8, output: *mut u8, bytes: usize) {
                for part in (0..bytes).step_by(size_of::<$register>()) {
                    // SAFETY: inside the caller's ranges; registers divide lines, so the output is aligned.
                    unsafe { $store(output.add(part).cast(), $load(input.add(part).cast())) };
                }
            }
        };
    }

    stream!(stream_16, __m128i, _mm_loadu_si128, _mm_stream_si128);
    stream!(
        #[target_feature(enable = "avx2")]
        stream_32,
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256
    );
    stream!(
        #[target_feature(enable = "avx512f")]
        stream_64,
        __m512i,
        _mm512_loadu_si512,
        _mm512_stream_si512
    );
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
