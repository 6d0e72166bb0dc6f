//! When to end which rank: a machine that never waits itself.

use std::time::{Duration, Instant};

/// How one rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What happens to a team of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A rank's process ended.
    Exited {
        /// Which rank.
        rank: usize,
        /// How.
        exit: Exit,
    },
    /// Somebody sent us a signal that is meant for the ranks.
    Asked {
        /// Its number.
        signal: i32,
        /// Whether it asks the ranks to end.
        ends: bool,
    },
    /// Time passed.
    Tick,
}

/// What to do to the ranks that are still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send them this signal.
    Send(i32),
    /// Ask them to end.
    Terminate,
    /// End them.
    Kill,
}

/// Watches ranks: lets them run while all is well; when one fails, gives the others a grace time to
/// notice by themselves, then asks them to end, then ends them.
#[derive(Debug)]
pub(crate) struct Supervisor {
    running: Vec<bool>,
    grace: Duration,
    first_failure: Option<(usize, Exit)>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    /// One failed; the others may end by themselves until then.
    Failing(Instant),
    /// The others were asked to end and have until then.
    Terminating(Instant),
    Killed,
}

impl Supervisor {
    /// For `n` ranks that have just started.
    pub(crate) fn new(n: usize, grace: Duration) -> Supervisor {
        Supervisor { running: vec![true; n], grace, first_failure: None, stage: Stage::Running }
    }

    /// What to do about an event.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Option<Action> {
        match event {
            Event::Exited { rank, exit } => {
                self.running[rank] = false;
                if exit != Exit::Code(0) && self.first_failure.is_none() {
                    self.first_failure = Some((rank, exit));
                    if matches!(self.stage, Stage::Running) {
                        self.stage = Stage::Failing(now + self.grace);
                    }
                }
                self.on_time(now)
            }
            Event::Asked { signal, ends: false } => Some(Action::Send(signal)),
            Event::Asked { signal, ends: true } => match self.stage {
                Stage::Running | Stage::Failing(_) => {
                    self.stage = Stage::Terminating(now + self.grace + KILL_DELAY);
                    Some(Action::Send(signal))
                }
                Stage::Terminating(_) | Stage::Killed => self.kill(),
            },
            Event::Tick => self.on_time(now),
        }
    }

    /// When to send the next [`Event::Tick`], if nothing else happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Failing(until) | Stage::Terminating(until) => Some(until),
            Stage::Running | Stage::Killed => None,
        }
    }

    /// Whether this rank is still running.
    pub(crate) fn is_running(&self, rank: usize) -> bool {
        self.running[rank]
    }

    /// Whether all ranks have ended.
    pub(crate) fn is_done(&self) -> bool {
        !self.running.contains(&true)
    }

    /// The rank that failed first, and how.
    pub(crate) fn first_failure(&self) -> Option<(usize, Exit)> {
        self.first_failure
    }

    fn on_time(&mut self, now: Instant) -> Option<Action> {
        if self.is_done() {
            return None;
        }
        match self.stage {
            Stage::Failing(until) if now >= until => {
                self.stage = Stage::Terminating(now + KILL_DELAY);
                Some(Action::Terminate)
            }
            Stage::Terminating(until) if now >= until => self.kill(),
            _ => None,
        }
    }

    fn kill(&mut self) -> Option<Action> {
        self.stage = Stage::Killed;
        Some(Action::Kill)
    }
}

impl Exit {
    /// The status with which a shell would report it.
    pub(crate) fn status(self) -> u8 {
        match self {
            Exit::Code(code) => (code & 0xff) as u8,
            Exit::Signal(signal) => ((128 + signal) & 0xff) as u8,
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with status {code}"),
            Exit::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

/// Between asking ranks to end and ending them.
const KILL_DELAY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    fn exited(rank: usize, exit: Exit) -> Event {
        Event::Exited { rank, exit }
    }

    #[test]
    fn success_needs_no_action() {
        let (mut team, now) = (Supervisor::new(2, GRACE), Instant::now());
        assert_eq!(team.on(exited(0, Exit::Code(0)), now), None);
        assert!(!team.is_done() && team.is_running(1) && team.deadline().is_none());
        assert_eq!(team.on(exited(1, Exit::Code(0)), now), None);
        assert!(team.is_done() && team.first_failure().is_none());
    }

    #[test]
    fn a_failure_ends_the_others_step_by_step() {
        let (mut team, start) = (Supervisor::new(3, GRACE), Instant::now());
        assert_eq!(team.on(exited(1, Exit::Code(7)), start), None);
        assert_eq!(team.deadline(), Some(start + GRACE));
        assert_eq!(team.on(Event::Tick, start + GRACE / 2), None);
        assert_eq!(team.on(Event::Tick, start + GRACE), Some(Action::Terminate));
        assert_eq!(team.on(exited(0, Exit::Signal(15)), start + GRACE), None);
        assert_eq!(team.on(Event::Tick, start + GRACE + KILL_DELAY), Some(Action::Kill));
        assert_eq!(team.deadline(), None);
        team.on(exited(2, Exit::Signal(9)), start + GRACE + KILL_DELAY);
        assert_eq!((team.is_done(), team.first_failure()), (true, Some((1, Exit::Code(7)))));
    }

    #[test]
    fn no_grace_terminates_at_once() {
        let (mut team, now) = (Supervisor::new(2, Duration::ZERO), Instant::now());
        assert_eq!(team.on(exited(1, Exit::Code(1)), now), Some(Action::Terminate));
    }

    #[test]
    fn a_second_request_to_end_kills() {
        let (mut team, now) = (Supervisor::new(2, GRACE), Instant::now());
        assert_eq!(team.on(Event::Asked { signal: 10, ends: false }, now), Some(Action::Send(10)));
        assert_eq!(team.deadline(), None);
        assert_eq!(team.on(Event::Asked { signal: 2, ends: true }, now), Some(Action::Send(2)));
        assert_eq!(team.deadline(), Some(now + GRACE + KILL_DELAY));
        assert_eq!(team.on(Event::Asked { signal: 2, ends: true }, now), Some(Action::Kill));
    }

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!((Exit::Code(3).status(), Exit::Signal(9).status()), (3, 137));
    }
}
