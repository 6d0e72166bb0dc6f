//! Which kernel serves a call, and what it needs: a grid, shared memory, scratch, edges, a plan's image.
//!
//! All of it is computed from the program, before anything is known of devices.

use std::collections::BTreeSet;
use std::fmt;

use ccl_plan::cursor::{Action, Cursor, Site, Step};
use ccl_plan::layout::Layout;
use ccl_plan::program::Checked;
use ccl_plan::{Channel, Collective, Dtype, Rank, ReduceOp, Shape};

use crate::layout::{DevicePlan, Direction, LaunchArgs, bytes_of};

/// How data and flags share a slot, on all edges of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Protocol {
    /// Data, a fence, then the number of messages. All of a slot is payload.
    Simple = 0,
    /// A flag beside every 4 bytes. Half of a slot is payload.
    Ll = 1,
    /// A flag in every 128 bytes. 15 sixteenths of a slot are payload.
    Ll128 = 2,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 3] = [Protocol::Simple, Protocol::Ll, Protocol::Ll128];

    /// The name in those of kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Simple => "simple",
            Protocol::Ll => "ll",
            Protocol::Ll128 => "ll128",
        }
    }

    /// Bytes of payload and of the slot that they take: the smallest part.
    const fn unit(self) -> (usize, usize) {
        match self {
            Protocol::Simple => (16, 16),
            Protocol::Ll => (8, 16),
            Protocol::Ll128 => (120, 128),
        }
    }

    /// The payload that a slot of so many bytes holds, for [`DeviceEdge::slot_bytes`](crate::layout::DeviceEdge).
    pub const fn payload_bytes(self, stride_bytes: usize) -> usize {
        let (payload, whole) = self.unit();
        stride_bytes / whole * payload
    }

    /// From slot to slot where each holds so much payload: a multiple of 128 bytes, at least 128.
    pub const fn stride_bytes(self, payload_bytes: usize) -> usize {
        let (payload, whole) = self.unit();
        let units = payload_bytes.div_ceil(payload);
        let bytes = (units * whole).next_multiple_of(128);
        if bytes == 0 { 128 } else { bytes }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The kernel of a call. Collectives that do not reduce have one for all dtypes.
pub fn kernel_name(collective: Collective, dtype: Dtype, op: ReduceOp, protocol: Protocol) -> String {
    if !collective.reduces() {
        return format!("ccl_interpret_bytes_copy_{protocol}");
    }
    format!("ccl_interpret_{}_{}_{protocol}", dtype_name(dtype), fold_name(op))
}

/// The kernel of several sends and receives in one launch, whatever their protocols: it takes
/// [`GroupArgs`](crate::layout::GroupArgs).
pub const GROUP_KERNEL: &str = "ccl_group_bytes_copy";

/// A dtype in the names of kernels.
pub const fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::I8 => "i8",
        Dtype::U8 => "u8",
        Dtype::I32 => "i32",
        Dtype::U32 => "u32",
        Dtype::I64 => "i64",
        Dtype::U64 => "u64",
        Dtype::F16 => "f16",
        Dtype::F32 => "f32",
        Dtype::F64 => "f64",
        Dtype::Bf16 => "bf16",
        Dtype::F8E4m3 => "f8e4m3",
        Dtype::F8E5m2 => "f8e5m2",
    }
}

/// What two contributions are combined by, in the names of kernels.
pub const fn fold_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::PreMulSum => "sum",
        ReduceOp::Product => "prod",
        ReduceOp::Max => "max",
        ReduceOp::Min => "min",
    }
}

/// What a reduce operation does beside the fold, as [`LaunchArgs::flags`].
pub const fn finish_flags(op: ReduceOp) -> u32 {
    match op {
        ReduceOp::Average => LaunchArgs::DIVIDES,
        ReduceOp::PreMulSum => LaunchArgs::SCALES,
        _ => 0,
    }
}

