//! An env plugin to be checked.

use std::sync::Arc;

use ccl_plugin_host::env::EnvTable;

use super::source::Source;
use crate::breach::Outcome;
use crate::judge::Load;
use crate::pulse::Pulse;

/// An env plugin, and what it is to be asked about.
#[derive(Clone)]
pub struct Env {
    load: Load<EnvTable>,
    /// Names of settings.
    pub names: Vec<String>,
}

impl Env {
    /// The plugin that `load` gives, to be asked about a few settings; `load` says what is wrong with the table of one that
    /// cannot be had.
    pub fn new(load: impl Fn() -> Result<EnvTable, String> + Send + Sync + 'static) -> Env {
        let names = ["CCL_DEBUG", "CCL_TIMEOUT", "NCCL_DEBUG"].map(str::to_owned);
        Env { load: Arc::new(load), names: names.to_vec() }
    }

    /// Loads it.
    pub(crate) fn stage(&self, pulse: &Arc<Pulse>) -> Result<Stage, String> {
        let table = pulse.during("dlopen", || (self.load)())?;
        Ok(Stage { table, names: self.names.clone(), pulse: Arc::clone(pulse) })
    }
}

/// Where a clause plays: a plugin without a context, and names to ask it about.
pub(crate) struct Stage {
    pub(crate) table: EnvTable,
    pub(crate) names: Vec<String>,
    pub(crate) pulse: Arc<Pulse>,
}

impl Stage {
    /// The plugin, initialised. There may be one at a time.
    pub(crate) fn source(&self) -> Outcome<Source> {
        Source::start(self.table, &self.pulse)
    }
}
