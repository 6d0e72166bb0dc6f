//! The folds that kernels do, for tests to compare.

use std::ffi::c_double;

use ccl_plan::{Dtype, ReduceOp};

/// What is applied beside a fold.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoldFinish {
    /// Multiply input i by `scalar` first for every bit i.
    pub scaled: u32,
    /// Rounded to the dtype first.
    pub scalar: f64,
    /// Divide the result by it; 0: do not.
    pub n: u32,
}

/// Folds one to four inputs of equal length from left to right as kernels do; 16 bytes at a time, or `by_element`.
/// `op` is sum, product, minimum or maximum; the others are sums with a finish.
///
/// # Panics
///
/// If there is another number of inputs, or they differ in length, or the operation is another.
pub fn fold(dtype: Dtype, op: ReduceOp, inputs: &[&[u8]], finish: FoldFinish, by_element: bool) -> Vec<u8> {
    let bytes = inputs.first().map_or(0, |input| input.len());
    assert!((1..=4).contains(&inputs.len()), "one to four inputs, not {}", inputs.len());
    assert!(inputs.iter().all(|input| input.len() == bytes), "inputs of equal length");
    assert!(bytes.is_multiple_of(dtype.size_bytes()), "whole elements");
    let mut out = vec![0; bytes];
    let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
    let call = Call {
        scaled: finish.scaled,
        n: finish.n,
        scalar: finish.scalar,
        inputs: pointers.as_ptr(),
        input_count: inputs.len() as u32,
        out: out.as_mut_ptr(),
        bytes: bytes as u64,
    };
    // SAFETY: every pointer is valid for as many bytes, whole elements, and the output is apart.
    let known = unsafe { ccl_emu_fold(dtype as u32, op as u32, &call, by_element) };
    assert!(known, "{dtype} {op}: kernels fold sums, products, minima and maxima");
    out
}

#[repr(C)]
struct Call {
    scaled: u32,
    n: u32,
    scalar: c_double,
    inputs: *const *const u8,
    input_count: u32,
    out: *mut u8,
    bytes: u64,
}

unsafe extern "C" {
    fn ccl_emu_fold(dtype: u32, op: u32, call: *const Call, by_element: bool) -> bool;
}
