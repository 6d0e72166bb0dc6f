//! The kinds of plugins, and how they are told apart.

use std::fmt;
use std::path::Path;

use ccl_plugin_host::exported;

use crate::Clause;
use crate::clauses::{env, net, profiler, tuner};

/// A kind of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Networks: `cclNet_v1`.
    Net,
    /// Profilers: `cclProfiler_v1`.
    Profiler,
    /// Tuners: `cclTuner_v1`.
    Tuner,
    /// Sources of settings: `cclEnv_v1`.
    Env,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 4] = [Kind::Net, Kind::Profiler, Kind::Tuner, Kind::Env];

    /// As in the names of files and settings: `net`, `profiler`, `tuner` or `env`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Net => "net",
            Kind::Profiler => "profiler",
            Kind::Tuner => "tuner",
            Kind::Env => "env",
        }
    }

    /// Its clauses, in the order in which an author gets to them; none if it cannot be checked.
    pub fn clauses(self) -> &'static [Clause] {
        match self {
            Kind::Net => net::CLAUSES,
            Kind::Profiler => profiler::CLAUSES,
            Kind::Tuner => tuner::CLAUSES,
            Kind::Env => env::CLAUSES,
        }
    }

    /// Its clause of this name.
    pub fn clause(self, name: &str) -> Option<&'static Clause> {
        self.clauses().iter().find(|clause| clause.name == name)
    }

    /// The kinds of which a file exports a table, of ccl or of NCCL. Loads it, which runs its initialisers.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn of_file(file: &Path) -> Result<Vec<Kind>, String> {
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            if exported(file, kind.symbols())? {
                kinds.push(kind);
            }
        }
        Ok(kinds)
    }

    /// What a plugin of this kind may export.
    fn symbols(self) -> impl Iterator<Item = String> {
        let (ours, nccl) = match self {
            Kind::Net => ("cclNet_v", "ncclNetPlugin_v"),
            Kind::Profiler => ("cclProfiler_v", "ncclProfiler_v"),
            Kind::Tuner => ("cclTuner_v", "ncclTunerPlugin_v"),
            Kind::Env => ("cclEnv_v", "ncclEnvPlugin_v"),
        };
        [ours, nccl]
            .into_iter()
            .flat_map(|name| (1..=LAST_VERSION).map(move |version| format!("{name}{version}")))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Versions to look for: all that there were and some that may come.
const LAST_VERSION: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clauses_are_unique_in_a_kind_and_each_kind_begins_with_its_table() {
        for kind in Kind::ALL {
            let mut names: Vec<_> = kind.clauses().iter().map(|clause| clause.name).collect();
            assert!(names.first().is_none_or(|first| *first == "table"), "{kind}: {names:?}");
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{kind}");
        }
    }
}
