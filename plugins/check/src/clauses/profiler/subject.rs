//! A profiler to be checked.

use std::sync::Arc;

use ccl_plugin_host::ProfilerPlugin;

use super::context::Stage;
use crate::judge::Load;
use crate::pulse::Pulse;

/// A profiler, of ccl's contract or of NCCL's.
#[derive(Clone)]
pub struct Profiler {
    load: Load<ProfilerPlugin>,
}

impl Profiler {
    /// The profiler that `load` gives; `load` says what is wrong with the table of one that cannot be had.
    pub fn new(load: impl Fn() -> Result<ProfilerPlugin, String> + Send + Sync + 'static) -> Profiler {
        Profiler { load: Arc::new(load) }
    }

    /// The profiler of an entry of `CCL_PROFILER_PLUGIN`: a file or a name.
    pub fn named(entry: &str) -> Profiler {
        let entry = entry.to_owned();
        Profiler::new(move || ProfilerPlugin::load(&entry).1.map_err(|error| error.to_string()))
    }

    /// Loads it.
    pub(crate) fn stage(&self, pulse: &Arc<Pulse>) -> Result<Stage, String> {
        let plugin = pulse.during("dlopen", || (self.load)())?;
        Ok(Stage { plugin, pulse: Arc::clone(pulse) })
    }
}
