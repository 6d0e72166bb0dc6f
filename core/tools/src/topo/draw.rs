//! The picture: CPUs above, PCIe trees below them, NVLinks below the GPUs, the network at the bottom.

use std::collections::BTreeMap;

use ccl::plan::topology::{Kind, Link, Medium, Topology, Vertex, Wire};
use ccl::{Error, Result};
use svg::Document;
use svg::node::element::{Path, Rectangle, Text};

use super::number;
use crate::text;

/// An SVG of a machine of a few nodes.
pub(super) fn svg(machine: &Topology) -> Result<String> {
    if machine.nodes().len() > MOST_NODES {
        let cause = format!("expected at most {MOST_NODES} nodes to draw, found {}", machine.nodes().len());
        return Err(Error::usage(cause, "draw one node: leave --nodes away"));
    }
    let picture = Picture::new(machine);
    let (width, height) = (picture.right + MARGIN, picture.bottom + MARGIN);
    let page = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "sans-serif");
    let page = page.add(rectangle((0.0, 0.0), (width, height), "#ffffff", "none"));
    let page = picture.links(picture.legend(picture.frames(page)));
    Ok(format!("{}\n", picture.boxes(page)))
}

type Point = (f64, f64);

/// Where everything is.
struct Picture<'a> {
    machine: &'a Topology,
    /// The middle of each box.
    at: BTreeMap<Vertex, Point>,
    /// The widths of boxes that are wider than others: switches, which lie below what they join.
    widths: BTreeMap<Vertex, f64>,
    /// The left and right end of each node.
    frames: Vec<Point>,
    /// Where the devices are, where nodes end, and where everything does.
    devices: f64,
    floor: f64,
    right: f64,
    bottom: f64,
}

