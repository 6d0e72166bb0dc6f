//! The root after joining, without sockets, threads or clocks.
//!
//! It completes numbered rounds, passes messages on, notices who is gone, asks everybody when an
//! operation is late, and elects the first cause of a failure: what every rank will report.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde_bytes::ByteBuf;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::machine::{Action, Conn, Ending, Joined, TABLE_BYTES, Time};
use crate::bootstrap::process::{Life, Process};
use crate::bootstrap::wire::{
    self, Cause, CauseKind, FaultCode, Host, INFO_BYTES, Refusal, ToMember, ToRoot,
};
use crate::bootstrap::words;
use crate::control::member;
use crate::control::verdict::{Presence, RankState, Verdict, verdict};
use crate::observe::board::Snapshot;

/// What the root knows of all members.
pub(crate) struct Hub {
    root: Process,
    /// The roots that ranks came to, this one first, and the ranks in their processes.
    services: Vec<Host>,
    is_branch: bool,
    life: LifeOf,
    heartbeat: Duration,
    members: BTreeMap<u32, Member>,
    conns: BTreeMap<Conn, u32>,
    rounds: BTreeMap<u64, Round>,
    failed_rounds: BTreeMap<u64, Refusal>,
    cause: Option<Cause>,
    /// A reported cause that becomes the elected one then, unless a death or what the blamed rank says explains it.
    reported: Option<(Time, Cause)>,
    question: Option<Question>,
    questions: u64,
    /// Ranks whose leave is not announced yet, and when it will be.
    leavers: Vec<u32>,
    announce_at: Option<Time>,
    actions: Vec<Action>,
}

/// On what terms a hub is kept.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) heartbeat: Duration,
    /// It is of a communicator that was made from another.
    pub(crate) is_branch: bool,
}

/// What the system says about a process, as seen from another.
pub(crate) type LifeOf = fn(&Process, &Process) -> Life;

struct Member {
    conn: Conn,
    address: SocketAddr,
    process: Process,
    heard: Time,
    /// When the system was last asked about its process.
    looked: Time,
    /// What the system says about its process on the host of the root that it came to.
    seen: Life,
    status: Status,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Present,
    Left { last_entered: Option<u64>, last_completed: Option<u64> },
    Gone,
}

/// An all-gather that is not complete.
struct Round {
    infos: BTreeMap<u32, ByteBuf>,
    deadline: Time,
    patience: Duration,
}

/// A late operation about which everybody is being asked.
struct Question {
    number: u64,
    sequence: u64,
    until: Time,
    /// Whether busy processes have been given more time.
    extended: bool,
    /// When to ask once more, if ranks on their way into the operation may change the verdict.
    again: Option<Time>,
    waiting_for: BTreeMap<u32, u32>,
    answers: BTreeMap<u32, Snapshot>,
}

impl Question {
    /// Whether those in the operation disagree while others have not entered it yet.
    fn is_early(&self) -> bool {
        let mut entered = self.answers.values().filter_map(|state| state.signature(self.sequence));
        let disagree = entered.next().is_some_and(|first| entered.any(|other| other != first));
        disagree
            && self.answers.values().any(|state| state.last_entered.is_none_or(|last| last < self.sequence))
    }
}

impl Hub {
    /// The hub of these ranks, who came to roots in these processes, this one first; its first actions hand out
    /// the table of infos.
    pub(crate) fn new(
        joined: Vec<Joined>,
        (roots, life): (Vec<Process>, LifeOf),
        terms: Terms,
        now: Time,
    ) -> (Hub, Vec<Action>) {
        let hosted = |root: &Process| {
            let those = joined.iter().filter(|member| member.process.same(root));
            those.map(|member| member.rank).collect()
        };
        let services: Vec<Host> =
            roots.into_iter().map(|process| Host { ranks: hosted(&process), process }).collect();
        let infos = joined.iter().map(|member| &member.info).collect();
        let conns = joined.iter().map(|member| (member.conn, member.rank)).collect();
        let member = |new: Joined| {
            let Joined { rank, conn, address, process, .. } = new;
            let (seen, status) = (Life::Unknown, Status::Present);
            (rank, Member { conn, address, process, heard: now, looked: now, seen, status })
        };
        let mut hub = Hub {
            members: joined.into_iter().map(member).collect(),
            root: services[0].process.clone(),
            services,
            is_branch: terms.is_branch,
            life,
            heartbeat: terms.heartbeat,
            conns,
            rounds: BTreeMap::new(),
            failed_rounds: BTreeMap::new(),
            cause: None,
            reported: None,
            question: None,
            questions: 0,
            leavers: Vec::new(),
            announce_at: None,
            actions: Vec::new(),
        };
        hub.hand_out(infos);
        let actions = std::mem::take(&mut hub.actions);
        (hub, actions)
    }

