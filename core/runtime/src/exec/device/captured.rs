//! Calls in graphs: what they use for as long as a graph may run them, and their order in one capture.
//!
//! The driver says on a thread of its own when a graph is gone. Nothing may be freed there, so it leaves a number, and
//! what has that number is taken back when the communicator is next used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_cuda::{CaptureInfo, Event, EventKind, PinnedMemory, Stream};

use super::engine::Order;
use super::leases::Lease;
use super::two_shot::Places;
use super::{Opened, failed};
use crate::error::Result;

/// The calls of one communicator that graphs hold.
#[derive(Default)]
pub(super) struct Captured {
    kept: HashMap<u64, Kept>,
    calls: u64,
    /// Numbers of calls whose graphs are gone.
    gone: Arc<Mutex<Vec<u64>>>,
    last: Vec<Last>,
}

/// What one captured call uses, for as long as a graph may run it.
struct Kept {
    capture: u64,
    used: Used,
}

/// What one call uses until it is over, beside what the communicator has anyway.
#[derive(Default)]
pub(super) struct Used {
    pub(super) tables: Option<PinnedMemory>,
    /// Messages that are launched with this one.
    pub(super) list: Option<PinnedMemory>,
    /// Other ranks' memory stays mapped, although handles go.
    pub(super) places: Places,
    /// Who may be lent what the send buffer and the receive buffer lie in keeps the way to it.
    pub(super) _leases: Leases,
}

/// Of the send buffer's window and of the receive buffer's.
pub(super) type Leases = [Option<Arc<Lease>>; 2];

/// The last call of its order in a capture: later ones follow it, also on other streams.
struct Last {
    capture: u64,
    order: Order,
    stream: usize,
    event: Event,
}

impl Captured {
    /// Keeps what a call uses until its graph, and all that was made of it, is gone.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn keep(&mut self, info: &CaptureInfo, used: Used) -> Result<()> {
        self.calls += 1;
        let (number, gone) = (self.calls, Arc::clone(&self.gone));
        self.kept.insert(number, Kept { capture: info.id(), used });
        info.keep(move || gone.lock().unwrap_or_else(PoisonError::into_inner).push(number)).map_err(failed)
    }

    /// Whether a graph may run a call of this communicator.
    pub(super) fn is_any(&self) -> bool {
        self.kept.len() > self.gone().len()
    }

    /// The tables and lists of calls whose graphs are gone.
    pub(super) fn take_back(&mut self) -> Vec<PinnedMemory> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        let gone = std::mem::take(&mut *self.gone());
        let kept = gone.iter().filter_map(|number| self.kept.remove(number));
        let tables = kept.flat_map(|kept| kept.used.tables.into_iter().chain(kept.used.list)).collect();
        self.last.retain(|last| self.kept.values().any(|kept| kept.capture == last.capture));
        tables
    }

    /// Lets a call that is being captured run after the one before it of its order in the same capture.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn follow(&self, info: &CaptureInfo, order: Order, stream: &Stream) -> Result<()> {
        match self.last.iter().find(|last| (last.capture, last.order) == (info.id(), order)) {
            Some(last) if last.stream != stream.raw().addr() => stream.wait(&last.event).map_err(failed),
            _ => Ok(()),
        }
    }

    /// Notes the place behind a captured call.
    ///
    /// # Errors
    ///
    /// Of the driver.
    pub(super) fn passed(
        &mut self,
        info: &CaptureInfo,
        order: Order,
        stream: &Stream,
        opened: &Opened,
    ) -> Result<()> {
        let (capture, number) = (info.id(), stream.raw().addr());
        let known = self.last.iter().position(|last| (last.capture, last.order) == (capture, order));
        let event = match known {
            Some(index) => self.last.swap_remove(index).event,
            None => Event::new(&opened.context, EventKind::Order).map_err(failed)?,
        };
        event.record(stream).map_err(failed)?;
        self.last.push(Last { capture, order, stream: number, event });
        Ok(())
    }

    fn gone(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
