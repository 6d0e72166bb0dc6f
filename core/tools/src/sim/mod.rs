//! `ccl sim`: the time of collectives on machines that one does not have.

mod measured;
mod plot;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use ccl::{Error, Result};
use ccl_sim::{Machine, Point, Scenario};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::size::format_bytes;
use crate::text;

/// Say how long collectives would take on another machine, from the programs that would run there.
///
/// A scenario is a TOML file: a machine, ranks, sizes, algorithms, what is broken. The manual's chapter on
/// the simulator has all keys.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_name = "FILE.toml", required_unless_present_any = ["machines", "measured"])]
    scenario: Option<PathBuf>,
    /// In place of a scenario: how far from measurements of this machine is what the simulator says? Files that
    /// `ccl tune --json` wrote; of several the middle time of each cell counts
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["scenario", "plot", "machines"])]
    measured: Vec<PathBuf>,
    /// With --measured: status 1 if the median error is more than this
    #[arg(long, value_name = "PERCENT", requires = "measured", conflicts_with = "scenario")]
    check: Option<f64>,
    /// Print one JSON object per point
    #[arg(long)]
    json: bool,
    /// Draw the times, over ranks or over sizes, whichever there are more of
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// List the machines that a scenario may name, and do nothing else
    #[arg(long)]
    machines: bool,
}

/// Simulates.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if !args.measured.is_empty() {
        return measured::main(&args.measured, args.json, args.check);
    }
    let Some(path) = args.scenario.as_deref().filter(|_| !args.machines) else {
        return text::print(&machines()).map(|()| ExitCode::SUCCESS);
    };
    let scenario = read(path)?;
    let answers = answers(&scenario)?;
    let measured = || scenario.measured().iter().map(|point| (point.clone(), None));
    let all: Vec<Answer> = answers.into_iter().map(|(point, s)| (point, Some(s))).chain(measured()).collect();
    let lines: Vec<String> = all.iter().map(|answer| format!("{}\n", json_of(answer))).collect();
    text::print(&if args.json { lines.concat() } else { table(scenario.title(), &all) })?;
    if let Some(path) = &args.plot {
        let simulated = scenario.questions().len();
        let points: Vec<Point> = all.into_iter().map(|(point, _)| point).collect();
        std::fs::write(path, plot::svg(scenario.title(), &points, simulated)?).map_err(|error| {
            let doing = format!("write the plot to {}", path.display());
            Error::system(&doing, error, "give --plot a file in a folder that exists")
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A point, and the seconds that it took to work out.
type Answer = (Point, Option<f64>);

fn read(path: &Path) -> Result<Scenario> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let doing = format!("read the scenario {}", path.display());
        Error::system(&doing, error, "name a file; docs/scenarios has some to start from")
    })?;
    Scenario::parse(&text).map_err(|error| refused(path, error))
}

/// Works out all points, with progress on a terminal.
fn answers(scenario: &Scenario) -> Result<Vec<(Point, f64)>> {
    let questions = scenario.questions();
    let progress = ProgressBar::with_draw_target(Some(questions.len() as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} points {eta}");
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    progress.tick();
    let answer = |question: &ccl_sim::scenario::Question| {
        let start = Instant::now();
        let point = question.answer().map_err(|error| refused(Path::new(scenario.title()), error))?;
        progress.inc(1);
        Ok((point, start.elapsed().as_secs_f64()))
    };
    let answers = questions.iter().map(answer).collect();
    progress.finish_and_clear();
    answers
}

fn refused(path: &Path, error: ccl_sim::Error) -> Error {
    match error {
        ccl_sim::Error::Usage { cause, advice } => {
            Error::usage(format!("{}: {cause}", path.display()), advice)
        }
        other => Error::usage(format!("{}: {other}", path.display()), "change the scenario"),
    }
}

fn table(title: &str, answers: &[Answer]) -> String {
    let mut table = text::table(["series", "ranks", "size", "time (µs)", "bus (GB/s)", "steps", "took (s)"]);
    for (point, seconds) in answers {
        let or_dash = |text: String, shown: bool| if shown { text } else { "-".to_owned() };
        table.add_row([
            point.series.clone(),
            point.ranks.to_string(),
            or_dash(format_bytes(point.bytes), point.bytes > 0),
            format!("{:.2}", point.time_us),
            or_dash(format!("{:.2}", point.bus_gb_per_s), point.bus_gb_per_s > 0.0),
            or_dash(point.steps.to_string(), point.steps > 0),
            or_dash(format!("{:.3}", seconds.unwrap_or(0.0)), seconds.is_some()),
        ]);
    }
    let title = if title.is_empty() { String::new() } else { format!("# {title}\n") };
    title + &table.trim_fmt() + "\n"
}

fn json_of((point, seconds): &Answer) -> Value {
    json!({
        "series": point.series,
        "measured": seconds.is_none(),
        "ranks": point.ranks,
        "bytes": point.bytes,
        "time_us": point.time_us,
        "busbw_gbps": point.bus_gb_per_s,
        "steps": point.steps,
        "took_s": seconds,
    })
}

fn machines() -> String {
    let mut table =
        text::table(["machine", "nodes", "devices", "NICs", "in a node", "between nodes", "launch (µs)"]);
    for (name, machine) in Machine::names().filter_map(|name| Some((name, Machine::named(name)?))) {
        let reach = |reach: ccl_sim::Reach| format!("{} µs, {} GB/s", reach.latency_us, reach.gb_per_s);
        table.add_row([
            name.to_owned(),
            machine.nodes.to_string(),
            machine.devices_per_node.to_string(),
            machine.nics_per_node.to_string(),
            reach(machine.local),
            reach(machine.network),
            machine.launch_us.to_string(),
        ]);
    }
    table.trim_fmt() + "\n"
}

const EXAMPLES: &str = "\
Examples:
  ccl sim docs/scenarios/summit.toml                        a ring and a tree up to 24,576 devices
  ccl sim docs/scenarios/alps.toml --plot alps.svg          measured and predicted
  ccl sim docs/scenarios/oversubscribed.toml --json         shared links
  ccl sim --machines
  ccl tune --json > here.jsonl; ccl sim --measured here.jsonl --check 15
                                                            this machine, measured and simulated

A scenario:
  collective = \"all_reduce\"
  algorithms = [\"ring\", \"double_tree\"]
  ranks = [96, 768, 6144]
  bytes = [8, \"1M\"]
  machine = \"summit\"";
