//! Short all-reduces by a kernel of their own, which gives the bytes of `all_reduce.one_shot` without interpreting it:
//! every rank writes lines to an inbox in every other's region, and folds what it finds in its own.

use ccl_cuda::{DeviceMemory, Stream};
use ccl_kernels::layout::bytes_of;
use ccl_kernels::shape::{Protocol, finish_flags};
use ccl_kernels::special::{Special, SpecialArgs, SpecialPeer};
use ccl_plan::select::{Choice, Rule};
use ccl_plan::{Algorithm, Collective, Dtype, Rank};

use super::engine::Call;
use super::peers::{Link, Peers};
use super::region::RegionView;
use super::signals::Signals;
use super::{Opened, failed, protocol};
use crate::config::{Choices, Config};
use crate::error::Result;

/// What launches of the kernel share, on one rank.
pub(crate) struct OneShot {
    me: Rank,
    n: u32,
    most_bytes: usize,
    /// A [`SpecialPeer`] for every rank.
    peers: DeviceMemory,
    /// Launches so far, for each block.
    epochs: DeviceMemory,
    /// The same in every launch: the blocks count launches each for itself.
    pub(super) blocks: u32,
    pub(super) threads: u32,
}

/// Measured with 2 and 8 ranks on one device: up to here the kernel takes a half to a third of what programs take.
const USUAL_BYTES: usize = 256 << 10;
/// What each of 8 ranks sends so.
const USUAL_SENT_BYTES: usize = 8 * USUAL_BYTES;
/// More blocks than this do not make a short vector faster.
const MOST_BLOCKS: usize = 16;
/// Of a block: what the kernels are compiled for.
pub(super) const MOST_THREADS: u32 = 512;

impl OneShot {
    /// Nothing where the setting wants none, or some rank cannot write to another's inbox. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn new(
        (me, n): (Rank, u32),
        peers: &Peers,
        opened: &Opened,
        stream: &Stream,
    ) -> Result<Option<OneShot>> {
        if !peers.ways.direct || peers.view.inbox_bytes == 0 {
            return Ok(None);
        }
        let table = peers_table(n, peers, opened, stream)?;
        let threads = opened.worker_threads.min(MOST_THREADS).next_multiple_of(32);
        let most_bytes = OneShot::most_bytes(opened.one_shot_bytes, opened.protocols.as_ref(), n);
        // Two of them take as much room as a block of a channel.
        let room = 2 * usize::from(peers.channels.collectives);
        let blocks = most_bytes.div_ceil(8 * threads as usize).clamp(1, MOST_BLOCKS.min(room)) as u32;
        let epochs = opened.memory(blocks as usize * size_of::<u64>())?;
        epochs.fill(0, stream).and_then(|()| stream.synchronize()).map_err(failed)?;
        Ok(Some(OneShot { me, n, most_bytes, peers: table, epochs, blocks, threads }))
    }

    /// The longest all-reduce among `n` ranks that the kernel makes where ways are direct, as settings have it: whoever leaves out
    /// its protocol leaves it out, too. Not set: what was measured, and no more than 2 MiB sent by each rank to all.
    pub(super) fn most_bytes(said: Option<usize>, protocols: Option<&Choices>, n: u32) -> usize {
        match said {
            _ if n < 2 || !protocol::allows(protocols, Collective::AllReduce, Protocol::Ll) => 0,
            Some(bytes) => bytes,
            None => (USUAL_SENT_BYTES / n as usize).min(USUAL_BYTES),
        }
    }

    /// That it makes the calls it can, above what a cost model says of programs: nothing where the tuning says something itself.
    pub(crate) fn rule(config: &Config, n: u32, others: &[Rule]) -> Option<Rule> {
        let collective = Collective::AllReduce;
        let said = config.cuda_one_shot().map(|bytes| bytes as usize);
        let up_to = OneShot::most_bytes(said, config.proto(), n) as u64;
        let choice = Choice { algorithm: Special::OneShot.algorithm(), channels: 1 };
        let speaks = up_to > 0 && others.iter().all(|rule| rule.collective != collective);
        speaks.then_some(Rule { collective, from: 0, up_to, choice })
    }

    /// Its device memory, but for inboxes.
    pub(super) fn memory(&self) -> [&DeviceMemory; 2] {
        [&self.peers, &self.epochs]
    }

    /// Whether the kernel makes a call: all ranks answer the same for the same call.
    pub(super) fn serves(
        &self,
        (collective, dtype, count): (Collective, Dtype, usize),
        algorithm: Algorithm,
    ) -> bool {
        collective == Collective::AllReduce
            && algorithm == Special::OneShot.algorithm()
            && (1..=self.most_bytes).contains(&count.saturating_mul(dtype.size_bytes()))
    }

    pub(super) fn args(&self, call: &Call, signals: &Signals, inbox_bytes: usize) -> SpecialArgs {
        SpecialArgs {
            peers: self.peers.address(),
            epochs: self.epochs.address(),
            inbox_bytes: inbox_bytes as u64,
            ..args((self.me, self.n), call, signals)
        }
    }
}

/// What every special kernel is told of a call.
pub(super) fn args((me, n): (Rank, u32), call: &Call, signals: &Signals) -> SpecialArgs {
    let Call { bound, tag, .. } = call;
    SpecialArgs {
        abort: signals.abort_address(),
        error: signals.error_address(),
        input: bound.send.addr() as u64,
        output: bound.recv.addr() as u64,
        count: bound.count as u64,
        scalar_bits: bound.reduce.scalar().to_bits(),
        rank: me.0,
        n,
        flags: finish_flags(bound.reduce.op()),
        tag: *tag,
        ..SpecialArgs::default()
    }
}

/// Where the special kernels find each rank's inbox and mail. Blocks for the device.
///
/// # Errors
///
/// Of the driver.
pub(super) fn peers_table(n: u32, peers: &Peers, opened: &Opened, stream: &Stream) -> Result<DeviceMemory> {
    let record = |link: &Link| match link {
        Link::Direct { address, .. } => {
            let view = RegionView { address: *address, ..peers.view };
            SpecialPeer {
                inbox: view.inbox(n as usize),
                mail: view.mail(n as usize),
                ..SpecialPeer::default()
            }
        }
        Link::Proxied(_) => SpecialPeer::default(),
    };
    let records: Vec<u8> = peers.links.iter().flat_map(|link| bytes_of(&record(link)).to_vec()).collect();
    let table = opened.memory(records.len())?;
    table.write(0, &records, stream).map_err(failed)?;
    Ok(table)
}
