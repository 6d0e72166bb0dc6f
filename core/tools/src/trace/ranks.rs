//! What each rank did with its time.

use super::calls::Call;
use super::read::{Span, Trace};
use super::spans::{common_ns, merged, total_ns};

/// One rank in one communicator.
#[derive(Clone, Debug, Default)]
pub(super) struct RankRow {
    pub(super) rank: u32,
    pub(super) communicator: String,
    pub(super) operations: usize,
    /// The first event, and how long after it the last one was over.
    pub(super) since_ns: i64,
    pub(super) span_ns: i64,
    pub(super) communicating_ns: i64,
    /// Of that, waiting for the rank that began last; `None` if no other rank is here.
    pub(super) waited_ns: Option<i64>,
    /// Collectives that began last here.
    pub(super) last: usize,
    /// By how long after the one before it, together and at most.
    pub(super) late_ns: i64,
    pub(super) latest_ns: i64,
    /// Of the communication, while the caller was in no call.
    pub(super) outside_calls_ns: i64,
    /// Of the communication, while the device computed; `None` if nothing says when it did.
    pub(super) overlapped_ns: Option<i64>,
    /// Events that the profiler did not hear of; `None` if the file has no end.
    pub(super) dropped: Option<u64>,
}

/// The rows of the traces that have communication.
pub(super) fn ranks(traces: &[Trace], calls: &[Call<'_>]) -> Vec<RankRow> {
    let mut rows: Vec<RankRow> = traces.iter().map(|trace| row(traces, trace)).collect();
    for call in calls {
        let Some((last, late_ns)) = call.last() else { continue };
        let began = call.parts.iter().map(|(_, work)| work.span.since_ns).max().unwrap_or(0);
        for (index, work) in &call.parts {
            let waited = began.min(work.span.until_ns) - work.span.since_ns;
            *rows[*index].waited_ns.get_or_insert(0) += waited;
        }
        let row = &mut rows[last];
        row.last += 1;
        row.late_ns += late_ns;
        row.latest_ns = row.latest_ns.max(late_ns);
    }
    let mut rows: Vec<RankRow> = rows.into_iter().filter(|row| !row.communicator.is_empty()).collect();
    rows.sort_by(|one, other| (&one.communicator, one.rank).cmp(&(&other.communicator, other.rank)));
    rows
}

fn row(traces: &[Trace], trace: &Trace) -> RankRow {
    let Some(communicator) = trace.communicator.clone() else { return RankRow::default() };
    let works = merged(trace.works.iter().map(|work| work.span));
    let calls = merged(trace.calls.iter().copied());
    // Of this rank's file, or of another profiler's file of the same rank.
    let same = |other: &&Trace| {
        other.rank == trace.rank && (other.communicator.is_none() || std::ptr::eq(*other, trace))
    };
    let computing: Vec<Span> =
        merged(traces.iter().filter(same).flat_map(|trace| trace.computing.iter().copied()));
    let all = || works.iter().chain(&calls);
    let (since, until) = (all().map(|span| span.since_ns).min(), all().map(|span| span.until_ns).max());
    let communicating_ns = total_ns(&works);
    RankRow {
        rank: trace.rank,
        communicator,
        operations: trace.works.len(),
        since_ns: since.unwrap_or(0),
        span_ns: until.unwrap_or(0) - since.unwrap_or(0),
        communicating_ns,
        outside_calls_ns: communicating_ns - common_ns(&works, &calls),
        overlapped_ns: (!computing.is_empty()).then(|| common_ns(&works, &computing)),
        dropped: trace.dropped,
        ..RankRow::default()
    }
}
