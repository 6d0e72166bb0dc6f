//! Special kernels: all-reduces that do what one plan's program does, without interpreting it.
//!
//! They do not use edges. Each rank owns memory that all others can write, which the host allocates, fills with zeros
//! and maps once; [`SpecialPeer`] says where it is. `kernels/cuda/special/special.h` has the same records.
//!
//! One launch on every rank, with equal numbers of blocks, `count` and flags, is one call; calls of a communicator
//! follow each other on every rank in the same order. A two-shot whose buffers do not lie in the same windows on all
//! ranks does nothing on any: see
//! [`SpecialServed`]. The kernels count their launches in [`SpecialArgs::epochs`], so
//! a captured one may be replayed.

use ccl_plan::{Algorithm, Dtype, ReduceOp};

use crate::shape::{dtype_name, fold_name};

/// What a special kernel computes, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Special {
    /// `all_reduce.one_shot`: lines to everybody, for short vectors.
    OneShot,
    /// `all_reduce.two_shot`: from window to window, for long vectors.
    TwoShot,
}

impl Special {
    /// Every special kernel.
    pub const ALL: [Special; 2] = [Special::OneShot, Special::TwoShot];

    /// The all-reduce algorithm whose bytes it gives.
    pub const fn algorithm(self) -> Algorithm {
        match self {
            Special::OneShot => Algorithm::OneShot,
            Special::TwoShot => Algorithm::TwoShot,
        }
    }

    /// The name of the kernel.
    pub fn kernel_name(self, dtype: Dtype, op: ReduceOp) -> String {
        let shape = match self {
            Special::OneShot => "one_shot",
            Special::TwoShot => "two_shot",
        };
        format!("ccl_{shape}_{}_{}", dtype_name(dtype), fold_name(op))
    }

    /// Shared memory of a block.
    pub const fn shared_bytes(self) -> usize {
        match self {
            Special::OneShot => 0,
            Special::TwoShot => TWO_SHOT_MOST_RANKS as usize * 32,
        }
    }

    /// The most ranks that it serves.
    pub const fn most_ranks(self) -> u32 {
        match self {
            Special::OneShot => u32::MAX,
            Special::TwoShot => TWO_SHOT_MOST_RANKS,
        }
    }
}

/// Bytes of an inbox for vectors of up to `bytes` bytes of `n` ranks: two halves, in each a line for the call of every
/// rank and one for every 8 bytes of it.
pub const fn inbox_bytes(n: u32, bytes: usize) -> usize {
    2 * n as usize * (1 + bytes.div_ceil(8)) * 16
}

/// Bytes of a rank's mail for launches of up to `blocks` blocks: a [`SpecialMail`] for every block and sender.
pub const fn mail_bytes(n: u32, blocks: u32) -> usize {
    n as usize * blocks as usize * size_of::<SpecialMail>()
}

/// What a launch passes by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SpecialArgs {
    /// Address of a [`SpecialPeer`] for every rank, this one included.
    pub peers: u64,
    /// Address of the rank at every place, as `u32`s; 0 if they are equal.
    pub order: u64,
    /// Address of a `u64` for every block, 0 at first; this rank's own, one array for each special kernel.
    pub epochs: u64,
    /// Address of a `u32` that the host sets to something else than 0 to end all kernels.
    pub abort: u64,
    /// Address of the [`DeviceError`](crate::layout::DeviceError). Of it, kernels write the code, the peer, and what was
    /// expected and found.
    pub error: u64,
    /// The send buffer.
    pub input: u64,
    /// The receive buffer; may be the send buffer.
    pub output: u64,
    /// Two-shot: address of where every rank's window begins that the send buffer lies in, as `u64`s by rank.
    pub input_window: u64,
    /// The same of the receive buffer.
    pub output_window: u64,
    /// Two-shot: the numbers of both windows, which all ranks must name alike: the receive buffer's in the upper half. 0 if a
    /// buffer lies in none, and the two addresses are not used.
    pub windows: u64,
    /// Two-shot: address of the [`SpecialServed`].
    pub served: u64,
    /// Elements. Of a one-shot, what [`inbox_bytes`] was asked for is the limit.
    pub count: u64,
    /// The scalar of a pre-multiplied sum, as the bits of an `f64`; each rank may have its own.
    pub scalar_bits: u64,
    /// One-shot: bytes of every inbox.
    pub inbox_bytes: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub n: u32,
    /// [`LaunchArgs::SCALES`](crate::layout::LaunchArgs::SCALES), [`LaunchArgs::DIVIDES`](crate::layout::LaunchArgs::DIVIDES).
    pub flags: u32,
    /// What else all ranks must agree on, beside `count`. Who meets another call ends with
    /// [`DeviceFault::OtherMessage`](crate::layout::DeviceFault).
    pub tag: u32,
}

/// A rank's memory as another sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SpecialPeer {
    /// One-shot: its inbox, 16-byte aligned.
    pub inbox: u64,
    /// Two-shot: its mail, 64-byte aligned.
    pub mail: u64,
    /// 0.
    pub reserved: [u64; 2],
}

/// What one block of one rank tells another rank, in that one's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SpecialMail {
    /// The launch whose vectors are where the next three fields say.
    pub ready: u64,
    /// Where the sender's send buffer begins in its window.
    pub input_offset: u64,
    /// The same of its receive buffer.
    pub output_offset: u64,
    /// The sender's scalar, as the bits of an `f64`.
    pub scalar: u64,
    /// The launch whose results the block has written.
    pub done: u64,
    /// What call the sender is in: its tag, and below it its elements.
    pub call: u64,
    /// The windows that the sender's buffers lie in: [`SpecialArgs::windows`].
    pub windows: u64,
    /// 0.
    pub reserved: u64,
}

/// Whether the last launch has made its call; this rank's own, 0 at first but for `told`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SpecialServed {
    /// 1 if it has, 0 if ranks' buffers lie in no windows, or not in the same.
    pub now: u64,
    /// How many launches have.
    pub calls: u64,
    /// Address of a `u64` that is told of `calls`; 0 if nobody is.
    pub told: u64,
    /// 0.
    pub reserved: u64,
}

const TWO_SHOT_MOST_RANKS: u32 = 192;
