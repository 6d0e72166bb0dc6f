//! Multicast memory of all ranks' devices: what a rank stores there once, every rank finds in its own copy of that rank's
//! shared slots. Edges tell of it as they tell of what is lent.
//!
//! All ranks take the same steps, each of which ends with a vote. Whatever fails on one of them is a reason to do without, on
//! all of them, and never an error.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ccl_cuda::{DeviceMemory, Launch, Mapping, Multicast, PhysicalMemory, Sharing, Stream};
use ccl_kernels::layout::{
    DeviceComm, DeviceEdge, DeviceError, Direction, LaunchArgs, SharedReader, SharedSlots, bytes_of,
    edge_index, record_of,
};
use ccl_kernels::shape::{self, Protocol, SHARED_BYTES, block_threads, kernel_name, plan_image};
use ccl_kernels::target::Target;
use ccl_plan::{Algorithm, Channel, Collective, Dtype, Place, Plan, Rank, ReduceOp};
use serde::{Deserialize, Serialize};

use super::kernels::Kernels;
use super::passing::{self, TOKEN_BYTES, Token};
use super::peers::{Gather, Peers, bytes, text, told, vote};
use super::region::RegionView;
use super::{Opened, failed};
use crate::error::{Error, Result};
use crate::memory::{Mailbox, MailboxName};
use crate::transport::TransportInfo;

/// One rank's multicast memory.
pub(super) struct Switch {
    // In the order in which they are given back.
    window: Mapping,
    own: Mapping,
    _object: Arc<Multicast>,
    memory: PhysicalMemory,
    /// What is known of this rank's shared slots: see [`SharedSlots`].
    sharing: DeviceMemory,
    me: Rank,
    slots: Slots,
}

/// How shared slots lie: those of all channels of a rank behind those of the rank before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slots {
    n: u32,
    channels: u16,
    pub(super) each_channel: usize,
    pub(super) stride_bytes: usize,
}

/// Where this rank finds what others share with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    address: u64,
    slots: Slots,
}

/// What a rank says of itself before anything is made.
#[derive(Serialize, Deserialize)]
struct Offer {
    /// How much memory it would bind, or why it cannot.
    bytes: Result<u64, String>,
    device: [u8; 16],
    /// Where descriptors reach it.
    mailbox: Option<MailboxName>,
    token: Token,
}

type Tried<T> = Result<T, String>;

impl Switch {
    /// Agrees with all other ranks, which have devices that reach each other. Nothing where multicast memory cannot be had,
    /// which is logged. Blocks until all ranks have come.
    ///
    /// # Errors
    ///
    /// The ranks that do not come.
    pub(super) fn agree(
        opened: &Opened,
        (me, n): (Rank, u32),
        (peers, infos): (&Peers, &[TransportInfo]),
        (kernels, stream): (&mut Kernels, &Stream),
        gather: Gather<'_>,
    ) -> Result<Option<Switch>> {
        // With one other rank nothing is saved.
        if !peers.ways.direct || n < 3 || !opened.uses_switch {
            return Ok(None);
        }
        let slots = Slots::of(peers.view, n);
        match Switch::tried(opened, me, (slots, infos), (kernels, stream), gather)? {
            Ok(switch) => {
                let bytes = switch.memory.bytes();
                tracing::info!(target: TARGET, rank = me.0, bytes, "multicast memory serves what all ranks are sent");
                Ok(Some(switch))
            }
            Err(reason) => {
                tracing::info!(target: TARGET, rank = me.0, reason, "no multicast memory, so edges serve all");
                Ok(None)
            }
        }
    }

