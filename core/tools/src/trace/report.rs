//! What is printed, as text and as JSON.

use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use super::calls::{Call, Row, calls, kind, rows};
use super::clock::Moved;
use super::flight::{Flight, Verdict, compare};
use super::ranks::{RankRow, ranks};
use super::read::Trace;
use super::spans::percentile;
use crate::size::format_bytes;
use crate::text;

/// Everything that the files say.
pub(super) struct Report {
    traces: usize,
    rows: Vec<Row>,
    ranks: Vec<RankRow>,
    slow: Vec<Slow>,
    moved: Vec<Moved>,
    flight: Option<Verdict>,
}

/// A call that took long.
struct Slow {
    communicator: String,
    sequence: u64,
    collective: String,
    peer: Option<u64>,
    bytes: u64,
    rank: u32,
    took_ns: i64,
    /// The middle one of its kind.
    median_ns: i64,
    /// Since the first event of all.
    at_ns: i64,
    /// Who began last, and how long after the one before.
    last: Option<(u32, i64)>,
}

impl Report {
    /// What aligned traces and flight recorders' files say, with the calls that took longest.
    pub(super) fn new(traces: &[Trace], flights: &[Flight], moved: Vec<Moved>, top: usize) -> Report {
        let calls = calls(traces);
        let flight = (!flights.is_empty()).then(|| compare(flights));
        let (rows, ranks, slow) = (rows(&calls), ranks(traces, &calls), slow(traces, &calls, top));
        Report { traces: ranks.len(), rows, ranks, slow, moved, flight }
    }

    /// Tables, the most important first.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if let Some(verdict) = &self.flight {
            text += &standings(verdict);
        }
        if self.traces == 0 {
            return text;
        }
        text += &self.head();
        text += &section("Collectives and messages", &self.row_table());
        text += &section("Ranks", &self.rank_table());
        text += &self.straggler().map_or(String::new(), |line| format!("\n{line}\n"));
        if !self.slow.is_empty() {
            text += &section("Longest", &self.slow_table());
        }
        for line in self.warnings() {
            text += &format!("\n! {line}\n");
        }
        text
    }

    /// One object; times are microseconds.
    pub(super) fn json(&self) -> String {
        let value = json!({
            "collectives": self.rows.iter().map(row_json).collect::<Vec<_>>(),
            "ranks": self.ranks.iter().map(rank_json).collect::<Vec<_>>(),
            "longest": self.slow.iter().map(slow_json).collect::<Vec<_>>(),
            "straggler": self.worst().map(|row| row.rank),
            "warnings": self.warnings(),
            "flight": self.flight,
        });
        format!("{value}\n")
    }

    fn head(&self) -> String {
        let since = self.ranks.iter().map(|row| row.since_ns).min().unwrap_or(0);
        let until = self.ranks.iter().map(|row| row.since_ns + row.span_ns).max().unwrap_or(0);
        let span = millis(until - since);
        let communicators = self.communicators();
        format!(
            "# {} traces, {communicators} communicator{}, {span} ms\n",
            self.traces,
            if communicators == 1 { "" } else { "s" }
        )
    }

    fn communicators(&self) -> usize {
        let mut names: Vec<&str> = self.ranks.iter().map(|row| &*row.communicator).collect();
        names.dedup();
        names.len()
    }

    fn row_table(&self) -> Table {
        let titles = [
            "collective",
            "bytes",
            "algorithm",
            "calls",
            "total (ms)",
            "median (µs)",
            "p99 (µs)",
            "bus (GB/s)",
        ];
        let mut table = text::table(titles);
        for row in &self.rows {
            table.add_row([
                row.collective.clone(),
                bytes(row.bytes),
                row.algorithm.clone(),
                row.calls.to_string(),
                millis(row.total_ns),
                micros(row.median_ns),
                micros(row.p99_ns),
                row.bus_gb_per_s.map_or("-".to_owned(), |bus| format!("{bus:.3}")),
            ]);
        }
        right(table, &[1, 3, 4, 5, 6, 7])
    }

    fn rank_table(&self) -> Table {
        // One communicator needs no name.
        let skipped = if self.communicators() == 1 { RANK_TITLES.len() - 1 } else { RANK_TITLES.len() };
        let mut table = text::table([]);
        table.set_header(&RANK_TITLES[..skipped]);
        for row in &self.ranks {
            table.add_row(&rank_cells(row)[..skipped]);
        }
        right(table, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    }

    fn slow_table(&self) -> Table {
        let mut table =
            text::table(["at (ms)", "call", "rank", "took (µs)", "of median", "last", "late (µs)"]);
        for slow in &self.slow {
            table.add_row([
                millis(slow.at_ns),
                slow.name(),
                slow.rank.to_string(),
                micros(slow.took_ns),
                format!("{:.1}x", slow.took_ns as f64 / slow.median_ns.max(1) as f64),
                slow.last.map_or("-".to_owned(), |(rank, _)| format!("rank {rank}")),
                slow.last.map_or("-".to_owned(), |(_, late)| micros(late)),
            ]);
        }
        right(table, &[0, 2, 3, 4, 6])
    }

    /// The rank that the others waited longest for.
    fn worst(&self) -> Option<&RankRow> {
        self.ranks.iter().filter(|row| row.late_ns > 0).max_by_key(|row| row.late_ns)
    }

    fn straggler(&self) -> Option<String> {
        let worst = self.worst()?;
        let same = |row: &&RankRow| row.communicator == worst.communicator;
        let calls: usize = self.ranks.iter().filter(same).map(|row| row.last).sum();
        let several = self.communicators() > 1;
        let of = if several { format!(" of {}", worst.communicator) } else { String::new() };
        Some(format!(
            "Rank {}{of} began last in {} of {calls} collectives, {} ms after the rank before it in all.",
            worst.rank,
            worst.last,
            millis(worst.late_ns)
        ))
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for row in &self.ranks {
            match row.dropped {
                None => warnings.push(format!(
                    "the trace of rank {} has no end: its process was killed, and later events are not in it",
                    row.rank
                )),
                Some(0) => {}
                Some(dropped) => warnings.push(format!(
                    "{dropped} events of rank {} are missing, as the profiler did not keep up: ask for fewer kinds \
                     with PROFILE_EVENT_MASK",
                    row.rank
                )),
            }
        }
        for moved in &self.moved {
            let by = micros(moved.by_ns);
            warnings.push(match moved.calls {
                0 => format!(
                    "the host of rank {} has a clock of its own, and no collective to compare it by: who began last \
                     may be wrong",
                    moved.rank
                ),
                calls => format!(
                    "the clock of the host of rank {} was moved by {by} µs, by the ends of {calls} collectives",
                    moved.rank
                ),
            });
        }
        warnings
    }
}

