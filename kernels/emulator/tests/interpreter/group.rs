//! Messages of a group in one launch of every rank, of all protocols and lengths, more than there are lists, against what they
//! should bring.

use std::collections::HashMap;

use ccl_kernels::layout::{
    DeviceComm, DeviceEdge, DeviceError, Direction, GroupArgs, GroupedCall, LaunchArgs, NO_EDGE, bytes_of,
    edge_index,
};
use ccl_kernels::shape::{self, Protocol};
use ccl_kernels_emulator::{Emulation, Guarded, Options, Order, kernel};
use ccl_plan::{Algorithm, Channel, Collective, Place, Plan, Rank};

use crate::case::Draw;
use crate::world::{address, address_of, fill, filled, words};

/// One send and the receive that it meets.
#[derive(Clone, Debug)]
struct Message {
    from: Rank,
    to: Rank,
    bytes: usize,
    channels: u16,
    protocol: Protocol,
    tag: u32,
}

/// A group of all ranks.
#[derive(Debug)]
struct Group {
    n: u32,
    /// How many rounds have lists of their own.
    rounds: u32,
    slots: u32,
    chunk_bytes: usize,
    workers: u32,
    messages: Vec<Message>,
    options: Options,
}

/// One rank, and what its launch leads to.
struct Seated {
    args: GroupArgs,
    blocks: u32,
    error: Guarded<u64>,
    /// Of the messages that it receives.
    received: Vec<(usize, Guarded<u8>)>,
    _kept: Vec<Guarded<u64>>,
    _sent: Vec<Guarded<u8>>,
}

/// Slots, and tail and head.
type Queues = HashMap<(Rank, Rank, Channel, Protocol), (Guarded<u64>, Guarded<u64>)>;

const CHANNELS: u16 = 2;

impl Group {
    fn drawn(seed: u64) -> Group {
        let mut draw = Draw::new(seed);
        let n = 1 + draw.below(5) as u32;
        let rank = |draw: &mut Draw| Rank(draw.below(n as usize) as u32);
        let count = 1 + draw.below(4 * n as usize);
        let message = |tag| Message {
            from: rank(&mut draw),
            to: rank(&mut draw),
            bytes: [0, 1, 7, 64, 129, 500][draw.below(6)],
            channels: 1 + draw.below(usize::from(CHANNELS)) as u16,
            protocol: Protocol::ALL[draw.below(3)],
            tag,
        };
        let messages = (0..count as u32).map(message).collect();
        let order = [Order::RoundRobin, Order::Random, Order::Adversarial][draw.below(3)];
        Group {
            n,
            rounds: 1 + draw.below(n as usize) as u32,
            slots: 1 + draw.below(2) as u32,
            chunk_bytes: [16, 40, 136][draw.below(3)],
            workers: [32, 64][draw.below(2)],
            messages,
            options: Options { seed, order, delays_stores: draw.below(2) == 0, ..Options::default() },
        }
    }

    /// Launches it twice, as a captured graph would.
    fn check(&self) -> Result<(), String> {
        let mut queues = Queues::new();
        let mut seated: Vec<Seated> = (0..self.n).map(|rank| self.seat(Rank(rank), &mut queues)).collect();
        for launch in 0..2 {
            let buffers = seated.iter_mut().flat_map(|seated| &mut seated.received);
            buffers.for_each(|(_, buffer)| buffer.fill(0xee));
            let mut emulation = Emulation::new(Options { most_turns: 20_000_000, ..self.options.clone() });
            let threads = shape::block_threads(self.workers) - 31;
            let group = kernel(shape::GROUP_KERNEL).expect("there is a kernel of groups");
            for seated in seated.iter().filter(|seated| seated.blocks > 0) {
                let bytes = shape::SHARED_BYTES as usize;
                // SAFETY: everything that the arguments point to lives in `seated` and `queues`, and launches share nothing
                // but edges, whose ends are accessed as the protocol says.
                let added =
                    unsafe { emulation.add(group, seated.blocks, threads, bytes, bytes_of(&seated.args)) };
                added.expect("the kernel takes these arguments");
            }
            emulation.run().map_err(|report| format!("launch {launch}: {report:#?}"))?;
            for (rank, seated) in seated.iter().enumerate() {
                if seated.error[0] != 0 {
                    return Err(format!("launch {launch}: rank {rank}: {:?}", &seated.error[..]));
                }
                for (message, found) in &seated.received {
                    if found[..] != payload(*message, found.len())[..] {
                        return Err(format!("launch {launch}: rank {rank} got message {message} wrong"));
                    }
                }
            }
        }
        Ok(())
    }

