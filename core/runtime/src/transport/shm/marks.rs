//! What a message's line says of its payload: how long it is and where.

use ccl_plan::cost::SHORT_BYTES;

/// Bytes of a payload with these marks that is not lent.
#[inline]
pub(super) fn bytes_of(marks: u32) -> usize {
    (marks & if marks & (SHORT | LENT) == SHORT { BYTES & !CELL } else { BYTES }) as usize
}

/// Where one with these marks is that is short.
#[inline]
pub(super) fn cell_of(marks: u32) -> usize {
    ((marks & CELL) >> CELL.trailing_zeros()) as usize
}

/// The payload is in the line; with none of these marks it is in the slot that the line names.
pub(super) const IN_LINE: u32 = 1 << 31;
/// Beside the line.
pub(super) const SHORT: u32 = 1 << 30;
/// In the producer's memory.
pub(super) const LENT: u32 = 1 << 29;
/// In a slot of another edge.
pub(super) const ELSEWHERE: u32 = SHORT | LENT;
/// The next message is in line 0.
pub(super) const TURNS: u32 = 1 << 28;
/// Others may be told of the slot: its receiver gives it back.
pub(super) const SHARED: u32 = 1 << 27;
/// The payload's bytes, unless lent,
const BYTES: u32 = SHARED - 1;
/// or, if it is short, the cell that it is in; its bytes are below.
pub(super) const CELL: u32 = BYTES & !(2 * SHORT_BYTES as u32 - 1);
