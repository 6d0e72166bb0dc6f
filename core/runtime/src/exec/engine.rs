//! The engine: one rank's operations, in order, over its fabric.
//!
//! Operations are submitted in program order and numbered. Collectives run one after the other;
//! messages run beside them and beside each other, except that messages of one pair and direction
//! keep their order. [`Engine::poll`] never blocks; [`Engine::finish`] drives until nothing is
//! outstanding, with a deadline, and is where every blocking call of the library waits.
//!
//! The small path (one blocking operation at a time, same shape as the last one) allocates nothing,
//! takes no lock and makes no system call while peers are prompt.

mod asleep;
mod attended;
mod ending;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_plan::layout::Tables;
use ccl_plan::{Collective, Dtype, Rank};

use self::asleep::Asleep;
use super::device::{DeviceCut, DeviceEngine};
use super::host::{Company, Operation, Poll, Reason, Stop, is_message};
use super::plans::{Decision, Explained, Plans};
use super::step::Bindings;
use super::straight::{self, Heed, MOST_STRAIGHT_LANES, Tries};
use crate::control::Control;
use crate::error::{Error, Fault, Result};
use crate::memory::scratch::Scratch;
use crate::memory::{Memory, Window};
use crate::observe::board::Board;
use crate::observe::flight::{Flight, Message};
use crate::observe::profiler::{Emitter, Profile, Ticket, Work};
use crate::request::{Bound, Request, check_root};
use crate::stream::{Gate, Turn};
use crate::transport::{Bell, Fabric, Lookout, WaitSettings, Waiter};

/// One rank's operations and everything they need.
pub(crate) struct Engine {
    rank: Rank,
    n: u32,
    fabric: Fabric,
    control: Arc<Control>,
    board: Arc<Board>,
    plans: Plans,
    scratch: Scratch,
    queue: VecDeque<Queued>,
    /// Whether the last call came to the queue while others were there, or before others of its group.
    joined: bool,
    #[expect(clippy::vec_box, reason = "operations go from here to the queue and back without being moved")]
    spare: Vec<Box<Operation>>,
    numbers: Numbers,
    failed: Option<Error>,
    flight: Arc<Flight>,
    deadline: Duration,
    wait: WaitSettings,
    /// How a call that has the engine to itself waits before it goes to the queue to wait there.
    tries: Tries,
    bell: Bell,
    /// After the fabric, whose edges put down their ends before it closes.
    profile: Option<Box<Profile>>,
    /// Carries everything out, if the rank works on a device.
    device: Option<Box<DeviceEngine>>,
    /// What ranks that work on devices know of their edges, if any rank does.
    device_cut: Option<DeviceCut>,
    /// While the communicator is suspended; `failed` then says so to whoever makes a call.
    asleep: Option<Asleep>,
    /// Whether there is a profiler or a device, which calls must be told of.
    attended: bool,
}

/// How many calls there were so far.
struct Numbers {
    sequence: u64,
    /// Messages sent to and received from each rank.
    messages: Vec<[u32; 2]>,
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
    pub(crate) flight: Arc<Flight>,
    pub(crate) deadline: Duration,
    pub(crate) profile: Option<Box<Profile>>,
    pub(crate) device: Option<Box<DeviceEngine>>,
    pub(crate) device_cut: Option<DeviceCut>,
}

impl Engine {
    /// Errors: the fabric is not connected.
    pub(crate) fn new(parts: EngineParts) -> Result<Engine> {
        let wait = *parts.fabric.wait()?;
        Ok(Engine {
            tries: Tries::of(&wait),
            wait,
            bell: parts.fabric.bell()?.clone(),
            rank: parts.rank,
            n: parts.n,
            fabric: parts.fabric,
            board: Arc::clone(parts.control.board()),
            control: parts.control,
            plans: parts.plans,
            scratch: Scratch::default(),
            queue: VecDeque::new(),
            joined: false,
            spare: Vec::new(),
            numbers: Numbers { sequence: 0, messages: vec![[0; 2]; parts.n as usize] },
            failed: None,
            flight: parts.flight,
            deadline: parts.deadline,
            attended: parts.profile.is_some() || parts.device.is_some(),
            profile: parts.profile,
            device: parts.device,
            device_cut: parts.device_cut,
            asleep: None,
        })
    }

