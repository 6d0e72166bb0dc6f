//! A log of every message that passes an edge, for tests and for looking closely.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::edge::{EdgeReceive, EdgeSend};
use super::{EdgeKey, ReceiveEdge, SendEdge, Slot};
use crate::error::Result;

/// One message, seen at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRecord {
    /// Since the log was made.
    pub at: Duration,
    /// Which edge.
    pub edge: EdgeKey,
    /// What happened.
    pub event: TraceEvent,
    /// Payload bytes.
    pub bytes: usize,
    /// The operation's tag.
    pub tag: u32,
}

/// What happened to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceEvent {
    /// This rank posted it.
    Posted,
    /// This rank released it.
    Released,
}

/// The latest records of one rank, up to a fixed number. Shared by threads.
#[derive(Debug)]
pub struct TraceLog {
    start: Instant,
    most: usize,
    records: Mutex<VecDeque<TraceRecord>>,
}

impl TraceLog {
    /// An empty log that keeps the `most` latest records.
    pub fn new(most: usize) -> TraceLog {
        TraceLog { start: Instant::now(), most, records: Mutex::default() }
    }

    /// The records, oldest first.
    pub fn records(&self) -> Vec<TraceRecord> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    fn add(&self, edge: EdgeKey, event: TraceEvent, bytes: usize, tag: u32) {
        let record = TraceRecord { at: self.start.elapsed(), edge, event, bytes, tag };
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == self.most {
            records.pop_front();
        }
        records.push_back(record);
    }
}

/// Records what is posted.
pub(super) struct TraceSend {
    pub(super) inner: SendEdge,
    pub(super) key: EdgeKey,
    pub(super) log: Arc<TraceLog>,
}

/// Records what is released.
pub(super) struct TraceReceive {
    pub(super) inner: ReceiveEdge,
    pub(super) key: EdgeKey,
    pub(super) log: Arc<TraceLog>,
}

impl EdgeSend for TraceSend {
    fn acquire(&mut self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        self.inner.acquire(bytes)
    }

    fn post(&mut self, bytes: usize, tag: u32) -> Result<()> {
        self.inner.post(bytes, tag)?;
        self.log.add(self.key, TraceEvent::Posted, bytes, tag);
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        self.inner.progress()
    }

    fn idle(&self) -> bool {
        self.inner.idle()
    }
}

impl EdgeReceive for TraceReceive {
    fn peek(&mut self) -> Result<Option<Slot>> {
        self.inner.peek()
    }

    fn release(&mut self) -> Result<()> {
        let slot = self.inner.peek()?;
        self.inner.release()?;
        if let Some(slot) = slot {
            self.log.add(self.key, TraceEvent::Released, slot.bytes, slot.tag);
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        self.inner.progress()
    }
}