/// Thread blocks of a call, all of which must be resident at once: one for each lane of each channel.
pub fn grid_blocks(program: &Checked, channels: u16) -> u32 {
    u32::from(channels) * program.lanes.len() as u32
}

/// Threads of a block that `workers` threads of move data: a multiple of 32, a warp more that tells peers, and one that looks
/// ahead.
pub const fn block_threads(workers: u32) -> u32 {
    workers.next_multiple_of(32) + 64
}

/// Shared memory of a block.
pub const SHARED_BYTES: u32 = 8192;

/// Scratch of a launch.
pub fn scratch_bytes(program: &Checked, channels: u16, chunk_count: usize, element_bytes: usize) -> usize {
    let cells = usize::from(program.scratch_chunks) * grid_blocks(program, channels) as usize;
    cells * (chunk_count * element_bytes).next_multiple_of(CELL_ALIGN_BYTES)
}

/// An edge that a program uses, on every channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EdgeUse {
    /// The rank at the other end.
    pub peer: Rank,
    /// Tells parallel edges apart.
    pub tag: u8,
    /// Which way messages go.
    pub direction: Direction,
}

/// The edges that calls of a program may use, whatever their counts, in ascending order. `root` is the root's rank, or
/// the peer's of a message; `order` the rank at each place.
pub fn edges(program: &Checked, n: u32, rank: Rank, root: Rank, order: Option<&[Rank]>) -> Vec<EdgeUse> {
    let mut found = BTreeSet::new();
    for lane in 0..program.lanes.len() {
        let layout = full(program, n, rank, order);
        let mut cursor = Cursor::new(program, lane, Channel(0), &layout, root);
        while let Some(action) = cursor.next(program, &layout) {
            match action {
                Action::Move(step) => {
                    found.extend(step.inputs().iter().chain(step.outputs()).filter_map(edge_use));
                }
                Action::Signal(site) | Action::Wait(site) => found.extend(edge_use(&site)),
                Action::Barrier => {}
            }
        }
    }
    found.into_iter().collect()
}

/// A call in which no Move is empty because of its count.
fn full<'a>(program: &Checked, n: u32, rank: Rank, order: Option<&'a [Rank]>) -> Layout<'a> {
    let shares = program.lanes.iter().map(|lane| usize::from(lane.shares)).max().unwrap_or(1);
    let chunks = if program.collective.input() == Shape::Whole { program.chunks.of(n) } else { 1 };
    // Lanes may cut the data into different numbers of shares: twice the largest gives each a chunk of its own.
    let count = 2 * shares * chunks;
    Layout { order, ..Layout::even(program.collective, n, rank, count, count) }
}

fn edge_use(site: &Site) -> Option<EdgeUse> {
    match *site {
        Site::Receive { peer, tag } => Some(EdgeUse { peer, tag, direction: Direction::Receive }),
        Site::Send { peer, tag } => Some(EdgeUse { peer, tag, direction: Direction::Send }),
        _ => None,
    }
}

/// The instructions, as bits, that always send the same to all others, whatever the count: in one Move, or in Moves that follow
/// each other. Only the first lane that has any counts, since a rank's shared slots belong to one; and only the first 64
/// instructions. 0 where there are not two others.
pub fn shared(program: &Checked, n: u32, rank: Rank, root: Rank, order: Option<&[Rank]>) -> u64 {
    let of_lane = |lane: usize| {
        let layout = full(program, n, rank, order);
        let mut cursor = Cursor::new(program, lane, Channel(0), &layout, root);
        let (mut sends, mut fails, mut run) = (0u64, 0u64, None::<Run>);
        loop {
            let action = cursor.next(program, &layout);
            let next = match &action {
                Some(Action::Move(step)) => Some(Run::of(cursor.instruction(), step)),
                _ => None,
            };
            match (&mut run, next) {
                (Some(run), Some(next)) if run.goes_on_with(&next) => run.take(next),
                (_, next) => {
                    if let Some(ended) = std::mem::replace(&mut run, next) {
                        *(if ended.reaches(n) { &mut sends } else { &mut fails }) |= ended.instructions;
                    }
                }
            }
            if action.is_none() {
                return sends & !fails;
            }
        }
    };
    if n < 3 { 0 } else { (0..program.lanes.len()).map(of_lane).find(|bits| *bits != 0).unwrap_or(0) }
}

