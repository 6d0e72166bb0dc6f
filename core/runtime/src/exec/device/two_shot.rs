//! Long all-reduces between windows by a kernel of their own, which gives the bytes of `all_reduce.two_shot` without
//! staging anything: every rank reads its part of everybody's vector and writes the result to everybody.
//!
//! A rank knows of its own buffers alone whether they lie in windows. So whether the kernel makes a call is found out
//! by the kernels, which look at what all ranks say; the interpreter is launched behind them and goes on if they have
//! not made it.

use std::sync::{Arc, Weak};

use ccl_cuda::{DeviceMemory, Stream};
use ccl_kernels::layout::bytes_of;
use ccl_kernels::special::{Special, SpecialArgs, SpecialServed};
use ccl_plan::{Algorithm, Collective, Dtype, Rank};

use super::engine::Call;
use super::peers::Peers;
use super::signals::Signals;
use super::special::{MOST_THREADS, args, peers_table};
use super::windows::{Mapped, Windows};
use super::{Opened, failed};
use crate::error::Result;

/// What launches of the kernel share, on one rank.
pub(super) struct TwoShot {
    me: Rank,
    n: u32,
    least_bytes: usize,
    /// A [`SpecialPeer`](ccl_kernels::special::SpecialPeer) for every rank.
    peers: DeviceMemory,
    /// Launches so far, for each block.
    epochs: DeviceMemory,
    /// The [`SpecialServed`].
    served: DeviceMemory,
    /// Where windows begin.
    tables: Vec<(Weak<Mapped>, DeviceMemory)>,
    most_blocks: u32,
    pub(super) threads: u32,
}

/// The windows in which a call's buffers lie: of the send buffer and of the receive buffer. Nothing if one lies in none.
pub(super) type Places = Option<[Arc<Mapped>; 2]>;

/// Blocks of all ranks that share a device. More of them were not tried in calls.
const MOST_BLOCKS: u32 = 32;
/// What a block moves at least.
const BLOCK_BYTES: usize = 64 << 10;

impl TwoShot {
    /// Blocks that every rank launches at most: as many on all, and so few that those of all ranks that share a device fit
    /// it.
    pub(super) fn most_blocks(most_sharing: u32) -> u32 {
        (MOST_BLOCKS / most_sharing.max(1)).max(1)
    }

    /// Nothing where the setting wants none, or some rank cannot write to another's mail. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn new(
        (me, n): (Rank, u32),
        peers: &Peers,
        (opened, signals): (&Opened, &Signals),
        stream: &Stream,
    ) -> Result<Option<TwoShot>> {
        if !peers.ways.direct || peers.view.mail_bytes == 0 {
            return Ok(None);
        }
        let most_blocks = TwoShot::most_blocks(peers.most_sharing);
        let table = peers_table(n, peers, opened, stream)?;
        let epochs = opened.memory(most_blocks as usize * size_of::<u64>())?;
        epochs.fill(0, stream).map_err(failed)?;
        let served = opened.memory(size_of::<SpecialServed>())?;
        // The host goes on counting where an engine before this one stopped.
        let (calls, told) = (signals.served(), signals.served_address());
        let start = SpecialServed { calls, told, ..SpecialServed::default() };
        served.write(0, bytes_of(&start), stream).map_err(failed)?;
        let threads = opened.worker_threads.min(MOST_THREADS).next_multiple_of(32);
        let least_bytes = opened.two_shot_bytes;
        Ok(Some(TwoShot {
            me,
            n,
            least_bytes,
            peers: table,
            epochs,
            served,
            tables: Vec::new(),
            most_blocks,
            threads,
        }))
    }

    /// All its device memory, but for mail.
    pub(super) fn memory(&self) -> impl Iterator<Item = &DeviceMemory> {
        [&self.peers, &self.epochs, &self.served]
            .into_iter()
            .chain(self.tables.iter().map(|(_, table)| table))
    }

    /// Whether the kernel goes before a call's interpreter: all ranks answer the same for the same call.
    pub(super) fn precedes(
        &self,
        (collective, dtype, count): (Collective, Dtype, usize),
        algorithm: Algorithm,
        windows: &Windows,
    ) -> bool {
        windows.is_any()
            && collective == Collective::AllReduce
            && algorithm == Special::TwoShot.algorithm()
            && count > 0
            && count.saturating_mul(dtype.size_bytes()) >= self.least_bytes
    }

    /// As many on all ranks for the same call.
    pub(super) fn blocks(&self, bytes: usize) -> u32 {
        let part = bytes.div_ceil(self.n as usize);
        part.div_ceil(BLOCK_BYTES).clamp(1, self.most_blocks as usize) as u32
    }

    /// Where [`SpecialServed::now`] is.
    pub(super) fn served_address(&self) -> u64 {
        self.served.address()
    }

    /// Makes the tables of windows that are new. Blocks for the device.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn learn(
        &mut self,
        windows: &[Arc<Mapped>; 2],
        opened: &Opened,
        stream: &Stream,
    ) -> Result<()> {
        for window in windows {
            if self.table(window).is_some() {
                continue;
            }
            // Calls that are under way keep their windows, so nobody reads the table of one that is gone.
            let gone = self.tables.iter().position(|(window, _)| window.strong_count() == 0);
            let table = match gone {
                Some(index) => self.tables.swap_remove(index).1,
                None => opened.memory(self.n as usize * size_of::<u64>())?,
            };
            let bytes: Vec<u8> = window.addresses().flat_map(u64::to_le_bytes).collect();
            table.write(0, &bytes, stream).map_err(failed)?;
            self.tables.push((Arc::downgrade(window), table));
        }
        Ok(())
    }

    fn table(&self, window: &Arc<Mapped>) -> Option<u64> {
        let known = self.tables.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(window));
        known.map(|(_, table)| table.address())
    }

    pub(super) fn args(&self, call: &Call, places: &Places, signals: &Signals) -> SpecialArgs {
        let mut args = SpecialArgs {
            peers: self.peers.address(),
            epochs: self.epochs.address(),
            served: self.served.address(),
            ..args((self.me, self.n), call, signals)
        };
        if let Some([send, recv]) = places
            && let (Some(input), Some(output)) = (self.table(send), self.table(recv))
        {
            (args.input_window, args.output_window) = (input, output);
            args.windows = u64::from(recv.id()) << 32 | u64::from(send.id());
        }
        args
    }
}
