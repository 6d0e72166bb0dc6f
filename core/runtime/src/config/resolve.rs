//! From sources to one text per setting.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::file::Line;
use crate::config::kind::Kind;
use crate::config::plugin::Answers;
use crate::config::source::Source;
use crate::config::table::{SETTINGS, Setting};
use crate::error::{Error, Result};

/// One text per setting, with its source.
#[derive(Default)]
pub(super) struct Texts {
    found: BTreeMap<&'static str, (String, Source)>,
    /// What the user should know: names that look like ours and are not.
    pub(super) warnings: Vec<String>,
    /// NCCL's variables that have no meaning here.
    pub(super) ignored: BTreeSet<String>,
}

impl Texts {
    /// Takes the program's settings.
    pub(super) fn take_program(&mut self, pairs: &[(String, String)]) -> Result<()> {
        // From the last, because the first text taken for a setting stays.
        for (name, value) in pairs.iter().rev() {
            let (setting, _) = find(name).ok_or_else(|| unknown_error(name))?;
            self.take(setting, value, Source::Program);
        }
        Ok(())
    }

    /// Takes the settings of the environment and, in its place, of an env plugin: our names before NCCL's.
    pub(super) fn take_environment(&mut self, pairs: &[(String, String)], answers: Option<&Answers>) {
        for alias in [false, true] {
            for (name, value) in answers.map_or(&[][..], |answers| &answers.values) {
                let (found, plugin) = (find(name), answers.map_or("", |answers| answers.plugin));
                if let Some((setting, name)) =
                    found.filter(|(setting, name)| is_alias(setting, name) == alias)
                {
                    self.take(setting, value, Source::Plugin { name, plugin });
                }
            }
            for (name, value) in pairs.iter().filter(|(name, _)| counts(name, answers)) {
                match find(name) {
                    Some((setting, name)) if is_alias(setting, name) == alias => {
                        self.take(setting, value, Source::Environment { name });
                    }
                    Some(_) => {}
                    None => self.note_unknown(name, "the environment"),
                }
            }
        }
    }

    /// Takes a file's settings, our names before NCCL's, and earlier lines before later ones.
    pub(super) fn take_file(&mut self, lines: &[Line], answers: Option<&Answers>) {
        for alias in [false, true] {
            for line in lines.iter().filter(|line| counts(&line.name, answers)) {
                match find(&line.name) {
                    Some((setting, name)) if is_alias(setting, name) == alias => {
                        let source = Source::File { name, path: line.path.clone(), line: line.number };
                        self.take(setting, &line.value, source);
                    }
                    Some(_) => {}
                    None => {
                        self.note_unknown(&line.name, &format!("{}:{}", line.path.display(), line.number))
                    }
                }
            }
        }
    }

    /// The text of a setting and where it came from.
    pub(super) fn text(&self, setting: &Setting) -> (&str, Source) {
        match (self.found.get(setting.name), setting.default.strip_prefix('=').and_then(find)) {
            (Some((text, source)), _) => (text, source.clone()),
            (None, Some((same, _))) => (self.text(same).0, Source::Default),
            (None, None) => (setting.default, Source::Default),
        }
    }

    /// The first text taken for a setting stays. An empty one says nothing.
    fn take(&mut self, setting: &'static Setting, text: &str, source: Source) {
        if !text.trim().is_empty() {
            self.found.entry(setting.name).or_insert_with(|| (text.trim().to_owned(), source));
        }
    }

    fn note_unknown(&mut self, name: &str, place: &str) {
        if name.starts_with("NCCL_") {
            self.ignored.insert(name.to_owned());
        } else if name.starts_with("CCL_") && !PLUGIN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            let warning = format!("{name} in {place} is not a setting of ccl{}", suggestion(name));
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

/// Parses texts into values.
pub(super) struct Parse<'a>(pub(super) &'a Texts);

impl Parse<'_> {
    /// The value of the setting called `name`.
    pub(super) fn value<T: Kind>(&self, name: &str) -> Result<T> {
        let (setting, _) = find(name).ok_or_else(|| Error::bug(format!("no setting is called {name}")))?;
        let (text, source) = self.0.text(setting);
        T::parse(text).ok_or_else(|| bad_value(setting, text, &source))
    }
}

/// The setting called `name`, by our name or NCCL's, and which of the two it is.
pub(super) fn find(name: &str) -> Option<(&'static Setting, &'static str)> {
    SETTINGS.iter().find_map(|setting| {
        let names = [Some(setting.name), setting.alias];
        names.into_iter().flatten().find(|known| *known == name).map(|known| (setting, known))
    })
}

/// Whether the environment and the files have a say about this name.
fn counts(name: &str, answers: Option<&Answers>) -> bool {
    answers.is_none_or(|answers| answers.keeps(name))
}

fn is_alias(setting: &Setting, name: &str) -> bool {
    setting.name != name
}

fn bad_value(setting: &Setting, text: &str, source: &Source) -> Error {
    let found = match setting.name {
        "CCL_SECRET" => "a secret".to_owned(),
        _ => format!("`{text}`"),
    };
    let cause =
        format!("setting {}: expected {}, found {found}, from {source}", setting.name, (setting.expected)());
    Error::usage(cause, "correct the value, or remove it to get the default")
}

fn unknown_error(name: &str) -> Error {
    let cause = format!("expected the name of a setting, found `{name}`{}", suggestion(name));
    Error::usage(cause, "the chapter on settings of the manual lists all of them")
}

/// "; did you mean …?" if a known name is near.
fn suggestion(name: &str) -> String {
    let near =
        SETTINGS.iter().map(|setting| (strsim::damerau_levenshtein(name, setting.name), setting.name)).min();
    match near {
        Some((distance, near)) if distance <= MOST_TYPOS => format!("; did you mean {near}?"),
        _ => String::new(),
    }
}

/// Names that begin so belong to plugins, which read them themselves.
const PLUGIN_PREFIXES: [&str; 2] = ["CCL_IB_", "CCL_PROFILE_"];

const MOST_TYPOS: usize = 4;