    /// Gives everybody the table. What ranks of one root get is put together once.
    fn hand_out(&mut self, infos: Infos) {
        let mut table = ToMember::Table {
            infos,
            root: self.root.clone(),
            hosts: self.services[0].ranks.clone(),
            head: None,
        };
        for (service, here) in (0..).zip(&self.services) {
            if let (ToMember::Table { root, hosts, head, .. }, 1..) = (&mut table, service) {
                (*root, *hosts) = (here.process.clone(), here.ranks.clone());
                *head = Some(self.services[0].clone());
            }
            let mut those = self.members.values().filter(|member| member.conn.service() == service);
            if let Some(first) = those.next() {
                let frame = wire::encode(&table);
                let send = |member: &Member| Action::Send { conn: member.conn, frame: frame.clone() };
                self.actions.extend(std::iter::once(first).chain(those).map(send));
            }
        }
    }

    /// What the root of a service sees of a rank.
    pub(crate) fn seen(&mut self, conn: Conn, silence: Duration, life: Life, now: Time) {
        let member = self.conns.get(&conn).and_then(|rank| self.members.get_mut(rank));
        if let Some(member) = member {
            (member.heard, member.seen) = (now.saturating_sub(silence), life);
        }
    }

    /// Whether this connection is a member's.
    pub(crate) fn owns(&self, conn: Conn) -> bool {
        self.conns.contains_key(&conn)
    }

    /// Where a connection comes from, if it is or was a member's.
    pub(crate) fn address(&self, conn: Conn) -> Option<SocketAddr> {
        self.members.values().find(|member| member.conn == conn).map(|member| member.address)
    }

    /// A frame arrived from a member.
    pub(crate) fn received(&mut self, conn: Conn, body: &[u8], now: Time) -> Vec<Action> {
        if let Some(rank) = self.conns.get(&conn).copied() {
            if let Some(member) = self.members.get_mut(&rank) {
                member.heard = now;
            }
            match wire::decode(body) {
                Some(message) => self.heard(rank, message, now),
                None => self.lost(rank, &Ending::Broken("a message that is none".into())),
            }
        }
        self.tick(now)
    }

    /// A member's connection ended.
    pub(crate) fn closed(&mut self, conn: Conn, why: &Ending, now: Time) -> Vec<Action> {
        if let Some(rank) = self.conns.get(&conn).copied() {
            self.lost(rank, why);
        }
        self.tick(now)
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: Time) -> Vec<Action> {
        self.announce_leavers(now);
        self.expire_rounds(now);
        self.settle_question(now);
        if let Some((_, cause)) = self.reported.take_if(|(at, _)| now >= *at) {
            self.elect(cause);
        }
        self.look_for_dead(now);
        if !self.anybody() {
            self.actions.push(Action::Finish);
        }
        std::mem::take(&mut self.actions)
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let rounds = self.rounds.values().map(|round| round.deadline);
        let question = self.question.as_ref().map(|q| q.again.map_or(q.until, |again| again.min(q.until)));
        let reported = self.reported.as_ref().map(|(at, _)| *at);
        rounds.chain(question).chain(reported).chain(self.announce_at).chain(self.next_look()).min()
    }

    fn present(&self, rank: u32) -> bool {
        self.members.get(&rank).is_some_and(|member| member.status == Status::Present)
    }

    fn anybody(&self) -> bool {
        self.members.values().any(|member| member.status == Status::Present)
    }

