//! Floats narrower than binary32: conversion by integer arithmetic, and their [`Element`]s.
//!
//! Both conversions are free of branches, so that loops over them vectorise at every level.

use super::element::Element;
use super::lanes::Word;
use super::ordered::SignMagnitude;

/// A float format of at most 16 bits: a sign, then exponent bits, then `MANTISSA` bits.
pub(super) trait Format {
    /// Explicit bits of the significand.
    const MANTISSA: u32;
    /// What is added to exponents.
    const BIAS: u32;
    /// All bits but the sign.
    const MAGNITUDE: u32;
    /// The largest magnitude that is not NaN.
    const INFINITY: u32;
    /// The magnitude of a result beyond the largest finite number.
    const OVERFLOW: u32;

    /// Bits that binary32's significand has more.
    const SHIFT: u32 = 23 - Self::MANTISSA;
    /// What binary32's biased exponents have more, as bits of a binary32.
    const REBIAS: u32 = (127 - Self::BIAS) << 23;
}

/// The value of the low bits of `bits`.
#[inline(always)]
pub(super) fn widen<F: Format>(bits: u32) -> f32 {
    let magnitude = bits & F::MAGNITUDE;
    let normal = (magnitude << F::SHIFT) + F::REBIAS;
    // A subnormal is a small integer times the smallest of them.
    let smallest = f32::from_bits((128 - F::BIAS - F::MANTISSA) << 23);
    let subnormal = (magnitude as i32 as f32 * smallest).to_bits();
    let number = if magnitude >> F::MANTISSA == 0 { subnormal } else { normal };
    let special = if magnitude > F::INFINITY { NAN_BITS } else { INFINITY_BITS };
    let has_infinity = F::INFINITY == F::MAGNITUDE >> F::MANTISSA << F::MANTISSA;
    let is_special = magnitude > F::INFINITY || (has_infinity && magnitude == F::INFINITY);
    let sign = (bits & (F::MAGNITUDE + 1)) << (31 - F::MAGNITUDE.count_ones());
    f32::from_bits(sign | if is_special { special } else { number })
}

/// The bits of the nearest number, ties to even; the NaN with all bits set but the sign if it is one.
#[inline(always)]
pub(super) fn narrow<F: Format>(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & (u32::MAX >> 1);
    // Adding just under half a unit carries into the unit exactly when rounding up is due.
    let half = (1 << (F::SHIFT - 1)) - 1 + (magnitude >> F::SHIFT & 1);
    let normal = (magnitude + half).wrapping_sub(F::REBIAS) >> F::SHIFT;
    // Adding the power of two whose unit is the smallest subnormal rounds to multiples of it.
    let unit = f32::from_bits((128 - F::BIAS - F::MANTISSA + 23) << 23);
    let subnormal = (f32::from_bits(magnitude) + unit).to_bits().wrapping_sub(unit.to_bits());
    let number = if magnitude < F::REBIAS + (1 << 23) { subnormal } else { normal };
    let number = (number as i32).min(F::OVERFLOW as i32) as u32;
    let sign = bits >> (31 - F::MAGNITUDE.count_ones()) & (F::MAGNITUDE + 1);
    if magnitude > INFINITY_BITS { F::MAGNITUDE } else { sign | number }
}

