//! The order in which ranks that share a core take turns, where their messages come over a network.
//!
//! Whoever is waited for should have had the core just before: then all that it sent in its turn is there. Ranks that share memory
//! see who that was. Here messages say it: each has in its header when it was written, on which core, and whether its sender is in
//! its place. A rank that for long comes back to its core well after the one on it that it waits for wrote its last message does not
//! yield once, but sleeps until there is a message. Its writer has the core then, and the woken rank comes right behind it.
//!
//! Only ranks that give turns say anything: nobody else reads the clock. Nothing relies on any of this; each word is a hint.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ccl_plan::Rank;
use rustix::time::{ClockId, clock_gettime};

use crate::transport::shm::TurnPatience;

/// What a message says of its sender's turn; 0 is nothing. From the top: a bit that something is said, one that the sender is in its
/// place, ten of its core's number, and the time in units of [`TIME_NS`], around the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sign(u32);

/// What this rank's messages say, and what the one said that it read last.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// All but the time.
    own: AtomicU32,
    /// With the number of its sender above it.
    heard: AtomicU64,
}

/// What a rank knows of its turns.
#[derive(Debug)]
pub(crate) struct NetTurns {
    /// Whether it is the first rank of its host: where all wait for each other in a circle, the one to go by.
    is_first: bool,
    /// When the turn before this one ended,
    left: u32,
    /// and this one began.
    back: u32,
    patience: TurnPatience,
    /// Whether it slept since it last knew whether it was in its place.
    slept: bool,
}

/// Where a rank comes among those of its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Unknown,
    /// Whoever is waited for has another core, or another host.
    Elsewhere,
    /// Right behind it.
    Behind,
    /// After others.
    Late,
}

impl Sign {
    fn time(self) -> u32 {
        self.0 & TIME
    }

    fn core(self) -> u32 {
        self.0 & CORE
    }

    fn is_settled(self) -> bool {
        self.0 & SETTLED != 0
    }
}

impl Signs {
    /// What a message that is written now says.
    #[inline]
    pub(super) fn sign(&self) -> u32 {
        // Relaxed, here and below: hints, which order nothing.
        match self.own.load(Ordering::Relaxed) {
            0 => 0,
            own => own | now(),
        }
    }

    /// A message was read that says this.
    #[inline]
    pub(super) fn hear(&self, from: Rank, sign: u32) {
        if sign != 0 {
            self.heard.store(u64::from(from.0) << 32 | u64::from(sign), Ordering::Relaxed);
        }
    }

    /// What the last message said that was read since this was asked last, if it was one of `peer`.
    fn take(&self, peer: Rank) -> Option<Sign> {
        let heard = self.heard.swap(0, Ordering::Relaxed);
        let sign = Sign(heard as u32);
        (sign.0 != 0 && heard >> 32 == u64::from(peer.0)).then_some(sign)
    }

    /// What messages say from now on.
    fn say(&self, core: u32, is_settled: bool) {
        self.own.store(SAID | if is_settled { SETTLED } else { 0 } | core, Ordering::Relaxed);
    }
}

impl NetTurns {
    pub(crate) fn new(is_first: bool) -> NetTurns {
        NetTurns { is_first, left: 0, back: 0, patience: TurnPatience::default(), slept: false }
    }

    /// The core is about to be given away, a message of `peer` being waited for, which is `beside` this rank on its host, or not.
    /// Whether to sleep until there is one.
    pub(crate) fn end(&mut self, signs: &Signs, (peer, beside): (Rank, bool)) -> bool {
        let core = (rustix::thread::sched_getcpu() as u32) << TIME_BITS & CORE;
        self.end_at(signs, (peer, beside), core, now())
    }

    fn end_at(&mut self, signs: &Signs, (peer, beside): (Rank, bool), core: u32, now: u32) -> bool {
        let heard = signs.take(peer);
        let place = match heard {
            _ if !beside => Place::Elsewhere,
            None => Place::Unknown,
            Some(sign) => self.place_behind(sign, core),
        };
        match place {
            Place::Unknown => {}
            Place::Elsewhere => self.slept = false,
            Place::Behind | Place::Late => {
                self.patience.turn(place == Place::Behind, std::mem::take(&mut self.slept));
            }
        }
        if place != Place::Unknown {
            signs.say(core, place != Place::Late || self.is_first);
        } else if signs.own.load(Ordering::Relaxed) == 0 {
            signs.say(core, self.is_first);
        }
        self.left = now;
        // Behind one that has yet to find its place there is none.
        let may = place == Place::Late && heard.is_some_and(Sign::is_settled);
        let sleeps = may && self.patience.is_over();
        self.slept |= sleeps;
        sleeps
    }

    /// The core is this rank's again.
    pub(crate) fn begin(&mut self) {
        self.back = now();
    }

