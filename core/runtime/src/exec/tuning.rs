//! The tuning file: what was measured on a machine, in place of what the cost model assumes.

use std::path::{Path, PathBuf};

use ccl_plan::cost::Rates;
use ccl_plan::select::{Choice, Rule};
use ccl_plan::{Algorithm, Collective};
use serde::{Deserialize, Serialize};

use super::plans::Reach;
use crate::config::Config;
use crate::discover::host;
use crate::error::{Error, Result};

/// A tuning file: TOML, written by `ccl tune` or by hand. The manual's chapter on tuning describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The machine it was measured on, as [`Tuning::machine`] names it. A file in the user's cache serves only the
    /// machine that it names; a file that `CCL_TUNING_FILE` names serves any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// What links cost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<TunedLink>,
    /// What to choose, for sizes of a collective.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TunedRule>,
}

/// What one class of links costs: fields of [`Rates`]. What is left out is as the library assumes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedLink {
    /// Which links.
    pub reach: Reach,
    /// Nanoseconds for a message to arrive.
    pub alpha_ns: Option<f64>,
    /// What that grows by for each rank that shares the receiver's core.
    pub switch_ns: Option<f64>,
    /// Nanoseconds of work on a message.
    pub message_ns: Option<f64>,
    /// Nanoseconds for one Move.
    pub move_ns: Option<f64>,
    /// Nanoseconds per byte moved.
    pub beta_ns_per_byte: Option<f64>,
    /// Nanoseconds per byte folded.
    pub gamma_ns_per_byte: Option<f64>,
}

/// For some calls, which algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedRule {
    /// The collective.
    pub collective: String,
    /// With so many ranks; with any if left out.
    pub ranks: Option<u32>,
    /// Where the farthest rank is reached so; anywhere if left out.
    pub reach: Option<Reach>,
    /// Up to so many bytes; any size if left out.
    pub up_to_bytes: Option<u64>,
    /// The algorithm.
    pub algorithm: String,
    /// The number of channels.
    #[serde(default = "one_channel")]
    pub channels: u16,
}

fn one_channel() -> u16 {
    1
}

impl Tuning {
    /// What the settings name, or the user's cache holds for this machine; nothing if there is neither.
    ///
    /// # Errors
    ///
    /// A file that `CCL_TUNING_FILE` names and that is not there, or is no tuning file.
    pub fn of(config: &Config) -> Result<Option<Tuning>> {
        match config.tuning_file() {
            Some(file) if file.as_os_str() == NO_FILE => Ok(None),
            Some(file) => Tuning::read(file).map(Some),
            None => Ok(cached()),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// No such file, or no tuning in it: the line, with what was expected there.
    pub fn read(file: &Path) -> Result<Tuning> {
        let shown = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| {
            let cause = format!("expected a tuning file, found {shown}: {error}");
            Error::usage(cause, "`ccl tune` writes one; CCL_TUNING_FILE=none goes without")
        })?;
        Tuning::parse(&text).map_err(|error| Error::usage(format!("in {shown}: {error}"), ADVICE))
    }

    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> std::result::Result<Tuning, String> {
        let tuning: Tuning = toml::from_str(text).map_err(|error| error.to_string())?;
        for rule in &tuning.rules {
            rule.resolve().map_err(|cause| format!("a rule is wrong: {cause}"))?;
        }
        let times = tuning.links.iter().flat_map(TunedLink::times);
        match times.flatten().find(|ns| !(0.0..1e9).contains(ns)) {
            Some(ns) => Err(format!("expected times of links from 0 to 1e9 ns, found {ns}")),
            None => Ok(tuning),
        }
    }

    /// As text.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// What links of this class cost.
    pub fn rates(&self, reach: Reach) -> Rates {
        let measured = self.links.iter().filter(|link| link.reach == reach);
        measured.fold(reach.rates(), |rates, link| link.over(rates))
    }

    /// The rules for `n` ranks that reach each other so.
    pub(crate) fn rules(&self, reach: Reach, n: u32) -> Vec<Rule> {
        let speaks = |rule: &&TunedRule| {
            rule.ranks.is_none_or(|ranks| ranks == n) && rule.reach.is_none_or(|class| class == reach)
        };
        self.rules.iter().filter(speaks).filter_map(|rule| rule.resolve().ok()).collect()
    }

    /// How this machine is called in tuning files: its processor, and how many of them there are.
    pub fn machine() -> String {
        host::processors()
    }

    /// Where the user's cache keeps the tuning of this machine, if the environment says where caches are.
    pub fn cache_file() -> Option<PathBuf> {
        Some(user_cache()?.join("tuning.toml"))
    }
}

/// Our folder in the user's cache, if the environment says where caches are.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("ccl"))
}

/// The tuning in the user's cache, if it is this machine's. One that cannot be read is none: nobody asked for it.
fn cached() -> Option<Tuning> {
    let file = Tuning::cache_file()?;
    let text = std::fs::read_to_string(&file).ok()?;
    match Tuning::parse(&text) {
        Ok(tuning) if tuning.machine == Tuning::machine() => Some(tuning),
        Ok(tuning) => {
            let (found, here) = (tuning.machine, Tuning::machine());
            tracing::info!(target: "ccl::exec", file = %file.display(), found, here, "another machine's tuning, not used");
            None
        }
        Err(error) => {
            tracing::warn!(target: "ccl::exec", file = %file.display(), error, "not a tuning file, not used");
            None
        }
    }
}

