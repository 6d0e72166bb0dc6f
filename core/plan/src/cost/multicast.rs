//! What a switch between devices saves that copies on the way what a rank sends to all others.
//!
//! The payload then leaves its sender once, and comes to every receiver as before. Two things may decide how long a call
//! takes, and the slower does. A rank's link has a way out and a way in: what comes in is no less, so that only the root of a
//! broadcast, who sends more than anybody receives, gains there. And channels move bytes at both ends: of the four ends of a
//! message (read, written to a slot, read there, written) the first two are those of one message for all.

use super::{Cost, Load, Rates};
use crate::algo::Algorithm;
use crate::collective::Collective;

/// From how many bytes on what all ranks are sent leaves its sender once, for each collective in which anybody sends so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Multicast {
    from: [Option<u64>; SENDING.len()],
}

impl Multicast {
    /// Nowhere: no switch copies.
    pub const NONE: Multicast = Multicast { from: [None; SENDING.len()] };

    /// In calls of so many bytes and more.
    pub const fn from_bytes_on(bytes: u64) -> Multicast {
        Multicast { from: [Some(bytes); SENDING.len()] }
    }

    /// The same with another limit for one collective; for one whose ranks send nothing to all others nothing changes.
    #[must_use]
    pub fn with(mut self, collective: Collective, from: Option<u64>) -> Multicast {
        if let Some(place) = place(collective) {
            self.from[place] = from;
        }
        self
    }

    /// From how many bytes on in calls of a collective; `None`: never.
    pub fn from(&self, collective: Collective) -> Option<u64> {
        place(collective).and_then(|place| self.from[place])
    }

    /// Whether ranks of such a call store once what they send to all others.
    pub fn serves(&self, collective: Collective, algorithm: Algorithm, n: u32, bytes: u64) -> bool {
        sends_to_all(collective, algorithm, n) && self.from(collective).is_some_and(|from| bytes >= from)
    }
}

/// Whether some rank of `n` sends the same to all others, who are more than one.
pub const fn sends_to_all(collective: Collective, algorithm: Algorithm, n: u32) -> bool {
    n > 2
        && matches!(
            (collective, algorithm),
            (Collective::Broadcast | Collective::AllGather | Collective::AllGatherV, Algorithm::Direct)
                | (
                    Collective::AllReduce,
                    Algorithm::OneShot | Algorithm::OneShotTree | Algorithm::TwoShot | Algorithm::TwoShotTree
                )
        )
}

/// The path of a call that a switch copies for, of which `pushed` is the cost without. What all ranks do together stays: those who
/// have such a switch have a device each, and share no cores.
pub(super) fn multicast(
    (collective, algorithm): (Collective, Algorithm),
    load: &Load,
    (rates, channels): (&Rates, u16),
    mut pushed: Cost,
) -> Cost {
    let (n, whole) = (f64::from(load.n), pushed.bytes);
    let before = pushed.path.moved_bytes;
    let saved = (n - 2.0) / 2.0;
    // What a rank's link carries, the one way or the other, and what its channels work on.
    let (link, work) = match (collective, algorithm) {
        (Collective::Broadcast, _) => (whole, whole),
        (_, Algorithm::OneShot | Algorithm::OneShotTree) => (before, before - saved * whole),
        _ => (before, before - saved * whole / n),
    };
    let of_channels = rates.channel_beta_ns_per_byte / f64::from(channels.max(1));
    let slowest = (link * rates.beta_ns_per_byte).max(work * of_channels);
    let beta = rates.beta_ns_per_byte.max(of_channels);
    pushed.path.moved_bytes = if beta > 0.0 { slowest / beta } else { link };
    pushed
}

fn place(collective: Collective) -> Option<usize> {
    SENDING.iter().position(|sending| *sending == collective)
}

