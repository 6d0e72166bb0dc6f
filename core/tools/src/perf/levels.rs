//! `ccl perf --levels`: what each level of determinism costs.

use std::fmt::Write;

use ccl::{Communicator, Level, Rank, ReduceOp, Result};
use serde::Serialize;

use super::call::{Call, Lane};
use super::check::{Check, Lengths};
use super::json::rounded;
use super::measure::Stopwatch;
use super::options::{Format, Options};
use super::point::{Placement, Point};
use crate::text;

/// Measures all points that reduce at every level, with the other ranks of `comm`; the number of wrong elements on
/// all ranks. Rank 0 reports.
pub(crate) fn run(comm: &Communicator, options: &Options) -> Result<u64> {
    let stopwatch = Stopwatch::new(comm, options.pace, options.warm_up);
    let (n, mut rows, mut wrong) = (comm.size(), Vec::new(), 0);
    for operation in options.operations(n).into_iter().filter(|operation| operation.reduces()) {
        for point in options.axes(n).points(operation, n) {
            let row = row(comm, &stopwatch, &point)?;
            wrong += row.wrong;
            if comm.rank() == Rank(0) && options.format == Format::Json {
                text::print(&row.json(n))?;
            }
            rows.push(row);
        }
    }
    if comm.rank() == Rank(0) && options.format == Format::Table {
        text::print(&table(&rows, n))?;
    }
    Ok(wrong)
}

/// One point.
struct Row {
    point: Point,
    /// Microseconds of a call at each level.
    times_us: [Spread; LEVELS],
    /// How many times as long as at `run`, round by round.
    ratios: [Spread; LEVELS],
    wrong: u64,
}

/// What came out of all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

/// Every round times all levels, one after the other, so that a machine that changes its speed does so for all.
fn row(comm: &Communicator, stopwatch: &Stopwatch<'_>, point: &Point) -> Result<Row> {
    let lengths = Lengths::new(point, comm.size());
    let check = Check::new(point, &lengths, (comm.rank(), comm.size()), None);
    let mut lane = [Lane::default()];
    let (mut times_us, mut ratios) = ([const { Vec::new() }; LEVELS], [const { Vec::new() }; LEVELS]);
    let mut wrong = 0;
    for round in 0..=ROUNDS {
        let mut us = [0.0; LEVELS];
        for (level, us) in Level::ALL.into_iter().zip(&mut us) {
            let call = Call::new(comm, point, Placement::OutOfPlace).at(level);
            check.fill(&call.layout, &mut lane[0]);
            call.once(&mut lane)?;
            wrong += check.wrong(&call.layout, Placement::OutOfPlace, &lane[0]);
            *us = stopwatch.measure(&call, &mut lane)?.map_or(0.0, |timing| timing.time.as_secs_f64() * 1e6);
        }
        // The first round warms up.
        for level in (0..LEVELS).filter(|_| round > 0) {
            times_us[level].push(us[level]);
            // With no iterations nothing is timed.
            ratios[level].push(if us[0] > 0.0 { us[level] / us[0] } else { 1.0 });
        }
    }
    let mut total = [0];
    comm.all_reduce(&[wrong], &mut total, ReduceOp::Sum)?;
    let [times_us, ratios] = [times_us, ratios].map(|all| all.map(Spread::of));
    Ok(Row { point: *point, times_us, ratios, wrong: total[0] })
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        Spread { min: at(0), median: (at(last / 2) + at(values.len() / 2)) / 2.0, max: at(last) }
    }
}

#[derive(Serialize)]
struct Line {
    operation: &'static str,
    dtype: &'static str,
    ranks: u32,
    bytes: u64,
    level: &'static str,
    rounds: usize,
    time_us: f64,
    ratio: f64,
    min_ratio: f64,
    max_ratio: f64,
    wrong: u64,
}

impl Row {
    fn json(&self, n: u32) -> String {
        let line = |(index, level): (usize, Level)| {
            let (time, ratio) = (self.times_us[index], self.ratios[index]);
            let line = Line {
                operation: self.point.operation.name(),
                dtype: self.point.dtype.name(),
                ranks: n,
                bytes: self.point.amount.actual_bytes,
                level: level.name(),
                rounds: ROUNDS,
                time_us: rounded(time.median, 3),
                ratio: rounded(ratio.median, 3),
                min_ratio: rounded(ratio.min, 3),
                max_ratio: rounded(ratio.max, 3),
                wrong: self.wrong,
            };
            serde_json::to_string(&line).expect("numbers and strings always serialise") + "\n"
        };
        Level::ALL.into_iter().enumerate().map(line).collect()
    }
}

fn table(rows: &[Row], n: u32) -> String {
    let mut table = text::table(["operation", "dtype", "bytes", "run (us)", "size", "world"]);
    for Row { point, times_us: [run, ..], ratios: [_, size, world], .. } in rows {
        let ratio = |of: &Spread| format!("{:.2} ({:.2} to {:.2})", of.median, of.min, of.max);
        table.add_row([
            point.operation.name().to_owned(),
            point.dtype.name().to_owned(),
            point.amount.actual_bytes.to_string(),
            format!("{:.2}", run.median),
            ratio(size),
            ratio(world),
        ]);
    }
    let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
    let mut text = format!("# ccl version {}, {n} ranks, {ROUNDS} rounds\n", env!("CARGO_PKG_VERSION"));
    text += "# The time of a call at level run, and how many times as long it takes at the others: median and ends\n";
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", table.trim_fmt());
    let _ = writeln!(text, "# Out of bounds values : {wrong} {}", if wrong == 0 { "OK" } else { "FAILED" });
    text
}

const LEVELS: usize = Level::ALL.len();
/// Rounds that count.
const ROUNDS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_median_between_its_ends() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0]), Spread { min: 1.0, median: 2.5, max: 4.0 });
    }
}
