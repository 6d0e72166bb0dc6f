//! The cost model: closed formulas for the time of a plan, one for each algorithm.
//!
//! A plan's [`Cost`] counts what lies on its critical path; [`Rates`] of a link class turn counts into
//! time. S is the larger of a rank's user buffers in bytes: the vector, or all n blocks. The
//! formulas are those of the algorithms' own descriptions, and the [`clock`](crate::machine::clock)
//! gives the same result for the same plan. They leave out contention: that is the simulator's. Where ranks are
//! of several nodes, [`Nodes`] has formulas for what stays in a node and what leaves it.

mod counted;
mod crowd;
mod logarithmic;
mod multicast;
mod nodes;
mod shared;
mod work;

pub use self::counted::Counted;
use self::multicast::multicast;
pub use self::multicast::{Multicast, sends_to_all};
pub use self::nodes::{Nodes, Traffic, cost_by_nodes};
pub use self::shared::SHORT_BYTES;
use self::shared::shared;
use self::work::work;
use crate::algo::Algorithm;
use crate::collective::Collective;

/// What one link class costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// α: time for a message to arrive, whatever its size, in which nobody need do anything.
    pub alpha_ns: f64,
    /// What α grows by for each rank that shares the receiver's core: it has to be given the core first.
    pub switch_ns: f64,
    /// What it has grown by: none before it is known how many share a core ([`Rates::on`]).
    pub turn_ns: f64,
    /// Time that a rank works on one message, its sender's part and its receiver's together.
    pub message_ns: f64,
    /// Time that a rank needs for one Move whatever its length.
    pub move_ns: f64,
    /// β: time per byte of a rank's link, all channels together.
    pub beta_ns_per_byte: f64,
    /// Time per byte that one channel achieves alone.
    pub channel_beta_ns_per_byte: f64,
    /// γ: time per byte folded on one channel.
    pub gamma_ns_per_byte: f64,
    /// How many times as long bytes take, beside 1, where calls are much longer than `far_bytes`: caches.
    pub far: f64,
    /// The call of which half of that is felt.
    pub far_bytes: f64,
    /// Channels that make progress at the same time: cores or thread blocks.
    pub workers: u16,
    /// Bytes of one slot.
    pub chunk_bytes: u64,
    /// Bytes of a call for each of its channels, at least; 0: channels pay from the first byte on.
    pub least_channel_bytes: u64,
    /// Cores that all ranks share; 0 if each has one of its own.
    pub cores: u32,
    /// Whether receivers read long messages straight out of the sender's memory, so that a sender of
    /// what it already has does nothing for them.
    pub pulls: bool,
    /// Whether one slot serves all receivers of the same.
    pub shares: bool,
    /// Where a switch copies what a rank sends to all others.
    pub multicast: Multicast,
    /// Whose processors it was measured on, where ranks share cores: what messages and bytes count there depends on it.
    pub make: Make,
}

/// Who made a processor, as far as costs differ by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    /// AMD.
    Amd,
    /// Anyone else; measured on processors of Intel.
    Other,
}

/// What a plan costs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// What lies on its critical path; of Moves, those of the busiest rank.
    pub path: Counts,
    /// What all ranks do together: where they share cores, this takes its time however short the path.
    pub all: Counts,
    /// Messages of the path that arrive one after the other while the caller waits.
    pub waits: u64,
    /// S: the larger of a rank's user buffers.
    pub bytes: f64,
}

/// How much there is of what costs time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counts {
    /// Messages.
    pub messages: u64,
    /// Moves, signals and waits.
    pub moves: u64,
    /// Bytes moved.
    pub moved_bytes: f64,
    /// Bytes folded.
    pub folded_bytes: f64,
}

impl Counts {
    /// One after the other.
    #[must_use]
    pub fn and(&self, then: &Counts) -> Counts {
        Counts {
            messages: self.messages + then.messages,
            moves: self.moves + then.moves,
            moved_bytes: self.moved_bytes + then.moved_bytes,
            folded_bytes: self.folded_bytes + then.folded_bytes,
        }
    }
}

