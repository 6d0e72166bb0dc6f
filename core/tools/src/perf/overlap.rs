//! `ccl perf --overlap`: what an asynchronous all-reduce costs a caller that computes meanwhile.

use std::time::{Duration, Instant};

use ccl::{Collective, Communicator, Error, Rank, ReduceOp, Result, Stream};
use serde::Serialize;

use super::call::{Call, Lane};
use super::check::{Check, Lengths};
use super::json::rounded;
use super::options::Format;
use super::point::{Placement, Point};
use super::workload::Spread;
use crate::ranks::cpus;
use crate::text;

/// What is measured, the same on every rank.
#[derive(Clone, Debug)]
pub(crate) struct Overlap {
    /// The all-reduce.
    pub(crate) point: Point,
    /// Bytes that the computation goes round in.
    pub(crate) working_set_bytes: usize,
    /// Rounds, each of one time alone and one with the all-reduce.
    pub(crate) rounds: u64,
    pub(crate) format: Format,
}

/// Measures with the other ranks of `comm`; the number of wrong elements on all ranks. Rank 0 computes,
/// bound to a CPU of its own, and reports; the others leave the all-reduce to the progress thread too.
pub(crate) fn run(comm: &Communicator, overlap: &Overlap) -> Result<u64> {
    if comm.rank() == Rank(0) {
        let first = cpus::allowed().first().copied();
        cpus::bind(first.ok_or_else(|| Error::bug("this thread may run on no CPU"))?)?;
    }
    let call = Call::new(comm, &overlap.point, Placement::InPlace);
    let lengths = Lengths::default();
    let check = Check::new(&overlap.point, &lengths, (comm.rank(), comm.size()), None);
    let mut lane = Lane::default();
    let mut work = Work::new(overlap.working_set_bytes);
    let mut rounds = Vec::new();
    let mut wrong = 0;
    // The first round warms up.
    for _ in 0..=overlap.rounds {
        check.fill(&call.layout, &mut lane);
        rounds.push(round(comm, &call, &mut lane, &mut work)?);
        wrong += check.wrong(&call.layout, Placement::InPlace, &lane);
    }
    let mut total = [0];
    comm.all_reduce(&[wrong], &mut total, ReduceOp::Sum)?;
    if comm.rank() == Rank(0) {
        print(overlap, comm.size(), &rounds[1..], total[0])?;
    }
    Ok(total[0])
}

/// What came out of a round, on the rank that computes.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Units of work per second alone,
    alone: f64,
    /// and with the all-reduce under way.
    together: f64,
    /// How long the all-reduce took, nobody waiting for it.
    time: Duration,
}

impl Round {
    /// The share of its speed that the computation lost.
    fn loss(&self) -> f64 {
        1.0 - self.together / self.alone
    }
}

/// Alone, with the all-reduce, and alone again, so that a machine that changes its speed does so for both.
fn round(comm: &Communicator, call: &Call<'_>, lane: &mut Lane, work: &mut Work) -> Result<Round> {
    comm.barrier()?;
    if comm.rank() != Rank(0) {
        std::thread::sleep(ALONE + HEAD_START / 2);
        under_way(comm, call, lane, |stream| {
            while !stream.is_idle() {
                std::thread::sleep(LOOK);
            }
        })?;
        std::thread::sleep(ALONE);
        return Ok(Round::default());
    }
    let before = work.alone();
    // The others have begun before this rank does.
    std::thread::sleep(HEAD_START);
    let mut round = Round::default();
    under_way(comm, call, lane, |stream| {
        let start = Instant::now();
        let units = work.run_until(|| stream.is_idle());
        round.time = start.elapsed();
        round.together = units as f64 / round.time.as_secs_f64();
    })?;
    round.alone = (before + work.alone()) / 2.0;
    Ok(round)
}

/// Starts the all-reduce, does something meanwhile, and ends when both are complete.
fn under_way(
    comm: &Communicator,
    call: &Call<'_>,
    lane: &mut Lane,
    meanwhile: impl FnOnce(&Stream),
) -> Result<()> {
    let stream = Stream::new();
    comm.scope(|scope| {
        scope.start_on(&stream, call.request(Collective::AllReduce, lane))?;
        meanwhile(&stream);
        Ok(())
    })
}

/// A computation: additions and multiplications over and over.
struct Work {
    elements: Vec<f32>,
    next: usize,
}