/// Moves that follow each other and send the same.
struct Run {
    /// The instructions, as bits.
    instructions: u64,
    /// What is sent, if it lies in memory.
    source: Option<(Site, usize)>,
    is_whole: bool,
    peers: BTreeSet<Rank>,
}

impl Run {
    fn of(instruction: usize, step: &Step) -> Run {
        let source = match step.inputs() {
            [Site::Receive { .. }] => None,
            [source] => Some((*source, step.count)),
            _ => None,
        };
        let peer = |site: &Site| match site {
            Site::Send { peer, .. } => Some(*peer),
            _ => None,
        };
        let peers = step.outputs().iter().filter_map(peer).collect();
        let instructions = 1u64.checked_shl(instruction as u32).unwrap_or(0);
        Run { instructions, source, is_whole: step.pieces == 1, peers }
    }

    fn goes_on_with(&self, next: &Run) -> bool {
        let both_send = !self.peers.is_empty() && !next.peers.is_empty();
        both_send && next.source.is_some() && next.source == self.source
    }

    fn take(&mut self, next: Run) {
        self.instructions |= next.instructions;
        self.is_whole &= next.is_whole;
        self.peers.extend(next.peers);
    }

    fn reaches(&self, n: u32) -> bool {
        self.is_whole && self.peers.len() + 1 == n as usize
    }
}

/// What is uploaded of a program: a [`DevicePlan`] and what it points to, for 16-byte aligned device memory at
/// `address`. `order` is the rank at each place, `shared` what [`shared`] says.
pub fn plan_image(program: &Checked, order: Option<&[Rank]>, shared: u64, address: u64) -> Vec<u8> {
    let text = program.to_bytes();
    let start = size_of::<DevicePlan>().next_multiple_of(16);
    let tables = (start + text.len()).next_multiple_of(16);
    let n = order.map_or(0, <[Rank]>::len);
    let at = |offset: usize| if order.is_some() { address + offset as u64 } else { 0 };
    let plan = DevicePlan {
        program: address + start as u64,
        rank_at: at(tables),
        place_of: at(tables + 4 * n),
        program_bytes: text.len() as u32,
        lanes: program.lanes.len() as u32,
        collective: program.collective as u32,
        scratch_cells: u32::from(program.scratch_chunks),
        input_shape: shape_code(program.collective.input()),
        output_shape: shape_code(program.collective.output()),
        shared,
    };
    let mut image = bytes_of(&plan).to_vec();
    image.resize(start, 0);
    image.extend(text);
    image.resize(tables, 0);
    for value in order.map_or_else(Vec::new, order_tables) {
        image.extend(value.to_le_bytes());
    }
    image
}

/// The rank at each place, then the place of each rank.
fn order_tables(order: &[Rank]) -> Vec<u32> {
    let mut places = vec![0; order.len()];
    for (place, rank) in order.iter().enumerate() {
        places[rank.index()] = place as u32;
    }
    order.iter().map(|rank| rank.0).chain(places).collect()
}

const fn shape_code(shape: Shape) -> u32 {
    match shape {
        Shape::None => 0,
        Shape::Whole => 1,
        Shape::PerRank => 2,
        Shape::Own => 3,
    }
}

