//! The engine: one rank's operations, in order, over its fabric.
//!
//! Operations are submitted in program order and numbered. Collectives run one after the other;
//! messages run beside them and beside each other, except that messages of one pair and direction
//! keep their order. [`Engine::poll`] never blocks; [`Engine::finish`] drives until nothing is
//! outstanding, with a deadline, and is where every blocking call of the library waits.
//!
//! The small path (one blocking operation at a time, same shape as the last one) allocates nothing,
//! takes no lock and makes no system call while peers are prompt.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_plan::layout::Tables;
use ccl_plan::{Collective, Rank};

use super::host::{Operation, Poll, Stop};
use super::plans::Plans;
use crate::control::Control;
use crate::error::{Error, Fault, Result};
use crate::memory::scratch::Scratch;
use crate::observe::board::{Board, Signature};
use crate::request::{Bound, Request};
use crate::stream::Gate;
use crate::transport::{Bell, Fabric, WaitSettings, Waiter};

/// One rank's operations and everything they need.
pub(crate) struct Engine {
    rank: Rank,
    n: u32,
    fabric: Fabric,
    control: Arc<Control>,
    board: Arc<Board>,
    plans: Plans,
    scratch: Scratch,
    /// A copy of the send buffer of an in-place all-to-all.
    staging: Vec<u8>,
    queue: VecDeque<Queued>,
    spare: Vec<Box<Operation>>,
    sequence: u64,
    /// Messages sent to and received from each rank so far.
    messages: Vec<[u32; 2]>,
    failed: Option<Error>,
    deadline: Duration,
    wait: WaitSettings,
    bell: Bell,
}

struct Queued {
    operation: Box<Operation>,
    started: bool,
    gate: Option<Gate>,
}

/// What an engine is made from.
pub(crate) struct EngineParts {
    pub(crate) rank: Rank,
    pub(crate) n: u32,
    pub(crate) fabric: Fabric,
    pub(crate) control: Arc<Control>,
    pub(crate) plans: Plans,
    pub(crate) deadline: Duration,
}

impl Engine {
    /// Errors: the fabric is not connected.
    pub(crate) fn new(parts: EngineParts) -> Result<Engine> {
        Ok(Engine {
            wait: *parts.fabric.wait()?,
            bell: parts.fabric.bell()?.clone(),
            rank: parts.rank,
            n: parts.n,
            fabric: parts.fabric,
            board: Arc::clone(parts.control.board()),
            control: parts.control,
            plans: parts.plans,
            scratch: Scratch::default(),
            staging: Vec::new(),
            queue: VecDeque::new(),
            spare: Vec::new(),
            sequence: 0,
            messages: vec![[0; 2]; parts.n as usize],
            failed: None,
            deadline: parts.deadline,
        })
    }

    /// Queues a request. The memory it borrows must stay valid until the operation is complete or
    /// the engine has failed: callers keep the borrow alive until [`Engine::finish`] returned.
    pub(crate) fn submit(&mut self, request: &mut Request<'_>, gate: Option<Gate>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let bound = self.check(request)?;
        let mut operation = self.blank(bound, request.tables().as_ref())?;
        if let Some(tables) = request.tables() {
            operation.tables.store(tables);
            operation.tables.face_root(bound.collective, self.rank, bound.root);
        }
        self.number(&mut operation);
        self.queue.push_back(Queued { operation, started: false, gate });
        Ok(())
    }

    /// Checks a request against itself and the communicator; nothing happens.
    pub(crate) fn check(&self, request: &mut Request<'_>) -> Result<Bound> {
        request.bind(self.rank, self.n).map_err(|error| error.on(self.rank).during(request.collective.name()))
    }

