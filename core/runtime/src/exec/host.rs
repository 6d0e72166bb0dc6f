//! The host executor: runs one operation's lanes over edges, without ever blocking.
//!
//! An [`Operation`] is a checked program bound to one call. [`Operation::poll`] advances each lane
//! until it is done or must wait; the caller decides how to wait. Nothing here allocates once an
//! `Operation` has been used before.

use std::sync::Arc;

use ccl_plan::cursor::Cursor;
use ccl_plan::layout::{Layout, Tables};
use ccl_plan::{Channel, Collective, Rank};

use super::lending::Lending;
use super::mapped::{Mapped, Outcome};
use super::plans::Decision;
use super::step::{Bindings, LaneStep, Upcoming, may_help};
use super::straight::MOST_STRAIGHT_LANES;
use crate::error::Error;
use crate::memory::scratch::Scratch;
use crate::observe::profiler::Ticket;
use crate::request::{Bound, extent};
use crate::transport::{EdgeIndex, Fabric};

/// One call being executed.
pub(crate) struct Operation {
    pub(crate) bound: Bound,
    pub(crate) tables: OwnedTables,
    pub(super) decision: Arc<Decision>,
    /// Identifies the operation in every slot, so that ranks cannot mix operations up.
    pub(crate) tag: u32,
    pub(crate) sequence: u64,
    lanes: Vec<Run>,
    /// Edges on which something was lent that is not yet known to be back.
    lent: Vec<(EdgeIndex, Rank)>,
    open_lanes: usize,
    at_barrier: usize,
    /// What it does before its lanes, or instead of them.
    mapped: Option<Box<Mapped>>,
    /// Its part in what a profiler hears.
    pub(super) ticket: Ticket,
}

/// Block tables that outlive the request.
#[derive(Default)]
pub(crate) struct OwnedTables {
    values: Vec<usize>,
    lengths: [usize; 4],
}

/// One lane of one channel.
struct Run {
    source: Source,
    channel: Channel,
    state: RunState,
    /// Whose slot holds what was sent last, where others may be told of it.
    filled: Option<EdgeIndex>,
    /// The peer that the lane waits for, and the instruction that waits.
    waiting_for: Option<(Rank, u32)>,
}

/// Where a lane's steps come from.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each long call")]
enum Source {
    /// The decision's tape, from this entry on.
    Tape(usize),
    /// The program itself, and the step that comes next.
    Program(Cursor, Upcoming),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RunState {
    Open,
    AtBarrier,
    Done,
}

/// What else the rank has under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Company {
    /// Nothing, and nothing has been since this call came.
    None,
    /// Nothing any more.
    Gone,
    /// Other calls.
    Now,
}

/// What came of polling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Poll {
    /// Every lane is done.
    Done,
    /// Something moved.
    Progress,
    /// Nothing could move.
    Stalled,
}

// SAFETY: the addresses in `bound` belong to a request whose borrows outlive the operation, and whose
// slices are `Send`; whichever thread drives the operation is the only one to use them meanwhile.
unsafe impl Send for Operation {}

/// Where an operation stands, for reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    pub(crate) instruction: u32,
    pub(crate) waiting_for: Option<Rank>,
}

/// Why an operation cannot go on. One word, since every step may return it.
pub(crate) struct Stop(Box<Reason>);

/// What is behind a [`Stop`].
pub(crate) enum Reason {
    /// A peer's slot belongs to another operation or has another length.
    Mismatch { peer: Rank, detail: String },
    /// The transport failed.
    Failed(Error),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Stop {
        Stop(Box::new(reason))
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Reason::Failed(error).into()
    }
}

impl Stop {
    pub(crate) fn reason(self) -> Reason {
        *self.0
    }
}

impl Operation {
    /// Prepares working memory and starts the lanes; `rank` of `n`. Reuses the allocations of an
    /// earlier start.
    ///
    /// # Errors
    ///
    /// Of making edges.
    pub(crate) fn start(
        &mut self,
        rank: Rank,
        n: u32,
        fabric: &mut Fabric,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        if self.decision.mapped {
            self.mapped = Some(Mapped::new(&self.bound, (rank, n), fabric)?);
        }
        if self.stages_input() {
            // SAFETY: the request's buffers were checked to hold this many bytes and are borrowed
            // until the operation is complete.
            let input = unsafe {
                std::slice::from_raw_parts(self.bound.send, self.tables.input_bytes(&self.bound, n))
            };
            self.bound.send = scratch.stage(input);
        }
        scratch.reserve(self.decision.scratch_bytes);
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.clear();
        let layout = self.layout(rank, n);
        let (program, root) = (&self.decision.program, self.bound.root);
        for channel in (0..self.decision.channels).map(Channel) {
            for lane in 0..program.lanes.len() {
                let source = match &self.decision.tape {
                    Some(_) => Source::Tape(0),
                    None => Source::Program(
                        Cursor::new(program, lane, channel, &layout, root),
                        Upcoming::default(),
                    ),
                };
                lanes.push(Run { source, channel, state: RunState::Open, filled: None, waiting_for: None });
            }
        }
        self.open_lanes = lanes.len();
        self.at_barrier = 0;
        self.lanes = lanes;
        Ok(())
    }

