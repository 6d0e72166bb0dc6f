//! Which messages are written in two halves.
//!
//! The kernel puts up to 65,483 bytes of what is written into a segment, and the reader copies a segment only when the writer has
//! copied all of it. A message a little longer leaves as a long segment and a short one: nothing is copied at both ends at the same
//! time. In two halves the reader copies the first while the writer copies the second. That only helps where the reader has a core
//! of its own; then this rank looks for messages many times between two that it writes, and where cores are shared a few times.

/// Halves for one socket's messages.
#[derive(Debug, Default)]
pub(crate) struct Halving {
    may: bool,
    /// How often the rank had waited when it wrote last.
    waits: u32,
}

impl Halving {
    /// Of a socket that wrote nothing. `may`: whether it ever may.
    pub(crate) fn new(may: bool) -> Halving {
        Halving { may, waits: 0 }
    }

    /// So many bytes, of one message, are about to be written, by a rank that has so often found nothing where it looked for others'.
    /// How many to write first, if not all.
    #[inline]
    pub(crate) fn first_half(&mut self, bytes: usize, waits: u32) -> Option<usize> {
        let waited = waits.wrapping_sub(std::mem::replace(&mut self.waits, waits));
        let halves = self.may && bytes > SEGMENT_BYTES && bytes <= LONGEST_BYTES && waited >= WAITS;
        halves.then_some(bytes / 2)
    }
}

/// What the kernel puts into one segment: as much as a packet of 64 KiB - 1 holds behind its headers.
const SEGMENT_BYTES: usize = 65_483;
/// Of longer ones the second segment is long enough.
const LONGEST_BYTES: usize = 80 << 10;
/// Looks that say that the rank has a core of its own.
const WAITS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_for_long_halves_what_is_a_little_longer_than_a_segment() {
        let mut halving = Halving::new(true);
        let mut waits = 0;
        let mut half = |bytes, waited| {
            waits += waited;
            halving.first_half(bytes, waits)
        };
        assert_eq!(half(SEGMENT_BYTES + 1, WAITS), Some(SEGMENT_BYTES.div_ceil(2)));
        assert_eq!(half(LONGEST_BYTES, WAITS), Some(LONGEST_BYTES / 2));
        assert_eq!(half(SEGMENT_BYTES, WAITS), None);
        assert_eq!(half(LONGEST_BYTES + 1, WAITS), None);
        assert_eq!(half(LONGEST_BYTES, WAITS - 1), None, "it shares its core");
        assert_eq!(Halving::new(false).first_half(LONGEST_BYTES, WAITS), None, "between hosts");
    }
}