impl<'a> Picture<'a> {
    fn new(machine: &'a Topology) -> Picture<'a> {
        let cpus = machine.nodes().flat_map(|node| machine.cpus(node));
        let depth = cpus.map(|cpu| depth(machine, cpu)).max().unwrap_or(1).max(1);
        let devices = TOP + f64::from(depth) * ROW;
        let (at, widths, frames) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let (floor, bottom) = (devices + BOX.1, devices + BOX.1);
        let mut picture = Picture { machine, at, widths, frames, devices, floor, right: MARGIN, bottom };
        for node in machine.nodes() {
            let left = picture.right;
            picture.right += PADDING;
            machine.cpus(node).for_each(|cpu| _ = picture.place(cpu, TOP));
            picture.right += PADDING;
            picture.frames.push((left, picture.right));
            picture.right += PADDING;
        }
        picture.floor += picture.deepest_arc();
        let rest =
            |is: fn(&Kind) -> bool| machine.vertices().filter(move |v| is(&machine.component(*v).kind));
        rest(|kind| *kind == Kind::NvSwitch).for_each(|switch| picture.place_below(switch, picture.floor));
        picture.floor = picture.lowest(picture.floor);
        picture.bottom = picture.floor + BOX.1 / 2.0;
        let networks = rest(|kind| *kind == Kind::NetworkSwitch);
        networks.for_each(|switch| picture.place_below(switch, picture.floor + ROW / 2.0));
        picture.bottom = picture.lowest(picture.bottom);
        picture
    }

    /// The end of the lowest box, or `least`.
    fn lowest(&self, least: f64) -> f64 {
        self.at.values().map(|at| at.1 + BOX.1).fold(least, f64::max)
    }

    /// Places a vertex and what hangs below it by PCIe; returns where its middle is.
    fn place(&mut self, vertex: Vertex, top: f64) -> f64 {
        self.at.insert(vertex, (0.0, top));
        let children: Vec<_> = children(self.machine, vertex).collect();
        let mut middles = Vec::new();
        for child in children {
            if !self.at.contains_key(&child) {
                let is_device = matches!(self.machine.component(child).kind, Kind::Gpu(_) | Kind::Nic(_));
                middles.push(self.place(child, if is_device { self.devices } else { top + ROW }));
            }
        }
        let middle = match (middles.first(), middles.last()) {
            (Some(first), Some(last)) => f64::midpoint(*first, *last),
            _ => {
                self.right += COLUMN;
                self.right - COLUMN / 2.0
            }
        };
        self.at.insert(vertex, (middle, top));
        middle
    }

    /// Places a switch below what it joins, as wide as that.
    fn place_below(&mut self, vertex: Vertex, top: f64) {
        let ends = self.machine.links_from(vertex).map(|link| self.machine.wire(link).to);
        let places: Vec<f64> = ends.filter_map(|end| Some(self.at.get(&end)?.0)).collect();
        let (left, right) = places.iter().fold((f64::MAX, f64::MIN), |(l, r), x| (l.min(*x), r.max(*x)));
        let (left, right) = if places.is_empty() { (COLUMN, COLUMN) } else { (left, right) };
        let (middle, width) = (f64::midpoint(left, right), right - left + BOX.0);
        let mut y = top + ROW / 2.0;
        // Those that would cover each other go one below the other.
        let covers = |y: f64| {
            self.widths.iter().any(|(other, own)| {
                let at = self.at[other];
                (at.1 - y).abs() < BOX.1 && (at.0 - middle).abs() < f64::midpoint(width, *own) + PADDING
            })
        };
        while covers(y) {
            y += ROW;
        }
        self.at.insert(vertex, (middle, y));
        self.widths.insert(vertex, width);
    }

    /// How far the NVLinks between GPUs hang down.
    fn deepest_arc(&self) -> f64 {
        let arcs = self.wires().filter(|wire| wire.medium == Medium::NvLink);
        let ends = arcs.filter_map(|wire| Some((self.at.get(&wire.from)?, self.at.get(&wire.to)?)));
        ends.map(|(from, to)| arc(*from, *to)).fold(0.0, f64::max)
    }

    /// The links, each pair of directions once.
    fn wires(&self) -> impl Iterator<Item = &'a Wire> + use<'a> {
        let machine = self.machine;
        let wires = machine.links().map(move |link: Link| machine.wire(link));
        wires.filter(move |wire| wire.from < wire.to || machine.link_between(wire.to, wire.from).is_none())
    }

    fn frames(&self, mut page: Document) -> Document {
        for (node, (left, right)) in self.machine.nodes().zip(&self.frames) {
            let (top, height) = (TOP - ROW * 0.7, self.floor - TOP + ROW * 0.7);
            page = page.add(rectangle((*left, top), (right - left, height), "#f6f6f6", "#999999"));
            let name = &self.machine.host(node).name;
            let name = if name.is_empty() { format!("node {node}") } else { name.clone() };
            page = page.add(write((left + 10.0, top + 18.0), &name, 13, "start"));
        }
        page
    }

    fn legend(&self, mut page: Document) -> Document {
        let mut x = MARGIN;
        for medium in Medium::ALL.into_iter().filter(|medium| self.wires().any(|wire| wire.medium == *medium))
        {
            page = page.add(line(&format!("M{x},18 h24"), medium, 100.0));
            page = page.add(write((x + 30.0, 22.0), medium.name(), 12, "start"));
            x += 100.0;
        }
        page.add(write((x, 22.0), "numbers: GB/s each way", 12, "start"))
    }

    fn links(&self, mut page: Document) -> Document {
        let mut labels = Vec::new();
        for wire in self.wires() {
            let (Some(from), Some(to)) = (self.at.get(&wire.from), self.at.get(&wire.to)) else { continue };
            // A link to a wide switch goes straight down.
            let (mut from, mut to) = (*from, *to);
            match (self.widths.contains_key(&wire.from), self.widths.contains_key(&wire.to)) {
                (true, false) => from.0 = to.0,
                (false, true) => to.0 = from.0,
                _ => {}
            }
            let lies_between =
                |at: &Point| at.1 == from.1 && (at.0 > from.0) != (at.0 > to.0) && at.0 != to.0;
            let are_neighbours = !self.at.values().any(|at| at.0 != from.0 && lies_between(at));
            let (way, middle) = way(wire.medium, from, to, are_neighbours);
            page = page.add(line(&way, wire.medium, wire.gb_per_s));
            labels.push((middle, number(wire.gb_per_s)));
        }
        for ((x, y), text) in labels {
            let width = 7.0 * text.len() as f64 + 4.0;
            page = page.add(rectangle((x - width / 2.0, y - 8.0), (width, 14.0), "#ffffff", "none"));
            page = page.add(write((x, y + 3.0), &text, 11, "middle"));
        }
        page
    }

    fn boxes(&self, mut page: Document) -> Document {
        for (vertex, (x, y)) in &self.at {
            let component = self.machine.component(*vertex);
            let fill = match component.kind {
                Kind::Cpu(_) => "#dddddd",
                Kind::Gpu(_) => "#bfe6d8",
                Kind::Nic(_) => "#f6d2bd",
                Kind::PcieSwitch | Kind::Adapter => "#cfe3f2",
                _ => "#eeeeee",
            };
            let width = self.widths.get(vertex).copied().unwrap_or(BOX.0);
            let corner = (x - width / 2.0, y - BOX.1 / 2.0);
            page = page.add(rectangle(corner, (width, BOX.1), fill, "#444444"));
            let ranks = text::ranges(&self.machine.ranks_at(*vertex).collect::<Vec<_>>());
            let below = match &component.kind {
                Kind::Nic(_) => component.name.clone(),
                _ if ranks.is_empty() => String::new(),
                _ => format!("rank {ranks}"),
            };
            let label = self.machine.label(*vertex);
            let title = label.rsplit('/').next().unwrap_or(&label);
            let rise = if below.is_empty() { 0.0 } else { 7.0 };
            page = page.add(write((*x, y + 4.0 - rise), title, 12, "middle"));
            page = page.add(write((*x, y + 4.0 + rise), &below, 10, "middle"));
        }
        page
    }
}

/// The line of a link, and where its label goes.
fn way(medium: Medium, from: Point, to: Point, are_neighbours: bool) -> (String, Point) {
    let is_level = (from.1 - to.1).abs() < 1.0;
    if is_level && medium == Medium::NvLink {
        let (x, deep) = (f64::midpoint(from.0, to.0), from.1 + BOX.1 / 2.0 + arc(from, to));
        return (format!("M{},{} Q{x},{} {},{}", from.0, from.1, 2.0 * deep - from.1, to.0, to.1), (x, deep));
    }
    if is_level && !are_neighbours {
        // Over the heads of those between.
        let (x, rise) = (f64::midpoint(from.0, to.0), (from.0 - to.0).abs() * 0.1);
        let high = from.1 - BOX.1 / 2.0 - rise.min(ROW * 0.4);
        return (format!("M{},{} Q{x},{} {},{}", from.0, from.1, 2.0 * high - from.1, to.0, to.1), (x, high));
    }
    // What runs beside another link is moved a little.
    let aside = if medium == Medium::C2c { 24.0 } else { 0.0 };
    let (from, to) = ((from.0 + aside, from.1), (to.0 + aside, to.1));
    // Labels stand near the device, where links are apart.
    let share = if is_level { 0.5 } else { 0.42 };
    let (upper, lower) = if from.1 <= to.1 { (from, to) } else { (to, from) };
    let at = |a: f64, b: f64| b + (a - b) * share;
    (format!("M{},{} L{},{}", from.0, from.1, to.0, to.1), (at(upper.0, lower.0), at(upper.1, lower.1)))
}

/// How far a link between two devices side by side hangs down.
fn arc(from: Point, to: Point) -> f64 {
    8.0 + (from.0 - to.0).abs() * 0.16
}

/// The levels below a vertex.
fn depth(machine: &Topology, vertex: Vertex) -> u32 {
    let below = children(machine, vertex).filter(|child| *child > vertex).map(|child| depth(machine, child));
    below.max().map_or(0, |deepest| deepest + 1)
}

fn children(machine: &Topology, vertex: Vertex) -> impl Iterator<Item = Vertex> + use<'_> {
    let wires = machine.links_from(vertex).map(|link| machine.wire(link));
    let down = wires.filter(|wire| wire.medium == Medium::Pcie).map(|wire| wire.to);
    down.filter(|child| !matches!(machine.component(*child).kind, Kind::Cpu(_)))
}

