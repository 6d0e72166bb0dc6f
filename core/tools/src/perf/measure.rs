//! The timing loop. Its rules are those of the peers' drivers: calls back to back without a barrier
//! between them, as many as last about the asked time and equally many on every rank; the time is
//! the largest average of all ranks.

use std::time::{Duration, Instant};

use ccl::{Communicator, ReduceOp, Result};

use super::call::{Call, Lane};
use super::device::Graph;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// So many calls; 0 times the verified call.
    Iterations(u64),
    /// As many calls as last about so long.
    Time(Duration),
}

/// What came out of a timing loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    /// Of one call on the slowest rank.
    pub(crate) time: Duration,
    /// Calls made.
    pub(crate) iterations: u64,
}

/// Times calls on one rank, in step with the others.
pub(crate) struct Stopwatch<'a> {
    comm: &'a Communicator,
    pace: Pace,
    warm_up: u64,
}

/// What is done again and again.
struct Task<'a, 'c> {
    call: &'a Call<'c>,
    lanes: &'a mut [Lane],
    /// Replayed in place of the call.
    graph: Option<&'a mut Graph>,
}

impl Task<'_, '_> {
    fn repeat(&mut self, iterations: u64) -> Result<()> {
        match &mut self.graph {
            Some(graph) => self.call.replay(graph, iterations),
            None => self.call.repeat(self.lanes, iterations),
        }
    }
}

impl<'a> Stopwatch<'a> {
    /// A stopwatch for all points of a run.
    pub(crate) fn new(comm: &'a Communicator, pace: Pace, warm_up: u64) -> Stopwatch<'a> {
        Stopwatch { comm, pace, warm_up }
    }

    /// Times so many of what is done again and again.
    fn time(&self, task: &mut Task<'_, '_>, iterations: u64) -> Result<Timing> {
        self.comm.barrier()?;
        let start = Instant::now();
        task.repeat(iterations)?;
        let seconds = start.elapsed().as_secs_f64() / iterations.max(1) as f64;
        let time = Duration::from_secs_f64(self.largest(seconds)?);
        Ok(Timing { time, iterations })
    }

    /// Warms up, finds how many calls to make, and times them; nothing if none were asked for.
    pub(crate) fn measure(&self, call: &Call<'_>, lanes: &mut [Lane]) -> Result<Option<Timing>> {
        self.measure_task(&mut Task { call, lanes, graph: None })
    }

    /// The same for replays of `graph`, if there is one.
    pub(crate) fn measure_replays(
        &self,
        call: &Call<'_>,
        lanes: &mut [Lane],
        graph: Option<&mut Graph>,
    ) -> Result<Option<Timing>> {
        self.measure_task(&mut Task { call, lanes, graph })
    }

    fn measure_task(&self, task: &mut Task<'_, '_>) -> Result<Option<Timing>> {
        match self.pace {
            Pace::Iterations(0) => Ok(None),
            Pace::Iterations(iterations) => {
                task.repeat(self.warm_up)?;
                self.time(task, iterations).map(Some)
            }
            Pace::Time(target) => {
                let estimate = self.estimate(task, target)?;
                let wanted = (target.as_secs_f64() / estimate.as_secs_f64().max(1e-9)) as u64 + 1;
                self.time(task, wanted.clamp(MIN_ITERATIONS, MAX_ITERATIONS)).map(Some)
            }
        }
    }

    /// The time of a call: of the first, if that is long enough; else batches grow until one lasts a
    /// tenth of the target.
    fn estimate(&self, task: &mut Task<'_, '_>, target: Duration) -> Result<Duration> {
        let first = self.time(task, 1)?.time;
        if first >= target {
            return Ok(first);
        }
        task.repeat(self.warm_up)?;
        let mut batch = 1;
        loop {
            let time = self.time(task, batch)?.time;
            if time.as_secs_f64() * batch as f64 >= 0.1 * target.as_secs_f64() || batch >= MAX_BATCH {
                return Ok(time);
            }
            let wanted = (0.15 * target.as_secs_f64() / time.as_secs_f64().max(1e-9)) as u64 + 1;
            batch = wanted.min(8 * batch).max(batch + 1);
        }
    }

    /// The largest value of all ranks.
    fn largest(&self, value: f64) -> Result<f64> {
        let mut largest = [0.0];
        self.comm.all_reduce(&[value], &mut largest, ReduceOp::Max)?;
        Ok(largest[0])
    }
}

/// Even the slowest call is timed this often.
const MIN_ITERATIONS: u64 = 3;
const MAX_ITERATIONS: u64 = 5_000_000;
const MAX_BATCH: u64 = 1 << 22;
