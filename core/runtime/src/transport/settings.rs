//! What a fabric is told, and what it tells its peers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::connected::{inner_shape, net_shape};
use super::shm::{FEW_RANKS, Layout};
use super::waiting::WaitSettings;
use super::{FaultRule, NetSettings, TraceLog};
use crate::discover::processor::is_of_amd;
use crate::error::{Error, Result};
use crate::memory::{Backing, Footprint, MailboxName};

/// Settings of one rank's fabric. `channels`, `tags`, `slots`, `slot_bytes`, `lengthens`, `net_slot_bytes`, `secret`,
/// `checksum` and the network's plugin must be equal on all ranks.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// Whether ranks of a host pass the descriptors of their memory through Unix sockets, otherwise through
    /// `/proc`: that suits ranks that are known to read each other's memory.
    pub mailboxes: bool,
    /// Channels that edges may belong to.
    pub channels: u16,
    /// Edges from one rank to another within a channel.
    pub tags: u8,
    /// Slots of an edge.
    pub slots: usize,
    /// How many of them are used where an edge through a network stays within a host whose ranks have a core each.
    pub near_slots: usize,
    /// Most payload bytes of a slot.
    pub slot_bytes: usize,
    /// Whether slots in memory may be half as many of twice the bytes, where ranks share cores and that is faster.
    pub lengthens: bool,
    /// The same of a slot towards a network, which moves long messages better.
    pub net_slot_bytes: usize,
    /// Whether ranks of one host share memory.
    pub shared_memory: SharedMemory,
    /// What shared memory is made of.
    pub backing: Backing,
    /// Which host this is; `None`: ask the system. Ranks with different hosts never share memory.
    pub host: Option<String>,
    /// The communicator's secret.
    pub secret: [u8; 32],
    /// How to wait.
    pub wait: WaitSettings,
    /// Whether messages carry a checksum.
    pub checksum: Checksum,
    /// Faults on purpose.
    pub faults: Vec<FaultRule>,
    /// Where to record every message.
    pub trace: Option<Arc<TraceLog>>,
    /// The network, for peers whose memory cannot be mapped.
    pub net: NetSettings,
}

/// Whether messages carry a checksum (`CCL_CHECKSUM`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// No.
    #[default]
    Off,
    /// Eight bytes more for each: a CRC-32 and the sequence. Damage is an error that names the edge.
    Crc32,
}

/// Whether ranks of one host share memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SharedMemory {
    /// Wherever it works.
    #[default]
    Use,
    /// Never (`CCL_SHM_DISABLE`), except to reach oneself.
    Avoid,
}

/// What a rank's peers must know to reach it; goes into the join information.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransportInfo {
    /// Where it runs.
    pub process: Arc<ProcessInfo>,
    /// What is its own.
    #[serde(flatten)]
    pub seat: SeatInfo,
}

/// What ranks of one process mostly have in common.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Which host it is on.
    pub host: String,
    /// The host's name, for people.
    pub host_name: String,
    /// The process, as it sees itself.
    pub number: u32,
    /// The namespace in which that number holds.
    pub namespace: u64,
    /// Whether it would share memory.
    pub shares_memory: bool,
    /// The CPUs it may run on, a bit each.
    pub cpus: Vec<u64>,
}

/// What every rank has for itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SeatInfo {
    /// The name of its Unix socket, if it could bind one.
    pub mailbox: Option<MailboxName>,
    /// Its memory's descriptor.
    pub descriptor: i32,
    /// The random bytes its memory begins with.
    pub nonce: [u8; 32],
}

impl TransportInfo {
    /// Whether both run on one host.
    pub(crate) fn is_on_host_of(&self, other: &TransportInfo) -> bool {
        Arc::ptr_eq(&self.process, &other.process) || self.process.host == other.process.host
    }
}

impl TransportSettings {
    /// Whether something is put around every edge.
    pub(super) fn wraps_edges(&self) -> bool {
        self.checksum != Checksum::Off || !self.faults.is_empty() || self.trace.is_some()
    }

    /// How regions of `locals` ranks that share memory are laid out.
    pub(super) fn layout(&self, locals: usize) -> Layout {
        Layout {
            locals,
            channels: self.channels.into(),
            tags: self.tags.into(),
            slots: self.slots,
            slot_bytes: inner_shape(self).slot_bytes,
        }
    }

    /// The slots of an edge in memory between few ranks of one host or ranks that share its cores, and the bytes of each: together
    /// as many as without that, so that regions are no longer. AMD processors copy the faster the longer the blocks are (ADR 0093, 0102).
    pub(super) fn long_slots(&self) -> (usize, usize) {
        let halves = self.slots >= 4 && self.slots.is_multiple_of(2);
        let fits = 2 * self.slot_bytes <= MOST_SLOT_BYTES;
        // Faults and traces are a rank's own, and all must choose the same.
        let plain = self.checksum == Checksum::Off;
        match self.lengthens && halves && fits && plain && is_of_amd() {
            true => (self.slots / 2, 2 * self.slot_bytes),
            false => (self.slots, self.slot_bytes),
        }
    }

