//! One rank's part of tuning: every algorithm in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl::config::Config;
use ccl::exec::Carried;
use ccl::plan::select::Standing;
use ccl::{Algorithm, Collective, Communicator, Dtype, Explanation, Rank, ReduceOp, Result, UniqueId};
use serde_json::json;

use super::Args;
use crate::perf::call::{Call, Lane};
use crate::perf::check::{Check, Lengths};
use crate::perf::geometry::Amount;
use crate::perf::measure::{Pace, Stopwatch};
use crate::perf::operation::Operation;
use crate::perf::point::{Placement, Point};

/// One collective at one size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) collective: Collective,
    pub(super) bytes: u64,
    /// The chosen algorithm's first.
    pub(super) entries: Vec<Entry>,
}

/// One algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) algorithm: Algorithm,
    /// The lower quartile of all rounds, of the slowest rank.
    pub(super) time_us: f64,
    /// The least of them.
    pub(super) least_us: f64,
    pub(super) predicted_us: f64,
    /// Elements that a Move takes at a time.
    pub(super) chunk_count: usize,
    /// How data gets from rank to rank.
    pub(super) carried: Carried,
}

impl Cell {
    /// What the library would choose.
    pub(super) fn chosen(&self) -> Entry {
        self.entries[0]
    }

    /// The fastest.
    pub(super) fn best(&self) -> Entry {
        let fastest = |best: Entry, entry: &Entry| if entry.time_us < best.time_us { *entry } else { best };
        self.entries.iter().fold(self.chosen(), fastest)
    }

    /// How many times as long as the best the choice takes.
    pub(super) fn loss(&self) -> f64 {
        self.chosen().time_us / self.best().time_us.max(1e-9)
    }

    /// One line for each algorithm; `comm` is any explanation of the communicator.
    pub(super) fn json(&self, comm: &Explanation) -> String {
        let line = |entry: &Entry| {
            let object = json!({
                "collective": self.collective.name(),
                "ranks": comm.n,
                "cores": comm.cores,
                "reach": comm.reach.name(),
                "bytes": self.bytes,
                "algorithm": entry.algorithm.name(),
                "chunk_bytes": entry.chunk_count * Dtype::F32.size_bytes(),
                "carried": entry.carried.name(),
                "time_us": entry.time_us,
                "least_us": entry.least_us,
                "predicted_us": entry.predicted_us,
                "chosen": entry.algorithm == self.chosen().algorithm,
            });
            format!("{object}\n")
        };
        self.entries.iter().map(line).collect()
    }
}

/// The collectives that have a choice of algorithms and blocks of one length.
pub(super) fn tunable() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|c| !c.uneven() && ccl::plan::algorithms(*c).len() > 1)
}

/// Measures all cells with the other ranks of `comm`. The times are the same on all ranks.
pub(super) fn run(comm: &Communicator, args: &Args, config: &Config) -> Result<Vec<Cell>> {
    let collectives: Vec<Collective> =
        if args.collectives.is_empty() { tunable().collect() } else { args.collectives.clone() };
    let bytes = args.bytes.iter().copied();
    let wanted: Vec<(Collective, u64)> =
        bytes.flat_map(|bytes| collectives.iter().map(move |collective| (*collective, bytes))).collect();
    let mut forced = BTreeMap::new();
    let mut lane = [Lane::default()];
    let mut cells = Vec::new();
    for (collective, bytes) in wanted {
        let operation = Operation::Collective(collective);
        let amount = Amount::of_bytes(operation, bytes, comm.size(), Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Sum, root: Rank(0), amount };
        let said = comm.explain(collective, Dtype::F32, amount.count, Rank(0))?;
        let fit = [Standing::Chosen, Standing::Slower, Standing::RuledOut];
        let fit = said.candidates.iter().filter(|candidate| fit.contains(&candidate.standing));
        let mut entries = Vec::new();
        for candidate in fit {
            let algorithm = candidate.algorithm;
            if !forced.contains_key(algorithm.name()) {
                forced.insert(algorithm.name(), with_algorithm(comm, algorithm, config)?);
            }
            let does = forced[algorithm.name()].explain(collective, Dtype::F32, amount.count, Rank(0))?;
            entries.push(Entry {
                algorithm,
                time_us: 0.0,
                least_us: 0.0,
                predicted_us: candidate.time_ns / 1e3,
                chunk_count: does.chunk_count,
                carried: does.carried,
            });
        }
        let comms: Vec<&Communicator> =
            entries.iter().filter_map(|entry| forced.get(entry.algorithm.name())).collect();
        let mut bench =
            Bench { point: &point, time: args.time, rounds: args.rounds as usize, lane: &mut lane };
        let times = bench.in_turn(&comms)?;
        for (entry, (time_us, least_us)) in entries.iter_mut().zip(times) {
            (entry.time_us, entry.least_us) = (time_us, least_us);
        }
        bench.again(&mut entries, &comms)?;
        cells.push(Cell { collective, bytes: said.bytes, entries });
    }
    cells.sort_by_key(|cell| (cell.collective as u8, cell.bytes));
    Ok(cells)
}

