//! Telling waiting from progress.

use std::time::{Duration, Instant};

/// Looks for a time in which no fiber does anything but wait.
pub(crate) struct Watch {
    hang_after: Duration,
    idle_turns: usize,
    /// When the idle turns began; asked for only when there are many.
    idle_since: Option<Instant>,
    fibers: Vec<Seen>,
}

/// What a fiber was seen doing.
#[derive(Clone, Copy, Default)]
struct Seen {
    stores: u64,
    spin: Option<(usize, u32)>,
}

impl Watch {
    pub(crate) fn new(hang_after: Duration) -> Watch {
        Watch { hang_after, idle_turns: 0, idle_since: None, fibers: Vec::new() }
    }

    /// One more fiber.
    pub(crate) fn add(&mut self) {
        self.fibers.push(Seen::default());
    }

    /// A turn of a fiber ended: how many stores it has made so far, and what it now spins on with the value there.
    pub(crate) fn turn(&mut self, fiber: usize, stores: u64, spin: Option<(usize, u32)>) {
        let seen = &mut self.fibers[fiber];
        let moved = seen.stores != stores || (spin.is_some() && seen.spin != spin);
        seen.stores = stores;
        seen.spin = spin.or(seen.spin);
        if moved {
            self.progress();
        } else {
            self.idle_turns += 1;
        }
    }

    /// Something happened that no turn shows.
    pub(crate) fn progress(&mut self) {
        self.idle_turns = 0;
        self.idle_since = None;
    }

    /// Whether all of so many fibers have waited long enough to say that it is for ever: a wait may take all lanes of a
    /// warp many turns between two looks at an abort flag. While others on other system threads
    /// may end the waiting, lets them run.
    pub(crate) fn hangs(&mut self, fibers: usize) -> bool {
        if self.hang_after.is_zero() {
            return self.idle_turns > IDLE_ROUNDS * fibers + IDLE_TURNS;
        }
        if self.idle_turns == 0 || !self.idle_turns.is_multiple_of(4 * fibers + 1) {
            return false;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        std::thread::yield_now();
        since.elapsed() > self.hang_after
    }

    /// What a fiber last spun on.
    pub(crate) fn spin(&self, fiber: usize) -> Option<(usize, u32)> {
        self.fibers[fiber].spin
    }
}

/// Turns of every fiber without progress that are a hang, if nobody else can end it.
const IDLE_ROUNDS: usize = 1000;

/// And so many more.
const IDLE_TURNS: usize = 100_000;
