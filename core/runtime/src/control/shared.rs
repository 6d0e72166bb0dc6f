//! What a rank's threads and the control thread share: the line out, and the desk for what has arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ccl_plan::Rank;
use tracing::debug;

use crate::bootstrap::infos::Infos;
use crate::bootstrap::process::Process;
use crate::bootstrap::tcp::Outbox;
use crate::bootstrap::wire::{self, Cause, CauseKind, Frame, Refusal, ToRoot};
use crate::control::alarm::Alarm;
use crate::control::branch::Sprout;
use crate::control::member::{Keepers, error_of, root_silent};
use crate::control::thread;
use crate::control::verdict::{Presence, RankState, verdict};
use crate::error::{Error, Fault, Result};
use crate::observe::board::Board;

/// What the caller's threads and the control thread share.
pub(super) struct Shared {
    pub(super) rank: Rank,
    pub(super) n: u32,
    pub(super) this: Process,
    /// The processes that run the root, and the head if that is another.
    pub(super) keepers: Keepers,
    pub(super) board: Arc<Board>,
    pub(super) alarm: Arc<Alarm>,
    /// The connection, which communicators made from this one use as well.
    pub(super) trunk: Arc<Trunk>,
    /// This communicator's number on it; 0 if it was made for this one.
    pub(super) branch: u64,
    /// The leave is sent.
    pub(super) leaving: AtomicBool,
    /// Communicators made from this one.
    pub(super) children: Mutex<Vec<Weak<Shared>>>,
    pub(super) desk: Mutex<Desk>,
    /// Signalled whenever the desk changes.
    pub(super) changed: Condvar,
    /// Messages in all mailboxes.
    pub(super) mail: AtomicUsize,
}

/// A connection, and the communicators on it.
#[derive(Default)]
pub(super) struct Trunk {
    pub(super) line: Mutex<Line>,
    /// Communicators that this rank is joining on it.
    pub(super) sprouts: Mutex<Vec<Arc<Sprout>>>,
}

/// The sending half of the connection.
#[derive(Default)]
pub(super) struct Line {
    pub(super) stream: Option<Arc<TcpStream>>,
    pub(super) outbox: Outbox,
}

/// What has arrived and waits to be taken.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) next_round: u64,
    pub(super) rounds: BTreeMap<u64, Result<Infos, Refusal>>,
    pub(super) mail: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    pub(super) mail_bytes: usize,
    pub(super) left: BTreeSet<u32>,
    /// Why nothing more can be asked of the root.
    pub(super) orphaned: Option<Error>,
    /// Why this rank aborts, until the root was told.
    pub(super) aborting: Option<String>,
    /// The error this rank reported, kept whole until the root has elected a cause.
    pub(super) reported: Option<Error>,
    pub(super) verdict: Option<String>,
    /// The root says that the head does not answer it.
    pub(super) head_silent: bool,
    /// The control thread has closed the connection.
    pub(super) ended: bool,
}

impl Shared {
    pub(super) fn new(
        (rank, n): (Rank, u32),
        this: Process,
        keepers: Keepers,
        (trunk, branch): (Arc<Trunk>, u64),
    ) -> Shared {
        Shared {
            trunk,
            branch,
            leaving: AtomicBool::new(false),
            children: Mutex::default(),
            rank,
            n,
            this,
            keepers,
            board: Arc::default(),
            alarm: Arc::default(),
            desk: Mutex::default(),
            changed: Condvar::new(),
            mail: AtomicUsize::new(0),
        }
    }

    /// Whether this is a child after `fork`: the connection is the parent's.
    pub(super) fn is_inherited(&self) -> bool {
        self.this.pid != std::process::id()
    }

    #[cold]
    pub(super) fn after_fork(&self) -> Error {
        let cause = format!("expected process {}, found its child after fork", self.this.pid);
        Error::usage(cause, "make a new communicator after fork").on(self.rank)
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.trunk.line()
    }

    /// Whether the connection is there, and was made for this communicator.
    pub(super) fn has_connection(&self) -> bool {
        self.branch == 0 && self.line().stream.is_some()
    }

