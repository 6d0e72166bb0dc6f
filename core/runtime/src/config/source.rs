//! Where a setting's value came from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a setting's value came from, in order of precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The program said it.
    Program,
    /// An env plugin, asked by this name.
    Plugin {
        /// Our name or NCCL's.
        name: &'static str,
        /// What the plugin calls itself.
        plugin: &'static str,
    },
    /// An environment variable of this name.
    Environment {
        /// Our name or NCCL's.
        name: &'static str,
    },
    /// A line of a file.
    File {
        /// Our name or NCCL's.
        name: &'static str,
        /// The file.
        path: Arc<PathBuf>,
        /// Its line, from 1.
        line: usize,
    },
    /// Nobody said it.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Program => f.write_str("the program"),
            Source::Plugin { name, plugin } => write!(f, "{name} from the env plugin {plugin}"),
            Source::Environment { name } => write!(f, "{name} in the environment"),
            Source::File { name, path, line } => write!(f, "{name} in {}:{line}", path.display()),
            Source::Default => f.write_str("the default"),
        }
    }
}
