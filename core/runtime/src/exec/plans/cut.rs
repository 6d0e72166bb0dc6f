//! How long calls are cut into pieces.

use ccl_plan::Collective;
use ccl_plan::select::Advised;

use crate::discover::processor::is_of_amd;

/// How data may be cut; the same on all ranks.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// What a slot holds.
    pub(crate) slot_bytes: usize,
    /// What a slot in memory holds, through which a rank reaches itself however it reaches others.
    pub(crate) own_slot_bytes: usize,
    /// Longer chunks are cut: copies of one rank then overlap with those of the next.
    pub(crate) chunk_bytes: usize,
    /// How much room ranks have, where that decides how a length is best cut.
    pub(crate) room: Room,
    /// Which messages are lent and read directly.
    pub(crate) direct: Direct,
    /// Whether every edge goes through a network and sends user memory from where it is.
    pub(crate) lends_on_the_way: bool,
    /// From so many bytes on calls look whether all buffers are mapped, if they may be; 0 never.
    pub(crate) mapped_bytes: usize,
}

impl Cut {
    /// How a message to oneself may be cut.
    pub(super) fn to_oneself(self) -> Cut {
        let slot_bytes = self.own_slot_bytes;
        let chunk_bytes = self.chunk_bytes.min(slot_bytes);
        Cut { slot_bytes, chunk_bytes, lends_on_the_way: false, ..self }
    }

    /// The same where slots hold no more than this.
    pub(super) fn of_slots(self, most_bytes: usize) -> Cut {
        let [slot_bytes, chunk_bytes] =
            [self.slot_bytes, self.chunk_bytes].map(|bytes| bytes.min(most_bytes));
        Cut { slot_bytes, chunk_bytes, ..self }
    }

    /// Bytes to cut at: a tuner's wish, as far as slots and cache lines let it be had.
    pub(super) fn chunk_bytes_by(&self, advised: Option<Advised>) -> usize {
        let wish = advised.map_or(0, |advised| advised.chunk_bytes);
        let wish = wish.min(self.slot_bytes as u64) as usize;
        if wish == 0 { self.chunk_bytes } else { (wish / GRAIN_BYTES).max(1) * GRAIN_BYTES }
    }

    /// Bytes to cut a share at if nobody wished for anything else. In memory its pieces are equally long: the slot that one rank
    /// has read is what it fills next.
    pub(super) fn piece_bytes(&self, collective: Collective, share_bytes: usize) -> usize {
        let most = self.most_piece_bytes(collective, share_bytes);
        if self.room == Room::Other {
            return most;
        }
        let pieces = share_bytes.div_ceil(most).max(1);
        share_bytes.div_ceil(pieces).next_multiple_of(GRAIN_BYTES).min(most)
    }

    /// Up to how many bytes messages may go in one piece, however they are cut: both their ends have the same. 0 for all else.
    pub(super) fn whole_bytes(&self, collective: Collective) -> usize {
        let cut_short = matches!(self.room, Room::CoreForEach | Room::LongSlots) && is_of_amd();
        if collective.is_message() && cut_short { LONG_PIECE_BYTES.min(self.slot_bytes) } else { 0 }
    }

    fn most_piece_bytes(&self, collective: Collective, share_bytes: usize) -> usize {
        let message = collective.is_message();
        let (long, whole) = match flows_one_way(collective) {
            true => (LONG_ONE_WAY_BYTES, WHOLE_SLOT_ONE_WAY_BYTES),
            false => (LONG_SHARE_BYTES, WHOLE_SLOT_BYTES),
        };
        match self.room {
            Room::CoreForEach if is_of_amd() => match share_bytes {
                ..=LONG_PIECE_BYTES if message => AMD_SHORT_PIECE_BYTES.min(self.chunk_bytes),
                _ if share_bytes >= whole => self.slot_bytes,
                _ => LONG_PIECE_BYTES.min(self.slot_bytes),
            },
            Room::CoreForEach if share_bytes >= long => LONG_PIECE_BYTES.min(self.slot_bytes),
            Room::CoreForEach if message && share_bytes <= SHORT_MESSAGE_BYTES => {
                SHORT_PIECE_BYTES.min(self.chunk_bytes)
            }
            Room::LongSlots if message && share_bytes <= LONG_PIECE_BYTES && is_of_amd() => {
                AMD_SHORT_PIECE_BYTES.min(self.slot_bytes)
            }
            Room::LongSlots => self.slot_bytes,
            Room::FewOnFewer => LONG_PIECE_BYTES.min(self.slot_bytes),
            Room::Many | Room::ManyOnFewer if share_bytes >= long_of_many(self.room, collective) => {
                LONG_PIECE_BYTES.min(self.slot_bytes)
            }
            _ => self.chunk_bytes,
        }
    }
}

