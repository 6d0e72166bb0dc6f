//! From the integers that test data is computed in to elements.
//!
//! Expected results are computed in `i64`, where every fold is exact. What an `i64` stands for is
//! its [`Domain`].

use ccl_plan::{Dtype, ReduceOp};

use super::element;

/// What an `i64` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Domain {
    /// An integer of the dtype, or any bits. Folding wraps like the dtype.
    Integer,
    /// An unsigned 64-bit integer less 2⁶³, in the same order.
    Shifted,
    /// A small whole number, a float of which at most `most` add up.
    Whole {
        /// The largest magnitude of a sum.
        most: i64,
    },
    /// ±2ᵉ as `e << 16` plus 1 if negative, so that products are sums.
    Power {
        /// The largest magnitude of e.
        most: i64,
    },
    /// A float's magnitude bits, negative if it is: the order of numbers.
    Ordered,
}

/// What is done to the fold before it is stored.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Last {
    /// Nothing.
    Keep,
    /// Division by n.
    Divide(u32),
    /// Multiplication by the scalar, which distributes over exact sums.
    Scale(f64),
}

/// Writes `i64`s of a domain as elements.
#[derive(Clone, Debug)]
pub(super) struct Codec {
    dtype: Dtype,
    domain: Domain,
    last: Last,
    /// The elements of all values of a narrow float's domain.
    table: Vec<u16>,
}

impl Codec {
    pub(super) fn new(dtype: Dtype, domain: Domain, last: Last) -> Codec {
        let mut codec = Codec { dtype, domain, last, table: Vec::new() };
        if dtype.size_bytes() <= 2 {
            codec.table = codec.values().map(|value| codec.float(value) as u16).collect();
        }
        codec
    }

    /// Writes `values` to `out`, which is as many elements long.
    pub(super) fn write(&self, values: &[i64], out: &mut [u8]) {
        match self.domain {
            Domain::Integer => self.write_integers(values, out),
            Domain::Shifted => self.store(values, out, |value| (value ^ i64::MIN) as u64),
            Domain::Ordered => {
                let sign = 1 << (8 * self.dtype.size_bytes() - 1);
                self.store(values, out, |value| value.unsigned_abs() | if value < 0 { sign } else { 0 });
            }
            Domain::Whole { .. } | Domain::Power { .. } if self.table.is_empty() => {
                self.store(values, out, |value| self.float(value));
            }
            Domain::Whole { most } => {
                self.store(values, out, |value| u64::from(self.table[(value + most) as usize]));
            }
            Domain::Power { most } => self.store(values, out, |value| {
                u64::from(self.table[(((value >> 16) + most) << 1 | value & 1) as usize])
            }),
        }
    }

    fn write_integers(&self, values: &[i64], out: &mut [u8]) {
        match self.last {
            Last::Keep => self.store(values, out, |value| value as u64),
            Last::Scale(scalar) => {
                let scalar = element::from_scalar(self.dtype, scalar);
                self.store(values, out, |value| (value as u64).wrapping_mul(scalar));
            }
            Last::Divide(n) => self.store(values, out, |value| {
                let n = i64::from(n);
                match self.dtype {
                    Dtype::I8 => (i64::from(value as i8) / n) as u64,
                    Dtype::I32 => (i64::from(value as i32) / n) as u64,
                    Dtype::I64 => (value / n) as u64,
                    Dtype::U8 => (i64::from(value as u8) / n) as u64,
                    Dtype::U32 => (i64::from(value as u32) / n) as u64,
                    _ => value as u64 / n as u64,
                }
            }),
        }
    }

    fn store(&self, values: &[i64], out: &mut [u8], bits: impl Fn(i64) -> u64) {
        match self.dtype.size_bytes() {
            1 => store_each::<1>(values, out, bits),
            2 => store_each::<2>(values, out, bits),
            4 => store_each::<4>(values, out, bits),
            _ => store_each::<8>(values, out, bits),
        }
    }

    /// The values of the domain in the order of the table.
    fn values(&self) -> Box<dyn Iterator<Item = i64>> {
        match self.domain {
            Domain::Whole { most } => Box::new(-most..=most),
            Domain::Power { most } => Box::new((-most..=most).flat_map(|e| [e << 16, (e << 16) + 1])),
            _ => Box::new(std::iter::empty()),
        }
    }

    fn float(&self, value: i64) -> u64 {
        let number = match self.domain {
            Domain::Power { .. } => power(value >> 16, value & 1),
            _ => value as f64,
        };
        let number = match self.last {
            Last::Keep => number,
            Last::Divide(n) => number / f64::from(n),
            Last::Scale(scalar) => {
                number * element::decode(self.dtype, element::from_scalar(self.dtype, scalar))
            }
        };
        element::encode(self.dtype, number)
    }
}

/// The domain in which contributions of a dtype to a reduce operation are made; any bits if `op` is
/// `None`.
pub(super) fn domain(dtype: Dtype, op: Option<ReduceOp>) -> Domain {
    let Some(op) = op else { return Domain::Integer };
    let ordered = matches!(op, ReduceOp::Max | ReduceOp::Min);
    match (dtype.is_float(), op) {
        (false, _) if dtype == Dtype::U64 && ordered => Domain::Shifted,
        (false, _) => Domain::Integer,
        (true, ReduceOp::Product) => Domain::Power { most: largest_exponent(dtype) },
        (true, _) if ordered => Domain::Ordered,
        (true, _) => Domain::Whole { most: largest_whole(dtype) },
    }
}

/// Every whole number up to this is a float of the dtype.
fn largest_whole(dtype: Dtype) -> i64 {
    match dtype {
        Dtype::F16 => 1 << 11,
        Dtype::Bf16 => 1 << 8,
        Dtype::F8E4m3 => 1 << 4,
        Dtype::F8E5m2 => 1 << 3,
        Dtype::F32 => 1 << 24,
        _ => 1 << 53,
    }
}

/// Every power of two between 2⁻ᵉ and 2ᵉ is a normal float of the dtype.
fn largest_exponent(dtype: Dtype) -> i64 {
    match dtype {
        Dtype::F16 | Dtype::F8E5m2 => 14,
        Dtype::F8E4m3 => 6,
        Dtype::Bf16 | Dtype::F32 => 126,
        _ => 1022,
    }
}

/// ±2ᵉ.
fn power(exponent: i64, negative: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52 | (negative as u64) << 63)
}

fn store_each<const SIZE: usize>(values: &[i64], out: &mut [u8], bits: impl Fn(i64) -> u64) {
    for (value, out) in values.iter().zip(out.as_chunks_mut::<SIZE>().0) {
        out.copy_from_slice(&bits(*value).to_le_bytes()[..SIZE]);
    }
}
