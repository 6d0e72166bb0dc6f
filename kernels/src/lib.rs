//! What runs on devices: the interpreter of programs, and where its images come from.
//!
//! One kernel family carries out every program that [`ccl_plan`] makes. It is a template over dtype, reduce operation
//! and protocol, never over algorithm: [`shape`] says which kernel serves a call and what it needs, [`layout`] what it
//! finds in memory. The sources are in `kernels/cuda`; [`image`] carries them and what the build made of them, [`mod@unit`]
//! says what is compiled for one kernel where that is nothing, and [`target`] which code a device runs.
//!
//! ```
//! use ccl_kernels::shape::{self, Protocol};
//! use ccl_plan::{Algorithm, Collective, Dtype, Place, Plan, Rank, ReduceOp};
//!
//! let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 4).unwrap();
//! let program = plan.program(Place(1), Place(0)).check(4).unwrap();
//! let kernel = shape::kernel_name(program.collective, Dtype::Bf16, ReduceOp::Average, Protocol::Ll);
//! assert_eq!(kernel, "ccl_interpret_bf16_sum_ll");
//! let edges = shape::edges(&program, 4, Rank(1), Rank(0), None);
//! assert_eq!(edges.len(), 2);
//! ```
//!
//! Deliberately not here: memory, streams and launches (`ccl-cuda`), and the choice of plans and protocols (`ccl`).

pub mod fatbin;
pub mod image;
pub mod layout;
pub mod shape;
pub mod special;
pub mod target;
pub mod unit;

#[cfg(test)]
mod tests {
    #[test]
    fn a_launch_passes_at_most_128_bytes() {
        let sizes = [size_of::<crate::layout::LaunchArgs>(), size_of::<crate::special::SpecialArgs>()];
        assert!(sizes.iter().all(|bytes| *bytes <= 128), "{sizes:?}");
    }
}
