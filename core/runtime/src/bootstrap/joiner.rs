//! A member's side of joining, without sockets, threads or clocks.

use std::net::SocketAddr;
use std::time::Duration;

use ccl_plan::Rank;

use crate::bootstrap::auth::{Answer, Challenge, Hello, Key, VERSION};
use crate::bootstrap::infos::Infos;
use crate::bootstrap::machine::{Ending, Time};
use crate::bootstrap::process::Process;
use crate::bootstrap::roots::Claim;
use crate::bootstrap::wire::{self, Frame, Host, ToMember, ToRoot};
use crate::bootstrap::words;
use crate::control::member::Keepers;
use crate::error::{Error, Fault};

/// What happens to a member that joins.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The connection asked for is there; `nonce` is fresh.
    Connected { nonce: [u8; 32] },
    /// The connection asked for cannot be had.
    Unconnected(String),
    /// A frame arrived.
    Received(Vec<u8>),
    /// The other side is gone.
    Closed(Ending),
    /// Time passed.
    Tick,
}

/// What a joining member does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Connect, giving up any connection there is.
    Connect(SocketAddr),
    /// Give up the connection.
    Disconnect,
    /// Send a frame.
    Send(Frame),
    /// Accept longer frames.
    Trust,
    /// Joining is over; the connection, if still there, is the control connection.
    Done(Box<Result<Outcome, Error>>),
}

/// How joining ended well.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// Everybody is in.
    Entered(Entry),
    /// The failure is known to the root.
    Announced,
    /// The head knows of the deputy.
    Represented,
}

/// What a member learns by joining.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) infos: Infos,
    pub(crate) keepers: Keepers,
}

/// What a member has to say once it is let in.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Join with this info.
    Join { process: Process, info: Vec<u8> },
    /// Make everybody give up, for this reason.
    Fail { reason: String },
    /// Speak for ranks as a deputy, from this process.
    Represent { process: Process },
}

/// One rank joining.
pub(crate) struct Joiner {
    key: Key,
    addresses: Vec<SocketAddr>,
    rank: Rank,
    n: u32,
    purpose: Purpose,
    /// Which unique ids there are, if several.
    claim: Option<Claim>,
    started: Time,
    deadline: Time,
    attempt: usize,
    /// How the last attempt failed.
    last: Option<String>,
    stage: Stage,
}

enum Stage {
    Waiting { until: Time },
    Connecting { since: Time },
    Challenged { since: Time, nonce: [u8; 32] },
    Answered { since: Time, challenge: Challenge, hello: Hello },
    Joined,
    Over,
}

impl Joiner {
    pub(crate) fn new(
        key: Key,
        addresses: &[SocketAddr],
        (rank, n): (Rank, u32),
        purpose: Purpose,
        (now, patience): (Time, Duration),
    ) -> Joiner {
        Joiner {
            key,
            addresses: addresses.to_vec(),
            rank,
            n,
            purpose,
            claim: None,
            started: now,
            deadline: now + patience,
            attempt: 0,
            last: None,
            stage: Stage::Waiting { until: now },
        }
    }

    /// The same where the root is one of several.
    pub(crate) fn claiming(self, claim: Option<Claim>) -> Joiner {
        Joiner { claim, ..self }
    }

