//! What the ranks did together: the parts of one call, found by its number.

use std::collections::BTreeMap;

use super::read::{Trace, Work};
use super::spans::percentile;
use crate::perf::operation::Operation;

/// One call of a collective, or one message's end.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) communicator: &'a str,
    /// Ranks of the communicator.
    pub(super) ranks: u32,
    /// By trace; of a message one.
    pub(super) parts: Vec<(usize, &'a Work)>,
}

/// Calls of one collective, size and algorithm.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) collective: String,
    pub(super) algorithm: String,
    /// The least and the most bytes.
    pub(super) bytes: (u64, u64),
    pub(super) calls: usize,
    /// Of all ranks together.
    pub(super) total_ns: i64,
    pub(super) median_ns: i64,
    pub(super) p99_ns: i64,
    pub(super) bus_gb_per_s: Option<f64>,
}

impl Call<'_> {
    pub(super) fn collective(&self) -> &str {
        &self.parts[0].1.collective
    }

    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, work)| work.bytes).max().unwrap_or(0)
    }

    /// Who began last, and how long after the one before it; `None` with less than two ranks.
    pub(super) fn last(&self) -> Option<(usize, i64)> {
        let mut starts: Vec<(i64, usize)> =
            self.parts.iter().map(|(trace, work)| (work.span.since_ns, *trace)).collect();
        starts.sort_unstable();
        let (before, last) = (starts.iter().nth_back(1)?, starts.last()?);
        Some((last.1, last.0 - before.0))
    }

    /// The longest part.
    pub(super) fn longest_ns(&self) -> i64 {
        self.parts.iter().map(|(_, work)| work.span.took_ns()).max().unwrap_or(0)
    }

    /// From when the last rank began until all were done. If not all ranks are here: the longest part.
    fn joint_ns(&self) -> i64 {
        let spans = || self.parts.iter().map(|(_, work)| work.span);
        if self.parts.len() < self.ranks as usize {
            return self.longest_ns();
        }
        let last = spans().map(|span| span.since_ns).max().unwrap_or(0);
        spans().map(|span| span.until_ns).max().unwrap_or(0) - last
    }
}

/// All calls, in the order of communicators and numbers.
pub(super) fn calls(traces: &[Trace]) -> Vec<Call<'_>> {
    let mut collectives: BTreeMap<(&str, u64, &str), Call<'_>> = BTreeMap::new();
    let mut messages = Vec::new();
    for (index, trace) in traces.iter().enumerate() {
        let Some(communicator) = trace.communicator.as_deref() else { continue };
        let empty = || Call { communicator, ranks: trace.ranks, parts: Vec::new() };
        for work in &trace.works {
            if work.sequence == 0 {
                messages.push(Call { ranks: 1, parts: vec![(index, work)], ..empty() });
            } else {
                let key = (communicator, work.sequence, &*work.collective);
                collectives.entry(key).or_insert_with(empty).parts.push((index, work));
            }
        }
    }
    collectives.into_values().chain(messages).collect()
}

/// The calls by collective, power of two of their size, and algorithm.
pub(super) fn rows(calls: &[Call<'_>]) -> Vec<Row> {
    let mut kinds: BTreeMap<Kind<'_>, Vec<&Call<'_>>> = BTreeMap::new();
    calls.iter().for_each(|call| kinds.entry(kind(call)).or_default().push(call));
    kinds.into_iter().map(|((collective, _, algorithm), calls)| row(collective, algorithm, &calls)).collect()
}

/// The row that a call belongs to.
pub(super) type Kind<'a> = (&'a str, u64, &'a str);

pub(super) fn kind<'a>(call: &'a Call<'_>) -> Kind<'a> {
    (
        call.collective(),
        call.bytes().checked_next_power_of_two().unwrap_or(u64::MAX),
        &call.parts[0].1.algorithm,
    )
}

fn row(collective: &str, algorithm: &str, calls: &[&Call<'_>]) -> Row {
    let parts = calls.iter().flat_map(|call| &call.parts);
    let mut took: Vec<i64> = parts.map(|(_, work)| work.span.took_ns()).collect();
    let mut joint: Vec<i64> = calls.iter().map(|call| call.joint_ns()).collect();
    took.sort_unstable();
    joint.sort_unstable();
    let sizes = || calls.iter().map(|call| call.bytes());
    let bytes = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let mean_bytes = sizes().map(|bytes| bytes as f64).sum::<f64>() / calls.len() as f64;
    let factor =
        collective.parse::<Operation>().map_or(1.0, |operation| operation.bus_factor(calls[0].ranks));
    let median_ns = percentile(&joint, 50);
    Row {
        collective: collective.to_owned(),
        algorithm: algorithm.to_owned(),
        bytes,
        calls: calls.len(),
        total_ns: took.iter().sum(),
        median_ns: percentile(&took, 50),
        p99_ns: percentile(&took, 99),
        // Bytes per nanosecond are 10⁹ bytes per second.
        bus_gb_per_s: (mean_bytes > 0.0 && median_ns > 0).then(|| mean_bytes / median_ns as f64 * factor),
    }
}
