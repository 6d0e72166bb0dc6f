//! A tuner to be checked.

use std::sync::Arc;

use ccl_plugin_host::TunerPlugin;

use super::stage::Stage;
use crate::judge::Load;
use crate::pulse::Pulse;

/// A tuner, and what its `init` is given.
#[derive(Clone)]
pub struct Tuner {
    load: Load<TunerPlugin>,
    /// For its `init`.
    pub settings: Vec<(String, String)>,
}

impl Tuner {
    /// The tuner that `load` gives, without settings; `load` says what is wrong with the table of one that cannot be had.
    pub fn new(load: impl Fn() -> Result<TunerPlugin, String> + Send + Sync + 'static) -> Tuner {
        Tuner { load: Arc::new(load), settings: Vec::new() }
    }

    /// Loads it.
    pub(crate) fn stage(&self, pulse: &Arc<Pulse>) -> Result<Stage, String> {
        let plugin = pulse.during("dlopen", || (self.load)())?;
        Ok(Stage::new(plugin, self.settings.clone(), Arc::clone(pulse)))
    }
}
