//! How to wait: spin, then yield, then sleep.
//!
//! Spinning notices a message within nanoseconds and costs a core. Yielding lets another rank run
//! when there are more ranks than cores, and costs a core otherwise. Sleeping costs nothing, and
//! tens of microseconds to wake up. A [`Waiter`] goes through all three.

use std::time::{Duration, Instant};

use super::shm::{Bell, NETWORK_SLEEP};

/// When to go from spinning to yielding to sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitSettings {
    /// Spin this long,
    pub spin: Duration,
    /// then yield the core in a loop this long,
    pub yielding: Duration,
    /// or this long if nobody else had the core meanwhile,
    pub alone: Duration,
    /// then sleep, this long at first and each time twice as long,
    pub first_sleep: Duration,
    /// up to this long.
    pub longest_sleep: Duration,
}

/// One wait: made when an operation finds nothing to do, paused on every fruitless poll.
///
/// Cheap to make: no system call, no allocation, no look at the clock.
#[derive(Debug)]
pub struct Waiter {
    settings: WaitSettings,
    /// Spins until the clock is read next,
    spins: u32,
    /// or yields.
    yields: u32,
    /// Whether nobody else had the core in any yield in doubt.
    alone: bool,
    /// When the clock was first read; `None` before.
    since: Option<Instant>,
    next_sleep: Duration,
    armed: Option<(Bell, u32)>,
}

impl WaitSettings {
    /// These settings where `ranks` ranks share `cores` cores: with more ranks than cores spinning
    /// only keeps a peer from running, so there is none. With very many, those that wait must not keep the
    /// cores busy with waking up.
    #[must_use]
    pub fn on_host(self, ranks: usize, cores: usize) -> WaitSettings {
        if ranks <= cores {
            return self;
        }
        let crowds = (ranks / cores.max(1) / RANKS_OF_A_CROWD).max(1) as u32;
        let longest_sleep = (self.longest_sleep * crowds).min(LONGEST_SLEEP.max(self.longest_sleep));
        let yielding = self.yielding.min(CROWDED_YIELDING);
        WaitSettings { spin: Duration::ZERO, yielding, longest_sleep, ..self }
    }

    /// These settings where messages may come from a network, which rings no bell.
    #[must_use]
    pub fn with_network(self) -> WaitSettings {
        WaitSettings { longest_sleep: self.longest_sleep.min(NETWORK_SLEEP), ..self }
    }

    /// These settings where all messages come from a network that says where to look for them: the system
    /// wakes whoever sleeps. Where ranks have to share cores they sleep after some yields, and after one that took
    /// long: a thread that is no rank had the core until its time was over, and who sleeps is woken into its place.
    /// Whom nobody took the core from in any of them looks on for a while: who is waited for is at work elsewhere.
    #[must_use]
    pub fn with_watched_network(self) -> WaitSettings {
        let (yielding, alone) =
            if self.crowded() { (Duration::ZERO, ALONE) } else { (self.yielding, self.alone) };
        WaitSettings { yielding, alone, first_sleep: self.longest_sleep, ..self }
    }

    /// These settings where looking costs others more than a late look costs anybody.
    #[must_use]
    pub(crate) fn unhurried(self) -> WaitSettings {
        let longest_sleep = self.first_sleep;
        WaitSettings {
            spin: Duration::ZERO,
            yielding: Duration::ZERO,
            alone: Duration::ZERO,
            longest_sleep,
            ..self
        }
    }

    /// Whether spinning would keep a peer from running.
    pub(crate) fn crowded(&self) -> bool {
        self.spin.is_zero()
    }

    /// Spins before the first look at the clock, and yields.
    #[inline]
    fn allowance(&self) -> (u32, u32) {
        match self.crowded() {
            false => (SPINS, 0),
            true if !self.yielding.is_zero() => (0, YIELDS),
            true => (0, WATCHED_YIELDS),
        }
    }
}

