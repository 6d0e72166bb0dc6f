//! A source of settings that is a plugin.

use std::collections::BTreeSet;

use ccl_plugin_host::env::Answer;
use ccl_plugin_host::{Candidate, EnvPlugin};

use crate::config::file::Line;
use crate::config::table::SETTINGS;
use crate::error::{Error, Fault, Result};

/// The env plugin that the settings ask for, and what became of every file that was considered.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) plugin: Option<EnvPlugin>,
    pub(super) candidates: Vec<Candidate>,
    /// That a plugin was named and none can be used.
    pub(super) warning: Option<String>,
}

impl Chosen {
    /// The first usable of `names`, else an installed one.
    pub(super) fn load(names: &[String]) -> Chosen {
        let (candidates, plugin) = match names {
            [] => EnvPlugin::load(DEFAULT_PLUGINS),
            [only] if only.eq_ignore_ascii_case("none") => return Chosen::default(),
            names => EnvPlugin::load(&names.join(",")),
        };
        if plugin.is_none() && names.is_empty() {
            return Chosen::default();
        }
        let warning = plugin.is_none().then(|| {
            let lines: Vec<_> = candidates.iter().map(ToString::to_string).collect();
            let (names, lines) = (names.join(","), lines.join("; "));
            format!(
                "expected a usable env plugin, found none in CCL_ENV_PLUGIN={names}; goes without: {lines}"
            )
        });
        Chosen { plugin, candidates, warning }
    }
}

/// What a plugin makes of the environment and the files.
pub(super) struct Answers {
    /// What it calls itself.
    pub(super) plugin: &'static str,
    /// Its own values, by name.
    pub(super) values: Vec<(&'static str, String)>,
    /// The names of which nothing counts that the environment or a file says.
    hidden: BTreeSet<&'static str>,
}

impl Answers {
    /// Asks about every name of every setting.
    pub(super) fn ask(plugin: EnvPlugin, vars: &[(String, String)], files: &[Vec<Line>]) -> Result<Answers> {
        let mut answers = Answers { plugin: plugin.name(), values: Vec::new(), hidden: BTreeSet::new() };
        let names = SETTINGS.iter().filter(|setting| !READ_BEFORE.contains(&setting.name));
        for name in names.flat_map(|setting| [Some(setting.name), setting.alias]).flatten() {
            let answer =
                plugin.ask(name, found(name, vars, files)).map_err(|why| garbage(plugin, name, &why))?;
            match answer {
                Answer::Kept => continue,
                Answer::Nothing => {}
                Answer::Value(value) => answers.values.push((name, value)),
            }
            answers.hidden.insert(name);
        }
        Ok(answers)
    }

    /// Whether what the environment or a file says of this name counts.
    pub(super) fn keeps(&self, name: &str) -> bool {
        !self.hidden.contains(name)
    }
}

/// What stands under a name in the environment, else in the files.
fn found<'a>(name: &str, vars: &'a [(String, String)], files: &'a [Vec<Line>]) -> Option<&'a str> {
    let vars = vars.iter().map(|(name, value)| (name, value));
    let lines = files.iter().flatten().map(|line| (&line.name, &line.value));
    let says =
        |(known, value): (&String, &'a String)| (known == name && !value.trim().is_empty()).then_some(value);
    vars.chain(lines).find_map(says).map(String::as_str)
}

fn garbage(plugin: EnvPlugin, name: &str, why: &str) -> Error {
    // What it found is not told of a secret.
    let why = if name == "CCL_SECRET" { "expected a secret in UTF-8" } else { why };
    Error::new(
        Fault::Plugin { name: plugin.name().to_owned() },
        format!("setting {name}: {why}, from the env plugin {}", plugin.name()),
        "correct the plugin, or set CCL_ENV_PLUGIN=none",
    )
}

/// Settings that are read before there is a plugin.
const READ_BEFORE: [&str; 2] = ["CCL_ENV_PLUGIN", "CCL_CONF_FILE"];
/// Used where they are installed and nothing else is asked for: ours, then NCCL's.
const DEFAULT_PLUGINS: &str = "libccl-env.so,libnccl-env.so";