    /// Takes in an event; returns what to do, in order.
    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = match (event, &self.stage) {
            (_, Stage::Over) => Vec::new(),
            (Event::Connected { nonce }, Stage::Connecting { since }) => {
                self.stage = Stage::Challenged { since: *since, nonce };
                Vec::new()
            }
            (Event::Unconnected(why), _) => self.retry(why, now),
            (Event::Received(body), _) => self.received(&body, now),
            (Event::Closed(why), Stage::Joined) => self.root_gone(&why),
            (Event::Closed(why), _) => self.retry(format!("the handshake did not finish: {why}"), now),
            (Event::Connected { .. } | Event::Tick, _) => Vec::new(),
        };
        actions.extend(self.tick(now));
        actions
    }

    /// When to tick next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.stage {
            Stage::Waiting { until } => Some(self.deadline.min(*until)),
            Stage::Connecting { since } | Stage::Challenged { since, .. } | Stage::Answered { since, .. } => {
                Some(self.deadline.min(*since + HANDSHAKE))
            }
            Stage::Joined => Some(self.deadline + GRACE),
            Stage::Over => None,
        }
    }

    /// The address of the attempt under way or just made.
    fn address(&self) -> Option<SocketAddr> {
        self.addresses.get(self.attempt.saturating_sub(1) % self.addresses.len().max(1)).copied()
    }

    fn place(&self) -> String {
        self.address().map_or("no address".into(), |address| address.to_string())
    }

    fn who(&self) -> String {
        match (&self.purpose, &self.claim) {
            (Purpose::Represent { .. }, Some(claim)) => format!("the root of unique id {}", claim.index),
            _ => format!("rank {}", self.rank),
        }
    }

    /// Which root it is.
    fn keeper(&self) -> String {
        match (&self.purpose, &self.claim) {
            // A rank that has not joined cannot know whose process holds the root; by convention it is rank 0's.
            (_, None) => "which rank 0 keeps unless another process made the id".into(),
            (Purpose::Represent { .. }, Some(_)) => "at which the roots meet".into(),
            (_, Some(claim)) => format!("that of unique id {} (of 0 to {})", claim.index, claim.roots - 1),
        }
    }

    fn received(&mut self, body: &[u8], now: Time) -> Vec<Action> {
        match &self.stage {
            Stage::Challenged { since, nonce } => match Challenge::parse(body) {
                Some(challenge) => self.answer(challenge, *nonce, *since),
                None => self.retry("found something that is not a ccl root".into(), now),
            },
            Stage::Answered { challenge, hello, .. } => match Answer::parse(body) {
                Some(Answer::Denied) => self.denied(),
                Some(answer) if answer.proves(&self.key, challenge, hello) => self.welcome(now),
                _ => self.retry("the root could not prove that it knows the secret".into(), now),
            },
            Stage::Joined => self.told(body),
            Stage::Waiting { .. } | Stage::Connecting { .. } | Stage::Over => Vec::new(),
        }
    }

    fn answer(&mut self, challenge: Challenge, nonce: [u8; 32], since: Time) -> Vec<Action> {
        let hello = Hello::answering(&challenge, &self.key, VERSION, (self.rank.0, self.n), nonce);
        let send = Action::Send(wire::frame(&hello.encode()));
        if challenge.version != VERSION {
            let text = format!(
                "the root at {} speaks control version {}, rank {} speaks version {VERSION}",
                self.place(),
                challenge.version,
                self.rank
            );
            let error = Error::usage(text, "run the same version of ccl on all ranks");
            return [vec![send], self.over(Err(error))].concat();
        }
        self.stage = Stage::Answered { since, challenge, hello };
        vec![send]
    }

    fn denied(&mut self) -> Vec<Action> {
        let text = format!(
            "the root at {} did not accept the secret of rank {}'s unique id",
            self.place(),
            self.rank
        );
        let advice = "give all ranks of a job the same, fresh unique id; an old id may name a port now used by another job";
        self.over(Err(Error::usage(text, advice)))
    }

    fn welcome(&mut self, now: Time) -> Vec<Action> {
        self.stage = Stage::Joined;
        let remaining_ms = self.deadline.saturating_sub(now).as_millis() as u64;
        let message = match (&self.purpose, &self.claim) {
            (Purpose::Join { process, info }, _) => {
                ToRoot::Join { process: process.clone(), remaining_ms, info: wire::blob(info) }
            }
            (Purpose::Represent { process }, Some(claim)) => {
                let message = ToRoot::Represent { claim: claim.clone(), process: process.clone() };
                let represented = self.over(Ok(Outcome::Represented));
                return [vec![Action::Trust, Action::Send(wire::encode(&message))], represented].concat();
            }
            (Purpose::Fail { reason }, _) => ToRoot::Fail { reason: wire::bounded(reason) },
            (Purpose::Represent { .. }, None) => ToRoot::Fail { reason: "a deputy without ids".into() },
        };
        let message = match &self.claim {
            Some(claim) => ToRoot::Share { claim: claim.clone(), first: wire::body(&message).into() },
            None => message,
        };
        vec![Action::Trust, Action::Send(wire::encode(&message))]
    }

    fn told(&mut self, body: &[u8]) -> Vec<Action> {
        let result = match wire::decode(body) {
            Some(ToMember::Table { infos, root, hosts, head }) if infos.len() == self.n as usize => {
                let keepers = Keepers { root: Host { process: root, ranks: hosts }, head };
                Ok(Outcome::Entered(Entry { infos, keepers }))
            }
            Some(ToMember::Refused(refusal)) => Err(Error::new(
                refusal.fault.into(),
                refusal.text,
                "look at the named rank first: its log says more",
            )),
            _ => Err(Error::new(
                Fault::Network,
                format!(
                    "expected the table of ranks from the root at {}, found something else",
                    self.place()
                ),
                "run the same version of ccl on all ranks",
            )),
        };
        self.over(result)
    }

    fn root_gone(&mut self, why: &Ending) -> Vec<Action> {
        if let Purpose::Fail { .. } = self.purpose {
            return self.over(Ok(Outcome::Announced));
        }
        let (place, keeper) = (self.place(), self.keeper());
        let text = format!("the root at {place}, {keeper}, ended while ranks were joining: {why}");
        self.over(Err(Error::new(
            Fault::Network,
            text,
            "look at the process that made the unique id: it has ended",
        )))
    }

    /// Gives this attempt up and waits a little, longer each time round.
    fn retry(&mut self, why: String, now: Time) -> Vec<Action> {
        self.last = Some(why);
        let round = self.attempt / self.addresses.len().max(1);
        let pause = (FIRST_PAUSE * 2_u32.saturating_pow(round.min(16) as u32)).min(LONGEST_PAUSE);
        self.stage = Stage::Waiting { until: now + pause };
        vec![Action::Disconnect]
    }

    fn tick(&mut self, now: Time) -> Vec<Action> {
        match &self.stage {
            Stage::Over => Vec::new(),
            Stage::Joined if now >= self.deadline + GRACE => {
                let text = format!(
                    "the root at {} let rank {} in and then did not answer for {}",
                    self.place(),
                    self.rank,
                    words::seconds(now.saturating_sub(self.started))
                );
                self.over(Err(Error::new(
                    Fault::Timeout,
                    text,
                    "see whether the process that made the id is stopped",
                )))
            }
            Stage::Joined => Vec::new(),
            _ if now >= self.deadline => self.unreached(now),
            Stage::Waiting { until } if now >= *until => {
                self.attempt += 1;
                self.stage = Stage::Connecting { since: now };
                self.address().map(Action::Connect).into_iter().collect()
            }
            Stage::Connecting { since } | Stage::Challenged { since, .. } | Stage::Answered { since, .. }
                if now >= *since + HANDSHAKE =>
            {
                self.retry("no answer".into(), now)
            }
            _ => Vec::new(),
        }
    }

    fn unreached(&mut self, now: Time) -> Vec<Action> {
        let addresses = words::list(self.addresses.iter().map(|address| address.to_string()));
        let time = words::seconds(now.saturating_sub(self.started));
        let last = self.last.take().unwrap_or("no answer".into());
        let text = format!(
            "{} expected the root at {addresses}, {}, within {time}, found: {last}",
            self.who(),
            self.keeper()
        );
        let advice =
            "see that the rank that makes the unique id runs, and that its address and port can be reached";
        self.over(Err(Error::new(Fault::Network, text, advice)))
    }

    fn over(&mut self, result: Result<Outcome, Error>) -> Vec<Action> {
        self.stage = Stage::Over;
        vec![Action::Done(Box::new(result.map_err(|error| error.on(self.rank))))]
    }
}

/// How long one connection may take until the root has proved itself.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// How much longer than its own deadline a member waits for the root's words.
const GRACE: Duration = Duration::from_millis(1750);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