impl Rates {
    /// Ranks of one host, measured (`docs/measuring.md`); `ccl tune` measures others.
    pub const SHARED_MEMORY: Rates = Rates {
        alpha_ns: 0.0,
        switch_ns: 1_000.0,
        turn_ns: 0.0,
        message_ns: 450.0,
        move_ns: 5.0,
        beta_ns_per_byte: 0.15,
        channel_beta_ns_per_byte: 0.15,
        gamma_ns_per_byte: 0.05,
        far: 1.0,
        far_bytes: 6e6,
        workers: 1,
        chunk_bytes: 32 << 10,
        least_channel_bytes: 0,
        cores: 0,
        pulls: false,
        shares: true,
        multicast: Multicast::NONE,
        make: Make::Other,
    };

    /// The same where ranks may read each other's memory.
    pub const SHARED_MEMORY_DIRECT: Rates = Rates { pulls: true, ..Rates::SHARED_MEMORY };

    /// TCP over a 10 Gb/s network.
    pub const SOCKET: Rates = Rates {
        alpha_ns: 15_000.0,
        switch_ns: 0.0,
        turn_ns: 0.0,
        message_ns: 0.0,
        move_ns: 2_000.0,
        beta_ns_per_byte: 0.8,
        channel_beta_ns_per_byte: 1.6,
        gamma_ns_per_byte: 0.1,
        far: 0.0,
        far_bytes: 1.0,
        workers: 4,
        chunk_bytes: 128 << 10,
        least_channel_bytes: 0,
        cores: 0,
        pulls: false,
        shares: false,
        multicast: Multicast::NONE,
        make: Make::Other,
    };

    /// TCP between the ranks of one host, which costs its cores more than they wait; measured.
    pub const LOOPBACK: Rates = Rates {
        alpha_ns: 700.0,
        switch_ns: 1_100.0,
        turn_ns: 0.0,
        message_ns: 3_000.0,
        move_ns: 150.0,
        beta_ns_per_byte: 0.21,
        channel_beta_ns_per_byte: 0.21,
        gamma_ns_per_byte: 0.05,
        far: 0.55,
        far_bytes: 6e6,
        workers: 1,
        chunk_bytes: 256 << 10,
        least_channel_bytes: 0,
        cores: 0,
        pulls: false,
        shares: false,
        multicast: Multicast::NONE,
        make: Make::Other,
    };

    /// The same on an AMD processor, where a message is more work and a byte less; measured.
    pub const LOOPBACK_AMD: Rates = Rates {
        message_ns: 4_700.0,
        beta_ns_per_byte: 0.15,
        channel_beta_ns_per_byte: 0.15,
        make: Make::Amd,
        ..Rates::LOOPBACK
    };

    /// RDMA over a 200 Gb/s network.
    pub const RDMA: Rates = Rates {
        alpha_ns: 2_500.0,
        switch_ns: 0.0,
        turn_ns: 0.0,
        message_ns: 0.0,
        move_ns: 300.0,
        beta_ns_per_byte: 0.04,
        channel_beta_ns_per_byte: 0.08,
        gamma_ns_per_byte: 0.05,
        far: 0.0,
        far_bytes: 1.0,
        workers: 4,
        chunk_bytes: 512 << 10,
        least_channel_bytes: 0,
        cores: 0,
        pulls: false,
        shares: false,
        multicast: Multicast::NONE,
        make: Make::Other,
    };

    /// Devices that reach each other's memory: of the order of NVLink, and of one block of threads for each channel. What a block
    /// moves is 22 GB/s in chunks of 128 KiB on an H200; what a channel must carry is of the order that NCCL counts with, and links
    /// between devices were not measured.
    pub const DEVICES: Rates = Rates {
        alpha_ns: 2_000.0,
        switch_ns: 0.0,
        turn_ns: 0.0,
        message_ns: 0.0,
        move_ns: 300.0,
        beta_ns_per_byte: 0.003,
        channel_beta_ns_per_byte: 0.05,
        gamma_ns_per_byte: 0.02,
        far: 0.0,
        far_bytes: 1.0,
        workers: 32,
        chunk_bytes: 32 << 10,
        least_channel_bytes: 32 << 10,
        cores: 0,
        pulls: false,
        shares: false,
        multicast: Multicast::NONE,
        make: Make::Other,
    };

    /// These rates where `n` ranks share so many cores; 0 if each has one of its own.
    #[must_use]
    pub fn on(self, n: u32, cores: u32) -> Rates {
        let crowd = if cores > 0 && n > cores { f64::from(n) / f64::from(cores) } else { 0.0 };
        Rates { cores, turn_ns: crowd * self.switch_ns, ..self }
    }

