//! The device executor: uploads programs, launches kernels on streams, and watches them end.
//!
//! Calls of a communicator that use the same edges run one after the other, whatever streams they are on; messages use
//! others than collectives, and each pair and direction its own.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ccl_cuda::{DeviceMemory, Event, EventKind, Launch, PinnedMemory, Progress, RelaxedCapture, Stream};
use ccl_kernels::layout::{DeviceComm, DeviceError, DeviceFault, LaneBarrier, LaunchArgs, bytes_of};
use ccl_kernels::shape::{
    SHARED_BYTES, block_threads, edges, finish_flags, grid_blocks, plan_image, scratch_bytes,
};
use ccl_plan::program::Checked;
use ccl_plan::{Channel, Collective, Rank};

use super::edges::{Edges, Purpose};
use super::kernels::Kernels;
use super::peers::{self, Gather, Link, Peers};
use super::region::{BlockShape, RegionView};
use super::signals::Signals;
use super::staging::Staging;
use super::{Opened, failed};
use crate::error::{Error, Fault, Result};
use crate::exec::host::{EDGE_TAGS, OwnedTables, Poll, Reason, Stop, is_message, stages_input};
use crate::exec::plans::Decision;
use crate::observe::board::Board;
use crate::request::Bound;
use crate::stream::Gate;
use crate::transport::{Fabric, TransportInfo};

/// One rank's kernels and all that they use.
pub(crate) struct DeviceEngine {
    me: Rank,
    n: u32,
    // Kernels are ended before the memory below goes: see `Drop`.
    queue: VecDeque<Queued>,
    signals: Arc<Signals>,
    own_stream: Arc<Stream>,
    streams: HashMap<Order, Arc<Stream>>,
    last: HashMap<Order, (usize, Arc<Event>)>,
    spare_events: Vec<Arc<Event>>,
    edges: Edges,
    comms: [DeviceMemory; 2],
    barriers: DeviceMemory,
    programs: HashMap<usize, Program>,
    scratch: Vec<DeviceMemory>,
    /// Copies of inputs that a call overwrites.
    aside: Vec<DeviceMemory>,
    /// Tables of captured calls, which graphs may use as long as the communicator is there.
    captured: Vec<PinnedMemory>,
    /// A graph may move messages through the host at any time.
    is_replayed: bool,
    staging: Staging,
    kernels: Kernels,
    peers: Peers,
    board: Arc<Board>,
    opened: Opened,
}

/// One call, numbered, with what was decided of it. The addresses in `bound` are the device's.
pub(crate) struct Call {
    pub(crate) bound: Bound,
    pub(crate) tables: OwnedTables,
    pub(crate) decision: Arc<Decision>,
    pub(crate) sequence: u64,
    pub(crate) tag: u32,
}

/// Host memory of a call, which is copied to the device and back.
pub(crate) struct Staged {
    pub(crate) send: (*const u8, usize),
    pub(crate) recv: (*mut u8, usize),
    /// Both are one buffer, in which the call's addresses lie so far from its start.
    pub(crate) in_place: Option<(usize, usize)>,
}

// SAFETY: the addresses belong to a request whose borrows outlive the operation; one thread at a time uses them.
unsafe impl Send for Staged {}
// SAFETY: as above; addresses of device memory mean nothing to threads.
unsafe impl Send for Call {}

struct Queued {
    call: Call,
    gate: Option<Gate>,
    staged: Option<(Staged, super::staging::Copies)>,
    tables: Option<PinnedMemory>,
    /// Recorded behind the kernel; `None` before the launch.
    event: Option<Arc<Event>>,
}

/// Calls of one order run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Order {
    Collectives,
    Message(Rank, bool),
}

/// A program on the device.
struct Program {
    /// Keeps the key, which is its address, from becoming another's.
    _checked: Arc<Checked>,
    memory: DeviceMemory,
    channels: u16,
}

