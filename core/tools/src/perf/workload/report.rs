//! What rank 0 prints about a workload.

use std::fmt::Write;
use std::time::Duration;

use ccl::{Collective, Result};
use serde::Serialize;

use super::Workload;
use crate::perf::json::rounded;
use crate::perf::operation::Operation;
use crate::perf::options::Format;
use crate::perf::table::{self, Participant};
use crate::text;

/// What came out.
pub(crate) struct Outcome<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) n: u32,
    pub(crate) participants: Vec<Participant>,
    /// Of each timed step, on its slowest rank.
    pub(crate) times: Vec<Duration>,
    /// Wrong elements on all ranks; nothing if not checked.
    pub(crate) wrong: Option<u64>,
}

/// Prints the outcome as the workload asks for.
pub(crate) fn print(outcome: &Outcome<'_>) -> Result<()> {
    text::print(&match outcome.workload.format {
        Format::Table => rows(outcome),
        Format::Json => json(outcome),
    })
}

/// Shortest, median and longest; the median of an even number of times is the mean of the middle two.
pub(crate) struct Spread {
    pub(crate) min: Duration,
    pub(crate) median: Duration,
    pub(crate) max: Duration,
}

impl Spread {
    /// The spread of times; of none, zeros.
    pub(crate) fn of(times: &[Duration]) -> Spread {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let (low, high) = (at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2));
        Spread { min: at(0), median: (low + high) / 2, max: at(sorted.len().saturating_sub(1)) }
    }
}

fn rows(outcome: &Outcome<'_>) -> String {
    let Outcome { workload, n, wrong, .. } = outcome;
    let spread = Spread::of(&outcome.times);
    let mut text = format!("# ccl version {}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(
        text,
        "# Workload: {}, {} all-reduces of {} bytes in all, {} {}, up to {} under way",
        workload.name,
        workload.counts.len(),
        workload.bytes(),
        workload.dtype,
        workload.reduce.name(),
        workload.in_flight,
    );
    let _ =
        writeln!(text, "# nRanks {n} warmup iters: {} iters: {}\n#", workload.warm_up, workload.iterations);
    text += &table::participants(&outcome.participants);
    text += COLUMNS;
    for (index, time) in outcome.times.iter().enumerate() {
        let _ = writeln!(text, "{}", row(outcome, &(index + 1).to_string(), *time));
    }
    for (name, time) in [("min", spread.min), ("median", spread.median), ("max", spread.max)] {
        let _ = writeln!(text, "# {}", row(outcome, name, time).split_off(2));
    }
    let verdict = match wrong {
        Some(0) => "0 OK".to_owned(),
        Some(wrong) => format!("{wrong} FAILED"),
        None => "N/A".to_owned(),
    };
    let _ = writeln!(text, "# Out of bounds values : {verdict}");
    text
}

fn row(outcome: &Outcome<'_>, name: &str, time: Duration) -> String {
    let (alg, bus) = bandwidths(outcome, time);
    let bytes = outcome.workload.bytes();
    format!("{name:>10}  {bytes:12}  {:12.1}  {alg:8.2}  {bus:8.2}", time.as_secs_f64() * 1e6)
}

/// Algorithm and bus bandwidth, 10⁹ bytes per second.
fn bandwidths(outcome: &Outcome<'_>, time: Duration) -> (f64, f64) {
    let seconds = time.as_secs_f64();
    let alg = if seconds > 0.0 { outcome.workload.bytes() as f64 / seconds / 1e9 } else { 0.0 };
    (alg, alg * Operation::Collective(Collective::AllReduce).bus_factor(outcome.n))
}

#[derive(Serialize)]
struct Line<'a> {
    peer: &'static str,
    version: &'static str,
    workload: &'a str,
    ranks: u32,
    buckets: usize,
    bytes: u64,
    dtype: &'static str,
    redop: &'static str,
    in_flight: usize,
    min_us: f64,
    median_us: f64,
    max_us: f64,
    times_us: Vec<f64>,
    algbw_gbps: f64,
    busbw_gbps: f64,
    wrong: Option<u64>,
    ok: bool,
}

fn json(outcome: &Outcome<'_>) -> String {
    let Outcome { workload, n, wrong, .. } = outcome;
    let spread = Spread::of(&outcome.times);
    let us = |time: Duration| rounded(time.as_secs_f64() * 1e6, 3);
    let (alg, bus) = bandwidths(outcome, spread.median);
    let line = Line {
        peer: "ccl",
        version: env!("CARGO_PKG_VERSION"),
        workload: &workload.name,
        ranks: *n,
        buckets: workload.counts.len(),
        bytes: workload.bytes(),
        dtype: workload.dtype.name(),
        redop: workload.reduce.name(),
        in_flight: workload.in_flight,
        min_us: us(spread.min),
        median_us: us(spread.median),
        max_us: us(spread.max),
        times_us: outcome.times.iter().map(|time| us(*time)).collect(),
        algbw_gbps: rounded(alg, 4),
        busbw_gbps: rounded(bus, 4),
        wrong: *wrong,
        ok: wrong.unwrap_or(0) == 0,
    };
    serde_json::to_string(&line).expect("numbers and strings always serialise") + "\n"
}

const COLUMNS: &str = "\
#
#     step          size          time     algbw     busbw
#                    (B)          (us)    (GB/s)    (GB/s)
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_in_order() {
        let spread = |millis: &[u64]| {
            let times: Vec<_> = millis.iter().map(|ms| Duration::from_millis(*ms)).collect();
            let spread = Spread::of(&times);
            [spread.min, spread.median, spread.max].map(|time| time.as_millis())
        };
        assert_eq!(spread(&[30, 10, 20]), [10, 20, 30]);
        assert_eq!(spread(&[40, 10]), [10, 25, 40]);
        assert_eq!(spread(&[7]), [7, 7, 7]);
        assert_eq!(spread(&[]), [0, 0, 0]);
    }
}
