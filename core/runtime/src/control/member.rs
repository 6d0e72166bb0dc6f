//! A member after joining, without sockets, threads or clocks.

use std::time::Duration;

use ccl_plan::Rank;

use crate::bootstrap::machine::{Ending, Time};
use crate::bootstrap::process::{Life, Process};
use crate::bootstrap::wire::{self, Cause, CauseKind, Refusal, ToMember, ToRoot};
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
    Round { round: u64, result: Result<Vec<Vec<u8>>, Refusal> },
    /// These ranks have left.
    Left { ranks: Vec<u32> },
    /// The communicator has failed.
    Fail(Box<Cause>),
    /// The root is no longer there, and nobody is to blame: nothing more can be asked of it.
    Orphan(Error),
    /// See whether the root's process is gone while something keeps its connection open.
    LookAtRoot,
    /// Close the connection and end.
    End,
}

/// One rank's view of the control connection.
pub(crate) struct Member {
    rank: Rank,
    root: Process,
    /// The ranks in the root's process that have not left; the first of all if all have.
    hosts: Vec<Rank>,
    hosts_left: bool,
    heartbeat: Duration,
    next_ping: Time,
    /// When the root was last heard of.
    heard: Time,
    leaving: Option<Time>,
    ended: bool,
}

impl Member {
    pub(crate) fn new(
        rank: Rank,
        (root, hosts): (Process, Vec<Rank>),
        heartbeat: Duration,
        now: Time,
    ) -> Member {
        let next_ping = now + heartbeat;
        Member {
            rank,
            root,
            hosts,
            hosts_left: false,
            heartbeat,
            next_ping,
            heard: now,
            leaving: None,
            ended: false,
        }
    }

    /// The same for a communicator on the connection of another, where life shows. If none of its ranks is in
    /// the root's process, the end of that is no failure of it.
    pub(crate) fn of_branch(rank: Rank, (root, hosts): (Process, Vec<Rank>), now: Time) -> Member {
        let hosts_left = hosts.is_empty();
        Member { hosts_left, ..Member::new(rank, (root, hosts), Duration::ZERO, now) }
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = match event {
            _ if self.ended => Vec::new(),
            Event::Received(body) => {
                self.heard = now;
                self.received(&body)
            }
            Event::Closed(why) => self.closed(&why),
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
            Some(ToMember::Gathered { round, infos }) => Action::Round { round, result: Ok(infos.0) },
            Some(ToMember::GatherFailed { round, refusal }) => Action::Round { round, result: Err(refusal) },
            Some(ToMember::Relay { from, topic, bytes }) => {
                Action::Deliver { from, topic, bytes: bytes.into_vec() }
            }
            Some(ToMember::Pong) => return Vec::new(),
            Some(ToMember::Left { ranks }) => {
                self.hosts_leave(&ranks);
                Action::Left { ranks }
            }
            Some(ToMember::Farewell) => {
                self.ended = true;
                Action::End
            }
            Some(ToMember::Failed(cause)) => Action::Fail(Box::new(cause)),
            Some(ToMember::Ask { question }) => Action::Show { question },
            Some(ToMember::Table { .. } | ToMember::Refused(_) | ToMember::Branch { .. }) | None => {
                return self.closed(&Ending::Broken("a message out of place".into()));
            }
        };
        vec![action]
    }

    fn closed(&mut self, why: &Ending) -> Vec<Action> {
        self.ended = true;
        let action = match self.hosts_left {
            _ if self.leaving.is_some() => return vec![Action::End],
            true => Action::Orphan(self.orphaned()),
            false => Action::Fail(Box::new(self.root_gone(why))),
        };
        vec![action, Action::End]
    }

    fn hosts_leave(&mut self, leavers: &[u32]) {
        let first = self.hosts.first().copied();
        self.hosts.retain(|host| !leavers.contains(&host.0));
        if let (Some(first), true) = (first, self.hosts.is_empty()) {
            (self.hosts, self.hosts_left) = (vec![first], true);
        }
    }

    fn orphaned(&self) -> Error {
        let text = match self.hosts.first() {
            Some(_) => format!("the control service ended together with {}, which had left", self.host()),
            None => format!("the control service ended together with {}", self.host()),
        };
        let advice = "keep the process that made the unique id running until all ranks are done";
        Error::new(Fault::Network, text, advice).on(self.rank)
    }

    fn root_gone(&self, why: &Ending) -> Cause {
        let kind = match why {
            Ending::Closed => CauseKind::Gone,
            Ending::Unreachable(_) => CauseKind::Unreachable,
            Ending::Broken(_) => CauseKind::Broken,
        };
        let host = self.host();
        let text = match why {
            Ending::Closed => format!("{host} is gone: the control service it ran has closed"),
            other => format!("{host}, which runs the control service, is lost: {other}"),
        };
        self.blaming_root(kind, text)
    }

    /// The cause to report when the root does not answer, given what the system says of its process.
    pub(crate) fn root_silent(rank: Rank, (root, hosts): (&Process, &[Rank]), life: Life) -> Cause {
        let member = Member::new(rank, (root.clone(), hosts.to_vec()), Duration::ZERO, Duration::ZERO);
        let host = member.host();
        let state = match life {
            Life::Gone => return member.root_gone(&Ending::Closed),
            Life::Running => "its process runs but is not answering",
            Life::Stopped => "its process is alive but stopped, not answering",
            Life::Unknown => "its host may be there, but nothing answers",
        };
        member.blaming_root(
            CauseKind::Diagnosed,
            format!("{host}, which runs the control service, is silent: {state}"),
        )
    }

    fn blaming_root(&self, kind: CauseKind, text: String) -> Cause {
        let culprit = self.hosts.first().map(|rank| rank.0);
        let fault = culprit.map_or(wire::FaultCode::Network, wire::FaultCode::Remote);
        Cause { kind, origin: None, culprit, fault, text, verdict: None }
    }

    /// "rank 0 (pid 7, host h)", or the process if it is no rank's.
    fn host(&self) -> String {
        match self.hosts.first() {
            Some(rank) => format!("rank {rank} ({})", self.root),
            None => format!("the process that made the unique id ({})", self.root),
        }
    }
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
