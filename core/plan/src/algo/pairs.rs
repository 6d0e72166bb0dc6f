//! Any number of ranks where an algorithm wants a power of two.
//!
//! p is the largest power of two up to n. The first 2(n − p) ranks stand in pairs, 0 with 1, 2 with 3
//! and so on; the first of each pair takes part for both, so p ranks take part. Their *seats* are
//! numbered 0…p−1 in the order of their places.

use super::Role;
use crate::ids::Place;
use crate::program::builder::{Arithmetic, Builder, Index, R};

/// How a rank stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Standing {
    /// For itself.
    Single,
    /// For itself and the rank after it.
    First,
    /// Behind the rank before it.
    Second,
}

/// The pairs of n ranks.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    /// How many there are: n − p.
    pub(crate) count: u32,
    /// log2 p.
    pub(crate) rounds: u32,
}

/// Whether the pairs and then the steps of recursive doubling are the canonical tree of n ranks: where
/// the first half of the seats, of the upper half the first half, and so on stand for pairs, or none do.
pub(crate) const fn in_tree(n: u32) -> bool {
    // Ones, then zeros.
    (n + (n & n.wrapping_neg())).is_power_of_two()
}

impl Pairs {
    pub(crate) const fn of(n: u32) -> Pairs {
        let rounds = n.ilog2();
        Pairs { count: n - (1 << rounds), rounds }
    }

    /// How many seats have a place below this one.
    pub(crate) const fn seats_below(self, place: u32) -> u32 {
        if place <= 2 * self.count { place.div_ceil(2) } else { place - self.count }
    }

    pub(super) const fn standing(self, place: Place) -> Standing {
        match place.0 {
            place if place >= 2 * self.count => Standing::Single,
            place if place.is_multiple_of(2) => Standing::First,
            _ => Standing::Second,
        }
    }

    /// The own seat.
    pub(super) fn seat(self, b: &mut Builder, role: Role) -> Index {
        match role.standing {
            _ if self.count == 0 => R.into(),
            Standing::First => b.over(R, 2),
            _ => {
                let seat = b.plain(R - self.count as i32);
                b.modulo(seat, 1 << self.rounds)
            }
        }
    }

    /// The place of who sits there.
    pub(super) fn place(self, b: &mut impl Arithmetic, seat: Index) -> Index {
        if self.count == 0 {
            return seat;
        }
        let pairs_before = b.min(seat, self.count as i32);
        b.sum(seat, pairs_before)
    }
}