    fn tried(
        opened: &Opened,
        me: Rank,
        (slots, infos): (Slots, &[TransportInfo]),
        (kernels, stream): (&mut Kernels, &Stream),
        gather: Gather<'_>,
    ) -> Result<Tried<Switch>> {
        let mailbox = Mailbox::bind().ok();
        let offer = Offer::of(opened, slots, mailbox.as_ref())?;
        let offers: Vec<Offer> = told(&gather(bytes(&offer)?)?)?;
        let bytes = match usable(&offers) {
            Ok(bytes) => bytes,
            Err(reason) => return Ok(Err(reason)),
        };
        let made = (me.0 == 0).then(|| make(opened, bytes, (infos, &offers), mailbox.as_ref()));
        if let Err(reason) = vote(gather, made.as_ref().and_then(|made| made.as_ref().err()))? {
            return Ok(Err(reason));
        }
        let device = opened.context.device();
        let object = made.unwrap_or_else(|| found(opened, bytes, me, (infos, &offers), mailbox.as_ref()));
        let object = object.and_then(|object| object.add(device).map(|()| object).map_err(text));
        if let Err(reason) = vote(gather, object.as_ref().err())? {
            return Ok(Err(reason));
        }
        let switch = object.and_then(|object| Switch::bound(opened, (me, slots), object, bytes, stream));
        if let Err(reason) = vote(gather, switch.as_ref().err())? {
            return Ok(Err(reason));
        }
        let stored = switch.and_then(|switch| {
            let stored = switch.store(&offer.token, opened, kernels, stream);
            stored.map(|()| switch).map_err(|error| error.to_string())
        });
        if let Err(reason) = vote(gather, stored.as_ref().err())? {
            return Ok(Err(reason));
        }
        let tokens: Vec<_> = offers.iter().map(|offer| offer.token).collect();
        let checked = stored.and_then(|switch| switch.look(&tokens, opened, stream).map(|()| switch));
        let agreed = vote(gather, checked.as_ref().err())?;
        Ok(agreed.and(checked))
    }

    /// Binds memory, once all devices are members, and maps it both ways.
    fn bound(
        opened: &Opened,
        (me, slots): (Rank, Slots),
        object: Arc<Multicast>,
        bytes: usize,
        stream: &Stream,
    ) -> Tried<Switch> {
        let device = opened.context.device();
        let memory = PhysicalMemory::new(device, bytes, Sharing::Descriptor).map_err(text)?;
        object.bind(0, &memory).map_err(text)?;
        let own = Mapping::new(&memory, &[device]).map_err(text)?;
        let window = Mapping::of_multicast(&object, &[device]).map_err(text)?;
        let sharing = DeviceMemory::new(&opened.context, slots.sharing_bytes()).map_err(text)?;
        sharing.fill(0, stream).map_err(text)?;
        // SAFETY: the mapping has so many bytes, and nobody else uses it before all ranks are here.
        unsafe { ccl_cuda::fill(stream, own.address(), 0, bytes) }.map_err(text)?;
        stream.synchronize().map_err(text)?;
        Ok(Switch { window, own, _object: object, memory, sharing, me, slots })
    }