impl Default for WaitSettings {
    fn default() -> WaitSettings {
        WaitSettings {
            spin: Duration::from_micros(50),
            yielding: YIELDING,
            alone: Duration::ZERO,
            first_sleep: Duration::from_micros(50),
            longest_sleep: Duration::from_millis(1),
        }
    }
}

impl Waiter {
    /// A wait that has not begun.
    #[inline]
    pub fn new(settings: &WaitSettings) -> Waiter {
        let (spins, yields) = settings.allowance();
        Waiter {
            settings: *settings,
            spins,
            yields,
            alone: true,
            since: None,
            next_sleep: settings.first_sleep,
            armed: None,
        }
    }

    /// Waits a little. Called after each poll that found nothing; with a bell, sleeps end when it
    /// rings. Returns early or late: the caller polls again.
    #[inline]
    pub fn pause(&mut self, bell: Option<&Bell>) {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
        } else if self.yields > 0 {
            self.yields -= 1;
            if self.settings.yielding.is_zero() {
                self.yield_in_doubt();
            } else {
                yield_core(bell);
            }
        } else {
            self.pause_by_clock(bell);
        }
    }

    /// Something moved: the next pause spins again.
    #[inline]
    pub fn reset(&mut self) {
        (self.spins, self.yields) = self.settings.allowance();
        self.alone = true;
        if self.since.is_some() {
            self.begin_again();
        }
    }

    /// The last yield before a sleep, if somebody else's thread had the core meanwhile.
    fn yield_in_doubt(&mut self) {
        let before = Instant::now();
        std::thread::yield_now();
        self.yielded(before.elapsed());
    }

    /// A yield in doubt took that long.
    fn yielded(&mut self, away: Duration) {
        self.alone &= away < SHORTEST_TURN;
        if away > LONGEST_TURN {
            self.yields = 0;
        }
    }

    /// How long to yield by the clock before the first sleep.
    fn yielding(&self) -> Duration {
        if self.alone { self.settings.yielding.max(self.settings.alone) } else { self.settings.yielding }
    }

    #[cold]
    fn begin_again(&mut self) {
        self.since = None;
        self.next_sleep = self.settings.first_sleep;
        self.disarm();
    }

    /// A pause for which the clock may be read.
    #[cold]
    fn pause_by_clock(&mut self, bell: Option<&Bell>) {
        let now = Instant::now();
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        if waited < self.settings.spin {
            self.spins = SPINS;
        } else if waited < self.settings.spin + self.yielding() {
            self.yields = YIELDS;
        } else {
            self.sleep(bell);
        }
    }

    /// The first sleep with a bell only announces itself: the caller's next poll is the second look
    /// without which a ring might be missed.
    fn sleep(&mut self, bell: Option<&Bell>) {
        match (&mut self.armed, bell) {
            (Some((bell, heard)), _) => {
                bell.sleep(*heard, self.next_sleep);
                *heard = bell.rings();
            }
            (None, Some(bell)) => {
                self.armed = Some((bell.clone(), bell.arm()));
                return;
            }
            (None, None) => std::thread::sleep(self.next_sleep),
        }
        self.next_sleep = (self.next_sleep * 2).min(self.settings.longest_sleep);
    }

    fn disarm(&mut self) {
        if let Some((bell, _)) = self.armed.take() {
            bell.disarm();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// Lets others have the core; peers are told if there is a bell.
fn yield_core(bell: Option<&Bell>) {
    match bell {
        Some(bell) => bell.yield_core(),
        None => std::thread::yield_now(),
    }
}

/// A core that a virtual machine has given back takes up to 300 µs to be woken on a busy host. Two ranks that sleep sooner
/// than that keep each other asleep: each call takes as long as a wake, and so the next rank is asleep by then.
const YIELDING: Duration = Duration::from_millis(4);
/// Where ranks share cores, who yields is not always left: first calls took a millisecond each with 5 ms.
const CROWDED_YIELDING: Duration = Duration::from_micros(200);
const SPINS: u32 = 64;
const YIELDS: u32 = 8;
/// Yields before a sleep from which news wake: 16 to 32 measured best with 4 and 8 ranks on two cores.
const WATCHED_YIELDS: u32 = 32;
/// A rank that shares a core gives it back sooner,
const LONGEST_TURN: Duration = Duration::from_millis(1);
/// and two changes of who has it take longer.
const SHORTEST_TURN: Duration = Duration::from_nanos(1500);
/// A mebibyte takes half as long over a host's own network.
const ALONE: Duration = Duration::from_micros(300);
/// Ranks on a core that may wake up each millisecond.
const RANKS_OF_A_CROWD: usize = 8;
/// A bell that was missed is not noticed sooner where ranks crowd.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> WaitSettings {
        WaitSettings {
            spin: Duration::from_micros(20),
            yielding: Duration::from_micros(20),
            alone: Duration::ZERO,
            first_sleep: Duration::from_millis(1),
            longest_sleep: Duration::from_millis(4),
        }
    }

    #[test]
    fn waiting_goes_from_spins_to_growing_sleeps_and_back() {
        let mut waiter = Waiter::new(&settings());
        waiter.pause(None);
        assert!(waiter.since.is_none(), "the first pauses do not read the clock");
        while waiter.next_sleep < Duration::from_millis(4) {
            waiter.pause(None);
        }
        let start = Instant::now();
        waiter.pause(None);
        assert!(start.elapsed() >= Duration::from_millis(3));
        waiter.reset();
        assert!(waiter.since.is_none() && waiter.next_sleep == Duration::from_millis(1));
    }

    #[test]
    fn a_sleeping_waiter_costs_little_cpu() {
        let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let (start, before) = (Instant::now(), cpu());
        let mut waiter = Waiter::new(&settings());
        while start.elapsed() < Duration::from_millis(100) {
            waiter.pause(None);
        }
        let used = cpu() - before;
        assert!(used.tv_sec == 0 && used.tv_nsec < 20_000_000, "{used:?} of 100 ms");
    }

    #[test]
    fn crowded_hosts_spin_less_and_networks_sleep_less() {
        let usual = WaitSettings::default();
        assert_eq!(usual.on_host(2, 2), usual);
        assert!(usual.on_host(3, 2).crowded());
        assert_eq!((usual.yielding, usual.on_host(3, 2).yielding), (YIELDING, CROWDED_YIELDING));
        assert_eq!(usual.on_host(16, 2).longest_sleep, usual.longest_sleep);
        assert_eq!(usual.on_host(64, 2).longest_sleep, 4 * usual.longest_sleep);
        assert_eq!(usual.on_host(100_000, 1).longest_sleep, LONGEST_SLEEP);
        assert!(usual.with_network().longest_sleep < usual.longest_sleep);
        assert_eq!(usual.with_watched_network().yielding, usual.yielding);
        assert!(usual.on_host(3, 2).with_watched_network().yielding.is_zero());
    }

    #[test]
    fn who_has_a_shared_core_for_itself_looks_on_before_it_sleeps() {
        let watched = settings().on_host(3, 2).with_watched_network();
        let waiter = || {
            let mut waiter = Waiter::new(&watched);
            // Whatever its yields would take on this machine.
            waiter.yields = 0;
            waiter
        };
        let mut alone = waiter();
        alone.yielded(SHORTEST_TURN / 2);
        alone.pause_by_clock(None);
        assert_eq!(alone.yields, YIELDS);

        let mut sharing = waiter();
        sharing.yielded(SHORTEST_TURN * 2);
        let start = Instant::now();
        sharing.pause_by_clock(None);
        assert!(sharing.yields == 0 && start.elapsed() >= watched.first_sleep, "it slept");
        sharing.reset();
        assert_eq!(sharing.yielding(), ALONE, "it tries again");
        assert!(Waiter::new(&watched.unhurried()).yielding().is_zero());
    }
}
