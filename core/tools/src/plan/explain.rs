//! `ccl plan explain`: which algorithm would be chosen, and why the others lost.

use std::process::ExitCode;

use ccl::exec::{Reach, selection};
use ccl::plan::select::{Candidate, Selection};
use ccl::{Collective, Config, Result};
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
    /// Number of ranks
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    nranks: u32,
    /// How the farthest rank is reached
    #[arg(long, default_value = "memory-direct")]
    path: Way,
    /// Cores that the ranks share, but over a network [default: this machine's]
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How ranks reach each other.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Way {
    /// All share memory, and may not read each other's
    Memory,
    /// All share memory, and read each other's where that is faster: the usual case on one host
    MemoryDirect,
    /// Over a network inside this machine, whose cores the ranks share
    Loopback,
    /// Some are reached over a network
    Network,
}

/// Explains.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let cores = match args.path {
        Way::Network => 0,
        _ => args.cores.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32)),
    };
    let reach = match args.path {
        Way::Memory => Reach::Memory,
        Way::MemoryDirect => Reach::MemoryDirect,
        Way::Loopback => Reach::Loopback,
        Way::Network => Reach::Network,
    };
    let selection = selection(&Config::load()?, args.nranks, reach, cores)?;
    text::print(&match (args.json, args.bytes.is_empty()) {
        (true, _) => format!("{}\n", json_of(args, &selection)),
        (false, true) => ranges(args.collective, &selection),
        (false, false) => reasons(args, &selection),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The choice for every size.
fn ranges(collective: Collective, selection: &Selection) -> String {
    let mut table = text::table(["up to", "algorithm", "channels"]);
    for (bound, choice) in selection.table(collective) {
        let bound = if *bound == u64::MAX { "any size".to_owned() } else { format_bytes(*bound) };
        table.add_row([bound, choice.algorithm.to_string(), choice.channels.to_string()]);
    }
    table.trim_fmt() + "\n"
}

/// Every algorithm for the sizes that were asked for.
fn reasons(args: &Args, selection: &Selection) -> String {
    let mut table = text::table(["size", "algorithm", "channels", "predicted (µs)", "verdict"]);
    for bytes in &args.bytes {
        for (index, candidate) in selection.explain(args.collective, *bytes).into_iter().enumerate() {
            let size = if index == 0 { format_bytes(*bytes) } else { String::new() };
            let Candidate { algorithm, channels, time_ns, standing } = candidate;
            let time_us = format!("{:.2}", time_ns / 1e3);
            table.add_row([
                size,
                algorithm.to_string(),
                channels.to_string(),
                time_us,
                standing.reason().to_owned(),
            ]);
        }
    }
    table.trim_fmt() + "\n"
}

fn json_of(args: &Args, selection: &Selection) -> Value {
    let candidate = |candidate: Candidate| {
        json!({
            "algorithm": candidate.algorithm.name(),
            "channels": candidate.channels,
            "predicted_ns": candidate.time_ns,
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
        "ranks": args.nranks,
        "ranges": selection.table(args.collective).iter().map(range).collect::<Vec<_>>(),
        "sizes": args.bytes.iter().map(size).collect::<Vec<_>>(),
    })
}