    fn heard(&mut self, rank: u32, message: ToRoot, now: Time) {
        match message {
            ToRoot::Gather { round, remaining_ms, info } => {
                self.gather(rank, (round, info), Duration::from_millis(remaining_ms), now);
            }
            ToRoot::Relay { to, topic, bytes } => {
                self.tell(to, &ToMember::Relay { from: rank, topic, bytes })
            }
            ToRoot::Ping => self.tell(rank, &ToMember::Pong),
            ToRoot::Leave { last_entered, last_completed } => {
                self.left(rank, Status::Left { last_entered, last_completed }, now);
            }
            ToRoot::Report { cause } => self.report(rank, cause, now),
            ToRoot::Abort { reason } => self.abort(rank, &reason),
            ToRoot::Diagnose { sequence, waiting_for } => self.ask(rank, sequence, waiting_for, now),
            ToRoot::State { question, state } => self.answered(rank, question, state),
            ToRoot::Join { .. } | ToRoot::Fail { .. } | ToRoot::Share { .. } | ToRoot::Represent { .. } => {
                self.lost(rank, &Ending::Broken("it joined twice".into()));
            }
            ToRoot::Begin { .. } | ToRoot::Branch { .. } => {
                self.lost(rank, &Ending::Broken("a branch on a branch".into()));
            }
        }
    }

    fn gather(&mut self, rank: u32, (number, info): (u64, ByteBuf), remaining: Duration, now: Time) {
        if let Some(refusal) = self.failed_rounds.get(&number).cloned() {
            return self.tell(rank, &ToMember::GatherFailed { round: number, refusal });
        }
        if info.len() > INFO_BYTES {
            return self.lost(rank, &Ending::Broken("an info that is too long".into()));
        }
        let fresh = Round { infos: BTreeMap::new(), deadline: now + remaining, patience: remaining };
        let round = self.rounds.entry(number).or_insert(fresh);
        if now + remaining < round.deadline {
            (round.deadline, round.patience) = (now + remaining, remaining);
        }
        round.infos.insert(rank, info);
        if round.infos.len() == self.members.len() {
            self.complete_round(number);
        } else {
            self.fail_rounds_without_leavers();
        }
    }

    fn complete_round(&mut self, number: u64) {
        let Some(round) = self.rounds.remove(&number) else {
            return;
        };
        let infos: Infos = round.infos.into_values().collect();
        if infos.total_bytes() > TABLE_BYTES {
            let text =
                format!("round {number}: expected infos of at most {TABLE_BYTES} bytes together, found more");
            let refusal = Refusal { fault: FaultCode::Usage, text };
            return self.tell_all(&ToMember::GatherFailed { round: number, refusal });
        }
        self.tell_all(&ToMember::Gathered { round: number, infos });
    }

    /// Rounds that wait for a rank that has left can only fail.
    fn fail_rounds_without_leavers(&mut self) {
        let left = |member: &Member| matches!(member.status, Status::Left { .. });
        let leavers: BTreeSet<u32> =
            self.members.iter().filter(|(_, member)| left(member)).map(|(rank, _)| *rank).collect();
        let missed_by = |round: &Round| leavers.iter().find(|rank| !round.infos.contains_key(rank)).copied();
        let stranded: Vec<(u64, u32)> =
            self.rounds.iter().filter_map(|(number, round)| Some((*number, missed_by(round)?))).collect();
        for (number, rank) in stranded {
            let text = format!("rank {rank} has left the communicator before round {number}");
            self.fail_round(number, Refusal { fault: FaultCode::Remote(rank), text });
        }
    }

    fn expire_rounds(&mut self, now: Time) {
        let late = |(number, round): (&u64, &Round)| (now >= round.deadline).then_some(*number);
        for number in self.rounds.iter().filter_map(late).collect::<Vec<_>>() {
            let round = &self.rounds[&number];
            let missing: Vec<u32> =
                self.members.keys().filter(|rank| !round.infos.contains_key(rank)).copied().collect();
            let text = format!(
                "{} of {} ranks entered round {number} within {}; missing: {}",
                round.infos.len(),
                self.members.len(),
                words::seconds(round.patience),
                words::list(missing.iter().map(|rank| self.place(*rank)))
            );
            let fault = missing.first().map_or(FaultCode::Timeout, |rank| FaultCode::Remote(*rank));
            self.fail_round(number, Refusal { fault, text });
        }
    }

    fn fail_round(&mut self, number: u64, refusal: Refusal) {
        if let Some(round) = self.rounds.remove(&number) {
            for rank in round.infos.into_keys() {
                self.tell(rank, &ToMember::GatherFailed { round: number, refusal: refusal.clone() });
            }
        }
        self.failed_rounds.insert(number, refusal);
        if self.failed_rounds.len() > FAILED_ROUNDS {
            self.failed_rounds.pop_first();
        }
    }

