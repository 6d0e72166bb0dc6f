//! The host executor: runs one operation's lanes over edges, without ever blocking.
//!
//! An [`Operation`] is a checked program bound to one call. [`Operation::poll`] advances each lane
//! until it is done or must wait; the caller decides how to wait. Nothing here allocates once an
//! `Operation` has been used before.

use std::sync::Arc;

use ccl_plan::cursor::Cursor;
use ccl_plan::layout::{Layout, Tables};
use ccl_plan::{Channel, Collective, Rank};

use super::plans::{Decision, Lending};
use super::reduce::{self, Finish};
use super::tape::{Call, Entry, Kind, Resolve, Spot};
use crate::error::Error;
use crate::memory::scratch::{BOUNCE_BYTES, Scratch};
use crate::request::Bound;
use crate::transport::{EdgeIndex, Fabric, Slot};

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
    /// The peer that the lane waits for, and the instruction that waits.
    waiting_for: Option<(Rank, u32)>,
}

/// Where a lane's steps come from.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each long call")]
enum Source {
    /// The decision's tape, from this entry on.
    Tape(usize),
    /// The program itself, and the step that must wait.
    Program(Cursor, Option<Entry>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunState {
    Open,
    AtBarrier,
    Done,
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

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop(Box::new(Reason::Failed(error)))
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
    pub(crate) fn start(&mut self, rank: Rank, n: u32, scratch: &mut Scratch) {
        if self.stages_input() {
            // SAFETY: the request's buffers were checked to hold this many bytes and are borrowed
            // until the operation is complete.
            let input = unsafe { std::slice::from_raw_parts(self.bound.send, self.input_bytes(n)) };
            self.bound.send = scratch.stage(input);
        }
        scratch.reserve(self.scratch_bytes());
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.clear();
        let layout = self.layout(rank, n);
        let (program, root) = (&self.decision.program, self.bound.root);
        for channel in (0..self.decision.channels).map(Channel) {
            for lane in 0..program.lanes.len() {
                let source = match &self.decision.tape {
                    Some(_) => Source::Tape(0),
                    None => Source::Program(Cursor::new(program, lane, channel, &layout, root), None),
                };
                lanes.push(Run { source, channel, state: RunState::Open, waiting_for: None });
            }
        }
        self.open_lanes = lanes.len();
        self.at_barrier = 0;
        self.lanes = lanes;
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
        }
    }

    /// Makes this another operation, keeping its allocations.
    pub(crate) fn rebind(&mut self, bound: Bound, decision: &Arc<Decision>) {
        self.bound = bound;
        // Mostly the same as last time; the count of references is then better left alone.
        if !Arc::ptr_eq(&self.decision, decision) {
            self.decision = Arc::clone(decision);
        }
    }

    /// Whether this is one side of a message rather than a collective.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.bound.collective, Collective::Send | Collective::Recv)
    }

    /// Whether the send buffer must be copied aside first: an all-to-all overwrites what it has not
    /// sent yet when both buffers are one.
    fn stages_input(&self) -> bool {
        self.bound.in_place && matches!(self.bound.collective, Collective::AllToAll | Collective::AllToAllV)
    }

    /// Bytes of the send buffer of an all-to-all.
    fn input_bytes(&self, n: u32) -> usize {
        let size = self.bound.dtype.size_bytes();
        if !self.bound.collective.uneven() {
            return self.bound.count * n as usize * size;
        }
        let tables = self.tables.borrow();
        let ends = tables.send_counts.iter().zip(tables.send_offsets).map(|(count, offset)| count + offset);
        ends.max().unwrap_or(0) * size
    }

    /// Advances every lane as far as it goes.
    pub(crate) fn poll(
        &mut self,
        rank: Rank,
        n: u32,
        fabric: &mut Fabric,
        scratch: &mut Scratch,
    ) -> Result<Poll, Stop> {
        let (mut lanes, mut lent) = (std::mem::take(&mut self.lanes), std::mem::take(&mut self.lent));
        let outcome = self.poll_lanes((&mut lanes, &mut lent), rank, n, fabric, scratch);
        (self.lanes, self.lent) = (lanes, lent);
        outcome
    }