    /// Sends a token to all ranks at once, as a broadcast by the interpreter whose edges lead nowhere.
    fn store(&self, token: &Token, opened: &Opened, kernels: &mut Kernels, stream: &Stream) -> Result<()> {
        let n = self.slots.n;
        let known = Plan::new(Collective::Broadcast, Algorithm::Direct, n);
        let program = known.and_then(|plan| plan.program(Place(0), Place(0)).check(n).ok());
        let program = program.ok_or_else(|| Error::bug("a broadcast that cannot be planned"))?;
        let shared = shape::shared(&program, n, Rank(0), Rank(0), None);
        let memory = opened.memory(PROBE_BYTES + 2048 * n as usize + 64 * self.slots.each_channel)?;
        let mut probe = Probe { base: memory.address(), bytes: Vec::new() };
        let (input, output) = (probe.put(token), probe.put(&[0; TOKEN_BYTES]));
        let (words, error) = (probe.put(&vec![0; 8 * self.slots.each_channel]), probe.put(&[0; 64]));
        let (counters, own) =
            (probe.put(&[0; 256]), probe.put(&vec![0; self.slots.sharing_bytes_of_channel()]));
        let edge = |peer: u32| DeviceEdge {
            slots: words,
            tail: counters,
            head: counters + 128,
            shared: words,
            slot_bytes: TOKEN_BYTES as u32,
            slot_count: 1,
            stride_bytes: 128,
            protocol: Protocol::Simple as u32,
            peer,
            direction: Direction::Send as u32,
            ..DeviceEdge::default()
        };
        let edges: Vec<u8> = (0..n).flat_map(|peer| bytes_of(&edge(peer)).to_vec()).collect();
        let edges = probe.put(&edges);
        let mut index = vec![0u32; 2 * n as usize];
        for peer in 0..n {
            index[edge_index((1, 1), Rank(peer), Channel(0), 0, Direction::Send)] = peer;
        }
        let index: Vec<u8> = index.iter().flat_map(|number| number.to_le_bytes()).collect();
        let comm = DeviceComm {
            n,
            edges,
            edge_index: probe.put(&index),
            channels: 1,
            tags: 1,
            abort: counters + 192,
            error,
            barriers: counters + 64,
            window: self.window(),
            sharing: own,
            shared_slots: self.slots.each_channel as u32,
            shared_stride_bytes: self.slots.stride_bytes as u32,
            ..DeviceComm::default()
        };
        let comm = probe.put(bytes_of(&comm));
        let at = probe.next();
        let plan = probe.put(&plan_image(&program, None, shared, at));
        memory.write(0, &probe.bytes, stream).map_err(failed)?;
        let count = TOKEN_BYTES as u64;
        let args = LaunchArgs { comm, plan, input, output, count, chunk_count: count, ..PROBE };
        let threads = block_threads(opened.worker_threads);
        let kernel = kernels.of(opened, probe_kernel(), (threads, SHARED_BYTES))?;
        let launch = Launch {
            grid: [1; 3],
            block: [kernel.threads, 1, 1],
            shared_bytes: SHARED_BYTES,
            attributes: &[],
        };
        // SAFETY: the kernel takes one `LaunchArgs`, and all that it leads to lives until the stream was waited for.
        unsafe { launch.run(&kernel.function, stream, &args) }
            .and_then(|()| stream.synchronize())
            .map_err(failed)?;
        let mut said = [0; size_of::<DeviceError>()];
        memory.read((error - memory.address()) as usize, &mut said, stream).map_err(failed)?;
        match record_of::<DeviceError>(&said) {
            Some(DeviceError { code: 0, .. }) => Ok(()),
            said => Err(Error::bug(format!("a kernel that probes multicast memory gave up: {said:?}"))),
        }
    }

    /// Whether this rank has the tokens of all others in its copy.
    fn look(&self, tokens: &[Token], opened: &Opened, stream: &Stream) -> Tried<()> {
        let memory = opened.memory(TOKEN_BYTES).map_err(|error| error.to_string())?;
        for (rank, token) in (0..).map(Rank).zip(tokens) {
            let from = self.copies().of((rank, Channel(0)));
            let mut found = [0; TOKEN_BYTES];
            // SAFETY: both are memory of this rank, of so many bytes.
            unsafe { ccl_cuda::copy(stream, memory.address(), from, TOKEN_BYTES) }.map_err(text)?;
            memory.read(0, &mut found, stream).map_err(text)?;
            if found != *token {
                return Err(format!("what rank {rank} stored for all has not come"));
            }
        }
        Ok(())
    }

    /// This rank's shared slots, through multicast memory.
    pub(super) fn window(&self) -> u64 {
        self.window.address() + (self.me.index() * self.slots.bytes_of_rank()) as u64
    }

    /// See [`DeviceComm::sharing`].
    pub(super) fn sharing(&self) -> &DeviceMemory {
        &self.sharing
    }

    pub(super) fn slots(&self) -> Slots {
        self.slots
    }

    pub(super) fn copies(&self) -> Copies {
        Copies { address: self.own.address(), slots: self.slots }
    }

    /// All of its device memory.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes() + self.sharing.bytes()
    }

    /// Payloads that this rank has stored once for all. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn sent(&self, stream: &Stream) -> Result<u64> {
        let mut all = vec![0; self.slots.sharing_bytes()];
        self.sharing.read(0, &mut all, stream).map_err(failed)?;
        let sent = |channel: &[u8]| record_of::<SharedSlots>(channel).map_or(0, |slots| slots.sent);
        Ok(all.chunks(self.slots.sharing_bytes_of_channel()).map(sent).sum())
    }
}

