//! What a communicator takes: counted where it is taken, and known before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// What one rank of a communicator takes of its process and host.
///
/// [`Footprint::before_use`] and [`Footprint::at_most`] know it without making anything;
/// [`Communicator::memory`](crate::Communicator::memory) counts it. The two are equal to the byte.
/// Memory costs pages only once touched, so these are limits, not what is resident. What grows with
/// the user's calls (scratch for some algorithms, at most a few chunks) and what a network keeps for
/// itself are not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Footprint {
    /// Bytes of shared memory that this rank brings: the host holds as many for each of its ranks.
    pub shared_bytes: u64,
    /// Bytes of shared memory that are mapped for this rank, its own among them: once in a process for
    /// all of its ranks on a host.
    pub mapped_bytes: u64,
    /// Bytes of this process alone: slots towards the network, and with one rank those to itself.
    pub private_bytes: u64,
    /// Connections over the network: one for each channel and tag of a networked peer. A network whose
    /// connections serve one direction only has twice as many, of which nothing predicted knows.
    pub connections: u64,
    /// Sockets of connections, as the socket network makes them, and the control connection. The process
    /// that made the unique id has one more for each rank, and for a minute at most its port; a process
    /// has one descriptor more for all communicators.
    pub sockets: u64,
}

/// What a rank that works on a device takes of its memory when it joins others that all do, on devices of one host that reach each
/// other: slots, inboxes and mail. What grows with calls (programs, scratch, copies of host memory) is not in it, nor a few KiB of
/// tables; [`Communicator::device_memory`](crate::Communicator::device_memory) counts all. Multicast memory is beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceFootprint {
    /// Bytes of device memory.
    pub region_bytes: u64,
    /// Channels that calls may use: blocks of threads, with slots of their own.
    pub channels: u16,
}

/// Counts private memory and connections where they are made and dropped. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    private_bytes: AtomicU64,
    connections: AtomicU64,
}

/// An entry in a ledger, which goes when dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    ledger: Ledger,
    private_bytes: u64,
    connections: u64,
}

impl Ledger {
    /// Counts memory of this process for as long as the entry lives.
    pub(crate) fn memory(&self, bytes: usize) -> Entry {
        self.enter(bytes as u64, 0)
    }

    /// Counts a connection for as long as the entry lives.
    pub(crate) fn connection(&self) -> Entry {
        self.enter(0, 1)
    }

    /// Private bytes and connections now.
    pub(crate) fn now(&self) -> (u64, u64) {
        (self.0.private_bytes.load(Ordering::Relaxed), self.0.connections.load(Ordering::Relaxed))
    }

    fn enter(&self, private_bytes: u64, connections: u64) -> Entry {
        self.0.private_bytes.fetch_add(private_bytes, Ordering::Relaxed);
        self.0.connections.fetch_add(connections, Ordering::Relaxed);
        Entry { ledger: self.clone(), private_bytes, connections }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let counts = &self.ledger.0;
        counts.private_bytes.fetch_sub(self.private_bytes, Ordering::Relaxed);
        counts.connections.fetch_sub(self.connections, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_count_while_they_live() {
        let ledger = Ledger::default();
        let memory = ledger.memory(4096);
        let connection = ledger.clone().connection();
        assert_eq!(ledger.now(), (4096, 1));
        drop(memory);
        assert_eq!(ledger.now(), (0, 1));
        drop(connection);
        assert_eq!(ledger.now(), (0, 0));
    }
}