impl Slow {
    /// As `all_reduce 7 of 64K`, or `send to 3 of 1M`.
    fn name(&self) -> String {
        let mut name = self.collective.clone();
        if self.sequence > 0 {
            name += &format!(" {}", self.sequence);
        }
        if let Some(peer) = self.peer {
            name += &format!(" {} {peer}", if self.collective == "send" { "to" } else { "from" });
        }
        if self.bytes > 0 {
            name += &format!(" of {}", format_bytes(self.bytes));
        }
        name
    }
}

fn slow(traces: &[Trace], calls: &[Call<'_>], top: usize) -> Vec<Slow> {
    let all = || traces.iter().flat_map(|trace| trace.works.iter().map(|work| work.span.since_ns));
    let start = all().min().unwrap_or(0);
    let mut sorted: Vec<&Call<'_>> = calls.iter().collect();
    sorted.sort_by_key(|call| std::cmp::Reverse(call.longest_ns()));
    sorted.truncate(top);
    let slow = |call: &&Call<'_>| {
        let (trace, work) = call.parts.iter().max_by_key(|(_, work)| work.span.took_ns())?;
        let mut alike: Vec<i64> = calls
            .iter()
            .filter(|other| kind(other) == kind(call))
            .flat_map(|other| &other.parts)
            .map(|(_, work)| work.span.took_ns())
            .collect();
        alike.sort_unstable();
        Some(Slow {
            communicator: call.communicator.to_owned(),
            sequence: work.sequence,
            collective: work.collective.clone(),
            peer: work.peer,
            bytes: call.bytes(),
            rank: traces[*trace].rank,
            took_ns: work.span.took_ns(),
            median_ns: percentile(&alike, 50),
            at_ns: work.span.since_ns - start,
            last: call.last().map(|(trace, late)| (traces[trace].rank, late)),
        })
    };
    sorted.iter().filter_map(slow).collect()
}