impl Slots {
    fn of(view: RegionView, n: u32) -> Slots {
        let stride_bytes = view.shape(Protocol::Simple).stride_bytes();
        Slots { n, channels: view.channels, each_channel: view.slots, stride_bytes }
    }

    fn bytes_of_rank(self) -> usize {
        usize::from(self.channels) * self.each_channel * self.stride_bytes
    }

    fn sharing_bytes_of_channel(self) -> usize {
        size_of::<SharedSlots>() + self.each_channel * self.n as usize * size_of::<SharedReader>()
    }

    fn sharing_bytes(self) -> usize {
        usize::from(self.channels) * self.sharing_bytes_of_channel()
    }
}

impl Copies {
    /// Where the shared slots of a rank and channel are.
    pub(super) fn of(self, (rank, channel): (Rank, Channel)) -> u64 {
        let before = channel.index() * self.slots.each_channel * self.slots.stride_bytes;
        self.address + (rank.index() * self.slots.bytes_of_rank() + before) as u64
    }
}

impl Offer {
    fn of(opened: &Opened, slots: Slots, mailbox: Option<&Mailbox>) -> Result<Offer> {
        let bytes = needed(opened, slots).map(|bytes| bytes as u64);
        let mailbox = mailbox.map(Mailbox::name);
        Ok(Offer { bytes, device: opened.uuid, mailbox, token: passing::token()? })
    }
}

/// Whether some call of an algorithm has ranks that send the same to all others.
pub(super) fn serves(collective: Collective, algorithm: Algorithm, n: u32) -> bool {
    let plan = Plan::new(collective, algorithm, n);
    let program = plan.and_then(|plan| plan.program(Place(0), Place(0)).check(n).ok());
    program.is_some_and(|program| shape::shared(&program, n, Rank(0), Rank(0), None) != 0)
}

/// How much memory this rank would bind.
fn needed(opened: &Opened, slots: Slots) -> Tried<usize> {
    let device = opened.context.device();
    let able = device.abilities();
    if !(able.multicast && able.virtual_memory && able.posix_handles) {
        return Err(format!("device {} or its driver has no multicast memory", device.ordinal()));
    }
    if let Some(target) =
        opened.kernels.first_target(&probe_kernel()).filter(|target| !knows_multicast(*target))
    {
        let device = device.ordinal();
        return Err(format!(
            "the kernels of device {device} are for {target}, which knows no multicast memory"
        ));
    }
    let wanted = slots.n as usize * slots.bytes_of_rank();
    let own = PhysicalMemory::granularity(device, Sharing::Descriptor).map_err(text)?;
    let driver = opened.context.driver();
    let all = Multicast::granularity(driver, slots.n, wanted.next_multiple_of(own), Sharing::Descriptor);
    // Powers of two, so the larger is a multiple of the smaller.
    Ok(wanted.next_multiple_of(own.max(all.map_err(text)?)))
}

/// The kernel that probes multicast memory; what serves it serves all.
fn probe_kernel() -> String {
    kernel_name(Collective::Broadcast, Dtype::U8, ReduceOp::Sum, Protocol::Simple)
}

/// Whether code for a target has the instructions for multicast memory. Older text has plain ones in their place, on
/// whatever device it runs.
fn knows_multicast(target: Target) -> bool {
    match target {
        Target::Machine(capability) | Target::Portable(capability) => capability >= 90,
    }
}

/// What all ranks bind, or why they do not. The same on all ranks.
fn usable(offers: &[Offer]) -> Tried<usize> {
    let mut most = 0;
    for (rank, offer) in offers.iter().enumerate() {
        match &offer.bytes {
            Ok(bytes) => most = most.max(*bytes),
            Err(reason) => return Err(format!("rank {rank}: {reason}")),
        }
        if let Some(other) = offers[..rank].iter().position(|other| other.device == offer.device) {
            return Err(format!("ranks {other} and {rank} share a device"));
        }
    }
    Ok(most as usize)
}