    /// The time of a plan over `channels` channels: what messages take to arrive, and the work on the critical
    /// path, or that of all ranks where they have too few cores to do it side by side.
    pub fn time_ns(&self, cost: &Cost, channels: u16) -> f64 {
        let channels = channels.max(1);
        let far = self.slowed(cost.bytes);
        let beta = self.beta_ns_per_byte.max(self.channel_beta_ns_per_byte / f64::from(channels));
        let (turns, side_by_side) = (self.turns(channels), self.side_by_side(channels));
        let work = |counts: &Counts, beta: f64, turns: f64, side_by_side: f64| {
            let steps = counts.messages as f64 * self.message_ns + counts.moves as f64 * self.move_ns;
            let folds = counts.folded_bytes * self.gamma_ns_per_byte / side_by_side;
            steps * turns + (counts.moved_bytes * beta + folds) * far
        };
        let path_ns = work(&cost.path, beta, turns, side_by_side);
        let work_ns = match self.cores {
            0 => path_ns,
            cores => work(&cost.all, self.beta_ns_per_byte, f64::from(channels), 1.0) / f64::from(cores),
        };
        cost.waits as f64 * (self.alpha_ns + self.turn_ns) + path_ns.max(work_ns)
    }

    /// The least calls of a collective among `n` ranks at which its costs jump: where messages are read where the sender has
    /// them, and where what all are sent is stored once.
    pub(crate) fn jumps(&self, collective: Collective, n: u32) -> impl Iterator<Item = u64> {
        self.jumps_at(collective, n).into_iter().chain(self.multicast.from(collective).filter(|_| n > 2))
    }

    /// The least call of a collective among `n` ranks whose messages are read where the sender has them, if there is
    /// one.
    fn jumps_at(&self, collective: Collective, n: u32) -> Option<u64> {
        let from = read_from_bytes(collective, n).filter(|_| self.pulls)?;
        Some(match collective {
            Collective::Send | Collective::Recv => from,
            _ => from * u64::from(n),
        })
    }

    /// How many times as long bytes take in a call of so many.
    fn slowed(&self, bytes: f64) -> f64 {
        1.0 + self.far * self.farness(bytes)
    }

    /// How far a call of so many bytes has left the caches: from 0, not at all, to 1.
    fn farness(&self, bytes: f64) -> f64 {
        bytes / (bytes + self.far_bytes.max(1.0))
    }

    /// How often a worker takes a step that there is once on each channel: workers share the channels.
    fn turns(&self, channels: u16) -> f64 {
        f64::from(channels.max(1).div_ceil(self.workers.max(1)))
    }

    /// Channels that fold at the same time.
    fn side_by_side(&self, channels: u16) -> f64 {
        f64::from(channels.max(1).min(self.workers.max(1)))
    }
}

/// What a collective of `bytes` costs among `n` ranks, at `rates` on each of `channels` channels.
/// Zero for one rank, and for programs of the user's, which are [`Counted`].
pub fn cost(
    collective: Collective,
    algorithm: Algorithm,
    n: u32,
    bytes: u64,
    rates: &Rates,
    channels: u16,
) -> Cost {
    if n < 2 {
        return Cost::default();
    }
    let load = Load { n, bytes, pass_bytes: rates.chunk_bytes.max(1) * u64::from(channels.max(1)) };
    let (path, all) = (pushed(collective, algorithm, &load), work(collective, algorithm, &load));
    let pushed = Cost { path, all, waits: path.messages, bytes: bytes as f64 };
    let cost = match rates.jumps_at(collective, n) {
        Some(from) if bytes >= from => pulled(collective, algorithm, &load, pushed),
        _ if rates.shares => shared(collective, algorithm, &load, rates, pushed),
        _ if rates.multicast.serves(collective, algorithm, n, bytes) => {
            multicast((collective, algorithm), &load, (rates, channels), pushed)
        }
        _ => pushed,
    };
    match rates.turn_ns > 0.0 {
        true if !rates.shares => crowd::over_sockets(collective, algorithm, n, rates, cost),
        true if collective.rooted() => crowd::crowded(algorithm, n, rates, cost),
        true => crowd::in_memory(collective, algorithm, (n, rates.make), &pushed, cost),
        false => cost,
    }
}

