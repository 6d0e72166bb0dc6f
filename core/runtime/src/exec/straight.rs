//! The straight way through a short call: its tape from end to end, with nothing set up around it.
//!
//! An operation has lanes, a place in the queue and a name for reports. A short call whose peers are
//! prompt is over before any of that is needed. Where it cannot go on, it becomes an operation that
//! goes on from there ([`super::host::Operation::start_at`]).

use ccl_plan::{Collective, Rank};

use super::host::{Company, RunState, Stop, stages_input};
use super::lending::Lending;
use super::message::Copied;
use super::plans::Reach;
use super::short::{self, Taken};
use super::step::{Bindings, LaneStep, TURN_BYTES};
use super::tape::{Entry, Handing, Kind, Tape};
use crate::memory::scratch::Scratch;
use crate::request::Bound;
use crate::transport::{Fabric, Lookout, WaitSettings};

/// Lanes of the calls that may go straight.
pub(super) const MOST_STRAIGHT_LANES: usize = 4;

/// How often a call that goes straight looks again before it goes to the queue to wait there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    left: u32,
    /// Whether others may have the core before each further look.
    yields: bool,
    lookout: Lookout,
}

impl Tries {
    /// One look.
    pub(super) const NONE: Tries = Tries { left: 0, yields: false, lookout: Lookout::new() };

    /// As many as a prompt peer needs.
    pub(super) fn of(wait: &WaitSettings) -> Tries {
        match wait.crowded() {
            true => Tries { left: TURNS, yields: true, ..Tries::NONE },
            false => Tries { left: POLLS, ..Tries::NONE },
        }
    }

    /// As calls of a group have that others follow.
    pub(super) fn is_one_look(&self) -> bool {
        self.left == 0
    }

    /// Whether to look again for what `peer` has to do.
    #[inline]
    fn again(&mut self, fabric: &mut Fabric, peer: Option<Rank>, heed: Heed) -> bool {
        if self.left == 0 {
            return false;
        }
        if self.yields && heed == Heed::Work && fabric.stays(&mut self.lookout, peer, false) {
            std::hint::spin_loop();
            return true;
        }
        self.left -= 1;
        if self.yields {
            match (heed, peer) {
                (Heed::Work, Some(_)) => fabric.yield_core(),
                (Heed::Turns, Some(peer)) => fabric.give_turn(peer),
                // In other calls nobody looks where this rank is, and saying it takes time.
                _ => std::thread::yield_now(),
            }
            self.lookout.turn();
        }
        true
    }

    /// Something moved.
    #[inline]
    fn moved(&mut self) {
        if self.yields {
            self.lookout.moved();
        }
    }
}

/// Whether calls with this tape may go straight: short ones that lend nothing and meet nobody on the
/// way, the farthest peer being reached as `reach` says.
pub(super) fn may(tape: Option<&Tape>, channels: u16, lanes: usize, lending: Lending, reach: Reach) -> bool {
    let short = |tape: &Tape| {
        let mut lanes = (0..lanes).map(|lane| tape.lane(lane));
        lanes.all(|entries| {
            let entries = entries.iter();
            let plain = |entry: &Entry| entry.kind != Kind::Barrier && entry.handing != Handing::Lent;
            entries.clone().all(plain)
                && match reach {
                    Reach::Memory | Reach::MemoryDirect => {
                        entries.map(|entry| entry.bytes).sum::<usize>() <= TURN_BYTES
                    }
                    _ => entries.map(|entry| entry.bytes).max() <= Some(SHORT_NET_BYTES),
                }
        })
    };
    let lends = !matches!(lending, Lending::Never | Lending::Nothing);
    channels == 1 && lanes <= MOST_STRAIGHT_LANES && !lends && tape.is_some_and(short)
}

/// What a rank that shares its core heeds while it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heed {
    Nothing,
    /// Whether whoever is waited for is at work on another core: then it looks on (ADR 0091).
    Work,
    /// The same, but only if the rank has had no other call under way meanwhile: others of its core may have the other ends of those
    /// (ADR 0113).
    WorkAlone,
    /// Who had the core before: that should be whoever is waited for (ADR 0101).
    Turns,
}

impl Heed {
    /// In a call. In rooted ones whoever is waited for has more to do for others, in long collectives copies leave the time for a turn of
    /// the core, and a rank that has its core for itself only waits.
    pub(super) fn of(collective: Collective, bytes: u64, straight: bool, ranks_of_a_core: usize) -> Heed {
        let is_message = collective.is_message();
        match ranks_of_a_core {
            0 | 1 => Heed::Nothing,
            2 if is_message && straight => Heed::Work,
            _ if is_message && straight => Heed::Turns,
            _ if is_message && bytes > LOOKED_ON_FROM_BYTES => Heed::WorkAlone,
            _ if is_message => Heed::Nothing,
            _ if !collective.rooted() && bytes <= LOOKED_ON_BYTES => Heed::Work,
            _ => Heed::Nothing,
        }
    }

