//! `ccl trace`: what ranks did with their time, from the traces of the example profiler, and where they stood when a job
//! failed, from the files of the flight recorder.

mod calls;
mod clock;
mod flight;
mod ranks;
mod read;
mod report;
mod spans;
mod timeline;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl::{Error, Result};

use crate::text;

use self::flight::Flight;
use self::read::Trace;
use self::report::Report;

/// Summarise traces of one or several ranks, or say from flight recorders' files where each rank stands.
///
/// Traces are those that the profiler plugin profiler-example writes, one for each rank and communicator. Traces of
/// PyTorch's profiler of the same ranks may be among them: their kernels count as computation. Flight recorders' files
/// are those of CCL_FLIGHT_FILE, or of PyTorch. The manual's chapter on traces explains every column.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Traces, flight recorders' files, or both
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// List so many of the calls that took longest
    #[arg(long, value_name = "N", default_value = "5")]
    top: usize,
    /// Draw a timeline, a row for each rank
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Draw from one time to another only, in milliseconds since the first event, as in 120-140.5
    #[arg(long, value_name = "FROM-TO", requires = "svg", value_parser = window)]
    window: Option<Range<f64>>,
}

/// Reads all files and prints what they say.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let (mut traces, mut flights) = (Vec::new(), Vec::new());
    for path in &args.files {
        match read(path)? {
            Found::Trace(trace) => traces.push(trace),
            Found::Flight(flight) => flights.push(flight),
        }
    }
    let has_communication = traces.iter().any(|trace| trace.communicator.is_some());
    if !traces.is_empty() && !has_communication {
        let cause = format!(
            "{}: expected a trace of profiler-example among the files, found others'",
            traces[0].file
        );
        return Err(Error::usage(cause, "record one with CCL_PROFILER_PLUGIN and PROFILE_DUMP_FILE"));
    }
    let moved = clock::align(&mut traces);
    if let Some(path) = &args.svg {
        draw(path, &traces, args.window.clone())?;
    }
    let report = Report::new(&traces, &flights, moved, args.top);
    text::print(&if args.json { report.json() } else { report.text() })?;
    Ok(ExitCode::SUCCESS)
}

fn draw(path: &Path, traces: &[Trace], window_ms: Option<Range<f64>>) -> Result<()> {
    if traces.is_empty() {
        return Err(Error::usage(
            "expected a trace to draw, found flight recorders' files",
            "leave --svg away",
        ));
    }
    let picture = timeline::svg(traces, &calls::calls(traces), window_ms)?;
    std::fs::write(path, picture).map_err(|error| {
        let doing = format!("write the timeline to {}", path.display());
        Error::system(&doing, error, "give --svg a file in a folder that exists")
    })
}

fn window(text: &str) -> std::result::Result<Range<f64>, String> {
    let ends = text.split_once('-').and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    let ends = ends.filter(|ends: &Range<f64>| ends.start < ends.end && ends.end.is_finite());
    ends.ok_or_else(|| format!("expected two times as in 120-140.5, found `{text}`"))
}

enum Found {
    Trace(Trace),
    Flight(Flight),
}

fn read(path: &Path) -> Result<Found> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| {
        Error::system(
            &format!("read {name}"),
            error,
            "name files that PROFILE_DUMP_FILE or CCL_FLIGHT_FILE made",
        )
    })?;
    // The first byte of a pickle, which is none of a text's.
    if bytes.first() == Some(&0x80) {
        return Flight::parse(&name, &bytes).map(Found::Flight);
    }
    Trace::parse(&name, &String::from_utf8_lossy(&bytes)).map(Found::Trace)
}

const EXAMPLES: &str = "\
Examples:
  export CCL_PROFILER_PLUGIN=libccl_profiler_example.so PROFILE_DUMP_FILE=/tmp/trace
  ccl run -n 4 -- ./your-program
  ccl trace /tmp/trace-*.json                   what took how long, and who was waited for
  ccl trace /tmp/trace-*.json --top 20 --json
  ccl trace /tmp/trace-*.json --svg all.svg     a timeline; --window 120-140 draws these milliseconds
  ccl trace /tmp/flight-*                       where each rank stood: CCL_FLIGHT_FILE=/tmp/flight-";
