//! The first message in each direction of a connection: who sends, on which edge, and the proof.

use ccl_plan::{Channel, Rank};

/// An edge as both its ends see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    pub(super) sender: Rank,
    pub(super) receiver: Rank,
    pub(super) channel: Channel,
    pub(super) tag: u8,
}

/// Length of a greeting.
pub(super) const GREETING_BYTES: usize = 32;

/// What the sender of `ends` says to its receiver, whose listener made `handle`: a hash under the
/// communicator's secret, so that it holds for this edge of this communicator and no other.
pub(super) fn greeting(
    secret: &[u8; 32],
    ends: &Ends,
    nonces: [&[u8; 32]; 2],
    handle: &[u8],
) -> [u8; GREETING_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"ccl network edge");
    for rank in [ends.sender, ends.receiver] {
        hasher.update(&rank.0.to_le_bytes());
    }
    hasher.update(&ends.channel.0.to_le_bytes());
    hasher.update(&[ends.tag]);
    for nonce in nonces {
        hasher.update(nonce);
    }
    hasher.update(handle);
    *hasher.finalize().as_bytes()
}

/// Whether two greetings are equal, in constant time.
pub(super) fn agrees(found: &[u8; GREETING_BYTES], expected: &[u8; GREETING_BYTES]) -> bool {
    blake3::Hash::from(*found) == blake3::Hash::from(*expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_holds_for_one_edge_of_one_communicator() {
        let ends = Ends { sender: Rank(1), receiver: Rank(2), channel: Channel(3), tag: 4 };
        let of = |secret: u8, ends: Ends, sender: u8, handle: &[u8]| {
            greeting(&[secret; 32], &ends, [&[sender; 32], &[9; 32]], handle)
        };
        let all = [
            of(1, ends, 5, b"h"),
            of(2, ends, 5, b"h"),
            of(1, Ends { sender: Rank(2), receiver: Rank(1), ..ends }, 5, b"h"),
            of(1, Ends { channel: Channel(4), ..ends }, 5, b"h"),
            of(1, Ends { tag: 3, ..ends }, 5, b"h"),
            of(1, ends, 6, b"h"),
            of(1, ends, 5, b"g"),
        ];
        for (i, one) in all.iter().enumerate() {
            for (j, other) in all.iter().enumerate() {
                assert_eq!(agrees(one, other), i == j, "{i} {j}");
            }
        }
    }
}
