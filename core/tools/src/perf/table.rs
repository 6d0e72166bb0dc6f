//! The table, in the shape of nccl-tests: what reads theirs reads ours.

use std::fmt::Write;

use super::operation::Operation;
use super::point::{Measured, Row};

/// Who takes part: a line of the head for each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Participant {
    /// Its process.
    pub(crate) pid: u32,
    /// Its host.
    pub(crate) host: String,
    /// The CPU it is bound to, if to one.
    pub(crate) cpu: Option<u32>,
}

/// The lines before an operation's rows; `parameters` says how it is run.
pub(crate) fn head(operation: Operation, parameters: &str, participants: &[Participant]) -> String {
    let mut text = format!("# ccl version {}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "# Collective test starting: {}", test_name(operation));
    let _ = writeln!(text, "# {parameters}\n#\n# Using devices");
    text + &self::participants(participants) + COLUMNS
}

/// A line for each rank.
pub(crate) fn participants(participants: &[Participant]) -> String {
    let mut text = String::new();
    for (rank, one) in participants.iter().enumerate() {
        let cpu = one.cpu.map_or("any CPU".to_owned(), |cpu| format!("CPU {cpu}"));
        let _ = writeln!(
            text,
            "#  Rank {rank:2} Group  0 Pid {:6} on {:>10} device {:2} [host] {cpu}",
            one.pid,
            one.host,
            one.cpu.unwrap_or(0),
        );
    }
    text
}

/// One row.
pub(crate) fn row(row: &Row) -> String {
    let point = &row.point;
    format!(
        "{:12}  {:12}  {:>8}  {:>6}  {:>6}{}{}\n",
        point.amount.actual_bytes,
        point.amount.count,
        point.dtype,
        point.reduce_name(),
        point.root_number(),
        half(row, row.out_of_place.as_ref()),
        half(row, row.in_place.as_ref()),
    )
}

/// The lines after an operation's rows.
pub(crate) fn foot(operation: Operation, rows: &[Row]) -> String {
    let wrong: u64 = rows.iter().map(Row::wrong).sum();
    format!(
        "# Out of bounds values : {wrong} {}\n# Avg bus bandwidth    : {:.6}\n#\n# Collective test concluded: {}\n",
        if wrong == 0 { "OK" } else { "FAILED" },
        average_bus_gb_per_s(rows),
        test_name(operation),
    )
}

/// The lines after all operations.
pub(crate) fn summary(rows: &[Row]) -> String {
    let wrong: u64 = rows.iter().map(Row::wrong).sum();
    let halves = rows.iter().flat_map(Row::halves).count();
    format!("#\n# All tests: {} points, {halves} results, {wrong} wrong elements\n", rows.len())
}

/// The mean over rows and placements.
fn average_bus_gb_per_s(rows: &[Row]) -> f64 {
    let all = rows.iter().flat_map(|row| row.halves().map(|half| half.bus_gb_per_s(&row.point, row.n)));
    let (sum, count) = all.fold((0.0, 0_u32), |(sum, count), bandwidth| (sum + bandwidth, count + 1));
    sum / f64::from(count.max(1))
}

fn half(row: &Row, measured: Option<&Measured>) -> String {
    let Some(measured) = measured else {
        return format!("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
    };
    format!(
        "  {}  {}  {}  {:>6}",
        fitted(measured.time_us(), 7),
        fitted(measured.alg_gb_per_s(&row.point), 6),
        fitted(measured.bus_gb_per_s(&row.point, row.n), 6),
        measured.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string()),
    )
}

/// A number with 2, 1 or 0 decimals, whatever still fits.
fn fitted(value: f64, width: usize) -> String {
    let texts = [2, 1, 0].map(|decimals| format!("{value:width$.decimals$}"));
    let fits = texts.iter().find(|text| text.len() <= width);
    fits.unwrap_or(&texts[2]).clone()
}

fn test_name(operation: Operation) -> String {
    format!("{}_perf", operation.name())
}

const COLUMNS: &str = "\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ccl::{Dtype, Rank, ReduceOp};

    use super::super::geometry::Amount;
    use super::super::point::Point;
    use super::*;

    fn example(name: &str, micros: u64) -> Row {
        let operation = name.parse().unwrap();
        let amount = Amount::of_bytes(operation, 1 << 20, 4, Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Sum, root: Rank(0), amount };
        let measured = Measured { time: Duration::from_micros(micros), wrong: Some(0), iterations: 3 };
        let in_place = operation.has_in_place().then_some(Measured { wrong: None, ..measured });
        Row { point, n: 4, out_of_place: Some(measured), in_place }
    }

    #[test]
    fn rows_have_the_columns_of_nccl_tests() {
        let expected = "     1048576        262144     float     sum      -1   100.00   10.49   15.73       0   100.00   10.49   15.73     N/A\n";
        assert_eq!(row(&example("all_reduce", 100)), expected);
        let fields: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(fields.len(), 13);
        let text = row(&example("sendrecv", 100));
        assert_eq!(text.split_whitespace().nth(3), Some("none"));
        assert!(text.ends_with("N/A     N/A     N/A     N/A\n"), "{text}");
    }

    #[test]
    fn columns_line_up_with_their_titles() {
        let text = row(&example("reduce", 100));
        let titles = COLUMNS.lines().nth(2).unwrap();
        assert_eq!(titles.len(), text.trim_end().len());
        for title in ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"] {
            let end = titles.find(title).unwrap() + title.len();
            assert!(!text[end - 1..end].contains(' '), "{title}");
        }
    }

    #[test]
    fn numbers_lose_decimals_rather_than_grow() {
        assert_eq!(fitted(1.234, 7), "   1.23");
        assert_eq!(fitted(12_345.67, 7), "12345.7");
        assert_eq!(fitted(1_234_567.8, 7), "1234568");
        assert_eq!(fitted(123_456_789.0, 7), "123456789");
    }

    #[test]
    fn the_foot_sums_up() {
        let mut bad = example("all_reduce", 100);
        bad.out_of_place.as_mut().unwrap().wrong = Some(3);
        let text = foot(bad.point.operation, &[bad, example("all_reduce", 100)]);
        assert!(text.contains("# Out of bounds values : 3 FAILED\n"), "{text}");
        assert!(text.contains("# Avg bus bandwidth    : 15.728640\n"), "{text}");
        assert!(
            foot(bad.point.operation, &[])
                .contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.0")
        );
    }
}
