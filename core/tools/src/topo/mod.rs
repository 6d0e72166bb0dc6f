//! `ccl topo`: the machine as a matrix, as NCCL's XML, as a picture, and the rings and trees that fit it.

mod draw;
mod labels;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl::discover::topology::{Processor, load, load_file, processors, write};
use ccl::plan::topology::search::{ChannelOrder, Limits, Pattern, search};
use ccl::plan::topology::{Component, Kind, Router, Topology, TopologyBuilder, Vertex};
use ccl::{Config, Error, Result};
use serde_json::{Value, json};

use self::labels::{describe, label};
use crate::size::format_bytes;
use crate::text;

/// Show this machine, or one from a file: what lies between its devices, and how ranks would be ordered.
///
/// A cell of the matrix is the distance, in NCCL's words, and the bandwidth in GB/s. Without --file, the
/// machine is the one in CCL_TOPO_FILE, else it is detected.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A machine in NCCL's XML format, as NCCL_TOPO_DUMP_FILE writes it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A job of that many such nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    nodes: u32,
    /// Print the machine in NCCL's XML format
    #[arg(long, conflicts_with_all = ["json", "rings"])]
    xml: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also show the rings and trees that get the most bandwidth, channel by channel
    #[arg(long)]
    rings: bool,
    /// Draw the machine into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  ccl topo                                  what is here
  ccl topo --xml > machine.xml              for CCL_TOPO_FILE, or to edit
  ccl topo --file machine.xml --rings       how ranks would be ordered on another machine
  ccl topo --file machine.xml --nodes 4 --rings
  ccl topo --file machine.xml --svg machine.svg";

