//! Consecutive places around the end of the order, as Moves see them.

use crate::program::builder::{Arithmetic, Index, LaneBuilder, Spot};
use crate::program::{ExtentOf, Finish};

/// `length` places from `first` on, the place after the last being place 0.
pub(super) struct Arc {
    first: Index,
    length: Index,
    behind_the_end: Index,
}

impl Arc {
    pub(super) fn new(
        l: &mut LaneBuilder<'_>,
        n: u32,
        first: impl Into<Index>,
        length: impl Into<Index>,
    ) -> Arc {
        let (first, length) = (first.into(), length.into());
        let end = l.sum(first, length);
        let all = l.plain(-(n as i32));
        Arc { first, length, behind_the_end: l.sum(end, all) }
    }

    /// A Move for the places up to the end, and one for those from place 0 on.
    pub(super) fn moves<const I: usize, const O: usize>(
        &self,
        l: &mut LaneBuilder<'_>,
        of: ExtentOf,
        finish: Finish,
        inputs: impl Fn(Index) -> [Spot; I],
        outputs: impl Fn(Index) -> [Spot; O],
    ) {
        for (first, length) in [(self.first, self.length), (0.into(), self.behind_the_end)] {
            let sentence = l.fold(inputs(first)).finish(finish).into(outputs(first));
            sentence.span(length).cover(of, first);
        }
    }
}
