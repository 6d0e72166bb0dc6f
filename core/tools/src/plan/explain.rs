//! `ccl plan explain`: which algorithm would be chosen, and why the others lost.

use std::process::ExitCode;

use ccl::exec::{Reach, selection};
use ccl::plan::select::{Candidate, Selection};
use ccl::{Algorithm, Collective, Config, Error, Result};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::parse_collective;
use crate::size::{format_bytes, parse_bytes};
use crate::text;

/// Say which algorithm the library would choose, at what predicted time, and why the others lost.
///
/// Heeds the settings (CCL_ALGO, CCL_TUNING_FILE, CCL_DETERMINISM, CCL_MAX_NCHANNELS). A size is that of the vector, or
/// of all blocks together.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The collective
    #[arg(value_parser = parse_collective)]
    collective: Collective,
    /// Sizes, as in 8,64K,1M [default: where the choice changes]
    #[arg(short, long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_bytes)]
    bytes: Vec<u64>,
    /// Number of ranks [default: those of all nodes, or 4]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    nranks: Option<u32>,
    /// Ranks of each node, as in 4,4,2 or 16x8 for 16 nodes of 8; nodes reach each other over a network
    #[arg(long, value_name = "RANKS", value_delimiter = ',', value_parser = parse_nodes)]
    nodes: Vec<Stretch>,
    /// How the farthest rank is reached [default: memory where each of up to 4 ranks has a core, and for up to 4 on an AMD
    /// processor; memory-direct where not; network if there are several nodes]
    #[arg(long)]
    path: Option<Way>,
    /// Cores that the ranks share, but over a network and on devices [default: this machine's]
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// So many nodes of so many ranks each.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    nodes: u32,
    ranks: u32,
}

/// How ranks reach each other.
#[derive(Clone, Copy, PartialEq, Debug, clap::ValueEnum)]
enum Way {
    /// All share memory, and may not read each other's, or only where a trial says so
    Memory,
    /// All share memory, and read each other's where that is faster
    MemoryDirect,
    /// Over a network inside this machine, whose cores the ranks share
    Loopback,
    /// Some are reached over a network
    Network,
    /// Each has a device, and all devices reach each other
    Devices,
    /// The same, each has its own, and a switch between them copies what all ranks are sent
    Multicast,
}

/// Explains.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let nodes = nodes(args)?;
    let n = if nodes.is_empty() { args.nranks.unwrap_or(4) } else { nodes.iter().sum() };
    let config = Config::load()?;
    let cores = args.cores;
    let cores = cores.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32));
    let path = path((args.path, Reach::of_host(&config, n, cores)), nodes.len())?;
    let cores = if matches!(path, Way::Network | Way::Devices | Way::Multicast) { 0 } else { cores };
    let reach = match path {
        Way::Memory => Reach::Memory,
        Way::MemoryDirect => Reach::MemoryDirect,
        Way::Loopback => Reach::Loopback,
        Way::Network => Reach::Network,
        Way::Devices => Reach::Devices,
        Way::Multicast => Reach::Multicast,
    };
    let selection = selection(&config, n, reach, cores, &nodes)?;
    text::print(&match (args.json, args.bytes.is_empty()) {
        (true, _) => format!("{}\n", json_of(args, &selection)),
        (false, true) => ranges(args.collective, &selection),
        (false, false) => reasons(args, &selection),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The ranks of each node, if any were asked for.
fn nodes(args: &Args) -> Result<Vec<u32>> {
    let n: u64 = args.nodes.iter().map(|stretch| u64::from(stretch.nodes) * u64::from(stretch.ranks)).sum();
    match args.nranks {
        Some(asked) if n > 0 && u64::from(asked) != n => Err(Error::usage(
            format!("expected nodes of {asked} ranks together, found {n}"),
            "leave out -n, which follows from --nodes",
        )),
        _ if n > 1 << 20 => Err(Error::usage(
            format!("expected nodes of at most {} ranks, found {n}", 1 << 20),
            "ask for fewer or smaller nodes",
        )),
        _ => Ok(args.nodes.iter().flat_map(|stretch| (0..stretch.nodes).map(|_| stretch.ranks)).collect()),
    }
}

/// How the farthest rank is reached, with so many nodes, and in one as given.
fn path((asked, in_one): (Option<Way>, Reach), nodes: usize) -> Result<Way> {
    match asked {
        None if nodes > 1 => Ok(Way::Network),
        Some(path) if nodes > 1 && path != Way::Network => {
            let shown = path.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
            Err(Error::usage(
                format!("expected --path network between {nodes} nodes, found {shown}"),
                "leave out --path, or --nodes",
            ))
        }
        None if in_one == Reach::Memory => Ok(Way::Memory),
        path => Ok(path.unwrap_or(Way::MemoryDirect)),
    }
}

/// 8, or 16x8.
fn parse_nodes(text: &str) -> Result<Stretch, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|number| (1..=1 << 20).contains(number));
    let (nodes, ranks) = text.split_once('x').unwrap_or(("1", text));
    let stretch = number(nodes).zip(number(ranks)).map(|(nodes, ranks)| Stretch { nodes, ranks });
    stretch.ok_or_else(|| format!("expected ranks of a node, as in 8, or 16x8 for 16 nodes, found `{text}`"))
}

