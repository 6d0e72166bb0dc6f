//! The host executor: runs one operation's lanes over edges, without ever blocking.
//!
//! An [`Operation`] is a checked program bound to one call. [`Operation::poll`] advances each lane
//! until it is done or must wait; the caller decides how to wait. Nothing here allocates once an
//! `Operation` has been used before.

use std::sync::Arc;

use ccl_plan::cursor::{Action, Cursor, Site, Step};
use ccl_plan::layout::{Layout, Tables};
use ccl_plan::program::Checked;
use ccl_plan::{Channel, Collective, Rank};

use super::plans::Decision;
use super::reduce::{self, Finish, Reduction};
use crate::error::{Error, Result};
use crate::memory::scratch::Scratch;
use crate::request::Bound;
use crate::transport::{EdgeIndex, Fabric, Slot};

/// One call being executed.
pub(crate) struct Operation {
    pub(crate) bound: Bound,
    pub(crate) program: Arc<Checked>,
    pub(crate) tables: OwnedTables,
    pub(crate) channels: u16,
    pub(crate) chunk_count: usize,
    pub(crate) grain_count: usize,
    pub(crate) reduction: Reduction,
    /// Identifies the operation in every slot, so that ranks cannot mix operations up.
    pub(crate) tag: u32,
    pub(crate) sequence: u64,
    lanes: Vec<Run>,
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
    cursor: Cursor,
    pending: Option<Action>,
    channel: Channel,
    state: RunState,
    waiting_for: Option<Rank>,
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

/// Why an operation cannot go on.
pub(crate) enum Stop {
    /// A peer's slot belongs to another operation or has another length.
    Mismatch { peer: Rank, detail: String },
    /// The transport failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Operation {
    /// Starts the lanes; `rank` of `n`. Reuses the allocations of an earlier start.
    pub(crate) fn start(&mut self, rank: Rank, n: u32) {
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.clear();
        let program = Arc::clone(&self.program);
        let layout = self.layout(rank, n);
        for channel in 0..self.channels {
            for lane in 0..program.lanes.len() {
                lanes.push(Run {
                    cursor: Cursor::new(&program, lane, Channel(channel), &layout, self.bound.root),
                    pending: None,
                    channel: Channel(channel),
                    state: RunState::Open,
                    waiting_for: None,
                });
            }
        }
        self.open_lanes = lanes.len();
        self.at_barrier = 0;
        self.lanes = lanes;
    }

    /// An operation that has not started.
    pub(crate) fn new(bound: Bound, decision: Decision, reduction: Reduction) -> Operation {
        Operation {
            bound,
            program: decision.program,
            tables: OwnedTables::default(),
            channels: decision.channels,
            chunk_count: decision.chunk_count,
            grain_count: decision.grain_count,
            reduction,
            tag: 0,
            sequence: 0,
            lanes: Vec::new(),
            open_lanes: 0,
            at_barrier: 0,
        }
    }

    /// Makes this another operation, keeping its allocations.
    pub(crate) fn rebind(&mut self, bound: Bound, decision: Decision, reduction: Reduction) {
        self.bound = bound;
        self.program = decision.program;
        self.channels = decision.channels;
        self.chunk_count = decision.chunk_count;
        self.grain_count = decision.grain_count;
        self.reduction = reduction;
    }

    /// Whether this is one side of a message rather than a collective.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.bound.collective, Collective::Send | Collective::Recv)
    }

    fn tag_offset(&self) -> u8 {
        if self.is_message() { MESSAGE_TAG } else { 0 }
    }

    /// Whether the send buffer must be copied aside first: an all-to-all overwrites what it has not
    /// sent yet when both buffers are one.
    pub(crate) fn stages_input(&self) -> bool {
        self.bound.in_place && matches!(self.bound.collective, Collective::AllToAll | Collective::AllToAllV)
    }

    /// Bytes of the send buffer of an all-to-all.
    pub(crate) fn input_bytes(&self, n: u32) -> usize {
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
        let mut lanes = std::mem::take(&mut self.lanes);
        let outcome = self.poll_lanes(&mut lanes, rank, n, fabric, scratch);
        self.lanes = lanes;
        outcome
    }

    /// The first lane that is not done: where it is and whom it waits for.
    pub(crate) fn position(&self) -> Position {
        let open = self.lanes.iter().find(|run| run.state != RunState::Done);
        open.map_or(Position::default(), |run| Position {
            instruction: run.cursor.instruction() as u32,
            waiting_for: run.waiting_for,
        })
    }

