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
    /// Times as long as the chosen algorithm's, by what was measured of both in turn.
    pub(super) ratio: f64,
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
        let faster = |best: Entry, entry: &Entry| if entry.ratio < best.ratio { *entry } else { best };
        self.entries.iter().fold(self.chosen(), faster)
    }

    /// How many times as long as the best the choice takes.
    pub(super) fn loss(&self) -> f64 {
        1.0 / self.best().ratio
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
                "ratio": entry.ratio,
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
                    ratio: 1.0,
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

    /// Times all algorithms of all cells; then those that seem better than their cell's first against it more often, each
    /// for itself and every time over new communicators: of many that are alike, one is the fastest by chance, or
    /// because its memory lies well, and only by chance again. Who still seems better by much is looked at once more, and
    /// only the last look counts.
    fn measure(&mut self, cells: &mut [Cell], rounds: u32) -> Result<()> {
        let all = |(cell, of): (usize, &Cell)| Contest::new(cell, (0..of.entries.len()).collect());
        let mut contests: Vec<Contest> = cells.iter().enumerate().map(all).collect();
        self.in_turn(cells, &mut contests, rounds)?;
        for contest in &contests {
            let entries = &mut cells[contest.cell].entries;
            for (index, entry) in entries.iter_mut().enumerate() {
                (entry.time_us, entry.least_us) = contest.time(index);
                entry.ratio = contest.ratio(index);
            }
        }
        for (worth, looks) in CLOSER {
            let mut doubted = doubted(cells, worth);
            for _ in 0..looks {
                self.forced.clear();
                self.in_turn(cells, &mut doubted, rounds)?;
            }
            for contest in doubted {
                cells[contest.cell].entries[contest.entries[1]].ratio = contest.ratio(1);
            }
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

    /// The time of one's calls and the least, in microseconds: the lower quartile of all rounds, since what disturbs a
    /// round only ever makes it longer.
    fn time(&self, index: usize) -> (f64, f64) {
        let mut times = self.samples[index].clone();
        times.sort_by(f64::total_cmp);
        let at = |index: usize| times.get(index).copied().unwrap_or_default();
        (at(times.len() / 4), at(0))
    }

    /// How many times as long as the first one's its calls take: the geometric mean of the middle half of the rounds'
    /// ratios. What makes the machine slower for seconds hits both in a round; and where it does not make both slower
    /// alike, the mean is of all its states.
    fn ratio(&self, index: usize) -> f64 {
        let pairs = self.samples[0].iter().zip(&self.samples[index]);
        let mut logs: Vec<f64> = pairs.map(|(first, its)| (its / first).ln()).collect();
        logs.sort_by(f64::total_cmp);
        let middle = &logs[logs.len() / 4..logs.len() - logs.len() / 4];
        (middle.iter().sum::<f64>() / middle.len().max(1) as f64).exp()
    }
}

/// Those that seem so many times as fast as their cell's first, each against it.
fn doubted(cells: &[Cell], worth: f64) -> Vec<Contest> {
    let of_cell = |(cell, of): (usize, &Cell)| {
        let seem_better = (1..of.entries.len()).filter(|index| of.entries[*index].ratio * worth < 1.0);
        seem_better.map(move |index| Contest::new(cell, vec![0, index])).collect::<Vec<_>>()
    };
    cells.iter().enumerate().flat_map(of_cell).collect()
}

/// How much better than its cell's first one must seem to be looked at more closely, and by how many times the rounds.
const CLOSER: [(f64, u32); 2] = [(1.03, 3), (1.1, 6)];
