//! f16 arithmetic with the conversion instructions of x86-64.
//!
//! The instructions round to nearest even and treat subnormals as they are, whatever the
//! floating-point environment says: the same bits as [`super::narrow`], several times faster.

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use self::x86::kernels;

/// The f16 loops for a level and reduce operation, where they are better than the generic ones.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kernels(
    _level: super::level::Level,
    _op: ccl_plan::ReduceOp,
) -> Option<super::kernel::Kernels> {
    None
}
