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
///
/// Rounds go over all cells, so that those of one lie minutes apart: a machine that others share is now faster and
/// now slower for many seconds.
pub(super) fn run(comm: &Communicator, args: &Args, config: &Config) -> Result<Vec<Cell>> {
    let collectives: Vec<Collective> =
        if args.collectives.is_empty() { tunable().collect() } else { args.collectives.clone() };
    let mut bench = Bench {
        comm,
        config,
        points: Vec::new(),
        forced: BTreeMap::new(),
        time: args.time,
        lane: [Lane::default()],
    };
    let mut cells = Vec::new();
    for bytes in args.bytes.iter().copied() {
        for collective in collectives.iter().copied() {
            let operation = Operation::Collective(collective);
            let amount = Amount::of_bytes(operation, bytes, comm.size(), Dtype::F32);
            let said = comm.explain(collective, Dtype::F32, amount.count, Rank(0))?;
            let fit = [Standing::Chosen, Standing::Slower, Standing::RuledOut];
            let fit = said.candidates.iter().filter(|candidate| fit.contains(&candidate.standing));
            let mut entries = Vec::new();
            for candidate in fit {
                let algorithm = candidate.algorithm;
                let forced = bench.forced(algorithm)?;
                let does = forced.explain(collective, Dtype::F32, amount.count, Rank(0))?;
                entries.push(Entry {
                    algorithm,
                    time_us: 0.0,
                    least_us: 0.0,
                    predicted_us: candidate.time_ns / 1e3,
                    chunk_count: does.chunk_count,
                    carried: does.carried,
                });
            }
            bench.points.push(Point {
                operation,
                dtype: Dtype::F32,
                reduce: ReduceOp::Sum,
                root: Rank(0),
                amount,
            });
            cells.push(Cell { collective, bytes: said.bytes, entries });
        }
    }
    bench.measure(&mut cells, args.rounds)?;
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

/// Times calls of all cells.
struct Bench<'a> {
    comm: &'a Communicator,
    config: &'a Config,
    /// What is called in each cell.
    points: Vec<Point>,
    /// For each algorithm, a communicator that has no choice.
    forced: BTreeMap<Algorithm, Communicator>,
    time: f64,
    lane: [Lane; 1],
}

/// Algorithms of one cell that are compared.
struct Contest {
    cell: usize,
    /// Indices of the cell's entries.
    entries: Vec<usize>,
    /// What was measured of each, in microseconds.
    samples: Vec<Vec<f64>>,
}

impl Bench<'_> {
    /// The communicator that has no choice but this algorithm. All ranks ask for the same in the same order.
    fn forced(&mut self, algorithm: Algorithm) -> Result<&Communicator> {
        if !self.forced.contains_key(&algorithm) {
            self.forced.insert(algorithm, with_algorithm(self.comm, algorithm, self.config)?);
        }
        Ok(&self.forced[&algorithm])
    }

    /// Times all algorithms of all cells; then those that seem better than their cell's first against it a few times more,
    /// each for itself and every time over new communicators: of many that are alike, one is the fastest by chance, or
    /// because its memory lies well, and only by chance again.
    fn measure(&mut self, cells: &mut [Cell], rounds: u32) -> Result<()> {
        let all = |(cell, of): (usize, &Cell)| Contest::new(cell, (0..of.entries.len()).collect());
        let mut contests: Vec<Contest> = cells.iter().enumerate().map(all).collect();
        self.in_turn(cells, &mut contests, rounds)?;
        let mut doubted = Vec::new();
        for contest in contests {
            let entries = &mut cells[contest.cell].entries;
            for (entry, (time_us, least_us)) in entries.iter_mut().zip(contest.times()) {
                (entry.time_us, entry.least_us) = (time_us, least_us);
            }
            let seem_better = (1..entries.len()).filter(|i| entries[*i].time_us * WORTH < entries[0].time_us);
            doubted.extend(seem_better.map(|index| Contest::new(contest.cell, vec![0, index])));
        }
        for _ in 0..CLOSER {
            self.forced.clear();
            self.in_turn(cells, &mut doubted, rounds)?;
        }
        for contest in doubted {
            let (times, entries) = (contest.times(), &mut cells[contest.cell].entries);
            entries[contest.entries[1]].time_us = entries[0].time_us * times[1].0 / times[0].0.max(1e-9);
        }
        Ok(())
    }

    /// Rounds of all contests in turn, and in each of them of all who are compared: each as many calls as the time asks
    /// for.
    fn in_turn(&mut self, cells: &[Cell], contests: &mut [Contest], rounds: u32) -> Result<()> {
        let pace = Pace::Time(Duration::from_secs_f64(self.time));
        for round in 0..rounds as usize {
            for contest in contests.iter_mut() {
                let (point, among) = (self.points[contest.cell], contest.entries.len());
                for turn in 0..among {
                    // Everybody comes after everybody else.
                    let index = (turn + round) % among;
                    let entry = cells[contest.cell].entries[contest.entries[index]];
                    self.forced(entry.algorithm)?;
                    let comm = &self.forced[&entry.algorithm];
                    let call = Call::new(comm, &point, Placement::OutOfPlace);
                    if turn == 0 {
                        let lengths = Lengths::new(&point, comm.size());
                        let check = Check::new(&point, &lengths, (comm.rank(), comm.size()), call.sender());
                        self.lane.iter_mut().for_each(|lane| check.fill(&call.layout, lane));
                    }
                    let timing = Stopwatch::new(comm, pace, 1).measure(&call, &mut self.lane)?;
                    contest.samples[index].extend(timing.map(|timing| timing.time.as_secs_f64() * 1e6));
                }
            }
        }
        Ok(())
    }
}

impl Contest {
    fn new(cell: usize, entries: Vec<usize>) -> Contest {
        Contest { cell, samples: vec![Vec::new(); entries.len()], entries }
    }

    /// The time of each one's calls and the least, in microseconds: the lower quartile of all rounds, since what disturbs
    /// a round only ever makes it longer.
    fn times(&self) -> Vec<(f64, f64)> {
        let quartile_and_least = |times: &Vec<f64>| {
            let mut times = times.clone();
            times.sort_by(f64::total_cmp);
            let at = |index: usize| times.get(index).copied().unwrap_or_default();
            (at(times.len() / 4), at(0))
        };
        self.samples.iter().map(quartile_and_least).collect()
    }
}

/// How many times as many rounds two are compared by.
const CLOSER: u32 = 3;
/// How much better one must seem to be looked at more closely.
const WORTH: f64 = 1.03;
