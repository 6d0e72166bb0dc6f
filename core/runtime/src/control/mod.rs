//! The control connection of one rank, from joining to leaving.
//!
//! It carries what is not data: rounds in which all ranks exchange small infos, messages between two
//! ranks, the alarm when a rank is gone or aborts, and the diagnosis of operations that are late.
//!
//! One background thread of the process, "ccl-control", serves the control connections of all its
//! communicators and sleeps in `poll` between messages. Every method may be called from any thread. What it deliberately does not do: retry, reconnect, or move data.

pub mod alarm;
mod branch;
pub(crate) mod hub;
pub(crate) mod member;
mod relay;
mod shared;
pub(crate) mod thread;
pub mod verdict;
mod watch;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ccl_plan::Rank;

pub use alarm::Alarm;
pub use verdict::{Report, Verdict};

use crate::bootstrap::BootstrapSettings;
use crate::bootstrap::enter::Connection;
use crate::bootstrap::infos::Infos;
use crate::bootstrap::joiner::Entry;
use crate::bootstrap::process::Process;
use crate::bootstrap::wire::{self, Cause, CauseKind, FaultCode, Host, INFO_BYTES, ToRoot};
use crate::bootstrap::words;
use crate::control::member::Keepers;
use crate::control::shared::{Shared, Trunk};
use crate::error::{Error, Fault, Result};
use crate::observe::board::Board;

/// One rank's control connection. Dropping it leaves the communicator.
pub struct Control {
    shared: Arc<Shared>,
    /// How long a round, or a message, may take.
    patience: Duration,
}

impl Control {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// The number of ranks.
    pub fn n(&self) -> u32 {
        self.shared.n
    }

    /// The board on which this rank's operations are written, and from which others are answered.
    pub fn board(&self) -> &Arc<Board> {
        &self.shared.board
    }

