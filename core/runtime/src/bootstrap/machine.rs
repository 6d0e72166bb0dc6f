//! The root's side of joining, without sockets, threads or clocks.
//!
//! A connection is a stranger until it has proved the secret; strangers are few, short-lived, and
//! heard only to the length of a handshake. A proven member joins with its info. Joining ends in one
//! of two ways, once: all n ranks are in, or it has failed and everybody present is told why.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bootstrap::auth::{Answer, Challenge, Hello, Key, VERSION};
use crate::bootstrap::process::Process;
use crate::bootstrap::wire::{self, FaultCode, Frame, INFO_BYTES, MEMBER_BYTES, Refusal, ToMember, ToRoot};
use crate::bootstrap::words;

/// Time since some beginning that the shell chose.
pub(crate) type Time = Duration;

/// A connection, as the shell numbers it; or, at the head of several roots, one that a deputy has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Conn(pub(crate) u64);

impl Conn {
    /// The connection that a root makes to the head, at its attempt of this number.
    pub(crate) fn upwards(attempt: u64) -> Conn {
        Conn(UPWARDS | attempt)
    }

    /// Connection `line` of the deputy that is service `service`, which counts from 1.
    pub(crate) fn at(service: u32, line: u64) -> Conn {
        Conn(ELSEWHERE | u64::from(service & MOST_SERVICES) << LINE_BITS | line & MOST_LINES)
    }

    /// The service that has it: 0 for the root itself.
    pub(crate) fn service(self) -> u32 {
        if self.0 & ELSEWHERE == 0 { 0 } else { (self.0 >> LINE_BITS) as u32 & MOST_SERVICES }
    }

    /// Its number there.
    pub(crate) fn line(self) -> u64 {
        self.0 & MOST_LINES
    }
}

/// What happens to the root.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Somebody connected; `nonce` is fresh.
    Accepted { conn: Conn, address: SocketAddr, nonce: [u8; 32] },
    /// A frame arrived.
    Received { conn: Conn, body: Vec<u8> },
    /// The other side is gone, or could not be reached.
    Closed { conn: Conn, why: Ending },
    /// The connection asked for is there; `nonce` is fresh.
    Connected { conn: Conn, nonce: [u8; 32] },
    /// Time passed.
    Tick,
}

/// How a connection ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// The other process closed it, or ended.
    Closed,
    /// The kernel gave up on the path.
    Unreachable(String),
    /// The other side sent what it may not.
    Broken(String),
}

/// What the root does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Send a frame.
    Send { conn: Conn, frame: Frame },
    /// Connect; from then on the connection has this number.
    Connect { conn: Conn, address: SocketAddr },
    /// Let this connection send longer frames.
    Trust { conn: Conn },
    /// Close when everything is sent.
    Close { conn: Conn },
    /// Forget the connection at once.
    Drop { conn: Conn },
    /// Close the port.
    StopListening,
    /// Tell the log.
    Warn(String),
    /// The root's work is over.
    Finish,
}

/// How long the root waits, and for how many.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Strangers heard at once.
    pub(crate) strangers: usize,
    /// How long a stranger may take.
    pub(crate) stranger_deadline: Duration,
    /// How long to wait for the first member.
    pub(crate) expiry: Duration,
    /// How long to answer latecomers after joining has ended.
    pub(crate) linger: Duration,
}

/// A rank that is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Joined {
    pub(crate) rank: u32,
    pub(crate) conn: Conn,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
    pub(crate) info: Vec<u8>,
}

/// The root while ranks join, and towards latecomers afterwards.
pub(crate) struct Gathering {
    key: Key,
    rules: Rules,
    started: Time,
    guests: BTreeMap<Conn, Guest>,
    joined: BTreeMap<u32, Joined>,
    /// n, and the first rank to say it.
    n: Option<(u32, u32)>,
    /// When the first of those present gives up.
    deadline: Option<Time>,
    patience: Duration,
    denied: Option<(u32, SocketAddr)>,
    outcome: Outcome,
    told: BTreeSet<u32>,
    /// Refusals that were logged.
    refusals: u32,
    remark: String,
    actions: Vec<Action>,
}