/// From how many bytes on a message of a collective among `n` ranks is better read where the sender has it than copied
/// into slots and out of them, if all of its messages can be; `None` if however long it is not. Measured: ADR 0029 and,
/// since slots serve several receivers, 0032; on newer processors 0075 and 0124.
pub const fn read_from_bytes(collective: Collective, n: u32) -> Option<u64> {
    match collective {
        // Every rank sends and receives at the same time, and one copy is less work than two; but one to a slot that
        // serves many is less work than each receiver's call into the kernel.
        Collective::AllGather | Collective::AllGatherV if n > 6 => None,
        Collective::AllGather | Collective::AllGatherV if n > 3 => Some(128 << 10),
        // One peer's slots are fast enough, and what they bring is folded on the way; so are those of three.
        Collective::ReduceScatter | Collective::ReduceScatterV if n == 2 || n == 4 => None,
        Collective::Scatter | Collective::ScatterV if n == 2 => None,
        Collective::AllGather
        | Collective::AllGatherV
        | Collective::ReduceScatter
        | Collective::ReduceScatterV => Some(32 << 10),
        Collective::AllToAll | Collective::AllToAllV => Some(16 << 10),
        // So do many messages. Readers of a scatter work side by side, and the root not at all.
        Collective::Send | Collective::Recv | Collective::Scatter | Collective::ScatterV => Some(48 << 10),
        // Half of what an all-reduce would read was just written by another core, and goes to all others. Who only sends
        // would look on while others copy, and a root that reads would work alone.
        Collective::AllReduce
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::Gather
        | Collective::GatherV
        | Collective::Barrier => None,
    }
}

/// Whether ranks send the same to several others, so that one slot may serve these.
pub const fn sends_the_same(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::Broadcast | Collective::AllGather | Collective::AllGatherV | Collective::AllReduce
    )
}

/// The same where receivers read what they can out of the sender's memory.
fn pulled(collective: Collective, algorithm: Algorithm, load: &Load, pushed: Cost) -> Cost {
    let Cost { path, all, bytes, .. } = pushed;
    let moved = |times: f64, counts: Counts| Counts { moved_bytes: times * counts.moved_bytes, ..counts };
    let copies = match (collective, algorithm) {
        _ if through_slots(collective, algorithm, load.n) => 2.0,
        // All others' contributions at the same time, each read into scratch first and then folded.
        (Collective::ReduceScatter, Algorithm::Direct | Algorithm::DirectTree) if load.n > 2 => {
            READ_AND_FOLDED
        }
        _ => 1.0,
    };
    let path = match (collective, algorithm) {
        // The readers work side by side, and the root not at all.
        (Collective::Scatter | Collective::ScatterV, Algorithm::Direct) => {
            Counts { moved_bytes: bytes / f64::from(load.n), ..path }
        }
        _ => moved(copies, path),
    };
    Cost { path, all: moved(copies, all), ..pushed }
}

/// Copies that reading a contribution and then folding it is worth, among more than two ranks: measured with 4 and 8, where it takes
/// 1.2 to 1.8 times as long as a ring.
const READ_AND_FOLDED: f64 = 1.4;

/// Whether data is copied in and out of slots even where others are read in place: partial results, and spans
/// of blocks.
const fn through_slots(collective: Collective, algorithm: Algorithm, n: u32) -> bool {
    match (collective, algorithm) {
        // Only more than two ranks can do both copies side by side.
        (Collective::ReduceScatter, Algorithm::Ring) => n == 2,
        (Collective::AllToAll, Algorithm::Bruck)
        | (
            Collective::AllGather | Collective::ReduceScatter,
            Algorithm::Bruck | Algorithm::RecursiveDoubling | Algorithm::Pat,
        )
        | (Collective::Scatter, Algorithm::Binomial) => true,
        _ => false,
    }
}

