//! A root that serves one share of the ranks and speaks for them at the head.
//!
//! Ranks of the share have their connections here. What they say goes on to the head, and what the head says
//! goes to them; what is said by many at about the same time, or to many, makes one message. Two things end here: signs
//! of life, and messages between two ranks of the share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use ccl_plan::Rank;

use super::BootstrapSettings;
use super::auth::Key;
use super::between::{Guest, Seen, ToDeputy, ToHead, Word};
use super::head::margin;
use super::joiner::{self, Joiner, Outcome, Purpose};
use super::machine::{Action, Conn, Ending, Event, TABLE_BYTES, Time};
use super::process::{Life, Process};
use super::roots::{self, Claim};
use super::wire::{self, FaultCode, Frame, INFO_BYTES, Refusal, ToMember, ToRoot};
use super::words;
use crate::control::hub::{LifeOf, MISSED_HEARTBEATS};
use crate::error::{Error, Result};

/// The machine of a deputy.
pub(crate) struct Deputy {
    this: (Process, LifeOf),
    heartbeat: Duration,
    /// How long latecomers are told why, after joining has ended.
    linger: Duration,
    /// The unique ids, and the rank that said so first.
    claim: (Claim, u32),
    n: u32,
    share: Range<u32>,
    lines: BTreeMap<Conn, Line>,
    /// The connections of ranks that have joined.
    in_reach: BTreeMap<u32, Conn>,
    up: Up,
    attempts: u64,
    /// Ranks that the head does not know of, with their infos, and when they came.
    arrivals: Vec<(Time, Guest, Vec<u8>)>,
    come: BTreeSet<u32>,
    /// When the first of those here gives up.
    deadline: Option<Time>,
    patience: Duration,
    /// Nobody is kept back any longer.
    hurry: bool,
    mail: Mail,
    /// What the head is to be told of why nobody can join.
    objection: Option<String>,
    is_odd: bool,
    finished: bool,
    progress: Progress,
    pulse: Pulse,
    actions: Vec<Action>,
}

/// A rank's connection.
struct Line {
    rank: u32,
    process: Option<Process>,
    heard: Time,
    /// When the system was last asked about its process.
    looked: Time,
}

/// The connection to the head.
enum Up {
    Joining { joiner: Box<Joiner>, conn: Option<Conn> },
    Linked(Conn),
    Lost { at: Time },
}

/// What ranks have said and the head has not heard.
#[derive(Default)]
struct Mail {
    said: Vec<(u64, Vec<u8>)>,
    /// Lines that have something in it.
    speakers: BTreeSet<Conn>,
    /// Lines that have ended.
    ended: Vec<(u64, Ending)>,
    /// When it is sent at the latest.
    due: Option<Time>,
}

/// How far joining is.
enum Progress {
    Open,
    /// The head has told somebody that joining has failed.
    Refused(Refusal),
    Began {
        at: Time,
        listens: bool,
    },
    /// Joining has failed here.
    Failed {
        at: Time,
        refusal: Refusal,
        told: BTreeSet<u32>,
    },
}

/// Whether the head answers.
struct Pulse {
    process: Option<Process>,
    heard: Time,
    next_ping: Time,
    /// When the ping that is not answered was sent.
    asked: Option<Time>,
    /// Somebody waits for the head's word.
    wanted: bool,
    silent: bool,
}

impl Deputy {
    /// A deputy in process `this`, for the ranks of one claim, which `rank` of n made first.
    pub(crate) fn new(
        key: &Key,
        settings: &BootstrapSettings,
        this: (Process, LifeOf),
        (claim, rank, n): (Claim, u32, u32),
        now: Time,
    ) -> Deputy {
        let share = roots::share(claim.index, n.max(claim.roots), claim.roots);
        let heartbeat = settings.heartbeat;
        let pulse = Pulse {
            process: None,
            heard: now,
            next_ping: now + heartbeat,
            asked: None,
            wanted: false,
            silent: false,
        };
        let mut deputy = Deputy {
            up: Up::Lost { at: now },
            heartbeat,
            linger: settings.deadline.min(super::root::LONGEST_LINGER),
            n,
            share,
            lines: BTreeMap::new(),
            in_reach: BTreeMap::new(),
            attempts: 0,
            arrivals: Vec::new(),
            come: BTreeSet::new(),
            deadline: None,
            patience: settings.deadline,
            hurry: false,
            mail: Mail::default(),
            objection: None,
            is_odd: false,
            finished: false,
            progress: Progress::Open,
            pulse,
            actions: Vec::new(),
            this: this.clone(),
            claim: (claim, rank),
        };
        match deputy.way_up(key, (Rank(rank), n), (now, settings.deadline)) {
            Ok(joiner) => deputy.up = Up::Joining { joiner: Box::new(joiner), conn: None },
            Err(error) => deputy.fail(&error, now),
        }
        deputy
    }