/// The choice for every size.
fn ranges(collective: Collective, selection: &Selection) -> String {
    let mut table = text::table(["up to", "algorithm", "channels"]);
    let mut least = 0;
    for (bound, choice) in selection.table(collective) {
        let shown = if *bound == u64::MAX { "any size".to_owned() } else { format_bytes(*bound) };
        let copied = |bytes| selection.inputs().multicast_serves(collective, choice.algorithm, bytes);
        let mut algorithm = named(choice.algorithm, copied(*bound));
        if let Some(from) = selection.inputs().rates.multicast.from(collective)
            && copied(*bound)
            && !copied(least)
        {
            algorithm += &format!(" from {} on", format_bytes(from));
        }
        table.add_row([shown, algorithm, choice.channels.to_string()]);
        least = bound.saturating_add(1);
    }
    table.trim_fmt() + "\n"
}

/// Every algorithm for the sizes that were asked for.
fn reasons(args: &Args, selection: &Selection) -> String {
    let mut table = text::table(["size", "algorithm", "channels", "predicted (µs)", "verdict"]);
    for bytes in &args.bytes {
        for (index, candidate) in selection.explain(args.collective, *bytes).into_iter().enumerate() {
            let size = if index == 0 { format_bytes(*bytes) } else { String::new() };
            let Candidate { algorithm, channels, time_ns, multicast, standing } = candidate;
            let time_us = format!("{:.2}", time_ns / 1e3);
            table.add_row([
                size,
                named(algorithm, multicast),
                channels.to_string(),
                time_us,
                standing.reason().to_owned(),
            ]);
        }
    }
    table.trim_fmt() + "\n"
}

/// An algorithm, with what becomes of what its ranks send to all others.
fn named(algorithm: Algorithm, copied: bool) -> String {
    if copied { format!("{algorithm} by switch") } else { algorithm.to_string() }
}

fn json_of(args: &Args, selection: &Selection) -> Value {
    let candidate = |candidate: Candidate| {
        json!({
            "algorithm": candidate.algorithm.name(),
            "channels": candidate.channels,
            "predicted_ns": candidate.time_ns,
            "multicast": candidate.multicast,
            "verdict": candidate.standing.reason(),
        })
    };
    let size = |bytes: &u64| {
        let candidates: Vec<_> =
            selection.explain(args.collective, *bytes).into_iter().map(candidate).collect();
        json!({ "bytes": bytes, "candidates": candidates })
    };
    let range = |(bound, choice): &(u64, ccl::plan::select::Choice)| {
        let bound = (*bound != u64::MAX).then_some(*bound);
        json!({ "up_to_bytes": bound, "algorithm": choice.algorithm.name(), "channels": choice.channels })
    };
    json!({
        "collective": args.collective.name(),
        "ranks": selection.inputs().n,
        "nodes": selection.inputs().known_nodes().map(|nodes| nodes.sizes()),
        "ranges": selection.table(args.collective).iter().map(range).collect::<Vec<_>>(),
        "sizes": args.bytes.iter().map(size).collect::<Vec<_>>(),
    })
}