    /// Advances everything that can advance, without blocking.
    pub(crate) fn poll(&mut self) -> Result<Poll> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.poll_queue().map_err(|error| self.fail(error))
    }

    /// Drives until nothing is outstanding.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let mut patience = Patience::new(&self.wait, self.deadline);
        loop {
            match self.poll()? {
                Poll::Done => return Ok(()),
                Poll::Progress => patience.renew(),
                Poll::Stalled => self.stalled(&mut patience)?,
            }
        }
    }

    /// One fruitless poll: looks for alarms and the deadline, then pauses.
    pub(crate) fn stalled(&mut self, patience: &mut Patience) -> Result<()> {
        if self.control.alarm().raised() {
            let error = self.control.alarm().error();
            return Err(self.fail(error.unwrap_or_else(|| Error::bug("an alarm without a cause"))));
        }
        if patience.pause(&self.bell) {
            let error = self.overdue();
            return Err(self.fail(error));
        }
        Ok(())
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// A fresh allowance of waiting.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(&self.wait, self.deadline)
    }

    /// The first error, if the communicator has failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failed.clone().or_else(|| self.control.alarm().error())
    }

    /// Ends a sleep of whoever drives, when an alarm is raised.
    pub(crate) fn alarm_waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let bell = self.bell.clone();
        Box::new(move || bell.ring())
    }

    /// How plans are chosen.
    pub(crate) fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The connections.
    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Leaves the communicator without waiting for anyone.
    pub(crate) fn close(mut self) {
        self.queue.clear();
        self.control.leave();
        self.fabric.close();
    }

    fn poll_queue(&mut self) -> Result<Poll> {
        let mut moved = false;
        let mut collective_open = false;
        let mut index = 0;
        while index < self.queue.len() {
            if self.must_wait(index, collective_open) {
                collective_open |= !self.queue[index].operation.is_message();
                index += 1;
                continue;
            }
            match self.poll_operation(index)? {
                Poll::Done => {
                    self.complete(index);
                    moved = true;
                }
                outcome => {
                    moved |= outcome == Poll::Progress;
                    collective_open |= !self.queue[index].operation.is_message();
                    index += 1;
                }
            }
        }
        self.fabric.progress()?;
        let flushed = self.fabric.is_flushed();
        Ok(match (self.queue.is_empty() && flushed, moved) {
            (true, _) => Poll::Done,
            (_, true) => Poll::Progress,
            (_, false) => Poll::Stalled,
        })
    }

    /// Whether an operation has to let earlier ones finish.
    fn must_wait(&self, index: usize, collective_open: bool) -> bool {
        let queued = &self.queue[index];
        if queued.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            return true;
        }
        if !queued.operation.is_message() {
            return collective_open;
        }
        let bound = &queued.operation.bound;
        self.queue.iter().take(index).any(|earlier| {
            earlier.operation.bound.collective == bound.collective
                && earlier.operation.bound.root == bound.root
        })
    }

    fn poll_operation(&mut self, index: usize) -> Result<Poll> {
        if !self.queue[index].started {
            self.start(index)?;
        }
        let operation = &mut self.queue[index].operation;
        match operation.poll(self.rank, self.n, &mut self.fabric, &mut self.scratch) {
            Ok(outcome) => Ok(outcome),
            Err(Stop::Failed(error)) => Err(self.failed_path(index, error)),
            Err(Stop::Mismatch { peer, detail }) => Err(self.mismatched(index, peer, detail)),
        }
    }

    /// Prepares working memory and starts the lanes.
    fn start(&mut self, index: usize) -> Result<()> {
        let (rank, n) = (self.rank, self.n);
        let queued = &mut self.queue[index];
        queued.started = true;
        let operation = &mut queued.operation;
        if operation.stages_input() {
            let bytes = operation.input_bytes(n);
            // SAFETY: the request's buffers were checked to hold this many bytes and are borrowed
            // until the operation is complete.
            let input = unsafe { std::slice::from_raw_parts(operation.bound.send, bytes) };
            self.staging.clear();
            self.staging.extend_from_slice(input);
            operation.bound.send = self.staging.as_ptr();
        }
        self.scratch.reserve(operation.scratch_bytes());
        operation.start(rank, n);
        Ok(())
    }

    fn complete(&mut self, index: usize) {
        let Some(queued) = self.queue.remove(index) else { return };
        if !queued.operation.is_message() {
            self.board.complete(queued.operation.sequence);
        }
        if let Some(gate) = queued.gate {
            gate.pass();
        }
        if self.spare.len() < SPARE_OPERATIONS {
            self.spare.push(queued.operation);
        }
    }

    /// An operation to fill in, with the allocations of an earlier one.
    fn blank(&mut self, bound: Bound, tables: Option<&Tables<'_>>) -> Result<Box<Operation>> {
        let decision = self.plans.decide(&bound, tables, &mut self.fabric)?;
        Ok(match self.spare.pop() {
            Some(mut operation) => {
                operation.rebind(bound, decision);
                operation
            }
            None => Box::new(Operation::new(bound, decision)),
        })
    }

    /// Gives the operation its number and tag, and tells the board.
    fn number(&mut self, operation: &mut Operation) {
        let bound = &operation.bound;
        if operation.is_message() {
            let direction = usize::from(bound.collective == Collective::Recv);
            let number = &mut self.messages[bound.root.index()][direction];
            *number = number.wrapping_add(1);
            operation.tag = tag(bound, u64::from(*number));
            return;
        }
        self.sequence += 1;
        operation.sequence = self.sequence;
        operation.tag = tag(bound, self.sequence);
        self.board.enter(self.sequence, &signature(bound));
    }

    /// The communicator has failed: nothing more runs, and every gate opens.
    fn fail(&mut self, error: Error) -> Error {
        if let Some(first) = &self.failed {
            return first.clone();
        }
        let operation = self.queue.front().map(|queued| queued.operation.bound.collective.name());
        let mut error = error.on(self.rank);
        if let Some(operation) = operation {
            error = error.during(operation);
        }
        self.failed = Some(error.clone());
        self.fabric.abort();
        for queued in self.queue.drain(..) {
            if let Some(gate) = queued.gate {
                gate.fail(error.clone());
            }
        }
        error
    }

    /// A transport failed under an operation: the root decides what the first cause was.
    fn failed_path(&mut self, index: usize, error: Error) -> Error {
        if matches!(error.fault(), Fault::Usage | Fault::Bug) {
            return error;
        }
        let operation = &self.queue[index].operation;
        self.control.report(error.on(self.rank).during(operation.bound.collective.name()))
    }

    /// A peer is in another operation, or in this one with other arguments.
    fn mismatched(&mut self, index: usize, peer: Rank, detail: String) -> Error {
        let operation = &self.queue[index].operation;
        if operation.is_message() {
            return Error::new(
                Fault::Remote { rank: peer },
                detail,
                "give the send and the matching receive the same count and dtype, in the same order",
            )
            .with_peer(peer);
        }
        self.control.diagnose(operation.sequence, Some(peer)).with_peer(peer)
    }

    /// The deadline passed.
    fn overdue(&mut self) -> Error {
        let Some(queued) = self.queue.front() else {
            return Error::new(
                Fault::Timeout,
                format!("expected the network to take what was sent within {:?}", self.deadline),
                "check the network, or raise CCL_TIMEOUT",
            );
        };
        let position = queued.operation.position();
        if let Some(peer) = position.waiting_for {
            self.board.wait(position.instruction, peer);
        }
        if queued.operation.is_message() {
            let peer = queued.operation.bound.root;
            return Error::new(
                Fault::Timeout,
                format!(
                    "expected rank {peer} to take part within {:?}, found no matching call",
                    self.deadline
                ),
                "check that the peer makes the matching call, or raise CCL_TIMEOUT",
            )
            .with_peer(peer);
        }
        self.control.diagnose(queued.operation.sequence, position.waiting_for)
    }
}

