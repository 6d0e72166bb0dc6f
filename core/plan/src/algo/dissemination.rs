//! The dissemination barrier.
//!
//! In round k rank r signals r+2^k and waits for r−2^k; after ⌈log2 n⌉ rounds everybody has heard,
//! at some remove, of everybody. No bytes; D messages per rank. Nothing with point-to-point signals is
//! faster; ranks that share memory can do better with counters.
//!
//! Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", IJPP
//! 17 (1988).

use crate::collective::Collective;
use crate::program::builder::{Builder, R, from, to};
use crate::program::{Chunks, Program};

/// The rounds are written out; there are at most 20.
pub(super) fn program(n: u32) -> Program {
    let mut b = Builder::new("dissemination", Collective::Barrier, Chunks::ONE);
    b.lane(|l| {
        for round in 0..super::rounds(n) {
            l.signal(to(R + (1 << round)));
            l.wait(from(R - (1 << round)));
        }
    });
    b.finish()
}