    /// A rank has left. The others hear of many leavers at once, but of the last in the root's process
    /// before that can end.
    fn left(&mut self, rank: u32, status: Status, now: Time) {
        let Some(member) = self.members.get_mut(&rank) else {
            return;
        };
        member.status = status;
        let conn = member.conn;
        self.conns.remove(&conn);
        self.leavers.push(rank);
        let is_last =
            |host: &Host| host.ranks.contains(&rank) && !host.ranks.iter().any(|other| self.present(*other));
        let last_host = self.services.iter().any(is_last);
        let at = if last_host { now } else { now + ANNOUNCEMENT };
        self.announce_at = Some(self.announce_at.map_or(at, |earlier| earlier.min(at)));
        self.announce_leavers(now);
        let frame = wire::encode(&ToMember::Farewell);
        self.actions.extend([Action::Send { conn, frame }, Action::Close { conn }]);
        self.fail_rounds_without_leavers();
    }

    fn announce_leavers(&mut self, now: Time) {
        if self.announce_at.take_if(|at| now >= *at).is_some() {
            let ranks = std::mem::take(&mut self.leavers);
            self.tell_all(&ToMember::Left { ranks });
        }
    }

    /// The root of a service has ended. If ranks in its process have not left, that is their failure.
    pub(crate) fn service_lost(&mut self, service: u32, why: &Ending, now: Time) -> Vec<Action> {
        let lost: Vec<u32> =
            self.conns.iter().filter(|(conn, _)| conn.service() == service).map(|(_, rank)| *rank).collect();
        let Some(host) = self.services.get(service as usize).filter(|_| !lost.is_empty()).cloned() else {
            return self.tick(now);
        };
        let left = |rank: &u32| {
            self.members.get(rank).is_some_and(|member| matches!(member.status, Status::Left { .. }))
        };
        let culprit = host.ranks.iter().find(|rank| !left(rank)).copied();
        let orphaned = culprit.is_none() && (self.is_branch || !host.ranks.is_empty());
        for rank in lost {
            if let Some(member) = self.members.get_mut(&rank) {
                self.conns.remove(&member.conn);
                member.status = Status::Gone;
            }
        }
        let place = member::place_of(culprit.or(host.ranks.first().copied()), &host.process);
        match orphaned {
            true => {
                let text = member::service_ended(&place, !host.ranks.is_empty());
                self.tell_all(&ToMember::Ended { text });
                self.conns.clear();
                self.members.values_mut().for_each(|member| member.status = Status::Gone);
            }
            false => self.elect(member::root_lost(culprit, &place, why)),
        }
        self.tick(now)
    }

    /// A member's connection ended without a leave: its rank is the cause, unless there is one.
    fn lost(&mut self, rank: u32, why: &Ending) {
        let place = self.place(rank);
        let Some(member) = self.members.get_mut(&rank) else {
            return;
        };
        member.status = Status::Gone;
        let conn = member.conn;
        self.conns.remove(&conn);
        self.actions.push(Action::Drop { conn });
        let (kind, text) = match why {
            Ending::Closed => {
                (CauseKind::Gone, format!("{place} is gone: its control connection closed without leave"))
            }
            Ending::Unreachable(why) => {
                (CauseKind::Unreachable, format!("{place} cannot be reached any more: {why}"))
            }
            Ending::Broken(what) => {
                (CauseKind::Broken, format!("{place} broke the control protocol: {what}"))
            }
        };
        self.actions.push(Action::Warn(text.clone()));
        let explained =
            self.reported.take_if(|(_, cause)| cause.origin == Some(rank) && cause.culprit != Some(rank));
        if let Some((_, cause)) = explained {
            self.elect(cause);
        }
        let (culprit, fault) = (Some(rank), FaultCode::Remote(rank));
        self.elect(Cause { kind, origin: None, culprit, fault, text, verdict: None });
    }

    fn report(&mut self, rank: u32, cause: Cause, now: Time) {
        if let Some(elected) = self.cause.clone() {
            return self.tell(rank, &ToMember::Failed(elected));
        }
        let culprit = cause.culprit.filter(|rank| self.members.contains_key(rank)).or(Some(rank));
        let cause = Cause { kind: CauseKind::Reported, origin: Some(rank), culprit, verdict: None, ..cause };
        match &mut self.reported {
            // Who is blamed and blames another waited for somebody itself.
            Some((_, first)) if first.culprit == Some(rank) && first.origin != Some(rank) => *first = cause,
            Some(_) => {}
            None => self.reported = Some((now + ELECTION, cause)),
        }
    }

