//! What decisions are looked up by, and what other ranks must have asked for.

use ccl_plan::select::Level;
use ccl_plan::{Collective, Dtype, Rank, ReduceOp};

use crate::observe::board::Signature;
use crate::request::{Bound, Request, named_root};

/// What a decision depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) collective: Collective,
    pub(super) dtype: Dtype,
    /// Of the call, or the average block's where blocks differ.
    pub(super) count: usize,
    pub(super) root: Rank,
    pub(super) reduce_op: ReduceOp,
    pub(super) level: Level,
    pub(super) scalar_bits: u64,
}

impl Key {
    #[inline]
    pub(super) fn of(request: &Request<'_>) -> Key {
        Key {
            collective: request.collective,
            dtype: request.dtype,
            count: request.count,
            root: named_root(request.collective, request.root),
            reduce_op: request.reduce.op(),
            level: request.reduce.level(),
            scalar_bits: request.reduce.scalar().to_bits(),
        }
    }

    /// Where of `places` (a power of two) a decision for this key is kept.
    #[inline]
    pub(super) fn place(&self, places: usize) -> usize {
        let kind = u64::from(self.collective as u8) << 16
            | u64::from(self.dtype as u8) << 8
            | u64::from(self.reduce_op as u8)
            | u64::from(self.root.0) << 24
            | (self.level as u64) << 56;
        let mixed = (kind ^ self.scalar_bits).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ self.count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & (places - 1)
    }
}

/// What slot tags of a call are made of, but for its number.
///
/// A tag mixes what ranks must agree on and a number; different operations get different tags but
/// for one chance in 2³². Both ends of a message come to the same tag.
#[derive(Clone, Copy)]
pub(in super::super) struct TagSeed(u64);

impl TagSeed {
    pub(super) fn new(bound: &Bound) -> TagSeed {
        let message = bound.collective.is_message();
        let collective = if message { Collective::Send } else { bound.collective };
        let reduce_op = if bound.collective.reduces() { bound.reduce.op() as u8 } else { 0 };
        let root = if bound.collective.rooted() { bound.root.0 } else { 0 };
        let kind = u64::from(collective as u8)
            | u64::from(bound.dtype as u8) << 8
            | u64::from(reduce_op) << 16
            | u64::from(root) << 24
            | (level(bound) as u64) << 56;
        let mixed = kind.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed ^ (agreed_count(bound) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        TagSeed(mixed ^ (mixed >> 29))
    }

    #[inline]
    pub(in super::super) fn number(self, number: u64) -> u32 {
        (self.0.wrapping_add(number).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
    }
}

/// What other ranks must have asked for under the same number.
pub(super) fn signature(bound: &Bound) -> Signature {
    let mut signature = Signature::new(bound.collective).of(agreed_count(bound) as u64, bound.dtype);
    if bound.collective.reduces() {
        signature = signature.reduced_by(bound.reduce.op()).at(level(bound));
    }
    if bound.collective.rooted() {
        signature = signature.rooted_at(bound.root);
    }
    signature
}

/// What the call asks for; nothing where nothing is folded.
pub(super) fn level(bound: &Bound) -> Level {
    if bound.collective.reduces() { bound.reduce.level() } else { Level::Run }
}

/// The count that is the same on all ranks; 0 where blocks differ.
pub(super) fn agreed_count(bound: &Bound) -> usize {
    if bound.collective.uneven() { 0 } else { bound.count }
}