/// A connection that has not joined yet.
struct Guest {
    address: SocketAddr,
    since: Time,
    /// How long it was kept back before that.
    kept: Duration,
    stage: Stage,
}

enum Stage {
    /// It was challenged with this nonce.
    Challenged([u8; 32]),
    /// It knows the secret, and is this rank of that n.
    Proven(u32, u32),
}

enum Outcome {
    Open,
    Full { at: Time },
    Failed { at: Time, refusal: Refusal },
    Over,
}

impl Gathering {
    pub(crate) fn new(key: Key, rules: Rules, now: Time) -> Gathering {
        Gathering {
            key,
            rules,
            started: now,
            guests: BTreeMap::new(),
            joined: BTreeMap::new(),
            n: None,
            deadline: None,
            patience: Duration::ZERO,
            denied: None,
            outcome: Outcome::Open,
            told: BTreeSet::new(),
            refusals: 0,
            remark: String::new(),
            actions: Vec::new(),
        }
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        match event {
            Event::Accepted { conn, address, nonce } => self.accepted(conn, address, nonce, now),
            Event::Received { conn, body } => self.received(conn, &body, now),
            Event::Closed { conn, why } => self.closed(conn, &why, now),
            Event::Connected { .. } | Event::Tick => {}
        }
        self.expire(now);
        std::mem::take(&mut self.actions)
    }

    /// Lets a rank of `n` in that has proved elsewhere that it knows the secret.
    pub(crate) fn admit(&mut self, conn: Conn, address: SocketAddr, who: (u32, u32), now: Time) {
        self.admit_after(Duration::ZERO, conn, address, who, now);
    }

    /// The same of one that came so long ago.
    pub(crate) fn admit_after(
        &mut self,
        kept: Duration,
        conn: Conn,
        address: SocketAddr,
        (rank, n): (u32, u32),
        now: Time,
    ) {
        self.guests.insert(conn, Guest { address, since: now, kept, stage: Stage::Proven(rank, n) });
    }

    /// Who proved to know the secret on this connection, and has said nothing since.
    pub(crate) fn proven(&self, conn: Conn) -> Option<(SocketAddr, (u32, u32))> {
        let guest = self.guests.get(&conn)?;
        match guest.stage {
            Stage::Proven(rank, n) => Some((guest.address, (rank, n))),
            Stage::Challenged(_) => None,
        }
    }

    /// Hands such a connection over to the caller.
    pub(crate) fn release(&mut self, conn: Conn) {
        self.guests.remove(&conn);
    }

    /// The connections of those who have joined through this service.
    pub(crate) fn at_service(&self, service: u32) -> Vec<Conn> {
        self.joined.values().map(|joined| joined.conn).filter(|conn| conn.service() == service).collect()
    }

    /// From now on only handshakes are made here, and what follows them is released.
    pub(crate) fn only_greet(&mut self) {
        self.outcome = Outcome::Over;
    }

    /// Everybody here and to come is told that joining has failed.
    pub(crate) fn give_up(&mut self, fault: FaultCode, text: String, now: Time) -> Vec<Action> {
        self.fail(fault, text, now);
        self.expire(now);
        std::mem::take(&mut self.actions)
    }