impl TunedLink {
    /// This, and what it leaves out as `other` has it.
    #[must_use]
    pub fn or(self, other: &TunedLink) -> TunedLink {
        TunedLink {
            reach: self.reach,
            alpha_ns: self.alpha_ns.or(other.alpha_ns),
            switch_ns: self.switch_ns.or(other.switch_ns),
            message_ns: self.message_ns.or(other.message_ns),
            move_ns: self.move_ns.or(other.move_ns),
            beta_ns_per_byte: self.beta_ns_per_byte.or(other.beta_ns_per_byte),
            gamma_ns_per_byte: self.gamma_ns_per_byte.or(other.gamma_ns_per_byte),
        }
    }

    fn times(&self) -> [Option<f64>; 6] {
        let TunedLink { reach: _, alpha_ns, switch_ns, message_ns, move_ns, .. } = *self;
        [alpha_ns, switch_ns, message_ns, move_ns, self.beta_ns_per_byte, self.gamma_ns_per_byte]
    }

    fn over(&self, rates: Rates) -> Rates {
        Rates {
            alpha_ns: self.alpha_ns.unwrap_or(rates.alpha_ns),
            switch_ns: self.switch_ns.unwrap_or(rates.switch_ns),
            message_ns: self.message_ns.unwrap_or(rates.message_ns),
            move_ns: self.move_ns.unwrap_or(rates.move_ns),
            beta_ns_per_byte: self.beta_ns_per_byte.unwrap_or(rates.beta_ns_per_byte),
            channel_beta_ns_per_byte: match (self.beta_ns_per_byte, self.reach) {
                // Of a link, for which many channels were taken.
                (Some(beta), Reach::Devices | Reach::Multicast) => beta.max(rates.channel_beta_ns_per_byte),
                // One channel was measured.
                (beta, _) => beta.unwrap_or(rates.channel_beta_ns_per_byte),
            },
            gamma_ns_per_byte: self.gamma_ns_per_byte.unwrap_or(rates.gamma_ns_per_byte),
            ..rates
        }
    }
}

impl TunedRule {
    /// The rule, if it names a collective and one of its algorithms.
    fn resolve(&self) -> std::result::Result<Rule, String> {
        let collective: Collective = self
            .collective
            .parse()
            .map_err(|_| format!("expected a collective, found {}", self.collective))?;
        let named = |algorithm: &&Algorithm| algorithm.name() == self.algorithm;
        let known = ccl_plan::algorithms(collective);
        let algorithm = *known.iter().find(named).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|algorithm| algorithm.name()).collect();
            format!("expected an algorithm of {collective} ({}), found {}", names.join(", "), self.algorithm)
        })?;
        let choice = Choice { algorithm, channels: self.channels };
        Ok(Rule { collective, from: 0, up_to: self.up_to_bytes.unwrap_or(u64::MAX), choice })
    }
}

/// In `CCL_TUNING_FILE`: no file, not even the cached one.
const NO_FILE: &str = "none";
const ADVICE: &str = "the manual's chapter on tuning describes the file";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_links_cost_and_what_to_choose() {
        let text = "machine = \"m\"\n[[links]]\nreach = \"loopback\"\nalpha_ns = 9000.0\n\
                    [[rule]]\ncollective = \"all_reduce\"\nranks = 4\nreach = \"memory\"\nup_to_bytes = 64\n\
                    algorithm = \"ring\"\n[[rule]]\ncollective = \"broadcast\"\nalgorithm = \"direct\"\nchannels = 2\n";
        let tuning = Tuning::parse(text).unwrap();
        assert_eq!(tuning.rates(Reach::Loopback), Rates { alpha_ns: 9000.0, ..Reach::Loopback.rates() });
        assert_eq!(tuning.rates(Reach::Memory), Reach::Memory.rates());
        let ring = Choice { algorithm: Algorithm::Ring, channels: 1 };
        let direct = Choice { algorithm: Algorithm::Direct, channels: 2 };
        let all_reduce = Rule { collective: Collective::AllReduce, from: 0, up_to: 64, choice: ring };
        let broadcast = Rule { collective: Collective::Broadcast, from: 0, up_to: u64::MAX, choice: direct };
        assert_eq!(tuning.rules(Reach::Memory, 4), [all_reduce, broadcast]);
        assert_eq!(tuning.rules(Reach::Memory, 5), [broadcast]);
        assert_eq!(tuning.rules(Reach::Network, 4), [broadcast]);
        assert_eq!(Tuning::parse(&tuning.to_toml()).unwrap(), tuning);
        assert_eq!(Tuning::parse("").unwrap(), Tuning::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"bush\"", "found bush"),
            ("[[rule]]\ncollective = \"gossip\"\nalgorithm = \"ring\"", "found gossip"),
            ("[[rule]]\nalgorithm = \"ring\"", "collective"),
            ("[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\ncolour = 1", "colour"),
            ("[[links]]\nreach = \"pigeon\"", "pigeon"),
            ("[[links]]\nreach = \"memory\"\nalpha_ns = -1.0", "found -1"),
            ("[[links]]\nreach = \"memory\"\nbeta_ns_per_byte = nan", "NaN"),
            ("gibberish", "line 1"),
        ] {
            let error = Tuning::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = Tuning::read(Path::new("/nonexistent/tuning.toml")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/tuning.toml"), "{error}");
    }
}
