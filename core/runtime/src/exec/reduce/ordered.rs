//! Max and min of narrow floats by their bits, without conversion.
//!
//! A float is sign and magnitude. Flipping the magnitude of negative ones makes two's complement
//! numbers in the same order, which every processor compares in vectors; −0 comes before +0.

/// The bits of a float.
pub(super) trait SignMagnitude: Copy {
    /// The larger; NaN (all bits set but the sign) if a magnitude exceeds `infinity`.
    fn max_or_nan(self, other: Self, infinity: Self) -> Self;
    /// The smaller; NaN likewise.
    fn min_or_nan(self, other: Self, infinity: Self) -> Self;
}

macro_rules! sign_magnitude {
    ($($bits:ty, $signed:ty;)*) => {$(
        impl SignMagnitude for $bits {
            #[inline(always)]
            fn max_or_nan(self, other: Self, infinity: Self) -> Self {
                unless_nan!($signed, self, other, infinity, Ord::max)
            }

            #[inline(always)]
            fn min_or_nan(self, other: Self, infinity: Self) -> Self {
                unless_nan!($signed, self, other, infinity, Ord::min)
            }
        }
    )*};
}

macro_rules! unless_nan {
    ($signed:ty, $a:ident, $b:ident, $infinity:ident, $pick:expr) => {{
        const MAGNITUDE: $signed = <$signed>::MAX;
        let flip = |bits: $signed| bits ^ ((bits >> (<$signed>::BITS - 1)) & MAGNITUDE);
        let (a, b) = ($a as $signed, $b as $signed);
        let picked = flip($pick(flip(a), flip(b)));
        let nan = Ord::max(a & MAGNITUDE, b & MAGNITUDE) > $infinity as $signed;
        (if nan { MAGNITUDE } else { picked }) as Self
    }};
}

sign_magnitude! {
    u8, i8;
    u16, i16;
}
