//! Launches: what a call needs is made first, which may wait for the device; the launch itself waits for nothing, so that
//! one thread can launch the kernels of several ranks that wait for each other.

use std::sync::Arc;
use std::thread::ThreadId;

use ccl_cuda::{
    CaptureInfo, DeviceMemory, Event, EventKind, Launch, PinnedMemory, PointerFacts, PointerKind, Stream,
};
use ccl_kernels::layout::{DeviceComm, LaunchArgs, bytes_of};
use ccl_kernels::shape::{
    Protocol, SHARED_BYTES, block_threads, edges, finish_flags, grid_blocks, kernel_name, plan_image,
    scratch_bytes, shared,
};
use ccl_kernels::special::Special;
use ccl_plan::program::Checked;
use ccl_plan::{Algorithm, Channel, Collective, Dtype, Rank};

use super::captured::Used;
use super::edges::Purpose;
use super::engine::{Call, DeviceEngine, Order, Program, order};
use super::group::Grouped;
use super::kernels::Kernel;
use super::{failed, protocol, switch};
use crate::error::{Error, Result};
use crate::exec::host::{is_message, stages_input};
use crate::request::Bound;
use crate::transport::Fabric;

/// All that a call needs on the device.
pub(crate) struct Prepared {
    work: Work,
    pub(super) protocol: Protocol,
    tables: Option<PinnedMemory>,
    /// Room for the messages that this one is launched with.
    pub(super) list: Option<PinnedMemory>,
    /// Whether peers may read what is sent where it lies.
    pub(super) lends: bool,
    /// The windows that may be lent of, as [`LaunchArgs::windows`].
    pub(super) windows: u32,
    /// Where the input is copied first, and how much of it.
    aside: Option<(u64, usize)>,
    /// A kernel that goes before, and may leave nothing to do: see [`TwoShot`](super::two_shot::TwoShot).
    before: Option<Grid>,
}

impl Prepared {
    fn of(work: Work, protocol: Protocol) -> Prepared {
        let (tables, list, aside, before) = (None, None, None, None);
        Prepared { work, protocol, tables, list, lends: false, windows: 0, aside, before }
    }

    /// Where the program is that is interpreted, and on how many blocks; nothing if another kernel makes the call.
    pub(super) fn interpreted(&self) -> Option<(u64, u32)> {
        match &self.work {
            Work::Interpret(plan, grid) => Some((*plan, grid.blocks)),
            _ => None,
        }
    }

    /// Whether a kernel goes before that makes the call if its buffers lie in windows.
    pub(super) fn is_preceded(&self) -> bool {
        self.before.is_some()
    }
}

/// What is launched.
enum Work {
    /// A kernel that interprets the plan at this address.
    Interpret(u64, Grid),
    /// See [`OneShot`](super::special::OneShot).
    OneShot(Grid),
    /// The driver's copy of so many bytes: one rank alone has its own data for a result.
    Copy(usize),
}

/// A kernel, and how many blocks of it with how much shared memory.
struct Grid {
    kernel: Kernel,
    blocks: u32,
    shared_bytes: u32,
}

impl Grid {
    fn launch(&self) -> Launch<'static> {
        Launch {
            grid: [self.blocks, 1, 1],
            block: [self.kernel.threads, 1, 1],
            shared_bytes: self.shared_bytes,
            attributes: &[],
        }
    }
}

