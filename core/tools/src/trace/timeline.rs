//! The timeline: a row for each rank, time to the right, as SVG.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::calls::Call;
use super::read::{Span, Trace};
use super::spans::merged;
use crate::perf::plot::COLORS;

/// An SVG of what ranks did between two times, in milliseconds since the first event; of everything without any.
/// Pale is waiting for the rank that began last; the line below says when the caller was in a call.
pub(super) fn svg(
    traces: &[Trace],
    calls: &[Call<'_>],
    window_ms: Option<Range<f64>>,
) -> ccl::Result<String> {
    let mut text = String::new();
    let picture = Picture::new(traces, calls, window_ms);
    picture.draw(&mut text).map_err(|error| ccl::Error::bug(format!("draw the timeline: {error}")))?;
    Ok(text)
}

struct Picture {
    /// The last rank first: charts count upwards.
    lines: Vec<RankLine>,
    /// The collectives, that which takes most first.
    names: Vec<String>,
    start_ns: i64,
    window_ms: Range<f64>,
}

/// A rank.
struct RankLine {
    label: String,
    works: Vec<Block>,
    /// Operations beside each other, at most.
    lanes: usize,
    calls: Vec<Span>,
}

/// An operation.
#[derive(Clone, Copy)]
struct Block {
    /// Its collective among the names.
    name: usize,
    lane: usize,
    span: Span,
    /// When the last rank began.
    joined_ns: i64,
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

impl Picture {
    fn new(traces: &[Trace], calls: &[Call<'_>], window_ms: Option<Range<f64>>) -> Picture {
        let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
        for call in calls {
            *totals.entry(call.collective()).or_default() += call.longest_ns();
        }
        let mut names: Vec<&str> = totals.keys().copied().collect();
        names.sort_by_key(|name| std::cmp::Reverse(totals[name]));
        let lines = lines(traces, blocks(traces, calls, &names));
        let spans = || {
            let works = |line: &RankLine| line.works.iter().map(|work| work.span).collect::<Vec<_>>();
            lines.iter().flat_map(move |line| works(line).into_iter().chain(line.calls.iter().copied()))
        };
        let start_ns = spans().map(|span| span.since_ns).min().unwrap_or(0);
        let end_ns = spans().map(|span| span.until_ns).max().unwrap_or(0);
        // Never empty: a chart has no room for nothing.
        let all_ms = 0.0..((end_ns - start_ns) as f64 / NS_PER_MS).max(1e-3);
        let names = names.into_iter().map(str::to_owned).collect();
        Picture { names, start_ns, window_ms: window_ms.unwrap_or(all_ms), lines }
    }

    fn draw<'a>(&self, text: &'a mut String) -> Result<(), Box<dyn Error + 'a>> {
        let height = HEAD + ROW * self.lines.len() as u32 + FOOT;
        let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, rest) = root.split_vertically(HEAD);
        self.legend(&head)?;
        let longest = self.lines.iter().map(|line| line.label.len()).max().unwrap_or(0) as u32;
        let mut chart = ChartBuilder::on(&rest)
            .margin_right(24)
            .x_label_area_size(FOOT)
            .y_label_area_size(24 + 8 * longest)
            .build_cartesian_2d(self.window_ms.clone(), 0.0..self.lines.len() as f64)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().y_labels(0).x_labels(14).x_desc("time (ms)");
        mesh.label_style(("sans-serif", 14)).axis_desc_style(("sans-serif", 16));
        mesh.light_line_style(TRANSPARENT).bold_line_style(BLACK.mix(0.12)).draw()?;
        for (row, line) in self.lines.iter().enumerate() {
            let (_, y) = chart.backend_coord(&(self.window_ms.start, row as f64 + 0.5));
            let style = ("sans-serif", 14).into_text_style(&root).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw_text(&line.label, &style, (12, y))?;
            self.line(&mut chart, row as f64, line)?;
        }
        root.present()?;
        Ok(())
    }

    /// What the colours are.
    fn legend<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    ) -> Result<(), Box<dyn Error + 'a>> {
        let style = ("sans-serif", 14).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        let entries = self.names.iter().enumerate().map(|(name, text)| (color(name), text.as_str()));
        let rest = [(color(0).mix(PALE), "waiting for the last rank"), (CALL.to_rgba(), "caller in a call")];
        let mut x = 12;
        for (color, text) in entries.chain(rest) {
            area.draw(&Rectangle::new([(x, 14), (x + 18, 30)], color.filled()))?;
            area.draw_text(text, &style, (x + 24, 22))?;
            x += 48 + 8 * text.len() as i32;
        }
        Ok(())
    }

    fn line<'b>(
        &self,
        chart: &mut Chart<'_, 'b>,
        row: f64,
        line: &RankLine,
    ) -> Result<(), Box<dyn Error + 'b>> {
        let bar = |span: Span, (low, high): (f64, f64), color: RGBAColor| {
            let at = self.shown(span)?;
            Some(Rectangle::new([(at.start, row + low), (at.end, row + high)], color.filled()))
        };
        let calls = self.blurred(line.calls.iter().copied());
        chart.draw_series(calls.into_iter().filter_map(|span| bar(span, (0.1, 0.16), CALL.to_rgba())))?;
        for lane in 0..line.lanes {
            let height = 0.7 / line.lanes as f64;
            let low = 0.2 + height * lane as f64;
            for name in 0..self.names.len() {
                let mine = || line.works.iter().filter(move |work| (work.lane, work.name) == (lane, name));
                let waits = mine().map(|work| Span {
                    since_ns: work.span.since_ns,
                    until_ns: work.joined_ns.clamp(work.span.since_ns, work.span.until_ns),
                });
                let works = mine().map(|work| Span {
                    since_ns: work.joined_ns.clamp(work.span.since_ns, work.span.until_ns),
                    until_ns: work.span.until_ns,
                });
                let (waits, works) = (self.blurred(waits), self.blurred(works));
                let ends = (low, low + height);
                chart.draw_series(
                    waits.into_iter().filter_map(|span| bar(span, ends, color(name).mix(PALE))),
                )?;
                chart.draw_series(works.into_iter().filter_map(|span| bar(span, ends, color(name))))?;
            }
        }
        Ok(())
    }

    /// Where a span is in the picture, if it is.
    fn shown(&self, span: Span) -> Option<Range<f64>> {
        let at = |ns: i64| {
            ((ns - self.start_ns) as f64 / NS_PER_MS).clamp(self.window_ms.start, self.window_ms.end)
        };
        let (since, until) = (at(span.since_ns), at(span.until_ns));
        (since < until).then_some(since..until)
    }

    /// The spans, those closer than half a pixel as one: a picture of a million events has no more than it shows.
    fn blurred(&self, spans: impl Iterator<Item = Span>) -> Vec<Span> {
        let pixel_ms = (self.window_ms.end - self.window_ms.start) / f64::from(WIDTH);
        let half_ns = (pixel_ms * NS_PER_MS / 2.0) as i64;
        let wide = spans.filter(|span| self.shown(*span).is_some());
        let wide = wide.map(|span| Span { until_ns: span.until_ns + half_ns, ..span });
        merged(wide).into_iter().map(|span| Span { until_ns: span.until_ns - half_ns, ..span }).collect()
    }
}