/// A communicator of the same ranks that has no choice where there is this algorithm.
fn with_algorithm(comm: &Communicator, algorithm: Algorithm, config: &Config) -> Result<Communicator> {
    let having = tunable().filter(|collective| ccl::plan::algorithms(*collective).contains(&algorithm));
    let wish: Vec<_> = having.map(|collective| format!("{collective}:{algorithm}")).collect();
    let mut id = if comm.rank().0 == 0 { UniqueId::generate(config)?.to_bytes() } else { [0; _] };
    comm.broadcast(&mut id, Rank(0))?;
    let config = Config::builder()
        .process()?
        .set("CCL_ALGO", wish.join(";"))
        .set("CCL_TUNING_FILE", "none")
        .build()?;
    Communicator::init_rank(&UniqueId::from_bytes(&id)?, comm.rank(), comm.size(), &config)
}

/// Times one call of one cell.
struct Bench<'a> {
    point: &'a Point,
    time: f64,
    rounds: usize,
    lane: &'a mut [Lane],
}

impl Bench<'_> {
    /// The time of each communicator's calls and the least, in microseconds: rounds of all in turn, each as many
    /// calls as the time asks for. The lower quartile, since what disturbs a round only ever makes it longer.
    fn in_turn(&mut self, comms: &[&Communicator]) -> Result<Vec<(f64, f64)>> {
        let pace = Pace::Time(Duration::from_secs_f64(self.time));
        let mut samples: Vec<Vec<f64>> = vec![Vec::new(); comms.len()];
        for round in 0..self.rounds {
            for turn in 0..comms.len() {
                // Everybody comes after everybody else.
                let index = (turn + round) % comms.len();
                let comm = comms[index];
                let call = Call::new(comm, self.point, Placement::OutOfPlace);
                if round + turn == 0 {
                    let lengths = Lengths::new(self.point, comm.size());
                    let check = Check::new(self.point, &lengths, (comm.rank(), comm.size()), call.sender());
                    self.lane.iter_mut().for_each(|lane| check.fill(&call.layout, lane));
                }
                let timing = Stopwatch::new(comm, pace, 1).measure(&call, self.lane)?;
                samples[index].extend(timing.map(|timing| timing.time.as_secs_f64() * 1e6));
            }
        }
        let quartile_and_least = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            let at = |index: usize| times.get(index).copied().unwrap_or_default();
            (at(times.len() / 4), at(0))
        };
        Ok(samples.into_iter().map(quartile_and_least).collect())
    }

    /// Times those that seem better than the first against it once more, the best first and each for itself: of
    /// many that are alike, one is the fastest by chance, and only by chance a second time.
    fn again(&mut self, entries: &mut [Entry], comms: &[&Communicator]) -> Result<()> {
        let mut doubted: Vec<usize> = (1..entries.len()).collect();
        doubted.sort_by(|a, b| entries[*a].time_us.total_cmp(&entries[*b].time_us));
        let first = entries[0].time_us;
        doubted.retain(|index| entries[*index].time_us * WORTH < first);
        self.rounds *= CLOSER;
        for index in doubted {
            let times = self.in_turn(&[comms[0], comms[index]])?;
            entries[index].time_us = first * times[1].0 / times[0].0.max(1e-9);
        }
        self.rounds /= CLOSER;
        Ok(())
    }
}

/// How many times as many rounds two are compared by.
const CLOSER: usize = 3;
/// How much better one must seem to be looked at more closely.
const WORTH: f64 = 1.03;