    /// Bytes of scratch that the operation needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let lanes = usize::from(self.channels) * self.program.lanes.len();
        lanes * usize::from(self.program.scratch_chunks) * self.chunk_bytes()
    }

    fn chunk_bytes(&self) -> usize {
        self.chunk_count * self.bound.dtype.size_bytes()
    }

    fn layout(&self, rank: Rank, n: u32) -> Layout<'_> {
        Layout {
            collective: self.bound.collective,
            n,
            rank,
            count: self.bound.count,
            tables: self.bound.collective.uneven().then(|| self.tables.borrow()),
            order: None,
            channels: self.channels,
            chunk_count: self.chunk_count,
            grain_count: self.grain_count,
        }
    }

    fn poll_lanes(
        &mut self,
        lanes: &mut [Run],
        rank: Rank,
        n: u32,
        fabric: &mut Fabric,
        scratch: &mut Scratch,
    ) -> Result<Poll, Stop> {
        let mut moved = false;
        for (index, run) in lanes.iter_mut().enumerate() {
            if run.state != RunState::Open {
                continue;
            }
            let layout = self.layout(rank, n);
            let cells = scratch.cells(index * usize::from(self.program.scratch_chunks), self.chunk_bytes());
            let mut lane = LaneStep { operation: self, run, layout, fabric: &mut *fabric, cells };
            moved |= lane.advance()?;
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
        Ok(match (self.open_lanes, moved) {
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
    run: &'a mut Run,
    layout: Layout<'a>,
    fabric: &'a mut Fabric,
    /// Start of this lane's scratch.
    cells: *mut u8,
}

impl LaneStep<'_> {
    /// Takes steps until the lane must wait or is done; whether it took any.
    fn advance(&mut self) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let program: &Checked = &self.operation.program;
            let action = match self.run.pending.take() {
                Some(action) => action,
                None => match self.run.cursor.next(program, &self.layout) {
                    Some(action) => action,
                    None => {
                        self.run.state = RunState::Done;
                        return Ok(true);
                    }
                },
            };
            let taken = match &action {
                Action::Move(step) => self.take(step)?,
                Action::Signal(site) => self.signal(*site)?,
                Action::Wait(site) => self.wait(*site)?,
                Action::Barrier => {
                    self.run.state = RunState::AtBarrier;
                    return Ok(true);
                }
            };
            if !taken {
                self.run.pending = Some(action);
                return Ok(moved);
            }
            moved = true;
        }
    }

    /// One Move, if every edge is ready.
    fn take(&mut self, step: &Step) -> Result<bool, Stop> {
        let bytes = step.count * self.operation.bound.dtype.size_bytes();
        let mut inputs = [std::ptr::null::<u8>(); 4];
        let mut outputs = [std::ptr::null_mut::<u8>(); 4];
        let mut pre = 0u8;
        for (index, site) in step.inputs().iter().enumerate() {
            let Some(address) = self.input(*site, bytes)? else { return Ok(false) };
            inputs[index] = address;
            if step.finish.pre && matches!(site, Site::Input { .. }) {
                pre |= 1 << index;
            }
        }
        for (address, site) in outputs.iter_mut().zip(step.outputs()) {
            let Some(found) = self.output(*site, bytes)? else { return Ok(false) };
            *address = found;
        }
        let inputs = &inputs[..step.inputs().len()];
        let outputs = &outputs[..step.outputs().len()];
        let finish = Finish::NONE.scaling(pre);
        let finish = if step.finish.post { finish.completing() } else { finish };
        // SAFETY: user addresses come from a request whose lengths were checked against the layout
        // that cut this step and whose borrows outlive the operation; slots hold at least `bytes`
        // (checked against the slot size at launch, and against the slot's length on receive) and
        // are ours until posted or released; scratch cells hold a chunk each. Ranges are equal or
        // disjoint because the program was checked and in-place calls were verified for it.
        unsafe {
            if inputs.len() == 1 && finish == Finish::NONE {
                reduce::copy(inputs[0], outputs, bytes);
            } else {
                self.operation.reduction.fold(inputs, outputs, step.count, finish);
            }
        }
        self.finish(step, bytes)?;
        Ok(true)
    }

    /// Posts and releases the slots of a Move that was made.
    fn finish(&mut self, step: &Step, bytes: usize) -> Result<(), Stop> {
        for site in step.outputs() {
            if let Site::Send { peer, tag } = *site {
                let edge = self.send_edge(peer, tag)?;
                self.fabric.sender(edge).post(bytes, self.operation.tag)?;
            }
        }
        for site in step.inputs() {
            if let Site::Receive { peer, tag } = *site {
                let edge = self.receive_edge(peer, tag)?;
                self.fabric.receiver(edge).release()?;
            }
        }
        Ok(())
    }

    fn signal(&mut self, site: Site) -> Result<bool, Stop> {
        let Site::Send { peer, tag } = site else {
            return Err(Error::bug("a signal without a send edge").into());
        };
        if self.output(site, 0)?.is_none() {
            return Ok(false);
        }
        let edge = self.send_edge(peer, tag)?;
        self.fabric.sender(edge).post(0, self.operation.tag)?;
        Ok(true)
    }

    fn wait(&mut self, site: Site) -> Result<bool, Stop> {
        let Site::Receive { peer, tag } = site else {
            return Err(Error::bug("a wait without a receive edge").into());
        };
        if self.input(site, 0)?.is_none() {
            return Ok(false);
        }
        let edge = self.receive_edge(peer, tag)?;
        self.fabric.receiver(edge).release()?;
        Ok(true)
    }

    /// Where to read `bytes` from, or `None` while a peer's slot is awaited.
    #[inline]
    fn input(&mut self, site: Site, bytes: usize) -> Result<Option<*const u8>, Stop> {
        let size = self.operation.bound.dtype.size_bytes();
        Ok(Some(match site {
            Site::Input { offset } => self.operation.bound.send.wrapping_add(offset * size),
            Site::Output { offset } => self.operation.bound.recv.wrapping_add(offset * size).cast_const(),
            Site::Scratch { cell } => self.cell(cell).cast_const(),
            Site::Send { .. } => return Err(Error::bug("a send edge as an input").into()),
            Site::Receive { peer, tag } => {
                let edge = self.receive_edge(peer, tag)?;
                let Some(slot) = self.fabric.receiver(edge).peek()? else {
                    self.run.waiting_for = Some(peer);
                    return Ok(None);
                };
                if slot.tag != self.operation.tag || slot.bytes != bytes {
                    return Err(mismatch(peer, self.operation.tag, bytes, &slot));
                }
                slot.data.as_ptr().cast_const()
            }
        }))
    }

    /// Where to write `bytes` to, or `None` while credit is awaited.
    #[inline]
    fn output(&mut self, site: Site, bytes: usize) -> Result<Option<*mut u8>, Stop> {
        let size = self.operation.bound.dtype.size_bytes();
        Ok(Some(match site {
            Site::Output { offset } => self.operation.bound.recv.wrapping_add(offset * size),
            Site::Scratch { cell } => self.cell(cell),
            Site::Input { .. } | Site::Receive { .. } => {
                return Err(Error::bug("an input as an output").into());
            }
            Site::Send { peer, tag } => {
                let edge = self.send_edge(peer, tag)?;
                match self.fabric.sender(edge).acquire(bytes)? {
                    Some(address) => address.as_ptr(),
                    None => {
                        self.run.waiting_for = Some(peer);
                        return Ok(None);
                    }
                }
            }
        }))
    }

    #[inline]
    fn send_edge(&mut self, peer: Rank, tag: u8) -> Result<EdgeIndex> {
        self.fabric.send_edge(peer, self.run.channel, tag + self.operation.tag_offset())
    }

    #[inline]
    fn receive_edge(&mut self, peer: Rank, tag: u8) -> Result<EdgeIndex> {
        self.fabric.receive_edge(peer, self.run.channel, tag + self.operation.tag_offset())
    }

    fn cell(&self, cell: usize) -> *mut u8 {
        self.cells.wrapping_add(cell * self.operation.chunk_bytes())
    }
}

#[cold]
fn mismatch(peer: Rank, tag: u32, bytes: usize, slot: &Slot) -> Stop {
    let detail = if slot.tag == tag {
        format!("expected {bytes} bytes from rank {peer}, found {}", slot.bytes)
    } else {
        format!("expected a message of this call from rank {peer}, found one of another call")
    };
    Stop::Mismatch { peer, detail }
}

/// Edges between two ranks within a channel: one for collectives, one for messages, so that a message
/// never waits behind a collective's slots.
pub(crate) const EDGE_TAGS: u8 = 2;
const MESSAGE_TAG: u8 = 1;