impl DeviceEngine {
    /// Agrees with all other ranks on who reaches whom. Ranks without a device (`opened` is `None`) take part and get
    /// nothing. Blocks until all ranks have come.
    ///
    /// # Errors
    ///
    /// Of the driver; the ranks that do not come.
    pub(crate) fn join(
        opened: Option<Opened>,
        (me, n): (Rank, u32),
        infos: &[TransportInfo],
        (slots, slot_bytes, channels): (usize, usize, u16),
        (board, gather): (&Arc<Board>, Gather<'_>),
    ) -> Result<Option<Box<DeviceEngine>>> {
        let shape = BlockShape { slots, slot_bytes };
        let view = |address| RegionView { address, shape, channels, tags: EDGE_TAGS };
        let peers = peers::agree(opened.as_ref(), me, infos, view, gather)?;
        let (Some(opened), Some(peers)) = (opened, peers) else { return Ok(None) };
        DeviceEngine::new(opened, peers, (me, n), view(0), board).map(|engine| Some(Box::new(engine)))
    }

    fn new(
        opened: Opened,
        peers: Peers,
        (me, n): (Rank, u32),
        view: RegionView,
        board: &Arc<Board>,
    ) -> Result<DeviceEngine> {
        let own_stream = Arc::new(Stream::new(&opened.context, 0).map_err(failed)?);
        let pinned = PinnedMemory::new(&opened.context, Signals::BYTES, ccl_cuda::HostCaching::Cached)
            .map_err(failed)?;
        let signals = Arc::new(Signals::new(pinned));
        let edges = Edges::new((me, n), view, &opened, &own_stream)?;
        let barriers = opened.memory(usize::from(view.channels) * 2 * size_of::<LaneBarrier>())?;
        barriers.fill(0, &own_stream).map_err(failed)?;
        let comms = [opened.memory(size_of::<DeviceComm>())?, opened.memory(size_of::<DeviceComm>())?];
        let mut engine = DeviceEngine {
            me,
            n,
            queue: VecDeque::new(),
            signals,
            own_stream,
            streams: HashMap::new(),
            last: HashMap::new(),
            spare_events: Vec::new(),
            edges,
            comms,
            barriers,
            programs: HashMap::new(),
            scratch: Vec::new(),
            aside: Vec::new(),
            captured: Vec::new(),
            is_replayed: false,
            staging: Staging::default(),
            kernels: Kernels::new(),
            peers,
            board: Arc::clone(board),
            opened,
        };
        engine.write_comms()?;
        Ok(engine)
    }

    /// Ends all kernels when called, from any thread.
    pub(crate) fn aborter(&self) -> Box<dyn Fn() + Send + Sync> {
        let signals = Arc::downgrade(&self.signals);
        Box::new(move || {
            if let Some(signals) = signals.upgrade() {
                signals.abort();
            }
        })
    }

    /// Why messages to a rank go through the host; `None` if they do not.
    pub(crate) fn why_proxied(&self, peer: Rank) -> Option<&str> {
        match self.peers.links.get(peer.index())? {
            Link::Direct { .. } => None,
            Link::Proxied(reason) => Some(reason),
        }
    }

    /// This rank's device.
    pub(crate) fn ordinal(&self) -> u32 {
        self.opened.context.device().ordinal() as u32
    }

    /// The stream of calls that wait.
    pub(crate) fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.own_stream)
    }

    /// Whether some edge goes through the host, so that somebody must drive the engine while kernels run.
    pub(crate) fn is_pumped(&self) -> bool {
        self.peers.links.iter().any(|link| matches!(link, Link::Proxied(_)))
    }

    /// Queues a call on host memory, for when its gate opens. The memory stays valid until the call is complete or
    /// [`DeviceEngine::abort`] has returned.
    pub(crate) fn stage(&mut self, call: Call, staged: Staged, gate: Option<Gate>) {
        let copies = super::staging::Copies::default();
        self.queue.push_back(Queued {
            call,
            gate,
            staged: Some((staged, copies)),
            tables: None,
            event: None,
        });
    }

    /// Puts a call on device memory on the caller's stream.
    ///
    /// # Errors
    ///
    /// Of the driver; addresses that the device cannot use.
    pub(crate) fn enqueue(
        &mut self,
        call: Call,
        stream: &Stream,
        is_grouped: bool,
        fabric: &mut Fabric,
    ) -> Result<()> {
        let is_captured = stream.capture_status().map_err(failed)?.is_capturing();
        let _relaxed = match is_captured {
            true => Some(RelaxedCapture::enter(self.opened.context.driver()).map_err(failed)?),
            false => None,
        };
        self.check_address(call.bound.send.addr() as u64)?;
        self.check_address(call.bound.recv.addr() as u64)?;
        if is_grouped && is_message(&call.bound) {
            return self.enqueue_beside(call, stream, is_captured, fabric);
        }
        let (event, tables) = self.launch(&call, stream, is_captured, fabric)?;
        self.watch(call, event, tables, is_captured);
        Ok(())
    }

    /// As [`DeviceEngine::enqueue`], beside other messages of its group: on a stream of its own, between two places of
    /// the caller's.
    fn enqueue_beside(
        &mut self,
        call: Call,
        stream: &Stream,
        is_captured: bool,
        fabric: &mut Fabric,
    ) -> Result<()> {
        let before = self.event()?;
        let beside = self.stream_of(&call.bound)?;
        before.record(stream).and_then(|()| beside.wait(&before)).map_err(failed)?;
        let (event, tables) = self.launch(&call, &beside, is_captured, fabric)?;
        let after = self.event()?;
        after.record(&beside).and_then(|()| stream.wait(&after)).map_err(failed)?;
        self.spare_events.extend([before, after]);
        self.watch(call, event, tables, is_captured);
        Ok(())
    }

    /// A captured call is complete as far as this process can tell: it runs when its graph does.
    fn watch(
        &mut self,
        call: Call,
        event: Option<Arc<Event>>,
        tables: Option<PinnedMemory>,
        is_captured: bool,
    ) {
        if is_captured {
            self.is_replayed |= self.is_pumped();
            self.captured.extend(tables);
            if !is_message(&call.bound) {
                self.board.complete(call.sequence);
            }
            return;
        }
        self.queue.push_back(Queued { call, gate: None, staged: None, tables, event });
    }

    /// Moves everything along that can be moved. Never blocks, but for the device where it must be given something.
    pub(crate) fn poll(&mut self, fabric: &mut Fabric) -> Result<Poll, Stop> {
        let mut moved = false;
        for pump in &mut self.edges.pumps {
            moved |= pump.turn(fabric)?;
        }
        if let Some((fault, error)) = self.signals.error() {
            return Err(self.told(fault, &error));
        }
        moved |= self.launch_waiting(fabric)?;
        moved |= self.finish_done()?;
        let is_idle = self.queue.is_empty() && self.edges.pumps.iter().all(|pump| pump.is_idle());
        Ok(match (is_idle && !self.is_replayed, moved) {
            (true, _) => Poll::Done,
            (_, true) => Poll::Progress,
            (_, false) => Poll::Stalled,
        })
    }

    /// Whether nothing is outstanding.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && !self.is_replayed && self.edges.pumps.iter().all(|pump| pump.is_idle())
    }

    /// How many calls are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// The oldest call that is not complete.
    pub(crate) fn oldest(&self) -> Option<&Call> {
        self.queue.front().map(|queued| &queued.call)
    }

    /// Ends all kernels and waits until none runs: no buffer is used once this returns. Every gate fails.
    pub(crate) fn abort(&mut self, error: &Error) {
        self.stop();
        for queued in self.queue.drain(..) {
            if let Some(gate) = queued.gate {
                gate.fail(error.clone());
            }
        }
    }

    /// What a kernel said, for people.
    fn told(&self, fault: DeviceFault, error: &DeviceError) -> Stop {
        let peer = Rank(error.peer);
        let place = format!("instruction {}, channel {}", error.instruction, error.channel);
        let DeviceError { expected, found, .. } = error;
        match fault {
            DeviceFault::OtherMessage => {
                let (bytes, tag) = (|size: &u64| *size as u32, |size: &u64| *size >> 32);
                let detail = match tag(expected) == tag(found) {
                    true => {
                        format!("expected {} bytes from rank {peer}, found {}", bytes(expected), bytes(found))
                    }
                    false => {
                        format!("expected a message of this call from rank {peer}, found one of another call")
                    }
                };
                Reason::Mismatch { peer, detail }.into()
            }
            DeviceFault::Aborted => {
                Error::new(Fault::Aborted, format!("a kernel was ended at {place}"), "see the first error")
                    .into()
            }
            other => Error::bug(format!(
                "a kernel gave up: {other:?} at {place}, expected {expected}, found {found}"
            ))
            .into(),
        }
    }

    /// Launches queued calls whose turn has come.
    fn launch_waiting(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.queue.len() {
            if self.queue[index].event.is_some() {
                continue;
            }
            if self.queue[index].gate.as_ref().is_some_and(|gate| !gate.is_open()) {
                return Ok(moved);
            }
            let Some(mut queued) = self.queue.remove(index) else { return Ok(moved) };
            let launched = self.launch_staged(&mut queued, fabric);
            self.queue.insert(index, queued);
            launched?;
            moved = true;
        }
        Ok(moved)
    }

    fn launch_staged(&mut self, queued: &mut Queued, fabric: &mut Fabric) -> Result<()> {
        let stream = self.stream_of(&queued.call.bound)?;
        if let Some((staged, copies)) = &mut queued.staged {
            let (send, recv) = self.staging.bring(staged, copies, &self.opened, &stream)?;
            (queued.call.bound.send, queued.call.bound.recv) = (send as *const u8, recv as *mut u8);
        }
        (queued.event, queued.tables) = self.launch(&queued.call, &stream, false, fabric)?;
        Ok(())
    }

    /// Takes calls out whose kernels have ended.
    fn finish_done(&mut self) -> Result<bool, Stop> {
        let mut moved = false;
        let mut index = 0;
        while index < self.queue.len() {
            let Some(event) = &self.queue[index].event else { return Ok(moved) };
            if event.query().map_err(failed)? == Progress::NotReady {
                index += 1;
                continue;
            }
            if let Some((fault, error)) = self.signals.error() {
                // It ended because it gave up.
                return Err(self.told(fault, &error));
            }
            let Some(mut queued) = self.queue.remove(index) else { return Ok(moved) };
            if let Some((staged, copies)) = &mut queued.staged {
                self.staging.take_back(staged, copies, &self.own_stream)?;
            }
            self.complete(queued);
            moved = true;
        }
        Ok(moved)
    }

    fn complete(&mut self, queued: Queued) {
        if !is_message(&queued.call.bound) {
            self.board.complete(queued.call.sequence);
        }
        self.spare_events.extend(queued.event);
        self.staging.keep_tables(queued.tables);
        if let Some(gate) = queued.gate {
            gate.pass();
        }
    }

    /// Launches a call's kernel; what is recorded behind it, unless it is captured, and the tables that it reads.
    fn launch(
        &mut self,
        call: &Call,
        stream: &Stream,
        is_captured: bool,
        fabric: &mut Fabric,
    ) -> Result<(Option<Arc<Event>>, Option<PinnedMemory>)> {
        let decision = &call.decision;
        let purpose = if is_message(&call.bound) { Purpose::Messages } else { Purpose::Collectives };
        let plan = self.upload(&decision.program, decision.channels, (purpose, call.bound.root), fabric)?;
        let of = (call.bound.collective, call.bound.dtype, call.bound.reduce.op());
        let kernel = self.kernels.of(&self.opened, of)?;
        let blocks = grid_blocks(&decision.program, decision.channels);
        kernel.admit(blocks, self.peers.sharing, &self.opened)?;
        let element_bytes = call.bound.dtype.size_bytes();
        self.reserve(scratch_bytes(
            &decision.program,
            decision.channels,
            decision.chunk_count,
            element_bytes,
        ))?;
        self.follow_last(&call.bound, stream, is_captured)?;
        let input = self.input(call, stream)?;
        let tables = self.staging.tables(call, self.n, &self.opened)?;
        let args = LaunchArgs {
            comm: self.comms[purpose as usize].address(),
            plan,
            input,
            output: call.bound.recv.addr() as u64,
            count: call.bound.count as u64,
            chunk_count: decision.chunk_count as u64,
            grain_count: decision.grain_count as u64,
            scalar_bits: call.bound.reduce.scalar().to_bits(),
            tables: tables.as_ref().map_or(0, PinnedMemory::device_address),
            root: call.bound.root.0,
            tag: call.tag,
            channels: u32::from(decision.channels),
            element_bytes: element_bytes as u32,
            flags: finish_flags(call.bound.reduce.op()),
            reserved: 0,
        };
        let launch = Launch {
            grid: [blocks, 1, 1],
            block: [block_threads(self.opened.worker_threads), 1, 1],
            shared_bytes: SHARED_BYTES,
            attributes: &[],
        };
        // SAFETY: the interpreter takes one `LaunchArgs`. What it points to lives as long as this engine, which ends
        // all kernels before it frees anything; user memory is valid until the call is complete by its contract.
        unsafe { launch.run(&kernel.function, stream, &args) }.map_err(failed)?;
        if is_captured {
            return Ok((None, tables));
        }
        let event = self.event()?;
        event.record(stream).map_err(failed)?;
        self.last.insert(order(&call.bound), (stream.raw().addr(), Arc::clone(&event)));
        Ok((Some(event), tables))
    }

    /// Where the kernel reads its input: aside, if it would overwrite what it has not sent yet.
    fn input(&mut self, call: &Call, stream: &Stream) -> Result<u64> {
        let send = call.bound.send.addr() as u64;
        if !stages_input(&call.bound) {
            return Ok(send);
        }
        let bytes = call.tables.input_bytes(&call.bound, self.n);
        if self.aside.last().is_none_or(|memory| memory.bytes() < bytes) {
            self.aside.push(self.opened.memory(bytes.next_power_of_two())?);
        }
        let aside = self.aside.last().map_or(0, DeviceMemory::address);
        // SAFETY: the input has so many bytes by the call's contract; the copy belongs to calls that run one after the
        // other, of which this is the last.
        unsafe { ccl_cuda::copy(stream, aside, send, bytes) }.map_err(failed)?;
        Ok(aside)
    }

    /// Lets the call wait for the one before it of its order, if that is on another stream.
    fn follow_last(&self, bound: &Bound, stream: &Stream, is_captured: bool) -> Result<()> {
        match self.last.get(&order(bound)) {
            // A capture cannot wait for what is outside of it.
            Some((last, event)) if *last != stream.raw().addr() && !is_captured => {
                stream.wait(event).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// Where the program is on the device. Makes its edges when it is first seen.
    fn upload(
        &mut self,
        program: &Arc<Checked>,
        channels: u16,
        (purpose, root): (Purpose, Rank),
        fabric: &mut Fabric,
    ) -> Result<u64> {
        let key = Arc::as_ptr(program).addr();
        if let Some(known) = self.programs.get(&key).filter(|known| known.channels >= channels) {
            return Ok(known.memory.address());
        }
        let device = (&self.opened, &*self.own_stream);
        for of in edges(program, self.n, self.me, root, None) {
            for channel in (0..channels).map(Channel) {
                self.edges.ensure((purpose, of, channel), &self.peers, device, fabric)?;
            }
        }
        if let Some(known) = self.programs.get_mut(&key) {
            known.channels = channels;
            return Ok(known.memory.address());
        }
        let memory = self.opened.memory(plan_image(program, None, 0).len())?;
        let image = plan_image(program, None, memory.address());
        memory.write(0, &image, &self.own_stream).map_err(failed)?;
        let address = memory.address();
        self.programs.insert(key, Program { _checked: Arc::clone(program), memory, channels });
        Ok(address)
    }

    /// Makes room for scratch. Kernels under way keep what they have.
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.scratch.last().map_or(0, DeviceMemory::bytes) >= bytes {
            return Ok(());
        }
        self.scratch.push(self.opened.memory(bytes.next_power_of_two())?);
        self.write_comms()
    }

    /// Tells kernels where things are.
    fn write_comms(&mut self) -> Result<()> {
        for purpose in [Purpose::Collectives, Purpose::Messages] {
            let comm = DeviceComm {
                rank: self.me.0,
                n: self.n,
                edges: self.edges.table_address(),
                edge_index: self.edges.index_address(purpose),
                channels: u32::from(self.edges.view.channels),
                tags: u32::from(purpose.tags()),
                abort: self.signals.abort_address(),
                error: self.signals.error_address(),
                barriers: self.barriers.address(),
                scratch: self.scratch.last().map_or(0, DeviceMemory::address),
                scratch_bytes: self.scratch.last().map_or(0, DeviceMemory::bytes) as u64,
                ..DeviceComm::default()
            };
            self.comms[purpose as usize].write(0, bytes_of(&comm), &self.own_stream).map_err(failed)?;
        }
        Ok(())
    }

    /// The stream of calls on host memory, and of messages beside others.
    fn stream_of(&mut self, bound: &Bound) -> Result<Arc<Stream>> {
        let order = order(bound);
        if let Some(stream) = self.streams.get(&order) {
            return Ok(Arc::clone(stream));
        }
        let stream = Arc::new(Stream::new(&self.opened.context, 0).map_err(failed)?);
        self.streams.insert(order, Arc::clone(&stream));
        Ok(stream)
    }

    /// An event that nobody uses.
    fn event(&mut self) -> Result<Arc<Event>> {
        let free = self.spare_events.iter().position(|event| Arc::strong_count(event) == 1);
        match free {
            Some(index) => Ok(self.spare_events.swap_remove(index)),
            None => Event::new(&self.opened.context, EventKind::Order).map(Arc::new).map_err(failed),
        }
    }

    /// Refuses memory that the device cannot reach.
    fn check_address(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let facts = ccl_cuda::PointerFacts::of(self.opened.context.driver(), address).map_err(failed)?;
        if facts.device_address != 0 {
            return Ok(());
        }
        Err(Error::usage(
            format!(
                "expected memory of device {} or pinned host memory, found {address:#x}, which the driver does not know",
                self.ordinal()
            ),
            "give device memory, pin host memory, or make the call with host slices, which are copied",
        ))
    }

    /// Sets the abort flag and waits for kernels that run.
    fn stop(&self) {
        self.signals.abort();
        for event in self.queue.iter().filter_map(|queued| queued.event.as_ref()) {
            if let Err(error) = event.synchronize() {
                tracing::debug!(%error, "a kernel ended badly");
            }
        }
    }
}

impl Drop for DeviceEngine {
    fn drop(&mut self) {
        self.stop();
        for stream in self.streams.values().chain([&self.own_stream]) {
            if let Err(error) = stream.synchronize() {
                tracing::debug!(%error, "a stream ended badly");
            }
        }
    }
}

fn order(bound: &Bound) -> Order {
    match bound.collective {
        Collective::Send => Order::Message(bound.root, true),
        Collective::Recv => Order::Message(bound.root, false),
        _ => Order::Collectives,
    }
}
