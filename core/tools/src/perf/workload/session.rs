//! One rank's part of a workload.

use std::time::{Duration, Instant};

use ccl::{Collective, Communicator, Rank, ReduceOp, Result, Stream};

use super::Workload;
use super::report::{self, Outcome};
use crate::perf::call::{Call, Lane};
use crate::perf::check::{Check, Lengths};
use crate::perf::geometry::Amount;
use crate::perf::operation::Operation;
use crate::perf::options::Checking;
use crate::perf::participants;
use crate::perf::point::{Placement, Point};

/// Measures the workload with the other ranks of `comm`; the number of wrong elements on all ranks.
/// Rank 0 reports.
///
/// The first step and the last are checked. The gradients of the others are what the step before left.
pub(crate) fn run(comm: &Communicator, workload: &Workload) -> Result<u64> {
    let participants = participants::gather(comm)?;
    let mut steps = Steps::new(comm, workload);
    let (_, mut wrong) = steps.checked()?;
    for _ in 1..workload.warm_up {
        steps.timed()?;
    }
    let mut times = Vec::new();
    for _ in 1..workload.iterations {
        times.push(steps.timed()?);
    }
    let (last, last_wrong) = steps.checked()?;
    times.push(last);
    wrong = wrong.max(last_wrong);
    if comm.rank() == Rank(0) {
        report::print(&Outcome { workload, n: comm.size(), participants, times, wrong })?;
    }
    Ok(wrong.unwrap_or(0))
}

/// Training steps of one rank, without the training.
struct Steps<'a> {
    comm: &'a Communicator,
    workload: &'a Workload,
    points: Vec<Point>,
    calls: Vec<Call<'a>>,
    buckets: Vec<Lane>,
    /// All-reduces of one stream follow each other; there are as many streams as may be under way.
    streams: Vec<Stream>,
}

impl<'a> Steps<'a> {
    fn new(comm: &'a Communicator, workload: &'a Workload) -> Steps<'a> {
        let points: Vec<_> =
            workload.counts.iter().map(|count| workload.point(*count, comm.size())).collect();
        let calls: Vec<_> = points.iter().map(|point| Call::new(comm, point, Placement::InPlace)).collect();
        let streams = (0..workload.in_flight.min(calls.len())).map(|_| Stream::new()).collect();
        let mut steps = Steps { comm, workload, points, calls, buckets: Vec::new(), streams };
        steps.buckets = steps.calls.iter().map(|_| Lane::default()).collect();
        steps.for_each_bucket(|check, call, bucket| check.fill(&call.layout, bucket));
        steps
    }

    /// One step on fresh gradients: its time, and the wrong elements on all ranks, if they are checked.
    fn checked(&mut self) -> Result<(Duration, Option<u64>)> {
        if self.workload.checking == Checking::Off {
            return Ok((self.timed()?, None));
        }
        self.for_each_bucket(|check, call, bucket| check.fill(&call.layout, bucket));
        let time = self.timed()?;
        let mut wrong = 0;
        self.for_each_bucket(|check, call, bucket| {
            wrong += check.wrong(&call.layout, Placement::InPlace, bucket);
        });
        let mut total = [0];
        self.comm.all_reduce(&[wrong], &mut total, ReduceOp::Sum)?;
        Ok((time, Some(total[0])))
    }

    /// The time of one step on the slowest rank.
    fn timed(&mut self) -> Result<Duration> {
        self.comm.barrier()?;
        let start = Instant::now();
        self.step()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut slowest = [0.0];
        self.comm.all_reduce(&[seconds], &mut slowest, ReduceOp::Max)?;
        Ok(Duration::from_secs_f64(slowest[0]))
    }

    /// Starts the all-reduces one after another, as many as may be under way, and waits for all.
    fn step(&mut self) -> Result<()> {
        let (calls, streams) = (&self.calls, &self.streams);
        let buckets = &mut self.buckets;
        self.comm.scope(|scope| {
            for ((call, bucket), stream) in calls.iter().zip(buckets).zip(streams.iter().cycle()) {
                stream.synchronize()?;
                scope.start_on(stream, call.request(Collective::AllReduce, bucket))?;
            }
            Ok(())
        })
    }

    fn for_each_bucket(&mut self, mut body: impl FnMut(&Check<'_>, &Call<'_>, &mut Lane)) {
        let who = (self.comm.rank(), self.comm.size());
        for (index, (point, call)) in self.points.iter().zip(&self.calls).enumerate() {
            let lengths = Lengths::default();
            let check = Check::of_bucket(point, &lengths, who, index);
            body(&check, call, &mut self.buckets[index]);
        }
    }
}

impl Workload {
    fn point(&self, count: usize, n: u32) -> Point {
        let operation = Operation::Collective(Collective::AllReduce);
        let amount = Amount::of_count(operation, count, n, self.dtype);
        Point { operation, dtype: self.dtype, reduce: self.reduce, root: Rank(0), amount }
    }
}
