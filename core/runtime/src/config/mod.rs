//! Settings: one [`Config`], parsed once, printable, passed down.
//!
//! Every setting stands in one table, [`SETTINGS`], with its name, NCCL's name where it means the
//! same, type, default, one sentence, and whether ranks must agree on it. A value comes from, in
//! this order:
//!
//! 1. the program ([`Builder::set`]),
//! 2. the environment, by our name (`CCL_X`),
//! 3. the environment, by NCCL's name (`NCCL_X`),
//! 4. the file named by `CCL_CONF_FILE`, else `~/.ccl.conf`; then `/etc/ccl.conf`,
//! 5. the default.
//!
//! An env plugin (`CCL_ENV_PLUGIN`), which [`Builder::process`] loads, is told what 2 to 4 have under a name, and says
//! whether that stands, counts for nothing, or has another value, which takes the environment's place.
//!
//! ```
//! use ccl::config::{Config, Source};
//!
//! let config = Config::builder().set("CCL_TIMEOUT", "5s").vars([("CCL_ALGO", "ring")]).build()?;
//! assert_eq!(config.timeout().as_secs(), 5);
//! assert_eq!(config.init_timeout().as_secs(), 5);
//! assert_eq!(config.find("CCL_ALGO").unwrap().source, Source::Environment { name: "CCL_ALGO" });
//! # Ok::<(), ccl::Error>(())
//! ```
//!
//! It does not watch for changes, and it never writes to the environment.

mod builder;
mod choice;
mod debug;
mod device;
mod file;
mod kind;
mod manual;
mod plugin;
mod resolve;
mod source;
mod table;

use std::fmt;

use ccl_plugin_host::{Candidate, EnvPlugin};

pub use builder::Builder;
pub use choice::{Choices, Determinism, Endpoint, Endpoints, Family, NameFilter, PortRange, Secret};
pub use debug::{Level, Subsystem, Subsystems};
pub use device::{CudaUse, Seats};
pub use kind::{Between, Bytes, Kind, Limit, Micros, Names, Span};
pub use manual::settings_chapter;
pub use source::Source;
pub use table::{Agreement, SETTINGS, Section, Setting};

use crate::error::Result;

/// The value of every setting, and where each came from.
///
/// Has an accessor per setting, named after it. Immutable; share it behind an `Arc`.
#[derive(Clone, Debug)]
pub struct Config {
    values: table::Values,
    resolved: Vec<Resolved>,
    warnings: Vec<String>,
    ignored: Vec<String>,
    env: plugin::Chosen,
}

/// A setting with its value.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The setting.
    pub setting: &'static Setting,
    /// Its value in canonical spelling; empty if it is open, hidden if it is secret.
    pub value: String,
    /// Where the value came from.
    pub source: Source,
}

/// A setting on which two ranks should agree and do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The setting's name.
    pub name: String,
    /// Our value, or nothing if we do not know the setting.
    pub ours: Option<String>,
    /// Theirs.
    pub theirs: Option<String>,
}

impl Config {
    /// Settings from this process's environment and files.
    ///
    /// # Errors
    /// A value that cannot be read, or a file that was named and is not there.
    pub fn load() -> Result<Config> {
        Config::builder().process()?.build()
    }

    /// Settings from `vars` only: no files, no process environment.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub fn from_vars<K: Into<String>, V: Into<String>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Config> {
        Config::builder().vars(vars).build()
    }

    /// Settings from chosen sources.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Every setting with its value and source, in the order of [`SETTINGS`].
    pub fn resolved(&self) -> &[Resolved] {
        &self.resolved
    }

    /// A setting with its value and source, by our name.
    pub fn find(&self, name: &str) -> Option<&Resolved> {
        self.resolved.iter().find(|resolved| resolved.setting.name == name)
    }

    /// What the user should know: names that look like settings and are not.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// NCCL's variables that were set and have no meaning here.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The env plugin in use.
    pub fn env(&self) -> Option<EnvPlugin> {
        self.env.plugin
    }

    /// What became of every file that was considered as an env plugin, best first; nothing if none was named and none is
    /// installed.
    pub fn env_candidates(&self) -> &[Candidate] {
        &self.env.candidates
    }

    /// The settings on which ranks must agree, by name, in canonical spelling.
    pub fn agreed(&self) -> Vec<(&'static str, &str)> {
        let must = self.resolved.iter().filter(|resolved| resolved.setting.agreement == Agreement::Must);
        must.map(|resolved| (resolved.setting.name, resolved.value.as_str())).collect()
    }

    /// A digest of [`Config::agreed`], the same on ranks that agree.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("ccl settings on which ranks must agree, version 1");
        for (name, value) in self.agreed() {
            hasher.update(format!("{name}={value}\n").as_bytes());
        }
        hasher.finalize().into()
    }

    /// What differs between our agreed settings and another rank's.
    pub fn differences<S: AsRef<str>>(&self, theirs: &[(S, S)]) -> Vec<Difference> {
        let ours = self.agreed();
        let their_value =
            |name: &str| theirs.iter().find(|(other, _)| other.as_ref() == name).map(|(_, value)| value);
        let known = ours.iter().map(|&(name, value)| Difference {
            name: name.to_owned(),
            ours: Some(value.to_owned()),
            theirs: their_value(name).map(|value| value.as_ref().to_owned()),
        });
        let unknown = theirs.iter().filter(|(name, _)| !ours.iter().any(|(own, _)| *own == name.as_ref()));
        let unknown = unknown.map(|(name, value)| Difference {
            name: name.as_ref().to_owned(),
            ours: None,
            theirs: Some(value.as_ref().to_owned()),
        });
        known.filter(|both| both.ours != both.theirs).chain(unknown).collect()
    }

    /// The values as a TOML table of strings, those left open and secrets omitted.
    pub fn to_toml(&self) -> String {
        let shown = self
            .resolved
            .iter()
            .filter(|resolved| !resolved.value.is_empty() && resolved.value != choice::HIDDEN);
        let table: toml::Table =
            shown.map(|one| (one.setting.name.to_owned(), toml::Value::String(one.value.clone()))).collect();
        table.to_string()
    }
}

impl Default for Config {
    /// Every setting at its default.
    fn default() -> Config {
        Config::builder().build().expect("every default parses, and defaults do not contradict each other")
    }
}

/// A line per setting: name, value, source.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = SETTINGS.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
        for Resolved { setting, value, source } in &self.resolved {
            let value = if value.is_empty() { "-" } else { value };
            writeln!(f, "{:width$} = {value:<20} ({source})", setting.name)?;
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: &Option<String>| {
            value.as_ref().map_or("unknown".to_owned(), |value| format!("`{value}`"))
        };
        write!(f, "{}: ours {}, theirs {}", self.name, show(&self.ours), show(&self.theirs))
    }
}

#[cfg(test)]
mod tests;