/// Cells of scratch begin at multiples of this.
const CELL_ALIGN_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use ccl_plan::{Algorithm, Place, Plan};

    use super::*;
    use crate::layout::record_of;

    fn program(collective: Collective, algorithm: Algorithm, n: u32) -> Checked {
        Plan::new(collective, algorithm, n).unwrap().program(Place(1), Place(0)).check(n).unwrap()
    }

    #[test]
    fn a_slot_holds_what_its_stride_was_made_for() {
        for protocol in Protocol::ALL {
            for payload in [0, 1, 8, 64, 119, 120, 121, 1000, 65_536] {
                let stride = protocol.stride_bytes(payload);
                assert!(protocol.payload_bytes(stride) >= payload, "{protocol} {payload}");
                assert!(stride >= 128 && stride.is_multiple_of(128));
            }
        }
    }

    #[test]
    fn a_ring_uses_the_edges_of_its_neighbours() {
        let edges = edges(&program(Collective::AllReduce, Algorithm::Ring, 5), 5, Rank(1), Rank(0), None);
        let edge = |peer, direction| EdgeUse { peer: Rank(peer), tag: 0, direction };
        assert_eq!(edges, [edge(0, Direction::Receive), edge(2, Direction::Send)]);
    }

    #[test]
    fn an_order_turns_peers_into_other_ranks() {
        let order = [3, 1, 0, 2].map(Rank);
        let ring = program(Collective::AllReduce, Algorithm::Ring, 4);
        let edges = edges(&ring, 4, Rank(1), Rank(0), Some(&order));
        assert_eq!(edges.iter().map(|edge| edge.peer.0).collect::<Vec<_>>(), [0, 3]);
    }

    #[test]
    fn what_all_others_are_sent_is_found() {
        use Algorithm::{Binomial, Direct, OneShot, Ring, TwoShot};
        use Collective::{AllGather, AllGatherV, AllReduce, AllToAll, Broadcast};

        let bits = |collective, algorithm, n| {
            let place = if collective == Broadcast { Place(0) } else { Place(1) };
            let program =
                Plan::new(collective, algorithm, n).unwrap().program(place, Place(0)).check(n).unwrap();
            shared(&program, n, Rank(place.0), Rank(0), None)
        };
        // Behind the mark of a loop.
        for n in [3, 4, 8] {
            let all = [(AllGather, Direct), (AllGatherV, Direct), (AllReduce, OneShot)];
            assert_eq!(all.map(|(collective, algorithm)| bits(collective, algorithm, n)), [0b10; 3], "{n}");
        }
        // Moves with up to four outputs, of many ranks a loop.
        assert_eq!([3, 4, 5, 8, 9].map(|n| bits(Broadcast, Direct, n)), [1, 1, 0b11, 0b11, 0b111]);
        assert_eq!(bits(Broadcast, Direct, 33), 0b10);
        // One loop sends each its own; of three ranks one Move sends to both others, of many a loop does.
        assert_eq!(bits(AllReduce, TwoShot, 3), 1 << 3);
        assert!(bits(AllReduce, TwoShot, 8).is_power_of_two() && bits(AllReduce, TwoShot, 8) > 1 << 3);
        let others = [(Broadcast, Ring), (Broadcast, Binomial), (AllToAll, Direct), (AllReduce, Ring)];
        assert_eq!(others.map(|(collective, algorithm)| bits(collective, algorithm, 8)), [0; 4]);
        assert_eq!(bits(AllGather, Direct, 2), 0);
    }

    #[test]
    fn an_image_points_into_itself() {
        let ring = program(Collective::AllReduce, Algorithm::Ring, 3);
        let image = plan_image(&ring, Some(&[2, 0, 1].map(Rank)), 5, 1 << 20);
        let plan: DevicePlan = record_of(&image).unwrap();
        let at = |address: u64| &image[(address - (1 << 20)) as usize..];
        assert_eq!(at(plan.program)[..plan.program_bytes as usize], ring.to_bytes()[..]);
        assert_eq!(at(plan.rank_at)[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(at(plan.place_of)[..8], [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(at(plan.place_of).len(), 12);
        assert_eq!(plan.shared, 5);
    }
}