/// Bytes of the buffers of all `n` ranks in a call whose buffers are of `bytes` bytes each; of messages, whose ranks tell nobody how many of
/// them there are, twice what it is if each rank sends one of `message_bytes` and receives one (ADR 0107).
pub(super) fn buffers_bytes(collective: Collective, bytes: u64, message_bytes: u64, n: u32) -> u64 {
    match collective {
        Collective::Send | Collective::Recv => message_bytes * 4 * u64::from(n),
        _ => bytes * 2 * u64::from(n),
    }
}

/// How much room the ranks of a host have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Few ranks go through memory, each with a core.
    CoreForEach,
    /// Ranks of one host go through memory and share cores, and slots are as long as copies like them: each holds a piece.
    LongSlots,
    /// Few ranks go through memory, and share cores: each piece costs a turn of a core, and the slots of all still fit
    /// the nearest caches.
    FewOnFewer,
    /// More than few ranks, all of one host, go through memory.
    Many,
    /// The same, and share cores, and few long messages are under way.
    ManyOnFewer,
    /// Anything else, or the user has said how to cut.
    Other,
}

/// Which messages are lent and read directly, where all that the programs of a call send may be lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direct {
    /// None: some rank cannot.
    Never,
    /// Those for which it is faster.
    WhereFaster,
    /// Those for which it is among few processes with a core each, where a trial said so; and whether by far.
    Tried { far: bool },
    /// None, since it is nowhere faster.
    Slower,
    /// All of so many bytes and more.
    From(usize),
}

/// From how many bytes on shares are cut into long pieces where many ranks go through memory; those of messages never are. Measured with 8
/// ranks on 2 cores: ADR 0077, and ADR 0119 for those that share cores and have few under way.
fn long_of_many(room: Room, collective: Collective) -> usize {
    use Collective::{AllGather, AllGatherV, AllReduce, Broadcast, Reduce, ReduceScatter, ReduceScatterV};
    match (room, collective) {
        (Room::ManyOnFewer, AllReduce | Reduce | Broadcast) => LONG_SHARE_BYTES,
        (Room::ManyOnFewer, AllGather | AllGatherV | ReduceScatter | ReduceScatterV) => LONG_SHARE_BYTES,
        (Room::Many, AllGather | AllGatherV | ReduceScatter | ReduceScatterV) => 1 << 20,
        (Room::Many, Broadcast) => 8 << 20,
        _ => usize::MAX,
    }
}

/// Whether a rank either sends or receives in most of the call.
fn flows_one_way(collective: Collective) -> bool {
    use Collective::{Broadcast, Gather, Recv, Reduce, Scatter, Send};
    matches!(collective, Broadcast | Reduce | Gather | Scatter | Send | Recv)
}

