//! All ranks of a communicator in one address space: edges, plans and buffers as the interpreter finds them.

use std::collections::HashMap;

use ccl_kernels::layout::{
    DeviceComm, DeviceEdge, DeviceError, Direction, LaunchArgs, NO_EDGE, SharedReader, SharedSlots,
    WINDOW_SLOTS, bytes_of, edge_index, record_of,
};
use ccl_kernels::shape::{self, Protocol};
use ccl_kernels_emulator::{Emulation, Guarded, Options, Report, Window, kernel};
use ccl_plan::machine::Stage;
use ccl_plan::{Channel, Plan, Rank};

use crate::model::{Arithmetic, Memory};

/// How edges are made and kernels launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wiring {
    pub(crate) protocol: Protocol,
    pub(crate) slots: u32,
    /// Bytes that a slot has beyond what Moves need.
    pub(crate) spare_bytes: usize,
    /// Whether slots say what they hold.
    pub(crate) sized: bool,
    /// Whether edges are direct and the call lends.
    pub(crate) lends: bool,
    /// Whether all user memory lies in windows, and the call lends of them: to odd ranks in any case, to even ones if it does not
    /// lend by address.
    pub(crate) windows: bool,
    /// Shared slots of each rank and channel, behind multicast memory; 0: there is none.
    pub(crate) shared_slots: u32,
    /// Messages that went before the first.
    pub(crate) done: u64,
    pub(crate) workers: u32,
}

/// The shared part of an edge.
struct Queue {
    slots: Guarded<u64>,
    /// Tail, head, far apart.
    counters: Guarded<u64>,
    sizes: Guarded<u64>,
    lent: Guarded<u64>,
}

struct Seated {
    rank: Rank,
    user: Guarded<u8>,
    args: LaunchArgs,
    blocks: u32,
    /// Everything else that the arguments lead to.
    _kept: Vec<Guarded<u64>>,
    error: Guarded<u64>,
    abort: Guarded<u64>,
    /// What is known of shared slots.
    sharing: Guarded<u64>,
    /// Where everybody's windows begin.
    windows: Guarded<u64>,
}

