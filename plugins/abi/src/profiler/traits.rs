//! The trait a profiler implements.

use std::ffi::CStr;

use super::types::{Comm, Event, Mask, State, Summary};
use crate::error::Result;

/// A profiler: one value for each communicator.
///
/// `init` is called by the thread that makes the communicator, everything else by one thread of the
/// host, in the order in which things happened, a while after they did. Nothing a profiler does, late
/// or wrong, reaches the communicator; a panic ends the profiler's part in it.
pub trait Profiler: Send + Sized + 'static {
    /// The profiler's name.
    const NAME: &'static CStr;
    /// What it keeps of an event until that stops.
    type Handle: Send;

    /// A context. Nothing is reported before the mask asks for it.
    fn init(comm: &Comm, mask: Mask) -> Result<Self>;

    /// An event starts; `None` refuses it, but not its children.
    fn start_event(&mut self, event: &Event<'_, Self::Handle>) -> Option<Self::Handle>;

    /// It stops; its children did before.
    fn stop_event(&mut self, handle: Self::Handle, time_ns: u64);

    /// Something happened to an open event.
    fn record_event_state(&mut self, handle: &mut Self::Handle, state: &State) {
        let _ = (handle, state);
    }

    /// The communicator was closed; no event is open.
    fn finalize(self, summary: &Summary) {
        let _ = summary;
    }
}