    /// Whether joining goes on.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.outcome, Outcome::Open)
    }

    /// Whether joining has failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed { .. })
    }

    /// When those present give up and how long they have waited then, while joining goes on.
    pub(crate) fn patience(&self) -> Option<(Time, Duration)> {
        self.deadline.filter(|_| matches!(self.outcome, Outcome::Open)).map(|at| (at, self.patience))
    }

    /// What else to say when ranks are missing.
    pub(crate) fn remark(&mut self, remark: String) {
        self.remark = remark;
    }

    /// A rank that has joined, if any has.
    pub(crate) fn first(&self) -> Option<u32> {
        self.n.map(|(_, rank)| rank)
    }

    /// Whether this connection is one of those that join.
    pub(crate) fn owns(&self, conn: Conn) -> bool {
        self.guests.contains_key(&conn) || self.joined.values().any(|joined| joined.conn == conn)
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let strangers = self.guests.values().map(|guest| guest.since + self.rules.stranger_deadline);
        let own = match &self.outcome {
            Outcome::Open => Some(self.deadline.unwrap_or(self.started + self.rules.expiry)),
            Outcome::Full { at } | Outcome::Failed { at, .. } => Some(*at + self.rules.linger),
            Outcome::Over => None,
        };
        strangers.chain(own).min()
    }

    /// The ranks, once all are in; from then on they are the caller's.
    pub(crate) fn take_full(&mut self) -> Option<Vec<Joined>> {
        let complete = matches!(self.outcome, Outcome::Full { .. }) && !self.joined.is_empty();
        complete.then(|| std::mem::take(&mut self.joined).into_values().collect())
    }

    fn accepted(&mut self, conn: Conn, address: SocketAddr, nonce: [u8; 32], now: Time) {
        if self.guests.len() >= self.rules.strangers
            && let Some(oldest) = self.guests.keys().next().copied()
        {
            self.expel(oldest, "too many strangers at once");
        }
        self.guests.insert(
            conn,
            Guest { address, since: now, kept: Duration::ZERO, stage: Stage::Challenged(nonce) },
        );
        let challenge = Challenge { version: VERSION, nonce };
        self.actions.push(Action::Send { conn, frame: wire::frame(&challenge.encode()) });
    }

    fn received(&mut self, conn: Conn, body: &[u8], now: Time) {
        let Some(guest) = self.guests.get(&conn) else {
            return;
        };
        match guest.stage {
            Stage::Challenged(nonce) => match Hello::parse(body) {
                Some(hello) => self.hello(conn, &hello, &nonce, now),
                None => self.expel(conn, "not a ccl handshake"),
            },
            Stage::Proven(rank, n) => match wire::decode(body) {
                Some(ToRoot::Join { process, remaining_ms, info }) if info.len() <= INFO_BYTES => {
                    let address = guest.address;
                    let joined = Joined { rank, conn, address, process, info: info.into_vec() };
                    let times = (Duration::from_millis(remaining_ms), guest.kept);
                    self.join(joined, n, times, now);
                }
                Some(ToRoot::Fail { reason }) => self.declined(conn, (rank, n), &reason, now),
                _ => self.expel(conn, "neither joined nor failed"),
            },
        }
    }

    fn hello(&mut self, conn: Conn, hello: &Hello, nonce: &[u8; 32], now: Time) {
        let answer = hello.judge(&self.key, nonce);
        self.actions.push(Action::Send { conn, frame: wire::frame(&answer.encode()) });
        let Some(guest) = self.guests.get_mut(&conn) else {
            return;
        };
        let address = guest.address;
        if answer == Answer::Denied {
            let count = self.denied.map_or(0, |(count, _)| count);
            self.denied = Some((count.saturating_add(1), address));
            self.guests.remove(&conn);
            self.log_refusal(address, "it does not know the secret of this job");
            return self.actions.push(Action::Close { conn });
        }
        guest.stage = Stage::Proven(hello.rank, hello.n);
        if hello.version != VERSION {
            let text = format!(
                "rank {} at {address} speaks control version {}, the root speaks version {VERSION}",
                hello.rank, hello.version
            );
            self.guests.remove(&conn);
            self.actions.push(Action::Close { conn });
            return self.fail(FaultCode::Usage, text, now);
        }
        self.actions.push(Action::Trust { conn });
    }

    fn join(&mut self, new: Joined, n: u32, (remaining, kept): (Duration, Duration), now: Time) {
        self.guests.remove(&new.conn);
        match &self.outcome {
            Outcome::Open => {}
            Outcome::Full { .. } | Outcome::Over => {
                let text =
                    format!("rank {} of this id has joined already; {} came too late", new.rank, place(&new));
                return self.refuse(new.conn, Refusal { fault: FaultCode::Usage, text });
            }
            Outcome::Failed { at, refusal } => {
                let late = words::seconds(now.saturating_sub(*at));
                let text = format!("joining had failed {late} before this rank came: {}", refusal.text);
                let refusal = Refusal { text, fault: refusal.fault.clone() };
                self.told.insert(new.rank);
                return self.refuse(new.conn, refusal);
            }
        }
        if let Some(text) = self.objection(&new, n) {
            let (conn, fault) = (new.conn, FaultCode::Usage);
            self.refuse(conn, Refusal { fault: fault.clone(), text: text.clone() });
            return self.fail(fault, text, now);
        }
        self.n.get_or_insert((n, new.rank));
        if self.deadline.is_none_or(|deadline| now + remaining < deadline) {
            (self.deadline, self.patience) = (Some(now + remaining), remaining + kept);
        }
        self.joined.insert(new.rank, new);
        if self.joined.len() == n as usize {
            self.outcome = Outcome::Full { at: now };
        }
    }

    /// Why `new`, who says there are `n` ranks, cannot be one of those already here.
    fn objection(&self, new: &Joined, n: u32) -> Option<String> {
        let together: usize = self.joined.values().map(|joined| joined.info.len()).sum();
        if together + new.info.len() > TABLE_BYTES {
            return Some(format!("expected infos of at most {TABLE_BYTES} bytes together, found more"));
        }
        if new.rank >= n {
            return Some(format!("{} says it is one of {n} ranks, 0 to {}", place(new), n.saturating_sub(1)));
        }
        if let Some((first_n, said_by)) = self.n
            && first_n != n
        {
            let first = self.joined.get(&said_by).map_or(format!("rank {said_by}"), place);
            return Some(format!("{first} says n = {first_n}, {} says n = {n}", place(new)));
        }
        let taken = self.joined.get(&new.rank)?;
        let (rank, other) = (new.rank, whereabouts(taken));
        Some(format!("two processes say they are rank {rank}: one at {other}, one at {}", whereabouts(new)))
    }

    /// Rank `rank` reported its own failure.
    fn declined(&mut self, conn: Conn, (rank, n): (u32, u32), reason: &str, now: Time) {
        self.n.get_or_insert((n, rank));
        let address = self.guests.remove(&conn).map(|guest| guest.address.to_string()).unwrap_or_default();
        self.actions.push(Action::Close { conn });
        self.told.insert(rank);
        let text = format!("rank {rank} at {address} failed while joining: {}", wire::bounded(reason));
        self.fail(FaultCode::Remote(rank), text, now);
    }

    fn closed(&mut self, conn: Conn, why: &Ending, now: Time) {
        if let Some(guest) = self.guests.remove(&conn) {
            if let (Ending::Broken(what), Stage::Challenged(_)) = (why, &guest.stage) {
                self.log_refusal(guest.address, what);
            }
            return;
        }
        let Some(lost) = self.joined.values().find(|joined| joined.conn == conn) else {
            return;
        };
        let (rank, text) = (lost.rank, format!("{} was lost while joining: {why}", place(lost)));
        self.joined.remove(&rank);
        self.told.insert(rank);
        self.fail(FaultCode::Remote(rank), text, now);
    }

    fn expire(&mut self, now: Time) {
        let patience = self.rules.stranger_deadline;
        let late = |(conn, guest): (&Conn, &Guest)| (now >= guest.since + patience).then_some(*conn);
        for conn in self.guests.iter().filter_map(late).collect::<Vec<_>>() {
            self.expel(conn, "it did not prove that it knows the secret in time");
        }
        match &self.outcome {
            Outcome::Open if self.deadline.is_some_and(|deadline| now >= deadline) => self.missed(now),
            Outcome::Open if self.deadline.is_none() && now >= self.started + self.rules.expiry => {
                self.actions.push(Action::Warn("nobody came: the unique id has expired".into()));
                self.actions.push(Action::Finish);
            }
            Outcome::Full { at } if now >= *at + self.rules.linger => {
                self.actions.push(Action::StopListening);
                self.outcome = Outcome::Over;
            }
            Outcome::Failed { at, .. } => {
                let everybody = self.n.is_some_and(|(n, _)| self.told.len() >= n as usize);
                if everybody || now >= *at + self.rules.linger {
                    self.actions.push(Action::Finish);
                }
            }
            _ => {}
        }
    }

    /// The deadline passed: names who is missing and who is here.
    fn missed(&mut self, now: Time) {
        let n = self.n.map_or(0, |(n, _)| n);
        let missing: Vec<u32> = (0..n).filter(|rank| !self.joined.contains_key(rank)).take(LISTED).collect();
        let first = missing.first().copied().unwrap_or_default();
        let present = words::list(self.joined.values().map(place));
        let (here, patience) = (self.joined.len(), words::seconds(self.patience));
        let strangers = match self.denied {
            Some((count, last)) => format!("; refused without the secret: {count}, the last from {last}"),
            None => String::new(),
        };
        let missing = words::ranks(missing);
        let text = format!(
            "{here} of {n} ranks joined within {patience}; missing: {missing}; present: {present}{strangers}{}",
            self.remark
        );
        self.fail(FaultCode::Remote(first), text, now);
    }

    /// Joining has failed: tells everybody here, once.
    fn fail(&mut self, fault: FaultCode, text: String, now: Time) {
        if !matches!(self.outcome, Outcome::Open) {
            return;
        }
        self.actions.push(Action::Warn(format!("joining failed: {text}")));
        let refusal = Refusal { fault, text };
        for joined in std::mem::take(&mut self.joined).into_values() {
            self.told.insert(joined.rank);
            self.refuse(joined.conn, refusal.clone());
        }
        self.outcome = Outcome::Failed { at: now, refusal };
    }

    fn refuse(&mut self, conn: Conn, refusal: Refusal) {
        self.actions.push(Action::Send { conn, frame: wire::encode(&ToMember::Refused(refusal)) });
        self.actions.push(Action::Close { conn });
    }

    fn expel(&mut self, conn: Conn, why: &str) {
        let Some(guest) = self.guests.remove(&conn) else {
            return;
        };
        let end = match guest.stage {
            Stage::Challenged(_) => Action::Drop { conn },
            Stage::Proven(..) => Action::Close { conn },
        };
        self.log_refusal(guest.address, why);
        self.actions.push(end);
    }

    /// Logs a refused connection; strangers cannot fill the log.
    fn log_refusal(&mut self, address: SocketAddr, why: &str) {
        self.refusals = self.refusals.saturating_add(1);
        match self.refusals {
            ..LOGGED_REFUSALS => self.actions.push(Action::Warn(format!("refused {address}: {why}"))),
            LOGGED_REFUSALS => {
                self.actions
                    .push(Action::Warn(format!("refused {address}: {why}; further refusals are not logged")));
            }
            _ => {}
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Closed => f.write_str("its connection closed"),
            Ending::Unreachable(why) => write!(f, "its connection failed: {why}"),
            Ending::Broken(what) => write!(f, "it broke the protocol: {what}"),
        }
    }
}

/// "rank 0 at 10.0.0.1:4000 (pid 7, host h)".
fn place(joined: &Joined) -> String {
    format!("rank {} at {}", joined.rank, whereabouts(joined))
}

fn whereabouts(joined: &Joined) -> String {
    format!("{} ({})", joined.address, joined.process)
}

/// Infos of all ranks together, so that a table fits into a frame.
pub(crate) const TABLE_BYTES: usize = MEMBER_BYTES / 2;
const LOGGED_REFUSALS: u32 = 32;
const UPWARDS: u64 = 1 << 62;
const ELSEWHERE: u64 = 1 << 63;
const LINE_BITS: u32 = 40;
const MOST_LINES: u64 = (1 << LINE_BITS) - 1;
/// Deputies that a head takes.
pub(crate) const MOST_SERVICES: u32 = (1 << 22) - 1;
/// Missing ranks looked for before the list is cut anyway.
const LISTED: usize = 4096;
