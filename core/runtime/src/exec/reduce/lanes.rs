//! Narrow elements side by side in a 32-bit word.
//!
//! Widening a bf16 lane of a word to binary32 is a shift or a mask; loading elements into lanes of
//! their own and packing the results again costs as much as the arithmetic.

use std::marker::PhantomData;

use super::element::Element;

/// `COUNT` elements of `E`, the first in the low bits. Operands are one element, for all lanes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Word<E, const COUNT: u32>(u32, PhantomData<E>);

impl<E: Element, const COUNT: u32> Word<E, COUNT> {
    const LANE_BITS: u32 = 32 / COUNT;

    #[inline(always)]
    fn lane(self, lane: u32) -> E {
        E::from_bits(u64::from(self.0 >> (lane * Self::LANE_BITS)))
    }

    /// The word whose lanes are `value` of each lane.
    #[inline(always)]
    fn each(value: impl Fn(u32) -> E) -> Self {
        let mut word = 0;
        for lane in 0..COUNT {
            word |= (value(lane).into_bits() as u32) << (lane * Self::LANE_BITS);
        }
        Word(word, PhantomData)
    }
}

impl<E: Element, const COUNT: u32> Element for Word<E, COUNT> {
    type Lanes = Self;

    #[inline(always)]
    fn into_bits(self) -> u64 {
        self.lane(0).into_bits()
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Word::each(|_| E::from_bits(bits))
    }

    fn from_scalar(scalar: f64) -> Self {
        Word::each(|_| E::from_scalar(scalar))
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Word::each(|lane| self.lane(lane).plus(other.lane(lane)))
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Word::each(|lane| self.lane(lane).times(other.lane(lane)))
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Word::each(|lane| self.lane(lane).larger(other.lane(lane)))
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        Word::each(|lane| self.lane(lane).smaller(other.lane(lane)))
    }

    #[inline(always)]
    fn divided(self, n: u32) -> Self {
        Word::each(|lane| self.lane(lane).divided(n))
    }
}