    /// As [`Operation::start`], with each lane of the tape at the entry that `at` says.
    pub(super) fn start_at(&mut self, at: &[usize; MOST_STRAIGHT_LANES]) {
        self.lanes.clear();
        for (lane, at) in (0..self.decision.program.lanes.len()).zip(at) {
            let done = self.decision.tape.as_ref().is_none_or(|tape| *at == tape.lane(lane).len());
            let state = if done { RunState::Done } else { RunState::Open };
            let (source, channel) = (Source::Tape(*at), Channel(0));
            self.lanes.push(Run { source, channel, state, filled: None, waiting_for: None });
        }
        self.open_lanes = self.lanes.iter().filter(|run| run.state == RunState::Open).count();
        self.at_barrier = 0;
    }

    /// An operation that has not started.
    pub(crate) fn new(bound: Bound, decision: &Arc<Decision>) -> Operation {
        Operation {
            bound,
            tables: OwnedTables::default(),
            decision: Arc::clone(decision),
            tag: 0,
            sequence: 0,
            lanes: Vec::new(),
            lent: Vec::new(),
            open_lanes: 0,
            at_barrier: 0,
            mapped: None,
            ticket: Ticket::default(),
        }
    }

    /// Makes this another operation, keeping its allocations.
    pub(crate) fn rebind(&mut self, bound: Bound, decision: &Arc<Decision>) {
        self.bound = bound;
        self.mapped = None;
        // Mostly the same as last time; the count of references is then better left alone.
        if !Arc::ptr_eq(&self.decision, decision) {
            self.decision = Arc::clone(decision);
        }
    }

    /// Whether this is one side of a message rather than a collective.
    pub(crate) fn is_message(&self) -> bool {
        is_message(&self.bound)
    }

    /// Whether the send buffer must be copied aside first: an all-to-all overwrites what it has not
    /// sent yet when both buffers are one.
    fn stages_input(&self) -> bool {
        stages_input(&self.bound)
    }

    /// Whether it uses the memory of other ranks, for long between two polls that find nothing to do.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// After a failure: keeps stopped processes from being seen to write to the buffers.
    pub(crate) fn detach(&self, n: u32) {
        if let Some(mapped) = &self.mapped {
            mapped.detach(&self.bound, n);
        }
    }

    /// Advances every lane as far as it goes.
    pub(crate) fn poll(
        &mut self,
        (rank, n): (Rank, u32),
        company: Company,
        fabric: &mut Fabric,
        scratch: &mut Scratch,
    ) -> Result<Poll, Stop> {
        if let Some(mapped) = &mut self.mapped {
            let call = Bindings { bound: &self.bound, decision: &self.decision, tag: self.tag };
            match mapped.poll(call, (rank, n), fabric)? {
                Outcome::Polled(Poll::Done) => {
                    // Windows that it holds may be dropped by now.
                    self.mapped = None;
                    return Ok(Poll::Done);
                }
                Outcome::Polled(poll) => return Ok(poll),
                Outcome::Unmapped => self.mapped = None,
            }
        }
        let (mut lanes, mut lent) = (std::mem::take(&mut self.lanes), std::mem::take(&mut self.lent));
        let outcome = self.poll_lanes((&mut lanes, &mut lent), (rank, n), company, fabric, scratch);
        (self.lanes, self.lent) = (lanes, lent);
        outcome
    }

    /// The first lane that is not done: where it is and whom it waits for.
    pub(crate) fn position(&self) -> Position {
        let open = self.lanes.iter().find(|run| run.state != RunState::Done);
        let lent = self.lent.first().map(|(_, peer)| (*peer, 0));
        let mapped = self.mapped.as_ref().and_then(|mapped| Some((mapped.waiting_for()?, 0)));
        let waiting = mapped.or(open.map_or(lent, |run| run.waiting_for));
        Position {
            instruction: waiting.map_or(0, |(_, instruction)| instruction),
            waiting_for: waiting.map(|(peer, _)| peer),
        }
    }

    fn chunk_bytes(&self) -> usize {
        self.decision.chunk_count * self.bound.dtype.size_bytes()
    }

