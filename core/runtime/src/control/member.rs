//! A member after joining, without sockets, threads or clocks.

use std::time::Duration;

use ccl_plan::Rank;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::machine::{Ending, Time};
use crate::bootstrap::process::{Life, Process};
use crate::bootstrap::wire::{self, Cause, CauseKind, Host, Refusal, ToMember, ToRoot};
use crate::control::hub::MISSED_HEARTBEATS;
use crate::error::{Error, Fault};

/// What happens to a member.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A frame arrived.
    Received(Vec<u8>),
    /// The control connection ended.
    Closed(Ending),
    /// The caller has left; the leave is on its way.
    Leaving,
    /// Time passed.
    Tick,
}

/// What a member does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Say something.
    Send(ToRoot),
    /// Show the board to the root.
    Show { question: u64 },
    /// Put a message into the mailbox.
    Deliver { from: u32, topic: u32, bytes: Vec<u8> },
    /// A round is over.
    Round { round: u64, result: Result<Infos, Refusal> },
    /// These ranks have left.
    Left { ranks: Vec<u32> },
    /// The communicator has failed.
    Fail(Box<Cause>),
    /// The root is no longer there, and nobody is to blame: nothing more can be asked of it.
    Orphan(Error),
    /// The head does not answer the root, or does so again.
    HeadSilent(bool),
    /// See whether the root's process is gone while something keeps its connection open.
    LookAtRoot,
    /// Close the connection and end.
    End,
}

/// One rank's view of the control connection.
pub(crate) struct Member {
    rank: Rank,
    root: Keeper,
    /// The head, if the root is a deputy.
    head: Option<Keeper>,
    heartbeat: Duration,
    next_ping: Time,
    /// When the root was last heard of.
    heard: Time,
    leaving: Option<Time>,
    ended: bool,
}

/// A process that runs a root, as its end is judged.
struct Keeper {
    process: Process,
    /// The ranks in it that have not left; the first of all if all have.
    ranks: Vec<u32>,
    all_left: bool,
}

/// The processes of a rank's root, and of the head if that is another.
#[derive(Clone, Debug)]
pub(crate) struct Keepers {
    pub(crate) root: Host,
    pub(crate) head: Option<Host>,
}

impl Member {
    pub(crate) fn new(rank: Rank, keepers: &Keepers, heartbeat: Duration, now: Time) -> Member {
        let next_ping = now + heartbeat;
        Member {
            rank,
            root: Keeper::new(&keepers.root),
            head: keepers.head.as_ref().map(Keeper::new),
            heartbeat,
            next_ping,
            heard: now,
            leaving: None,
            ended: false,
        }
    }

    /// The same for a communicator on the connection of another, where life shows. If none of its ranks is in
    /// the root's process, the end of that is no failure of it.
    pub(crate) fn of_branch(rank: Rank, keepers: &Keepers, now: Time) -> Member {
        let mut member = Member::new(rank, keepers, Duration::ZERO, now);
        for keeper in member.head.iter_mut().chain([&mut member.root]) {
            keeper.all_left = keeper.ranks.is_empty();
        }
        member
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = match event {
            _ if self.ended => Vec::new(),
            Event::Received(body) => {
                self.heard = now;
                self.received(&body)
            }
            Event::Closed(why) => self.closed(&why, false),
            Event::Leaving => {
                self.leaving.get_or_insert(now + FAREWELL);
                Vec::new()
            }
            Event::Tick => Vec::new(),
        };
        if !self.heartbeat.is_zero() && now >= self.next_ping && !self.ended {
            self.next_ping = now + self.heartbeat;
            actions.push(Action::Send(ToRoot::Ping));
            if now >= self.heard + self.heartbeat * MISSED_HEARTBEATS {
                actions.push(Action::LookAtRoot);
            }
        }
        if self.leaving.is_some_and(|until| now >= until) && !self.ended {
            self.ended = true;
            actions.push(Action::End);
        }
        actions
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let ping = (!self.heartbeat.is_zero()).then_some(self.next_ping);
        self.leaving.into_iter().chain(ping).min()
    }

    fn received(&mut self, body: &[u8]) -> Vec<Action> {
        let action = match wire::decode(body) {
            Some(ToMember::Gathered { round, infos }) => Action::Round { round, result: Ok(infos) },
            Some(ToMember::GatherFailed { round, refusal }) => Action::Round { round, result: Err(refusal) },
            Some(ToMember::Relay { from, topic, bytes }) => {
                Action::Deliver { from, topic, bytes: bytes.into_vec() }
            }
            Some(ToMember::Pong) => return Vec::new(),
            Some(ToMember::Left { ranks }) => {
                self.root.leave(&ranks);
                self.head.iter_mut().for_each(|head| head.leave(&ranks));
                Action::Left { ranks }
            }
            Some(ToMember::Ended { text }) => {
                self.ended = true;
                return vec![Action::Orphan(orphaned(self.rank, text)), Action::End];
            }
            Some(ToMember::HeadLost { why }) => return self.closed(&why, true),
            Some(ToMember::HeadSilent { silent }) => Action::HeadSilent(silent),
            Some(ToMember::Farewell) => {
                self.ended = true;
                Action::End
            }
            Some(ToMember::Failed(cause)) => Action::Fail(Box::new(cause)),
            Some(ToMember::Ask { question }) => Action::Show { question },
            Some(ToMember::Table { .. } | ToMember::Refused(_) | ToMember::Branch { .. }) | None => {
                return self.closed(&Ending::Broken("a message out of place".into()), false);
            }
        };
        vec![action]
    }

