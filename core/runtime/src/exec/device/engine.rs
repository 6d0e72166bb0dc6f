//! The device executor: uploads programs, launches kernels on streams, and watches them end.
//!
//! Calls of a communicator that use the same edges run one after the other, whatever streams they are on; messages use
//! others than collectives, and each pair and direction its own.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ccl_cuda::{CaptureInfo, Current, DeviceMemory, Event, PinnedMemory, Progress, RelaxedCapture, Stream};
use ccl_kernels::layout::{DeviceComm, DeviceError, DeviceFault, LaneBarrier, NO_INSTRUCTION};
use ccl_kernels::shape::Protocol;
use ccl_plan::cost::Multicast;
use ccl_plan::program::Checked;
use ccl_plan::{Collective, Rank};

use super::captured::{Captured, Leases, Used};
use super::channels::{Channels, DeviceCut};
use super::dormant::{Dormant, Kept};
use super::edges::Edges;
use super::group::{Grouped, Open};
use super::kernels::Kernels;
use super::launch::{Prepared, StreamPlace};
use super::lent::{self, Lending, Registration};
use super::peers::{self, Gather, Link, Peers};
use super::signals::Signals;
use super::special::OneShot;
use super::staging::Staging;
use super::switch::Switch;
use super::two_shot::{Places, TwoShot};
use super::windows::Windows;
use super::{DeviceBuffer, Lines, Opened, failed, protocol};
use crate::error::{Error, Fault, Result};
use crate::exec::host::{OwnedTables, Poll, Reason, Stop, is_message, stages_input};
use crate::exec::plans::{Decision, Reach};
use crate::observe::board::Board;
use crate::request::Bound;
use crate::stream::Gate;
use crate::transport::{Fabric, TransportInfo};

/// One rank's kernels and all that they use.
pub(crate) struct DeviceEngine {
    pub(super) me: Rank,
    pub(super) n: u32,
    // Kernels are ended before the memory below goes: see `Drop`.
    pub(super) queue: VecDeque<Queued>,
    /// Orders of which a call was found unfinished, while looking for others.
    unfinished: Vec<Order>,
    pub(super) signals: Arc<Signals>,
    pub(super) own_stream: Arc<Stream>,
    /// For copies from and to the host, which may wait for all that is on their stream: it never carries kernels that wait
    /// for anybody, who may be whoever drives this engine.
    pub(super) copy_stream: Arc<Stream>,
    pub(super) streams: HashMap<Order, Arc<Stream>>,
    pub(super) last: HashMap<Order, (StreamPlace, Arc<Event>)>,
    pub(super) spare_events: Vec<Arc<Event>>,
    pub(super) edges: Edges,
    /// One for each protocol.
    pub(super) comms: [DeviceMemory; 2],
    pub(super) barriers: DeviceMemory,
    pub(super) programs: HashMap<usize, Program>,
    pub(super) scratch: Vec<DeviceMemory>,
    /// Copies of inputs that a call overwrites.
    pub(super) aside: Vec<DeviceMemory>,
    pub(super) captured: Captured,
    pub(super) lending: Lending,
    pub(super) windows: Windows,
    /// Of the group whose messages are being made ready.
    pub(super) open: Open,
    /// Why a pump has nothing more to fetch: an error if a call still waits for it.
    pub(super) ended: Option<(Error, Instant)>,
    pub(super) staging: Staging,
    pub(super) kernels: Kernels,
    /// The kernel of short all-reduces, if they have one.
    pub(super) one_shot: Option<OneShot>,
    /// That of long ones between windows.
    pub(super) two_shot: Option<TwoShot>,
    /// Multicast memory, if there is any.
    pub(super) switch: Option<Switch>,
    pub(super) peers: Peers,
    pub(super) board: Arc<Board>,
    pub(super) opened: Arc<Opened>,
    /// Its memory is being given back while the communicator goes on.
    pub(super) is_put_down: bool,
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

pub(super) struct Queued {
    pub(super) call: Call,
    pub(super) gate: Option<Gate>,
    /// Host memory of the call.
    staged: Option<(Staged, super::staging::Copies)>,
    /// Where a call on device memory goes.
    pub(super) target: Option<Target>,
    /// Whether it is launched together with others.
    pub(super) grouped: Grouped,
    /// `None` after the launch.
    pub(super) prepared: Option<Prepared>,
    pub(super) used: Used,
    /// Recorded behind the kernel; `None` before the launch.
    pub(super) event: Option<Arc<Event>>,
}

/// Memory to register.
pub(crate) enum Registered<'a> {
    Buffer(&'a DeviceBuffer),
    Range(u64, usize),
}

/// The caller's stream for a call.
pub(crate) struct Target {
    pub(super) stream: Arc<Stream>,
    /// The capture that the stream takes part in.
    pub(super) capture: Option<CaptureInfo>,
    /// Whether it is a message of a group.
    is_grouped: bool,
    /// How long the call's buffers are.
    bytes: (usize, usize),
}

/// The device's context is current, and captures are left alone; until dropped, on the same thread.
struct Entered {
    _relaxed: Option<RelaxedCapture>,
    _current: Current,
}

/// Calls of one order run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Order {
    Collectives,
    Message(Rank, bool),
}

