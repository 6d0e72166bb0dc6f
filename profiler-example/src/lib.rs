//! A profiler to copy from: it writes a trace that Perfetto, `ccl trace` and PyTorch's tools read, and says
//! which collectives reached which bandwidth and who waited longest.
//!
//!     CCL_PROFILER_PLUGIN=example PROFILE_DUMP_FILE=/tmp/trace my_program
//!
//! `CCL_PROFILER_PLUGIN=example` finds `libccl_profiler_example.so` where the loader looks, or give the
//! file's path. This plugin reads two variables of its own, which do not begin with `CCL_`: ccl warns of
//! settings that it does not know.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PROFILE_DUMP_FILE` | where traces go: `-RANK-COMMUNICATOR.json` is appended | no trace, only the summary |
//! | `PROFILE_EVENT_MASK` | which events to ask for, as bits: see `ccl_profiler.h` | all of them |
//!
//! The summary goes to the host's log at level INFO. What it does not do: merge the files of several
//! ranks (`ccl trace` takes them together), or keep up with a device.

mod clock;
mod lanes;
mod names;
mod summary;
mod trace;

use std::ffi::CStr;

use ccl_plugin::Result;
use ccl_plugin::profiler::{Comm, Event, Mask, Of, Profiler, State, Summary};

use crate::lanes::Lanes;
use crate::summary::Tally;
use crate::trace::{Slice, Trace};

// The one line that makes a plugin of a `Profiler`: it exports the table `cclProfiler_v1`.
ccl_plugin::export_profiler!(Example);

/// One communicator. The host calls about it one call at a time, so plain fields do.
struct Example {
    trace: Option<Trace>,
    lanes: Lanes,
    tally: Tally,
}

impl Profiler for Example {
    // What the host's log calls this plugin.
    const NAME: &'static CStr = c"example";

    // What is kept of an open event. The host gives it back at the event's states and at its stop, once,
    // so there is no table of events to look after.
    type Handle = Slice;

    fn init(comm: &Comm, mask: Mask) -> Result<Example> {
        // Plugins read their own settings; the host has none for them.
        let path = std::env::var("PROFILE_DUMP_FILE").ok().filter(|path| !path.is_empty());
        let trace = path.map(|path| Trace::new(&path, comm));
        // Nothing is reported before the mask asks. It may be kept and changed later, by any thread: the
        // host looks at it once for each launch.
        let bits = std::env::var("PROFILE_EVENT_MASK").ok();
        mask.set(bits.and_then(|bits| bits.trim().parse().ok()).unwrap_or(u64::MAX));
        Ok(Example { trace, lanes: Lanes::default(), tally: Tally::new(comm) })
    }

    fn start_event(&mut self, event: &Event<'_, Slice>) -> Option<Slice> {
        // Returning `None` would refuse the event: its children would come all the same, with this event's
        // parent as theirs.
        let parent = event.parent.map(|(parent, _)| (parent.lane, parent.id));
        let lane = self.lanes.enter(event.kind, parent, event.id);
        Some(Slice::new(event, lane))
    }

    fn record_event_state(&mut self, slice: &mut Slice, state: &State) {
        slice.note(state);
    }

    fn stop_event(&mut self, slice: Slice, time_ns: u64) {
        self.lanes.leave(slice.lane, slice.id);
        if let Of::Call(call) = &slice.of {
            self.tally.add(slice.kind, call, time_ns.saturating_sub(slice.since_ns));
        }
        if let Some(trace) = &mut self.trace {
            // Children stop before their parent, so a slice is complete when its line is written.
            trace.write(&slice, time_ns);
        }
    }

    fn finalize(self, summary: &Summary) {
        // The end of the communicator: everything was stopped before. `self` is consumed, so nothing
        // can be left behind.
        self.tally.say(summary);
        if let Some(trace) = self.trace {
            trace.finish(summary);
        }
    }
}