fn rectangle(at: Point, size: Point, fill: &str, stroke: &str) -> Rectangle {
    let corners = if stroke == "none" { 0 } else { 4 };
    let shape = Rectangle::new().set("x", at.0).set("y", at.1).set("width", size.0).set("height", size.1);
    shape.set("fill", fill).set("stroke", stroke).set("rx", corners)
}

fn line(way: &str, medium: Medium, gb_per_s: f64) -> Path {
    let color = match medium {
        Medium::Pcie => "#0072b2",
        Medium::NvLink => "#009e73",
        Medium::C2c => "#cc79a7",
        Medium::Network => "#d55e00",
        _ => "#555555",
    };
    let width = (gb_per_s.max(1.0).log2() / 2.0).clamp(1.0, 5.0);
    Path::new().set("d", way).set("stroke", color).set("stroke-width", width).set("fill", "none")
}

fn write(at: Point, text: &str, size: u32, anchor: &str) -> Text {
    Text::new(text).set("x", at.0).set("y", at.1).set("font-size", size).set("text-anchor", anchor)
}

const MOST_NODES: usize = 8;
const BOX: Point = (72.0, 34.0);
const COLUMN: f64 = 84.0;
const ROW: f64 = 84.0;
const MARGIN: f64 = 16.0;
const PADDING: f64 = 14.0;
/// The middle of the first row.
const TOP: f64 = 110.0;
