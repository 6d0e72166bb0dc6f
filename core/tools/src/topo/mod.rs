//! `ccl topo`: the machine as a matrix, as NCCL's XML, as a picture, and the rings and trees that fit it.

mod draw;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl::discover::topology::{Processor, load, load_file, processors};
use ccl::plan::topology::search::{ChannelOrder, Limits, Pattern, search};
use ccl::plan::topology::{Kind, Router, Topology, Vertex, xml};
use ccl::{Config, Error, Result};
use serde_json::{Value, json};

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
    let machine = if args.nodes == 1 { machine } else { machine.repeated(args.nodes).ok_or_else(several)? };
    if let Some(path) = &args.svg {
        save(path, &draw::svg(&machine)?)?;
    }
    let is_here = args.file.is_none() && config.topo_file().is_none();
    text::print(&match (args.xml, args.json) {
        (true, _) => xml::write(&machine),
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

fn several() -> Error {
    Error::usage("expected one node to repeat, found several", "leave --nodes away")
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
    table.set_header([String::new()].into_iter().chain(rows.iter().map(|to| machine.label(*to))));
    for from in &rows {
        let mut cell = |to: &Vertex| match machine.way(&mut router, *from, *to) {
            _ if from == to => "X".to_owned(),
            Some((distance, path)) => format!("{distance} {}", number(path.gb_per_s)),
            None => "DIS".to_owned(),
        };
        table.add_row([machine.label(*from)].into_iter().chain(rows.iter().map(&mut cell)));
    }
    let mut parts = text::table(["", "what", "where", "ranks"]);
    for vertex in &rows {
        parts.add_row(describe(machine, *vertex));
    }
    format!("{}\n\n{}\n", table.trim_fmt(), parts.trim_fmt())
}

/// The row that says more of it: label, what, where, ranks.
fn describe(machine: &Topology, vertex: Vertex) -> [String; 4] {
    let component = machine.component(vertex);
    let facts = match &component.kind {
        Kind::Cpu(cpu) => format!("NUMA domain, {} {}", cpu.vendor.name(), cpu.arch.name()),
        Kind::Gpu(gpu) if gpu.sm > 0 => format!("sm {}", gpu.sm),
        Kind::Nic(nic) if nic.speed_mbit_per_s > 0 => format!("{} Gb/s", nic.speed_mbit_per_s / 1000),
        _ => String::new(),
    };
    let what = [component.name.clone(), facts].into_iter().filter(|part| !part.trim().is_empty());
    let place = component
        .pci
        .map_or(String::new(), |pci| format!("{}, {} GB/s upwards", pci.bus, number(pci.gb_per_s())));
    [
        machine.label(vertex),
        what.collect::<Vec<_>>().join(", "),
        place,
        text::ranges(&machine.ranks_at(vertex).collect::<Vec<_>>()),
    ]
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
            order.stretches.iter().filter_map(|stretch| Some(machine.label(stretch.nic?))).collect();
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
            let ends = (machine.label(from), machine.label(to));
            let (gb_per_s, latency_ns) = (path.gb_per_s, path.latency_ns);
            matrix.push(json!({
                "from": ends.0, "to": ends.1, "distance": distance.name(), "gb_per_s": gb_per_s, "latency_ns": latency_ns,
            }));
        }
    }
    let component = |vertex: Vertex| {
        let component = machine.component(vertex);
        json!({
            "label": machine.label(vertex), "kind": component.kind.name(), "name": component.name,
            "node": component.node.map(|node| node.0), "bus": component.pci.map(|pci| pci.bus.to_string()),
        })
    };
    let wires = machine.links().map(|link| machine.wire(link));
    let link = |wire: &ccl::plan::topology::Wire| {
        json!({
            "from": wire.from.0, "to": wire.to.0, "medium": wire.medium.name(),
            "gb_per_s": wire.gb_per_s, "latency_ns": wire.latency_ns,
        })
    };
    let mut value = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "digest": format!("{:016x}", machine.digest()),
        "nodes": machine.nodes().len(),
        "ranks": machine.seats().iter().map(|seat| machine.label(*seat)).collect::<Vec<_>>(),
        "components": machine.vertices().map(component).collect::<Vec<_>>(),
        "links": wires.map(link).collect::<Vec<_>>(),
        "matrix": matrix,
    });
    for pattern in PATTERNS.iter().filter(|_| with_orders) {
        let channel = |found: &ChannelOrder| {
            let order: Vec<_> = found.order.iter().map(|rank| rank.0).collect();
            let nics: Vec<_> =
                found.stretches.iter().map(|stretch| stretch.nic.map(|nic| machine.label(nic))).collect();
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
