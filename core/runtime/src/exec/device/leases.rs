//! Windows that are lent to ranks for which this rank's addresses mean nothing: those of other processes, and threads whose
//! devices do not reach what is mapped for another's.
//!
//! A window that may be lent so has a *slot* of a table, the same on all ranks, which says where each rank's memory begins here.
//! Senders write slot and offset beside a payload. They alone know when they lend, so readers keep their ways until the owner says
//! that it will not lend any more: by a message once its handle, its calls and its graphs are gone, and anew whenever all register.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ccl_cuda::{DeviceMemory, Mapping, Stream};
use ccl_kernels::layout::WINDOW_SLOTS;
use ccl_plan::Rank;
use serde::{Deserialize, Serialize};

use super::failed;
use super::lent::Lendable;
use crate::error::Result;

/// That a rank may lend from its window: it is there as long as somebody may, which is the handle, a call under way, or a graph.
pub(super) struct Lease {
    slot: usize,
    /// Of the window.
    id: u32,
    /// Gone with the handle.
    lent: Weak<Lendable>,
    /// Who keeps ways to it.
    readers: Vec<Rank>,
    notice: Notice,
    silent: Arc<AtomicBool>,
}

/// Tells ranks that a rank will not lend from its window any more. Never blocks.
pub(crate) type Notice = Box<dyn Fn(&[Rank], u32) + Send + Sync>;

/// What a rank says of its leases when all register.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Asked {
    /// Whether it would lend the new window so.
    pub(super) asks: bool,
    /// The slots of its windows that it may lend from, as bits.
    taken: u32,
}

/// One rank's leases, and what it keeps for those of others.
#[derive(Default)]
pub(super) struct Leases {
    /// By slot.
    own: [Weak<Lease>; WINDOW_SLOTS],
    kept: Vec<Kept>,
    /// Ranks that say when they will not lend any more.
    lenders: Vec<Rank>,
    /// What the table says, slot by slot; nothing before the first window.
    starts: Vec<u64>,
    /// What has been let go of and is still mapped.
    idle: Vec<Arc<Mapping>>,
    /// Kernels are ended, those of others too: what they read is not known any more.
    silent: Arc<AtomicBool>,
}

/// The way to a window that its owner may lend.
struct Kept {
    owner: Rank,
    slot: usize,
    id: u32,
    mapping: Arc<Mapping>,
}

impl Asked {
    /// The slot of a new window, if somebody asks for one; the same on all ranks.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(super) fn slot(all: &[Asked]) -> Result<Option<usize>, String> {
        if !all.iter().any(|asked| asked.asks) {
            return Ok(None);
        }
        let taken = all.iter().fold(0, |taken, asked| taken | asked.taken);
        match taken.trailing_ones() as usize {
            WINDOW_SLOTS => Err(format!("{WINDOW_SLOTS} windows are lent already")),
            slot => Ok(Some(slot)),
        }
    }
}

impl Leases {
    /// What this rank may lend from now.
    pub(super) fn asked(&self) -> Asked {
        let bits = self.own.iter().enumerate().filter(|(_, lease)| lease.strong_count() > 0);
        Asked { asks: false, taken: bits.fold(0, |all, (slot, _)| all | 1 << slot) }
    }

    /// A new lease of this rank's, of which `readers` hear when it is over.
    pub(super) fn lease(
        &mut self,
        (slot, id): (usize, u32),
        lent: &Arc<Lendable>,
        (readers, notice): (Vec<Rank>, Notice),
    ) -> Arc<Lease> {
        let (lent, silent) = (Arc::downgrade(lent), Arc::clone(&self.silent));
        let lease = Arc::new(Lease { slot, id, lent, readers, notice, silent });
        self.own[slot] = Arc::downgrade(&lease);
        lease
    }

    /// Keeps the way to a window of another rank.
    pub(super) fn keep(&mut self, owner: Rank, (slot, id): (usize, u32), mapping: Arc<Mapping>) {
        self.kept.push(Kept { owner, slot, id, mapping });
        if !self.lenders.contains(&owner) {
            self.lenders.push(owner);
        }
    }

    /// Ranks that may have said that they will not lend any more.
    pub(super) fn lenders(&self) -> &[Rank] {
        &self.lenders
    }

    /// A rank will not lend from this window any more. [`Leases::sweep`] follows.
    pub(super) fn let_go(&mut self, owner: Rank, id: u32) {
        self.retain(|kept| (kept.owner, kept.id) != (owner, id));
    }

    /// All ranks say what they may lend from.
    pub(super) fn heed(&mut self, all: &[Asked]) {
        self.retain(|kept| {
            all.get(kept.owner.index()).is_some_and(|asked| asked.taken >> kept.slot & 1 == 1)
        });
    }

    /// Unmaps what has been let go of.
    pub(super) fn sweep(&mut self) {
        self.idle.clear();
    }

    /// Nobody hears of leases from now on: kernels are ended before they have read what they were lent.
    pub(super) fn silence(&self) {
        // Relaxed: leases that kernels use go later on the thread that calls this.
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Says in the table where each rank's window in a slot begins. Nobody reads there before all have done so.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn show(
        &mut self,
        slot: usize,
        starts: &[u64],
        (table, stream): (&DeviceMemory, &Stream),
    ) -> Result<()> {
        self.starts.resize(WINDOW_SLOTS * starts.len(), 0);
        self.starts[slot * starts.len()..][..starts.len()].copy_from_slice(starts);
        write(table, slot * starts.len(), starts, stream)
    }

    /// Says all of that again, in a new table.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn show_all(&self, table: &DeviceMemory, stream: &Stream) -> Result<()> {
        if self.starts.is_empty() { Ok(()) } else { write(table, 0, &self.starts, stream) }
    }

    /// The lease on a window that holds so much memory, and its handle.
    pub(super) fn find(&self, start: u64, bytes: usize) -> Option<(Arc<Lease>, Arc<Lendable>)> {
        let open = |lease: &Weak<Lease>| {
            let lease = lease.upgrade()?;
            let lent = lease.lent.upgrade().filter(|lent| lent.holds(start, bytes))?;
            Some((lease, lent))
        };
        // Of several the newest: what its owner has mapped there now.
        self.own.iter().filter_map(open).max_by_key(|(lease, _)| lease.id)
    }

    fn retain(&mut self, stays: impl Fn(&Kept) -> bool) {
        let (kept, gone) = std::mem::take(&mut self.kept).into_iter().partition(stays);
        self.kept = kept;
        self.idle.extend(Vec::into_iter(gone).map(|kept: Kept| kept.mapping));
    }
}

impl Lease {
    /// As launches name it: from 1.
    pub(super) fn number(&self) -> u32 {
        self.slot as u32 + 1
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.silent.load(Ordering::Relaxed) {
            (self.notice)(&self.readers, self.id);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("slot", &self.slot).field("id", &self.id).finish_non_exhaustive()
    }
}

fn write(table: &DeviceMemory, at: usize, words: &[u64], stream: &Stream) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    table.write(at * size_of::<u64>(), &bytes, stream).map_err(failed)
}
