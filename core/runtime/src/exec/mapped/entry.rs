//! What a rank says when it enters a call: where its buffers are, and what it takes the call to be.

use crate::exec::reduce::Reduction;
use crate::memory::Place;
use crate::request::Bound;

/// One rank's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Identity of the windows of the send and receive buffer; [`ADDRESSES`] or [`UNMAPPED`].
    pub(super) windows: [u32; 2],
    /// Where they are in their windows, or in the process.
    pub(super) places: [u64; 2],
    /// Its scalar, in the dtype's bits.
    pub(super) scalar: u64,
    /// The count, and everything else that all ranks must mean alike, before any of them touches another's
    /// memory: the tag of a slot is too short to rely on for that.
    call: [u64; 2],
}

impl Entry {
    /// The word of a rank whose buffers lie in `windows`, or, if all ranks are in `one_process`, where their
    /// addresses say.
    pub(super) fn of(bound: &Bound, windows: Option<&[Place; 2]>, one_process: bool) -> Entry {
        let (windows, places) = match windows {
            Some([send, recv]) => {
                ([send.window.id(), recv.window.id()], [send.offset as u64, recv.offset as u64])
            }
            None if one_process => {
                let addresses = [bound.send.expose_provenance(), bound.recv.expose_provenance()];
                ([ADDRESSES; 2], addresses.map(|address| address as u64))
            }
            None => ([UNMAPPED; 2], [0; 2]),
        };
        let kind = u64::from(bound.collective as u8)
            | u64::from(bound.dtype as u8) << 8
            | u64::from(bound.reduce.op() as u8) << 16
            | u64::from(bound.root.0) << 32;
        let scalar = Reduction::scalar(bound.dtype, bound.reduce.scalar());
        Entry { windows, places, scalar, call: [bound.count as u64, kind] }
    }

    /// Whether both ranks mean the same call.
    pub(super) fn agrees(&self, other: &Entry) -> bool {
        self.call == other.call
    }

    pub(super) fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let windows = u64::from(self.windows[0]) | u64::from(self.windows[1]) << 32;
        let [send, recv] = self.places;
        let [count, kind] = self.call;
        let mut bytes = [0; ENTRY_BYTES];
        for (word, value) in bytes.chunks_exact_mut(8).zip([windows, send, recv, self.scalar, count, kind]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Of [`ENTRY_BYTES`] bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Entry {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
        Entry {
            windows: [word(0) as u32, (word(0) >> 32) as u32],
            places: [word(1), word(2)],
            scalar: word(3),
            call: [word(4), word(5)],
        }
    }
}

/// In place of a window: buffers are where their addresses say.
const ADDRESSES: u32 = u32::MAX;
/// In place of a window: other ranks cannot reach the buffer.
pub(super) const UNMAPPED: u32 = 0;
/// An entry travels in a slot's line.
pub(super) const ENTRY_BYTES: usize = 48;
const _: () = assert!(ENTRY_BYTES <= crate::transport::INLINE_BYTES);

#[cfg(test)]
mod tests {
    use ccl_plan::{Collective, Dtype, Rank, ReduceOp};

    use super::*;

    fn bound() -> Bound {
        Bound {
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            reduce: ReduceOp::Sum.into(),
            count: 7,
            root: Rank(0),
            send: std::ptr::without_provenance(0x1234_5678_9abc),
            recv: std::ptr::without_provenance_mut(0x4321_8765_cba9),
            in_place: false,
        }
    }

    #[test]
    fn entries_come_back_as_they_were() {
        for one_process in [false, true] {
            let entry = Entry::of(&bound(), None, one_process);
            assert_eq!(entry.windows.contains(&UNMAPPED), !one_process);
            assert_eq!(Entry::from_bytes(&entry.to_bytes()), entry);
        }
    }

    #[test]
    fn whatever_ranks_must_agree_on_shows() {
        let entry = Entry::of(&bound(), None, true);
        for other in [
            Bound { count: 8, ..bound() },
            Bound { dtype: Dtype::U32, ..bound() },
            Bound { reduce: ReduceOp::Max.into(), ..bound() },
            Bound { collective: Collective::Broadcast, ..bound() },
            Bound { root: Rank(1), ..bound() },
        ] {
            assert!(!entry.agrees(&Entry::of(&other, None, true)), "{other:?}");
        }
        let elsewhere = Bound { send: std::ptr::without_provenance(64), in_place: true, ..bound() };
        assert!(entry.agrees(&Entry::of(&elsewhere, None, false)));
    }
}