    /// Makes one call and drives until nothing is outstanding.
    #[inline]
    pub(crate) fn run(&mut self, request: &mut Request<'_>) -> Result<()> {
        if self.attended
            && let Some(outcome) = self.run_attended(request)
        {
            return outcome;
        }
        self.run_through::<false>(request)
    }

    #[inline]
    fn run_through<const WATCHED: bool>(&mut self, request: &mut Request<'_>) -> Result<()> {
        match self.begin::<WATCHED>(request, self.tries)? {
            Poll::Done if self.queue.is_empty() && self.fabric.is_flushed() => Ok(()),
            _ => self.finish(),
        }
    }

    /// Begins a call that belongs to a group: it gets as far as it can at once. The last one is followed by
    /// [`Engine::finish_group`] or [`Engine::land`]. `alone`: nothing but this call is left to do for the thread,
    /// once what is in the queue is done, so it may wait for it as [`Engine::run`] does.
    pub(crate) fn begin_one_of_many(&mut self, request: &mut Request<'_>, alone: bool) -> Result<()> {
        let tries = if alone && self.queue.is_empty() { self.tries } else { Tries::NONE };
        if !self.attended {
            return self.begin::<false>(request, tries).map(|_| ());
        }
        if self.device.is_some() {
            return self.stage(request, None, true);
        }
        self.launch(request, 1);
        let begun = self.begin::<true>(request, tries).map(|_| ());
        self.profile.iter_mut().for_each(|profile| profile.called());
        begun
    }

    /// [`Engine::finish`] after the calls of a group.
    pub(crate) fn finish_group(&mut self) -> Result<()> {
        if !self.attended && self.failed.is_none() && self.queue.is_empty() && self.fabric.is_flushed() {
            return Ok(());
        }
        self.profile.iter_mut().for_each(|profile| profile.waits());
        let finished = self.launch_queued().and_then(|()| self.finish());
        self.land();
        finished
    }

    /// Queues an asynchronous call: [`Engine::submit`] for whoever makes no others with it.
    pub(crate) fn submit_alone(&mut self, request: &mut Request<'_>, turn: Option<Turn<'_>>) -> Result<()> {
        if self.device.is_some() {
            return self.stage(request, turn, false).and_then(|()| self.poll().map(drop));
        }
        self.launch(request, 0);
        let submitted = self.submit(request, turn);
        self.land();
        submitted
    }

    /// The caller of a launch goes on.
    #[inline]
    pub(crate) fn land(&mut self) {
        if let Some(profile) = &mut self.profile {
            profile.landed();
        }
    }

    /// A call is made, the first of its launch or one more.
    #[inline]
    fn launch(&mut self, request: &Request<'_>, depth: u32) {
        if let Some(profile) = &mut self.profile {
            profile.launch(depth);
            profile.call(request);
        }
    }

