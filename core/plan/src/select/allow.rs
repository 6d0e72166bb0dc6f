//! The caller's wishes: which algorithms may be used for which collectives.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::algo::{Algorithm, algorithms};
use crate::collective::Collective;

/// Rules such as `ring`, `^one_shot` or `all_reduce:ring,two_shot;broadcast:direct`.
///
/// A rule is a list of algorithms, or, after `^`, of those not to be used, for one collective or for
/// all. A rule for all is passed over where it would leave nothing: `two_shot` says nothing about
/// broadcast. A rule for one collective is meant as it stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    rules: Vec<Rule>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    collective: Option<Collective>,
    except: bool,
    algorithms: Vec<Algorithm>,
}

/// A word that is no collective or no algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowError {
    /// What was expected.
    pub expected: &'static str,
    /// The word.
    pub found: String,
}

impl Allow {
    /// Whether an algorithm may be used. The last rule that speaks of the collective decides.
    pub fn permits(&self, collective: Collective, algorithm: Algorithm) -> bool {
        let speaks = |rule: &&Rule| match rule.collective {
            Some(named) => named == collective,
            None => algorithms(collective).iter().any(|algorithm| rule.permits(*algorithm)),
        };
        self.rules.iter().rev().find(speaks).is_none_or(|rule| rule.permits(algorithm))
    }
}

impl Rule {
    fn permits(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm) != self.except
    }
}

impl FromStr for Allow {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Allow, AllowError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        Ok(Allow { rules: rules.map(rule).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for AllowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found `{}`", self.expected, self.found)
    }
}

impl core::error::Error for AllowError {}

fn rule(text: &str) -> Result<Rule, AllowError> {
    let (collective, list) = match text.split_once(':') {
        None => (None, text),
        Some((name, list)) => (Some(named(name.trim(), "a collective", find_collective)?), list),
    };
    let list = list.trim();
    let (except, list) = list.strip_prefix('^').map_or((false, list), |list| (true, list));
    let names = list.split(',').map(str::trim);
    let algorithms =
        names.map(|name| named(name, "an algorithm", find_algorithm)).collect::<Result<_, _>>()?;
    Ok(Rule { collective, except, algorithms })
}

fn named<T>(name: &str, expected: &'static str, find: fn(&str) -> Option<T>) -> Result<T, AllowError> {
    find(&plain(name)).ok_or(AllowError { expected, found: name.to_string() })
}

fn find_collective(name: &str) -> Option<Collective> {
    Collective::ALL.into_iter().find(|collective| plain(collective.name()) == name)
}

fn find_algorithm(name: &str) -> Option<Algorithm> {
    Algorithm::ALL.into_iter().find(|algorithm| plain(algorithm.name()) == name)
}

/// `AllReduce`, `allreduce` and `all_reduce` are one.
fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}
