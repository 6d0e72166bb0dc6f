//! Reading launchers' variables.

use std::collections::BTreeMap;
use std::str::FromStr;

use ccl_plan::Rank;

use crate::discover::launcher::{Job, Launcher, Meeting};
use crate::error::{Error, Result};

/// An environment: names and values. Collect it from pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vars(BTreeMap<String, String>);

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Vars {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Vars {
        Vars(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Vars {
    /// The value of a variable that is set and not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The value of a variable that must be a number if it is set.
    pub(super) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            let cause = format!("expected {name} to be a number that fits, found `{text}`");
            Error::usage(cause, "correct the launcher's variable, or set CCL_RANK and CCL_NRANKS")
        })
    }
}

/// A launcher's names for the four numbers.
pub(super) struct Names {
    pub(super) rank: &'static str,
    pub(super) nranks: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_nranks: &'static str,
}

impl Names {
    /// The job as the launcher tells it, without a place to meet; nothing if the launcher says nothing.
    pub(super) fn read(&self, vars: &Vars, launcher: Launcher) -> Result<Option<Job>> {
        let (rank, nranks) = match (vars.number(self.rank)?, vars.number(self.nranks)?) {
            (Some(rank), Some(nranks)) => (rank, nranks),
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(missing(self.nranks, self.rank)),
            (None, Some(_)) => return Err(missing(self.rank, self.nranks)),
        };
        Ok(Some(Job {
            launcher,
            rank: Rank(rank),
            nranks,
            local_rank: vars.number(self.local_rank)?,
            local_nranks: vars.number(self.local_nranks)?,
            meeting: Meeting::Nowhere,
        }))
    }
}

/// The error that `name` should be there, as `present` is.
pub(super) fn missing(name: &str, present: &str) -> Error {
    let cause = format!("expected {name} in the environment beside {present}, found nothing");
    Error::usage(cause, "start the program by a launcher, or set CCL_RANK, CCL_NRANKS and CCL_COMM_ID")
}