/// Those of [`sends_the_same`](super::sends_the_same).
const SENDING: [Collective; 4] =
    [Collective::Broadcast, Collective::AllGather, Collective::AllGatherV, Collective::AllReduce];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::algorithms;
    use crate::cost::{cost, sends_the_same};

    /// Rates of devices behind a switch that copies everything.
    const COPYING: Rates = Rates { multicast: Multicast::from_bytes_on(0), ..Rates::DEVICES };

    fn moved(collective: Collective, algorithm: Algorithm, n: u32, rates: &Rates, channels: u16) -> f64 {
        cost(collective, algorithm, n, 8_000_000, rates, channels).path.moved_bytes
    }

    /// Where links decide, as they do with many channels, only a root that sends to all gains.
    #[test]
    fn a_link_carries_in_what_it_carried_before() {
        let links = Rates { channel_beta_ns_per_byte: 0.0, ..COPYING };
        let plain = Rates { multicast: Multicast::NONE, ..links };
        for n in [3, 4, 8] {
            let whole = 8_000_000.0;
            let of = |collective, algorithm| {
                [&plain, &links].map(|rates| moved(collective, algorithm, n, rates, 32))
            };
            let peers = f64::from(n - 1);
            assert_eq!(of(Collective::Broadcast, Algorithm::Direct), [peers * whole, whole], "{n}");
            let [without, with] = of(Collective::AllGather, Algorithm::Direct);
            assert_eq!(without, with, "{n}");
            let [without, with] = of(Collective::AllReduce, Algorithm::TwoShot);
            assert_eq!(without, with, "{n}");
        }
    }

    /// Where one channel decides, its ends count: a block that all others are sent is stored once and read n−1 times.
    #[test]
    fn a_channel_stores_once() {
        let one = Rates { beta_ns_per_byte: 0.0, ..COPYING };
        let (n, whole) = (8, 8_000_000.0);
        let of = |collective, algorithm| moved(collective, algorithm, n, &one, 1);
        assert_eq!(of(Collective::AllGather, Algorithm::Direct), whole / 2.0);
        assert_eq!(of(Collective::AllReduce, Algorithm::OneShot), 4.0 * whole);
        assert_eq!(of(Collective::AllReduce, Algorithm::TwoShot), (7.0 / 8.0 + 0.5) * whole);
        assert_eq!(of(Collective::AllReduce, Algorithm::Ring), 14.0 / 8.0 * whole);
    }

    #[test]
    fn nothing_costs_more_and_nothing_else_changes() {
        for n in [2, 3, 5, 8] {
            for collective in Collective::ALL {
                for algorithm in algorithms(collective).iter().copied() {
                    for channels in [1, 4, 32] {
                        let of = |rates| cost(collective, algorithm, n, 1 << 22, rates, channels);
                        let (with, without) = (of(&COPYING), of(&Rates::DEVICES));
                        let served = COPYING.multicast.serves(collective, algorithm, n, 1 << 22);
                        let text = alloc::format!("{collective}.{algorithm} n={n}: {with:?} {without:?}");
                        assert!(served || with == without, "{text}");
                        assert!(with.path.moved_bytes <= without.path.moved_bytes, "{text}");
                        assert_eq!(with.path.messages, without.path.messages, "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn limits_are_those_of_each_collective() {
        assert!(Collective::ALL.into_iter().all(|c| sends_the_same(c) == SENDING.contains(&c)));
        let from = Multicast::from_bytes_on(100).with(Collective::Broadcast, None);
        let from = from.with(Collective::AllGatherV, Some(0)).with(Collective::Reduce, Some(0));
        let serves = |collective, algorithm, n, bytes| from.serves(collective, algorithm, n, bytes);
        assert!(!serves(Collective::Broadcast, Algorithm::Direct, 8, 1 << 30));
        assert!(serves(Collective::AllGatherV, Algorithm::Direct, 8, 0));
        assert!(!serves(Collective::Reduce, Algorithm::Direct, 8, 1 << 30));
        assert!(serves(Collective::AllGather, Algorithm::Direct, 3, 100));
        assert!(!serves(Collective::AllGather, Algorithm::Direct, 3, 99));
        assert!(!serves(Collective::AllGather, Algorithm::Direct, 2, 100));
        assert!(!serves(Collective::AllGather, Algorithm::Ring, 8, 100));
    }
}