impl DeviceEngine {
    /// Makes all that a call needs. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver; blocks that do not fit the device.
    pub(super) fn prepare(&mut self, call: &Call, grouped: Grouped, fabric: &mut Fabric) -> Result<Prepared> {
        let Call { bound, decision, .. } = call;
        self.staging.keep_pinned(self.captured.take_back());
        self.windows.leases.sweep();
        let asked = (bound.collective, bound.dtype, bound.count);
        if let Some(bytes) = copied_alone(bound, self.n) {
            return Ok(Prepared::of(Work::Copy(bytes), Protocol::Simple));
        }
        if let Some(one_shot) = self.one_shot.as_ref().filter(|own| own.serves(asked, decision.algorithm)) {
            let (blocks, threads) = (one_shot.blocks, one_shot.threads);
            let name = Special::OneShot.kernel_name(bound.dtype, bound.reduce.op());
            return self.prepare_special(name, blocks, threads);
        }
        let purpose = if is_message(bound) { Purpose::Messages } else { Purpose::Collectives };
        let plan = self.upload(&decision.program, decision.channels, (purpose, bound.root), fabric)?;
        let protocol = self.protocol(bound.collective, bound.dtype, bound.count);
        let threads = block_threads(self.opened.worker_threads);
        let name = kernel_name(bound.collective, bound.dtype, bound.reduce.op(), protocol);
        let kernel = self.kernels.of(&self.opened, name, (threads, SHARED_BYTES))?;
        let blocks = grid_blocks(&decision.program, decision.channels);
        kernel.admit(blocks, self.peers.sharing, &self.opened)?;
        let list = match grouped {
            Grouped::Alone => None,
            _ => self.prepare_grouped(order(bound), blocks)?,
        };
        let element_bytes = bound.dtype.size_bytes();
        self.reserve(scratch_bytes(
            &decision.program,
            decision.channels,
            decision.chunk_count,
            element_bytes,
        ))?;
        let aside = match stages_input(bound) {
            true => Some(self.aside(call.tables.input_bytes(bound, self.n))?),
            false => None,
        };
        let tables = self.staging.tables(call, self.n, &self.opened)?;
        let before = self.before(asked, decision.algorithm, bound)?;
        let work = Work::Interpret(plan, Grid { kernel, blocks, shared_bytes: SHARED_BYTES });
        Ok(Prepared { tables, list, aside, before, ..Prepared::of(work, protocol) })
    }

    /// What a call needs whose kernel interprets nothing.
    fn prepare_special(&mut self, name: String, blocks: u32, threads: u32) -> Result<Prepared> {
        let shared_bytes = Special::OneShot.shared_bytes() as u32;
        let kernel = self.kernels.of(&self.opened, name, (threads, shared_bytes))?;
        kernel.admit(blocks, self.peers.sharing, &self.opened)?;
        Ok(Prepared::of(Work::OneShot(Grid { kernel, blocks, shared_bytes }), Protocol::Ll))
    }

    /// The kernel that goes before a call's interpreter, if one does.
    fn before(
        &mut self,
        asked: (Collective, Dtype, usize),
        algorithm: Algorithm,
        bound: &Bound,
    ) -> Result<Option<Grid>> {
        let own = self.two_shot.as_ref().filter(|own| own.precedes(asked, algorithm, &self.windows));
        let Some(own) = own else { return Ok(None) };
        let (_, dtype, count) = asked;
        let (blocks, threads) = (own.blocks(count.saturating_mul(dtype.size_bytes())), own.threads);
        let name = Special::TwoShot.kernel_name(dtype, bound.reduce.op());
        let shared_bytes = Special::TwoShot.shared_bytes() as u32;
        let kernel = self.kernels.of(&self.opened, name, (threads, shared_bytes))?;
        kernel.admit(blocks, self.peers.sharing, &self.opened)?;
        Ok(Some(Grid { kernel, blocks, shared_bytes }))
    }