/// Chunk boundaries fall on cache lines of the user's buffer.
pub(super) const GRAIN_BYTES: usize = 64;
/// Pieces of short messages, whose receiver begins early.
const SHORT_PIECE_BYTES: usize = 8 << 10;
const SHORT_MESSAGE_BYTES: usize = 32 << 10;
/// Pieces of messages as long as a long piece and shorter on AMD processors (ADR 0110).
const AMD_SHORT_PIECE_BYTES: usize = 24 << 10;
/// Pieces of long shares, where each costs less than what is gained by beginning earlier (ADR 0055).
const LONG_PIECE_BYTES: usize = 64 << 10;
const LONG_SHARE_BYTES: usize = 128 << 10;
/// The same for what flows one way, and so is worth beginning early for longer.
const LONG_ONE_WAY_BYTES: usize = 512 << 10;
/// Shares that fill whole slots on AMD processors, where pieces are long as soon as they are several, and slots longer (ADR 0102).
const WHOLE_SLOT_BYTES: usize = 512 << 10;
const WHOLE_SLOT_ONE_WAY_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::processor::on_each;

    #[test]
    fn buffers_of_messages_are_counted_as_if_all_ranks_sent_one() {
        assert_eq!(buffers_bytes(Collective::AllReduce, 100, 100, 8), 1600);
        assert_eq!(buffers_bytes(Collective::AllGather, 800, 100, 8), 12_800);
        assert_eq!(buffers_bytes(Collective::Send, 100, 100, 8), 3200);
        assert_eq!(buffers_bytes(Collective::Recv, 800, 100, 8), 3200);
    }

    fn cut(room: Room) -> Cut {
        let (slot_bytes, chunk_bytes) = (128 << 10, 32 << 10);
        let direct = Direct::Never;
        Cut {
            slot_bytes,
            own_slot_bytes: slot_bytes,
            chunk_bytes,
            room,
            direct,
            lends_on_the_way: false,
            mapped_bytes: 0,
        }
    }

    fn pieces(room: Room, collective: Collective, share_bytes: usize) -> usize {
        cut(room).piece_bytes(collective, share_bytes)
    }

    #[test]
    fn of_many_ranks_only_what_is_long_and_not_reduced_as_a_whole_is_in_long_pieces() {
        let long = |collective, share| pieces(Room::Many, collective, share) == 64 << 10;
        let of = |share| Collective::ALL.into_iter().filter(move |c| long(*c, share)).collect::<Vec<_>>();
        use Collective::{AllGather, AllGatherV, Broadcast, ReduceScatter, ReduceScatterV};
        assert_eq!(of(512 << 10), []);
        let blocks = [AllGather, AllGatherV, ReduceScatter, ReduceScatterV];
        assert!(blocks.iter().all(|collective| of(1 << 20).contains(collective)), "{:?}", of(1 << 20));
        assert_eq!(of(1 << 20).len(), blocks.len());
        assert!(of(8 << 20).contains(&Broadcast) && of(1 << 40).len() == blocks.len() + 1);
    }

    #[test]
    fn many_ranks_that_share_cores_cut_long_shares_into_long_pieces_but_not_those_of_messages() {
        use Collective::{AllReduce, AllToAll, Broadcast, ReduceScatter, Send};
        let of = |share| {
            [AllReduce, Broadcast, ReduceScatter, AllToAll, Send]
                .map(|collective| pieces(Room::ManyOnFewer, collective, share) >> 10)
        };
        assert_eq!(of(128 << 10), [64, 64, 64, 32, 32]);
        assert_eq!(of(96 << 10), [32; 5]);
    }

    #[test]
    fn few_ranks_take_long_pieces_and_a_short_message_short_ones() {
        use Collective::{AllGather, AllReduce, Reduce, Send};
        assert_eq!(pieces(Room::FewOnFewer, AllReduce, 256 << 10), 64 << 10);
        assert_eq!(pieces(Room::LongSlots, Send, 256 << 10), 128 << 10);
        assert_eq!(pieces(Room::Other, AllGather, 64 << 20), 32 << 10);
        on_each(|| {
            for (collective, share_kib, of_amd, other) in [
                (Send, 24, 24, 8),
                (Send, 32, 16, 8),
                (Send, 48, 24, 24),
                (Send, 128, 64, 32),
                (Reduce, 64, 64, 32),
                (AllReduce, 128, 64, 64),
                (Reduce, 512, 64, 64),
                (AllGather, 512, 128, 64),
                (Reduce, 1024, 128, 64),
            ] {
                let expected = if is_of_amd() { of_amd } else { other } << 10;
                assert_eq!(
                    pieces(Room::CoreForEach, collective, share_kib << 10),
                    expected,
                    "{collective} {share_kib}"
                );
            }
        });
    }

    #[test]
    fn messages_that_may_go_whole_are_short_ones_in_memory_on_amd_processors() {
        use Collective::{Broadcast, Recv, Send};
        on_each(|| {
            let whole = if is_of_amd() { 64 << 10 } else { 0 };
            for (room, most) in
                [(Room::CoreForEach, whole), (Room::LongSlots, whole), (Room::Many, 0), (Room::Other, 0)]
            {
                let of = |collective| cut(room).whole_bytes(collective);
                assert_eq!([Send, Recv, Broadcast].map(of), [most, most, 0], "{room:?}");
            }
            let shorter = if is_of_amd() { 21_888 } else { 64 << 10 };
            assert_eq!(pieces(Room::LongSlots, Send, 64 << 10), shorter);
            assert_eq!(pieces(Room::LongSlots, Send, 65 << 10), 65 << 10);
            assert_eq!(pieces(Room::LongSlots, Broadcast, 64 << 10), 64 << 10);
        });
    }

    #[test]
    fn pieces_in_memory_are_equally_long_and_end_on_lines() {
        for share in [1, 48 << 10, (96 << 10) + 4, 1_000_000, 10_000_001] {
            for (room, most) in [(Room::Many, 32 << 10), (Room::FewOnFewer, 64 << 10)] {
                let piece = pieces(room, Collective::AllReduce, share);
                let number = share.div_ceil(most);
                assert_eq!(share.div_ceil(piece), number, "{share} in {piece}");
                assert!(piece <= most && piece.is_multiple_of(GRAIN_BYTES), "{piece}");
                assert!(
                    share > (number - 1) * piece && number * piece < share + number * GRAIN_BYTES,
                    "{share} in {piece}"
                );
            }
            assert_eq!(pieces(Room::Other, Collective::AllReduce, share), 32 << 10);
        }
    }
}
