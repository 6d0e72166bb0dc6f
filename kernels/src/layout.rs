//! What the interpreter reads and writes in memory, as records of fixed layout.
//!
//! `kernels/cuda/program.h` has the same records; both sides assert sizes and offsets. Addresses are
//! those of the memory as the device sees it. Which memory it is does not matter to the kernel: its
//! own, a peer device's, or the host's. A program is in its binary form (`docs/plan-isa.md`).

use crate::special::{SpecialArgs, SpecialMail, SpecialPeer, SpecialServed};

/// What a launch passes by value: everything that belongs to one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct LaunchArgs {
    /// Address of the [`DeviceComm`].
    pub comm: u64,
    /// Address of the [`DevicePlan`].
    pub plan: u64,
    /// The send buffer; 0 if the collective reads none.
    pub input: u64,
    /// The receive buffer; 0 if the collective writes none.
    pub output: u64,
    /// Elements of the vector, or of each block.
    pub count: u64,
    /// Most elements that one Move moves for each chunk or block. A whole Move fits a slot.
    pub chunk_count: u64,
    /// Elements that boundaries between chunks are rounded to; at least 1.
    pub grain_count: u64,
    /// The scalar of a pre-multiplied sum, as the bits of an `f64`.
    pub scalar_bits: u64,
    /// Address of the tables of a v-collective: send counts, send offsets, receive counts, receive
    /// offsets, n `u64` each, by rank; 0 if blocks are even.
    pub tables: u64,
    /// The root's rank, or the peer's of a send or receive.
    pub root: u32,
    /// What marks every slot of this call, where edges have [`DeviceEdge::sizes`].
    pub tag: u32,
    /// Channels that the program runs on.
    pub channels: u32,
    /// Bytes of an element; the kernels that move bytes learn it from here.
    pub element_bytes: u32,
    /// [`LaunchArgs::SCALES`], [`LaunchArgs::DIVIDES`], [`LaunchArgs::LENDS`] and [`LaunchArgs::YIELDS`].
    pub flags: u32,
    /// Which of this rank's windows the send buffer lies in, as its slot plus 1, and 16 bits up the receive buffer; 0 for
    /// none. What lies there stays as it is, as with [`LaunchArgs::LENDS`], and ranks that reach windows may be lent it.
    pub windows: u32,
}

impl LaunchArgs {
    /// Flag: `pre` multiplies by the scalar.
    pub const SCALES: u32 = 1;
    /// Flag: `post` divides by n.
    pub const DIVIDES: u32 = 2;
    /// Flag: what the program sends lies in user memory and stays as it is until the call has ended, on every
    /// rank, so direct edges may lend it.
    pub const LENDS: u32 = 4;
    /// Flag: nothing is left to do if the word at [`DeviceComm::served`] is not 0.
    pub const YIELDS: u32 = 8;
}

/// A call of a group: calls lie in lists, and each list has blocks of its own, which carry out its calls one after the other. The
/// first call of list k is number k, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct GroupedCall {
    /// What a launch of its own would pass.
    pub call: LaunchArgs,
    /// Its [`Protocol`](crate::shape::Protocol)'s discriminant.
    pub protocol: u32,
    /// Blocks that carry it out.
    pub blocks: u32,
    /// The number of the next call of its list, counted from 1; 0 if it is the last.
    pub next: u32,
    /// 0.
    pub reserved: u32,
}

/// What a launch of a group passes by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct GroupArgs {
    /// Address of the [`GroupedCall`]s.
    pub calls: u64,
    /// Blocks of each list: as many as its longest call has, or more.
    pub each: u32,
    /// 0.
    pub reserved: u32,
}

