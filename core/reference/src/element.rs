//! The arithmetic of one element, on its bits, by definition rather than by trick.
//!
//! An element is the low bits of a `u64`. Floats are decoded to binary64, which holds every one of
//! them exactly; one operation is done there and rounded back to nearest even. (Rounding twice is
//! harmless: binary64 has more than twice the bits of every other float, plus two.) Results that are NaN
//! are the NaN with all bits set but the sign; f8 overflows to the largest finite number.

use ccl_plan::{Dtype, ReduceOp};

/// a op b; the sum for averages and pre-multiplied sums.
pub fn combine(dtype: Dtype, op: ReduceOp, a: u64, b: u64) -> u64 {
    if !dtype.is_float() {
        return combine_integers(dtype, op, a, b);
    }
    let (x, y) = (decode(dtype, a), decode(dtype, b));
    if x.is_nan() || y.is_nan() {
        return nan(dtype);
    }
    match op {
        ReduceOp::Max if x > y || (x == y && x.is_sign_positive()) => a,
        ReduceOp::Min if x < y || (x == y && x.is_sign_negative()) => a,
        ReduceOp::Max | ReduceOp::Min => b,
        ReduceOp::Product => encode(dtype, x * y),
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::PreMulSum => encode(dtype, x + y),
    }
}

/// a multiplied by the scalar, which is rounded to the dtype first.
pub fn scale(dtype: Dtype, a: u64, scalar: f64) -> u64 {
    combine(dtype, ReduceOp::Product, a, from_scalar(dtype, scalar))
}

/// a divided by n; integers truncate.
pub fn divide(dtype: Dtype, a: u64, n: u32) -> u64 {
    if dtype.is_float() {
        return encode(dtype, decode(dtype, a) / f64::from(n));
    }
    truncate(dtype, (integer(dtype, a) / i128::from(n)) as u64)
}

/// The element nearest to a scalar; integers truncate and saturate.
pub fn from_scalar(dtype: Dtype, scalar: f64) -> u64 {
    match dtype {
        Dtype::I8 => u64::from(scalar as i8 as u8),
        Dtype::U8 => u64::from(scalar as u8),
        Dtype::I32 => u64::from(scalar as i32 as u32),
        Dtype::U32 => u64::from(scalar as u32),
        Dtype::I64 => scalar as i64 as u64,
        Dtype::U64 => scalar as u64,
        _ => encode(dtype, scalar),
    }
}

/// The bits of an element in memory.
pub fn load(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The value of a float.
pub fn decode(dtype: Dtype, bits: u64) -> f64 {
    let format = match dtype {
        Dtype::F64 => return f64::from_bits(bits),
        Dtype::F32 => return f64::from(f32::from_bits(bits as u32)),
        _ => Format::of(dtype),
    };
    let sign = if bits >> (format.mantissa + format.exponent) & 1 == 1 { -1.0 } else { 1.0 };
    let magnitude = bits & format.magnitude();
    let fraction = (magnitude & ((1 << format.mantissa) - 1)) as f64;
    let exponent = (magnitude >> format.mantissa) as i32;
    if magnitude > format.largest {
        return if Some(magnitude) == format.infinity { sign * f64::INFINITY } else { f64::NAN };
    }
    let one = f64::from(1u32 << format.mantissa);
    let (significand, exponent) = if exponent == 0 { (fraction, 1) } else { (one + fraction, exponent) };
    sign * significand * power_of_two(exponent - format.bias() - format.mantissa)
}

/// The float nearest to a value.
pub fn encode(dtype: Dtype, value: f64) -> u64 {
    if value.is_nan() {
        return nan(dtype);
    }
    let format = match dtype {
        Dtype::F64 => return value.to_bits(),
        Dtype::F32 => return u64::from((value as f32).to_bits()),
        _ => Format::of(dtype),
    };
    let sign = u64::from(value.is_sign_negative()) << (format.mantissa + format.exponent);
    let lowest = 1 - format.bias();
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(lowest);
    if exponent > format.bias() + 1 {
        return sign | format.overflow;
    }
    let units = (value.abs() / power_of_two(exponent - format.mantissa)).round_ties_even() as u64;
    // One more exponent is as many more units as there are in the lowest binade.
    let magnitude = (((exponent - lowest) as u64) << format.mantissa) + units;
    sign | if magnitude > format.largest { format.overflow } else { magnitude }
}

/// The NaN that operations give.
pub fn nan(dtype: Dtype) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size_bytes()) >> 1
}

/// A float format narrower than binary32.
struct Format {
    /// Explicit bits of the significand.
    mantissa: i32,
    /// Bits of the exponent.
    exponent: i32,
    /// Magnitude of the largest finite number.
    largest: u64,
    /// Magnitude of infinity, if there is one.
    infinity: Option<u64>,
    /// Magnitude of results larger than `largest`.
    overflow: u64,
}

impl Format {
    fn of(dtype: Dtype) -> Format {
        let (mantissa, exponent, largest, infinity) = match dtype {
            Dtype::F16 => (10, 5, 0x7bff, Some(0x7c00)),
            Dtype::Bf16 => (7, 8, 0x7f7f, Some(0x7f80)),
            Dtype::F8E4m3 => (3, 4, 0x7e, None),
            _ => (2, 5, 0x7b, Some(0x7c)),
        };
        let saturates = dtype.size_bytes() == 1;
        let overflow = if saturates { largest } else { largest + 1 };
        Format { mantissa, exponent, largest, infinity, overflow }
    }

    fn bias(&self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn magnitude(&self) -> u64 {
        (1 << (self.mantissa + self.exponent)) - 1
    }
}

fn power_of_two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

fn combine_integers(dtype: Dtype, op: ReduceOp, a: u64, b: u64) -> u64 {
    let (x, y) = (integer(dtype, a), integer(dtype, b));
    let result = match op {
        ReduceOp::Product => x.wrapping_mul(y),
        ReduceOp::Max => x.max(y),
        ReduceOp::Min => x.min(y),
        _ => x + y,
    };
    truncate(dtype, result as u64)
}

/// The value of an integer.
fn integer(dtype: Dtype, bits: u64) -> i128 {
    match dtype {
        Dtype::I8 => i128::from(bits as i8),
        Dtype::I32 => i128::from(bits as i32),
        Dtype::I64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn truncate(dtype: Dtype, bits: u64) -> u64 {
    bits & (u64::MAX >> (64 - 8 * dtype.size_bytes()))
}
