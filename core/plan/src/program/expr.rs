//! Expressions over place, root, n and loop variables.

/// Index of an expression in [`crate::program::Program::exprs`].
pub type ExprId = u16;

/// A total integer function of place, root, n and the loop variables.
///
/// An expression may refer only to expressions before it, so evaluation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expr {
    /// `constant + rank·r + root·root + n·n + Σ vars[k]·v_k`, then `modulo`.
    Affine {
        /// The constant term.
        constant: i32,
        /// Coefficient of the rank's place.
        rank: i8,
        /// Coefficient of the root's place.
        root: i8,
        /// Coefficient of n.
        n: i8,
        /// Coefficients of the loop variables.
        vars: [i16; 3],
        /// What the sum is reduced by.
        modulo: Modulo,
    },
    /// The lowest set bit of an expression's value; 0 for 0.
    LowBit(ExprId),
    /// The smaller of two.
    Min(ExprId, ExprId),
    /// The larger of two.
    Max(ExprId, ExprId),
    /// The sum of two.
    Add(ExprId, ExprId),
    /// Bitwise exclusive or of two.
    Xor(ExprId, ExprId),
    /// A multiple.
    Mul(ExprId, i32),
    /// The quotient rounded down; the divisor is at least 1.
    Div(ExprId, i32),
    /// The remainder, never negative; the divisor is at least 1.
    Mod(ExprId, i32),
    /// The remainder by n, never negative.
    ModN(ExprId),
    /// Bitwise and of two.
    And(ExprId, ExprId),
    /// 2 to the power of an expression's value; 0 unless that is in 0..=62.
    Pow2(ExprId),
    /// How many zero bits lie below the lowest set one; 0 for 0.
    Zeros(ExprId),
}

/// What an affine sum is reduced by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Modulo {
    /// Nothing.
    None = 0,
    /// The number of ranks; the result is never negative.
    N = 1,
}

/// What expressions may refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vars {
    /// The rank's place.
    pub place: i64,
    /// The root's place, or the peer's for send and recv.
    pub root: i64,
    /// The number of ranks.
    pub n: i64,
    /// The loop variables.
    pub v: [i64; 3],
}

/// A loop bound: `constant + n·n + rank·r + Σ vars[k]·v_k` over the outer loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bound {
    /// The constant term.
    pub constant: i32,
    /// Coefficient of n.
    pub n: i8,
    /// Coefficient of the rank's place.
    pub rank: i8,
    /// Coefficients of the two outer loop variables.
    pub vars: [i8; 2],
}

impl Bound {
    /// A constant bound.
    pub const fn constant(constant: i32) -> Bound {
        Bound { constant, n: 0, rank: 0, vars: [0; 2] }
    }

    /// n plus a constant.
    pub const fn n_plus(constant: i32) -> Bound {
        Bound { constant, n: 1, rank: 0, vars: [0; 2] }
    }

    /// The rank's place plus a constant.
    pub const fn rank_plus(constant: i32) -> Bound {
        Bound { constant, n: 0, rank: 1, vars: [0; 2] }
    }

    /// The bound's value.
    pub fn value(&self, vars: &Vars) -> i64 {
        i64::from(self.constant)
            + i64::from(self.n) * vars.n
            + i64::from(self.rank) * vars.place
            + i64::from(self.vars[0]) * vars.v[0]
            + i64::from(self.vars[1]) * vars.v[1]
    }
}

impl Expr {
    /// A constant.
    pub const fn constant(constant: i32) -> Expr {
        Expr::Affine { constant, rank: 0, root: 0, n: 0, vars: [0; 3], modulo: Modulo::None }
    }

    /// The place `offset` further on, around the order.
    pub const fn rank_plus(offset: i32) -> Expr {
        Expr::Affine { constant: offset, rank: 1, root: 0, n: 0, vars: [0; 3], modulo: Modulo::N }
    }

    /// The root's place.
    pub const fn root() -> Expr {
        Expr::Affine { constant: 0, rank: 0, root: 1, n: 0, vars: [0; 3], modulo: Modulo::None }
    }