/// The path where senders copy to slots and receivers out of them.
// long: an arm for each algorithm
fn pushed(collective: Collective, algorithm: Algorithm, load: &Load) -> Counts {
    let (n, bytes) = (load.n, load.bytes);
    let peers = u64::from(n - 1);
    let whole = bytes as f64;
    // What a rank keeps to itself is one n-th.
    let shared = whole * peers as f64 / f64::from(n);
    let block_passes = load.passes(bytes.div_ceil(u64::from(n)));
    let passes = load.passes(bytes);
    let folded = |bytes: f64| if collective.reduces() { bytes } else { 0.0 };
    let n = u64::from(n);
    let folds = fold_moves(n, algorithm);
    match (collective, algorithm) {
        (Collective::Broadcast | Collective::Reduce, Algorithm::Ring) => {
            // A pipeline: the first chunk passes n−1 hops, the others follow.
            let moved_bytes = (peers - 1 + passes) as f64 * whole / passes as f64;
            Counts { messages: peers, moves: passes, moved_bytes, folded_bytes: folded(moved_bytes) }
        }
        (Collective::AllReduce, Algorithm::Ring) => Counts {
            messages: 2 * peers,
            moves: (2 * n - 1) * block_passes,
            moved_bytes: 2.0 * shared,
            folded_bytes: shared,
        },
        (_, Algorithm::TwoLevel | Algorithm::TwoLevelHalving) => {
            let g = algorithm.bundle(n as u32);
            two_levels(load, algorithm, (g, g, n as u32 / g))
        }
        (_, Algorithm::Ring) => Counts {
            messages: peers,
            moves: n * block_passes,
            moved_bytes: shared,
            folded_bytes: folded(shared),
        },
        (_, Algorithm::TwoShot | Algorithm::TwoShotTree) => Counts {
            messages: 2,
            moves: (2 * peers + folds + if n <= 4 { 0 } else { peers }) * block_passes,
            moved_bytes: 2.0 * shared,
            folded_bytes: shared,
        },
        (
            _,
            Algorithm::Dissemination
            | Algorithm::Binomial
            | Algorithm::RecursiveDoubling
            | Algorithm::Bruck
            | Algorithm::Rabenseifner
            | Algorithm::Swing
            | Algorithm::DoubleTree
            | Algorithm::Pat,
        ) => logarithmic::cost(collective, algorithm, load),
        (_, Algorithm::User) => Counts::default(),
        (_, Algorithm::OneShot | Algorithm::OneShotTree) => {
            let all = peers as f64 * whole;
            Counts { messages: 1, moves: (peers + folds) * passes, moved_bytes: all, folded_bytes: all }
        }
        (Collective::Broadcast | Collective::Reduce, Algorithm::Direct | Algorithm::DirectTree) => {
            let all = peers as f64 * whole;
            // What a Move takes that serves several grows with them.
            let moves = if collective == Collective::Reduce { folds } else { n };
            Counts { messages: 1, moves: moves * passes, moved_bytes: all, folded_bytes: folded(all) }
        }
        (Collective::Send | Collective::Recv, _) => {
            Counts { messages: 1, moves: passes, moved_bytes: whole, folded_bytes: 0.0 }
        }
        (Collective::Gather | Collective::Scatter | Collective::GatherV | Collective::ScatterV, _) => {
            Counts { messages: 1, moves: n * block_passes, moved_bytes: shared, folded_bytes: 0.0 }
        }
        (_, Algorithm::Direct | Algorithm::DirectTree) => Counts {
            messages: 1,
            moves: (peers + if collective.reduces() { folds } else { n }) * block_passes,
            moved_bytes: shared,
            folded_bytes: folded(shared),
        },
    }
}

/// Moves of a rank that folds what all have sent to it.
fn fold_moves(n: u64, algorithm: Algorithm) -> u64 {
    let in_tree = algorithm.without_tree().is_some();
    // Few contributions are one Move (see `algo::in_order`); in a tree every pair looks at what its sum may meet,
    // besides.
    match n {
        0..=3 => 1,
        4 => 1 + u64::from(in_tree),
        _ => n + if in_tree { n / 2 } else { 0 },
    }
}

/// In the node a ring with a span of chunks at a time, between nodes a ring or halving, in the node again. Nodes are of
/// `most` ranks at most, and have `least` parts.
fn two_levels(load: &Load, algorithm: Algorithm, (most, least, nodes): (u32, u32, u32)) -> Counts {
    let halving = algorithm == Algorithm::TwoLevelHalving;
    let between = u64::from(if halving { crate::algo::rounds(nodes) } else { nodes - 1 });
    let messages = 2 * u64::from(most - 1) + 2 * between;
    let shared = load.bytes as f64 * f64::from(load.n - 1) / f64::from(load.n);
    let widest = if most == 1 || nodes == 1 { 1 } else { nodes };
    let chunk = load.bytes.div_ceil(u64::from(least * nodes));
    // Each of the rings begins with a Move of its own, or two that a plain ring makes one of.
    let moves = if widest == 1 { messages + 1 } else { messages + 3 };
    Counts {
        messages,
        moves: moves * load.passes(chunk * u64::from(widest)),
        moved_bytes: 2.0 * shared,
        folded_bytes: shared,
    }
}

