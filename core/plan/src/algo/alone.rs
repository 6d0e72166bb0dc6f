//! One rank: its own contribution is the result.

use crate::collective::{Collective, Shape};
use crate::program::builder::{Builder, R, input, output};
use crate::program::{Chunks, Program};

/// Copies the send buffer to the receive buffer, applying what a reduction applies. Nothing for a
/// barrier.
pub(super) fn program(collective: Collective, algorithm: &str) -> Program {
    let mut b = Builder::new(algorithm, collective, Chunks::ONE);
    b.lane(|l| match (collective.input(), collective.output()) {
        (Shape::None, _) | (_, Shape::None) => l.end(),
        (Shape::Whole, _) => {
            let copy = l.fold([input()]).into([output()]);
            if collective.reduces() { copy.pre().post().chunk(0) } else { copy.chunk(0) }
        }
        _ => {
            let copy = l.fold([input()]).into([output()]);
            if collective.reduces() { copy.pre().post().send_block(R) } else { copy.recv_block(R) }
        }
    });
    b.finish()
}
