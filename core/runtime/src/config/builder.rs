//! Choosing the sources of settings.

use std::env;
use std::path::{Path, PathBuf};

use crate::config::file::{self, Line};
use crate::config::kind::Names;
use crate::config::plugin::{Answers, Chosen};
use crate::config::resolve::{Parse, Texts};
use crate::config::table::{SETTINGS, Values};
use crate::config::{Config, Resolved};
use crate::error::Result;

/// Sources of settings. Later calls of the same method come after earlier ones: a later `set` wins, an
/// earlier file wins.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    program: Vec<(String, String)>,
    vars: Vec<(String, String)>,
    lines: Vec<Vec<Line>>,
    env: Chosen,
}

impl Builder {
    /// Sets one setting, by our name or NCCL's, over all other sources. An empty value says nothing.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl Into<String>) -> Builder {
        self.program.push((name.to_owned(), value.into()));
        self
    }

    /// Adds environment variables; those that are not settings do no harm.
    #[must_use]
    pub fn vars<K: Into<String>, V: Into<String>>(
        mut self,
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Builder {
        self.vars.extend(vars.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Adds a file's text; `path` is where it came from.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>, text: &str) -> Builder {
        self.lines.push(file::parse(path.as_ref(), text));
        self
    }

    /// Adds this process's environment, the files it leads to, and the env plugin that these name, which is loaded and
    /// initialised once in a process. Variables that are not UTF-8 are skipped. Blocks for the disk and the plugin.
    ///
    /// # Errors
    /// A file that `CCL_CONF_FILE` names cannot be read, or one of the others is there and cannot.
    pub fn process(self) -> Result<Builder> {
        let vars = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        self.vars(vars).standard_files()?.env_plugin()
    }

    /// Parses what the sources say.
    ///
    /// # Errors
    /// A name given to [`Builder::set`] that is not a setting, a value that cannot be read, or values that
    /// contradict each other. The error names the setting, the value, its source and what is expected. What an env plugin
    /// answers is no text.
    pub fn build(&self) -> Result<Config> {
        let texts = self.texts()?;
        let values = Values::read(&Parse(&texts))?;
        let resolved = SETTINGS.iter().zip(values.print()).map(|(setting, value)| {
            let (_, source) = texts.text(setting);
            Resolved { setting, value, source }
        });
        Ok(Config {
            resolved: resolved.collect(),
            values,
            warnings: self.env.warning.iter().cloned().chain(texts.warnings).collect(),
            ignored: texts.ignored.into_iter().collect(),
            env: self.env.clone(),
        })
    }

    fn standard_files(mut self) -> Result<Builder> {
        let texts = self.texts()?;
        let named = Parse(&texts).value::<Option<PathBuf>>("CCL_CONF_FILE")?;
        match named {
            Some(path) => self = self.file(&path, &file::read_named(&path)?),
            None => {
                let home = self.vars.iter().find(|(name, _)| name == "HOME");
                let path = home.map(|(_, home)| Path::new(home).join(".ccl.conf"));
                self = path.map_or(Ok(self.clone()), |path| self.optional_file(&path))?;
            }
        }
        self.optional_file(Path::new("/etc/ccl.conf"))
    }

    /// The plugin is read about where there is none yet.
    fn env_plugin(mut self) -> Result<Builder> {
        let names = Parse(&self.texts()?).value::<Names>("CCL_ENV_PLUGIN")?;
        self.env = Chosen::load(&names.0);
        Ok(self)
    }

    fn optional_file(self, path: &Path) -> Result<Builder> {
        let text = file::read_if_present(path)?;
        Ok(text.map_or(self.clone(), |text| self.file(path, &text)))
    }

    fn texts(&self) -> Result<Texts> {
        let mut texts = Texts::default();
        texts.take_program(&self.program)?;
        let ask = |plugin| Answers::ask(plugin, &self.vars, &self.lines);
        let answers = self.env.plugin.map(ask).transpose()?;
        texts.take_environment(&self.vars, answers.as_ref());
        self.lines.iter().for_each(|lines| texts.take_file(lines, answers.as_ref()));
        Ok(texts)
    }
}
