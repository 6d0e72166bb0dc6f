//! Loops over elements, one for each dtype, operation and level, and the table of them.

use std::fmt;

use ccl_plan::{Dtype, ReduceOp};

use super::Block;
use super::copy::stream_lines;
use super::element::Element;
use super::f16c;
use super::level::Level;
use super::narrow::{Bf16, F8E4m3, F8E5m2, F16};

/// `out[i] = a[i] op b[i]`. All are valid for the count of elements, at any alignment; `out` equals
/// an input or overlaps none.
pub(super) type Combine = unsafe fn(out: *mut u8, a: *const u8, b: *const u8, count: usize);

/// `out[i] = input[i] op operand`, under the same contract.
pub(super) type Apply = unsafe fn(out: *mut u8, input: *const u8, operand: u64, count: usize);

/// `a[i] op b[i]` of all tiles, stored around the caches to every output. [`super::copy::fence`] must follow before they are published.
pub(super) type CombineAround = unsafe fn(tiles: Tiles<'_>);

/// Two inputs at any alignment, and outputs that are aligned to lines `start_bytes` from where they begin. All are valid for so many tiles of
/// [`TILE_BYTES`] and overlap nothing.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a> {
    pub(super) number: usize,
    pub(super) inputs: [*const u8; 2],
    pub(super) outputs: &'a [*mut u8],
    pub(super) start_bytes: usize,
}

/// The loops of one dtype and reduce operation.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Folds one more input.
    pub(super) combine: Combine,
    /// Folds the last input straight to where results go.
    pub(super) combine_around: CombineAround,
    /// Multiplies by the scalar, or divides by n.
    pub(super) apply: Apply,
}

impl Kernels {
    /// The loops for a level that this processor has.
    pub(super) fn new(level: Level, dtype: Dtype, op: ReduceOp) -> Kernels {
        match dtype {
            Dtype::I8 => Kernels::of::<i8>(level, op),
            Dtype::U8 => Kernels::of::<u8>(level, op),
            Dtype::I32 => Kernels::of::<i32>(level, op),
            Dtype::U32 => Kernels::of::<u32>(level, op),
            Dtype::I64 => Kernels::of::<i64>(level, op),
            Dtype::U64 => Kernels::of::<u64>(level, op),
            Dtype::F16 => f16c::kernels(level, op).unwrap_or_else(|| Kernels::of::<F16>(level, op)),
            Dtype::F32 => Kernels::of::<f32>(level, op),
            Dtype::F64 => Kernels::of::<f64>(level, op),
            Dtype::Bf16 => Kernels::of::<Bf16>(level, op),
            Dtype::F8E4m3 => Kernels::of::<F8E4m3>(level, op),
            Dtype::F8E5m2 => Kernels::of::<F8E5m2>(level, op),
        }
    }

    fn of<E: Element>(level: Level, op: ReduceOp) -> Kernels {
        let (combine, combine_around) = match op {
            ReduceOp::Sum | ReduceOp::Average | ReduceOp::PreMulSum => combine::<E, Sum>(level),
            ReduceOp::Product => combine::<E, Product>(level),
            ReduceOp::Max => combine::<E, Max>(level),
            ReduceOp::Min => combine::<E, Min>(level),
        };
        let apply =
            if op == ReduceOp::Average { apply::<E, Divide>(level) } else { apply::<E, Scale>(level) };
        Kernels { combine, combine_around, apply }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernels")
    }
}

/// The scalar as bits of the dtype.
pub(super) fn scalar_bits(dtype: Dtype, scalar: f64) -> u64 {
    match dtype {
        Dtype::I8 => i8::from_scalar(scalar).into_bits(),
        Dtype::U8 => u8::from_scalar(scalar).into_bits(),
        Dtype::I32 => i32::from_scalar(scalar).into_bits(),
        Dtype::U32 => u32::from_scalar(scalar).into_bits(),
        Dtype::I64 => i64::from_scalar(scalar).into_bits(),
        Dtype::U64 => u64::from_scalar(scalar).into_bits(),
        Dtype::F16 => F16::from_scalar(scalar).into_bits(),
        Dtype::F32 => f32::from_scalar(scalar).into_bits(),
        Dtype::F64 => f64::from_scalar(scalar).into_bits(),
        Dtype::Bf16 => Bf16::from_scalar(scalar).into_bits(),
        Dtype::F8E4m3 => F8E4m3::from_scalar(scalar).into_bits(),
        Dtype::F8E5m2 => F8E5m2::from_scalar(scalar).into_bits(),
    }
}