    /// Launches a call's kernel; what is recorded behind it, unless it is captured. What it uses is kept for
    /// the caller, also after an error: freeing them would wait for kernels that may wait for this rank.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn launch(
        &mut self,
        call: &Call,
        mut prepared: Prepared,
        used: &mut Used,
        (stream, capture): (&Stream, Option<&CaptureInfo>),
        fabric: &mut Fabric,
    ) -> Result<Option<Arc<Event>>> {
        (used.tables, used.list) = (prepared.tables.take(), prepared.list.take());
        let (bound, order, is_captured) = (&call.bound, order(&call.bound), capture.is_some());
        match capture {
            Some(info) => self.captured.follow(info, order, stream)?,
            None => self.follow_last(order, stream)?,
        }
        let send = bound.send.addr() as u64;
        if let Some((aside, bytes)) = prepared.aside {
            // SAFETY: the input has so many bytes by the call's contract; the copy belongs to calls that run one after
            // the other, of which this is the last.
            unsafe { ccl_cuda::copy(stream, aside, send, bytes) }.map_err(failed)?;
        }
        if let (Some(before), Some(two_shot)) = (&prepared.before, &self.two_shot) {
            let args = two_shot.args(call, &used.places, &self.signals);
            // SAFETY: the kernel takes one `SpecialArgs`. What it points to lives as long as this engine; other ranks'
            // windows are mapped until the call is over, which `used` sees to.
            let run = || unsafe { before.launch().run(&before.kernel.function, stream, &args) };
            self.launched(run, is_captured, fabric)?;
        }
        let launched = match (&prepared.work, &self.one_shot) {
            (Work::Interpret(plan, grid), _) => {
                let args = self.args(call, *plan, &prepared, used.tables.as_ref());
                // SAFETY: the interpreter takes one `LaunchArgs`. What it points to lives as long as this engine, which
                // ends all kernels before it frees anything; user memory is valid until the call is complete by its
                // contract.
                let run = || unsafe { grid.launch().run(&grid.kernel.function, stream, &args) };
                self.launched(run, is_captured, fabric)
            }
            (Work::OneShot(grid), Some(one_shot)) => {
                let args = one_shot.args(call, &self.signals, self.peers.view.inbox_bytes);
                // SAFETY: the kernel takes one `SpecialArgs`; as above.
                let run = || unsafe { grid.launch().run(&grid.kernel.function, stream, &args) };
                self.launched(run, is_captured, fabric)
            }
            (Work::Copy(bytes), _) if *bytes == 0 || bound.recv.addr() as u64 == send => Ok(()),
            (Work::Copy(bytes), _) => {
                // SAFETY: both buffers have so many bytes by the call's contract, and stay until it is complete.
                unsafe { ccl_cuda::copy(stream, bound.recv.addr() as u64, send, *bytes) }.map_err(failed)
            }
            (Work::OneShot(_), None) => {
                return Err(Error::bug("a launch of a kernel that was not made ready"));
            }
        };
        if launched.is_err() && prepared.is_preceded() && capture.is_none() {
            // The kernel before it uses the caller's buffers, and nothing is recorded behind it to wait for.
            self.signals.abort();
            stream.synchronize().map_err(failed)?;
        }
        launched?;
        if let Some(info) = capture {
            self.captured.passed(info, order, stream, &self.opened)?;
            self.captured.keep(info, std::mem::take(used))?;
            return Ok(None);
        }
        let event = self.event()?;
        event.record(stream).map_err(failed)?;
        self.last.insert(order, (place(stream), Arc::clone(&event)));
        Ok(Some(event))
    }

    pub(super) fn args(
        &self,
        call: &Call,
        plan: u64,
        prepared: &Prepared,
        tables: Option<&PinnedMemory>,
    ) -> LaunchArgs {
        let Call { bound, decision, .. } = call;
        let purpose = if is_message(bound) { Purpose::Messages } else { Purpose::Collectives };
        LaunchArgs {
            comm: self.comms[purpose as usize].address()
                + (prepared.protocol as usize * size_of::<DeviceComm>()) as u64,
            plan,
            input: prepared.aside.map_or(bound.send.addr() as u64, |(aside, _)| aside),
            output: bound.recv.addr() as u64,
            count: bound.count as u64,
            chunk_count: decision.chunk_count as u64,
            grain_count: decision.grain_count as u64,
            scalar_bits: bound.reduce.scalar().to_bits(),
            tables: tables.map_or(0, PinnedMemory::device_address),
            root: bound.root.0,
            tag: call.tag,
            channels: u32::from(decision.channels),
            element_bytes: bound.dtype.size_bytes() as u32,
            flags: finish_flags(bound.reduce.op())
                | if prepared.lends { LaunchArgs::LENDS } else { 0 }
                | if prepared.is_preceded() { LaunchArgs::YIELDS } else { 0 },
            windows: prepared.windows,
        }
    }

    /// Memory for the input of a call that would overwrite what it has not sent yet.
    fn aside(&mut self, bytes: usize) -> Result<(u64, usize)> {
        if self.aside.last().is_none_or(|memory| memory.bytes() < bytes) {
            self.aside.push(self.opened.memory(bytes.next_power_of_two())?);
        }
        Ok((self.aside.last().map_or(0, DeviceMemory::address), bytes))
    }

    /// Lets the call wait for the one before it of its order, if that is on another stream.
    pub(super) fn follow_last(&self, order: Order, stream: &Stream) -> Result<()> {
        match self.last.get(&order) {
            Some((last, event)) if *last != place(stream) => stream.wait(event).map_err(failed),
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
        let device = (&*self.opened, &*self.copy_stream);
        for of in edges(program, self.n, self.me, root, None) {
            for channel in (0..channels).map(Channel) {
                self.edges.ensure((purpose, of, channel), &self.peers, device, fabric)?;
            }
        }
        if let Some(known) = self.programs.get_mut(&key) {
            known.channels = channels;
            return Ok(known.memory.address());
        }
        let shared = match (&self.switch, purpose) {
            (Some(_), Purpose::Collectives) => shared(program, self.n, self.me, root, None),
            _ => 0,
        };
        let memory = self.opened.memory(plan_image(program, None, shared, 0).len())?;
        let address = memory.address();
        let image = plan_image(program, None, shared, address);
        // Kept also if it cannot be written: freeing it would wait for kernels that may wait for this rank.
        let kept =
            self.programs.entry(key).or_insert(Program { _checked: Arc::clone(program), memory, channels });
        kept.memory.write(0, &image, &self.copy_stream).map_err(failed)?;
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
    pub(super) fn write_comms(&mut self) -> Result<()> {
        let switch = self.switch.as_ref();
        for purpose in [Purpose::Collectives, Purpose::Messages] {
            let comms = Protocol::ALL.map(|protocol| DeviceComm {
                rank: self.me.0,
                n: self.n,
                edges: self.edges.table_address(protocol),
                edge_index: self.edges.index_address(purpose),
                channels: u32::from(self.edges.view.channels),
                tags: u32::from(purpose.tags()),
                abort: self.signals.abort_address(),
                error: self.signals.error_address(),
                barriers: self.barriers.address(),
                scratch: self.scratch.last().map_or(0, DeviceMemory::address),
                scratch_bytes: self.scratch.last().map_or(0, DeviceMemory::bytes) as u64,
                served: self.two_shot.as_ref().map_or(0, |two_shot| two_shot.served_address()),
                window: switch.map_or(0, |switch| switch.window()),
                sharing: switch.map_or(0, |switch| switch.sharing().address()),
                shared_slots: switch.map_or(0, |switch| switch.slots().each_channel as u32),
                shared_stride_bytes: switch.map_or(0, |switch| switch.slots().stride_bytes as u32),
                windows: self.edges.windows.address(),
                ..DeviceComm::default()
            });
            let bytes: Vec<u8> = comms.iter().flat_map(bytes_of).copied().collect();
            self.comms[purpose as usize].write(0, &bytes, &self.copy_stream).map_err(failed)?;
        }
        Ok(())
    }

    /// How a call of an algorithm gets from device to device: the protocol that its edges follow, `switch` if what all are
    /// sent goes through multicast memory, or `special` if a kernel of its own does without edges.
    pub(crate) fn way(&self, asked: (Collective, Dtype, usize), algorithm: Algorithm) -> &'static str {
        let (collective, dtype, count) = asked;
        match self.one_shot.as_ref().is_some_and(|own| own.serves(asked, algorithm)) {
            true => "special",
            false => match self.protocol(collective, dtype, count) {
                Protocol::Simple
                    if self.switch.is_some() && switch::serves(collective, algorithm, self.n) =>
                {
                    "switch"
                }
                protocol => protocol.name(),
            },
        }
    }

    /// Payloads that this rank has stored once for all others. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(crate) fn multicast_payloads(&self) -> Result<u64> {
        self.switch.as_ref().map_or(Ok(0), |switch| switch.sent(&self.copy_stream))
    }

    /// The protocol that a call's edges follow.
    fn protocol(&self, collective: Collective, dtype: Dtype, count: usize) -> Protocol {
        protocol::of((collective, dtype, count), self.n, self.opened.protocols.as_ref(), self.peers.ways)
    }

    /// The stream of calls on host memory.
    pub(super) fn stream_of(&mut self, bound: &Bound) -> Result<Arc<Stream>> {
        let order = order(bound);
        if order == Order::Collectives {
            // They run one after the other with those that wait.
            return Ok(Arc::clone(&self.own_stream));
        }
        if let Some(stream) = self.streams.get(&order) {
            return Ok(Arc::clone(stream));
        }
        let stream = Arc::new(Stream::new(&self.opened.context, 0).map_err(failed)?);
        self.peers.share.add_stream();
        self.streams.insert(order, Arc::clone(&stream));
        Ok(stream)
    }

    /// An event that nobody uses.
    pub(super) fn event(&mut self) -> Result<Arc<Event>> {
        let free = self.spare_events.iter().position(|event| Arc::strong_count(event) == 1);
        match free {
            Some(index) => Ok(self.spare_events.swap_remove(index)),
            None => Event::new(&self.opened.context, EventKind::Order).map(Arc::new).map_err(failed),
        }
    }

    /// Refuses memory that the device cannot reach.
    pub(super) fn check_address(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let facts = PointerFacts::of(&self.opened.context, address).map_err(failed)?;
        if facts.device_address == address {
            return Ok(());
        }
        let found = match (facts.kind, facts.device_address) {
            (PointerKind::Device, 0) => {
                format!("of device {}, which this one does not reach", facts.device.unwrap_or(-1))
            }
            (_, 0) => "which the driver does not know".to_owned(),
            (_, other) => format!("which the device finds at {other:#x}"),
        };
        Err(Error::usage(
            format!(
                "expected memory of device {} or pinned host memory, found {address:#x}, {found}",
                self.ordinal()
            ),
            "give the rank's own device memory, pin host memory, or make the call with host slices, which are copied",
        ))
    }
}

/// Tells streams apart. The per-thread default stream is another one on every thread, by the same handle.
pub(super) type StreamPlace = (usize, Option<ThreadId>);

pub(super) fn place(stream: &Stream) -> StreamPlace {
    let handle = stream.raw().addr();
    (handle, (handle == PER_THREAD).then(|| std::thread::current().id()))
}

/// The driver's handle of the per-thread default stream.
const PER_THREAD: usize = 2;

/// The bytes that a call of one rank alone copies from its input to its output, if that is all it does.
fn copied_alone(bound: &Bound, n: u32) -> Option<usize> {
    let is_plain = n == 1 && !is_message(bound) && !bound.collective.uneven();
    // Also an average of one is worked out: it makes all NaNs the same.
    let is_finished = bound.collective.reduces() && finish_flags(bound.reduce.op()) != 0;
    let is_copy = is_plain && !is_finished && bound.collective != Collective::Barrier;
    is_copy.then(|| bound.count * bound.dtype.size_bytes())
}