    /// The first lane that is not done: where it is and whom it waits for.
    pub(crate) fn position(&self) -> Position {
        let open = self.lanes.iter().find(|run| run.state != RunState::Done);
        let lent = self.lent.first().map(|(_, peer)| (*peer, 0));
        let waiting = open.map_or(lent, |run| run.waiting_for);
        Position {
            instruction: waiting.map_or(0, |(_, instruction)| instruction),
            waiting_for: waiting.map(|(peer, _)| peer),
        }
    }

    /// Bytes of scratch that the operation needs.
    fn scratch_bytes(&self) -> usize {
        let program = &self.decision.program;
        let lanes = usize::from(self.decision.channels) * program.lanes.len();
        lanes * usize::from(program.scratch_chunks) * self.chunk_bytes()
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
        rank: Rank,
        n: u32,
        fabric: &mut Fabric,
        scratch: &mut Scratch,
    ) -> Result<Poll, Stop> {
        let mut moved = false;
        let bounce = match self.decision.lending {
            Lending::Nothing => std::ptr::null_mut(),
            _ => scratch.bounce(),
        };
        for (index, run) in lanes.iter_mut().enumerate() {
            if run.state != RunState::Open {
                continue;
            }
            let first = index * usize::from(self.decision.program.scratch_chunks);
            let cells = scratch.cells(first, self.chunk_bytes());
            let mut lane = LaneStep {
                operation: self,
                state: &mut run.state,
                fabric: &mut *fabric,
                cells,
                bounce,
                lent: &mut *lent,
                waiting_for: None,
            };
            moved |= match &mut run.source {
                Source::Tape(at) => lane.replay(index, at)?,
                Source::Program(cursor, pending) => {
                    lane.follow(cursor, pending, run.channel, &self.layout(rank, n))?
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

    fn borrow(&self) -> Tables<'_> {
        let (send_counts, rest) = self.values.split_at(self.lengths[0]);
        let (send_offsets, rest) = rest.split_at(self.lengths[1]);
        let (recv_counts, recv_offsets) = rest.split_at(self.lengths[2]);
        Tables { send_counts, send_offsets, recv_counts, recv_offsets }
    }
}

/// Everything one lane needs to take steps.
struct LaneStep<'a> {
    operation: &'a Operation,
    state: &'a mut RunState,
    fabric: &'a mut Fabric,
    /// Start of this lane's scratch.
    cells: *mut u8,
    /// Where what is read directly is folded from; null if nothing is.
    bounce: *mut u8,
    lent: &'a mut Vec<(EdgeIndex, Rank)>,
    waiting_for: Option<(Rank, u32)>,
}

impl LaneStep<'_> {
    /// Takes steps of the tape until the lane must wait or is done; whether it took any.
    fn replay(&mut self, lane: usize, at: &mut usize) -> Result<bool, Stop> {
        let Some(tape) = &self.operation.decision.tape else {
            return Err(Error::bug("a lane replays a tape that is not there").into());
        };
        let mut moved = false;
        while let Some(entry) = tape.lane(lane).get(*at) {
            if !self.take(entry)? {
                return Ok(moved);
            }
            *at += 1;
            moved = true;
            if entry.kind == Kind::Barrier {
                *self.state = RunState::AtBarrier;
                return Ok(true);
            }
        }
        *self.state = RunState::Done;
        Ok(true)
    }

    /// As [`LaneStep::replay`], asking the program for each step.
    fn follow(
        &mut self,
        cursor: &mut Cursor,
        pending: &mut Option<Entry>,
        channel: Channel,
        layout: &Layout<'_>,
    ) -> Result<bool, Stop> {
        let operation = self.operation;
        let call = Call {
            collective: operation.bound.collective,
            dtype: operation.bound.dtype,
            reduce_op: operation.bound.reduce.op(),
            root: operation.bound.root,
            lending: operation.decision.lending,
        };
        let resolve = Resolve::new(&call, layout.chunk_count, channel);
        let mut moved = false;
        loop {
            let entry = match pending {
                Some(entry) => entry,
                None => match cursor.next(&operation.decision.program, layout) {
                    Some(action) => {
                        let instruction = cursor.instruction() as u32;
                        pending.insert(resolve.entry(&action, instruction, self.fabric)?)
                    }
                    None => {
                        *self.state = RunState::Done;
                        return Ok(true);
                    }
                },
            };
            if !self.take(entry)? {
                return Ok(moved);
            }
            let kind = entry.kind;
            *pending = None;
            moved = true;
            if kind == Kind::Barrier {
                *self.state = RunState::AtBarrier;
                return Ok(true);
            }
        }
    }

    /// One step, if every edge is ready.
    #[inline(always)]
    fn take(&mut self, entry: &Entry) -> Result<bool, Stop> {
        let mut inputs = [std::ptr::null::<u8>(); 4];
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        for (address, spot) in inputs.iter_mut().zip(entry.inputs()) {
            *address = match self.input(entry, *spot)? {
                Found::Here(found) => found,
                Found::Lent(..) => return self.take_borrowed(entry),
                Found::NotYet => return Ok(false),
            };
        }
        let inputs = &inputs[..entry.inputs().len()];
        if entry.lends {
            return self.take_lending(entry, inputs);
        }
        for (address, spot) in outputs.iter_mut().zip(entry.outputs()) {
            let Some(found) = self.output(entry, *spot)? else { return Ok(false) };
            *address = found;
        }
        if entry.kind == Kind::Move {
            // SAFETY: user addresses come from a request whose lengths were checked against the layout
            // that cut this step and whose borrows outlive the operation; slots hold at least `bytes`
            // (checked against the slot size at launch, and against the slot's length on receive) and
            // are ours until posted or released; scratch cells hold a chunk each. Ranges are equal or
            // disjoint because the program was checked and in-place calls were verified for it.
            unsafe { self.fold(entry, inputs, &outputs[..entry.outputs().len()]) };
        }
        self.hand_over(entry, None)?;
        Ok(true)
    }

    /// One step that lends to its peers what it keeps or what it read.
    #[cold]
    fn take_lending(&mut self, entry: &Entry, inputs: &[*const u8]) -> Result<bool, Stop> {
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        let Some(kept) = self.kept(entry, &mut outputs)? else { return Ok(false) };
        let outputs = &outputs[..kept];
        if entry.finish == Finish::NONE && matches!(entry.inputs(), [Spot::Send(_)]) {
            // Peers may read while this rank makes its own copy.
            self.hand_over(entry, Some(inputs[0]))?;
            // SAFETY: as in `take`.
            unsafe { reduce::copy(inputs[0], outputs, entry.bytes) };
        } else {
            if kept > 0 {
                // SAFETY: as in `take`.
                unsafe { self.fold(entry, inputs, outputs) };
            }
            self.hand_over(entry, outputs.first().map(|output| output.cast_const()).or(Some(inputs[0])))?;
        }
        Ok(true)
    }

    /// One step of which some inputs lie in the memory of other processes.
    #[cold]
    fn take_borrowed(&mut self, entry: &Entry) -> Result<bool, Stop> {
        let mut inputs = [std::ptr::null::<u8>(); 4];
        let mut borrowed: [Option<(EdgeIndex, Slot)>; 4] = [None; 4];
        for (index, spot) in entry.inputs().iter().enumerate() {
            match self.input(entry, *spot)? {
                Found::Here(found) => inputs[index] = found,
                Found::Lent(edge, slot) => borrowed[index] = Some((edge, slot)),
                Found::NotYet => return Ok(false),
            }
        }
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        let Some(kept) = self.kept(entry, &mut outputs)? else { return Ok(false) };
        let (inputs, outputs) = (&inputs[..entry.inputs().len()], &outputs[..kept]);
        // SAFETY: as in `take`; what is being fetched belongs to the operation, which is not complete
        // until it is there, and whose failure withdraws all edges before the caller hears of it.
        if !unsafe { self.fold_borrowed(entry, inputs, outputs, &borrowed)? } {
            return Ok(false);
        }
        self.hand_over(entry, outputs.first().map(|output| output.cast_const()))?;
        Ok(true)
    }

    /// The outputs that data is written to, and how many: all, or those in this process if the others
    /// are lent. `None` while credit is awaited.
    fn kept(&mut self, entry: &Entry, outputs: &mut [*mut u8; 4]) -> Result<Option<usize>, Stop> {
        let mut kept = 0;
        for spot in entry.outputs() {
            let Some(found) = self.output(entry, *spot)? else { return Ok(None) };
            if !(entry.lends && matches!(spot, Spot::To(..))) {
                outputs[kept] = found;
                kept += 1;
            }
        }
        Ok(Some(kept))
    }

    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`].
    #[inline(always)]
    unsafe fn fold(&self, entry: &Entry, inputs: &[*const u8], outputs: &[*mut u8]) {
        // SAFETY: the caller's contract.
        unsafe {
            if inputs.len() == 1 && entry.finish == Finish::NONE {
                reduce::copy(inputs[0], outputs, entry.bytes);
            } else {
                self.operation.decision.reduction.fold(inputs, outputs, entry.count, entry.finish);
            }
        }
    }

    /// What was made goes on to the peers, `kept` being where it stays if it is lent; what was used is
    /// given back.
    #[inline(always)]
    fn hand_over(&mut self, entry: &Entry, kept: Option<*const u8>) -> Result<(), Stop> {
        for spot in entry.outputs() {
            if let Spot::To(edge, peer) = *spot {
                match kept.filter(|_| entry.lends) {
                    None => self.fabric.sender(edge).post(entry.bytes, self.operation.tag)?,
                    Some(address) => {
                        self.fabric.sender(edge).lend(address, entry.bytes, self.operation.tag)?;
                        if !self.lent.iter().any(|(known, _)| *known == edge) {
                            self.lent.push((edge, peer));
                        }
                    }
                }
            }
        }
        for spot in entry.inputs() {
            if let Spot::From(edge, _) = *spot {
                self.fabric.receiver(edge).release()?;
            }
        }
        Ok(())
    }

    /// Inputs in other processes' memory are read straight to where they belong if nothing is folded,
    /// else piece by piece into buffers in the cache. Whether all is done; `false` while a network
    /// brings them.
    ///
    /// # Safety
    ///
    /// As for [`reduce::Reduction::fold`], of the inputs that are not borrowed.
    unsafe fn fold_borrowed(
        &mut self,
        entry: &Entry,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        borrowed: &[Option<(EdgeIndex, Slot)>; 4],
    ) -> Result<bool, Stop> {
        if let ([Some((edge, slot))], true) = (&borrowed[..inputs.len()], entry.finish == Finish::NONE) {
            // SAFETY: the first output has room for the step, and the others do as well and lie apart.
            unsafe {
                if !self.fabric.receiver(*edge).fetch(slot, outputs[0])? {
                    self.waiting_for = entry.inputs().iter().find_map(|spot| match spot {
                        Spot::From(_, peer) => Some((*peer, entry.instruction)),
                        _ => None,
                    });
                    return Ok(false);
                }
                reduce::copy(outputs[0], outputs, entry.bytes);
            }
            return Ok(true);
        }
        let size = entry.bytes / entry.count;
        let (mut pieces, mut targets) = ([std::ptr::null(); 4], [std::ptr::null_mut(); 4]);
        for start in (0..entry.bytes).step_by(BOUNCE_BYTES) {
            let bytes = BOUNCE_BYTES.min(entry.bytes - start);
            for (index, input) in inputs.iter().enumerate() {
                pieces[index] = input.wrapping_add(start);
                if let Some((edge, slot)) = &borrowed[index] {
                    let bounce = self.bounce.wrapping_add(index * BOUNCE_BYTES);
                    // SAFETY: there is a bounce buffer for each input, and this piece fits it.
                    unsafe { self.fabric.receiver(*edge).fetch_piece(slot, start, bounce, bytes)? };
                    pieces[index] = bounce.cast_const();
                }
            }
            for (target, output) in targets.iter_mut().zip(outputs) {
                *target = output.wrapping_add(start);
            }
            let (pieces, targets) = (&pieces[..inputs.len()], &targets[..outputs.len()]);
            // SAFETY: pieces lie within the caller's ranges or in bounce buffers.
            unsafe { self.operation.decision.reduction.fold(pieces, targets, bytes / size, entry.finish) };
        }
        Ok(true)
    }

    /// Where to read from.
    #[inline(always)]
    fn input(&mut self, entry: &Entry, spot: Spot) -> Result<Found, Stop> {
        Ok(Found::Here(match spot {
            Spot::Send(offset) => self.operation.bound.send.wrapping_add(offset),
            Spot::Recv(offset) => self.operation.bound.recv.wrapping_add(offset).cast_const(),
            Spot::Scratch(offset) => self.cells.wrapping_add(offset).cast_const(),
            Spot::To(..) => return Err(Error::bug("a send edge as an input").into()),
            Spot::From(edge, peer) => {
                let Some(slot) = self.fabric.receiver(edge).peek()? else {
                    self.waiting_for = Some((peer, entry.instruction));
                    return Ok(Found::NotYet);
                };
                if slot.tag != self.operation.tag || slot.bytes != entry.bytes {
                    return Err(mismatch(peer, self.operation.tag, entry.bytes, &slot));
                }
                if slot.lent {
                    return Ok(Found::Lent(edge, slot));
                }
                slot.data.as_ptr().cast_const()
            }
        }))
    }

    /// Where to write to, or `None` while credit is awaited.
    #[inline(always)]
    fn output(&mut self, entry: &Entry, spot: Spot) -> Result<Option<*mut u8>, Stop> {
        Ok(Some(match spot {
            Spot::Recv(offset) => self.operation.bound.recv.wrapping_add(offset),
            Spot::Scratch(offset) => self.cells.wrapping_add(offset),
            Spot::Send(_) | Spot::From(..) => return Err(Error::bug("an input as an output").into()),
            Spot::To(edge, peer) => {
                match self.fabric.sender(edge).acquire(if entry.lends { 0 } else { entry.bytes })? {
                    Some(address) => address.as_ptr(),
                    None => {
                        self.waiting_for = Some((peer, entry.instruction));
                        return Ok(None);
                    }
                }
            }
        }))
    }
}

/// Where an input is.
enum Found {
    /// In this process.
    Here(*const u8),
    /// In another, or at an address that only the kernel may read.
    Lent(EdgeIndex, Slot),
    /// A peer's slot is awaited.
    NotYet,
}

#[cold]
fn mismatch(peer: Rank, tag: u32, bytes: usize, slot: &Slot) -> Stop {
    let detail = if slot.tag == tag {
        format!("expected {bytes} bytes from rank {peer}, found {}", slot.bytes)
    } else {
        format!("expected a message of this call from rank {peer}, found one of another call")
    };
    Stop(Box::new(Reason::Mismatch { peer, detail }))
}

/// Edges between two ranks within a channel: one for collectives, one for messages, so that a message
/// never waits behind a collective's slots.
pub(crate) const EDGE_TAGS: u8 = 2;

/// Which of them a collective uses.
pub(super) fn edge_tag(collective: Collective) -> u8 {
    u8::from(matches!(collective, Collective::Send | Collective::Recv))
}
