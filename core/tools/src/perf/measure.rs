//! The timing loop. Its rules are those of the peers' drivers: calls back to back without a barrier
//! between them, as many as last about the asked time and equally many on every rank; the time is
//! the largest average of all ranks.

use std::time::{Duration, Instant};

use ccl::{Communicator, ReduceOp, Result};

use super::call::{Call, Lane};

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

impl<'a> Stopwatch<'a> {
    /// A stopwatch for all points of a run.
    pub(crate) fn new(comm: &'a Communicator, pace: Pace, warm_up: u64) -> Stopwatch<'a> {
        Stopwatch { comm, pace, warm_up }
    }

    /// Times `iterations` calls.
    pub(crate) fn timed(&self, call: &Call<'_>, lanes: &mut [Lane], iterations: u64) -> Result<Timing> {
        self.comm.barrier()?;
        let start = Instant::now();
        repeat(call, lanes, iterations)?;
        let seconds = start.elapsed().as_secs_f64() / iterations.max(1) as f64;
        let time = Duration::from_secs_f64(self.largest(seconds)?);
        Ok(Timing { time, iterations })
    }

    /// Warms up, finds how many calls to make, and times them; nothing if none were asked for.
    pub(crate) fn measure(&self, call: &Call<'_>, lanes: &mut [Lane]) -> Result<Option<Timing>> {
        match self.pace {
            Pace::Iterations(0) => Ok(None),
            Pace::Iterations(iterations) => {
                repeat(call, lanes, self.warm_up)?;
                self.timed(call, lanes, iterations).map(Some)
            }
            Pace::Time(target) => {
                let estimate = self.estimate(call, lanes, target)?;
                let wanted = (target.as_secs_f64() / estimate.as_secs_f64().max(1e-9)) as u64 + 1;
                self.timed(call, lanes, wanted.clamp(MIN_ITERATIONS, MAX_ITERATIONS)).map(Some)
            }
        }
    }

    /// The time of a call: of the first, if that is long enough; else batches grow until one lasts a
    /// tenth of the target.
    fn estimate(&self, call: &Call<'_>, lanes: &mut [Lane], target: Duration) -> Result<Duration> {
        let first = self.timed(call, lanes, 1)?.time;
        if first >= target {
            return Ok(first);
        }
        repeat(call, lanes, self.warm_up)?;
        let mut batch = 1;
        loop {
            let time = self.timed(call, lanes, batch)?.time;
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

fn repeat(call: &Call<'_>, lanes: &mut [Lane], iterations: u64) -> Result<()> {
    for _ in 0..iterations {
        call.once(lanes)?;
    }
    Ok(())
}

/// Even the slowest call is timed this often.
const MIN_ITERATIONS: u64 = 3;
const MAX_ITERATIONS: u64 = 5_000_000;
const MAX_BATCH: u64 = 1 << 22;
