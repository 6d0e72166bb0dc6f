//! Runs kernels without a device: every thread of every block is a fiber of one system thread.
//!
//! The kernels' own source is compiled as C++ (`kernels/cuda/ccl_device.h` says by which rules it is written). Each
//! access to memory that others may touch is a point where another fiber may run; which one is drawn from a seed, so a
//! failure can be repeated.
//!
//! ```
//! use ccl_kernels_emulator::{Emulation, Options, kernel};
//!
//! let mut words = vec![0u64; 1];
//! let args = [words.as_mut_ptr() as u64, 0, 3];
//! let bytes: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
//! let mut emulation = Emulation::new(Options { seed: 1, ..Options::default() });
//! // SAFETY: the kernel passes a token 3 times around 64 threads, by the one word, which lives longer.
//! unsafe { emulation.add(kernel("toy_token").unwrap(), 2, 32, 0, &bytes) }.unwrap();
//! emulation.run().unwrap();
//! assert_eq!(words[0], 3 * 64);
//! ```
//!
//! What is found: races that some order of accesses shows, hangs, threads that do not meet, stores without a fence
//! ([`Options::delays_stores`]), addresses outside of what was given ([`Options::allowed`], [`Guarded`]), copies of multicast
//! memory that are written at different times ([`Options::windows`]).
//!
//! What is not: loads that a device does too early, limits of registers and shared memory, blocks that a device would
//! not run at the same time, speed.

mod block;
mod delay;
mod dialect;
mod emulation;
mod fiber;
mod fold;
mod guarded;
mod kernel;
mod line;
mod meeting;
mod order;
mod random;
mod report;
mod watch;

pub use emulation::{Emulation, Options, Refused, Window};
pub use fold::{FoldFinish, fold};
pub use guarded::Guarded;
pub use kernel::{Kernel, kernel, kernels};
pub use order::Order;
pub use report::{Cause, Doing, Report, ThreadState};