/// A communicator as one rank's kernels see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct DeviceComm {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub n: u32,
    /// Address of the [`DeviceEdge`]s.
    pub edges: u64,
    /// Address of a `u32` for every (peer, channel, tag, direction): see [`edge_index`].
    pub edge_index: u64,
    /// Channels that the index has.
    pub channels: u32,
    /// Tags that the index has.
    pub tags: u32,
    /// Address of a `u32` that the host sets to something else than 0 to end all kernels.
    pub abort: u64,
    /// Address of the [`DeviceError`].
    pub error: u64,
    /// Address of a [`LaneBarrier`] for every channel, all 0 at first.
    pub barriers: u64,
    /// Address of scratch for the lanes of one launch, 16-byte aligned.
    pub scratch: u64,
    /// Its length.
    pub scratch_bytes: u64,
    /// Address of the [`SpecialServed`] of the special kernel that goes before some launches; 0 if none does.
    pub served: u64,
    /// Address, in multicast memory, of this rank's shared slots: those of each channel after those of the one before. A
    /// store there reaches the region of every rank. 0 if there is no such memory.
    pub window: u64,
    /// Address of what is known of shared slots: for each channel [`SharedSlots`] and then, for each slot, n
    /// [`SharedReader`]s; all 0 at first.
    pub sharing: u64,
    /// Shared slots of each channel.
    pub shared_slots: u32,
    /// From one to the next, a multiple of 128, and at least what slots of edges have.
    pub shared_stride_bytes: u32,
    /// Address of n `u64` for each of [`WINDOW_SLOTS`]: where the window of every rank in that slot begins for this rank. The
    /// words of a slot change only while nobody has a window in it.
    pub windows: u64,
    /// 0.
    pub reserved: [u64; 2],
}

/// A program as one rank runs it, the same for every call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct DevicePlan {
    /// Address of the program's bytes, 16-byte aligned.
    pub program: u64,
    /// Address of the rank at every place, as `u32`s; 0 if they are equal.
    pub rank_at: u64,
    /// Address of the place of every rank, as `u32`s; 0 if they are equal.
    pub place_of: u64,
    /// Bytes of the program.
    pub program_bytes: u32,
    /// Lanes of each channel.
    pub lanes: u32,
    /// What the program computes: the discriminant of [`ccl_plan::Collective`].
    pub collective: u32,
    /// Cells of each lane's scratch.
    pub scratch_cells: u32,
    /// How the collective sees the send buffer: 0 not at all, 1 whole, 2 a block of every rank, 3 its own block.
    pub input_shape: u32,
    /// The same of the receive buffer.
    pub output_shape: u32,
    /// The instructions, as bits, that send the same to all others: see [`crate::shape::shared`].
    pub shared: u64,
}

/// One end of an edge: a queue of slots from one rank to another.
///
/// `slots`, `tail`, `head`, `sizes` and `lent` are shared with the other end, or with the proxy that
/// stands for it. The rest is this end's own; kernels carry it on from launch to launch, so a launch may be
/// replayed as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct DeviceEdge {
    /// Address of the first slot, 128-byte aligned.
    pub slots: u64,
    /// Address of a `u64`: messages produced. Under ll and ll128 it is kept only where there are `sizes`.
    pub tail: u64,
    /// Address of a `u64`: messages consumed.
    pub head: u64,
    /// Address of a `u64` for each slot: the payload's bytes and, 32 bits up, the call's tag. 0 if there are none.
    pub sizes: u64,
    /// Address of a `u64` for each slot: where the payload lies in the sender's memory; or, with [`IS_IN_WINDOW`], in which of
    /// its windows, and how far into that; or, with [`IS_SHARED`], how far into the sender's shared slots; 0 if it is in the
    /// slot. 0 if the edge lends nothing, and at its receiving end if it shares nothing either.
    pub lent: u64,
    /// Where it sends, how it may lend: [`DeviceEdge::BY_ADDRESS`], [`DeviceEdge::BY_WINDOW`]. Otherwise 0.
    pub lends: u64,
    /// Messages so far at this end.
    pub done: u64,
    /// What this end last saw of the other end's counter.
    pub seen: u64,
    /// During a launch: the edge that lent before this one, as its number plus 1, and 32 bits up whether this one
    /// has lent. Otherwise 0.
    pub lending: u64,
    /// Payload bytes that fit a slot.
    pub slot_bytes: u32,
    /// Slots.
    pub slot_count: u32,
    /// From one slot to the next, a multiple of 128.
    pub stride_bytes: u32,
    /// A [`Protocol`](crate::shape::Protocol)'s discriminant: the launch's.
    pub protocol: u32,
    /// The rank at the other end.
    pub peer: u32,
    /// The edge's channel.
    pub channel: u32,
    /// Tells parallel edges apart.
    pub tag: u32,
    /// 0 receives, 1 sends.
    pub direction: u32,
    /// Address of this end's edges under all protocols, by discriminant; those that there are not have no slots. 0 if this
    /// is the only one.
    pub others: u64,
    /// Where it receives: address of the sender's shared slots of this channel in this rank's own region. Where it sends:
    /// address of the words that [`DeviceEdge::lent`] describes. 0 if nothing is shared.
    pub shared: u64,
    /// 0.
    pub reserved: u64,
}