fn rank_cells(row: &RankRow) -> [String; RANK_TITLES.len()] {
    let share = |part: i64| percent(part, row.communicating_ns);
    [
        row.rank.to_string(),
        row.operations.to_string(),
        millis(row.communicating_ns),
        percent(row.communicating_ns, row.span_ns),
        row.waited_ns.map_or("-".to_owned(), millis),
        row.last.to_string(),
        millis(row.late_ns),
        micros(row.latest_ns),
        share(row.outside_calls_ns),
        row.overlapped_ns.map_or("-".to_owned(), share),
        row.dropped.map_or("?".to_owned(), |dropped| dropped.to_string()),
        row.communicator.clone(),
    ]
}

fn standings(verdict: &Verdict) -> String {
    let mut table = text::table(["communicator", "rank", "completed", "stands", "messages under way"]);
    for standing in &verdict.standings {
        table.add_row([
            standing.communicator.clone(),
            standing.rank.to_string(),
            standing.completed.to_string(),
            standing.stands.clone(),
            standing.messages.join(", "),
        ]);
    }
    let mut text = format!("# Where ranks stand\n{}\n\n", right(table, &[1, 2]).trim_fmt());
    for finding in &verdict.findings {
        text += &format!("!! {finding}\n");
    }
    if verdict.findings.is_empty() {
        text += "Every rank is where the others are.\n";
    }
    text
}

fn row_json(row: &Row) -> Value {
    json!({
        "collective": row.collective,
        "algorithm": row.algorithm,
        "min_bytes": row.bytes.0,
        "max_bytes": row.bytes.1,
        "calls": row.calls,
        "total_us": us(row.total_ns),
        "median_us": us(row.median_ns),
        "p99_us": us(row.p99_ns),
        "busbw_gbps": row.bus_gb_per_s,
    })
}

fn rank_json(row: &RankRow) -> Value {
    json!({
        "rank": row.rank,
        "communicator": row.communicator,
        "operations": row.operations,
        "span_us": us(row.span_ns),
        "communication_us": us(row.communicating_ns),
        "waited_us": row.waited_ns.map(us),
        "last": row.last,
        "late_us": us(row.late_ns),
        "latest_us": us(row.latest_ns),
        "outside_calls_us": us(row.outside_calls_ns),
        "overlap_us": row.overlapped_ns.map(us),
        "dropped": row.dropped,
    })
}

fn slow_json(slow: &Slow) -> Value {
    json!({
        "communicator": slow.communicator,
        "sequence": slow.sequence,
        "collective": slow.collective,
        "peer": slow.peer,
        "bytes": slow.bytes,
        "rank": slow.rank,
        "at_us": us(slow.at_ns),
        "took_us": us(slow.took_ns),
        "median_us": us(slow.median_ns),
        "last": slow.last.map(|(rank, _)| rank),
        "late_us": slow.last.map(|(_, late)| us(late)),
    })
}

fn section(title: &str, table: &Table) -> String {
    format!("\n# {title}\n{}\n", table.trim_fmt())
}

/// The table with these columns set to the right.
fn right(mut table: Table, columns: &[usize]) -> Table {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn bytes((least, most): (u64, u64)) -> String {
    match (least, most) {
        (_, 0) => "-".to_owned(),
        _ if least == most => format_bytes(least),
        _ => format!("{}-{}", format_bytes(least), format_bytes(most)),
    }
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1000.0
}

fn micros(ns: i64) -> String {
    format!("{:.1}", us(ns))
}

fn millis(ns: i64) -> String {
    format!("{:.3}", us(ns) / 1000.0)
}

fn percent(part: i64, of: i64) -> String {
    if of == 0 { "-".to_owned() } else { format!("{:.0} %", part as f64 * 100.0 / of as f64) }
}

const RANK_TITLES: [&str; 12] = [
    "rank",
    "operations",
    "communication (ms)",
    "of its time",
    "waited (ms)",
    "last",
    "late (ms)",
    "at most (µs)",
    "outside calls",
    "overlap",
    "dropped",
    "communicator",
];
