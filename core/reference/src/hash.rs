//! Random bits that are a function of seed, rank and index.

/// A stream of 64-bit values by index.
#[derive(Clone, Copy)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of a rank, or of anything else that has a number.
    pub(super) fn new(seed: u64, number: u64) -> Stream {
        Stream(mix(mix(seed.wrapping_add(ODD)) ^ number.wrapping_mul(ODD)))
    }

    /// The value at an index.
    #[inline(always)]
    pub(super) fn at(self, index: usize) -> u64 {
        mix((index as u64).wrapping_mul(ODD) ^ self.0)
    }
}

/// The high bits of `bits`, scaled to `0..limit`; `limit` is at most 2³².
#[inline(always)]
pub(super) fn below(bits: u64, limit: u64) -> u64 {
    ((bits >> 32) * limit) >> 32
}

#[inline(always)]
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let bits = (bits ^ (bits >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    bits ^ (bits >> 32)
}

/// 2⁶⁴ divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