    pub(super) fn next_round(&self) -> u64 {
        let mut desk = self.desk();
        desk.next_round += 1;
        desk.next_round - 1
    }

    /// Sends what the socket takes now; the control thread sends the rest.
    pub(super) fn send(&self, message: &ToRoot) -> Result<()> {
        let is_leave = matches!(message, ToRoot::Leave { .. });
        self.send_frame(wire::encode_in(self.branch, message), is_leave)
    }

    /// The same with what is not said in this communicator.
    pub(super) fn send_outside(&self, message: &ToRoot) -> Result<()> {
        self.send_frame(wire::encode(message), false)
    }

    fn send_frame(&self, frame: Frame, is_leave: bool) -> Result<()> {
        if self.is_inherited() {
            return Err(self.after_fork());
        }
        let mut line = self.line();
        let Line { stream, outbox } = &mut *line;
        // Relaxed, here and below: the line's lock orders it.
        let Some(stream) = stream.as_ref().filter(|_| !self.leaving.load(Ordering::Relaxed)) else {
            drop(line);
            return Err(self.closed());
        };
        if !outbox.push(frame) {
            let cause = "the control service does not read what it is sent";
            return Err(Error::new(
                Fault::Network,
                cause,
                "see whether the process that made the id is stopped",
            )
            .on(self.rank));
        }
        self.leaving.store(is_leave, Ordering::Relaxed);
        // The control thread sees a failing socket as well, and says why.
        let sent = outbox.flush(stream).is_ok() && outbox.is_empty();
        drop(line);
        if !sent {
            thread::wake();
        }
        Ok(())
    }

    /// Why nothing can be sent.
    fn closed(&self) -> Error {
        let why = self.alarm.error().or_else(|| self.why_closed(&self.desk()));
        why.unwrap_or_else(|| self.has_left())
    }

    /// Why nothing more will arrive, if so.
    fn why_closed(&self, desk: &Desk) -> Option<Error> {
        desk.orphaned.clone().or_else(|| desk.ended.then(|| self.has_left()))
    }

    fn has_left(&self) -> Error {
        Error::usage("this rank has left the communicator", "make a new communicator").on(self.rank)
    }