/// What is moved, and how it is cut.
struct Load {
    n: u32,
    /// S.
    bytes: u64,
    /// What one Move on every channel moves.
    pass_bytes: u64,
}

impl Load {
    /// Passes over so many bytes.
    fn passes(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.pass_bytes).max(1)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::ids::Rank;
    use crate::machine::clock::{Clock, Link, Moment};
    use crate::machine::{Buffers, Case, Stage, walk};
    use crate::plan::Plan;

    /// Time, critical path and steps of one pass of `count` elements of one byte.
    fn walked(collective: Collective, algorithm: Algorithm, n: u32, count: usize) -> (Moment, u64) {
        let plan = Plan::new(collective, algorithm, n).unwrap();
        let case = Case {
            n,
            count,
            channels: 1,
            chunk_count: count,
            grain_count: 1,
            slots: 8,
            root: Rank(0),
            buffers: Buffers::Apart,
            blocks: None,
        };
        let stage = Stage::new(&plan, &case).unwrap();
        let link = |_, _| Link { alpha_ns: 1000.0, beta_ns_per_byte: 1.0 };
        let walked = walk(&stage, Clock::new(link, 0.25, 1)).unwrap();
        (walked.domain.finish(), walked.steps)
    }

    /// Those of [`walked`].
    const RATES: Rates = Rates {
        alpha_ns: 1000.0,
        move_ns: 0.0,
        beta_ns_per_byte: 1.0,
        channel_beta_ns_per_byte: 1.0,
        gamma_ns_per_byte: 0.25,
        workers: 1,
        chunk_bytes: u64::MAX,
        least_channel_bytes: 0,
        switch_ns: 0.0,
        turn_ns: 0.0,
        message_ns: 0.0,
        far: 0.0,
        far_bytes: 1.0,
        cores: 0,
        pulls: false,
        shares: false,
        multicast: Multicast::NONE,
        make: Make::Other,
    };

    #[test]
    fn formulas_and_clock_agree() {
        let rates = RATES;
        use Algorithm::{Binomial, Bruck, Direct, DirectTree, OneShot, OneShotTree, Pat};
        use Algorithm::{Rabenseifner, RecursiveDoubling, Ring, TwoLevel, TwoShot, TwoShotTree};
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        let pairs = vec![
            (AllReduce, Ring),
            (AllReduce, OneShot),
            (AllReduce, TwoShot),
            (AllReduce, TwoLevel),
            (AllReduce, OneShotTree),
            (AllReduce, TwoShotTree),
            (ReduceScatter, DirectTree),
            (AllReduce, Binomial),
            (AllReduce, RecursiveDoubling),
            (AllReduce, Rabenseifner),
            (AllGather, Bruck),
            (ReduceScatter, Bruck),
            (AllGather, RecursiveDoubling),
            (ReduceScatter, RecursiveDoubling),
            (AllToAll, Bruck),
            (AllGather, Pat),
            (ReduceScatter, Pat),
            (ReduceScatter, Ring),
            (AllGather, Ring),
            (AllGather, Direct),
            (AllToAll, Direct),
            (Broadcast, Ring),
            (Reduce, Ring),
            (Broadcast, Direct),
            (Broadcast, Binomial),
            (Reduce, Binomial),
            (Scatter, Binomial),
        ];
        for (collective, algorithm) in pairs {
            let sizes = match algorithm {
                // Where ranks stand in pairs, the formula is on the safe side: of blocks, wherever they do.
                RecursiveDoubling if collective != AllReduce => [2, 4, 8].as_slice(),
                RecursiveDoubling => &[2, 3, 4, 6, 7, 8, 12, 14, 15, 24, 28, 30],
                _ => &[2, 3, 5, 6, 7, 8, 12, 14, 15, 20, 21, 24, 28],
            };
            for n in sizes.iter().copied() {
                let vector = 840;
                let count =
                    if collective.input() == crate::Shape::Whole { vector } else { vector / n as usize };
                let (moment, steps) = walked(collective, algorithm, n, count);
                let cost = cost(collective, algorithm, n, vector as u64, &rates, 1);
                let (formula, clock) = (rates.time_ns(&cost, 1), moment.ns);
                assert!((formula - clock).abs() < 1e-6, "{collective}.{algorithm} n={n}: {formula} {clock}");
                let cost = cost.path;
                assert_eq!(moment.messages, cost.messages, "{collective}.{algorithm} n={n}");
                // Of ranks that do not all do the same, the busiest counts.
                let average = steps.div_ceil(u64::from(n));
                let same = !(collective.rooted()
                    || [OneShot, TwoShot, RecursiveDoubling, Bruck, Rabenseifner, Binomial]
                        .contains(&algorithm)
                    || [OneShotTree, TwoShotTree, DirectTree].contains(&algorithm));
                let right = if same { cost.moves == average } else { cost.moves >= average };
                assert!(right, "{collective}.{algorithm} n={n}: {} {average}", cost.moves);
            }
        }
        // A root's links are not modelled by the clock, its folds are.
        assert!(walked(Reduce, Direct, 5, 100).0.folded_bytes == 400);
        assert!(walked(Gather, Direct, 5, 100).0.messages == 1);
        // Neither are a root's arrivals, which of a whole tree come one after the other anyhow.
        let gathered = walked(Gather, Binomial, 8, 100).0;
        assert_eq!((gathered.messages, gathered.moved_bytes), (3, 700));
    }