    /// The connection to the root ended, or that of the root to the head.
    fn closed(&mut self, why: &Ending, of_head: bool) -> Vec<Action> {
        self.ended = true;
        let keeper = self.head.as_ref().filter(|_| of_head).unwrap_or(&self.root);
        let action = match keeper.all_left {
            _ if self.leaving.is_some() => return vec![Action::End],
            true => {
                let text = service_ended(&keeper.place(), !keeper.ranks.is_empty());
                Action::Orphan(orphaned(self.rank, text))
            }
            false => Action::Fail(Box::new(root_lost(keeper.ranks.first().copied(), &keeper.place(), why))),
        };
        vec![action, Action::End]
    }
}

impl Keeper {
    fn new(host: &Host) -> Keeper {
        Keeper { process: host.process.clone(), ranks: host.ranks.clone(), all_left: false }
    }

    fn leave(&mut self, leavers: &[u32]) {
        let first = self.ranks.first().copied();
        self.ranks.retain(|rank| !leavers.contains(rank));
        if let (Some(first), true) = (first, self.ranks.is_empty()) {
            (self.ranks, self.all_left) = (vec![first], true);
        }
    }

    fn place(&self) -> String {
        place_of(self.ranks.first().copied(), &self.process)
    }
}

/// "rank 0 (pid 7, host h)", or the process if it is no rank's.
pub(crate) fn place_of(rank: Option<u32>, process: &Process) -> String {
    match rank {
        Some(rank) => format!("rank {rank} ({process})"),
        None => format!("the process that made the unique id ({process})"),
    }
}

/// That a root ended which nobody has to be blamed for: that of a process at `place`, whose ranks had left if it
/// had any.
pub(crate) fn service_ended(place: &str, had_ranks: bool) -> String {
    let left = if had_ranks { ", which had left" } else { "" };
    format!("the control service ended together with {place}{left}")
}

/// The cause when a root ended, whose process is at `place` and has rank `culprit`.
pub(crate) fn root_lost(culprit: Option<u32>, place: &str, why: &Ending) -> Cause {
    let (kind, text) = match why {
        Ending::Closed => {
            (CauseKind::Gone, format!("{place} is gone: the control service it ran has closed"))
        }
        Ending::Unreachable(_) => (CauseKind::Unreachable, lost_words(place, why)),
        Ending::Broken(_) => (CauseKind::Broken, lost_words(place, why)),
    };
    blaming(culprit, kind, text)
}

/// The cause to report when the root in `host` does not answer, given what the system says of its process.
pub(crate) fn root_silent(host: &Host, life: Life) -> Cause {
    let culprit = host.ranks.first().copied();
    let place = place_of(culprit, &host.process);
    let state = match life {
        Life::Gone => return root_lost(culprit, &place, &Ending::Closed),
        Life::Running => "its process runs but is not answering",
        Life::Stopped => "its process is alive but stopped, not answering",
        Life::Unknown => "its host may be there, but nothing answers",
    };
    let text = format!("{place}, which runs the control service, is silent: {state}");
    blaming(culprit, CauseKind::Diagnosed, text)
}

fn lost_words(place: &str, why: &Ending) -> String {
    format!("{place}, which runs the control service, is lost: {why}")
}

fn blaming(culprit: Option<u32>, kind: CauseKind, text: String) -> Cause {
    let fault = culprit.map_or(wire::FaultCode::Network, wire::FaultCode::Remote);
    Cause { kind, origin: None, culprit, fault, text, verdict: None }
}

fn orphaned(rank: Rank, text: String) -> Error {
    let advice = "keep the process that made the unique id running until all ranks are done";
    Error::new(Fault::Network, text, advice).on(rank)
}

/// A cause as `rank` reports it.
pub(crate) fn error_of(cause: &Cause, rank: Rank) -> Error {
    let advice = match cause.kind {
        CauseKind::Gone => {
            "see why that process ended: its log, its exit code, or the kernel's log if it ran out of memory"
        }
        CauseKind::Unreachable => "see whether that host is up and the network to it works",
        CauseKind::Aborted => "see that rank's log for why it aborted",
        CauseKind::Reported => "see that rank's log first; what the others report follows from it",
        CauseKind::Diagnosed => {
            "all ranks must call the same operations in the same order; look at the named ranks first"
        }
        CauseKind::Broken => "run the same version of ccl on all ranks",
    };
    let error = Error::new(cause.fault.clone().into(), cause.text.clone(), advice).on(rank);
    match cause.culprit {
        Some(culprit) if culprit != rank.0 => error.as_consequence_of(Rank(culprit)),
        _ => error,
    }
}

/// How long a member that leaves waits for the root's farewell.
const FAREWELL: Duration = Duration::from_millis(500);