    /// Whether to look on in a call that went to the queue.
    pub(super) fn looks_on(self, company: Company) -> bool {
        match self {
            Heed::Work => true,
            Heed::WorkAlone => company == Company::None,
            Heed::Nothing | Heed::Turns => false,
        }
    }
}

/// Takes the steps of a call that may go straight, `at` being where each lane stands. Gives up after
/// `tries` rounds in which nothing moved; whether it came to the end.
#[inline]
pub(super) fn run(
    call: Bindings<'_>,
    at: &mut [usize; MOST_STRAIGHT_LANES],
    fabric: &mut Fabric,
    scratch: &mut Scratch,
    mut tries: Tries,
) -> Result<bool, Stop> {
    let Some(tape) = &call.decision.tape else { return Ok(false) };
    #[cfg(test)]
    TAKEN.set(TAKEN.get() + 1);
    let scratch_chunks = usize::from(call.decision.program.scratch_chunks);
    if scratch_chunks > 0 {
        scratch.reserve(call.decision.scratch_bytes);
    }
    let chunk_bytes = call.decision.chunk_count * call.bound.dtype.size_bytes();
    let lanes = call.decision.program.lanes.len();
    if tape.is_plain() {
        let cells = |lane| scratch.cells(lane * scratch_chunks, chunk_bytes);
        return run_plain((call, tape), &mut at[..lanes], fabric, cells, tries);
    }
    // Others of its group follow.
    let company = if tries.is_one_look() { Company::Now } else { Company::None };
    let mut filled = [None; MOST_STRAIGHT_LANES];
    loop {
        let (mut open, mut moved, mut awaited) = (0, false, None);
        for (lane, at) in at.iter_mut().enumerate().take(lanes) {
            let entries = tape.lane(lane);
            let mut step = LaneStep {
                call,
                state: &mut RunState::Open,
                fabric: &mut *fabric,
                cells: scratch.cells(lane * scratch_chunks, chunk_bytes),
                bounce: std::ptr::null_mut(),
                lent: &mut Vec::new(),
                company,
                filled: &mut filled[lane],
                waiting_for: None,
            };
            if *at == 0
                && let Some(whole) = tape.whole()
            {
                match step.take_whole(whole)? {
                    Copied::Yes => (*at, moved) = (entries.len(), true),
                    Copied::NotYet => {
                        open += 1;
                        awaited = awaited.or(step.waiting_for.map(|(peer, _)| peer));
                        continue;
                    }
                    Copied::Otherwise => {}
                }
            }
            while let Some(entry) = entries.get(*at) {
                if !step.take(entry)? {
                    open += 1;
                    awaited = awaited.or(step.waiting_for.map(|(peer, _)| peer));
                    break;
                }
                *at += 1;
                moved = true;
            }
        }
        if open == 0 {
            return Ok(true);
        }
        if moved {
            tries.moved();
        } else {
            if !tries.again(fabric, awaited, call.decision.heed) {
                return Ok(false);
            }
            fabric.progress()?;
        }
    }
}