/// The operations of each trace.
fn blocks(traces: &[Trace], calls: &[Call<'_>], names: &[&str]) -> Vec<Vec<Block>> {
    let mut blocks: Vec<Vec<Block>> = traces.iter().map(|_| Vec::new()).collect();
    for call in calls {
        let joined_ns = call.parts.iter().map(|(_, work)| work.span.since_ns).max().unwrap_or(0);
        let name = names.iter().position(|name| *name == call.collective()).unwrap_or(0);
        for (trace, work) in &call.parts {
            blocks[*trace].push(Block { name, lane: 0, span: work.span, joined_ns });
        }
    }
    blocks
}

fn lines(traces: &[Trace], blocks: Vec<Vec<Block>>) -> Vec<RankLine> {
    let mut order: Vec<(&Trace, Vec<Block>)> =
        traces.iter().zip(blocks).filter(|(trace, _)| trace.communicator.is_some()).collect();
    order.sort_by_key(|(trace, _)| std::cmp::Reverse((&trace.communicator, trace.rank)));
    let several = order.iter().any(|(trace, _)| trace.communicator != order[0].0.communicator);
    order.into_iter().map(|(trace, works)| line(trace, works, several)).collect()
}

fn line(trace: &Trace, mut works: Vec<Block>, several: bool) -> RankLine {
    works.sort_by_key(|work| work.span);
    let mut ends: Vec<i64> = Vec::new();
    for work in &mut works {
        work.lane = ends.iter().position(|end| *end <= work.span.since_ns).unwrap_or(ends.len());
        ends.resize(ends.len().max(work.lane + 1), 0);
        ends[work.lane] = work.span.until_ns;
    }
    let communicator = trace.communicator.as_deref().filter(|_| several);
    let of = communicator.map_or(String::new(), |name| format!(" of {}", name.get(..8).unwrap_or(name)));
    let label = format!("rank {}{of}", trace.rank);
    RankLine { label, works, lanes: ends.len().max(1), calls: trace.calls.clone() }
}

fn color(name: usize) -> RGBAColor {
    COLORS[name % COLORS.len()].to_rgba()
}

const NS_PER_MS: f64 = 1e6;
/// How much of its colour waiting has.
const PALE: f64 = 0.3;
const CALL: RGBColor = RGBColor(140, 140, 140);
/// Pixels.
const WIDTH: u32 = 1400;
const HEAD: u32 = 44;
const ROW: u32 = 56;
const FOOT: u32 = 50;
