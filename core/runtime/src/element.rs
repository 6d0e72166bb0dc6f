//! Element types of buffers, and the reduce operations callers may ask for.

use ccl_plan::{Dtype, Level, ReduceOp};

/// A type whose slices can be communicated.
///
/// # Safety
///
/// The type is plain bytes of [`Element::DTYPE`]'s size: no padding, no invalid bit pattern, no
/// pointers, no `Drop`.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The element type as the library knows it.
    const DTYPE: Dtype;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        // SAFETY: a primitive number, or a transparent wrapper of one, without padding and with
        // every bit pattern valid.
        unsafe impl Element for $ty {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

element! {
    i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64,
    F8E4m3 => F8E4m3, F8E5m2 => F8E5m2,
}

/// The bits of an 8-bit float with 4 exponent and 3 mantissa bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct F8E4m3(pub u8);

/// The bits of an 8-bit float with 5 exponent and 2 mantissa bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct F8E5m2(pub u8);

/// A reduce operation with its scalar, and what the bits of its result may depend on.
///
/// Made from a [`ReduceOp`], or by [`Reduce::pre_mul_sum`].
///
/// ```
/// use ccl::{Level, Reduce, ReduceOp};
///
/// let sum = Reduce::from(ReduceOp::Sum).at(Level::Size);
/// assert_eq!((sum.op(), sum.level()), (ReduceOp::Sum, Level::Size));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reduce {
    op: ReduceOp,
    scalar: f64,
    level: Level,
}

impl Reduce {
    /// The sum of all contributions, this rank's multiplied by `scalar` first. The scalar is rounded
    /// to the dtype; ranks may use different ones.
    pub const fn pre_mul_sum(scalar: f64) -> Reduce {
        Reduce { op: ReduceOp::PreMulSum, scalar, level: Level::Run }
    }

    /// The same for a call whose result keeps at least this level of determinism, the same on all ranks. A call can
    /// ask for more than `CCL_DETERMINISM`, not for less.
    #[must_use]
    pub const fn at(self, level: Level) -> Reduce {
        Reduce { level, ..self }
    }

    /// The operation.
    pub const fn op(&self) -> ReduceOp {
        self.op
    }

    /// The scalar; 1 unless this is a pre-multiplied sum.
    pub const fn scalar(&self) -> f64 {
        self.scalar
    }

    /// The level of determinism that the call asks for.
    pub const fn level(&self) -> Level {
        self.level
    }
}

impl From<ReduceOp> for Reduce {
    fn from(op: ReduceOp) -> Reduce {
        Reduce { op, scalar: 1.0, level: Level::Run }
    }
}

/// The bytes of a slice.
pub(crate) fn bytes_of<T: Element>(slice: &[T]) -> &[u8] {
    // SAFETY: an Element has no padding, so all `size_of_val` bytes are initialised; u8 has no
    // alignment; the borrow is carried over.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), size_of_val(slice)) }
}

/// The bytes of a mutable slice.
pub(crate) fn bytes_of_mut<T: Element>(slice: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; every bit pattern is a valid Element, so any write is fine.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}
