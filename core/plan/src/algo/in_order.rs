//! Folding everybody's contribution in the order of absolute places.
//!
//! One-shot, two-shot and the direct reductions fold 0, 1, …, n−1 whoever folds, so all of them
//! give the same bits, on every rank, for every size and every chunk length. Up to four
//! contributions fit one Move; more are collected in a cell of scratch, one Move each, so that the
//! result is written once, after the own input has been read: safe in place.

use alloc::vec::Vec;

use super::Position;
use crate::ids::Place;
use crate::program::builder::{Index, LaneBuilder, N, R, Spot, Term, from, input, scratch};
use crate::program::{ExtentOf, Finish, MOVE_OPERANDS};

/// Cells of scratch that [`fold`] needs.
pub(super) const fn cells(n: u32) -> u16 {
    if n as usize > MOVE_OPERANDS { 1 } else { 0 }
}

/// Where `place`'s own contribution stands.
pub(super) fn position(n: u32, place: Place) -> Position {
    match place.0 {
        place if n as usize <= MOVE_OPERANDS => Position::Fixed(place as u8),
        0 => Position::First,
        place if place == n - 1 => Position::Last,
        _ => Position::Middle,
    }
}

/// Folds the own input with one slot from every other rank into `outputs`, completing the
/// reduction of the data named by `of` and `index`. n is at least 2.
pub(super) fn fold(
    l: &mut LaneBuilder<'_>,
    n: u32,
    position: Position,
    outputs: &[Spot],
    of: ExtentOf,
    index: impl Into<Index>,
) {
    let index = index.into();
    if let Position::Fixed(place) = position {
        let inputs: Vec<Spot> =
            (0..n as i32).map(|peer| if peer == place.into() { input() } else { from(peer) }).collect();
        return l.fold_all(&inputs).pre().post().into_all(outputs).cover(of, index);
    }
    let add = |l: &mut LaneBuilder<'_>, inputs: &[Spot], outputs: &[Spot], post: bool| {
        let pre = inputs.contains(&input());
        l.fold_all(inputs).finish(Finish { pre, post }).into_all(outputs).cover(of, index);
    };
    let cell = [scratch(0)];
    let collect = |l: &mut LaneBuilder<'_>, start: Term, end: Term| {
        l.each(start, end, |l, i| add(l, &[cell[0], from(i)], &cell, false));
    };
    match position {
        Position::First => {
            add(l, &[input(), from(1)], &cell, false);
            collect(l, 2.into(), N - 1);
            add(l, &[cell[0], from(N - 1)], outputs, true);
        }
        Position::Last => {
            add(l, &[from(0), from(1)], &cell, false);
            collect(l, 2.into(), N - 1);
            add(l, &[cell[0], input()], outputs, true);
        }
        _ => {
            add(l, &[from(0)], &cell, false);
            collect(l, 1.into(), R);
            add(l, &[cell[0], input()], &cell, false);
            collect(l, R + 1, N - 1);
            add(l, &[cell[0], from(N - 1)], outputs, true);
        }
    }
}
