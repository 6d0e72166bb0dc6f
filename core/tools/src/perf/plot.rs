//! The plot: bus bandwidth and time over size, as SVG.

use std::error::Error;
use std::ops::Range;

use plotters::coord::CoordTranslate;
use plotters::coord::combinators::IntoLogRange;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::point::{Measured, Point, Row};
use crate::size::format_bytes;

/// An SVG of `rows`: two panels, sizes on a common axis, a colour for each operation, solid out of
/// place and dashed in place. Nothing to draw is not an error.
pub(crate) fn svg(rows: &[Row]) -> ccl::Result<String> {
    let mut text = String::new();
    draw(rows, &mut text).map_err(|error| ccl::Error::bug(format!("draw the plot: {error}")))?;
    Ok(text)
}

fn draw<'a>(rows: &[Row], text: &'a mut String) -> Result<(), Box<dyn Error + 'a>> {
    let lines = lines(rows);
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(&title(rows), ("sans-serif", 22))?;
    let (upper, lower) = root.split_vertically(SIZE.1 / 2 - 20);
    panel(&upper, &lines, "bus bandwidth (GB/s)", |sample| sample.bus_gb_per_s)?;
    panel(&lower, &lines, "time (µs)", |sample| sample.time_us)?;
    root.present()?;
    Ok(())
}

/// One line of the plot.
struct Line {
    label: String,
    color: usize,
    dashed: bool,
    samples: Vec<Sample>,
}

/// One measured value of a line.
#[derive(Clone, Copy)]
struct Sample {
    bytes: f64,
    time_us: f64,
    bus_gb_per_s: f64,
}

/// What tells one line from another.
type Identity = (&'static str, &'static str, &'static str, i64);

type Half = fn(&Row) -> Option<&Measured>;

fn lines(rows: &[Row]) -> Vec<Line> {
    let mut identities: Vec<Identity> = Vec::new();
    for row in rows.iter().filter(|row| row.point.operation.has_data()) {
        if !identities.contains(&identity(&row.point)) {
            identities.push(identity(&row.point));
        }
    }
    let halves: [(&str, Half); 2] =
        [("out of place", |row| row.out_of_place.as_ref()), ("in place", |row| row.in_place.as_ref())];
    let mut lines = Vec::new();
    for (color, own) in identities.iter().enumerate() {
        for (place, half) in halves {
            let mine = rows.iter().filter(|row| identity(&row.point) == *own);
            let samples: Vec<_> = mine.filter_map(|row| Some(sample(row, half(row)?))).collect();
            if !samples.is_empty() {
                let label = format!("{}, {place}", label(own, &identities));
                lines.push(Line { label, color, dashed: place == "in place", samples });
            }
        }
    }
    lines
}

fn identity(point: &Point) -> Identity {
    (point.operation.name(), point.dtype.name(), point.reduce_name(), point.root_number())
}

/// The parts of an identity in which the lines differ; always the operation.
fn label(own: &Identity, all: &[Identity]) -> String {
    let mut text = own.0.to_owned();
    if all.iter().any(|other| other.1 != own.1) {
        text += &format!(" {}", own.1);
    }
    if all.iter().any(|other| other.0 == own.0 && other.2 != own.2) {
        text += &format!(" {}", own.2);
    }
    if all.iter().any(|other| other.0 == own.0 && other.3 != own.3) {
        text += &format!(" root {}", own.3);
    }
    text
}

fn sample(row: &Row, half: &Measured) -> Sample {
    Sample {
        bytes: row.point.amount.actual_bytes as f64,
        time_us: half.time_us(),
        bus_gb_per_s: half.bus_gb_per_s(&row.point, row.n),
    }
}

fn title(rows: &[Row]) -> String {
    rows.first().map_or("nothing measured".to_owned(), |row| {
        format!("ccl {}, {} ranks", env!("CARGO_PKG_VERSION"), row.n)
    })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// One panel: `value` over size.
fn panel<'a>(
    area: &Area<'a>,
    lines: &[Line],
    unit: &str,
    value: impl Fn(&Sample) -> f64,
) -> Result<(), Box<dyn Error + 'a>> {
    let drawn = |line: &Line| -> Vec<(f64, f64)> {
        let points = line.samples.iter().map(|sample| (sample.bytes, value(sample)));
        points.filter(|(x, y)| *x > 0.0 && *y > 0.0).collect()
    };
    let all: Vec<_> = lines.iter().flat_map(drawn).collect();
    let (xs, ys) = (decades(all.iter().map(|p| p.0)), decades(all.iter().map(|p| p.1)));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(78)
        .build_cartesian_2d(xs.log_scale().base(2.0), ys.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("size (bytes)")
        .y_desc(unit)
        .x_labels(14)
        .x_label_formatter(&|x| format_bytes(x.round() as u64))
        .y_label_formatter(&|y| plain(*y))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .light_line_style(BLACK.mix(0.06))
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for line in lines {
        let (points, color) = (drawn(line), COLORS[line.color % COLORS.len()]);
        let style = color.stroke_width(2);
        let series = match line.dashed {
            true => chart.draw_series(DashedLineSeries::new(points.clone(), 7, 5, style))?,
            false => chart.draw_series(LineSeries::new(points.clone(), style))?,
        };
        let dash = if line.dashed { 7 } else { i32::MAX / 2 };
        series
            .label(&line.label)
            .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 28, y)], dash, 4, style));
        let fill = if line.dashed { WHITE.filled() } else { color.filled() };
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, fill)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.stroke_width(1))))?;
    }
    Ok(legend(&mut chart)?)
}