impl DeviceEdge {
    /// The sender's addresses mean the same to the receiver.
    pub const BY_ADDRESS: u64 = 1;
    /// The receiver knows where the sender's windows begin.
    pub const BY_WINDOW: u64 = 2;
}

/// What a channel of a sender knows of all of its shared slots, whose payloads all others read in their own regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SharedSlots {
    /// The slot that comes next.
    pub next: u64,
    /// Payloads so far.
    pub sent: u64,
}

/// Who reads a shared slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SharedReader {
    /// Address of the head of its edge.
    pub head: u64,
    /// What that says once it has read; 0 if it need not.
    pub until: u64,
}

/// In a word of [`DeviceEdge::lent`]: the payload is in the sender's shared slots.
pub const IS_SHARED: u64 = 1 << 63;

/// In a word of [`DeviceEdge::lent`]: the payload is in one of the sender's windows. The lower 48 bits say how far from its
/// start, those above which slot it has in the table at [`DeviceComm::windows`].
pub const IS_IN_WINDOW: u64 = 1 << 62;

/// How many windows may have a slot at a time.
pub const WINDOW_SLOTS: usize = 32;

/// Where the lanes of a channel meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct LaneBarrier {
    /// Lanes that have arrived.
    pub arrived: u32,
    /// Meetings so far.
    pub met: u32,
}

/// What the first block to fail says about it. All 0 while none has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct DeviceError {
    /// A [`DeviceFault`]'s discriminant; 0 if there is none. Written last.
    pub code: u32,
    /// 1 as soon as a block has claimed the record.
    pub claimed: u32,
    /// The program's instruction; [`NO_INSTRUCTION`] if a special kernel failed.
    pub instruction: u32,
    /// The rank at the other end of the edge; `u32::MAX` if no edge is meant.
    pub peer: u32,
    /// The block's channel.
    pub channel: u32,
    /// The block's lane.
    pub lane: u32,
    /// The edge's tag, and 256 if it sends.
    pub edge: u32,
    /// 0.
    pub reserved: u32,
    /// What was needed: see [`DeviceFault`].
    pub expected: u64,
    /// What there was.
    pub found: u64,
}

/// Why a block gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum DeviceFault {
    /// The abort flag was set while it waited: for message `expected`, when there were `found`.
    Aborted = 1,
    /// The program uses an edge that the table does not have.
    NoEdge = 2,
    /// A Move of `expected` bytes does not fit a slot of `found`.
    SlotTooSmall = 3,
    /// A slot holds other bytes, or another call's: `found` instead of `expected`, each as in
    /// [`DeviceEdge::sizes`]; of lines the marks of both in place of tags. 0 and 1 in place of tags: the sender is in a
    /// call of another protocol.
    OtherMessage = 4,
    /// The edge has protocol `found`, the kernel `expected`.
    OtherProtocol = 5,
    /// Scratch of `expected` bytes is needed, `found` are there.
    ScratchTooSmall = 6,
    /// The program is not one that this kernel reads, or was launched on `found` blocks instead of `expected`.
    Unreadable = 7,
}