    /// Begins a call.
    ///
    /// A short call that need not wait for others goes straight, for `tries` fruitless rounds at most:
    /// where peers are prompt it is over without ever being in the queue. Otherwise it goes on there
    /// from where it is.
    #[inline]
    fn begin<const WATCHED: bool>(&mut self, request: &mut Request<'_>, tries: Tries) -> Result<Poll> {
        if self.failed.is_some() || request.blocks.is_some() {
            return self.submit(request, None).map(|()| Poll::Progress);
        }
        let (bound, decision) = match self.plans.recall(request) {
            Some(found) => found,
            None => {
                let bound = self.check(request)?;
                self.plans.decide(&bound, None, &mut self.fabric)?;
                self.plans.remember(request, &bound);
                (bound, self.plans.decide(&bound, None, &mut self.fabric)?)
            }
        };
        if !may_go_ahead(&self.queue, &bound) {
            return self.submit(request, None).map(|()| Poll::Progress);
        }
        #[cfg(test)]
        note(decision);
        if !decision.straight || !straight::fits(&bound) {
            return self.submit(request, None).map(|()| Poll::Progress);
        }
        let (sequence, tag) = self.numbers.next(&bound, decision, &self.board);
        let call = Bindings { bound: &bound, decision, tag };
        let mut ticket = Ticket::default();
        if WATCHED && let Some(profile) = &mut self.profile {
            ticket = profile.ticket();
            let path = is_message(&bound).then(|| self.fabric.way_to(bound.root)).flatten();
            profile.begin(&mut ticket, &Work { bound: &bound, decision, sequence, path });
            profile.emitter().enter(ticket.span());
        }
        let mut at = [0; MOST_STRAIGHT_LANES];
        let went = straight::run(call, &mut at, &mut self.fabric, &mut self.scratch, tries);
        if matches!(went, Ok(true)) {
            if !is_message(&bound) {
                self.board.complete(sequence);
            }
            if WATCHED && let Some(profile) = &mut self.profile {
                profile.end(&mut ticket);
            }
            return Ok(Poll::Done);
        }
        let mut operation = self.blank(bound, None)?;
        (operation.sequence, operation.tag, operation.ticket) = (sequence, tag, ticket);
        operation.start_at(&at);
        self.enqueue(Queued { operation, started: true, gate: None });
        self.joined |= tries.is_one_look();
        match went {
            Ok(_) => Ok(Poll::Stalled),
            Err(stop) => {
                let error = self.stopped(self.queue.len() - 1, stop);
                Err(self.fail(error))
            }
        }
    }

    /// Queues a request. The memory it borrows must stay valid until the operation is complete or
    /// the engine has failed: callers keep the borrow alive until [`Engine::finish`] returned.
    pub(crate) fn submit(&mut self, request: &mut Request<'_>, turn: Option<Turn<'_>>) -> Result<()> {
        let operation = self.prepare(request, turn)?;
        let gate = turn.map(Turn::take);
        self.enqueue(Queued { operation, started: false, gate });
        Ok(())
    }

    /// What a call in the queue has beside it.
    fn company(&self) -> Company {
        match (self.queue.len(), self.joined) {
            (..=1, false) => Company::None,
            (..=1, true) => Company::Gone,
            _ => Company::Now,
        }
    }

    fn enqueue(&mut self, queued: Queued) {
        self.joined = !self.queue.is_empty();
        self.queue.push_back(queued);
    }

