//! The plot of a simulation: time over ranks or size, as SVG.

use std::error::Error;

use ccl_sim::Point;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;

use crate::perf::plot::{COLORS, decades, legend, plain};
use crate::size::format_bytes;

/// An SVG of `points`: a line for each series of the first `simulated`, dots for the measured rest.
pub(crate) fn svg(title: &str, points: &[Point], simulated: usize) -> ccl::Result<String> {
    let mut text = String::new();
    draw(title, points, simulated, &mut text)
        .map_err(|error| ccl::Error::bug(format!("draw the plot: {error}")))?;
    Ok(text)
}

fn draw<'a>(
    title: &str,
    points: &[Point],
    simulated: usize,
    text: &'a mut String,
) -> Result<(), Box<dyn Error + 'a>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 22))?;
    let over_ranks = is_over_ranks(points);
    let x = move |point: &Point| if over_ranks { f64::from(point.ranks) } else { point.bytes as f64 };
    let (xs, ys) = (decades(points.iter().map(x)), decades(points.iter().map(|point| point.time_us)));
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(xs.log_scale().base(2.0), ys.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(if over_ranks { "ranks" } else { "size (bytes)" })
        .y_desc("time (µs)")
        .x_label_formatter(&|x| match over_ranks {
            true => plain(*x),
            false => format_bytes(x.round() as u64),
        })
        .y_label_formatter(&|y| plain(*y))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .light_line_style(BLACK.mix(0.06))
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for (index, line) in lines(points, simulated).into_iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let at: Vec<(f64, f64)> = line.points.iter().map(|point| (x(point), point.time_us)).collect();
        if line.measured {
            let dots = at.iter().map(|at| Circle::new(*at, 5, color.stroke_width(2)));
            chart
                .draw_series(dots)?
                .label(line.label)
                .legend(move |(x, y)| Circle::new((x + 14, y), 5, color.stroke_width(2)));
            continue;
        }
        chart
            .draw_series(LineSeries::new(at.clone(), color.stroke_width(2)))?
            .label(line.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], color.stroke_width(2)));
        chart.draw_series(at.iter().map(|at| Circle::new(*at, 3, color.filled())))?;
    }
    legend(&mut chart)?;
    root.present()?;
    Ok(())
}

/// One line or set of dots.
struct Line<'a> {
    label: String,
    measured: bool,
    points: Vec<&'a Point>,
}

/// The points by series, and, where the axis does not tell them, by size or ranks.
fn lines(points: &[Point], simulated: usize) -> Vec<Line<'_>> {
    let over_ranks = is_over_ranks(points);
    let other = |point: &Point| match over_ranks {
        // Blocks grow with the ranks: what stays is the block.
        true if point.bytes.is_multiple_of(u64::from(point.ranks)) && varies(points) => {
            format!("{} per rank", format_bytes(point.bytes / u64::from(point.ranks)))
        }
        true => format_bytes(point.bytes),
        false => format!("{} ranks", point.ranks),
    };
    let several = |point: &Point| points.iter().any(|p| p.series == point.series && other(p) != other(point));
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let measured = index >= simulated;
        let label = match several(point) {
            true => format!("{}, {}", point.series, other(point)),
            false => point.series.clone(),
        };
        match lines.iter_mut().find(|line| line.label == label && line.measured == measured) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { label, measured, points: vec![point] }),
        }
    }
    lines
}

/// Whether every number of ranks has sizes of its own.
fn varies(points: &[Point]) -> bool {
    let first = points.first().map_or((0, 0), |point| (point.ranks, point.bytes));
    !points.iter().any(|point| point.ranks != first.0 && point.bytes == first.1)
}

fn is_over_ranks(points: &[Point]) -> bool {
    let count = |value: fn(&Point) -> u64| {
        let mut values: Vec<u64> = points.iter().map(value).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    count(|point| u64::from(point.ranks)) >= count(|point| point.bytes)
}

/// Pixels: width and height.
const SIZE: (u32, u32) = (1000, 620);

#[cfg(test)]
mod tests {
    use super::*;

    fn point(series: &str, ranks: u32, bytes: u64) -> Point {
        let time_us = f64::from(ranks) + bytes as f64 / 100.0;
        Point { series: series.to_owned(), ranks, bytes, time_us, bus_gb_per_s: 0.0, steps: 0 }
    }

    #[test]
    fn lines_are_told_apart_by_what_the_axis_does_not_say() {
        let points: Vec<Point> =
            [4, 8, 16].iter().flat_map(|n| [point("a", *n, 8), point("a", *n, 64)]).collect();
        let labels =
            |points: &[Point]| lines(points, 99).into_iter().map(|line| line.label).collect::<Vec<_>>();
        assert_eq!(labels(&points), ["a, 8", "a, 64"]);
        let blocks: Vec<Point> = [4, 8, 16].iter().map(|n| point("b", *n, 8 * u64::from(*n))).collect();
        assert_eq!(labels(&blocks), ["b"]);
        assert_eq!(labels(&[point("a", 4, 8), point("a", 4, 64)]), ["a"]);
    }

    #[test]
    fn the_drawing_has_its_labels() {
        let points = [point("ring", 4, 8), point("ring", 64, 8), point("measured", 16, 8)];
        let text = svg("a title", &points, 2).unwrap();
        for part in ["a title", "ring", "measured", "ranks", "time ("] {
            assert!(text.contains(part), "{part}");
        }
    }
}
