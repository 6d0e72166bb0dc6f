//! Copies to one or several outputs, through the cache or around it.

use super::level::Level;
use crate::discover::processor::is_of_amd;
use crate::memory::lines::{LINE_BYTES, ask_for_all, claim_all};

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
            in_blocks(input, outputs, bytes, |from, to, bytes| {
                if !std::ptr::eq(to, from) {
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                }
            })
        },
    }
}

/// [`copy`] for long data, with non-temporal stores to all but the first `cached` outputs: for outputs that will not
/// fit the cache, or are better not in it. What is read and written next is asked for ahead (ADR 0072). The stores are
/// complete for other threads after whatever publishes them, as after ordinary stores. `taken`: the input's lines are asked
/// for as those of an output, since this thread writes there next.
///
/// # Safety
///
/// As [`copy`].
pub unsafe fn copy_long(input: *const u8, taken: bool, (outputs, cached): (&[*mut u8], usize), bytes: usize) {
    let level = Level::detect();
    if is_of_amd() && (cached > 0 || outputs.len() == 1) {
        // SAFETY: the caller's contract.
        return unsafe { copy_in_turn(level, input, (outputs, cached), bytes) };
    }
    let mut start = 0;
    while start < bytes {
        let length = tile_bytes(outputs, cached, start).min(bytes - start);
        let ahead = ahead(start, bytes);
        ask(input, taken, &ahead);
        for output in &outputs[..cached] {
            claim_all(output.wrapping_add(ahead.start), ahead.len());
        }
        for (index, output) in outputs.iter().enumerate() {
            // SAFETY: `start + length <= bytes`, inside the caller's ranges.
            unsafe {
                let (from, to) = (input.add(start), output.add(start));
                if std::ptr::eq(to, from) {
                } else if index < cached {
                    std::ptr::copy_nonoverlapping(from, to, length);
                } else {
                    stream(level, from, to, length);
                }
            }
        }
        start += length;
    }
    if cached < outputs.len() {
        fence();
    }
}

/// [`copy_long`] where long blocks go through the caches the faster: they fill those outputs, then, out of the near cache, the others. Nothing
/// is asked for ahead (ADR 0102).
///
/// # Safety
///
/// As [`copy`].
unsafe fn copy_in_turn(level: Level, input: *const u8, (outputs, cached): (&[*mut u8], usize), bytes: usize) {
    let (through, around) = outputs.split_at(cached);
    for start in (0..bytes).step_by(LONG_BLOCK_BYTES) {
        let length = LONG_BLOCK_BYTES.min(bytes - start);
        // SAFETY: `start + length <= bytes`, inside the caller's ranges.
        unsafe {
            let from = input.add(start);
            for output in through.iter().filter(|output| !std::ptr::eq(**output, input)) {
                std::ptr::copy_nonoverlapping(from, output.add(start), length);
            }
            for output in around.iter().filter(|output| !std::ptr::eq(**output, input)) {
                stream(level, from, output.add(start), length);
            }
        }
    }
    fence();
}

/// [`copy`] of what comes from memory or from a far core, quarter beside quarter: the processor brings the lines of four strings sooner than
/// those of one (ADR 0129).
///
/// # Safety
///
/// As [`copy`], and apart.
pub unsafe fn copy_in_strings(input: *const u8, output: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { in_strings(Level::detect(), input, output, bytes) }
}

/// [`copy_in_strings`] with the instructions of a level.
///
/// # Safety
///
/// As [`copy_in_strings`]. The processor has the level.
pub(super) unsafe fn in_strings(level: Level, input: *const u8, output: *mut u8, bytes: usize) {
    let string = bytes / STRINGS / LINE_BYTES * LINE_BYTES;
    // SAFETY: the caller's contract, for parts of the range.
    unsafe {
        copy_strings(level, input, output, string);
        let copied = STRINGS * string;
        std::ptr::copy_nonoverlapping(input.add(copied), output.add(copied), bytes - copied);
    }
}

/// Copies so many strings that follow each other, each of `string` bytes, which are whole lines.
///
/// # Safety
///
/// As [`copy_in_strings`]. The processor has the level.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_strings(level: Level, input: *const u8, output: *mut u8, string: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match level {
            Level::Baseline => x86::strings_16(input, output, string),
            Level::Avx2 => x86::strings_32(input, output, string),
            Level::Avx512 => x86::strings_64(input, output, string),
        }
    }
}

/// One after the other.
///
/// # Safety
///
/// As [`copy_in_strings`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn copy_strings(_: Level, input: *const u8, output: *mut u8, string: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(input, output, STRINGS * string) }
}