/// Makes the object, and passes it to the ranks of other processes; by rank 0.
fn make(
    opened: &Opened,
    bytes: usize,
    (infos, offers): (&[TransportInfo], &[Offer]),
    mailbox: Option<&Mailbox>,
) -> Tried<Arc<Multicast>> {
    let driver = opened.context.driver();
    let object = Multicast::new(driver, offers.len() as u32, bytes, Sharing::Descriptor).map_err(text)?;
    for (rank, (info, offer)) in (0..).map(Rank).zip(infos.iter().zip(offers)) {
        if is_one_process(info, &infos[0]) {
            continue;
        }
        let shared = object.descriptor().map_err(text)?;
        passing::post(mailbox, (rank, offer.mailbox), &offer.token, &[shared.as_fd()])?;
    }
    let object = Arc::new(object);
    let mut known = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, object)| object.strong_count() > 0);
    known.push((offers[0].token, Arc::downgrade(&object)));
    Ok(object)
}

/// The object that rank 0 has made and passed on.
fn found(
    opened: &Opened,
    bytes: usize,
    me: Rank,
    (infos, offers): (&[TransportInfo], &[Offer]),
    mailbox: Option<&Mailbox>,
) -> Tried<Arc<Multicast>> {
    if is_one_process(&infos[me.index()], &infos[0]) {
        let known = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
        let own = known.iter().find(|(token, _)| *token == offers[0].token);
        return own
            .and_then(|(_, object)| object.upgrade())
            .ok_or_else(|| "rank 0's object is gone".to_owned());
    }
    let descriptors = passing::take(mailbox, &offers[me.index()].token)?;
    let descriptor = descriptors.and_then(|all| all.into_iter().next());
    let descriptor = descriptor.ok_or_else(|| "rank 0's descriptor has not come".to_owned())?;
    let object = Multicast::from_descriptor(opened.context.driver(), descriptor.as_fd(), bytes);
    object.map(Arc::new).map_err(text)
}

fn is_one_process(one: &TransportInfo, other: &TransportInfo) -> bool {
    (one.process.number, one.process.namespace) == (other.process.number, other.process.namespace)
}

/// Records for a kernel, one after the other, for memory at an address.
struct Probe {
    base: u64,
    bytes: Vec<u8>,
}

impl Probe {
    /// Where these bytes will be.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.next();
        self.bytes.resize((at - self.base) as usize, 0);
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn next(&self) -> u64 {
        self.base + self.bytes.len().next_multiple_of(128) as u64
    }
}

/// What does not depend on where things are.
const PROBE: LaunchArgs = LaunchArgs {
    comm: 0,
    plan: 0,
    input: 0,
    output: 0,
    count: 0,
    chunk_count: 0,
    grain_count: 1,
    scalar_bits: 0,
    tables: 0,
    root: 0,
    tag: 0,
    channels: 1,
    element_bytes: 1,
    flags: 0,
    windows: 0,
};

/// The objects of this process's ranks, by a token of rank 0.
static OBJECTS: Mutex<Vec<(Token, Weak<Multicast>)>> = Mutex::new(Vec::new());

const TARGET: &str = "ccl::transport::switch";
/// What a probe takes beside what depends on the number of ranks and slots: a program and a few records.
const PROBE_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use ccl_plan::algorithms;
    use ccl_plan::cost::sends_to_all;

    use super::*;

    /// What the cost model counts once is what the interpreter is told to store once.
    #[test]
    fn the_cost_model_knows_what_is_stored_once() {
        let (mut both, mut more) = (0, Vec::new());
        for n in 1..=9 {
            for collective in Collective::ALL {
                for algorithm in algorithms(collective).iter().copied() {
                    match (serves(collective, algorithm, n), sends_to_all(collective, algorithm, n)) {
                        (true, true) => both += 1,
                        (true, false) => more.push((collective, algorithm, n)),
                        (false, told) => assert!(!told, "{collective}.{algorithm} with {n} ranks"),
                    }
                }
            }
        }
        assert!(both > 40, "{both}");
        // The root of a tree of three has two children. That is the less that a longer plan is thought to take.
        let tree = |collective| (collective, Algorithm::Binomial, 3);
        assert_eq!(more, [tree(Collective::AllReduce), tree(Collective::Broadcast)]);
    }
}
