//! Keeping count of contributions: exactly, or by a sum that no accident meets.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::ids::Rank;

/// Which contributions an element holds.
pub trait Tally: Clone + PartialEq {
    /// Most ranks that can be told apart.
    const MAX_RANKS: u32;

    /// One rank's, of `n`.
    fn one(rank: Rank, n: u32) -> Self;

    /// Every rank's.
    fn all(n: u32) -> Self;

    /// Adds what `other` holds. `Err` names what both hold, where that can be known.
    fn join(&mut self, other: &Self) -> Result<(), String>;

    /// The same with everybody's place in the order so many further on, where that can be told.
    fn turned(&self, by: u32) -> Self {
        let _ = by;
        self.clone()
    }

    /// What the digest of a fold expression has for this rank's contribution.
    fn leaf(rank: Rank) -> u64 {
        mix(!u64::from(rank.0))
    }

    /// In words.
    fn describe(&self) -> String;
}

/// A set of ranks, for up to 128 of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exact(u128);

/// A sum of random numbers, one for each rank: wrong sets give a wrong sum with probability
/// 1 − 2⁻⁶⁴. For any number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(u64);

/// A set of ranks as ranges, few where partial sums are of ranks that follow each other. For any number of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// First and behind the last, ascending, with gaps between them.
    ranges: Vec<(u32, u32)>,
    n: u32,
}

impl Tally for Exact {
    const MAX_RANKS: u32 = 128;

    fn one(rank: Rank, _: u32) -> Exact {
        Exact(1_u128.checked_shl(rank.0).unwrap_or(0))
    }

    fn all(n: u32) -> Exact {
        Exact(u128::MAX.checked_shr(128 - n.min(128)).unwrap_or(0))
    }

    #[inline]
    fn join(&mut self, other: &Exact) -> Result<(), String> {
        match self.0 & other.0 {
            0 => {
                self.0 |= other.0;
                Ok(())
            }
            both => Err(Exact(both).describe()),
        }
    }

    fn describe(&self) -> String {
        let mut arcs: Vec<String> = Vec::new();
        let mut rank = 0;
        while rank < 128 {
            let run = self.0.checked_shr(rank).unwrap_or(0).trailing_ones();
            match run {
                0 => {}
                1 => arcs.push(format!("{rank}")),
                _ => arcs.push(format!("{rank}..={}", rank + run - 1)),
            }
            rank += run + 1;
        }
        format!("contributions of {{{}}}", arcs.join(", "))
    }
}

impl Tally for Nonce {
    const MAX_RANKS: u32 = u32::MAX;

    fn one(rank: Rank, _: u32) -> Nonce {
        Nonce(mix(u64::from(rank.0) + 1))
    }

    fn all(n: u32) -> Nonce {
        Nonce((0..n).fold(0, |sum, rank| sum.wrapping_add(Nonce::one(Rank(rank), n).0)))
    }

    #[inline]
    fn join(&mut self, other: &Nonce) -> Result<(), String> {
        self.0 = self.0.wrapping_add(other.0);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("contributions that sum to {:#018x}", self.0)
    }
}

impl Tally for Span {
    const MAX_RANKS: u32 = u32::MAX / 2;

    fn one(rank: Rank, n: u32) -> Span {
        Span { ranges: [(rank.0, rank.0 + 1)].into(), n }
    }

    fn all(n: u32) -> Span {
        Span { ranges: [(0, n)].into(), n }
    }

    fn join(&mut self, other: &Span) -> Result<(), String> {
        let mut ranges = [&self.ranges[..], &other.ranges].concat();
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(format!("{}, some of them in {},", self.describe(), other.describe()));
        }
        self.ranges = merged(&ranges);
        Ok(())
    }

    fn turned(&self, by: u32) -> Span {
        let turn = |(first, end): &(u32, u32)| {
            let (first, end) = (first + by, end + by);
            [(first, end.min(self.n)), (first.max(self.n) - self.n, end.max(self.n) - self.n)]
        };
        let mut ranges: Vec<_> =
            self.ranges.iter().flat_map(turn).filter(|(first, end)| first < end).collect();
        ranges.sort_unstable();
        Span { ranges: merged(&ranges), n: self.n }
    }

    /// Expressions of turned folds are to be equal.
    fn leaf(_: Rank) -> u64 {
        0
    }

    fn describe(&self) -> String {
        let range = |(first, end): &(u32, u32)| match end - first {
            1 => format!("{first}"),
            _ => format!("{first}..={}", end - 1),
        };
        let ranges: Vec<String> = self.ranges.iter().map(range).collect();
        format!("contributions of {{{}}}", ranges.join(", "))
    }
}

/// Ascending ranges, those that meet as one.
fn merged(ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, end) in ranges {
        match merged.last_mut() {
            Some((_, last)) if last == first => *last = *end,
            _ => merged.push((*first, *end)),
        }
    }
    merged
}

/// A bijection of 64-bit words in which every input bit reaches every output bit (the finaliser of
/// SplitMix64).
pub(crate) const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