/// Prints, and draws.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let config = Config::load()?;
    let machine = args.file.as_deref().map_or_else(|| load(&config), load_file)?;
    let machine = if args.nodes > 1 { repeat(&machine, args.nodes)? } else { machine };
    if let Some(path) = &args.svg {
        save(path, &draw::svg(&machine)?)?;
    }
    let is_here = args.file.is_none() && config.topo_file().is_none();
    text::print(&match (args.xml, args.json) {
        (true, _) => write(&machine),
        (_, true) => format!("{}\n", json(&machine, args.rings)),
        _ => {
            let mut shown = if is_here { sentence(&processors(Path::new("/sys"))) } else { String::new() };
            shown += &matrix(&machine);
            for pattern in PATTERNS.iter().filter(|_| args.rings) {
                shown += &orders(&machine, *pattern);
            }
            shown
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| {
        Error::system(&format!("write {}", path.display()), error, "choose another path for --svg")
    })
}

/// A machine of `times` nodes, each like the one that is all of `machine`.
fn repeat(machine: &Topology, times: u32) -> Result<Topology> {
    if machine.nodes().len() != 1 {
        let cause = format!("expected one node to repeat, found {}", machine.nodes().len());
        return Err(Error::usage(cause, "leave --nodes away: the file has several nodes already"));
    }
    let mut builder = TopologyBuilder::default();
    let count = machine.vertices().len() as u32;
    for turn in 0..times {
        let node = builder.node("");
        let moved = |vertex: Vertex| Vertex(vertex.0 + turn * count);
        for vertex in machine.vertices() {
            builder.vertex(Component { node: Some(node), ..machine.component(vertex).clone() });
        }
        for wire in machine.links().map(|link| machine.wire(link)) {
            builder.link(moved(wire.from), moved(wire.to), wire.medium, wire.gb_per_s, wire.latency_ns);
        }
        machine.seats().iter().for_each(|seat| _ = builder.rank(moved(*seat)));
    }
    builder.build().map_err(|error| Error::bug(error.to_string()))
}

/// What the matrix has rows for: GPUs and NICs, and CPUs where there are no GPUs.
fn rows(machine: &Topology) -> Vec<Vertex> {
    let of = |is: fn(&Kind) -> bool| machine.vertices().filter(move |v| is(&machine.component(*v).kind));
    let gpus: Vec<_> = of(|kind| matches!(kind, Kind::Gpu(_))).collect();
    let devices = if gpus.is_empty() { of(|kind| matches!(kind, Kind::Cpu(_))).collect() } else { gpus };
    devices.into_iter().chain(of(|kind| matches!(kind, Kind::Nic(_)))).take(MOST_ROWS).collect()
}

fn matrix(machine: &Topology) -> String {
    let (rows, mut router) = (rows(machine), Router::new(machine));
    let mut table = text::table([""]);
    table.set_header([String::new()].into_iter().chain(rows.iter().map(|to| label(machine, *to))));
    for from in &rows {
        let mut cell = |to: &Vertex| match machine.way(&mut router, *from, *to) {
            _ if from == to => "X".to_owned(),
            Some((distance, path)) => format!("{distance} {}", number(path.gb_per_s)),
            None => "DIS".to_owned(),
        };
        table.add_row([label(machine, *from)].into_iter().chain(rows.iter().map(&mut cell)));
    }
    let mut parts = text::table(["", "what", "where", "ranks"]);
    for vertex in &rows {
        parts.add_row(describe(machine, *vertex));
    }
    format!("{}\n\n{}\n", table.trim_fmt(), parts.trim_fmt())
}

/// What the processors are, in a line.
fn sentence(processors: &[Processor]) -> String {
    let distinct = |key: fn(&Processor) -> (u32, u32)| {
        let mut keys: Vec<_> = processors.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    };
    let caches = processors.first().map(|first| &first.caches[..]).unwrap_or_default();
    let caches: Vec<_> =
        caches.iter().map(|cache| format!("L{} {}", cache.level, format_bytes(cache.bytes as u64))).collect();
    format!(
        "CPUs: {}, cores: {}, sockets: {}, NUMA domains: {}; {}\n\n",
        processors.len(),
        distinct(|one| (one.package, one.core)),
        distinct(|one| (one.package, 0)),
        distinct(|one| (one.numa, 0)),
        caches.join(", ")
    )
}

fn orders(machine: &Topology, pattern: Pattern) -> String {
    let found = search(machine, pattern, &Limits::default());
    let mut table = text::table(["channel", "GB/s", "rail", "ranks in order"]);
    for (channel, order) in found.iter().enumerate() {
        let rails: Vec<_> =
            order.stretches.iter().filter_map(|stretch| Some(label(machine, stretch.nic?))).collect();
        let rail =
            rails.first().map_or(String::new(), |rail| rail.rsplit('/').next().unwrap_or(rail).to_owned());
        table.add_row([channel.to_string(), number(order.gb_per_s), rail, ranks(order)]);
    }
    let total: f64 = found.iter().map(|order| order.gb_per_s).sum();
    format!(
        "\n{}: {} GB/s over {} channels\n{}\n",
        name(pattern),
        number(total),
        found.len(),
        table.trim_fmt()
    )
}

fn ranks(order: &ChannelOrder) -> String {
    let numbers: Vec<_> = order.order.iter().map(ToString::to_string).collect();
    match numbers.len() {
        ..=SHOWN_RANKS => numbers.join(" "),
        n => format!("{} ... ({n} in all)", numbers[..SHOWN_RANKS].join(" ")),
    }
}

fn json(machine: &Topology, with_orders: bool) -> Value {
    let (rows, mut router) = (rows(machine), Router::new(machine));
    let mut matrix = Vec::new();
    for (from, to) in rows.iter().flat_map(|from| rows.iter().map(move |to| (*from, *to))) {
        if let Some((distance, path)) = machine.way(&mut router, from, to).filter(|_| from != to) {
            let ends = (label(machine, from), label(machine, to));
            let (gb_per_s, latency_ns) = (path.gb_per_s, path.latency_ns);
            matrix.push(json!({
                "from": ends.0, "to": ends.1, "distance": distance.name(), "gb_per_s": gb_per_s, "latency_ns": latency_ns,
            }));
        }
    }
    let component = |vertex: Vertex| {
        let component = machine.component(vertex);
        json!({
            "label": label(machine, vertex), "kind": component.kind.name(), "name": component.name,
            "node": component.node.map(|node| node.0), "bus": component.pci.map(|pci| pci.bus.to_string()),
        })
    };
    let wires = machine.links().map(|link| machine.wire(link));
    let link = |wire: &ccl::plan::topology::Wire| {
        json!({
            "from": label(machine, wire.from), "to": label(machine, wire.to), "medium": wire.medium.name(),
            "gb_per_s": wire.gb_per_s, "latency_ns": wire.latency_ns,
        })
    };
    let mut value = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "digest": format!("{:016x}", machine.digest()),
        "nodes": machine.nodes().len(),
        "ranks": machine.seats().iter().map(|seat| label(machine, *seat)).collect::<Vec<_>>(),
        "components": machine.vertices().map(component).collect::<Vec<_>>(),
        "links": wires.map(link).collect::<Vec<_>>(),
        "matrix": matrix,
    });
    for pattern in PATTERNS.iter().filter(|_| with_orders) {
        let channel = |found: &ChannelOrder| {
            let order: Vec<_> = found.order.iter().map(|rank| rank.0).collect();
            let nics: Vec<_> =
                found.stretches.iter().map(|stretch| stretch.nic.map(|nic| label(machine, nic))).collect();
            json!({ "gb_per_s": found.gb_per_s, "order": order, "nics": nics })
        };
        let found = search(machine, *pattern, &Limits::default());
        value[name(*pattern)] = found.iter().map(channel).collect();
    }
    value
}

const fn name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Tree => "trees",
        _ => "rings",
    }
}

/// A number with one decimal at most.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

const PATTERNS: [Pattern; 2] = [Pattern::Ring, Pattern::Tree];
const MOST_ROWS: usize = 64;
const SHOWN_RANKS: usize = 64;