pub(crate) struct World<'a> {
    stage: &'a Stage<'a>,
    plan: &'a Plan,
    wiring: Wiring,
    arithmetic: Arithmetic,
    queues: HashMap<(Rank, Rank, Channel, u8), Queue>,
    /// Of each rank, the shared slots of all ranks and channels.
    copies: Vec<Guarded<u64>>,
    seated: Vec<Seated>,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        (plan, stage): (&'a Plan, &'a Stage<'a>),
        arithmetic: Arithmetic,
        wiring: Wiring,
        memory: &[Memory],
    ) -> World<'a> {
        let (queues, seated) = (HashMap::new(), Vec::new());
        let mut world = World { stage, plan, wiring, arithmetic, queues, copies: Vec::new(), seated };
        let bytes = stage.case.n as usize * world.shared_bytes();
        world.copies = (0..stage.case.n).map(|_| words(bytes)).collect();
        for rank in (0..stage.case.n).map(Rank) {
            if stage.seat(rank).is_some() {
                let seated = world.seat(rank, &memory[rank.index()]);
                world.seated.push(seated);
            }
        }
        let starts: Vec<_> =
            world.seated.iter().map(|seated| (seated.rank, address_of(&seated.user))).collect();
        for seated in &mut world.seated {
            for (rank, start) in &starts {
                seated.windows[SLOT * stage.case.n as usize + rank.index()] = *start;
            }
        }
        world
    }

    /// Launches every rank's kernel, and runs them to their end.
    pub(crate) fn run(&mut self, options: &Options) -> Result<u64, Box<Report>> {
        let bytes = self.stage.case.n as usize * self.shared_bytes();
        let members = self.copies.iter().map(|copy| copy.addresses().start).collect();
        let window = Window { addresses: WINDOW..WINDOW + bytes, members };
        let mut emulation = Emulation::new(Options { windows: vec![window], ..options.clone() });
        let Arithmetic { dtype, op, .. } = self.arithmetic;
        for seated in &self.seated {
            let collective = self.stage.seat(seated.rank).expect("it is seated").program.collective;
            let name = shape::kernel_name(collective, dtype, op, self.wiring.protocol);
            let kernel = kernel(&name).unwrap_or_else(|| panic!("there is no kernel {name}"));
            let threads = shape::block_threads(self.wiring.workers) - 31;
            // SAFETY: everything that the arguments point to lives in `self`, and no two launches share more than the
            // edges between them, whose ends are accessed as the protocol says.
            let added = unsafe {
                emulation.add(
                    kernel,
                    seated.blocks,
                    threads,
                    shape::SHARED_BYTES as usize,
                    bytes_of(&seated.args),
                )
            };
            added.expect("the kernel takes these arguments");
        }
        emulation.run().map(|()| emulation.turns())
    }

    /// What is in a rank's user memory; nothing if it takes no part.
    pub(crate) fn memory(&self, rank: Rank) -> Option<Vec<u8>> {
        self.seated.iter().find(|seated| seated.rank == rank).map(|seated| seated.user.to_vec())
    }

    /// What kernels say went wrong, by rank.
    pub(crate) fn errors(&self) -> Vec<(Rank, DeviceError)> {
        let error = |seated: &Seated| {
            let bytes: Vec<u8> = seated.error.iter().flat_map(|word| word.to_le_bytes()).collect();
            (seated.rank, record_of(&bytes).expect("a whole record"))
        };
        self.seated.iter().map(error).filter(|(_, error): &(Rank, DeviceError)| error.code != 0).collect()
    }

    /// Payloads that went to all at once.
    pub(crate) fn shared(&self) -> u64 {
        let of_rank = |seated: &Seated| {
            let each = seated.sharing.len() / usize::from(self.stage.case.channels);
            seated.sharing.chunks(each.max(1)).map(|channel| channel[1]).sum::<u64>()
        };
        self.seated.iter().map(of_rank).sum()
    }

    /// Words of slots that are as before the first message.
    pub(crate) fn untouched(&self) -> usize {
        let of = |queue: &Queue| queue.slots.iter().filter(|word| **word == OLD).count();
        self.queues.values().map(of).sum()
    }

    /// Leaves a rank out of the next launches.
    pub(crate) fn unseat(&mut self, rank: Rank) {
        self.seated.retain(|seated| seated.rank != rank);
    }

    /// What the host does to end all kernels.
    pub(crate) fn abort(&mut self) {
        self.seated.iter_mut().for_each(|seated| seated.abort[0] = 1);
    }

    /// Changes the arguments of a rank's launches.
    pub(crate) fn change(&mut self, rank: Rank, change: impl FnOnce(&mut LaunchArgs)) {
        let seated = self.seated.iter_mut().find(|seated| seated.rank == rank);
        change(&mut seated.expect("the rank is seated").args);
    }

    fn seat(&mut self, rank: Rank, memory: &Memory) -> Seated {
        let (case, seat) = (self.stage.case, self.stage.seat(rank).expect("the caller asked"));
        let size = self.arithmetic.dtype.size_bytes();
        let mut user = Guarded::<u8>::new(memory.bytes.len());
        user.copy_from_slice(&memory.bytes);
        let start = address_of(&user);
        let windows = Guarded::<u64>::new(WINDOW_SLOTS * case.n as usize);
        let (edges, index, tags) = self.edges(rank);
        let scratch = shape::scratch_bytes(seat.program, case.channels, case.chunk_count, size);
        let (scratch, error, abort) = (words(scratch), words(size_of::<DeviceError>()), words(8));
        let barriers = words(8 * usize::from(case.channels));
        // As if another kernel had made the call, which is looked at only where the flag says so.
        let served = filled(&[1; 8]);
        let readers = self.wiring.shared_slots as usize * case.n as usize * size_of::<SharedReader>();
        let sharing = words(usize::from(case.channels) * (size_of::<SharedSlots>() + readers));
        let window = WINDOW + rank.index() * self.shared_bytes();
        let comm = DeviceComm {
            rank: rank.0,
            n: case.n,
            edges: address(&edges),
            edge_index: address(&index),
            channels: u32::from(case.channels),
            tags,
            abort: address(&abort),
            error: address(&error),
            barriers: address(&barriers),
            scratch: address(&scratch),
            scratch_bytes: 8 * scratch.len() as u64,
            served: address(&served),
            window: if self.wiring.shared_slots > 0 { window as u64 } else { 0 },
            sharing: address(&sharing),
            shared_slots: self.wiring.shared_slots,
            shared_stride_bytes: self.shared_stride() as u32,
            windows: address(&windows),
            reserved: [0; 2],
        };
        let comm = filled(bytes_of(&comm));
        let order = self.plan.order();
        let shared = shape::shared(seat.program, case.n, rank, seat.root, order);
        let length = shape::plan_image(seat.program, order, shared, 0).len();
        let mut image = words(length);
        let bytes = shape::plan_image(seat.program, order, shared, address(&image));
        fill(&mut image, &bytes);
        let tables = self.tables(rank);
        let args = LaunchArgs {
            comm: address(&comm),
            plan: address(&image),
            input: start + memory.input as u64,
            output: start + memory.output as u64,
            count: case.count as u64,
            chunk_count: case.chunk_count as u64,
            grain_count: case.grain_count as u64,
            scalar_bits: self.arithmetic.scalar.to_bits(),
            tables: if case.blocks.is_some() { address(&tables) } else { 0 },
            root: seat.root.0,
            tag: 77,
            channels: u32::from(case.channels),
            element_bytes: size as u32,
            flags: shape::finish_flags(self.arithmetic.op)
                | if self.wiring.lends { LaunchArgs::LENDS } else { 0 },
            windows: if self.wiring.windows { 0x1_0001 * (SLOT as u32 + 1) } else { 0 },
        };
        let blocks = shape::grid_blocks(seat.program, case.channels);
        let kept = vec![comm, edges, index, image, tables, scratch, barriers, served];
        Seated { rank, user, args, blocks, _kept: kept, error, abort, sharing, windows }
    }

    fn tables(&self, rank: Rank) -> Guarded<u64> {
        let mut all = Vec::new();
        if let Some(tables) = self.stage.layout(rank).tables {
            for table in [tables.send_counts, tables.send_offsets, tables.recv_counts, tables.recv_offsets] {
                all.extend(table.iter().map(|entry| *entry as u64));
            }
        }
        let mut words = Guarded::new(all.len());
        words.copy_from_slice(&all);
        words
    }

    /// A rank's ends of its edges, the table that finds them, and how many tags it has.
    fn edges(&mut self, rank: Rank) -> (Guarded<u64>, Guarded<u64>, u32) {
        let (case, seat) = (self.stage.case, self.stage.seat(rank).expect("the caller asked"));
        let uses = shape::edges(seat.program, case.n, rank, seat.root, self.plan.order());
        let tags = uses.iter().map(|edge| u32::from(edge.tag) + 1).max().unwrap_or(1);
        let shape = (u32::from(case.channels), tags);
        let mut index = vec![NO_EDGE; case.n as usize * usize::from(case.channels) * tags as usize * 2];
        let mut edges = Vec::new();
        for channel in (0..case.channels).map(Channel) {
            for edge in &uses {
                let (from, to) = match edge.direction {
                    Direction::Send => (rank, edge.peer),
                    Direction::Receive => (edge.peer, rank),
                };
                index[edge_index(shape, edge.peer, channel, edge.tag, edge.direction)] =
                    (edges.len() / 128) as u32;
                let end = DeviceEdge {
                    peer: edge.peer.0,
                    channel: u32::from(channel.0),
                    tag: u32::from(edge.tag),
                    direction: edge.direction as u32,
                    ..self.end((from, to, channel, edge.tag), edge.direction)
                };
                edges.extend_from_slice(bytes_of(&end));
            }
        }
        let index: Vec<u8> = index.iter().flat_map(|number| number.to_le_bytes()).collect();
        (filled(&edges), filled(&index), tags)
    }

    /// What a slot has room for.
    fn payload(&self) -> usize {
        let widest = (0..self.stage.case.n)
            .filter_map(|rank| Some(self.stage.seat(Rank(rank))?.program.widest()))
            .max();
        widest.unwrap_or(1) * self.stage.case.chunk_count * self.arithmetic.dtype.size_bytes()
            + self.wiring.spare_bytes
    }

    fn shared_stride(&self) -> usize {
        Protocol::Simple.stride_bytes(self.payload())
    }

    /// One rank's shared slots of all channels.
    fn shared_bytes(&self) -> usize {
        usize::from(self.stage.case.channels) * self.wiring.shared_slots as usize * self.shared_stride()
    }

    fn end(&mut self, name: (Rank, Rank, Channel, u8), direction: Direction) -> DeviceEdge {
        let Wiring { protocol, slots, done, shared_slots, .. } = self.wiring;
        let payload = self.payload();
        let (from, to, channel, _) = name;
        let before = from.index() * self.shared_bytes()
            + channel.index() * shared_slots as usize * self.shared_stride();
        let shares = shared_slots > 0 && protocol == Protocol::Simple;
        let copy = address(&self.copies[to.index()]) + before as u64;
        let stride = protocol.stride_bytes(payload);
        let queue = self.queues.entry(name).or_insert_with(|| {
            let mut counters = Guarded::new(64);
            (counters[0], counters[32]) = (done, done);
            let each = Guarded::new(slots as usize);
            let mut lines = words(stride * slots as usize);
            // Where messages went before, no line is as it was at first.
            lines.fill(if done == 0 { 0 } else { OLD });
            Queue { slots: lines, counters, sizes: each, lent: Guarded::new(slots as usize) }
        });
        DeviceEdge {
            slots: address(&queue.slots),
            tail: address(&queue.counters),
            head: address(&queue.counters) + 256,
            sizes: if self.wiring.sized { address(&queue.sizes) } else { 0 },
            lent: match direction {
                _ if self.wiring.lends || self.wiring.windows => address(&queue.lent),
                Direction::Receive if shares => address(&queue.lent),
                _ => 0,
            },
            lends: match direction {
                Direction::Receive => 0,
                Direction::Send if self.wiring.windows && to.0 % 2 == 1 => DeviceEdge::BY_WINDOW,
                Direction::Send => DeviceEdge::BY_ADDRESS | DeviceEdge::BY_WINDOW,
            },
            shared: match direction {
                _ if !shares => 0,
                Direction::Receive => copy,
                Direction::Send => address(&queue.lent),
            },
            done,
            slot_bytes: protocol.payload_bytes(stride).min(payload.next_multiple_of(8)) as u32,
            slot_count: slots,
            stride_bytes: stride as u32,
            protocol: protocol as u32,
            ..DeviceEdge::default()
        }
    }
}

/// Zeroed memory of at least so many bytes.
pub(crate) fn words(bytes: usize) -> Guarded<u64> {
    Guarded::new(bytes.div_ceil(8))
}

pub(crate) fn filled(bytes: &[u8]) -> Guarded<u64> {
    let mut memory = words(bytes.len());
    fill(&mut memory, bytes);
    memory
}

pub(crate) fn fill(memory: &mut Guarded<u64>, bytes: &[u8]) {
    for (word, bytes) in memory.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
}

pub(crate) fn address(memory: &Guarded<u64>) -> u64 {
    memory.addresses().start as u64
}

pub(crate) fn address_of(memory: &Guarded<u8>) -> u64 {
    memory.addresses().start as u64
}

/// Of windows.
const SLOT: usize = 5;

/// Where multicast memory is. Nothing is there: only stores to all may go there.
const WINDOW: usize = 1 << 60;

/// What slots hold that messages went through before.
const OLD: u64 = 0x5a5a_5a5a_5a5a_5a5a;
