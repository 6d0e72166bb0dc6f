//! ccl: collective communication for people who train and serve models on many devices.
//!
//! A [`Communicator`] is one rank's handle on a fixed set of ranks, which are processes (on any
//! number of hosts) or threads of one process. All ranks make the same calls in the same order:
//!
//! ```
//! # fn main() -> ccl::Result<()> {
//! // Four ranks, each a thread of this process. Processes use `Communicator::from_env()`.
//! ccl::local::run(4, |comm| {
//!     let mine = vec![comm.rank().0 as f32; 1000];
//!     let mut sum = vec![0.0; 1000];
//!     comm.all_reduce(&mine, &mut sum, ccl::ReduceOp::Sum)?;
//!     assert_eq!(sum, vec![6.0; 1000]);
//!     Ok(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! - Every wait has a deadline (`CCL_TIMEOUT`), and every [`Error`] names the rank, the peer, the
//!   operation, the cause and what to do. All ranks report the same culprit.
//! - Buffers are borrowed until the call that uses them is complete: a blocking call, a [`group`], a
//!   [`Communicator::scope`]. Safe code cannot hand over a buffer that goes away.
//! - Ranks that ask for different things get an error that shows both, never a hang or wrong data.
//! - The same inputs on the same ranks give the same bits, on every rank.
//!
//! # Where to look
//!
//! [`Request`] has every call; [`config`] every setting; [`error`] says how errors are sorted.
//! Plans, the programs that carry out collectives, are in the crate `ccl-plan`.
//!
//! # What it does not do
//!
//! It starts no processes (launchers do) and does not encrypt. Ranks work on host memory unless `CCL_DEVICE` gives them
//! a CUDA device; nothing of CUDA is loaded before that.

pub mod bootstrap;
mod comm;
pub mod config;
pub mod control;
pub mod discover;
mod element;
pub mod error;
pub mod exec;
pub mod log;
pub mod memory;
pub mod observe;
mod request;
mod stream;
pub mod transport;

pub use ccl_plan as plan;
pub use ccl_plan::{Algorithm, Collective, Dtype, Level, Rank, ReduceOp};
pub use ccl_reference as reference;
pub use half::{bf16, f16};

pub use bootstrap::UniqueId;
pub use comm::group::{Group, group};
pub use comm::scope::Scope;
pub use comm::{Aborter, Communicator, Explanation, Joining, JoiningState, local, network, tuner};
pub use config::Config;
pub use element::{Element, F8E4m3, F8E5m2, Reduce};
pub use error::{Error, Fault, Result};
pub use exec::device::{
    Addresses, DeviceBuffer, DeviceInfo, DeviceWindow, KernelSupply, NoDevice, Registration, devices,
    kernel_supply,
};
pub use memory::{Memory, Window, mem_alloc};
pub use request::{Blocks, Buffers, Request};
pub use stream::Stream;