    /// The operation of a request, numbered but not started. An error has changed nothing.
    #[inline]
    fn prepare(&mut self, request: &mut Request<'_>, turn: Option<Turn<'_>>) -> Result<Box<Operation>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let bound = self.check(request)?;
        self.check_turn(turn, &bound)?;
        let mut operation = self.blank(bound, request.tables().as_ref())?;
        if let Some(tables) = request.tables() {
            operation.tables.store(tables);
            operation.tables.face_root(bound.collective, self.rank, bound.root);
        }
        let (sequence, tag) = self.numbers.next(&operation.bound, &operation.decision, &self.board);
        (operation.sequence, operation.tag) = (sequence, tag);
        operation.ticket = self.profile.as_mut().map_or(Ticket::default(), |profile| profile.ticket());
        Ok(operation)
    }

    /// Checks a request against itself and the communicator; nothing happens.
    pub(crate) fn check(&self, request: &mut Request<'_>) -> Result<Bound> {
        request.bind(self.rank, self.n).map_err(|error| error.on(self.rank).during(request.collective.name()))
    }

    /// Refuses what [`Engine::begin_one_of_many`] would refuse; nothing happens.
    #[inline]
    pub(crate) fn check_ahead(&mut self, request: &mut Request<'_>) -> Result<()> {
        self.is_awake()?;
        self.check(request).map(drop)
    }

    /// Refuses a stream that no call can be put on.
    #[inline(never)]
    fn check_turn(&self, turn: Option<Turn<'_>>, bound: &Bound) -> Result<()> {
        let checked = turn.map_or(Ok(()), |turn| turn.check());
        checked.map_err(|error| error.on(self.rank).during(bound.collective.name()))
    }

    /// Advances everything that can advance, without blocking.
    pub(crate) fn poll(&mut self) -> Result<Poll> {
        if let Some(error) = &self.failed {
            return if self.asleep.is_some() { Ok(Poll::Done) } else { Err(error.clone()) };
        }
        let polled = if self.device.is_some() { self.poll_device() } else { self.poll_queue() };
        polled.map_err(|error| self.fail(error))
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
        self.look_for_alarm()?;
        let over = if self.stays(patience) { patience.is_over() } else { patience.pause(&self.bell) };
        if over { Err(self.expire()) } else { Ok(()) }
    }

    /// Whether whoever polls should look again before others are given the core: the oldest call may soon go on.
    pub(crate) fn stays(&self, patience: &mut Patience) -> bool {
        let Some(Queued { operation, .. }) = self.queue.front().filter(|_| self.wait.crowded()) else {
            return false;
        };
        let heed = operation.decision.heed;
        if !heed.looks_on(self.company()) {
            return false;
        }
        let awaited = operation.position().waiting_for;
        let stays = self.fabric.stays(&mut patience.lookout, awaited, heed == Heed::WorkAlone);
        if stays {
            std::hint::spin_loop();
        }
        stays
    }

    /// [`Engine::stalled`] without the pause, for whoever drives others as well.
    pub(crate) fn look_up(&mut self, patience: &mut Patience) -> Result<()> {
        self.look_for_alarm()?;
        if patience.is_over() {
            return Err(self.expire());
        }
        Ok(())
    }

    /// Registers memory together with all other ranks: see [`Communicator::register`].
    ///
    /// [`Communicator::register`]: crate::Communicator::register
    pub(crate) fn register(&mut self, memory: &Memory) -> Result<Window> {
        self.finish()?;
        let window = match self.fabric.register(memory, self.deadline) {
            Ok(window) => window,
            Err(error) if *error.fault() == Fault::Usage => {
                return Err(error.on(self.rank).during(REGISTER));
            }
            Err(error) => {
                let error = self.control.report(error.on(self.rank).during(REGISTER));
                return Err(self.fail(error));
            }
        };
        if window.refusal().is_none() {
            self.plans.expect_mapped();
        }
        Ok(window)
    }

    /// Fails if the communicator has failed elsewhere.
    pub(crate) fn look_for_alarm(&mut self) -> Result<()> {
        if !self.control.alarm().raised() {
            return Ok(());
        }
        let error = self.alarmed();
        Err(self.fail(error))
    }

    #[cold]
    fn alarmed(&self) -> Error {
        self.control.alarm().error().unwrap_or_else(|| Error::bug("an alarm without a cause"))
    }

    /// Fails because the deadline has passed.
    pub(crate) fn expire(&mut self) -> Error {
        let error = self.overdue();
        self.fail(error)
    }

    /// Runs `f` with the engine, which fails before a panic of `f` goes on: until then peers may use the
    /// buffers of what is outstanding.
    #[inline]
    pub(crate) fn guarded<R>(&mut self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let guard = HalfWay(self);
        let result = f(guard.0);
        std::mem::forget(guard);
        result
    }

    /// Whether nothing is outstanding, neither operations nor what they gave to a network.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.fabric.is_flushed()
            && self.device.as_ref().is_none_or(|device| device.is_quiet())
    }

    /// What rings when a peer has moved something.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Sends and receives that are not complete.
    pub(crate) fn messages_under_way(&self) -> Vec<Message> {
        let messages = self.queue.iter().filter(|queued| queued.operation.is_message());
        let shown = |queued: &Queued| {
            let Bound { collective, root, count, dtype, .. } = queued.operation.bound;
            Message { collective, peer: root, count, dtype }
        };
        messages.map(shown).collect()
    }

    /// A fresh allowance of waiting.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(&self.wait, self.deadline)
    }

    /// The same for a thread that nobody waits for. Of kernels that need nobody it learns soon enough: asking the driver for them takes
    /// locks that those need who launch others.
    pub(crate) fn patience_of_thread(&self) -> Patience {
        let runs_alone = self.device.as_ref().is_some_and(|device| device.runs_alone());
        let wait = if runs_alone { self.wait.unhurried() } else { self.wait };
        Patience::new(&wait, self.deadline)
    }

    /// The first error, if the communicator has failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        let failed = if self.asleep.is_some() { None } else { self.failed.clone() };
        failed.or_else(|| self.control.alarm().error())
    }

    /// Ends a sleep of whoever drives, when an alarm is raised.
    pub(crate) fn alarm_waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let bell = self.bell.clone();
        Box::new(move || bell.ring())
    }

    /// Where events are put down, with a profiler.
    pub(crate) fn emitter(&self) -> Option<&Arc<Emitter>> {
        self.profile.as_ref().map(|profile| profile.emitter())
    }

    /// How many operations are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.len() + self.device.as_ref().map_or(0, |device| device.outstanding())
    }

    /// How plans are chosen.
    pub(crate) fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The connections.
    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    fn poll_queue(&mut self) -> Result<Poll> {
        let mut moved = false;
        let mut collective_open = false;
        let mut index = 0;
        while index < self.queue.len() {
            if let Some(error) = self.queue[index].gate.as_ref().and_then(Gate::lost) {
                return Err(error.during(self.queue[index].operation.bound.collective.name()));
            }
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
        self.fabric.progress().map_err(|error| self.control.report(error.on(self.rank)))?;
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
        let queued = &mut self.queue[index];
        if !queued.started {
            queued.started = true;
            let started = queued.operation.start(self.rank, self.n, &mut self.fabric, &mut self.scratch);
            started.map_err(|error| self.failed_path(index, error))?;
            if let Some(profile) = &mut self.profile {
                let Operation { bound, decision, sequence, ticket, .. } = &mut *self.queue[index].operation;
                let path = is_message(bound).then(|| self.fabric.way_to(bound.root)).flatten();
                profile.begin(ticket, &Work { bound, decision, sequence: *sequence, path });
            }
        }
        let company = self.company();
        let queued = &mut self.queue[index];
        if let Some(profile) = &self.profile {
            profile.emitter().enter(queued.operation.ticket.span());
        }
        if queued.operation.is_mapped() && self.control.alarm().raised() {
            // It may have much to do without ever having to wait.
            return Err(self.alarmed());
        }
        let outcome =
            queued.operation.poll((self.rank, self.n), company, &mut self.fabric, &mut self.scratch);
        outcome.map_err(|stop| self.stopped(index, stop))
    }

    #[cold]
    fn stopped(&mut self, index: usize, stop: Stop) -> Error {
        match stop.reason() {
            Reason::Failed(error) => self.failed_path(index, error),
            Reason::Mismatch { peer, detail } => self.mismatched(index, peer, detail),
        }
    }

    fn complete(&mut self, index: usize) {
        let Some(mut queued) = self.queue.remove(index) else { return };
        if let Some(profile) = &mut self.profile {
            profile.end(&mut queued.operation.ticket);
        }
        self.retire(queued.operation);
        if let Some(gate) = queued.gate {
            gate.pass();
        }
    }

    /// The operation is complete.
    #[inline]
    fn retire(&mut self, operation: Box<Operation>) {
        if !operation.is_message() {
            self.board.complete(operation.sequence);
        }
        if self.spare.len() < SPARE_OPERATIONS {
            self.spare.push(operation);
        }
    }

    /// What a call would do.
    pub(crate) fn explain(
        &mut self,
        collective: Collective,
        dtype: Dtype,
        count: usize,
        root: Rank,
    ) -> Result<Explained> {
        check_root(collective, root, self.n)?;
        self.plans.explain((collective, dtype), count, root)
    }

    /// An operation to fill in, with the allocations of an earlier one.
    fn blank(&mut self, bound: Bound, tables: Option<&Tables<'_>>) -> Result<Box<Operation>> {
        let decision = self.plans.decide(&bound, tables, &mut self.fabric)?;
        #[cfg(test)]
        note(decision);
        Ok(match self.spare.pop() {
            Some(mut operation) => {
                operation.rebind(bound, decision);
                operation
            }
            None => Box::new(Operation::new(bound, decision)),
        })
    }
}