    fn abort(&mut self, rank: u32, reason: &str) {
        if let Some((_, cause)) = self.reported.take() {
            self.elect(cause);
        }
        let text = format!("rank {rank} aborted: {}", wire::bounded(reason));
        let (origin, culprit, fault) = (Some(rank), Some(rank), FaultCode::Remote(rank));
        self.elect(Cause { kind: CauseKind::Aborted, origin, culprit, fault, text, verdict: None });
    }

    fn ask(&mut self, rank: u32, sequence: u64, waiting_for: Option<u32>, now: Time) {
        if let Some(elected) = self.cause.clone() {
            return self.tell(rank, &ToMember::Failed(elected));
        }
        if self.question.is_none() {
            self.questions += 1;
            let (waiting_for, answers) = (BTreeMap::new(), BTreeMap::new());
            let (number, until) = (self.questions, now + ANSWER);
            self.question = Some(Question {
                number,
                sequence,
                until,
                extended: false,
                again: None,
                waiting_for,
                answers,
            });
            self.tell_all(&ToMember::Ask { question: number });
        }
        if let Some(question) = &mut self.question {
            question.sequence = question.sequence.min(sequence);
            question.waiting_for.extend(waiting_for.map(|peer| (rank, peer)));
        }
    }

    fn answered(&mut self, rank: u32, number: u64, state: Snapshot) {
        if let Some(question) = self.question.as_mut().filter(|question| question.number == number) {
            question.answers.insert(rank, state);
        }
    }

    /// Concludes when everybody has answered or had time to. A process that the system says is running
    /// is only busy: it gets a little more.
    fn settle_question(&mut self, now: Time) {
        let Some(question) = &mut self.question else {
            return;
        };
        let mut silent = self.members.iter().filter(|(rank, member)| {
            member.status == Status::Present && !question.answers.contains_key(*rank)
        });
        let late = now >= question.until;
        let busy = |(_, member): (&u32, &Member)| life_of(member, (&self.root, self.life)) == Life::Running;
        if !late && silent.next().is_some() {
            return;
        }
        if !late && question.is_early() {
            return self.ask_again(now);
        }
        if late && !question.extended && silent.any(busy) {
            (question.until, question.extended) = (now + MORE_TIME, true);
            return;
        }
        self.conclude(now);
    }

    /// Ranks disagree while others are still on their way into the operation: their word may be the
    /// majority's, so they are asked once more in a moment.
    fn ask_again(&mut self, now: Time) {
        let Some(question) = &mut self.question else { return };
        if question.again.is_some_and(|again| now < again) {
            return;
        }
        let first = question.again.replace(now + AGAIN).is_none();
        let number = question.number;
        if !first {
            self.tell_all(&ToMember::Ask { question: number });
        }
    }

    /// Everybody answered or had time to: judges and tells all.
    fn conclude(&mut self, now: Time) {
        let Some(mut question) = self.question.take() else {
            return;
        };
        let state = |(rank, member): (&u32, &Member)| {
            let state = self.state(*rank, member, question.answers.remove(rank), now);
            let waiting_for = state.waiting_for.or(question.waiting_for.get(rank).copied());
            RankState { waiting_for, ..state }
        };
        let report = verdict(question.sequence, self.members.iter().map(state).collect());
        let culprit = report.culprit().map(|rank| self.behind(rank, &report.verdict));
        let blamed = culprit.map(FaultCode::Remote);
        let fault = blamed.unwrap_or(match report.verdict {
            Verdict::Slow => FaultCode::Timeout,
            _ => FaultCode::Usage,
        });
        let (text, verdict) = (report.text.clone(), Some(report.to_json()));
        self.elect(Cause { kind: CauseKind::Diagnosed, origin: None, culprit, fault, text, verdict });
    }

    fn state(&self, rank: u32, member: &Member, answer: Option<Snapshot>, now: Time) -> RankState {
        let place = format!("{} at {}", member.process, member.address);
        let presence = match (member.status, &answer) {
            (Status::Gone, _) => Presence::Gone,
            (Status::Left { .. }, _) => Presence::Left,
            (Status::Present, Some(_)) => Presence::Answering,
            (Status::Present, None) => self.silence(member, now),
        };
        let mut state = RankState::new(rank, place, presence);
        if let Status::Left { last_entered, last_completed } = member.status {
            (state.last_entered, state.last_completed) = (last_entered, last_completed);
        }
        match answer {
            Some(snapshot) => state.showing(snapshot),
            None => state,
        }
    }

