//! The loops of [`super`], for two vector widths.

use std::arch::x86_64::*;

use ccl_plan::ReduceOp;

use crate::exec::reduce::element::Element;
use crate::exec::reduce::kernel::{Kernels, TILE_BYTES, Tiles, around};
use crate::exec::reduce::level::Level;
use crate::exec::reduce::narrow::F16;

/// The f16 loops for a level and reduce operation, where they are better than the generic ones:
/// max and min are not, which need no conversion.
pub(in crate::exec::reduce) fn kernels(level: Level, op: ReduceOp) -> Option<Kernels> {
    match level {
        Level::Baseline => None,
        Level::Avx2 => avx2::kernels(op),
        Level::Avx512 => avx512::kernels(op),
    }
}

/// A vector of binary32, loaded from and stored to f16.
trait Vector: Copy {
    /// Elements in a vector.
    const COUNT: usize;
    /// Every element is `value`.
    unsafe fn splat(value: f32) -> Self;
    /// From `COUNT` f16 at any address.
    unsafe fn load(from: *const u16) -> Self;
    /// To `COUNT` f16 at any address, any NaN as the one NaN.
    unsafe fn store(self, to: *mut u16);
    /// a + b.
    unsafe fn add(self, other: Self) -> Self;
    /// a × b.
    unsafe fn mul(self, other: Self) -> Self;
    /// a ÷ b.
    unsafe fn div(self, other: Self) -> Self;
}

macro_rules! vector {
    ($vector:ident, $count:expr, $half:ident, $loadu:ident, $storeu:ident, $widen:ident, $narrow:ident,
     $splat:ident, $add:ident, $mul:ident, $div:ident, |$value:ident, $nan:ident| $one_nan:expr) => {
        // SAFETY of every block below: the processor has the features by the contract of the loops, and
        // addresses are valid for a vector.
        impl Vector for $vector {
            const COUNT: usize = $count;

            #[inline(always)]
            unsafe fn splat(value: f32) -> Self {
                // SAFETY: see above.
                unsafe { $splat(value) }
            }

            #[inline(always)]
            unsafe fn load(from: *const u16) -> Self {
                // SAFETY: see above.
                unsafe { $widen($loadu(from.cast())) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u16) {
                // SAFETY: see above.
                unsafe {
                    let ($value, $nan) = (self, $splat(f32::from_bits(u32::MAX >> 1)));
                    $storeu(to.cast(), $narrow::<_MM_FROUND_TO_NEAREST_INT>($one_nan));
                }
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            unsafe fn mul(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $mul(self, other) }
            }

            #[inline(always)]
            unsafe fn div(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { $div(self, other) }
            }
        }
    };
}

vector!(
    __m256,
    8,
    __m128i,
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm256_cvtph_ps,
    _mm256_cvtps_ph,
    _mm256_set1_ps,
    _mm256_add_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    |value, nan| _mm256_blendv_ps(value, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value))
);
vector!(
    __m512,
    16,
    __m256i,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm512_cvtph_ps,
    _mm512_cvtps_ph,
    _mm512_set1_ps,
    _mm512_add_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    |value, nan| _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value), nan)
);

/// One element, in the low lane of a vector.
#[derive(Clone, Copy)]
struct One(__m128);