    /// Whether few long messages are to be under way on a host of so many ranks and cores: more than few ranks share cores, and nobody has said
    /// what slots there are. AMD processors have few anyway (ADR 0119).
    pub(super) fn spares(&self, ranks: usize, cores: usize) -> bool {
        ranks > FEW_RANKS && ranks > cores && self.lengthens && !is_of_amd()
    }

    /// What each of n ranks takes, `locals` of which share memory with it, itself among them: before any
    /// edge is used, and when all are. The control connection aside; sockets are counted as connections,
    /// which serve both ways as those of the socket network do.
    pub(crate) fn footprints(&self, n: u32, locals: u32) -> [Footprint; 2] {
        let region_bytes = self.layout(locals as usize).bytes() as u64;
        if n == 1 {
            return [Footprint { private_bytes: region_bytes, ..Footprint::default() }; 2];
        }
        let before_use = Footprint {
            shared_bytes: region_bytes,
            mapped_bytes: u64::from(locals) * region_bytes,
            ..Footprint::default()
        };
        let connections = u64::from(n - locals) * u64::from(self.channels) * u64::from(self.tags);
        let private_bytes = 2 * connections * net_shape(self).staging_bytes() as u64;
        [before_use, Footprint { private_bytes, connections, ..before_use }]
    }

    /// Refuses shapes that no layout can have.
    pub(super) fn check(&self) -> Result<()> {
        let slots = [self.slots, self.near_slots, self.slot_bytes, self.net_slot_bytes];
        let shape = [&[usize::from(self.channels), usize::from(self.tags)], &slots[..]].concat();
        if shape.contains(&0) {
            let cause = format!("expected at least one channel, tag, slot and byte, found {shape:?}");
            return Err(Error::usage(cause, "correct the settings of channels, slots and slot size"));
        }
        if self.slot_bytes.max(self.net_slot_bytes) > MOST_SLOT_BYTES || self.slots > MOST_SLOTS {
            let cause = format!(
                "expected at most {MOST_SLOTS} slots of {MOST_SLOT_BYTES} bytes, found {} of {}",
                self.slots,
                self.slot_bytes.max(self.net_slot_bytes)
            );
            return Err(Error::usage(cause, "make slots fewer or smaller"));
        }
        Ok(())
    }
}

impl Default for TransportSettings {
    fn default() -> TransportSettings {
        TransportSettings {
            mailboxes: true,
            channels: 1,
            tags: 1,
            slots: 8,
            near_slots: 8,
            slot_bytes: 64 << 10,
            lengthens: false,
            net_slot_bytes: 256 << 10,
            shared_memory: SharedMemory::Use,
            backing: Backing::Anonymous,
            host: None,
            secret: [0; 32],
            wait: WaitSettings::default(),
            checksum: Checksum::Off,
            faults: Vec::new(),
            trace: None,
            net: NetSettings::default(),
        }
    }
}

const MOST_SLOT_BYTES: usize = (1 << 27) - 1;
const MOST_SLOTS: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::processor::on_each;

    #[test]
    fn regions_are_as_long_with_long_slots() {
        let settings = TransportSettings { lengthens: true, ..TransportSettings::default() };
        on_each(|| {
            for slot_bytes in [64 << 10, 21_888, 4 << 10] {
                let settings = TransportSettings { slot_bytes, ..settings.clone() };
                let longer = settings.long_slots();
                assert_eq!(longer, if is_of_amd() { (4, 2 * slot_bytes) } else { (8, slot_bytes) });
                let layout = settings.layout(8);
                let long = Layout { slots: longer.0, slot_bytes: longer.1, ..layout };
                assert_eq!(long.bytes(), layout.bytes(), "{slot_bytes}");
            }
        });
    }

    #[test]
    fn caches_are_spared_where_more_than_few_ranks_share_cores() {
        let usual = TransportSettings { lengthens: true, ..TransportSettings::default() };
        let asked = TransportSettings { lengthens: false, ..usual.clone() };
        on_each(|| {
            let hosts = [(8, 2), (5, 4), (4, 2), (8, 8)];
            let spares = hosts.map(|(ranks, cores)| usual.spares(ranks, cores));
            assert_eq!(spares, [!is_of_amd(), !is_of_amd(), false, false]);
            assert!(!asked.spares(8, 2));
        });
    }

    #[test]
    fn slots_stay_as_they_are_asked_for() {
        let settings = TransportSettings { lengthens: true, ..TransportSettings::default() };
        let asked = [
            TransportSettings { lengthens: false, ..settings.clone() },
            TransportSettings { checksum: Checksum::Crc32, ..settings.clone() },
            TransportSettings { slots: 5, ..settings.clone() },
            TransportSettings { slots: 2, ..settings.clone() },
            TransportSettings { slot_bytes: MOST_SLOT_BYTES / 2 + 1, ..settings },
        ];
        on_each(|| {
            for settings in &asked {
                assert_eq!(settings.long_slots(), (settings.slots, settings.slot_bytes), "{settings:?}");
            }
        });
    }
}