impl Work {
    fn new(bytes: usize) -> Work {
        let units = bytes.div_ceil(UNIT_ELEMENTS * size_of::<f32>()).max(1);
        Work { elements: vec![1.0; units * UNIT_ELEMENTS], next: 0 }
    }

    /// Units per second with nothing else going on.
    fn alone(&mut self) -> f64 {
        let start = Instant::now();
        let units = self.run_until(|| start.elapsed() >= ALONE);
        units as f64 / start.elapsed().as_secs_f64()
    }

    /// Does units of work until `done`; how many.
    fn run_until(&mut self, done: impl Fn() -> bool) -> u64 {
        let mut units = 0;
        while !done() {
            self.unit();
            units += 1;
        }
        units
    }

    /// The same code alone and together: where a compiler had put it once for each, one was up to 1.3 times as fast.
    #[inline(never)]
    fn unit(&mut self) {
        let unit = &mut self.elements[self.next..self.next + UNIT_ELEMENTS];
        for element in unit.iter_mut() {
            *element = std::hint::black_box(*element * 0.999 + 0.001);
        }
        self.next = (self.next + UNIT_ELEMENTS) % self.elements.len();
    }
}

#[derive(Serialize)]
struct Line {
    peer: &'static str,
    version: &'static str,
    ranks: u32,
    bytes: u64,
    working_set_bytes: usize,
    rounds: usize,
    loss_percent: f64,
    min_loss_percent: f64,
    max_loss_percent: f64,
    time_us: f64,
    wrong: u64,
    ok: bool,
}

fn print(overlap: &Overlap, n: u32, rounds: &[Round], wrong: u64) -> Result<()> {
    let mut losses: Vec<f64> = rounds.iter().map(|round| 100.0 * round.loss()).collect();
    losses.sort_unstable_by(f64::total_cmp);
    let times: Vec<_> = rounds.iter().map(|round| round.time).collect();
    let at = |index: usize| rounded(losses.get(index).copied().unwrap_or_default(), 2);
    let line = Line {
        peer: "ccl",
        version: env!("CARGO_PKG_VERSION"),
        ranks: n,
        bytes: overlap.point.amount.actual_bytes,
        working_set_bytes: overlap.working_set_bytes,
        rounds: rounds.len(),
        loss_percent: at(losses.len() / 2),
        min_loss_percent: at(0),
        max_loss_percent: at(losses.len().saturating_sub(1)),
        time_us: rounded(Spread::of(&times).median.as_secs_f64() * 1e6, 1),
        wrong,
        ok: wrong == 0,
    };
    text::print(&match overlap.format {
        Format::Json => serde_json::to_string(&line).expect("numbers and strings always serialise") + "\n",
        Format::Table => format!(
            "# ccl version {}\n# {} ranks, all-reduce of {} bytes, computation over {} bytes, {} rounds\n\
             computation loses {} % while the all-reduce is under way ({} to {} %)\n\
             the all-reduce takes {} us while nobody waits for it\n\
             # Out of bounds values : {wrong} {}\n",
            line.version,
            line.ranks,
            line.bytes,
            line.working_set_bytes,
            line.rounds,
            line.loss_percent,
            line.min_loss_percent,
            line.max_loss_percent,
            line.time_us,
            if line.ok { "OK" } else { "FAILED" },
        ),
    })
}

/// How long the computation runs alone, before and after.
const ALONE: Duration = Duration::from_millis(30);
const HEAD_START: Duration = Duration::from_millis(20);
/// How often ranks that do not compute look whether they are done.
const LOOK: Duration = Duration::from_millis(1);
/// Some microseconds of work.
const UNIT_ELEMENTS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_a_share_of_the_speed_alone() {
        let round = Round { alone: 200.0, together: 150.0, time: Duration::ZERO };
        assert_eq!(round.loss(), 0.25);
    }

    #[test]
    fn work_goes_round_in_its_set() {
        let mut work = Work::new(3 * UNIT_ELEMENTS * 4);
        let left = std::cell::Cell::new(5);
        assert_eq!(work.run_until(|| left.replace(left.get() - 1) == 0), 5);
        assert_eq!((work.elements.len(), work.next), (3 * UNIT_ELEMENTS, 2 * UNIT_ELEMENTS));
        assert!(work.elements.iter().all(|element| *element > 0.9));
    }
}