/// Bytes of the tile that begins at `start`. The first ends on a line boundary of the first output that goes around the
/// caches, so that all others are whole lines.
#[inline(always)]
pub(super) fn tile_bytes(outputs: &[*mut u8], cached: usize, start: usize) -> usize {
    match outputs.get(cached) {
        Some(output) if start == 0 => output.align_offset(LINE_BYTES) + LONG_TILE_BYTES - LINE_BYTES,
        _ => LONG_TILE_BYTES,
    }
}

/// Asks for this part of an input; `taken` as of [`copy_long`].
#[inline(always)]
pub(super) fn ask(input: *const u8, taken: bool, ahead: &std::ops::Range<usize>) {
    match taken {
        true => claim_all(input.wrapping_add(ahead.start).cast_mut(), ahead.len()),
        false => ask_for_all(input.wrapping_add(ahead.start), ahead.len()),
    }
}

/// What is asked for while the tile at `start` is worked on.
#[inline(always)]
pub(super) fn ahead(start: usize, bytes: usize) -> std::ops::Range<usize> {
    let ahead = if is_of_amd() { AMD_AHEAD_BYTES } else { AHEAD_BYTES };
    let end = bytes.min(start + ahead + LONG_TILE_BYTES);
    (start + ahead).min(end)..end
}

/// Calls `store` for every output of every block, so that all but the first read the cache.
///
/// # Safety
///
/// As [`copy`].
#[inline(always)]
unsafe fn in_blocks(
    input: *const u8,
    outputs: &[*mut u8],
    bytes: usize,
    store: impl Fn(*const u8, *mut u8, usize),
) {
    let block_bytes = block_bytes(bytes);
    for start in (0..bytes).step_by(block_bytes) {
        for output in outputs {
            // SAFETY: `start < bytes`, inside the caller's ranges.
            unsafe { store(input.add(start), output.add(start), block_bytes.min(bytes - start)) };
        }
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
pub(super) unsafe fn stream_lines(level: Level, input: *const u8, output: *mut u8, bytes: usize) {
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
pub(super) unsafe fn stream_lines(_: Level, input: *const u8, output: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(input, output, bytes) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINE_BYTES, STRINGS};
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_storeu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_storeu_si512,
        _mm512_stream_si512,
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

    macro_rules! strings {
        ($(#[$attribute:meta])* $name:ident, $register:ty, $load:ident, $store:ident) => {
            /// # Safety
            ///
            /// As [`super::copy_strings`]; the processor has the instructions.
            $(#[$attribute])*
            #[inline]
            pub(super) unsafe fn $name(input: *const u8, output: *mut u8, string: usize) {
                for line in (0..string).step_by(LINE_BYTES) {
                    for start in (0..STRINGS).map(|number| number * string + line) {
                        for part in (start..start + LINE_BYTES).step_by(size_of::<$register>()) {
                            // SAFETY: inside the caller's ranges: strings are whole lines.
                            unsafe { $store(output.add(part).cast(), $load(input.add(part).cast())) };
                        }
                    }
                }
            }
        };
    }

    stream!(stream_16, __m128i, _mm_loadu_si128, _mm_stream_si128);
    strings!(strings_16, __m128i, _mm_loadu_si128, _mm_storeu_si128);
    stream!(
        #[target_feature(enable = "avx2")]
        stream_32,
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256
    );
    strings!(
        #[target_feature(enable = "avx2")]
        strings_32,
        __m256i,
        _mm256_loadu_si256,
        _mm256_storeu_si256
    );
    stream!(
        #[target_feature(enable = "avx512f")]
        stream_64,
        __m512i,
        _mm512_loadu_si512,
        _mm512_stream_si512
    );
    strings!(
        #[target_feature(enable = "avx512f")]
        strings_64,
        __m512i,
        _mm512_loadu_si512,
        _mm512_storeu_si512
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

/// How many of `bytes` bytes are copied at a time to several outputs: a small part of the first-level cache, but on AMD processors, which move
/// the more of a string in the same time the longer it is (ADR 0089), of the second.
#[inline(always)]
pub(super) fn block_bytes(bytes: usize) -> usize {
    if bytes > BLOCK_BYTES && is_of_amd() { LONG_BLOCK_BYTES } else { BLOCK_BYTES }
}

/// Strings that are copied side by side: 3, 5, 6 and 8 take longer.
const STRINGS: usize = 4;

const BLOCK_BYTES: usize = 4096;
const LONG_BLOCK_BYTES: usize = 64 << 10;

/// Bytes of long data worked on at a time: 256 and 1,024 take longer (ADR 0072).
const LONG_TILE_BYTES: usize = 512;

/// How far ahead of them lines are asked for: 4 KiB take longer where ranks share cores (ADR 0122).
const AHEAD_BYTES: usize = 3 << 10;
/// The same on AMD processors, where most copies ask for nothing (ADR 0102).
const AMD_AHEAD_BYTES: usize = 1 << 10;
