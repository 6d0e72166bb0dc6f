//! A profiler that says what it hears, refuses proxy operations, and panics where a test wants it.

use std::ffi::CStr;

use ccl_plugin::profiler::{Comm, Event, Kind, Mask, Of, Profiler, State, Summary};
use ccl_plugin::{Error, Result};

struct Watching;

impl Profiler for Watching {
    const NAME: &'static CStr = c"watching";
    type Handle = u64;

    fn init(comm: &Comm, mask: Mask) -> Result<Watching> {
        if comm.rank == 99 {
            return Err(Error::invalid("expected a rank below 99"));
        }
        mask.ask(&[Kind::Coll, Kind::ProxyStep]);
        tracing::info!(rank = comm.rank, of = comm.nranks, "watching");
        Ok(Watching)
    }

    fn start_event(&mut self, event: &Event<'_, u64>) -> Option<u64> {
        let parent = event.parent.map(|(id, kind)| format!("{kind:?} {id}"));
        match event.of {
            Of::Call(call) => tracing::info!("start {} {} of {parent:?}", event.id, call.func),
            _ => tracing::info!("start {} {:?} of {parent:?}", event.id, event.kind),
        }
        assert!(event.id != 666, "told to panic");
        (event.kind != Kind::ProxyOp).then_some(event.id)
    }

    fn stop_event(&mut self, handle: u64, time_ns: u64) {
        tracing::info!("stop {handle} at {time_ns}");
    }

    fn record_event_state(&mut self, handle: &mut u64, state: &State) {
        tracing::info!("state {:?} of {handle}, {} bytes", state.kind, state.bytes);
    }

    fn finalize(self, summary: &Summary) {
        tracing::info!("finalize, {} dropped", summary.dropped_events);
    }
}

ccl_plugin::export_profiler!(Watching);