/// A program on the device.
pub(super) struct Program {
    /// Keeps the key, which is its address, from becoming another's.
    pub(super) _checked: Arc<Checked>,
    pub(super) memory: DeviceMemory,
    pub(super) channels: u16,
}

impl Queued {
    pub(super) fn order(&self) -> Order {
        order(&self.call.bound)
    }

    /// Of the capture that its stream takes part in.
    pub(super) fn capture(&self) -> Option<u64> {
        self.target.as_ref()?.capture.as_ref().map(CaptureInfo::id)
    }
}

impl Registered<'_> {
    /// Its address and length.
    pub(super) fn range(&self) -> (u64, usize) {
        match self {
            Registered::Buffer(buffer) => (buffer.address(), buffer.len()),
            Registered::Range(start, bytes) => (*start, *bytes),
        }
    }

    /// What keeps a buffer of our own.
    pub(super) fn kept(&self) -> Option<Arc<DeviceMemory>> {
        match self {
            Registered::Buffer(buffer) => Some(buffer.memory()),
            Registered::Range(..) => None,
        }
    }
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
        cut: DeviceCut,
        told: (&Arc<Board>, Gather<'_>),
    ) -> Result<Option<Box<DeviceEngine>>> {
        DeviceEngine::wake(opened.map(Dormant::new), (me, n), infos, cut, told)
    }

    /// [`DeviceEngine::join`] of ranks that may have had an engine before.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn wake(
        own: Option<Dormant>,
        (me, n): (Rank, u32),
        infos: &[TransportInfo],
        cut: DeviceCut,
        (board, gather): (&Arc<Board>, Gather<'_>),
    ) -> Result<Option<Box<DeviceEngine>>> {
        let _relaxed = own.as_ref().and_then(|own| leave_captures_alone(&own.opened));
        let peers = peers::agree(own.as_ref().map(|own| &*own.opened), me, infos, cut, gather)?;
        let (Some(own), Some(peers)) = (own, peers) else { return Ok(None) };
        DeviceEngine::new(own, (peers, infos), (me, n), (board, gather)).map(|engine| Some(Box::new(engine)))
    }

    fn new(
        own: Dormant,
        (peers, infos): (Peers, &[TransportInfo]),
        (me, n): (Rank, u32),
        (board, gather): (&Arc<Board>, Gather<'_>),
    ) -> Result<DeviceEngine> {
        let (view, opened) = (peers.view, own.opened);
        let Kept { stream: own_stream, signals, mut kernels, lending, windows } = match own.kept {
            Some(kept) => kept,
            None => {
                let stream = Arc::new(Stream::new(&opened.context, 0).map_err(failed)?);
                let pinned =
                    PinnedMemory::new(&opened.context, Signals::BYTES, ccl_cuda::HostCaching::Cached)
                        .map_err(failed)?;
                let signals = Arc::new(Signals::new(pinned));
                let (lending, windows) = (Lending::default(), Windows::default());
                Kept { stream, signals, kernels: Kernels::new(), lending, windows }
            }
        };
        let copy_stream = opened.copies()?;
        let mut edges = Edges::new((me, n), view, &opened, &copy_stream)?;
        let barriers = opened.memory(usize::from(view.channels) * 2 * size_of::<LaneBarrier>())?;
        barriers.fill(0, &copy_stream).map_err(failed)?;
        let one_shot = OneShot::new((me, n), &peers, &opened, &copy_stream)?;
        let two_shot = TwoShot::new((me, n), &peers, (&opened, &signals), &copy_stream)?;
        let loading = (&mut kernels, &*own_stream);
        let switch = Switch::agree(&opened, (me, n), (&peers, infos), loading, gather)?;
        edges.copies = switch.as_ref().map(Switch::copies);
        let comm = || opened.memory(Protocol::ALL.len() * size_of::<DeviceComm>());
        let comms = [comm()?, comm()?];
        let mut engine = DeviceEngine {
            me,
            n,
            queue: VecDeque::new(),
            unfinished: Vec::new(),
            signals,
            own_stream,
            copy_stream,
            streams: HashMap::new(),
            last: HashMap::new(),
            spare_events: Vec::new(),
            edges,
            comms,
            barriers,
            programs: HashMap::new(),
            scratch: Vec::new(),
            aside: Vec::new(),
            captured: Captured::default(),
            lending,
            windows,
            open: Open::default(),
            ended: None,
            staging: Staging::default(),
            kernels,
            one_shot,
            two_shot,
            switch,
            peers,
            board: Arc::clone(board),
            opened,
            is_put_down: false,
        };
        engine.windows.leases.show_all(&engine.edges.windows, &engine.own_stream)?;
        engine.write_comms()?;
        Ok(engine)
    }

    /// How ranks reach each other if each has a device that reaches all others, and what of that is stored once for all. The
    /// same on all ranks.
    pub(crate) fn reach(&self) -> Option<(Reach, Multicast)> {
        let ways = &self.peers.ways;
        ways.direct.then(|| match self.switch {
            Some(_) => (Reach::Multicast, protocol::multicast(self.opened.protocols.as_ref(), *ways)),
            None => (Reach::Devices, Multicast::NONE),
        })
    }

    /// Most channels of calls. The same on all ranks.
    pub(crate) fn channels(&self) -> Channels {
        self.peers.channels
    }

    /// Which calls follow lines. The same on all ranks.
    pub(crate) fn lines(&self) -> Lines {
        Lines { choices: self.opened.protocols.clone(), ways: self.peers.ways }
    }

    /// Most payload bytes of a message. The same on all ranks.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.peers.slot_bytes
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

    /// Lets this thread do what would break captures, of its own or of other threads, that have nothing to do with it.
    pub(crate) fn leave_captures_alone(&self) -> Option<RelaxedCapture> {
        leave_captures_alone(&self.opened)
    }

    /// The same, with the device's context current for all that follows on this thread.
    fn enter(&self) -> Result<Entered> {
        let _relaxed = self.leave_captures_alone();
        Ok(Entered { _relaxed, _current: self.opened.context.enter().map_err(failed)? })
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

    /// Whether all calls that are outstanding go on without anybody driving them.
    pub(crate) fn runs_alone(&self) -> bool {
        let needs_nobody = |queued: &Queued| queued.gate.is_none() && queued.staged.is_none();
        !self.is_pumped() && self.queue.iter().all(needs_nobody)
    }

    /// Queues a call on host memory, for when its gate opens. The memory stays valid until the call is complete or
    /// [`DeviceEngine::abort`] has returned.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(crate) fn stage(
        &mut self,
        call: Call,
        (staged, gate): (Staged, Option<Gate>),
        is_grouped: bool,
        fabric: &mut Fabric,
    ) -> Result<()> {
        let _entered = self.enter()?;
        let copies = self.staging.allot(&staged, &self.opened)?;
        let grouped = grouped(is_grouped && is_message(&call.bound));
        let mut prepared = match self.prepare(&call, grouped, fabric) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.staging.keep(copies);
                return Err(error);
            }
        };
        // The copies are ours. A message that is lent waits for its receiver, which may first make a call after it.
        let may = is_grouped || !is_message(&call.bound);
        prepared.lends = may
            && prepared.protocol == Protocol::Simple
            && call.decision.lendable
            && self.peers.why_nothing_is_lent(&self.opened).is_none();
        self.queue.push_back(Queued {
            call,
            gate,
            staged: Some((staged, copies)),
            target: None,
            grouped,
            prepared: Some(prepared),
            used: Used::default(),
            event: None,
        });
        Ok(())
    }

    /// Whether a call on the caller's stream can be taken, before it has a number: nothing has happened if not.
    ///
    /// # Errors
    ///
    /// A usage error for addresses that the device cannot use, a broken capture, or calls that wait for a host stream;
    /// the driver's.
    pub(crate) fn accept(
        &mut self,
        (bound, bytes): (&Bound, (usize, usize)),
        stream: &Arc<Stream>,
        is_grouped: bool,
    ) -> Result<Target> {
        let _current = self.opened.context.enter().map_err(failed)?;
        let status = stream.capture_status().map_err(unusable)?;
        let capture = match status.is_capturing() {
            true => Some(stream.capture_info().map_err(unusable)?.ok_or_else(broken_capture)?),
            false => None,
        };
        self.check_address(bound.send.addr() as u64)?;
        self.check_address(bound.recv.addr() as u64)?;
        if self.queue.iter().any(|queued| queued.gate.is_some() && queued.event.is_none()) {
            return Err(Error::usage(
                "expected no call that waits for its host stream before one on a CUDA stream, found one",
                "synchronize the host stream first",
            ));
        }
        let is_grouped = is_grouped && is_message(bound);
        Ok(Target { stream: Arc::clone(stream), capture, is_grouped, bytes })
    }

    /// Queues a call on device memory: all that may wait for the device is done, and the next
    /// [`DeviceEngine::launch_waiting`] on this thread launches it.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(crate) fn enqueue(&mut self, call: Call, target: Target, fabric: &mut Fabric) -> Result<()> {
        let _entered = self.enter()?;
        let grouped = grouped(target.is_grouped);
        let mut prepared = self.prepare(&call, grouped, fabric)?;
        let leases = self.lend(&mut prepared, &call, &target);
        let places = self.places(&prepared, &call, &target)?;
        let used = Used { places, _leases: leases, ..Used::default() };
        self.queue.push_back(Queued {
            call,
            gate: None,
            staged: None,
            target: Some(target),
            grouped,
            prepared: Some(prepared),
            used,
            event: None,
        });
        Ok(())
    }

    /// Lets peers read the call's buffers where they lie, if that is known to be right. What was copied aside is ours.
    fn lend(&self, prepared: &mut Prepared, call: &Call, target: &Target) -> Leases {
        let is_possible = prepared.protocol == Protocol::Simple && call.decision.lendable;
        // A message of no group would wait for its receiver, which may first make a call after it.
        if !is_possible || is_message(&call.bound) && !target.is_grouped {
            return Leases::default();
        }
        let send = if stages_input(&call.bound) { (0, 0) } else { (call.bound.send.addr(), target.bytes.0) };
        let buffers = [send, (call.bound.recv.addr(), target.bytes.1)].map(|(at, bytes)| (at as u64, bytes));
        let by_address = self.lending.may(buffers, target.capture.is_some(), &self.opened, &self.peers);
        let find = |(at, bytes)| if bytes == 0 { None } else { self.windows.leases.find(at, bytes) };
        let windows = buffers.map(find);
        let [input, output] =
            windows.each_ref().map(|window| window.as_ref().map_or(0, |(lease, _)| lease.number()));
        prepared.lends = by_address.is_some();
        prepared.windows = output << 16 | input;
        let mut lent = by_address.unwrap_or_default();
        lent.extend(windows.iter().flatten().map(|(_, lent)| Arc::clone(lent)));
        lent::count(lent);
        windows.map(|window| window.map(|(lease, _)| lease))
    }

    /// The windows that a call's buffers lie in, if a kernel goes by that. Blocks for the device.
    fn places(&mut self, prepared: &Prepared, call: &Call, target: &Target) -> Result<Places> {
        let Some(two_shot) = self.two_shot.as_mut().filter(|_| prepared.is_preceded()) else {
            return Ok(None);
        };
        let find = |address: usize, bytes| self.windows.find(address as u64, bytes);
        let send = find(call.bound.send.addr(), target.bytes.0);
        let Some(places) = send.zip(find(call.bound.recv.addr(), target.bytes.1)).map(<[_; 2]>::from) else {
            return Ok(None);
        };
        two_shot.learn(&places, &self.opened, &self.copy_stream)?;
        Ok(Some(places))
    }

    /// How many calls a kernel of their own has made between windows.
    pub(crate) fn window_calls(&self) -> u64 {
        self.signals.served()
    }

    /// Ranks that say when they will not lend a window any more.
    pub(crate) fn lenders(&self) -> Vec<Rank> {
        self.windows.leases.lenders().to_vec()
    }

    /// A rank will not lend this window any more. What is mapped of it goes when the next call is made.
    pub(crate) fn let_go(&mut self, lender: Rank, window: u32) {
        self.windows.leases.let_go(lender, window);
    }

    /// Registers a buffer of our own, or else a range: see [`Lending`].
    ///
    /// # Errors
    ///
    /// A usage error for memory that the driver does not know as one piece; the driver's.
    pub(crate) fn register(&mut self, memory: &Registered<'_>) -> Result<Registration> {
        let _relaxed = self.leave_captures_alone();
        match memory {
            Registered::Buffer(buffer) => self.lending.buffer(buffer, &self.opened, &self.peers),
            Registered::Range(start, bytes) => {
                self.lending.range((*start, *bytes), None, &self.opened, &self.peers)
            }
        }
    }

    /// Moves everything along that can be moved. Never blocks, but for the device where it must be given something.
    pub(crate) fn poll(&mut self, fabric: &mut Fabric) -> Result<Poll, Stop> {
        let mut moved = self.turn_pumps(fabric)?;
        if let Some((fault, error)) = self.signals.error() {
            return Err(self.told(fault, &error));
        }
        if self.is_busy() {
            let _entered = self.enter()?;
            moved |= self.launch_ready(fabric, false)?;
            moved |= self.finish_done()?;
        }
        self.wait_for_what_ended(moved || self.queue.is_empty())?;
        let is_idle = self.queue.is_empty() && self.edges.pumps.iter().all(|pump| pump.is_idle());
        Ok(match (is_idle, moved) {
            (true, _) => Poll::Done,
            (_, true) => Poll::Progress,
            (_, false) => Poll::Stalled,
        })
    }

    /// Whether nothing is outstanding, and no graph may move messages through the host at any time.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_replayed = self.is_pumped() && self.captured.is_any();
        self.queue.is_empty() && !is_replayed && self.edges.pumps.iter().all(|pump| pump.is_idle())
    }

    /// How many calls are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// The oldest call that is not complete.
    pub(crate) fn oldest(&self) -> Option<&Call> {
        self.queue.front().map(|queued| &queued.call)
    }

    /// What a kernel said, for people.
    fn told(&self, fault: DeviceFault, error: &DeviceError) -> Stop {
        let peer = Rank(error.peer);
        let place = match error.instruction {
            NO_INSTRUCTION => format!("lines of rank {peer}"),
            instruction => format!("instruction {instruction}, channel {}", error.channel),
        };
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

    /// Launches queued calls whose turn has come, those on the caller's streams only for the caller, who adds nothing more to a
    /// group. Nothing in it waits for a kernel.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(crate) fn launch_waiting(&mut self, fabric: &mut Fabric, is_caller: bool) -> Result<bool> {
        if !self.is_busy() {
            return Ok(false);
        }
        let _entered = self.enter()?;
        if is_caller {
            self.close_group();
        }
        self.launch_ready(fabric, is_caller)
    }

    /// Whether there is anything to ask the driver about.
    fn is_busy(&self) -> bool {
        !self.queue.is_empty()
    }

    fn launch_ready(&mut self, fabric: &mut Fabric, is_caller: bool) -> Result<bool> {
        let (mut moved, mut index) = (false, 0);
        while let Some(queued) = self.queue.get(index) {
            if queued.event.is_some() || queued.grouped == Grouped::Closed {
                index += 1;
                continue;
            }
            let is_held = !is_caller && (queued.target.is_some() || queued.grouped == Grouped::Open);
            if let Some(error) = queued.gate.as_ref().and_then(Gate::lost) {
                return Err(error);
            }
            if is_held || queued.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
                return Ok(moved);
            }
            let Some(mut queued) = self.queue.remove(index) else { return Ok(moved) };
            let launched = self.launch_queued(&mut queued, fabric);
            // A captured call is complete as far as this process can tell: it runs when its graph does.
            if launched.is_ok() && queued.event.is_none() {
                self.finish_captured(&queued.call);
            } else {
                self.queue.insert(index, queued);
                index += 1;
            }
            launched?;
            moved = true;
        }
        Ok(self.launch_groups(fabric)? || moved)
    }

    /// Launches a call by itself.
    pub(super) fn launch_queued(&mut self, queued: &mut Queued, fabric: &mut Fabric) -> Result<()> {
        let prepared = match queued.prepared.take() {
            Some(prepared) => prepared,
            None => self.prepare(&queued.call, Grouped::Alone, fabric)?,
        };
        let stream = match &queued.target {
            Some(target) => Arc::clone(&target.stream),
            None => self.stream_of(&queued.call.bound)?,
        };
        self.bring(queued, &stream)?;
        let capture = queued.target.as_ref().and_then(|target| target.capture.as_ref());
        queued.event = self.launch(&queued.call, prepared, &mut queued.used, (&stream, capture), fabric)?;
        Ok(())
    }

    /// Copies host memory of a call to the device, before what comes on `stream`.
    pub(super) fn bring(&mut self, queued: &mut Queued, stream: &Stream) -> Result<()> {
        let Some((staged, copies)) = &queued.staged else { return Ok(()) };
        let (send, recv) = self.staging.bring(staged, copies, &self.copy_stream)?;
        (queued.call.bound.send, queued.call.bound.recv) = (send as *const u8, recv as *mut u8);
        let copies = Arc::clone(&self.copy_stream);
        self.let_follow(stream, &copies)
    }

    /// Lets what comes on one stream wait for what is on another now.
    pub(super) fn let_follow(&mut self, stream: &Stream, other: &Stream) -> Result<()> {
        let passed = self.event()?;
        let followed = passed.record(other).and_then(|()| stream.wait(&passed));
        self.spare_events.push(passed);
        followed.map_err(failed)
    }

    fn finish_captured(&mut self, call: &Call) {
        if !is_message(&call.bound) {
            self.board.complete(call.sequence);
        }
    }

    /// Takes calls out whose kernels have ended. Those behind one of their order that has not are not asked for.
    fn finish_done(&mut self) -> Result<bool, Stop> {
        let (mut moved, mut index) = (false, 0);
        // Messages that were launched together share an event.
        let mut asked: (*const Event, Progress) = (std::ptr::null(), Progress::NotReady);
        self.unfinished.clear();
        while index < self.queue.len() {
            let Some(event) = &self.queue[index].event else { return Ok(moved) };
            if asked.0 != Arc::as_ptr(event) {
                let order = self.queue[index].order();
                let progress = match self.unfinished.contains(&order) {
                    true => Progress::NotReady,
                    false => event.query().map_err(failed)?,
                };
                asked = (Arc::as_ptr(event), progress);
                if progress == Progress::NotReady {
                    self.unfinished.push(order);
                }
            }
            if asked.1 == Progress::NotReady {
                index += 1;
                continue;
            }
            if let Some((fault, error)) = self.signals.error() {
                // It ended because it gave up.
                return Err(self.told(fault, &error));
            }
            let Some(mut queued) = self.queue.remove(index) else { return Ok(moved) };
            if let Some((staged, copies)) = &mut queued.staged {
                self.staging.take_back(staged, copies, &self.copy_stream)?;
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
        let event =
            queued.event.filter(|event| self.spare_events.iter().all(|spare| !Arc::ptr_eq(spare, event)));
        self.spare_events.extend(event);
        self.staging.keep_pinned(queued.used.tables.into_iter().chain(queued.used.list));
        if let Some(gate) = queued.gate {
            gate.pass();
        }
    }
}

/// Lets the calling thread do what would break captures that have nothing to do with it.
pub(super) fn leave_captures_alone(opened: &Opened) -> Option<RelaxedCapture> {
    RelaxedCapture::enter(opened.context.driver()).ok()
}

fn grouped(is_grouped: bool) -> Grouped {
    if is_grouped { Grouped::Open } else { Grouped::Alone }
}

pub(super) fn order(bound: &Bound) -> Order {
    match bound.collective {
        Collective::Send => Order::Message(bound.root, true),
        Collective::Recv => Order::Message(bound.root, false),
        _ => Order::Collectives,
    }
}

/// A call of the driver that failed because of the capture that the caller's stream takes part in is the caller's fault.
#[cold]
fn unusable(error: ccl_cuda::Error) -> Error {
    match error.fault() {
        ccl_cuda::Fault::Capture => {
            Error::usage(error.to_string(), "use a stream that takes part in the capture, or end it first")
        }
        _ => failed(error),
    }
}

#[cold]
fn broken_capture() -> Error {
    Error::usage(
        "expected a stream whose capture is whole, found one that was broken",
        "end the capture, and look for the call that broke it",
    )
}