    fn layout(&self, rank: Rank, n: u32) -> Layout<'_> {
        Layout {
            collective: self.bound.collective,
            n,
            rank,
            count: self.bound.count,
            tables: self.bound.collective.uneven().then(|| self.tables.borrow()),
            order: None,
            channels: self.decision.channels,
            chunk_count: self.decision.chunk_count,
            grain_count: self.decision.grain_count,
        }
    }

    fn poll_lanes(
        &mut self,
        (lanes, lent): (&mut [Run], &mut Vec<(EdgeIndex, Rank)>),
        (rank, n): (Rank, u32),
        company: Company,
        fabric: &mut Fabric,
        scratch: &mut Scratch,
    ) -> Result<Poll, Stop> {
        let mut moved = false;
        let bounce = match self.decision.sending.lending {
            Lending::Never | Lending::Nothing => std::ptr::null_mut(),
            _ => scratch.bounce(),
        };
        for (index, run) in lanes.iter_mut().enumerate() {
            if run.state != RunState::Open {
                continue;
            }
            let first = index * usize::from(self.decision.program.scratch_chunks);
            let cells = scratch.cells(first, self.chunk_bytes());
            let mut lane = LaneStep {
                call: Bindings { bound: &self.bound, decision: &self.decision, tag: self.tag },
                state: &mut run.state,
                fabric: &mut *fabric,
                cells,
                bounce,
                lent: &mut *lent,
                company,
                filled: &mut run.filled,
                waiting_for: None,
            };
            moved |= match &mut run.source {
                Source::Tape(at) => lane.replay(index, at)?,
                Source::Program(cursor, upcoming) => {
                    lane.follow(cursor, upcoming, run.channel, &self.layout(rank, n))?
                }
            };
            run.waiting_for = lane.waiting_for;
            match run.state {
                RunState::Done => self.open_lanes -= 1,
                RunState::AtBarrier => self.at_barrier += 1,
                RunState::Open => {}
            }
        }
        if self.at_barrier > 0 && self.at_barrier == self.open_lanes {
            lanes
                .iter_mut()
                .filter(|run| run.state == RunState::AtBarrier)
                .for_each(|run| run.state = RunState::Open);
            self.at_barrier = 0;
            moved = true;
        }
        if !moved && !lent.is_empty() && may_help(self.bound.collective, company, fabric) {
            moved = lent.iter().fold(false, |helped, (edge, _)| helped | fabric.sender(*edge).help());
        }
        if self.open_lanes == 0 && !lent.is_empty() {
            lent.retain(|(edge, _)| !fabric.sender(*edge).all_released());
        }
        Ok(match (self.open_lanes + lent.len(), moved) {
            (0, _) => Poll::Done,
            (_, true) => Poll::Progress,
            (_, false) => Poll::Stalled,
        })
    }
}

impl OwnedTables {
    /// Takes a copy of `tables`.
    pub(crate) fn store(&mut self, tables: Tables<'_>) {
        self.values.clear();
        let parts = [tables.send_counts, tables.send_offsets, tables.recv_counts, tables.recv_offsets];
        for (length, part) in self.lengths.iter_mut().zip(parts) {
            *length = part.len();
            self.values.extend_from_slice(part);
        }
    }

    /// Copies the own entry of a gather or scatter, which callers give at their own rank, to the
    /// root's, where programs look for what goes to the root or comes from it.
    pub(crate) fn face_root(&mut self, collective: Collective, rank: Rank, root: Rank) {
        let (start, length) = match collective {
            Collective::GatherV => (0, self.lengths[0]),
            Collective::ScatterV => (self.lengths[0] + self.lengths[1], self.lengths[2]),
            _ => return,
        };
        if rank.index() < length && root.index() < length {
            self.values[start + root.index()] = self.values[start + rank.index()];
        }
    }

    /// Bytes of the send buffer of an all-to-all.
    pub(super) fn input_bytes(&self, bound: &Bound, n: u32) -> usize {
        let size = bound.dtype.size_bytes();
        if !bound.collective.uneven() {
            return bound.count * n as usize * size;
        }
        let tables = self.borrow();
        extent(tables.send_counts, tables.send_offsets).unwrap_or(0) * size
    }

    pub(super) fn borrow(&self) -> Tables<'_> {
        let (send_counts, rest) = self.values.split_at(self.lengths[0]);
        let (send_offsets, rest) = rest.split_at(self.lengths[1]);
        let (recv_counts, recv_offsets) = rest.split_at(self.lengths[2]);
        Tables { send_counts, send_offsets, recv_counts, recv_offsets }
    }
}

/// Edges between two ranks within a channel: two for collectives, whose programs tell them apart, and the
/// last for messages, so that a message never waits behind a collective's slots.
pub(crate) const EDGE_TAGS: u8 = 3;

/// Which of them a collective uses.
pub(super) fn edge_tag(collective: Collective) -> u8 {
    if collective.is_message() { EDGE_TAGS - 1 } else { 0 }
}

/// Whether a call is one side of a message rather than a collective.
#[inline]
pub(super) fn is_message(bound: &Bound) -> bool {
    bound.collective.is_message()
}

/// Whether the send buffer must be copied aside first.
#[inline]
pub(super) fn stages_input(bound: &Bound) -> bool {
    bound.in_place && matches!(bound.collective, Collective::AllToAll | Collective::AllToAllV)
}
