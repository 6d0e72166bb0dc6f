//! Element types and reduce operations.

use core::fmt;
use core::str::FromStr;

/// The type of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Dtype {
    /// 8-bit signed integer.
    I8 = 0,
    /// 8-bit unsigned integer.
    U8 = 1,
    /// 32-bit signed integer.
    I32 = 2,
    /// 32-bit unsigned integer.
    U32 = 3,
    /// 64-bit signed integer.
    I64 = 4,
    /// 64-bit unsigned integer.
    U64 = 5,
    /// IEEE 754 binary16.
    F16 = 6,
    /// IEEE 754 binary32.
    F32 = 7,
    /// IEEE 754 binary64.
    F64 = 8,
    /// bfloat16: the upper half of a binary32.
    Bf16 = 9,
    /// OCP 8-bit float with 4 exponent and 3 mantissa bits, no infinities.
    F8E4m3 = 10,
    /// OCP 8-bit float with 5 exponent and 2 mantissa bits.
    F8E5m2 = 11,
}

impl Dtype {
    /// Every dtype.
    pub const ALL: [Dtype; 12] = [
        Dtype::I8,
        Dtype::U8,
        Dtype::I32,
        Dtype::U32,
        Dtype::I64,
        Dtype::U64,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
        Dtype::Bf16,
        Dtype::F8E4m3,
        Dtype::F8E5m2,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 | Dtype::F8E4m3 | Dtype::F8E5m2 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 => 8,
        }
    }

    /// The name used in tables, texts and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::I8 => "int8",
            Dtype::U8 => "uint8",
            Dtype::I32 => "int32",
            Dtype::U32 => "uint32",
            Dtype::I64 => "int64",
            Dtype::U64 => "uint64",
            Dtype::F16 => "half",
            Dtype::F32 => "float",
            Dtype::F64 => "double",
            Dtype::Bf16 => "bfloat16",
            Dtype::F8E4m3 => "f8e4m3",
            Dtype::F8E5m2 => "f8e5m2",
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::F32 | Dtype::F64 | Dtype::Bf16 | Dtype::F8E4m3 | Dtype::F8E5m2)
    }

    /// The dtype with this discriminant.
    pub fn from_code(code: u8) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| *dtype as u8 == code)
    }
}

/// How contributions are combined, element by element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum = 0,
    /// a × b; integers wrap.
    Product = 1,
    /// The larger; NaN if either is NaN.
    Max = 2,
    /// The smaller; NaN if either is NaN.
    Min = 3,
    /// The sum divided by n once, when complete (integers truncate towards zero).
    Average = 4,
    /// The sum of the contributions, each multiplied by the caller's scalar first.
    PreMulSum = 5,
}

impl ReduceOp {
    /// Every reduce operation.
    pub const ALL: [ReduceOp; 6] = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Average,
        ReduceOp::PreMulSum,
    ];

    /// The name used in tables, texts and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Average => "avg",
            ReduceOp::PreMulSum => "mulsum",
        }
    }

    /// The reduce operation with this discriminant.
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        ReduceOp::ALL.iter().copied().find(|op| *op as u8 == code)
    }
}

/// A name that is none of the known ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownName;

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown name")
    }
}

impl core::error::Error for UnknownName {}

impl FromStr for Dtype {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Dtype::ALL.iter().copied().find(|dtype| dtype.name() == text).ok_or(UnknownName)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        ReduceOp::ALL.iter().copied().find(|op| op.name() == text).ok_or(UnknownName)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