    fn seat(&self, rank: Rank, queues: &mut Queues) -> Seated {
        let (error, abort) = (words(size_of::<DeviceError>()), words(8));
        let mut kept = Vec::new();
        let comms = Protocol::ALL.map(|protocol| {
            let (edges, index) = self.edges(rank, protocol, queues);
            let comm = DeviceComm {
                rank: rank.0,
                n: self.n,
                edges: address(&edges),
                edge_index: address(&index),
                channels: u32::from(CHANNELS),
                tags: 1,
                abort: address(&abort),
                error: address(&error),
                ..DeviceComm::default()
            };
            let comm = filled(bytes_of(&comm));
            let at = address(&comm);
            kept.extend([edges, index, comm]);
            at
        });
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let mut calls = Vec::new();
        for (number, message) in self.messages.iter().enumerate() {
            for is_sent in [true, false] {
                let (own, peer) =
                    if is_sent { (message.from, message.to) } else { (message.to, message.from) };
                if own != rank {
                    continue;
                }
                let mut memory = Guarded::<u8>::new(message.bytes);
                let start = address_of(&memory);
                let plan = self.plan((rank, peer), is_sent, &mut kept);
                let call = LaunchArgs {
                    comm: comms[message.protocol as usize],
                    plan,
                    input: if is_sent { start } else { 0 },
                    output: if is_sent { 0 } else { start },
                    count: message.bytes as u64,
                    chunk_count: self.chunk_bytes as u64,
                    grain_count: 1,
                    root: peer.0,
                    tag: message.tag,
                    channels: u32::from(message.channels),
                    element_bytes: 1,
                    ..LaunchArgs::default()
                };
                let blocks = u32::from(message.channels);
                let round = (message.to.0 + self.n - message.from.0) % self.n;
                let protocol = message.protocol as u32;
                calls.push((
                    (round % self.rounds, is_sent),
                    round,
                    GroupedCall { call, protocol, blocks, ..GroupedCall::default() },
                ));
                if is_sent {
                    memory.copy_from_slice(&payload(number, message.bytes));
                    sent.push(memory);
                } else {
                    received.push((number, memory));
                }
            }
        }
        let (records, lists) = in_lists(calls);
        let table = filled(&records.iter().flat_map(bytes_of).copied().collect::<Vec<u8>>());
        let each = u32::from(CHANNELS);
        let args = GroupArgs { calls: address(&table), each, reserved: 0 };
        kept.extend([table, abort]);
        Seated { args, blocks: lists * each, error, received, _kept: kept, _sent: sent }
    }

    fn plan(&self, (rank, peer): (Rank, Rank), is_sent: bool, kept: &mut Vec<Guarded<u64>>) -> u64 {
        let collective = if is_sent { Collective::Send } else { Collective::Recv };
        let plan = Plan::new(collective, Algorithm::Direct, self.n).expect("messages are for any n");
        let program = plan.program(Place(rank.0), Place(peer.0)).check(self.n).expect("it is in order");
        let mut image = words(shape::plan_image(&program, None, 0, 0).len());
        let bytes = shape::plan_image(&program, None, 0, address(&image));
        fill(&mut image, &bytes);
        let at = address(&image);
        kept.push(image);
        at
    }

    /// A rank's ends of all edges of a protocol, and the table that finds them.
    fn edges(&self, rank: Rank, protocol: Protocol, queues: &mut Queues) -> (Guarded<u64>, Guarded<u64>) {
        let mut edges = Vec::new();
        let mut index = vec![NO_EDGE; self.n as usize * usize::from(CHANNELS) * 2];
        for peer in (0..self.n).map(Rank) {
            for channel in (0..CHANNELS).map(Channel) {
                for direction in [Direction::Receive, Direction::Send] {
                    let (from, to) = match direction {
                        Direction::Send => (rank, peer),
                        Direction::Receive => (peer, rank),
                    };
                    let stride = protocol.stride_bytes(self.chunk_bytes);
                    let (slots, counters) = queues
                        .entry((from, to, channel, protocol))
                        .or_insert_with(|| (words(stride * self.slots as usize), Guarded::new(64)));
                    let end = DeviceEdge {
                        slots: address(slots),
                        tail: address(counters),
                        head: address(counters) + 256,
                        slot_bytes: protocol.payload_bytes(stride) as u32,
                        slot_count: self.slots,
                        stride_bytes: stride as u32,
                        protocol: protocol as u32,
                        peer: peer.0,
                        channel: u32::from(channel.0),
                        direction: direction as u32,
                        ..DeviceEdge::default()
                    };
                    let place = edge_index((u32::from(CHANNELS), 1), peer, channel, 0, direction);
                    index[place] = (edges.len() / size_of::<DeviceEdge>()) as u32;
                    edges.extend(bytes_of(&end));
                }
            }
        }
        let index: Vec<u8> = index.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        (filled(&edges), filled(&index))
    }
}

/// Calls as the kernel finds them: the first of each list, then those that follow it; and how many lists there are.
fn in_lists(mut calls: Vec<((u32, bool), u32, GroupedCall)>) -> (Vec<GroupedCall>, u32) {
    calls.sort_by_key(|(list, round, _)| (*list, *round));
    let lists: Vec<_> = calls.chunk_by(|one, next| one.0 == next.0).collect();
    let mut records: Vec<GroupedCall> = lists.iter().map(|list| list[0].2).collect();
    for (first, list) in lists.iter().enumerate() {
        let mut last = first;
        for (_, _, call) in &list[1..] {
            records[last].next = records.len() as u32 + 1;
            last = records.len();
            records.push(*call);
        }
    }
    (records, lists.len() as u32)
}

/// What a message brings.
fn payload(message: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + message * 31 + 1) as u8).collect()
}

#[test]
fn messages_of_a_group_arrive_whatever_lists_they_lie_in() {
    for seed in 0..120 {
        let group = Group::drawn(seed);
        group.check().unwrap_or_else(|failed| panic!("{group:#?}: {failed}"));
    }
}

#[test]
fn a_planted_bug_of_groups_is_found() {
    // A call is overwritten while others look where the next one is.
    let found = (0..200).find(|seed| {
        let mut group = Group::drawn(*seed);
        group.options.plant = 23;
        group.check().is_err()
    });
    println!("23: found by seed {found:?}");
    assert!(found.is_some(), "23 is not found");
}