    /// Where this turn came, by the last message of whoever is waited for.
    fn place_behind(&self, sign: Sign, core: u32) -> Place {
        if sign.core() != core {
            return Place::Elsewhere;
        }
        let (away, ago) = (since(self.left, self.back), since(sign.time(), self.back));
        match ago {
            // Written before the last turn ended, or in this one: nothing that others did in between.
            _ if ago > away => Place::Unknown,
            _ if ago < away / 4 => Place::Behind,
            _ => Place::Late,
        }
    }
}

/// The time as signs have it.
#[inline]
fn now() -> u32 {
    let time = clock_gettime(ClockId::Monotonic);
    let ns = (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64);
    (ns / TIME_NS) as u32 & TIME
}

fn since(then: u32, now: u32) -> u32 {
    now.wrapping_sub(then) & TIME
}

/// The time goes round in 67 ms: sleeps that long are no turns.
const TIME_BITS: u32 = 20;
const TIME: u32 = (1 << TIME_BITS) - 1;
const TIME_NS: u64 = 64;
const CORE: u32 = 0x3ff << TIME_BITS;
const SETTLED: u32 = 1 << 30;
const SAID: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 5 << TIME_BITS;
    const PEER: Rank = Rank(3);
    /// How long others have the core.
    const AWAY: u32 = 400;

    /// Ends a turn before which `PEER` wrote, `ago` before it began; whether to sleep.
    fn turn(turns: &mut NetTurns, signs: &Signs, core: u32, settled: bool, ago: u32) -> bool {
        turns.back = turns.left.wrapping_add(AWAY) & TIME;
        let time = turns.back.wrapping_sub(ago) & TIME;
        signs.hear(PEER, SAID | if settled { SETTLED } else { 0 } | core | time);
        turns.end_at(signs, (PEER, true), HERE, turns.back.wrapping_add(50) & TIME)
    }

    fn is_settled(signs: &Signs) -> bool {
        Sign(signs.own.load(Ordering::Relaxed)).is_settled()
    }

    #[test]
    fn a_rank_that_is_late_for_long_sleeps_once_and_then_stays_for_a_while() {
        let (signs, mut turns) = (Signs::default(), NetTurns::new(false));
        let mut late = || turn(&mut turns, &signs, HERE, true, AWAY / 2);
        let first = (1..).find(|_| late()).unwrap();
        assert!(!is_settled(&signs));
        assert!((0..first).all(|_| !late()), "it rests");
        assert!((0..100 * first).any(|_| late()), "and tries again");
    }

    #[test]
    fn who_comes_right_behind_or_has_its_core_for_itself_is_in_its_place() {
        for (core, ago) in [(HERE, AWAY / 4 - 1), (HERE + (1 << TIME_BITS), AWAY / 2)] {
            let (signs, mut turns) = (Signs::default(), NetTurns::new(false));
            assert!((0..1000).all(|_| !turn(&mut turns, &signs, core, true, ago)));
            assert!(is_settled(&signs));
        }
    }

    #[test]
    fn clocks_of_other_hosts_are_not_read() {
        let (signs, mut turns) = (Signs::default(), NetTurns::new(false));
        for _ in 0..1000 {
            signs.hear(PEER, SAID | SETTLED | HERE);
            assert!(!turns.end_at(&signs, (PEER, false), HERE, AWAY));
        }
        assert!(is_settled(&signs));
    }

    #[test]
    fn nobody_follows_one_that_is_not_in_its_place() {
        let (signs, mut turns) = (Signs::default(), NetTurns::new(false));
        assert!((0..1000).all(|_| !turn(&mut turns, &signs, HERE, false, AWAY / 2)));
        assert!(turn(&mut turns, &signs, HERE, true, AWAY / 2));
    }

    #[test]
    fn the_first_rank_is_the_one_to_go_by() {
        let (signs, mut turns) = (Signs::default(), NetTurns::new(true));
        assert!(!turns.end_at(&signs, (PEER, true), HERE, 0), "nothing came");
        assert!(is_settled(&signs));
        turn(&mut turns, &signs, HERE, false, AWAY / 2);
        assert!(is_settled(&signs));
    }

    #[test]
    fn what_was_written_before_the_last_turn_ended_or_by_others_says_nothing() {
        let (signs, mut turns) = (Signs::default(), NetTurns::new(false));
        assert!((0..1000).all(|_| !turn(&mut turns, &signs, HERE, true, AWAY + 1)));
        for _ in 0..1000 {
            signs.hear(Rank(PEER.0 + 1), SAID | SETTLED | HERE);
            assert!(!turns.end_at(&signs, (PEER, true), HERE, 0));
        }
        assert!(!is_settled(&signs));
    }

    #[test]
    fn who_gave_no_turn_says_nothing() {
        let (signs, mut turns) = (Signs::default(), NetTurns::new(false));
        assert_eq!(signs.sign(), 0);
        signs.hear(PEER, 0);
        assert_eq!(signs.take(PEER), None);
        turns.end(&signs, (PEER, true));
        assert!(signs.sign() & SAID != 0);
        // Others may have the core between the two looks at the clock, but not each time.
        assert!((0..1000).any(|_| since(Sign(signs.sign()).time(), now()) < 1000));
    }
}
