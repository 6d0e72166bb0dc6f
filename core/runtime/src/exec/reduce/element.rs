//! The arithmetic of one element, written so that loops over it vectorise.

/// One element of a dtype. Every operation rounds to the dtype and is commutative in every bit.
pub(super) trait Element: Copy {
    /// Elements side by side, where arithmetic on several is faster than on one; otherwise `Self`.
    type Lanes: Element;
    /// The dtype's bits, zero-extended.
    fn into_bits(self) -> u64;
    /// The element with the low bits of `bits`.
    fn from_bits(bits: u64) -> Self;
    /// The nearest element to `scalar`; integers truncate and saturate.
    fn from_scalar(scalar: f64) -> Self;
    /// a + b.
    fn plus(self, other: Self) -> Self;
    /// a × b.
    fn times(self, other: Self) -> Self;
    /// The larger.
    fn larger(self, other: Self) -> Self;
    /// The smaller.
    fn smaller(self, other: Self) -> Self;
    /// Divided by n.
    fn divided(self, n: u32) -> Self;
}

/// Integers divided as floats that hold both exactly, because processors divide only floats in
/// vectors. The rounded quotient truncates to the exact one: it is closer to the true quotient than
/// that is to the next integer.
macro_rules! quotient {
    ($a:expr, $n:expr) => {
        // SAFETY: n is at least 1, so the quotient is not NaN and no larger than `a`, an integer of the type.
        unsafe { ($a / $n).to_int_unchecked() }
    };
}

macro_rules! integer {
    ($($int:ty, $unsigned:ty, |$a:ident, $n:ident| $divided:expr;)*) => {$(
        impl Element for $int {
            type Lanes = Self;

            #[inline(always)]
            fn into_bits(self) -> u64 {
                u64::from(self as $unsigned)
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as $int
            }

            fn from_scalar(scalar: f64) -> Self {
                scalar as $int
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn divided(self, n: u32) -> Self {
                let ($a, $n) = (self, n.max(1));
                $divided
            }
        }
    )*};
}

integer! {
    i8, u8, |a, n| quotient!(f32::from(a), n as f32);
    u8, u8, |a, n| quotient!(f32::from(a), n as f32);
    i32, u32, |a, n| quotient!(f64::from(a), f64::from(n));
    u32, u32, |a, n| quotient!(f64::from(a), f64::from(n));
    i64, u64, |a, n| a.wrapping_div(i64::from(n));
    u64, u64, |a, n| a / u64::from(n);
}

/// The value, or the one NaN instead of any other.
macro_rules! one_nan {
    ($float:ty, $bits:ty, $value:expr) => {{
        let value = $value;
        if value.is_nan() { <$float>::from_bits(<$bits>::MAX >> 1) } else { value }
    }};
}

macro_rules! float {
    ($($float:ty, $bits:ty;)*) => {$(
        impl Element for $float {
            type Lanes = Self;

            #[inline(always)]
            fn into_bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                <$float>::from_bits(bits as $bits)
            }

            fn from_scalar(scalar: f64) -> Self {
                scalar as $float
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                one_nan!($float, $bits, self + other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                one_nan!($float, $bits, self * other)
            }

            // Of equal numbers only ±0 differ in bits: +0 is their "and", −0 their "or".
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let (a, b) = (self, other);
                let (left, right) = (if a > b { a } else { b }, if b > a { b } else { a });
                let larger = <$float>::from_bits(left.to_bits() & right.to_bits());
                if a.is_nan() || b.is_nan() { one_nan!($float, $bits, <$float>::NAN) } else { larger }
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let (a, b) = (self, other);
                let (left, right) = (if a < b { a } else { b }, if b < a { b } else { a });
                let smaller = <$float>::from_bits(left.to_bits() | right.to_bits());
                if a.is_nan() || b.is_nan() { one_nan!($float, $bits, <$float>::NAN) } else { smaller }
            }

            #[inline(always)]
            fn divided(self, n: u32) -> Self {
                one_nan!($float, $bits, self / n as $float)
            }
        }
    )*};
}

float! {
    f32, u32;
    f64, u64;
}