    /// Waits until `take` finds something on the desk, the alarm is raised, or `patience` has passed.
    pub(super) fn wait_for<T>(
        &self,
        patience: Duration,
        mut take: impl FnMut(&mut Desk) -> Option<T>,
    ) -> Result<Option<T>> {
        let until = Instant::now() + patience;
        let mut desk = self.desk();
        loop {
            if let Some(found) = take(&mut desk) {
                return Ok(Some(found));
            }
            if let Some(error) = self.alarm.error().or_else(|| self.why_closed(&desk)) {
                return Err(error);
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            desk = self.changed.wait_timeout(desk, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Raises the alarm with `error` unless it is raised; returns the first cause.
    pub(super) fn raise(&self, error: Error) -> Error {
        self.raise_first(error.clone());
        self.alarm.error().unwrap_or(error)
    }

    /// Raises the alarm; false if it had been raised before.
    pub(super) fn raise_first(&self, error: Error) -> bool {
        let first = self.alarm.raise(error);
        // Under the lock, so that nobody looks at the alarm before and waits after.
        drop(self.desk());
        self.changed.notify_all();
        first
    }

    /// Whoever ends a communicator ends what was made from it.
    pub(super) fn end_children(&self, error: &Error) {
        let children = std::mem::take(&mut *lock(&self.children));
        for child in children.iter().filter_map(Weak::upgrade) {
            let cause = format!("the communicator that it was made from was aborted: {}", error.cause());
            let error = Error::new(Fault::Aborted, cause, "nothing to do: a caller asked for it");
            child.raise_first(error.clone().on(child.rank));
            child.end_children(&error);
        }
    }

    /// The communicator has failed for this cause.
    pub(super) fn fail(&self, cause: &Cause) {
        let mine = cause.kind == CauseKind::Reported && cause.origin == Some(self.rank.0);
        let error = {
            let mut desk = self.desk();
            desk.verdict = cause.verdict.clone();
            desk.reported.take().filter(|_| mine).unwrap_or_else(|| error_of(cause, self.rank))
        };
        self.raise_first(error.clone());
        if cause.kind == CauseKind::Aborted {
            self.end_children(&error);
        }
    }

    pub(super) fn root_silent(&self) -> Error {
        let head = self.keepers.head.as_ref().filter(|_| self.desk().head_silent);
        let silent = head.unwrap_or(&self.keepers.root);
        error_of(&root_silent(silent, silent.process.life(&self.this)), self.rank)
    }

    pub(super) fn diagnose_alone(&self, sequence: u64) -> Error {
        let state = RankState::new(0, self.this.to_string(), Presence::Answering);
        let report = verdict(sequence, vec![state.showing(self.board.snapshot())]);
        self.desk().verdict = Some(report.to_json());
        self.raise(
            Error::new(Fault::Timeout, report.text, "raise the deadline if the operation is only slow")
                .on(self.rank),
        )
    }

    pub(super) fn deliver(&self, from: u32, topic: u32, bytes: Vec<u8>) {
        let mut desk = self.desk();
        if desk.mail_bytes + bytes.len() > MAIL_BYTES {
            drop(desk);
            let text =
                format!("rank {from} sent more than {MAIL_BYTES} bytes that rank {} did not take", self.rank);
            let fault = Fault::Remote { rank: Rank(from) };
            self.raise(
                Error::new(fault, text, "this is a bug in ccl: please report it with this text")
                    .on(self.rank),
            );
            return;
        }
        desk.mail_bytes += bytes.len();
        desk.mail.entry((from, topic)).or_default().push_back(bytes);
        self.mail.fetch_add(1, Ordering::Relaxed);
        drop(desk);
        self.changed.notify_all();
    }

    pub(super) fn take_mail(&self, from: u32, topic: u32) -> Option<Vec<u8>> {
        self.take_from(&mut self.desk(), from, topic)
    }

    pub(super) fn take_from(&self, desk: &mut Desk, from: u32, topic: u32) -> Option<Vec<u8>> {
        let queue = desk.mail.get_mut(&(from, topic))?;
        let bytes = queue.pop_front();
        if queue.is_empty() {
            desk.mail.remove(&(from, topic));
        }
        let bytes = bytes?;
        desk.mail_bytes -= bytes.len();
        self.mail.fetch_sub(1, Ordering::Relaxed);
        Some(bytes)
    }

    /// Tells the root that this rank aborts, if it does. Whoever comes first says it, the caller that aborts or one
    /// that the alarm woke and that leaves; the root takes no notice of a second time.
    pub(super) fn say_abort(&self) {
        let Some(reason) = self.desk().aborting.clone() else { return };
        let announced = self.send(&ToRoot::Abort { reason: wire::bounded(&reason) });
        debug!(target: "ccl::control", rank = self.rank.0, ?announced, "abort: {reason}");
    }

    /// Sends the leave and lets the control thread forget the connection.
    pub(super) fn leave(&self) {
        self.say_abort();
        let state = self.board.snapshot();
        let (last_entered, last_completed) = (state.last_entered, state.last_completed);
        // An error says that the connection is closed or the leave is sent already.
        let _ = self.send(&ToRoot::Leave { last_entered, last_completed });
        if self.n > 1 {
            thread::wake();
        }
    }
}

impl Trunk {
    /// Over a connection.
    pub(super) fn new(stream: Arc<TcpStream>, outbox: Outbox) -> Arc<Trunk> {
        let line = Mutex::new(Line { stream: Some(stream), outbox });
        Arc::new(Trunk { line, sprouts: Mutex::default() })
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    pub(super) fn sprouts(&self) -> MutexGuard<'_, Vec<Arc<Sprout>>> {
        lock(&self.sprouts)
    }
}

/// What is guarded is whole between any two statements that may panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of messages that may wait to be taken.
const MAIL_BYTES: usize = 64 << 20;
