//! How much of a core profilers may have where ranks need all of them.

use std::time::Duration;

/// The most of a core that delivery may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Share {
    /// In ten thousandths.
    parts: u32,
}

impl Share {
    /// All of a core: there is one for it.
    pub(super) const ALL: Share = Share { parts: WHOLE };
    /// How long the thread lets news gather where there is a core for it.
    pub(super) const MOMENT: Duration = Duration::from_millis(1);

    /// What slows ranks down by about `percent`, where they are so many processes: who holds one rank up holds all up, and
    /// for longer than the work lasts, since those that waited sleep by then ([`DELAY_PER_WORK`]). All of a core for 0 processes.
    pub(super) fn of(percent: u32, processes: usize) -> Share {
        let percent = percent.clamp(1, 100);
        match processes {
            0 => Share::ALL,
            _ if percent == 100 => Share::ALL,
            some => Share {
                parts: (percent * (WHOLE / 100 / DELAY_PER_WORK) / some.min(WHOLE as usize) as u32).max(1),
            },
        }
    }

    /// How long to rest after so much work, so that it was no more than the share.
    pub(super) fn rest(self, busy: Duration) -> Duration {
        let moment = if self == Share::ALL { Share::MOMENT } else { LONG_MOMENT };
        moment.max(busy * (WHOLE - self.parts) / self.parts)
    }

    /// How many records are passed on before other communicators have their turn: where ranks are held up by it, rarely
    /// and much, since whoever waits for the rank that is held up has to be woken.
    pub(super) fn turn(self) -> u64 {
        if self == Share::ALL { 256 } else { super::PLACES as u64 }
    }
}

/// A core.
const WHOLE: u32 = 10_000;
/// How much longer ranks are held up than the thread works: 1.6 to 5 were measured.
const DELAY_PER_WORK: u32 = 5;
/// How long the thread lets news gather where ranks need its core.
const LONG_MOMENT: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_rest_make_the_share() {
        let busy = Duration::from_micros(3000);
        assert_eq!(Share::ALL.rest(busy), Share::MOMENT);
        assert_eq!(Share::of(1, 0), Share::ALL);
        assert_eq!(Share::of(100, 2), Share::ALL);
        assert_eq!(Share::of(2, 1).rest(busy), 249 * busy);
        assert_eq!(Share::of(1, 1).rest(busy), 499 * busy);
        assert_eq!(Share::of(2, 2), Share::of(1, 1));
        assert_eq!(Share::of(1, 1).rest(Duration::ZERO), LONG_MOMENT);
        assert_eq!(Share::of(1, 1_000_000).rest(busy), (WHOLE - 1) * busy);
    }
}