/// Says what the series of a chart are.
pub(crate) fn legend<'a, D, C>(
    chart: &mut ChartContext<'a, D, C>,
) -> Result<(), DrawingAreaErrorKind<D::ErrorType>>
where
    D: DrawingBackend + 'a,
    C: CoordTranslate,
{
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperLeft).margin(8).legend_area_size(34);
    labels.background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3));
    labels.label_font(("sans-serif", 14)).draw()
}

/// The range of positive values, never empty, with some room around them.
pub(crate) fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let positive = values.filter(|value| *value > 0.0);
    let (low, high) = positive.fold((f64::MAX, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    if high == 0.0 { 1.0..2.0 } else { low / 1.3..high * 1.3 }
}

/// A number without exponent, with as many decimals as it needs.
pub(crate) fn plain(value: f64) -> String {
    let decimals = if value >= 1.0 { 0 } else { (-value.log10()).ceil().min(9.0) as usize };
    format!("{value:.decimals$}")
}

/// Pixels: width and height.
const SIZE: (u32, u32) = (1000, 1100);

/// Okabe and Ito's colours, told apart with any colour vision.
pub(crate) const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ccl::{Dtype, Rank, ReduceOp};

    use super::super::geometry::Amount;
    use super::*;

    fn rows(name: &str, dtype: Dtype) -> Vec<Row> {
        let operation = name.parse().unwrap();
        let sizes = (0..24).map(|power| 8_u64 << power);
        let row = |bytes: u64| {
            let amount = Amount::of_bytes(operation, bytes, 4, dtype);
            let point = Point { operation, dtype, reduce: ReduceOp::Sum, root: Rank(0), amount };
            let time = Duration::from_nanos(1200 + bytes / 9);
            let measured = Measured { time, wrong: Some(0), iterations: 1 };
            let slower = Measured { time: time * 3 / 2, ..measured };
            Row { point, n: 4, out_of_place: Some(measured), in_place: Some(slower) }
        };
        sizes.map(row).collect()
    }

    #[test]
    fn lines_are_named_by_what_differs() {
        let mut all = rows("all_reduce", Dtype::F32);
        let labels = |all: &[Row]| lines(all).into_iter().map(|line| line.label).collect::<Vec<_>>();
        assert_eq!(labels(&all), ["all_reduce, out of place", "all_reduce, in place"]);
        all.extend(rows("all_reduce", Dtype::F64));
        assert_eq!(labels(&all)[2..], ["all_reduce double, out of place", "all_reduce double, in place"]);
    }

    #[test]
    fn the_drawing_has_both_panels_and_every_label() {
        let mut all = rows("all_reduce", Dtype::F32);
        all.extend(rows("reduce", Dtype::F32));
        let text = svg(&all).unwrap();
        if let Ok(path) = std::env::var("CCL_TEST_KEEP_PLOT") {
            std::fs::write(path, &text).unwrap();
        }
        for part in ["bus bandwidth", "time (", "all_reduce, in place", "reduce, out of place", "32M"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(svg(&[]).unwrap().contains("nothing measured"));
    }
}
