//! One time for all traces. Processes of a host share a clock; between hosts the ends of collectives do.

use std::collections::BTreeMap;

use super::calls::{Call, calls};
use super::read::Trace;
use super::spans::percentile;

/// A host whose clock was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// A rank of it.
    pub(super) rank: u32,
    pub(super) by_ns: i64,
    /// Collectives that say so; none if there is nothing to compare by but the time of day.
    pub(super) calls: usize,
}

/// Brings all times to the clock of the first trace. Returns what was done to the clocks of other hosts.
pub(super) fn align(traces: &mut [Trace]) -> Vec<Moved> {
    let mut bases: BTreeMap<String, i64> = BTreeMap::new();
    for trace in traces.iter_mut() {
        // The time of day may be set between two reads; the clock of the events is one for the host.
        let base = match trace.host.is_empty() {
            true => trace.base_ns,
            false => *bases.entry(trace.host.clone()).or_insert(trace.base_ns),
        };
        trace.shift(base);
    }
    let Some(first) = traces.iter().find(|trace| trace.communicator.is_some()) else { return Vec::new() };
    let first = first.host.clone();
    let others: Vec<String> = bases.into_keys().filter(|host| *host != first).collect();
    others.iter().filter_map(|host| meet(traces, &first, host)).collect()
}

/// Moves the clock of a host so that collectives in which nobody is done before all have begun end at once.
fn meet(traces: &mut [Trace], first: &str, host: &str) -> Option<Moved> {
    let mut late: Vec<i64> = {
        let all = calls(traces);
        let end = |call: &Call<'_>, host: &str| {
            let parts = call.parts.iter().filter(|(trace, _)| traces[*trace].host == host);
            parts.map(|(_, work)| work.span.until_ns).max()
        };
        let joint = all.iter().filter(|call| is_joint(call.collective()));
        joint.filter_map(|call| Some(end(call, host)? - end(call, first)?)).collect()
    };
    late.sort_unstable();
    let by_ns = -percentile(&late, 50);
    let mut rank = None;
    for trace in traces.iter_mut().filter(|trace| trace.host == host) {
        trace.shift(by_ns);
        rank = rank.or(trace.communicator.as_ref().map(|_| trace.rank));
    }
    Some(Moved { rank: rank?, by_ns, calls: late.len() })
}

fn is_joint(collective: &str) -> bool {
    ["all_reduce", "all_gather", "all_to_all", "barrier"].iter().any(|start| collective.starts_with(start))
}