    /// The rank to blame where `rank` is first: if that came to a root whose process does not answer either, a
    /// rank in that.
    fn behind(&self, rank: u32, verdict: &Verdict) -> u32 {
        let host =
            self.members.get(&rank).and_then(|member| self.services.get(member.conn.service() as usize));
        match (verdict, host) {
            (Verdict::Silent { ranks }, Some(host)) => {
                let silent = host.ranks.iter().find(|host| ranks.contains(host));
                silent.copied().unwrap_or(rank)
            }
            _ => rank,
        }
    }

    fn silence(&self, member: &Member, now: Time) -> Presence {
        let process = match life_of(member, (&self.root, self.life)) {
            Life::Gone => return Presence::Gone,
            Life::Running => "its process runs but is not answering",
            Life::Stopped => "its process is alive but stopped, not answering",
            Life::Unknown => "its process may be alive or out of reach, nothing answers",
        };
        let silent_ms = now.saturating_sub(member.heard).as_millis() as u64;
        Presence::Silent { process: process.into(), silent_ms }
    }

    /// A process may end while a child of it keeps its connection open: looks at silent local ones.
    fn look_for_dead(&mut self, now: Time) {
        let Some(limit) = self.silence_limit() else {
            return;
        };
        let mut dead = Vec::new();
        for (rank, member) in &mut self.members {
            if member.status == Status::Present && now >= member.heard.max(member.looked) + limit {
                member.looked = now;
                if (self.life)(&member.process, &self.root) == Life::Gone {
                    dead.push(*rank);
                }
            }
        }
        for rank in dead {
            self.lost(rank, &Ending::Closed);
        }
    }

    fn silence_limit(&self) -> Option<Duration> {
        (!self.heartbeat.is_zero()).then_some(self.heartbeat * MISSED_HEARTBEATS)
    }

    fn next_look(&self) -> Option<Time> {
        let limit = self.silence_limit()?;
        let present = self.members.values().filter(|member| member.status == Status::Present);
        present.map(|member| member.heard.max(member.looked) + limit).min()
    }

    /// The first cause wins, everywhere.
    fn elect(&mut self, cause: Cause) {
        if self.cause.is_some() {
            return;
        }
        self.actions.push(Action::Warn(format!("the communicator failed: {}", cause.text)));
        self.tell_all(&ToMember::Failed(cause.clone()));
        (self.cause, self.question, self.reported) = (Some(cause), None, None);
    }

    fn tell(&mut self, rank: u32, message: &ToMember) {
        if let Some(member) = self.members.get(&rank).filter(|member| member.status == Status::Present) {
            self.actions.push(Action::Send { conn: member.conn, frame: wire::encode(message) });
        }
    }

    fn tell_all(&mut self, message: &ToMember) {
        let frame = wire::encode(message);
        let present = self.members.values().filter(|member| member.status == Status::Present);
        self.actions.extend(present.map(|member| Action::Send { conn: member.conn, frame: frame.clone() }));
    }

    /// "rank 3 (pid 7, host h)".
    fn place(&self, rank: u32) -> String {
        self.members
            .get(&rank)
            .map_or(format!("rank {rank}"), |member| format!("rank {rank} ({})", member.process))
    }
}

/// What is known of a member's process, here or where the root is that it came to.
fn life_of(member: &Member, (root, life): (&Process, LifeOf)) -> Life {
    match life(&member.process, root) {
        Life::Unknown => member.seen,
        life => life,
    }
}

/// How long the news of a rank that has left waits for more of the same.
const ANNOUNCEMENT: Duration = Duration::from_millis(5);
/// How long a reported cause waits for what explains it.
const ELECTION: Duration = Duration::from_millis(400);
/// How long members have to show their boards.
const ANSWER: Duration = Duration::from_millis(500);
/// Pause before asking again while ranks are on their way into the operation.
const AGAIN: Duration = Duration::from_millis(20);
/// How much longer those have whose processes the system says are running.
const MORE_TIME: Duration = Duration::from_millis(300);
/// Heartbeats a local process may miss before the system is asked about it.
pub(crate) const MISSED_HEARTBEATS: u32 = 3;
/// Failed rounds remembered for ranks that enter them late.
const FAILED_ROUNDS: usize = 64;