/// An operation on two elements.
pub(super) trait Binary {
    /// What loops over elements should work on: the element, or several side by side.
    type Unit<E: Element>: Element;
    /// a op b.
    fn of<E: Element>(a: E, b: E) -> E;
}

/// An operation on an element and an operand that is the same for all.
pub(super) trait Unary {
    /// The operand, unpacked once.
    type Operand<E: Element>: Copy;
    /// Unpacks the operand.
    fn operand<E: Element>(bits: u64) -> Self::Operand<E>;
    /// a op operand.
    fn of<E: Element>(a: E, operand: Self::Operand<E>) -> E;
}

macro_rules! binary {
    ($($name:ident $method:ident by $unit:ty;)*) => {$(
        struct $name;

        impl Binary for $name {
            type Unit<E: Element> = $unit;

            #[inline(always)]
            fn of<E: Element>(a: E, b: E) -> E {
                a.$method(b)
            }
        }
    )*};
}

binary! {
    Sum plus by E::Lanes;
    Product times by E::Lanes;
    Max larger by E;
    Min smaller by E;
}

struct Scale;

impl Unary for Scale {
    type Operand<E: Element> = E;

    #[inline(always)]
    fn operand<E: Element>(bits: u64) -> E {
        E::from_bits(bits)
    }

    #[inline(always)]
    fn of<E: Element>(a: E, scalar: E) -> E {
        a.times(scalar)
    }
}

struct Divide;

impl Unary for Divide {
    type Operand<E: Element> = u32;

    #[inline(always)]
    fn operand<E: Element>(bits: u64) -> u32 {
        bits as u32
    }

    #[inline(always)]
    fn of<E: Element>(a: E, n: u32) -> E {
        a.divided(n)
    }
}

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<E>(E);

/// The body of every [`Combine`]. Compiled once for each level it is inlined into.
///
/// # Safety
///
/// See [`Combine`].
#[inline(always)]
unsafe fn combine_body<E: Element, O: Binary>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
    let (units, rest) = cut::<E, O::Unit<E>>(count);
    // SAFETY: the units and the rest are `count` elements.
    unsafe {
        combine_all::<O::Unit<E>, O>(out, a, b, units);
        if size_of::<O::Unit<E>>() > size_of::<E>() {
            let done = units * size_of::<O::Unit<E>>();
            combine_all::<E, O>(out.add(done), a.add(done), b.add(done), rest);
        }
    }
}

/// The operation is commutative, so in place is one case for either input.
///
/// # Safety
///
/// See [`Combine`].
#[inline(always)]
unsafe fn combine_all<E: Element, O: Binary>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
    let other = if std::ptr::eq(out, a) { b } else { a };
    let in_place = std::ptr::eq(out, a) || std::ptr::eq(out, b);
    // SAFETY: valid for `count` elements by contract, and `Unaligned` has alignment 1. `out` overlaps
    // `other` only if all three are equal, which is its own case.
    unsafe {
        if in_place && std::ptr::eq(out, other) {
            for element in elements_mut::<E>(out, count) {
                *element = Unaligned(O::of(element.0, element.0));
            }
        } else if in_place {
            for (out, other) in elements_mut::<E>(out, count).iter_mut().zip(elements::<E>(other, count)) {
                *out = Unaligned(O::of(out.0, other.0));
            }
        } else {
            let inputs = elements::<E>(a, count).iter().zip(elements::<E>(b, count));
            for (out, (a, b)) in elements_mut::<E>(out, count).iter_mut().zip(inputs) {
                *out = Unaligned(O::of(a.0, b.0));
            }
        }
    }
}

/// The body of every [`CombineAround`]: `combine` folds a tile at a time, short enough for it to stay in registers.
///
/// # Safety
///
/// See [`CombineAround`]; the processor has the level. `combine` folds [`TILE_BYTES`] of its inputs.
#[inline(always)]
pub(super) unsafe fn around(level: Level, tiles: Tiles<'_>, combine: impl Fn(*mut u8, *const u8, *const u8)) {
    let mut tile = Block::<TILE_BYTES>::uninit();
    let tile = tile.as_mut_ptr();
    for start in (0..tiles.number).map(|number| number * TILE_BYTES) {
        let [a, b] = tiles.inputs;
        combine(tile, a.wrapping_add(start), b.wrapping_add(start));
        for output in tiles.outputs {
            // SAFETY: a tile inside the caller's range, of whole lines.
            unsafe { stream_lines(level, tile, output.add(tiles.start_bytes + start), TILE_BYTES) };
        }
    }
}