    fn way_up(&self, key: &Key, who: (Rank, u32), until: (Time, Duration)) -> Result<Joiner> {
        let head = self.claim.0.head(key)?;
        let purpose = Purpose::Represent { process: self.this.0.clone() };
        let joiner = Joiner::new(Key::new(&head), head.addresses(), who, purpose, until);
        Ok(joiner.claiming(Some(self.claim.0.to_head())))
    }

    /// The unique ids, and the rank that said so first.
    pub(crate) fn claim(&self) -> (&Claim, u32) {
        (&self.claim.0, self.claim.1)
    }

    /// Whether this connection is a rank's or the head's.
    pub(crate) fn owns(&self, conn: Conn) -> bool {
        self.lines.contains_key(&conn) || self.way() == Some(conn)
    }

    /// `rank` of `n` has come on a connection that proved itself, with these first words.
    pub(crate) fn came(
        &mut self,
        conn: Conn,
        address: SocketAddr,
        (rank, n): (u32, u32),
        first: &[u8],
        now: Time,
    ) -> Vec<Action> {
        let (word, process, info) = match wire::decode(first) {
            Some(ToRoot::Join { process, remaining_ms, info }) if info.len() <= INFO_BYTES => {
                self.await_until(now + Duration::from_millis(remaining_ms), now);
                (
                    Word::Join { process: process.clone(), remaining_ms, kept_ms: 0 },
                    Some(process),
                    info.into_vec(),
                )
            }
            Some(ToRoot::Fail { reason }) => {
                self.hurry = true;
                (Word::Fail { reason: wire::bounded(&reason) }, None, Vec::new())
            }
            _ => return vec![Action::Close { conn }],
        };
        if let (Up::Lost { .. }, Progress::Began { .. } | Progress::Refused(_)) = (&self.up, &self.progress) {
            let text = "the root at which the roots meet has ended".into();
            let refusal = ToMember::Refused(Refusal { fault: FaultCode::Network, text });
            return vec![Action::Send { conn, frame: wire::encode(&refusal) }, Action::Close { conn }];
        }
        self.lines.insert(conn, Line { rank, process, heard: now, looked: now });
        if let Progress::Failed { at, refusal, told } = &mut self.progress {
            told.insert(rank);
            let late = words::seconds(now.saturating_sub(*at));
            let text = format!("joining had failed {late} before this rank came: {}", refusal.text);
            let refusal = Refusal { text, fault: refusal.fault.clone() };
            self.refuse_all(&refusal);
        } else {
            // The head says what is wrong with it.
            let is_odd = n != self.n || !self.share.contains(&rank) || !self.come.insert(rank);
            self.hurry |= is_odd;
            self.arrivals.push((now, Guest { line: conn.0, address, rank, n, word }, info));
        }
        std::mem::take(&mut self.actions)
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let joining = matches!(self.up, Up::Joining { .. });
        match event {
            Event::Connected { conn, nonce } if self.way() == Some(conn) => {
                self.go_up(joiner::Event::Connected { nonce }, now);
            }
            Event::Received { conn, body } if self.way() == Some(conn) => match joining {
                true => self.go_up(joiner::Event::Received(body), now),
                false => self.head_said(&body, now),
            },
            Event::Closed { conn, why } if self.way() == Some(conn) => match joining {
                true => self.go_up(joiner::Event::Unconnected(why.to_string()), now),
                false => self.head_lost(&why, now),
            },
            Event::Received { conn, body } => self.member_said(conn, body, now),
            Event::Closed { conn, why } => self.line_ended(conn, why, now),
            Event::Tick => self.tick(now),
            Event::Accepted { .. } | Event::Connected { .. } => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// Those here cannot be of one communicator: tells them and the head.
    pub(crate) fn object(&mut self, text: String, now: Time) -> Vec<Action> {
        if let Progress::Open = self.progress {
            self.fail(&Error::usage(text.clone(), ""), now);
            (self.objection, self.is_odd) = (Some(text), true);
        }
        std::mem::take(&mut self.actions)
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.finished {
            return None;
        }
        let linked = matches!(self.up, Up::Linked(_));
        if self.is_done()
            || linked
                && (self.arrivals_are_due() || self.mail_is_due(Duration::ZERO) || self.objection.is_some())
        {
            return Some(Duration::ZERO);
        }
        let up = match &self.up {
            Up::Joining { joiner, .. } => joiner.deadline(),
            Up::Linked(_) => self.mail.due,
            Up::Lost { at } => Some(*at + self.linger),
        };
        let open = matches!(self.progress, Progress::Open);
        let joining = self.deadline.filter(|_| open).map(|at| match self.hurry {
            true => at + ANSWER,
            false => self.hurry_at().unwrap_or(at).min(at + ANSWER),
        });
        let over = match &self.progress {
            Progress::Began { at, listens: true } | Progress::Failed { at, .. } => Some(*at + self.linger),
            _ => None,
        };
        let pulse = linked.then(|| self.pulse.due(self.heartbeat)).flatten();
        let look = self.silence_limit().and_then(|limit| {
            let lines = self.lines.values().map(|line| line.heard.max(line.looked));
            Some(lines.min()? + limit)
        });
        up.into_iter().chain(joining).chain(over).chain(pulse).chain(look).min()
    }

    /// The connection towards the head, if there is one.
    fn way(&self) -> Option<Conn> {
        match &self.up {
            Up::Joining { conn, .. } => *conn,
            Up::Linked(conn) => Some(*conn),
            Up::Lost { .. } => None,
        }
    }

    fn await_until(&mut self, at: Time, now: Time) {
        if self.deadline.is_none_or(|deadline| at < deadline) {
            (self.deadline, self.patience) = (Some(at), at.saturating_sub(now));
        }
    }

    /// When those kept back are made known, so that the head can name who is missing.
    fn hurry_at(&self) -> Option<Time> {
        self.deadline.map(|at| at.saturating_sub(2 * margin(self.patience)))
    }

    /// Something happens on the way to the head.
    fn go_up(&mut self, event: joiner::Event, now: Time) {
        let Up::Joining { joiner, conn } = &mut self.up else { return };
        let done = joiner.on(event, now);
        for action in done {
            match (action, *conn) {
                (joiner::Action::Connect(address), before) => {
                    self.actions.extend(before.map(|conn| Action::Drop { conn }));
                    self.attempts += 1;
                    let fresh = Conn::upwards(self.attempts);
                    *conn = Some(fresh);
                    self.actions.push(Action::Connect { conn: fresh, address });
                }
                (joiner::Action::Disconnect, Some(before)) => {
                    *conn = None;
                    self.actions.push(Action::Drop { conn: before });
                }
                (joiner::Action::Send(frame), Some(conn)) => self.actions.push(Action::Send { conn, frame }),
                (joiner::Action::Trust, Some(conn)) => self.actions.push(Action::Trust { conn }),
                (joiner::Action::Done(result), linked) => match (*result, linked) {
                    (Ok(Outcome::Represented), Some(conn)) => {
                        self.up = Up::Linked(conn);
                        (self.pulse.heard, self.pulse.next_ping) = (now, now + self.heartbeat);
                        return;
                    }
                    (result, linked) => {
                        self.actions.extend(linked.map(|conn| Action::Drop { conn }));
                        self.up = Up::Lost { at: now };
                        let error = result.err().unwrap_or_else(|| Error::bug("a deputy was let in"));
                        return self.fail(&error, now);
                    }
                },
                _ => {}
            }
        }
    }

    /// Joining has failed, as far as the ranks here are concerned.
    fn fail(&mut self, error: &Error, now: Time) {
        self.actions.push(Action::Warn(format!("joining failed: {}", error.cause())));
        let refusal = Refusal { fault: error.fault().into(), text: error.cause().to_owned() };
        let told = self.lines.values().map(|line| line.rank).collect();
        self.refuse_all(&refusal);
        self.arrivals.clear();
        self.progress = Progress::Failed { at: now, refusal, told };
    }

    fn refuse_all(&mut self, refusal: &Refusal) {
        self.tell_all(&ToMember::Refused(refusal.clone()));
        let lines = std::mem::take(&mut self.lines);
        self.actions.extend(lines.into_keys().map(|conn| Action::Close { conn }));
    }

    fn tell_all(&mut self, message: &ToMember) {
        let frame = wire::encode(message);
        let send = |conn: &Conn| Action::Send { conn: *conn, frame: frame.clone() };
        self.actions.extend(self.lines.keys().map(send));
    }

    fn tell_head(&mut self, message: &ToHead) {
        if let Up::Linked(conn) = self.up {
            self.actions.push(Action::Send { conn, frame: wire::encode(message) });
        }
    }

    /// A rank said something after its first words.
    fn member_said(&mut self, conn: Conn, body: Vec<u8>, now: Time) {
        let Some(line) = self.lines.get_mut(&conn) else { return };
        line.heard = now;
        let rank = line.rank;
        let kind = wire::Kind::of(&body);
        match kind {
            wire::Kind::Ping => {
                return self.actions.push(Action::Send { conn, frame: wire::encode(&ToMember::Pong) });
            }
            wire::Kind::Relay if self.in_reach.get(&rank) == Some(&conn) => {
                if let Some(done) = self.relay(rank, &body) {
                    return self.actions.push(done);
                }
            }
            wire::Kind::Leave if matches!(self.up, Up::Lost { .. }) => {
                self.forget(conn);
                let frame = wire::encode(&ToMember::Farewell);
                return self.actions.extend([Action::Send { conn, frame }, Action::Close { conn }]);
            }
            _ => {}
        }
        self.pulse.wanted |= matches!(kind, wire::Kind::Round | wire::Kind::Question);
        let waits = kind == wire::Kind::Round && self.mail.speakers.insert(conn);
        let due = if waits { now + HOLD } else { now };
        self.mail.due = Some(self.mail.due.map_or(due, |earlier| earlier.min(due)));
        self.mail.said.push((conn.0, body));
    }

    /// A message from `from` to a rank here.
    fn relay(&self, from: u32, body: &[u8]) -> Option<Action> {
        let Some(ToRoot::Relay { to, topic, bytes }) = wire::decode(body) else { return None };
        let conn = *self.in_reach.get(&to)?;
        Some(Action::Send { conn, frame: wire::encode(&ToMember::Relay { from, topic, bytes }) })
    }

    fn line_ended(&mut self, conn: Conn, why: Ending, now: Time) {
        if self.forget(conn).is_none() {
            return;
        }
        self.hurry = true;
        self.mail.ended.push((conn.0, why));
        self.mail.due = Some(now);
    }

    fn forget(&mut self, conn: Conn) -> Option<Line> {
        let line = self.lines.remove(&conn)?;
        if self.in_reach.get(&line.rank) == Some(&conn) {
            self.in_reach.remove(&line.rank);
        }
        Some(line)
    }

    /// The head says something.
    fn head_said(&mut self, body: &[u8], now: Time) {
        (self.pulse.heard, self.pulse.asked) = (now, None);
        if std::mem::take(&mut self.pulse.silent) {
            self.tell_all(&ToMember::HeadSilent { silent: false });
        }
        match wire::decode(body) {
            Some(ToDeputy::Say { lines, body }) => self.pass_on(&lines, &body, now),
            Some(ToDeputy::Close { lines }) => {
                for conn in lines.into_iter().map(Conn) {
                    if self.forget(conn).is_some() {
                        self.actions.push(Action::Close { conn });
                    }
                }
            }
            Some(ToDeputy::Hurry) => self.hurry = true,
            Some(ToDeputy::Pong) => {}
            None => {
                let why = Ending::Broken("a message that is none".into());
                self.actions.extend(self.way().map(|conn| Action::Drop { conn }));
                self.head_lost(&why, now);
            }
        }
    }

    /// Has these lines hear what the head says.
    fn pass_on(&mut self, lines: &[u64], body: &[u8], now: Time) {
        match wire::Word::of(body) {
            wire::Word::Table => self.begin(lines, body, now),
            wire::Word::Refused if matches!(self.progress, Progress::Open) => {
                if let Some(ToMember::Refused(refusal)) = wire::decode(body) {
                    self.progress = Progress::Refused(refusal);
                }
            }
            wire::Word::Ask => self.show_lines(now),
            _ => {}
        }
        let frame: Frame = wire::frame(body);
        let known = lines.iter().map(|line| Conn(*line)).filter(|conn| self.lines.contains_key(conn));
        self.actions.extend(known.map(|conn| Action::Send { conn, frame: frame.clone() }));
    }

    /// All ranks are in.
    fn begin(&mut self, lines: &[u64], table: &[u8], now: Time) {
        self.progress = Progress::Began { at: now, listens: true };
        if let Some(ToMember::Table { head: Some(head), .. }) = wire::decode(table) {
            self.pulse.process = Some(head.process);
        }
        for conn in lines.iter().map(|line| Conn(*line)) {
            if let Some(line) = self.lines.get(&conn) {
                self.in_reach.insert(line.rank, conn);
            }
        }
    }

    /// Tells the head how the ranks here are, which it asks.
    fn show_lines(&mut self, now: Time) {
        let (this, life) = &self.this;
        let seen = |(conn, line): (&Conn, &Line)| Seen {
            line: conn.0,
            silent_ms: now.saturating_sub(line.heard).as_millis() as u64,
            life: line.process.as_ref().map_or(Life::Unknown, |process| life(process, this)),
        };
        let lines = self.lines.iter().map(seen).collect();
        self.tell_head(&ToHead::Seen { lines });
    }

    /// The connection to the head ended.
    fn head_lost(&mut self, why: &Ending, now: Time) {
        self.up = Up::Lost { at: now };
        match &self.progress {
            Progress::Began { .. } => self.tell_all(&ToMember::HeadLost { why: why.clone() }),
            Progress::Refused(refusal) => {
                let refusal = refusal.clone();
                self.refuse_all(&refusal);
            }
            Progress::Open => {
                let text =
                    format!("the root at which the roots meet was lost while ranks were joining: {why}");
                self.fail(&Error::new(crate::error::Fault::Network, text, ""), now);
            }
            Progress::Failed { .. } => {}
        }
    }

    fn tick(&mut self, now: Time) {
        self.go_up(joiner::Event::Tick, now);
        if self.hurry_at().is_some_and(|at| now >= at) {
            self.hurry = true;
        }
        self.look_for_dead(now);
        if let Up::Linked(_) = self.up {
            self.send_kept(now);
            self.feel_pulse(now);
        }
        let open = matches!(self.progress, Progress::Open);
        if open && self.deadline.is_some_and(|at| now >= at + ANSWER) {
            let patience = words::seconds(self.patience);
            let text =
                format!("the root at which the roots meet did not say within {patience} who is missing");
            self.fail(&Error::new(crate::error::Fault::Timeout, text, ""), now);
        }
        self.end(now);
    }

    fn arrivals_are_due(&self) -> bool {
        !self.arrivals.is_empty() && (self.hurry || self.come.len() >= self.share.len())
    }

    fn mail_is_due(&self, now: Time) -> bool {
        let spoken = !self.mail.said.is_empty() && self.mail.speakers.len() >= self.lines.len();
        spoken || self.mail.due.is_some_and(|due| now >= due)
    }

    fn send_kept(&mut self, now: Time) {
        if let Some(text) = self.objection.take() {
            self.tell_head(&ToHead::Objection { text });
        }
        if self.arrivals_are_due() {
            self.send_arrivals(now);
        }
        if self.mail_is_due(now) {
            let mail = std::mem::take(&mut self.mail);
            for said in in_parcels(mail.said, |(_, body)| body.len()) {
                let (lines, bodies): (_, Vec<_>) = said.into_iter().unzip();
                self.tell_head(&ToHead::Said { lines, bodies: bodies.iter().collect() });
            }
            for (line, why) in mail.ended {
                self.tell_head(&ToHead::Closed { line, why });
            }
            if std::mem::take(&mut self.pulse.wanted) && self.pulse.asked.is_none() {
                self.ping(now);
            }
        }
    }

    fn send_arrivals(&mut self, now: Time) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        // By rank, so that infos next to each other are alike.
        arrivals.sort_by_key(|(_, guest, _)| guest.rank);
        for parcel in in_parcels(arrivals, |(_, _, info)| info.len()) {
            let aged = |(at, mut guest, info): (Time, Guest, Vec<u8>)| {
                if let Word::Join { remaining_ms, kept_ms, .. } = &mut guest.word {
                    *kept_ms = now.saturating_sub(at).as_millis() as u64;
                    *remaining_ms = remaining_ms.saturating_sub(*kept_ms);
                }
                (guest, info)
            };
            let (guests, infos): (_, Vec<_>) = parcel.into_iter().map(aged).unzip();
            self.tell_head(&ToHead::Arrived { guests, infos: infos.iter().collect() });
        }
    }

    /// Asks whether the head is there.
    fn ping(&mut self, now: Time) {
        self.pulse.next_ping = now + self.heartbeat;
        self.pulse.asked.get_or_insert(now);
        self.tell_head(&ToHead::Ping);
    }

    /// Asks from time to time whether the head is there, and tells the ranks if it is not.
    fn feel_pulse(&mut self, now: Time) {
        let regular = !self.heartbeat.is_zero() && now >= self.pulse.next_ping;
        if regular {
            self.ping(now);
        }
        if self.pulse.asked.is_some_and(|at| now >= at + SILENCE) && !self.pulse.silent {
            self.pulse.silent = true;
            self.tell_all(&ToMember::HeadSilent { silent: true });
        }
        let gone = |process: &Process| (self.this.1)(process, &self.this.0) == Life::Gone;
        let long = self.silence_limit().is_some_and(|limit| now >= self.pulse.heard + limit);
        if regular && long && self.pulse.process.as_ref().is_some_and(gone) {
            self.actions.extend(self.way().map(|conn| Action::Drop { conn }));
            self.head_lost(&Ending::Closed, now);
        }
    }

    /// A process may end while a child of it keeps its connection open: looks at silent local ones.
    fn look_for_dead(&mut self, now: Time) {
        let Some(limit) = self.silence_limit() else { return };
        let (this, life) = &self.this;
        let mut dead = Vec::new();
        for (conn, line) in &mut self.lines {
            if now >= line.heard.max(line.looked) + limit {
                line.looked = now;
                if line.process.as_ref().is_some_and(|process| life(process, this) == Life::Gone) {
                    dead.push(*conn);
                }
            }
        }
        for conn in dead {
            self.actions.push(Action::Drop { conn });
            self.line_ended(conn, Ending::Closed, now);
        }
    }

    fn silence_limit(&self) -> Option<Duration> {
        (!self.heartbeat.is_zero()).then_some(self.heartbeat * MISSED_HEARTBEATS)
    }

    /// Ends when nobody is left, or nobody needs to be told why any more.
    fn end(&mut self, now: Time) {
        if let Progress::Began { at, listens } = &mut self.progress
            && *listens
            && now >= *at + self.linger
        {
            *listens = false;
            self.actions.push(Action::StopListening);
        }
        let late = |at: Time| now >= at + self.linger;
        let over = match (&self.progress, &self.up) {
            (Progress::Failed { at, .. }, _) | (_, Up::Lost { at }) if late(*at) => true,
            _ => self.is_done(),
        };
        if over && !self.finished {
            self.finished = true;
            self.actions.push(Action::Finish);
        }
    }

    /// Whether there is nobody that anything could be told.
    fn is_done(&self) -> bool {
        let is_lost = matches!(self.up, Up::Lost { .. });
        match &self.progress {
            Progress::Open => false,
            Progress::Refused(_) => is_lost && self.lines.is_empty(),
            Progress::Began { .. } => self.lines.is_empty() && (is_lost || self.mail.ended.is_empty()),
            // Ranks that have the ids in another order may come that should have gone elsewhere.
            Progress::Failed { told, .. } => {
                !self.is_odd && self.share.clone().all(|rank| told.contains(&rank))
            }
        }
    }
}

impl Pulse {
    fn due(&self, heartbeat: Duration) -> Option<Time> {
        let ping = (!heartbeat.is_zero()).then_some(self.next_ping);
        let silent = self.asked.filter(|_| !self.silent).map(|at| at + SILENCE);
        ping.into_iter().chain(silent).min()
    }
}

/// Cuts `items` so that none of the parts is longer than a frame may be.
fn in_parcels<T>(items: Vec<T>, length: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parcels: Vec<Vec<T>> = Vec::new();
    let mut size_bytes = usize::MAX;
    for item in items {
        size_bytes = size_bytes.saturating_add(length(&item));
        match parcels.last_mut().filter(|_| size_bytes <= PARCEL_BYTES) {
            Some(parcel) => parcel.push(item),
            None => {
                size_bytes = length(&item);
                parcels.push(vec![item]);
            }
        }
    }
    parcels
}

/// How long what a rank says in a round waits for the others here.
const HOLD: Duration = Duration::from_millis(2);
/// How much longer than the first deadline here the head may take to say who is missing: less than ranks wait.
const ANSWER: Duration = Duration::from_millis(250);
/// How long the head may take to answer before the ranks are told: less than they wait for a diagnosis, more
/// than a diagnosis takes.
const SILENCE: Duration = Duration::from_millis(900);
const PARCEL_BYTES: usize = TABLE_BYTES / 4;
