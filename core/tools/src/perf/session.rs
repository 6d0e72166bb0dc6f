//! One rank's part of a run: every point, one after another, on one communicator.

use std::time::Instant;

use ccl::{Communicator, Rank, ReduceOp, Result};

use super::call::{Call, Lane};
use super::check::{Check, Lengths};
use super::device::{self, Device, Graph};
use super::layout;
use super::measure::{Stopwatch, Timing};
use super::operation::Operation;
use super::options::{Checking, MemoryKind, Options, Placements};
use super::participants;
use super::point::{Measured, Placement, Point, Row};
use super::report::Report;

/// Measures everything that `options` ask for with the other ranks of `comm`; the number of wrong
/// elements on all ranks. Rank 0 reports.
pub(crate) fn run(comm: &Communicator, options: &Options) -> Result<u64> {
    let participants = participants::gather(comm)?;
    let partner = participants::partner(&participants);
    let mut report = match comm.rank().0 {
        0 => Some(Report::new(options, comm.size(), participants)),
        _ => None,
    };
    let device = match options.memory {
        kind if kind.is_on_device() => Device::of(comm)?,
        _ => None,
    };
    let mut session = Session {
        comm,
        options,
        device: device.as_ref(),
        stopwatch: Stopwatch::new(comm, options.pace, options.warm_up),
        lanes: (0..options.lanes).map(|_| Lane::default()).collect(),
        partner,
    };
    if let Some(device) = &device {
        let longest = options.longest_bytes(comm.size());
        session.lanes.iter_mut().try_for_each(|lane| device.reserve(lane, longest, options.memory))?;
    }
    if options.memory.is_registered_by_all() {
        let longest = options.longest_bytes(comm.size());
        session.lanes.iter_mut().try_for_each(|lane| device::register(comm, lane, longest))?;
    }
    let mut wrong = 0;
    for operation in options.operations(comm.size()) {
        if let Some(report) = &mut report {
            report.begin(operation)?;
        }
        for point in options.axes(comm.size()).points(operation, comm.size()) {
            let row = session.row(&point)?;
            wrong += row.wrong();
            if let Some(report) = &mut report {
                report.add(row)?;
            }
        }
        if let Some(report) = &mut report {
            report.end(operation)?;
        }
    }
    report.map_or(Ok(()), Report::finish)?;
    Ok(wrong)
}

struct Session<'a> {
    comm: &'a Communicator,
    options: &'a Options,
    device: Option<&'a Device>,
    stopwatch: Stopwatch<'a>,
    lanes: Vec<Lane>,
    /// With whom rank 0 exchanges messages.
    partner: Rank,
}

impl Session<'_> {
    fn row(&mut self, point: &Point) -> Result<Row> {
        if self.options.suspends {
            self.comm.suspend()?;
            self.comm.resume()?;
        }
        let wanted = self.options.placements;
        let in_place = point.operation.has_in_place() && wanted != Placements::OutOfPlace;
        // What has no in-place form is measured all the same.
        let out_of_place = !in_place || wanted != Placements::InPlace;
        let mut half = |wanted: bool, placement| match wanted {
            true => self.half(point, placement).map(Some),
            false => Ok(None),
        };
        let out_of_place = half(out_of_place, Placement::OutOfPlace)?;
        let in_place = half(in_place, Placement::InPlace)?;
        Ok(Row { point: *point, n: self.comm.size(), out_of_place, in_place })
    }

    /// One verified call, then the timing loop; out of place its last result is verified too.
    fn half(&mut self, point: &Point, placement: Placement) -> Result<Measured> {
        let (comm, lanes) = (self.comm, &mut self.lanes);
        if self.options.memory == MemoryKind::Mapped {
            let bytes = layout::longest_bytes(point, placement, comm.size());
            for lane in lanes.iter_mut() {
                lane.send.map(comm, bytes)?;
                lane.recv.map(comm, bytes)?;
            }
        }
        let device = self.device;
        let call = Call::new(comm, point, placement).with(self.partner).on(device);
        let lengths = Lengths::new(point, comm.size());
        let check = Check::new(point, &lengths, (comm.rank(), comm.size()), call.sender());
        let fill = |lanes: &mut [Lane]| -> Result<()> {
            lanes.iter_mut().for_each(|lane| check.fill(&call.layout, lane));
            device.map_or(Ok(()), |device| lanes.iter_mut().try_for_each(|lane| device.bring(lane)))
        };
        let count_wrong = |lanes: &mut [Lane]| -> Result<u64> {
            if self.options.checking == Checking::Off {
                return Ok(0);
            }
            device.map_or(Ok(()), |device| lanes.iter_mut().try_for_each(|lane| device.take_back(lane)))?;
            Ok(lanes.iter().map(|lane| check.wrong(&call.layout, placement, lane)).sum())
        };
        fill(lanes)?;
        comm.barrier()?;
        let start = Instant::now();
        call.once(lanes)?;
        let first = Timing { time: start.elapsed(), iterations: 1 };
        let mut wrong = count_wrong(lanes)?;
        let mut graph: Option<Graph> = None;
        if let Some(captured) = self.options.graph {
            graph = call.capture(lanes, captured)?;
            fill(lanes)?;
            comm.barrier()?;
            if let Some(graph) = &mut graph {
                call.replay(graph, 1)?;
            }
            if captured == 1 || placement == Placement::OutOfPlace {
                wrong = wrong.max(count_wrong(lanes)?);
            }
        }
        let timing = self.stopwatch.measure_replays(&call, lanes, graph.as_mut())?;
        if timing.is_some() && placement == Placement::OutOfPlace {
            wrong = wrong.max(count_wrong(lanes)?);
        }
        let (timing, captured) = match timing {
            Some(timing) => (timing, self.options.graph.unwrap_or(1)),
            None => (first, 1),
        };
        let calls = point.operation.messages_per_call() * (lanes.len() as u64 * captured) as f64;
        Ok(Measured {
            time: timing.time.div_f64(calls),
            wrong: self.total(wrong)?,
            iterations: timing.iterations,
        })
    }

    /// The sum over ranks; nothing if nothing was checked.
    fn total(&self, wrong: u64) -> Result<Option<u64>> {
        if self.options.checking == Checking::Off {
            return Ok(None);
        }
        let mut total = [0];
        self.comm.all_reduce(&[wrong], &mut total, ReduceOp::Sum)?;
        Ok(Some(total[0]))
    }
}

impl Options {
    /// Bytes of the longest buffer of any point.
    fn longest_bytes(&self, n: u32) -> usize {
        let points = self.operations(n).into_iter().flat_map(|operation| self.axes(n).points(operation, n));
        let of_point = |point: Point| {
            [Placement::OutOfPlace, Placement::InPlace]
                .map(|placement| layout::longest_bytes(&point, placement, n))
        };
        points.flat_map(of_point).max().unwrap_or(0)
    }

    /// The operations that n ranks can do.
    pub(crate) fn operations(&self, n: u32) -> Vec<Operation> {
        self.operations.iter().copied().filter(|operation| operation.min_ranks() <= n).collect()
    }
}