/// The body of every [`Apply`].
///
/// # Safety
///
/// See [`Apply`].
#[inline(always)]
unsafe fn apply_body<E: Element, O: Unary>(out: *mut u8, input: *const u8, operand: u64, count: usize) {
    let (units, rest) = cut::<E, E::Lanes>(count);
    // SAFETY: the units and the rest are `count` elements.
    unsafe {
        apply_all::<E::Lanes, O>(out, input, operand, units);
        if size_of::<E::Lanes>() > size_of::<E>() {
            let done = units * size_of::<E::Lanes>();
            apply_all::<E, O>(out.add(done), input.add(done), operand, rest);
        }
    }
}

/// # Safety
///
/// See [`Apply`].
#[inline(always)]
unsafe fn apply_all<E: Element, O: Unary>(out: *mut u8, input: *const u8, operand: u64, count: usize) {
    let operand = O::operand::<E>(operand);
    // SAFETY: valid for `count` elements by contract, and `Unaligned` has alignment 1; `out` and
    // `input` are equal, which is its own case, or apart.
    unsafe {
        if std::ptr::eq(out, input) {
            for element in elements_mut::<E>(out, count) {
                *element = Unaligned(O::of(element.0, operand));
            }
        } else {
            for (out, input) in elements_mut::<E>(out, count).iter_mut().zip(elements::<E>(input, count)) {
                *out = Unaligned(O::of(input.0, operand));
            }
        }
    }
}

/// How many whole units are in `count` elements, and how many elements are left.
#[inline(always)]
const fn cut<E, Unit>(count: usize) -> (usize, usize) {
    let per_unit = size_of::<Unit>() / size_of::<E>();
    (count / per_unit, count % per_unit)
}

/// # Safety
///
/// `data` is valid for reads of `count` elements for `'a`, and nobody writes them.
#[inline(always)]
unsafe fn elements<'a, E>(data: *const u8, count: usize) -> &'a [Unaligned<E>] {
    // SAFETY: the caller's contract; `Unaligned` has alignment 1.
    unsafe { std::slice::from_raw_parts(data.cast(), count) }
}

/// # Safety
///
/// `data` is valid for reads and writes of `count` elements for `'a`, and nobody else uses them.
#[inline(always)]
unsafe fn elements_mut<'a, E>(data: *mut u8, count: usize) -> &'a mut [Unaligned<E>] {
    // SAFETY: the caller's contract; `Unaligned` has alignment 1.
    unsafe { std::slice::from_raw_parts_mut(data.cast(), count) }
}

/// A function for each level whose body is `combine_body`, `around` or `apply_body`.
macro_rules! levels {
    ($($(#[$attribute:meta])* $level:ident: $combine:ident $combine_around:ident $apply:ident;)*) => {$(
        /// # Safety
        ///
        /// See [`Combine`]; the processor has the features.
        $(#[$attribute])*
        unsafe fn $combine<E: Element, O: Binary>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
            // SAFETY: the caller's contract.
            unsafe { combine_body::<E, O>(out, a, b, count) }
        }

        /// # Safety
        ///
        /// See [`CombineAround`]; the processor has the features.
        $(#[$attribute])*
        unsafe fn $combine_around<E: Element, O: Binary>(tiles: Tiles<'_>) {
            let count = TILE_BYTES / size_of::<E>();
            // SAFETY: the caller's contract, tile by tile.
            unsafe { around(Level::$level, tiles, |tile, a, b| combine_body::<E, O>(tile, a, b, count)) }
        }

        /// # Safety
        ///
        /// See [`Apply`]; the processor has the features.
        $(#[$attribute])*
        unsafe fn $apply<E: Element, O: Unary>(out: *mut u8, input: *const u8, operand: u64, count: usize) {
            // SAFETY: the caller's contract.
            unsafe { apply_body::<E, O>(out, input, operand, count) }
        }
    )*};
}

levels! {
    Baseline: combine_baseline combine_around_baseline apply_baseline;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    Avx2: combine_avx2 combine_around_avx2 apply_avx2;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    Avx512: combine_avx512 combine_around_avx512 apply_avx512;
}

fn combine<E: Element, O: Binary>(level: Level) -> (Combine, CombineAround) {
    match level {
        Level::Baseline => (combine_baseline::<E, O>, combine_around_baseline::<E, O>),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (combine_avx2::<E, O>, combine_around_avx2::<E, O>),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => (combine_avx512::<E, O>, combine_around_avx512::<E, O>),
    }
}

fn apply<E: Element, O: Unary>(level: Level) -> Apply {
    match level {
        Level::Baseline => apply_baseline::<E, O>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => apply_avx2::<E, O>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => apply_avx512::<E, O>,
    }
}

/// Bytes that are folded before they are stored. A loop of so many ends nowhere but there, and needs no memory in between.
pub(super) const TILE_BYTES: usize = 256;