/// An engine in use; dropped only by a panic.
struct HalfWay<'a>(&'a mut Engine);

impl Drop for HalfWay<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.control.abort(HALF_WAY);
        self.0.fail(Error::bug(HALF_WAY));
    }
}

impl Numbers {
    /// The number and tag of a call, of which the board is told. Messages have no number.
    #[inline]
    fn next(&mut self, bound: &Bound, decision: &Decision, board: &Board) -> (u64, u32) {
        if is_message(bound) {
            let direction = usize::from(bound.collective == Collective::Recv);
            let number = &mut self.messages[bound.root.index()][direction];
            *number = number.wrapping_add(1);
            return (0, decision.tag.number(u64::from(*number)));
        }
        self.sequence += 1;
        board.enter_packed(self.sequence, decision.signature);
        (self.sequence, decision.tag.number(self.sequence))
    }
}

/// Whether a call may begin although others are in the queue: messages pass all but those of their own pair and
/// direction.
#[inline]
fn may_go_ahead(queue: &VecDeque<Queued>, bound: &Bound) -> bool {
    let passes = |queued: &Queued| {
        let other = &queued.operation.bound;
        is_message(other) && (other.collective, other.root) != (bound.collective, bound.root)
    };
    queue.is_empty() || is_message(bound) && queue.iter().all(passes)
}