/// How long a caller goes on waiting, and how.
pub(crate) struct Patience {
    waiter: Waiter,
    deadline: Duration,
    pauses: u32,
    since: Option<Instant>,
}

impl Patience {
    fn new(wait: &WaitSettings, deadline: Duration) -> Patience {
        Patience { waiter: Waiter::new(wait), deadline, pauses: 0, since: None }
    }

    /// Something moved.
    pub(crate) fn renew(&mut self) {
        self.waiter.reset();
        self.pauses = 0;
        self.since = None;
    }

    /// Waits a little; whether the deadline has passed. The clock is read only now and then, and
    /// starts at the first reading.
    fn pause(&mut self, bell: &Bell) -> bool {
        self.waiter.pause(Some(bell));
        self.pauses += 1;
        if !self.pauses.is_multiple_of(PAUSES_PER_CLOCK_READING) {
            return false;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() >= self.deadline
    }
}

/// What other ranks must have asked for under the same number.
fn signature(bound: &Bound) -> Signature {
    let mut signature = Signature::new(bound.collective).of(bound.count as u64, bound.dtype);
    if bound.collective.reduces() {
        signature = signature.reduced_by(bound.reduce.op());
    }
    if bound.collective.rooted() {
        signature = signature.rooted_at(bound.root);
    }
    signature
}

/// Mixes what ranks must agree on and a number into a slot tag; different operations get different
/// tags but for one chance in 2³². Both ends of a message come to the same tag.
fn tag(bound: &Bound, number: u64) -> u32 {
    let message = matches!(bound.collective, Collective::Send | Collective::Recv);
    let collective = if message { Collective::Send } else { bound.collective };
    let reduce_op = if bound.collective.reduces() { bound.reduce.op() as u8 } else { 0 };
    let root = if bound.collective.rooted() { bound.root.0 } else { 0 };
    let kind = u64::from(collective as u8)
        | u64::from(bound.dtype as u8) << 8
        | u64::from(reduce_op) << 16
        | u64::from(root) << 24;
    let mut mixed = kind.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= (bound.count as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    mixed = (mixed ^ (mixed >> 29)).wrapping_add(number).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as u32
}

/// Finished operations kept for their allocations.
const SPARE_OPERATIONS: usize = 64;
/// A clock reading costs about 25 ns; a pause costs about as much when spinning.
const PAUSES_PER_CLOCK_READING: u32 = 64;
