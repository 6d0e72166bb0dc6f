//! A network to be checked.

use std::sync::Arc;

use ccl_plugin_host::NetPlugin;

use super::pair::Stage;
use super::raw::Table;
use crate::judge::Load;
use crate::pulse::Pulse;

/// A network, and how it is to be driven.
#[derive(Clone)]
pub struct Net {
    load: Load<NetPlugin>,
    /// What the clause `speed` compares with.
    pub reference: Option<NetPlugin>,
    /// For its `init`.
    pub settings: Vec<(String, String)>,
    /// Which of its devices.
    pub device: u32,
}

impl Net {
    /// The network that `load` gives, unset, on its first device; `load` says what is wrong with the table of one that
    /// cannot be had.
    pub fn new(load: impl Fn() -> Result<NetPlugin, String> + Send + Sync + 'static) -> Net {
        Net { load: Arc::new(load), reference: None, settings: Vec::new(), device: 0 }
    }

    /// Loads it.
    pub(crate) fn stage(&self, pulse: &Arc<Pulse>) -> Result<Stage, String> {
        let plugin = pulse.during("dlopen", || (self.load)())?;
        let own = plugin.own_settings().into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        Ok(Stage {
            table: Table::new(plugin, Arc::clone(pulse)),
            settings: own.chain(self.settings.iter().cloned()).collect(),
            device: self.device,
            reference: self.reference,
        })
    }
}
