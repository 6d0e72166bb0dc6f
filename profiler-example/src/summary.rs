//! The summary: how fast collectives were, and how unevenly.

use std::collections::BTreeMap;

use ccl_plugin::profiler::{Call, Comm, Kind, Summary};

/// What is counted for the summary of one communicator.
pub(crate) struct Tally {
    rank: u32,
    nranks: u32,
    rows: BTreeMap<(&'static str, u64), Row>,
}

/// Collectives of one kind and size.
#[derive(Default)]
struct Row {
    number: u64,
    total_ns: u64,
    shortest_ns: u64,
    longest_ns: u64,
    /// Number of the longest in its communicator, to be found on other ranks by.
    longest: u64,
}

impl Tally {
    pub(crate) fn new(comm: &Comm) -> Tally {
        Tally { rank: comm.rank, nranks: comm.nranks, rows: BTreeMap::new() }
    }

    /// A collective is over.
    pub(crate) fn add(&mut self, kind: Kind, call: &Call, took_ns: u64) {
        if kind != Kind::Coll {
            return;
        }
        let row = self.rows.entry((call.func, call.bytes)).or_default();
        row.number += 1;
        row.total_ns += took_ns;
        if row.number == 1 || took_ns < row.shortest_ns {
            row.shortest_ns = took_ns;
        }
        if took_ns >= row.longest_ns {
            (row.longest_ns, row.longest) = (took_ns, call.sequence);
        }
    }

    /// Logs a line for each kind and size. A rank waits for the slowest one inside a collective: the rank
    /// with the least total time is the straggler, and whose longest call is far from its shortest has
    /// waited for somebody.
    pub(crate) fn say(&self, summary: &Summary) {
        for ((func, bytes), row) in &self.rows {
            let mean_ns = row.total_ns / row.number;
            // Bytes per nanosecond are 10⁹ bytes per second.
            let algorithm_gb_per_s = *bytes as f64 / mean_ns.max(1) as f64;
            tracing::info!(
                "rank {} {func} of {bytes} bytes: {} calls, mean {} us, {:.3} GB/s algorithm, {:.3} GB/s bus; \
                 waited at most {} us, in collective {}",
                self.rank,
                row.number,
                mean_ns / 1000,
                algorithm_gb_per_s,
                algorithm_gb_per_s * bus_factor(func, self.nranks),
                (row.longest_ns - row.shortest_ns) / 1000,
                row.longest,
            );
        }
        if summary.dropped_events > 0 {
            tracing::warn!("rank {}: {} events were dropped", self.rank, summary.dropped_events);
        }
    }
}

/// What the busiest link carries, for each byte of the vector.
fn bus_factor(func: &str, nranks: u32) -> f64 {
    let n = f64::from(nranks.max(1));
    match func {
        "all_reduce" => 2.0 * (n - 1.0) / n,
        "broadcast" | "reduce" => 1.0,
        _ => (n - 1.0) / n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_defined_as_for_nccl_tests() {
        assert_eq!(bus_factor("all_reduce", 4), 1.5);
        assert_eq!(bus_factor("all_gather", 4), 0.75);
        assert_eq!(bus_factor("broadcast", 4), 1.0);
    }
}