    #[test]
    fn a_double_tree_takes_no_longer_than_its_formula() {
        for n in [2, 3, 4, 5, 6, 8, 11, 12, 16, 24, 31, 32] {
            let (moment, _) = walked(Collective::AllReduce, Algorithm::DoubleTree, n, 1024);
            let cost = cost(Collective::AllReduce, Algorithm::DoubleTree, n, 1024, &RATES, 1);
            let ratio = RATES.time_ns(&cost, 1) / moment.ns;
            assert!((1.0..1.2).contains(&ratio), "n={n}: {ratio} {moment:?} {cost:?}");
        }
    }

    #[test]
    fn one_rank_is_free() {
        assert_eq!(
            cost(Collective::AllReduce, Algorithm::Ring, 1, 1 << 20, &Rates::SHARED_MEMORY, 1),
            Cost::default()
        );
    }

    #[test]
    fn bytes_are_the_least_possible() {
        let moved = |algorithm| cost(Collective::AllReduce, algorithm, 8, 8000, &RATES, 1).path.moved_bytes;
        assert_eq!(moved(Algorithm::Ring), 14_000.0);
        assert_eq!(moved(Algorithm::TwoShot), 14_000.0);
        assert_eq!(moved(Algorithm::OneShot), 56_000.0);
    }

    #[test]
    fn shared_cores_take_the_work_of_all() {
        let own = Rates::SHARED_MEMORY;
        let time = |rates: &Rates, algorithm, n, bytes| {
            rates.time_ns(&cost(Collective::ReduceScatter, algorithm, n, bytes, rates, 1), 1)
        };
        let (direct, ring) = (Algorithm::Direct, Algorithm::Ring);
        // Eight ranks on two cores: four take turns.
        let shared = own.on(8, 2);
        assert_eq!(shared.turn_ns, 4.0 * own.switch_ns);
        for bytes in [8, 4096, 1 << 20] {
            assert!(time(&shared, direct, 8, bytes) > 3.0 * time(&own, direct, 8, bytes), "{bytes}");
        }
        // A core for each, and little changes for those whose ranks all do the same.
        let ratio = time(&own.on(8, 8), ring, 8, 1 << 20) / time(&own, ring, 8, 1 << 20);
        assert!((1.0..1.1).contains(&ratio), "{ratio}");
        // What is in no slot is a third of the work.
        let work = |bytes: u64| cost(Collective::AllToAll, direct, 8, bytes, &shared, 1).all.messages;
        assert_eq!((work(8 * SHORT_BYTES), work(8 * SHORT_BYTES + 8)), (56_u64.div_ceil(3), 56));
        // Long calls leave the caches.
        let per_byte = |bytes: u64| time(&own, ring, 8, bytes) / bytes as f64;
        assert!(per_byte(1 << 30) > 1.5 * per_byte(1 << 20));
    }
}