    /// The value of expression `id` of `exprs`. Wraps on overflow; an unknown id is 0 (the checker
    /// refuses such programs).
    pub fn value(exprs: &[Expr], id: ExprId, vars: &Vars) -> i64 {
        let Some(expr) = exprs.get(usize::from(id)) else { return 0 };
        match *expr {
            Expr::Affine { constant, rank, root, n, vars: coefficients, modulo } => {
                let mut sum = i64::from(constant)
                    + i64::from(rank) * vars.place
                    + i64::from(root) * vars.root
                    + i64::from(n) * vars.n;
                for (coefficient, v) in coefficients.iter().zip(&vars.v) {
                    sum += i64::from(*coefficient) * v;
                }
                match modulo {
                    Modulo::None => sum,
                    Modulo::N => wrap(sum, vars.n),
                }
            }
            Expr::LowBit(a) => {
                let a = Expr::value(exprs, a, vars);
                a & a.wrapping_neg()
            }
            Expr::Min(a, b) => Expr::value(exprs, a, vars).min(Expr::value(exprs, b, vars)),
            Expr::Max(a, b) => Expr::value(exprs, a, vars).max(Expr::value(exprs, b, vars)),
            Expr::Add(a, b) => Expr::value(exprs, a, vars).wrapping_add(Expr::value(exprs, b, vars)),
            Expr::Xor(a, b) => Expr::value(exprs, a, vars) ^ Expr::value(exprs, b, vars),
            Expr::Mul(a, factor) => Expr::value(exprs, a, vars).wrapping_mul(i64::from(factor)),
            Expr::Div(a, divisor) => Expr::value(exprs, a, vars).div_euclid(i64::from(divisor.max(1))),
            Expr::Mod(a, divisor) => Expr::value(exprs, a, vars).rem_euclid(i64::from(divisor.max(1))),
            Expr::ModN(a) => wrap(Expr::value(exprs, a, vars), vars.n),
            Expr::And(a, b) => Expr::value(exprs, a, vars) & Expr::value(exprs, b, vars),
            Expr::Pow2(a) => power(Expr::value(exprs, a, vars)),
            Expr::Zeros(a) => zeros(Expr::value(exprs, a, vars)),
        }
    }

    /// The same expression over other expressions.
    pub(crate) fn map(&self, mut f: impl FnMut(ExprId) -> ExprId) -> Expr {
        match *self {
            Expr::Affine { .. } => *self,
            Expr::LowBit(a) => Expr::LowBit(f(a)),
            Expr::Min(a, b) => Expr::Min(f(a), f(b)),
            Expr::Max(a, b) => Expr::Max(f(a), f(b)),
            Expr::Add(a, b) => Expr::Add(f(a), f(b)),
            Expr::Xor(a, b) => Expr::Xor(f(a), f(b)),
            Expr::Mul(a, factor) => Expr::Mul(f(a), factor),
            Expr::Div(a, divisor) => Expr::Div(f(a), divisor),
            Expr::Mod(a, divisor) => Expr::Mod(f(a), divisor),
            Expr::ModN(a) => Expr::ModN(f(a)),
            Expr::And(a, b) => Expr::And(f(a), f(b)),
            Expr::Pow2(a) => Expr::Pow2(f(a)),
            Expr::Zeros(a) => Expr::Zeros(f(a)),
        }
    }

    /// The expressions this one refers to.
    pub fn references(&self) -> impl Iterator<Item = ExprId> {
        let (a, b) = match *self {
            Expr::Affine { .. } => (None, None),
            Expr::LowBit(a)
            | Expr::Mul(a, _)
            | Expr::Div(a, _)
            | Expr::Mod(a, _)
            | Expr::ModN(a)
            | Expr::Pow2(a)
            | Expr::Zeros(a) => (Some(a), None),
            Expr::Min(a, b) | Expr::Max(a, b) | Expr::Add(a, b) | Expr::Xor(a, b) | Expr::And(a, b) => {
                (Some(a), Some(b))
            }
        };
        a.into_iter().chain(b)
    }
}

/// 2 to this power; 0 if it does not fit.
pub(super) fn power(exponent: i64) -> i64 {
    if (0..=62).contains(&exponent) { 1 << exponent } else { 0 }
}

/// The zero bits below the lowest set one.
pub(super) fn zeros(value: i64) -> i64 {
    if value == 0 { 0 } else { i64::from(value.trailing_zeros()) }
}

/// `value` modulo `n`, never negative; cheap when `value` is near the range already.
fn wrap(value: i64, n: i64) -> i64 {
    if (0..n).contains(&value) {
        value
    } else if (n..2 * n).contains(&value) {
        value - n
    } else if (-n..0).contains(&value) {
        value + n
    } else {
        value.rem_euclid(n.max(1))
    }
}