    /// Whether and why the communicator has failed.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.shared.alarm
    }

    /// What the diagnosis found, if the communicator failed by one.
    pub fn verdict(&self) -> Option<Report> {
        serde_json::from_str(&self.verdict_json()?).ok()
    }

    /// The same as JSON, as the root wrote it; equal on all ranks.
    pub fn verdict_json(&self) -> Option<String> {
        self.shared.desk().verdict.clone()
    }

    /// The ranks that have left.
    pub fn left(&self) -> Vec<Rank> {
        self.shared.desk().left.iter().map(|rank| Rank(*rank)).collect()
    }

    /// Every rank's `info`, by rank. All ranks must make their rounds in the same order.
    ///
    /// Blocks at most 1.5 s longer than the deadline. `info` has at most 1 MiB.
    ///
    /// # Errors
    ///
    /// Names the ranks that did not come in time or have left; or the communicator's failure.
    pub fn all_gather(&self, info: Vec<u8>) -> Result<Vec<Bytes>> {
        self.check_length(&info)?;
        self.usable()?;
        if self.shared.n == 1 {
            return Ok(vec![info.into()]);
        }
        let round = self.shared.next_round();
        let (patience, info) = (self.patience, wire::blob(&info));
        self.shared.send(&ToRoot::Gather { round, remaining_ms: patience.as_millis() as u64, info })?;
        let taken = self.shared.wait_for(patience + GRACE, |desk| desk.rounds.remove(&round));
        match taken? {
            Some(Ok(infos)) => Ok(infos.to_vec()),
            Some(Err(refusal)) => {
                let advice = "see why the named rank did not come: its log, or what it is doing instead";
                Err(Error::new(refusal.fault.into(), refusal.text, advice).on(self.shared.rank))
            }
            None => Err(self.shared.root_silent()),
        }
    }

    /// Returns when all ranks have called it; see [`Control::all_gather`], of which it is one.
    ///
    /// # Errors
    ///
    /// As [`Control::all_gather`].
    pub fn barrier(&self) -> Result<()> {
        self.all_gather(Vec::new()).map(|_| ())
    }

    /// Sends `bytes`, at most 1 MiB, to the mailbox of rank `to` under `topic`. Never blocks.
    ///
    /// Messages of one sender and topic arrive in order. Messages to a rank that has left or died
    /// vanish; the alarm tells of the dead.
    ///
    /// # Errors
    ///
    /// If there is no such rank, `bytes` are too long, or the control connection is closed.
    pub fn send(&self, to: Rank, topic: u32, bytes: Vec<u8>) -> Result<()> {
        self.check_length(&bytes)?;
        self.usable_for_mail()?;
        if to.0 >= self.shared.n {
            let cause = format!("expected a rank below n = {}, found {to}", self.shared.n);
            return Err(Error::usage(cause, "ranks count from 0 to n - 1").on(self.shared.rank));
        }
        if to == self.shared.rank {
            self.shared.deliver(to.0, topic, bytes);
            return Ok(());
        }
        self.shared.send(&ToRoot::Relay { to: to.0, topic, bytes: bytes.into() })
    }

    /// The oldest message of `from` under `topic`, if one has arrived.
    ///
    /// Never waits: one relaxed load while all mailboxes are empty.
    pub fn try_take(&self, from: Rank, topic: u32) -> Option<Vec<u8>> {
        if self.shared.mail.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.shared.take_mail(from.0, topic)
    }

    /// The next message of `from` under `topic`; waits for it until the deadline.
    ///
    /// # Errors
    ///
    /// Names `from` if nothing came in time or it has left; or the communicator's failure.
    pub fn take(&self, from: Rank, topic: u32) -> Result<Vec<u8>> {
        self.usable()?;
        let patience = self.patience;
        let mut has_left = false;
        let taken = self.shared.wait_for(patience, |desk| {
            let message = self.shared.take_from(desk, from.0, topic);
            has_left = desk.left.contains(&from.0);
            message.map(Some).or(has_left.then_some(None))
        })?;
        let text = match taken.flatten() {
            Some(message) => return Ok(message),
            None if has_left => {
                format!("expected a message (topic {topic}) from rank {from}, which has left")
            }
            None => {
                let patience = words::seconds(patience);
                format!("expected a message (topic {topic}) from rank {from} within {patience}, found none")
            }
        };
        let advice = "see why the named rank did not come: its log, or what it is doing instead";
        Err(Error::new(Fault::Remote { rank: from }, text, advice).on(self.shared.rank))
    }

    /// Waits until something arrives on the control connection, `at_most` so long.
    ///
    /// # Errors
    ///
    /// The communicator's failure, or that nothing more will arrive.
    pub(crate) fn doze(&self, at_most: Duration) -> Result<()> {
        let mut looks = 0;
        self.shared.wait_for(at_most, |_| {
            looks += 1;
            (looks > 1).then_some(())
        })?;
        Ok(())
    }

    /// How many ranks are known to be in this process, at least this one: all those beside a root.
    pub(crate) fn ranks_in_process(&self) -> usize {
        let keepers = &self.shared.keepers;
        let here =
            keepers.head.iter().chain([&keepers.root]).filter(|host| host.process.same(&self.shared.this));
        here.map(|host| host.ranks.len()).max().unwrap_or_default().max(1)
    }

    /// Tells all ranks what this rank's data path saw; returns the cause all ranks agree on.
    ///
    /// Blocks for 1.5 s at most, usually for less than half a second. The alarm is raised when this returns.
    pub fn report(&self, error: Error) -> Error {
        if let Some(first) = self.shared.alarm.error() {
            return first;
        }
        let culprit = match error.fault() {
            Fault::Remote { rank } => Some(rank.0),
            _ => error.consequence_of().or(error.peer()).map(|rank| rank.0),
        };
        let fault = FaultCode::Remote(culprit.unwrap_or(self.shared.rank.0));
        let text = wire::bounded(&format!("rank {} reports: {}", self.shared.rank, error.cause()));
        let origin = Some(self.shared.rank.0);
        let cause = Cause { kind: CauseKind::Reported, origin, culprit, fault, text, verdict: None };
        self.shared.desk().reported = Some(error.clone().on(self.shared.rank));
        if self.shared.send(&ToRoot::Report { cause }).is_ok() {
            let _ = self.shared.wait_for(ELECTION, |_| None::<()>);
        }
        self.shared.raise(error.on(self.shared.rank))
    }

    /// Asks all ranks why operation `sequence` is late; returns the verdict all ranks agree on.
    ///
    /// For a rank whose operation missed its deadline, or that saw data of another operation.
    /// `waiting_for` is the rank it waits for, if the board does not say. Blocks for about half a
    /// second, and 1.1 s if the root itself is silent. The alarm is raised when this returns.
    pub fn diagnose(&self, sequence: u64, waiting_for: Option<Rank>) -> Error {
        let shared = &self.shared;
        if let Some(first) = shared.alarm.error() {
            return first;
        }
        if shared.n == 1 {
            return shared.diagnose_alone(sequence);
        }
        let question = ToRoot::Diagnose { sequence, waiting_for: waiting_for.map(|rank| rank.0) };
        if let Err(error) = shared.send(&question) {
            return shared.raise(error);
        }
        match shared.wait_for(DIAGNOSIS, |_| None::<()>) {
            Err(verdict) => verdict,
            Ok(_) => shared.raise(shared.root_silent()),
        }
    }

    /// Ends the communicator here, and soon everywhere: the others report "rank r aborted: reason".
    ///
    /// Local, idempotent, does not block, and may be called from any thread. Nothing in a child after `fork`.
    pub fn abort(&self, reason: &str) {
        let shared = &self.shared;
        if shared.is_inherited() {
            return;
        }
        let advice = "nothing to do: the caller asked for it";
        let error = Error::new(Fault::Aborted, format!("aborted by the caller: {reason}"), advice);
        let error = error.on(shared.rank);
        // Before the alarm: who is woken by it may leave before this goes on.
        if shared.n > 1 && !shared.alarm.raised() {
            shared.desk().aborting.get_or_insert_with(|| reason.to_owned());
        }
        shared.raise_first(error.clone());
        shared.end_children(&error);
        shared.say_abort();
        shared.desk().aborting = None;
    }

    /// Leaves the communicator: the others will not take this rank for dead.
    ///
    /// Not a collective, idempotent, and does not block. Afterwards only the board, the alarm and
    /// what has already arrived can be used.
    pub fn leave(&self) {
        if !self.shared.is_inherited() {
            self.shared.leave();
        }
    }

    /// Whether there is a control connection of its own: from joining to leaving, with more than one rank,
    /// unless it was made from another communicator.
    pub(crate) fn is_connected(&self) -> bool {
        self.shared.has_connection()
    }

    /// The control of the only rank: no socket, no thread.
    pub(crate) fn alone(settings: &BootstrapSettings) -> Control {
        let this = Process::this();
        let keepers = Keepers { root: Host { process: this.clone(), ranks: vec![0] }, head: None };
        let of = (this, keepers, (Arc::default(), 0));
        let shared = Shared::new((Rank(0), 1), of.0, of.1, of.2);
        Control { shared: Arc::new(shared), patience: settings.patience() }
    }

    /// The control of a rank that has joined over `connection`, with all ranks' infos.
    pub(crate) fn joined(
        (rank, n): (Rank, u32),
        connection: Connection,
        entry: Entry,
        settings: &BootstrapSettings,
    ) -> Result<(Control, Infos)> {
        let Connection { stream, decoder, outbox, early } = connection;
        let stream = Arc::new(stream);
        let trunk = Trunk::new(stream.clone(), outbox);
        let shared = Arc::new(Shared::new((rank, n), Process::this(), entry.keepers, (trunk, 0)));
        watch::start(shared.clone(), (stream, decoder, early), settings.heartbeat)?;
        Ok((Control { shared, patience: settings.patience() }, entry.infos))
    }

    fn check_length(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() <= INFO_BYTES {
            return Ok(());
        }
        let cause = format!("expected at most {INFO_BYTES} bytes, found {}", bytes.len());
        Err(Error::usage(cause, "exchange long data through the communicator itself").on(self.shared.rank))
    }

    /// The communicator's failure, if it has failed, or that this process is a fork's child.
    fn usable(&self) -> Result<()> {
        match self.shared.alarm.error() {
            Some(error) => Err(error),
            None => self.usable_for_mail(),
        }
    }

    fn usable_for_mail(&self) -> Result<()> {
        if self.shared.is_inherited() { Err(self.shared.after_fork()) } else { Ok(()) }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.shared.n == 1 || self.shared.is_inherited() {
            return;
        }
        self.shared.leave();
        // A moment, so that the others know of the leave before this process can end.
        let in_root_process = self.shared.keepers.root.process.same(&self.shared.this);
        let until = Instant::now() + if in_root_process { ROOT_FAREWELL } else { FAREWELL };
        let mut desk = self.shared.desk();
        while !desk.ended && Instant::now() < until {
            let rest = until.saturating_duration_since(Instant::now());
            desk = self.shared.changed.wait_timeout(desk, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, n) = (self.shared.rank, self.shared.n);
        f.debug_struct("Control")
            .field("rank", &rank)
            .field("n", &n)
            .field("alarm", &self.shared.alarm)
            .finish()
    }
}

/// How much longer than the deadline a rank waits for the root's words.
const GRACE: Duration = Duration::from_millis(1500);
/// How long a rank that reports a failure waits for the elected cause.
const ELECTION: Duration = Duration::from_millis(1500);
/// How long a rank that asks for a diagnosis waits for the verdict.
const DIAGNOSIS: Duration = Duration::from_millis(1100);
/// How long dropping waits for the root's farewell, which usually takes less than a millisecond.
const FAREWELL: Duration = Duration::from_millis(5);
/// The same in the process that runs the root: were it to end first, its leave would look like a death.
const ROOT_FAREWELL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod branch_tests;
#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod several_tests;
#[cfg(test)]
mod tests;