/// [`run`] for tapes of short steps, `cells` being where each lane's scratch starts.
#[inline(always)]
fn run_plain(
    (call, tape): (Bindings<'_>, &Tape),
    at: &mut [usize],
    fabric: &mut Fabric,
    mut cells: impl FnMut(usize) -> *mut u8,
    mut tries: Tries,
) -> Result<bool, Stop> {
    loop {
        let (mut open, mut moved, mut awaited) = (false, false, None);
        for (lane, at) in at.iter_mut().enumerate() {
            let (entries, cells) = (tape.lane(lane), cells(lane));
            while let Some(entry) = entries.get(*at) {
                match short::take(call, entry, fabric, cells)? {
                    Taken::Yes => (*at, moved) = (*at + 1, true),
                    Taken::NotYet(peer) => {
                        open = true;
                        awaited = Some(peer);
                        break;
                    }
                    Taken::Otherwise => return Ok(false),
                }
            }
        }
        if !open {
            return Ok(true);
        }
        if moved {
            tries.moved();
        } else {
            if !tries.again(fabric, awaited, call.decision.heed) {
                return Ok(false);
            }
            fabric.progress()?;
        }
    }
}

/// Whether this call's buffers let it go straight.
#[inline]
pub(super) fn fits(bound: &Bound) -> bool {
    !stages_input(bound)
}

/// At some 10 ns each longer than a prompt peer takes.
const POLLS: u32 = 500;
/// Turns of the others on a core in which a prompt peer's message comes: 8 do for two ranks on each core (ADR 0076).
const TURNS: u32 = 32;
/// Longer calls take more time than looking on saves.
const LOOKED_ON_BYTES: u64 = 64 << 10;
/// In messages that are not longer, looking on for a next piece saves nothing (ADR 0113).
const LOOKED_ON_FROM_BYTES: u64 = 256 << 10;
/// Longer steps over a network outweigh what an operation costs.
const SHORT_NET_BYTES: usize = 8 << 10;

#[cfg(test)]
thread_local! {
    /// Calls of this thread that went straight, as far as that was.
    static TAKEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::TransportSettings;
    use crate::{Config, local};

    #[test]
    fn calls_go_straight_for_a_turn_of_each_lane_in_memory_and_for_short_steps_over_a_network() {
        for (network, bytes, straight) in [
            ("0", TURN_BYTES, true),
            ("0", TURN_BYTES + 1, false),
            ("1", SHORT_NET_BYTES, true),
            ("1", SHORT_NET_BYTES + 1, false),
        ] {
            let vars = [("CCL_SHM_DISABLE", network), ("CCL_DIRECT_BYTES", "0"), ("CCL_MAPPED_BYTES", "0")];
            let config = Config::from_vars(vars.into_iter().chain([("CCL_PROGRESS_THREAD", "0")])).unwrap();
            let outcomes = local::try_run_with(&config, 2, |comm| {
                let (mut data, before) = (vec![comm.rank().0 as u8; bytes], TAKEN.get());
                match comm.rank() {
                    Rank(0) => comm.send(&data, Rank(1))?,
                    _ => comm.recv(&mut data, Rank(0))?,
                }
                assert!(data.iter().all(|byte| *byte == 0));
                Ok(TAKEN.get() - before)
            });
            let taken: Vec<u32> = outcomes.unwrap().into_iter().map(|taken| taken.unwrap()).collect();
            assert_eq!(taken, [u32::from(straight); 2], "{bytes} bytes");
        }
    }

    #[test]
    fn short_calls_without_a_root_look_on_where_cores_are_shared_evenly() {
        let (all, long) = (Collective::AllReduce, LOOKED_ON_BYTES + 1);
        for straight in [false, true] {
            for (ranks_of_a_core, heeds, in_messages) in [
                (0, Heed::Nothing, Heed::Nothing),
                (1, Heed::Nothing, Heed::Nothing),
                (2, Heed::Work, Heed::Work),
                (4, Heed::Work, Heed::Turns),
            ] {
                assert_eq!(Heed::of(all, LOOKED_ON_BYTES, straight, ranks_of_a_core), heeds);
                assert_eq!(Heed::of(all, long, straight, ranks_of_a_core), Heed::Nothing);
                assert_eq!(Heed::of(Collective::Reduce, 8, straight, ranks_of_a_core), Heed::Nothing);
                let message = Heed::of(Collective::Recv, 8, straight, ranks_of_a_core);
                assert_eq!(message, if straight { in_messages } else { Heed::Nothing });
            }
        }
    }

    #[test]
    fn long_messages_look_on_only_where_they_are_alone() {
        let of = |bytes, ranks_of_a_core| Heed::of(Collective::Recv, bytes, false, ranks_of_a_core);
        for (ranks_of_a_core, in_long) in
            [(0, Heed::Nothing), (1, Heed::Nothing), (2, Heed::WorkAlone), (4, Heed::WorkAlone)]
        {
            assert_eq!(of(LOOKED_ON_FROM_BYTES, ranks_of_a_core), Heed::Nothing);
            assert_eq!(of(LOOKED_ON_FROM_BYTES + 1, ranks_of_a_core), in_long);
        }
        let heeds = [Heed::Nothing, Heed::Turns, Heed::Work, Heed::WorkAlone];
        assert_eq!(heeds.map(|heed| heed.looks_on(Company::None)), [false, false, true, true]);
        for company in [Company::Gone, Company::Now] {
            assert_eq!(heeds.map(|heed| heed.looks_on(company)), [false, false, true, false]);
        }
    }

    #[test]
    fn who_shares_a_core_gives_it_up_between_looks() {
        let wait = WaitSettings::default();
        let (mut fabric, _) = Fabric::open(&TransportSettings::default(), Rank(0), 1).unwrap();
        let (apart, crowded) = (Tries::of(&wait), Tries::of(&wait.on_host(4, 2)));
        assert_eq!((apart.left, apart.yields), (POLLS, false));
        assert_eq!((crowded.left, crowded.yields), (TURNS, true));
        for (mut tries, looks) in [(apart, POLLS), (crowded, TURNS), (Tries::NONE, 0)] {
            assert_eq!(
                std::iter::repeat_with(|| tries.again(&mut fabric, None, Heed::Nothing))
                    .take_while(|again| *again)
                    .count(),
                looks as usize
            );
        }
    }
}
