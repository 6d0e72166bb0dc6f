//! Presence: whether a rank is at work and on which core, told to those that share its cores.
//!
//! Who waits on a shared core gives it to others, and having it again takes longer than most messages. If whoever is waited for
//! is at work on another core, its message comes sooner than that; if it shares the core, or has given its own away, it does not.
//! So a rank writes into its region where it runs when it takes its core, and that it is away when it gives the core away.
//! Nothing relies on that: who is told wrong things waits a little longer, or gives its core away too soon.
//!
//! Ranks on different cores that wait for each other then run at the same time, and each turn of a core goes several short calls
//! on: as many as messages come while it lasts.

use std::sync::atomic::{AtomicU32, Ordering};

use super::layout::Region;
use crate::discover::processor::is_of_amd;

/// The word in a region's header, in a line of its own: it changes with each turn.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct PresenceLine(AtomicU32);

/// What a rank says of itself: its core's number plus one, times two, and one more while it is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Presence(u32);

/// What a rank that waits has seen since it had its core last, and how long it has looked on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookout {
    looks: u32,
    /// Nothing has moved since this turn of the core began.
    idle: bool,
    /// Whoever is waited for has been at work in this turn.
    met: bool,
}

impl PresenceLine {
    #[inline]
    pub(super) fn read(&self) -> Presence {
        // Relaxed, here and below: a hint, which orders nothing.
        Presence(self.0.load(Ordering::Relaxed))
    }

    /// Does something that leaves the core to others, and has peers know.
    #[inline]
    pub(super) fn leave(&self, leaves: impl FnOnce()) {
        self.0.store(self.read().0 | AWAY, Ordering::Relaxed);
        leaves();
        // SAFETY: it takes nothing, and returns the number of a core, or -1: then the word is as if nothing had been said.
        let core = unsafe { libc::sched_getcpu() };
        self.0.store(((core + 1) as u32) << 1, Ordering::Relaxed);
    }
}

impl Presence {
    /// Of the owner of a region.
    #[inline]
    pub(crate) fn of(region: &Region) -> Presence {
        region.presence().read()
    }

    fn is_away(self) -> bool {
        self.0 & AWAY != 0
    }

    /// Whether the owner has said where it is.
    pub(super) fn is_said(self) -> bool {
        self.0 >> 1 != 0
    }

    /// Whether two ranks use the same core, as far as they have said so.
    pub(super) fn shares_with(self, other: Presence) -> bool {
        self.0 >> 1 == other.0 >> 1
    }
}

impl Lookout {
    /// Of a rank for which something has just moved.
    pub(crate) const fn new() -> Lookout {
        Lookout { looks: 0, idle: false, met: false }
    }

    /// Something moved.
    #[inline]
    pub(crate) fn moved(&mut self) {
        *self = Lookout::new();
    }

    /// The core is this rank's again.
    #[inline]
    pub(crate) fn turn(&mut self) {
        *self = Lookout { looks: 0, idle: true, met: false };
    }

    /// Whether to look once more before the core is given away, for a message of `peer`, or a piece of a `long` one; `pairs`: two ranks
    /// share each core.
    #[inline]
    pub(crate) fn stays(&mut self, own: Presence, peer: Presence, pairs: bool, long: bool) -> bool {
        if own.shares_with(peer) {
            return false;
        }
        self.met |= !peer.is_away();
        // Cores change hands at about the same time, and the other of two ranks is next: it may be about to come.
        let comes = pairs && self.idle && !self.met;
        let stays = (comes || !peer.is_away()) && self.looks < looks(pairs, long);
        self.looks += u32::from(stays);
        stays
    }
}

/// Looks for one that is at work on another core, or may be about to be: about as long as a turn of a core, and for one of two ranks of a
/// core on AMD processors longer than that, which has both cores change hands less often (ADR 0111). A piece of a long message takes about as
/// long to be copied (ADR 0113).
fn looks(pairs: bool, long: bool) -> u32 {
    if long || pairs && is_of_amd() { MORE_LOOKS } else { LOOKS }
}

/// While it is away.
const AWAY: u32 = 1;
/// Half as many are too few for cores to get in step where they are far apart, twice as many take longer than they save: measured.
const LOOKS: u32 = 40;
const MORE_LOOKS: u32 = 160;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::processor::on_each;

    fn at(core: u32) -> Presence {
        Presence((core + 1) << 1)
    }

    fn away(core: u32) -> Presence {
        Presence(at(core).0 | AWAY)
    }

    fn stays(lookout: &mut Lookout, own: Presence, peer: Presence, pairs: bool) -> u32 {
        std::iter::repeat_with(|| lookout.stays(own, peer, pairs, false)).take_while(|stays| *stays).count()
            as u32
    }

    #[test]
    fn who_is_at_work_on_another_core_is_waited_for() {
        for pairs in [false, true] {
            on_each(|| assert_eq!(stays(&mut Lookout::new(), at(0), at(1), pairs), looks(pairs, false)));
            assert_eq!(stays(&mut Lookout::new(), at(0), at(0), pairs), 0);
            assert_eq!(stays(&mut Lookout::new(), at(0), away(1), pairs), 0);
            // Nobody has said anything yet.
            assert_eq!(stays(&mut Lookout::new(), Presence(0), Presence(0), pairs), 0);
        }
    }

    #[test]
    fn pairs_look_on_for_longer_on_amd_processors() {
        on_each(|| {
            assert_eq!(looks(false, false), LOOKS);
            assert_eq!(looks(true, false), if is_of_amd() { MORE_LOOKS } else { LOOKS });
        });
    }

    #[test]
    fn pieces_of_long_messages_are_waited_for_as_long_as_a_copy_takes() {
        for pairs in [false, true] {
            on_each(|| assert_eq!(looks(pairs, true), MORE_LOOKS));
            let mut lookout = Lookout::new();
            let mut again = || lookout.stays(at(0), at(1), pairs, true);
            assert!((0..MORE_LOOKS).all(|_| again()) && !again());
            assert!(!Lookout::new().stays(at(0), at(0), pairs, true));
            assert!(!Lookout::new().stays(at(0), away(1), pairs, true));
        }
    }

    #[test]
    fn who_may_be_about_to_come_is_waited_for_at_the_start_of_a_turn() {
        let mut lookout = Lookout::new();
        lookout.turn();
        assert_eq!(stays(&mut lookout, at(0), away(1), false), 0);
        assert_eq!(stays(&mut lookout, at(0), away(1), true), looks(true, false));
        assert_eq!(stays(&mut lookout, at(0), away(0), true), 0);
        // It came and went.
        lookout.turn();
        assert!(lookout.stays(at(0), away(1), true, false) && lookout.stays(at(0), at(1), true, false));
        assert_eq!(stays(&mut lookout, at(0), away(1), true), 0);
        // Its message did.
        lookout.turn();
        lookout.moved();
        assert_eq!(stays(&mut lookout, at(0), away(1), true), 0);
    }

    #[test]
    fn a_rank_says_when_it_leaves_its_core_and_where_it_is_then() {
        let region = Region::for_tests(1);
        assert_eq!(Presence::of(&region), Presence(0));
        region.presence().leave(|| assert!(Presence::of(&region).is_away()));
        let here = Presence::of(&region);
        assert!(!here.is_away() && !here.shares_with(Presence(0)), "{here:?}");
    }
}
