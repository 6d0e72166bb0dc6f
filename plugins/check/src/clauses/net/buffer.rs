//! Memory for messages, between guards.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory for messages, with bytes before and behind it that nobody may touch.
///
/// Never freed: a plugin that touches it after it should have let go of it changes memory that is still
/// there, and is found out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    start: *mut u8,
    bytes: usize,
    /// Never used again in this process.
    pub(crate) id: usize,
}

// SAFETY: a pointer to memory that lives forever; only the plugin and whoever has the buffer touch it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Memory in which nothing was received yet.
    pub(crate) fn new(bytes: usize) -> Buffer {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let whole: &'static mut [u8] = vec![GUARD; bytes + 2 * GUARD_BYTES].leak();
        let buffer = Buffer {
            // SAFETY: the first guard is that long.
            start: unsafe { whole.as_mut_ptr().add(GUARD_BYTES) },
            bytes,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        buffer.write(0, &vec![UNTOUCHED; bytes]);
        buffer
    }

    /// A message.
    pub(crate) fn message(seed: u64, bytes: usize) -> Buffer {
        let buffer = Buffer::new(bytes);
        buffer.write(0, &pattern(seed, bytes));
        buffer
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it holds.
    pub(crate) fn read(&self) -> Vec<u8> {
        self.read_at(0, self.bytes)
    }

    /// Whether it still is as it was made.
    pub(crate) fn is_untouched(&self) -> bool {
        self.read().iter().all(|byte| *byte == UNTOUCHED)
    }

    /// What is not as it should be after the message of `seed` was received; `None`: all is well.
    pub(crate) fn objection(&self, seed: u64, bytes: usize) -> Option<String> {
        let (found, wanted) = (self.read_at(0, bytes), pattern(seed, bytes));
        if let Some(at) = (0..bytes).find(|at| found[*at] != wanted[*at]) {
            let (wanted, found) = (wanted[at], found[at]);
            return Some(format!(
                "byte {at} of a message of {bytes}: expected {wanted:#04x}, found {found:#04x}"
            ));
        }
        self.guard_objection()
    }

    /// Bytes that were written outside.
    pub(crate) fn guard_objection(&self) -> Option<String> {
        let before = self.read_at(-(GUARD_BYTES as isize), GUARD_BYTES);
        let behind = self.read_at(self.bytes as isize, GUARD_BYTES);
        let hurt = |guard: &[u8]| guard.iter().any(|byte| *byte != GUARD);
        let place = if hurt(&before) { "before" } else { "behind" };
        (hurt(&before) || hurt(&behind))
            .then(|| format!("bytes {place} a buffer of {} were written", self.bytes))
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "within the buffer");
        // SAFETY: within memory that lives forever. A plugin that keeps the contract does not touch it now;
        // one that does not is about to be named.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    fn read_at(&self, at: isize, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        // SAFETY: within the memory and its guards, which live forever; as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.offset(at), copy.as_mut_ptr(), bytes) };
        copy
    }
}

/// Bytes that depend on the seed and on where they are.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(next).collect()
}

const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xa5;
const UNTOUCHED: u8 = 0x5a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_message_is_said() {
        let buffer = Buffer::message(7, 100);
        assert_eq!(buffer.objection(7, 100), None);
        let words = buffer.objection(8, 100).unwrap();
        assert!(words.starts_with("byte ") && words.contains("of a message of 100"), "{words}");
        assert!(Buffer::new(5).is_untouched() && !buffer.is_untouched());
        // SAFETY: the guard behind the buffer.
        unsafe { buffer.address().add(100).write(0) };
        assert!(buffer.objection(7, 100).unwrap().contains("behind a buffer of 100"));
    }
}