impl Vector for One {
    const COUNT: usize = 1;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: every x86-64 has the instruction.
        unsafe { One(_mm_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u16) -> Self {
        // SAFETY: the processor has the features by the contract of the loops; the address is valid.
        unsafe { One(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(from.read_unaligned())))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u16) {
        // SAFETY: as for `load`.
        unsafe {
            let half = _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) as u16;
            to.write_unaligned(if half & 0x7fff > 0x7c00 { 0x7fff } else { half });
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: every x86-64 has the instruction.
        unsafe { One(_mm_add_ss(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: every x86-64 has the instruction.
        unsafe { One(_mm_mul_ss(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: every x86-64 has the instruction.
        unsafe { One(_mm_div_ss(self.0, other.0)) }
    }
}

/// An operation on vectors of any length.
trait Step {
    unsafe fn step<V: Vector>(a: V, b: V) -> V;
}

macro_rules! step {
    ($($name:ident $method:ident;)*) => {$(
        struct $name;

        impl Step for $name {
            #[inline(always)]
            unsafe fn step<V: Vector>(a: V, b: V) -> V {
                // SAFETY: the processor has the features by the contract of the loops.
                unsafe { a.$method(b) }
            }
        }
    )*};
}

step! {
    Add add;
    Mul mul;
    Div div;
}

/// The second operand: from memory, or the same for all.
#[derive(Clone, Copy)]
enum Operand {
    Each(*const u16),
    All(f32),
}

/// Stores `S` of every element of `a` and the operand to `out`, by long vectors, then shorter ones,
/// then one by one.
///
/// # Safety
///
/// See [`Combine`](crate::exec::reduce::kernel::Combine); the processor has the features of `Long` and F16C.
#[inline(always)]
unsafe fn each<Long: Vector, S: Step>(out: *mut u8, a: *const u8, b: Operand, count: usize) {
    let (out, a) = (out.cast::<u16>(), a.cast::<u16>());
    // SAFETY: the caller's contract.
    unsafe {
        let mut done = vectors::<Long, S>(out, a, b, 0, count);
        if Long::COUNT > <__m256 as Vector>::COUNT {
            done = vectors::<__m256, S>(out, a, b, done, count);
        }
        vectors::<One, S>(out, a, b, done, count);
    }
}

/// Works on whole vectors from `start` on and returns where the rest starts.
///
/// # Safety
///
/// As [`each`].
#[inline(always)]
unsafe fn vectors<V: Vector, S: Step>(
    out: *mut u16,
    a: *const u16,
    b: Operand,
    start: usize,
    count: usize,
) -> usize {
    let end = start + (count - start) / V::COUNT * V::COUNT;
    // SAFETY: vectors are inside `count` elements. Each is read before it is stored, so equal pointers do
    // no harm. Elements may be at odd addresses, hence no `add`.
    unsafe {
        match b {
            Operand::Each(b) => {
                for i in (start..end).step_by(V::COUNT) {
                    S::step(V::load(a.wrapping_add(i)), V::load(b.wrapping_add(i)))
                        .store(out.wrapping_add(i));
                }
            }
            Operand::All(value) => {
                let value = V::splat(value);
                for i in (start..end).step_by(V::COUNT) {
                    S::step(V::load(a.wrapping_add(i)), value).store(out.wrapping_add(i));
                }
            }
        }
    }
    end
}

macro_rules! loops {
    ($($module:ident: $level:ident $features:literal $vector:ident;)*) => {$(
        mod $module {
            use super::*;

            loops!(@combine $level $features $vector sum sum_around Add);
            loops!(@combine $level $features $vector product product_around Mul);
            loops!(@apply $features $vector scale Mul, |bits| F16::from_bits(bits).wide());
            loops!(@apply $features $vector divide Div, |bits| (bits as u32).max(1) as f32);

            pub(super) fn kernels(op: ReduceOp) -> Option<Kernels> {
                let kernels = |combine, combine_around, apply| Some(Kernels { combine, combine_around, apply });
                match op {
                    ReduceOp::Sum | ReduceOp::PreMulSum => kernels(sum, sum_around, scale),
                    ReduceOp::Average => kernels(sum, sum_around, divide),
                    ReduceOp::Product => kernels(product, product_around, scale),
                    ReduceOp::Max | ReduceOp::Min => None,
                }
            }
        }
    )*};
    (@combine $level:ident $features:literal $vector:ident $name:ident $around:ident $step:ident) => {
        /// # Safety
        ///
        /// See [`Combine`](crate::exec::reduce::kernel::Combine); the processor has the features.
        #[target_feature(enable = $features)]
        unsafe fn $name(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
            // SAFETY: the caller's contract.
            unsafe { each::<$vector, $step>(out, a, Operand::Each(b.cast()), count) }
        }

        /// # Safety
        ///
        /// See [`CombineAround`](crate::exec::reduce::kernel::CombineAround); the processor has the features.
        #[target_feature(enable = $features)]
        unsafe fn $around(tiles: Tiles<'_>) {
            let count = TILE_BYTES / size_of::<u16>();
            let combine = |tile, a, b: *const u8| {
                // SAFETY: the caller's contract, tile by tile.
                unsafe { each::<$vector, $step>(tile, a, Operand::Each(b.cast()), count) }
            };
            // SAFETY: the caller's contract.
            unsafe { around(Level::$level, tiles, combine) }
        }
    };
    (@apply $features:literal $vector:ident $name:ident $step:ident, |$bits:ident| $operand:expr) => {
        /// # Safety
        ///
        /// See [`Apply`](crate::exec::reduce::kernel::Apply); the processor has the features.
        #[target_feature(enable = $features)]
        unsafe fn $name(out: *mut u8, input: *const u8, $bits: u64, count: usize) {
            // SAFETY: the caller's contract.
            unsafe { each::<$vector, $step>(out, input, Operand::All($operand), count) }
        }
    };
}

loops! {
    avx2: Avx2 "avx2,f16c" __m256;
    avx512: Avx512 "avx2,f16c,avx512f" __m512;
}