macro_rules! narrow_float {
    ($($(#[$doc:meta])* $name:ident($bits:ty) in $lanes:ty: $widen:expr, $narrow:expr, $infinity:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name(pub(super) $bits);

        impl $name {
            #[inline(always)]
            pub(super) fn wide(self) -> f32 {
                $widen(u32::from(self.0))
            }

            #[inline(always)]
            pub(super) fn nearest(value: f32) -> Self {
                $name($narrow(value) as $bits)
            }
        }

        impl Element for $name {
            type Lanes = $lanes;

            #[inline(always)]
            fn into_bits(self) -> u64 {
                u64::from(self.0)
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                $name(bits as $bits)
            }

            fn from_scalar(scalar: f64) -> Self {
                $name::nearest(to_odd(scalar))
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $name::nearest(self.wide() + other.wide())
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                $name::nearest(self.wide() * other.wide())
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                $name(self.0.max_or_nan(other.0, $infinity as $bits))
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                $name(self.0.min_or_nan(other.0, $infinity as $bits))
            }

            #[inline(always)]
            fn divided(self, n: u32) -> Self {
                $name::nearest(self.wide() / n as f32)
            }
        }
    )*};
}

narrow_float! {
    /// IEEE 754 binary16.
    F16(u16) in F16: widen::<Half>, narrow::<Half>, Half::INFINITY;
    /// The upper half of a binary32.
    Bf16(u16) in Word<Bf16, 2>: widen_bf16, narrow_bf16, INFINITY_BITS >> 16;
    /// OCP E4M3: no infinities, one NaN of each sign.
    F8E4m3(u8) in F8E4m3: widen::<E4m3>, narrow::<E4m3>, E4m3::INFINITY;
    /// OCP E5M2: the upper half of a binary16.
    F8E5m2(u8) in F8E5m2: widen::<E5m2>, narrow::<E5m2>, E5m2::INFINITY;
}

/// binary16.
pub(super) struct Half;

impl Format for Half {
    const MANTISSA: u32 = 10;
    const BIAS: u32 = 15;
    const MAGNITUDE: u32 = 0x7fff;
    const INFINITY: u32 = 0x7c00;
    const OVERFLOW: u32 = 0x7c00;
}

/// OCP 8-bit E4M3.
pub(super) struct E4m3;

impl Format for E4m3 {
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const MAGNITUDE: u32 = 0x7f;
    const INFINITY: u32 = 0x7e;
    const OVERFLOW: u32 = 0x7e;
}

/// OCP 8-bit E5M2.
pub(super) struct E5m2;

impl Format for E5m2 {
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const MAGNITUDE: u32 = 0x7f;
    const INFINITY: u32 = 0x7c;
    const OVERFLOW: u32 = 0x7b;
}

#[inline(always)]
fn widen_bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

#[inline(always)]
fn narrow_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded }
}

/// A binary32 that rounds to any narrower float as `value` itself would: if it is not exact, it is
/// the neighbour whose last bit is 1, so that no tie is mistaken.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let exact = f64::from(near);
    if exact == value || value.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    let outward = exact.abs() < value.abs();
    f32::from_bits(if outward { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

/// The bits of binary32's infinity.
const INFINITY_BITS: u32 = 0x7f80_0000;

/// The bits of binary32's NaN.
const NAN_BITS: u32 = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use ccl_plan::Dtype;

    use super::*;
    use crate::reference::element as naive;

    #[test]
    fn every_value_widens_exactly() {
        every(Dtype::F16, |bits| F16(bits as u16).wide());
        every(Dtype::Bf16, |bits| Bf16(bits as u16).wide());
        every(Dtype::F8E4m3, |bits| F8E4m3(bits as u8).wide());
        every(Dtype::F8E5m2, |bits| F8E5m2(bits as u8).wide());
    }

    fn every(dtype: Dtype, wide: impl Fn(u64) -> f32) {
        for bits in 0..1 << (8 * dtype.size_bytes()) {
            let (got, expected) = (wide(bits), naive::decode(dtype, bits) as f32);
            let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
            assert!(same, "{dtype} {bits:#x}: {got} instead of {expected}");
        }
    }

    #[test]
    fn every_rounding_is_to_nearest_even() {
        rounds(Dtype::F16, |value| F16::nearest(value).into_bits());
        rounds(Dtype::Bf16, |value| Bf16::nearest(value).into_bits());
        rounds(Dtype::F8E4m3, |value| F8E4m3::nearest(value).into_bits());
        rounds(Dtype::F8E5m2, |value| F8E5m2::nearest(value).into_bits());
    }

    /// A sweep of all binary32, and the neighbourhood of every number and every tie.
    fn rounds(dtype: Dtype, nearest: impl Fn(f32) -> u64) {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            let (got, expected) = (nearest(value), naive::encode(dtype, f64::from(value)));
            assert_eq!(got, expected, "{dtype} from {value:e} ({bits:#x})");
        };
        (0..=u32::MAX).step_by(2039).for_each(check);
        for bits in 0..1u64 << (8 * dtype.size_bytes()) {
            let (value, next) = (naive::decode(dtype, bits), naive::decode(dtype, bits + 1));
            for point in [value, (value + next) / 2.0, value * 1.5] {
                let near = (point as f32).to_bits();
                (-2..=2).for_each(|step| check(near.wrapping_add_signed(step)));
            }
        }
    }

    #[test]
    fn scalars_round_once() {
        // Just above a tie of f16: rounding to binary32 first would make it the tie.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(F16::from_scalar(above).0, 0x3c01);
        assert_eq!(F16::from_scalar(1.0 + 2f64.powi(-11)).0, 0x3c00);
        assert_eq!(F16::from_scalar(1e300).0, 0x7c00);
        assert_eq!(F8E4m3::from_scalar(-1e300).0, 0xfe);
        assert_eq!(Bf16::from_scalar(f64::NEG_INFINITY).0, 0xff80);
        assert_eq!(F16::from_scalar(f64::NAN).0, 0x7fff);
    }
}
