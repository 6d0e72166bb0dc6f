//! Which tuner a communicator asks, and how its advice reaches all ranks.
//!
//! Rank 0 alone has a tuner. Whether it does travels with its vote, beside its tuning; what it advises in a gather of its
//! own, which there is only then. So ranks cannot come to different decisions, whatever the plugin does.

mod ask;
mod wire;

use std::time::Duration;

use ccl_plan::select::{Advice, Selection};
use ccl_plugin_host::NetPlugin;
pub use ccl_plugin_host::{Candidate, TunerPlugin, Verdict};

use crate::config::Config;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::exec::Tuning;

pub(super) use self::ask::Facts;

/// The tuner that the settings ask for: the first usable of `CCL_TUNER_PLUGIN`, else `libccl-tuner.so` or
/// `libnccl-tuner.so` if there is one that works, else what the library of `network` has for one. Logs a line per
/// candidate. `None` if there is none, with a warning where one was asked for, or if it was given up before.
pub fn choose(config: &Config, network: Option<NetPlugin>) -> Option<TunerPlugin> {
    let (candidates, chosen) = look(config, network)?;
    for candidate in &candidates {
        match chosen {
            Some(_) => tracing::info!(target: "ccl::comm::tuner", %candidate, "tuner plugin"),
            None => tracing::debug!(target: "ccl::comm::tuner", %candidate, "tuner plugin"),
        }
    }
    if chosen.is_none() && !config.tuner_plugin().is_empty() {
        let lines: Vec<String> = candidates.iter().map(ToString::to_string).collect();
        tracing::warn!(
            target: "ccl::comm::tuner", candidates = lines.join("; "),
            "goes without a tuner; check CCL_TUNER_PLUGIN and LD_LIBRARY_PATH",
        );
    }
    chosen.filter(|plugin| !plugin.is_given_up())
}

/// What became of every file that [`choose`] considers, best first.
pub fn candidates(config: &Config, network: Option<NetPlugin>) -> Vec<Candidate> {
    look(config, network).map(|(candidates, _)| candidates).unwrap_or_default()
}

/// `None` where no tuner is wanted, not even the network's.
fn look(config: &Config, network: Option<NetPlugin>) -> Option<(Vec<Candidate>, Option<TunerPlugin>)> {
    let spec = match config.tuner_plugin() {
        [] => DEFAULT_PLUGINS.to_owned(),
        [only] if only.eq_ignore_ascii_case("none") => return None,
        names => names.join(","),
    };
    let (mut candidates, loaded) = TunerPlugin::load(&spec);
    let mut chosen = loaded.ok();
    if let (None, Some((candidate, beside))) = (chosen, network.and_then(TunerPlugin::beside)) {
        candidates.push(candidate);
        chosen = beside;
    }
    Some((candidates, chosen))
}

/// What stands beside a rank's vote: whether it has a tuner to ask, and its tuning.
pub(super) struct Beside {
    pub(super) asks: bool,
    pub(super) tuning: Tuning,
}

impl Beside {
    /// As bytes; `tuning` only of the rank whose tuning serves all.
    pub(super) fn to_bytes(asks: bool, tuning: Option<Tuning>) -> Vec<u8> {
        let tuning = tuning.map(|tuning| tuning.to_toml()).unwrap_or_default();
        [&[u8::from(asks)], tuning.as_bytes()].concat()
    }

    /// Back from rank 0's bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Beside> {
        let (asks, tuning) = bytes.split_first().map_or((false, bytes), |(first, rest)| (*first == 1, rest));
        let tuning = Tuning::parse(&String::from_utf8_lossy(tuning))
            .map_err(|error| Error::bug(format!("the tuning of rank 0: {error}")))?;
        Ok(Beside { asks, tuning })
    }
}

/// The selection with what rank 0's tuner advises. Every rank calls it, rank 0 with the tuner.
///
/// Errors: the control connection's.
pub(super) fn advised(
    selection: Selection,
    tuner: Option<TunerPlugin>,
    facts: Facts,
    (control, config): (&Control, &Config),
) -> Result<Selection> {
    let advice = tuner.map_or_else(Advice::default, |plugin| {
        // Shorter than the others wait.
        let limit = LIMIT.min(config.timeout().min(config.init_timeout()) / 2);
        ask::ask(plugin, facts, &selection, limit)
    });
    let all = control.all_gather(wire::write(&advice)?)?;
    Ok(selection.advised(wire::read(&all[0])?))
}

/// Used where they are installed and nothing else is asked for: ours, then NCCL's.
const DEFAULT_PLUGINS: &str = "libccl-tuner.so,libnccl-tuner.so";
/// How long one communicator waits for its tuner.
const LIMIT: Duration = Duration::from_secs(10);
