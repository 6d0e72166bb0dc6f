//! JSON lines: one per point, with the keys that the peers' drivers print and more.

use serde::Serialize;

use super::options::MemoryKind;
use super::point::{Measured, Row};

/// A point as one line of JSON, with the new line.
pub(crate) fn line(row: &Row, memory: MemoryKind) -> String {
    let mut text =
        serde_json::to_string(&Line::new(row, memory)).expect("numbers and strings always serialise");
    text.push('\n');
    text
}

/// The keys of the peers' drivers, `gbps` meaning 10⁹ bytes per second, then ours. The times are
/// those out of place where that was measured, else those in place.
#[derive(Serialize)]
struct Line {
    peer: &'static str,
    version: &'static str,
    coll: &'static str,
    ranks: u32,
    bytes: u64,
    actual_bytes: u64,
    #[serde(flatten)]
    half: Half,
    ok: bool,
    count: usize,
    dtype: &'static str,
    redop: &'static str,
    root: i64,
    placement: &'static str,
    memory: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place: Option<Half>,
}

#[derive(Serialize, Default)]
struct Half {
    time_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    iters: u64,
    wrong: Option<u64>,
}

impl Line {
    fn new(row: &Row, memory: MemoryKind) -> Line {
        let point = &row.point;
        let of = |half: &Option<Measured>| half.as_ref().map(|measured| Half::new(row, measured));
        let (placement, half, in_place) = match (of(&row.out_of_place), of(&row.in_place)) {
            (Some(out), inside) => ("out_of_place", out, inside),
            (None, inside) => ("in_place", inside.unwrap_or_default(), None),
        };
        Line {
            peer: "ccl",
            version: env!("CARGO_PKG_VERSION"),
            coll: point.operation.peer_name(),
            ranks: row.n,
            bytes: point.amount.bytes,
            actual_bytes: point.amount.actual_bytes,
            half,
            ok: row.wrong() == 0,
            count: point.amount.count,
            dtype: point.dtype.name(),
            redop: point.reduce_name(),
            root: point.root_number(),
            placement,
            memory: memory.name(),
            in_place,
        }
    }
}

impl Half {
    fn new(row: &Row, measured: &Measured) -> Half {
        Half {
            time_us: rounded(measured.time_us(), 3),
            algbw_gbps: rounded(measured.alg_gb_per_s(&row.point), 4),
            busbw_gbps: rounded(measured.bus_gb_per_s(&row.point, row.n), 4),
            iters: measured.iterations,
            wrong: measured.wrong,
        }
    }
}

/// A number with so many decimals at most.
pub(super) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ccl::{Dtype, Rank, ReduceOp};
    use serde_json::Value;

    use super::super::geometry::Amount;
    use super::super::point::Point;
    use super::*;

    #[test]
    fn lines_have_the_peers_keys() {
        let operation = "all_reduce".parse().unwrap();
        let amount = Amount::of_bytes(operation, 8, 2, Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Sum, root: Rank(0), amount };
        let measured = Measured { time: Duration::from_nanos(1500), wrong: Some(0), iterations: 7 };
        let row = Row { point, n: 2, out_of_place: Some(measured), in_place: None };
        let text = line(&row, MemoryKind::Mapped);
        assert_eq!(text.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        let expected =
            [("peer", "ccl".into()), ("coll", "allreduce".into()), ("ranks", 2.into()), ("bytes", 8.into())];
        for (key, found) in expected.iter().map(|(key, value): &(&str, Value)| (key, value)) {
            assert_eq!(&value[key], found);
        }
        assert_eq!(value["time_us"], 1.5);
        assert_eq!(value["memory"], "mapped");
        assert_eq!(value["ok"], true);
        assert!(value.get("in_place").is_none());
    }

    #[test]
    fn in_place_alone_fills_the_peers_keys() {
        let operation = "reduce".parse().unwrap();
        let amount = Amount::of_bytes(operation, 8, 2, Dtype::F32);
        let point = Point { operation, dtype: Dtype::F32, reduce: ReduceOp::Max, root: Rank(1), amount };
        let measured = Measured { time: Duration::from_nanos(1500), wrong: Some(2), iterations: 7 };
        let row = Row { point, n: 2, out_of_place: None, in_place: Some(measured) };
        let value: Value = serde_json::from_str(&line(&row, MemoryKind::Mapped)).unwrap();
        assert_eq!(
            (&value["placement"], &value["ok"], &value["root"]),
            (&"in_place".into(), &false.into(), &1.into())
        );
        assert_eq!(value["time_us"], 1.5);
    }
}