impl DeviceFault {
    /// The fault with this discriminant.
    pub fn from_code(code: u32) -> Option<DeviceFault> {
        use DeviceFault::*;
        let all = [Aborted, NoEdge, SlotTooSmall, OtherMessage, OtherProtocol, ScratchTooSmall, Unreadable];
        all.into_iter().find(|fault| *fault as u32 == code)
    }
}

/// Which way messages go on an edge, seen from this rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum Direction {
    /// From the peer.
    Receive = 0,
    /// To the peer.
    Send = 1,
}

/// Where the number of an edge is in [`DeviceComm::edge_index`], for so many channels and tags.
pub fn edge_index(
    (channels, tags): (u32, u32),
    peer: ccl_plan::Rank,
    channel: ccl_plan::Channel,
    tag: u8,
    direction: Direction,
) -> usize {
    let edge = (peer.index() * channels as usize + channel.index()) * tags as usize + usize::from(tag);
    edge * 2 + direction as usize
}

/// What [`DeviceComm::edge_index`] has where there is no edge.
pub const NO_EDGE: u32 = u32::MAX;

/// What [`DeviceError::instruction`] has where no program was interpreted.
pub const NO_INSTRUCTION: u32 = u32::MAX;

/// The records are plain: all bits of them are data, so they may be copied to a device as they are.
///
/// # Safety
///
/// Implementors are `repr(C)`, have no padding, and any bits are a value.
pub unsafe trait Record: Copy {}

/// The bytes of a record.
pub fn bytes_of<R: Record>(record: &R) -> &[u8] {
    // SAFETY: a record has no padding, so all its bytes are initialised; they are borrowed with it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<R>()) }
}

/// The record that these bytes are; `None` if they are too few.
pub fn record_of<R: Record>(bytes: &[u8]) -> Option<R> {
    let bytes = bytes.get(..size_of::<R>())?;
    // SAFETY: there are enough bytes, any bits are a record, and the read needs no alignment.
    Some(unsafe { bytes.as_ptr().cast::<R>().read_unaligned() })
}

/// Asserts where the fields of records lie, as `program.h` does.
macro_rules! records {
    ($($name:ident: $size:literal, $($field:ident $offset:literal),*;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
        $(const _: () = assert!(std::mem::offset_of!($name, $field) == $offset);)*
        // SAFETY: `repr(C)`, integers only, and the fields end where the record does: see the assertions.
        unsafe impl Record for $name {}
    )*};
}

records! {
    LaunchArgs: 96, scalar_bits 56, tables 64, root 72, element_bytes 84, flags 88, windows 92;
    GroupedCall: 112, protocol 96, blocks 100, next 104, reserved 108;
    GroupArgs: 16, each 8, reserved 12;
    DeviceComm: 128, n 4, edges 8, edge_index 16, channels 24, tags 28, abort 32, error 40, barriers 48, scratch 56, scratch_bytes 64, served 72, window 80, sharing 88, shared_slots 96, shared_stride_bytes 100, windows 104, reserved 112;
    DevicePlan: 56, rank_at 8, place_of 16, program_bytes 24, lanes 28, collective 32, scratch_cells 36, input_shape 40, output_shape 44, shared 48;
    DeviceEdge: 128, lent 32, lends 40, done 48, lending 64, slot_bytes 72, protocol 84, peer 88, direction 100, others 104, shared 112, reserved 120;
    SharedSlots: 16, sent 8;
    SharedReader: 16, until 8;
    LaneBarrier: 8, met 4;
    SpecialArgs: 128, abort 24, error 32, input 40, windows 72, count 88, inbox_bytes 104, rank 112, tag 124;
    SpecialPeer: 32, mail 8, reserved 16;
    SpecialMail: 64, scalar 24, done 32, call 40, windows 48, reserved 56;
    SpecialServed: 32, calls 8, told 16, reserved 24;
    DeviceError: 48, claimed 4, instruction 8, peer 12, channel 16, lane 20, edge 24, reserved 28, expected 32, found 40;
}
