//! Files of flight recorders: which operation each rank stands in, and who is behind.

use std::collections::{BTreeMap, BTreeSet};

use ccl::{Error, Rank, Result};
use serde::{Deserialize, Serialize};
use serde_pickle::DeOptions;

use crate::text;

/// One rank's file.
#[derive(Debug)]
pub(super) struct Flight {
    rank: u32,
    file: File,
}

/// A rank in a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Standing {
    pub(super) communicator: String,
    pub(super) rank: u32,
    /// Numbers of the last collective that it entered, and that it was done with.
    pub(super) entered: u64,
    pub(super) completed: u64,
    /// What it is in, or was in last.
    pub(super) stands: String,
    /// Messages that are under way.
    pub(super) messages: Vec<String>,
}

/// What the files together say.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) standings: Vec<Standing>,
    /// Who is behind, whose file is missing, and what does not match.
    pub(super) findings: Vec<String>,
}

impl Flight {
    /// The file in these bytes, whose name ends with the rank.
    ///
    /// # Errors
    ///
    /// It is no such file, or its name has no rank.
    pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<Flight> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let rank = name[name.len() - digits..].parse().map_err(|_| {
            let cause =
                format!("{name}: expected a flight recorder's file, which ends with the rank as in flight-3");
            Error::usage(cause, "name the file as it was written: CCL_FLIGHT_FILE and the rank")
        })?;
        let file = serde_pickle::from_slice(bytes, DeOptions::new()).map_err(|error| {
            let cause = format!("{name}: expected a flight recorder's file of format 2, found {error}");
            Error::usage(cause, "use the file as it was written: a copy in text mode is damaged")
        })?;
        Ok(Flight { rank, file })
    }

    /// The communicator's name and ranks, by what the file calls it.
    fn groups(&self) -> impl Iterator<Item = (&str, Vec<u32>)> {
        self.file.pg_config.values().map(|config| {
            let ranks = config.ranks.split(|c: char| !c.is_ascii_digit());
            (&*config.name, ranks.filter_map(|rank| rank.parse().ok()).collect())
        })
    }

    fn entries<'a>(&'a self, communicator: &'a str) -> impl DoubleEndedIterator<Item = &'a Entry> + 'a {
        self.file.entries.iter().filter(move |entry| entry.process_group.0 == communicator)
    }

    fn standing(&self, communicator: &str) -> Standing {
        let collectives = || self.entries(communicator).filter(|entry| !entry.is_p2p);
        let last_of =
            |is: fn(&Entry) -> bool| collectives().filter(|e| is(e)).map(|e| e.collective_seq_id).max();
        let done = |entry: &Entry| entry.state == "completed";
        let stands = match (collectives().find(|entry| !done(entry)), collectives().next_back()) {
            (Some(entry), _) => format!("in {}", entry.words()),
            (None, Some(entry)) => format!("between calls, after {}", entry.words()),
            (None, None) => "has called nothing".to_owned(),
        };
        let messages = self
            .entries(communicator)
            .filter(|entry| entry.is_p2p && !done(entry))
            .map(|e| e.name().to_owned());
        Standing {
            communicator: communicator.to_owned(),
            rank: self.rank,
            entered: last_of(|_| true).unwrap_or(0),
            completed: last_of(|entry| entry.state == "completed").unwrap_or(0),
            stands,
            messages: messages.collect(),
        }
    }
}

/// Compares the files of the ranks.
pub(super) fn compare(flights: &[Flight]) -> Verdict {
    let mut groups: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (name, ranks) in flights.iter().flat_map(Flight::groups) {
        groups.entry(name).or_default().extend(ranks);
    }
    let mut verdict = Verdict { standings: Vec::new(), findings: Vec::new() };
    for (name, ranks) in groups {
        let members: Vec<&Flight> =
            flights.iter().filter(|flight| flight.groups().any(|(own, _)| own == name)).collect();
        let mut standings: Vec<Standing> = members.iter().map(|flight| flight.standing(name)).collect();
        standings.sort_by_key(|standing| standing.rank);
        let here: BTreeSet<u32> = standings.iter().map(|standing| standing.rank).collect();
        let missing: Vec<Rank> = ranks.difference(&here).copied().map(Rank).collect();
        if !missing.is_empty() {
            let words = "has no file: it was killed, or its file was not collected";
            verdict.findings.push(format!("communicator {name}: {} {words}", people(&missing)));
        }
        verdict.findings.extend(behind(name, &standings));
        verdict.findings.extend(mismatches(name, &members));
        verdict.standings.extend(standings);
    }
    verdict
}

/// Who has not entered the collective that others are in.
fn behind(name: &str, standings: &[Standing]) -> Option<String> {
    let furthest = standings.iter().max_by_key(|standing| standing.entered)?;
    let (those, others): (Vec<_>, Vec<_>) =
        standings.iter().partition(|standing| standing.entered < furthest.entered);
    if those.is_empty() || furthest.completed == furthest.entered && furthest.messages.is_empty() {
        return None;
    }
    let ranks = |standings: &[&Standing]| people(&standings.iter().map(|s| Rank(s.rank)).collect::<Vec<_>>());
    let (who, whom) = (ranks(&those), ranks(&others));
    let what = furthest.stands.trim_start_matches("in ");
    Some(format!("communicator {name}: {who} has not entered {what}, which {whom} entered"))
}

/// Collectives that not all ranks called alike: the first of them.
fn mismatches(name: &str, members: &[&Flight]) -> Option<String> {
    let mut calls: BTreeMap<u64, (u32, &Entry)> = BTreeMap::new();
    for flight in members {
        for entry in flight.entries(name).filter(|entry| !entry.is_p2p) {
            let (rank, first) = *calls.entry(entry.collective_seq_id).or_insert((flight.rank, entry));
            if !first.matches(entry) {
                let (one, other) = (first.words(), entry.words());
                return Some(format!(
                    "communicator {name}: rank {rank} called {one}, and rank {} called {other}",
                    flight.rank
                ));
            }
        }
    }
    None
}

fn people(ranks: &[Rank]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "each of ranks" }, text::ranges(ranks))
}

#[derive(Debug, Deserialize)]
struct File {
    entries: Vec<Entry>,
    #[serde(default)]
    pg_config: BTreeMap<String, Config>,
}

#[derive(Debug, Deserialize)]
struct Config {
    name: String,
    ranks: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    /// The communicator, and a description.
    process_group: (String, String),
    collective_seq_id: u64,
    is_p2p: bool,
    profiling_name: String,
    #[serde(default)]
    input_sizes: Vec<Vec<u64>>,
    #[serde(default)]
    input_dtypes: Vec<String>,
    state: String,
}

impl Entry {
    /// The operation, without the library.
    fn name(&self) -> &str {
        self.profiling_name.split_once(':').map_or(&*self.profiling_name, |(_, name)| name)
    }

    /// As `all_reduce 7 of 1024 Float`.
    fn words(&self) -> String {
        let mut words = format!("{} {}", self.name(), self.collective_seq_id);
        if let (Some(size), Some(dtype)) = (self.input_sizes.first(), self.input_dtypes.first()) {
            let size: Vec<String> = size.iter().map(u64::to_string).collect();
            words += &format!(" of {} {dtype}", size.join("x"));
        }
        words
    }

    /// Whether it can be the same call: blocks may differ where they may in the call.
    fn matches(&self, other: &Entry) -> bool {
        let even = ["all_reduce", "broadcast", "reduce", "all_to_all"].contains(&self.name());
        self.name() == other.name()
            && (!even || (&self.input_sizes, &self.input_dtypes) == (&other.input_sizes, &other.input_dtypes))
    }
}