/// How long a caller goes on waiting, and how.
pub(crate) struct Patience {
    waiter: Waiter,
    lookout: Lookout,
    deadline: Duration,
    pauses: u32,
    since: Option<Instant>,
}

impl Patience {
    fn new(wait: &WaitSettings, deadline: Duration) -> Patience {
        Patience { waiter: Waiter::new(wait), lookout: Lookout::new(), deadline, pauses: 0, since: None }
    }

    /// Something moved.
    pub(crate) fn renew(&mut self) {
        self.refresh();
        self.pauses = 0;
        self.since = None;
    }

    /// Something else moved that the same caller waits for: the next pauses are short again.
    pub(crate) fn refresh(&mut self) {
        self.waiter.reset();
        self.lookout.moved();
    }

    /// Waits a little; whether the deadline has passed.
    pub(crate) fn pause(&mut self, bell: &Bell) -> bool {
        self.wait(bell);
        self.is_over()
    }

    /// Waits a little.
    pub(crate) fn wait(&mut self, bell: &Bell) {
        self.waiter.pause(Some(bell));
        self.lookout.turn();
    }

    /// Whether the deadline has passed, after one more fruitless poll. The clock is read only now and then, and
    /// starts at the first reading.
    pub(crate) fn is_over(&mut self) -> bool {
        self.pauses += 1;
        if !self.pauses.is_multiple_of(PAUSES_PER_CLOCK_READING) {
            return false;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() >= self.deadline
    }
}

/// What ends an engine whose user panicked.
const HALF_WAY: &str = "a panic left an operation half way";
/// What registering is called in errors.
const REGISTER: &str = "register";
/// Finished operations kept for their allocations.
const SPARE_OPERATIONS: usize = 64;
/// A clock reading costs about 25 ns; a pause costs about as much when spinning.
const PAUSES_PER_CLOCK_READING: u32 = 64;

#[cfg(test)]
thread_local! {
    /// The plan of this thread's last call, its channels and chunk, and how data was to get from rank to rank.
    pub(crate) static RAN: std::cell::RefCell<Option<(String, u16, usize, super::plans::Carried)>> =
        const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
fn note(decision: &Decision) {
    let ran = (decision.program.name.clone(), decision.channels, decision.chunk_count, decision.carried());
    RAN.with(|last| *last.borrow_mut() = Some(ran));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, local};

    #[test]
    fn calls_have_had_company_until_one_comes_to_an_empty_queue() {
        let config = Config::from_vars([("CCL_PROGRESS_THREAD", "0")]).unwrap();
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let (sent, mut received) = (vec![7; 1 << 18], vec![0; 1 << 18]);
            let peer = Rank(1 - comm.rank().0);
            let mut company = Vec::new();
            for _ in 0..2 {
                let (mut out, mut into) = (Request::send(&sent, peer), Request::recv(&mut received, peer));
                company.push(comm.with_engine(|engine| {
                    engine.submit(&mut out, None)?;
                    let alone = engine.company();
                    engine.submit(&mut into, None)?;
                    let together = engine.company();
                    engine.finish()?;
                    Ok((alone, together))
                })?);
            }
            Ok((company, received == sent))
        });
        for outcome in outcomes.unwrap() {
            assert_eq!(outcome.unwrap(), (vec![(Company::None, Company::Now); 2], true));
        }
    }
}
