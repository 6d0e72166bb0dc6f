//! Bytes that arrived before it was known where they belong.

use crate::stream::{Piece, piece};

/// A fixed buffer with a filled part, read from its front and filled at its end.
pub(crate) struct Staging {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staging {
    pub(crate) fn new(capacity: usize) -> Staging {
        Staging { bytes: vec![0; capacity].into_boxed_slice(), start: 0, end: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first `N` bytes behind `skipped` others, if there are as many.
    #[inline]
    pub(crate) fn peek<const N: usize>(&self, skipped: usize) -> Option<[u8; N]> {
        self.bytes[self.start..self.end].get(skipped..)?.first_chunk().copied()
    }

    /// Forgets the first `count` bytes.
    #[inline]
    pub(crate) fn skip(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for at most `most` more bytes, at the end. Call [`Staging::grow`] with what was written.
    pub(crate) fn room(&mut self, most: usize) -> Piece {
        self.compact();
        let room = &mut self.bytes[self.end..];
        piece(room.as_mut_ptr(), room.len().min(most))
    }

    /// Of an empty buffer: room for `head` bytes, and for at most `most` behind them. What is
    /// written there is counted by [`Staging::grow`], or put in its place by [`Staging::insert`].
    pub(crate) fn head_and_tail(&mut self, head: usize, most: usize) -> [Piece; 2] {
        debug_assert!(self.is_empty());
        (self.start, self.end) = (0, 0);
        let (head, tail) = self.bytes.split_at_mut(head);
        [piece(head.as_mut_ptr(), head.len()), piece(tail.as_mut_ptr(), tail.len().min(most))]
    }

    /// Counts `count` bytes that were written behind the filled part.
    #[inline]
    pub(crate) fn grow(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.bytes.len());
    }

    /// Puts `count` bytes at `from` behind the filled part, before `behind` bytes that are already
    /// there.
    ///
    /// # Safety
    ///
    /// `from` is readable for `count` bytes outside this buffer.
    pub(crate) unsafe fn insert(&mut self, from: *const u8, count: usize, behind: usize) {
        self.bytes.copy_within(self.end..self.end + behind, self.end + count);
        let into = &mut self.bytes[self.end..self.end + count];
        // SAFETY: the caller's promise; the slice has `count` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
        self.end += count + behind;
    }

    /// Moves at most `most` bytes from the front to `into`; how many.
    ///
    /// # Safety
    ///
    /// `into` is writable for `most` bytes outside this buffer.
    #[inline]
    pub(crate) unsafe fn take_into(&mut self, into: *mut u8, most: usize) -> usize {
        let filled = &self.bytes[self.start..self.end];
        let count = filled.len().min(most);
        // SAFETY: the caller's promise; the slice has at least `count` bytes.
        unsafe { std::ptr::copy_nonoverlapping(filled.as_ptr(), into, count) };
        self.skip(count);
        count
    }

    fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}
