//! `ccl tune`: measures every algorithm where it runs, and writes down which wins.
//!
//! [`session`] is one rank's part: it holds a communicator for each algorithm and times them in turn, so that what
//! disturbs one disturbs all. [`ladder`] makes rules of what came out.

mod ladder;
mod probe;
mod session;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ccl::config::Config;
use ccl::discover::launcher::{Job, Launcher};
use ccl::exec::{TunedLink, Tuning};
use ccl::{Collective, Communicator, Dtype, Error, Rank, Result};

use self::session::Cell;
use crate::ranks::{Exit, Output, Team, cpus};
use crate::size::{format_bytes, parse_bytes};
use crate::text;

/// Measure every algorithm of every collective on this machine, and write a tuning file by which the library
/// then chooses.
///
/// Starts ranks on this machine, or joins those of a launcher. Algorithms are timed in turn, in several rounds over all
/// collectives and sizes, and each is compared with the choice round by round; one that seems better must be so again.
/// Without --check the result goes to a file: by default the one in the user's cache, which every later job on this
/// machine heeds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ccl tune                          2, 4 and 8 ranks through memory: about two minutes
  CCL_SHM_DISABLE=1 ccl tune -n 4   4 ranks over sockets
  ccl tune --quick                  what links cost, and no more: a second
  ccl tune --check 15 -n 2 all_reduce
                                    does what would be chosen now lose more than 15 % anywhere?
  ccl tune --out fast.toml; CCL_TUNING_FILE=fast.toml ./program")]
pub(crate) struct Args {
    /// The collectives [default: all that have a choice]
    #[arg(value_parser = parse_collective)]
    collectives: Vec<Collective>,
    /// Numbers of ranks to start, one after the other
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "2,4,8",
          value_parser = clap::value_parser!(u32).range(2..=256))]
    nranks: Vec<u32>,
    /// Sizes in bytes
    #[arg(short, long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_bytes,
          default_value = "8,64,512,4K,16K,64K,256K,1M,4M,16M,64M")]
    bytes: Vec<u64>,
    /// Length of each timed loop, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0.003)]
    time: f64,
    /// Timed loops of each algorithm
    #[arg(short, long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where to write [default: the user's cache]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write nothing; status 1 if what would be chosen now is slower than the best by more than this
    #[arg(long, value_name = "PERCENT", conflicts_with = "out")]
    check: Option<f64>,
    /// Measure only what links cost, in 30 ms: the cost model then chooses by that
    #[arg(long, conflicts_with_all = ["check", "collectives"])]
    quick: bool,
    /// Print one JSON object for each algorithm and size
    #[arg(long)]
    json: bool,
    /// Start ranks even inside a launcher's job
    #[arg(long)]
    no_launcher: bool,
}

/// Tunes, or checks how well the choices are tuned.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if !(1e-6..=60.0).contains(&args.time) {
        return Err(Error::usage(
            format!("expected a time from 0.000001 to 60 seconds, found {}", args.time),
            "0.003 is enough for most machines",
        ));
    }
    let config = Config::load()?;
    if !args.no_launcher {
        let job = Job::discover(&config)?;
        if job.launcher != Launcher::Alone {
            return join(args, &job, &config);
        }
    }
    let out = target(args)?;
    let mut worst = ExitCode::SUCCESS;
    for n in &args.nranks {
        match start(args, *n, out.as_ref())? {
            status if status == ExitCode::SUCCESS => {}
            // The others are looked at all the same.
            status if status == ExitCode::from(TOO_SLOW as u8) => worst = status,
            status => return Ok(status),
        }
    }
    Ok(worst)
}

/// The file that the result goes to; none when choices are only checked.
fn target(args: &Args) -> Result<Option<PathBuf>> {
    if args.check.is_some() {
        return Ok(None);
    }
    let out = args.out.clone().or_else(Tuning::cache_file);
    out.map(Some).ok_or_else(|| {
        Error::usage(
            "expected HOME or XDG_CACHE_HOME to say where to write, found neither",
            "name a file with --out",
        )
    })
}

/// So many ranks that run this same command and find themselves in a job.
fn start(args: &Args, n: u32, out: Option<&PathBuf>) -> Result<ExitCode> {
    let mut command = vec![OsString::from("/proc/self/exe"), "tune".into()];
    command.extend(args.collectives.iter().map(|collective| collective.name().into()));
    let bytes = args.bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let options =
        [("--bytes", bytes), ("--time", args.time.to_string()), ("--rounds", args.rounds.to_string())];
    for (name, value) in options {
        command.extend([name.into(), value.into()]);
    }
    match (args.check, out) {
        (Some(percent), _) => command.extend(["--check".into(), percent.to_string().into()]),
        (None, Some(file)) => command.extend(["--out".into(), file.into()]),
        (None, None) => {}
    }
    for (wanted, option) in [(args.json, "--json"), (args.quick, "--quick")] {
        command.extend(wanted.then(|| option.into()));
    }
    let team = Team {
        n,
        command,
        variables: Vec::new(),
        cpus: cpus::assign(n, &cpus::allowed()),
        output: Output::FirstOnly,
        grace: GRACE,
    };
    let Some(failure) = team.run()? else { return Ok(ExitCode::SUCCESS) };
    if failure.exit != Exit::Code(TOO_SLOW) {
        text::complain(&format!("ccl tune: {failure}"));
    }
    Ok(ExitCode::from(failure.exit.status()))
}

/// One rank's part.
fn join(args: &Args, job: &Job, config: &Config) -> Result<ExitCode> {
    let out = target(args)?;
    let comm = Communicator::from_job(job, config)?;
    let said = comm.explain(Collective::Barrier, Dtype::U8, 0, Rank(0))?;
    let known = match out.as_ref().filter(|file| file.exists()) {
        Some(file) => Tuning::read(file)?.rates(said.reach),
        None => said.reach.rates(),
    };
    let link = match args.check {
        None => Some(probe::link(&comm, (said.reach, said.cores), &known)?),
        Some(_) => None,
    };
    let cells = if args.quick { Vec::new() } else { session::run(&comm, args, config)? };
    let mut status = ExitCode::SUCCESS;
    if comm.rank().0 == 0 {
        if !args.quick {
            match args.json {
                true => cells.iter().try_for_each(|cell| text::print(&cell.json(&said)))?,
                false => report(comm.size(), &cells)?,
            }
        }
        let limit = 1.0 + args.check.unwrap_or(0.0) / 100.0;
        if args.check.is_some() && cells.iter().any(|cell| cell.loss() > limit) {
            status = ExitCode::from(TOO_SLOW as u8);
        }
        if let (Some(link), Some(file)) = (link, &out) {
            let other = ladder::write(file, link, comm.size(), &cells)?;
            if !args.json {
                let lost = other.map_or(String::new(), |machine| {
                    format!("left out what the file held: it was measured on another machine, {machine}\n")
                });
                text::print(&format!("{}{lost}written to {}\n\n", told(&link), file.display()))?;
            }
        }
    }
    // Nobody leaves before rank 0 has written.
    comm.barrier()?;
    Ok(status)
}

/// What links cost, in words.
fn told(link: &TunedLink) -> String {
    let measured = [
        ("a message arrives in", link.alpha_ns),
        ("work on it takes", link.message_ns),
        ("each rank on a core adds", link.switch_ns),
        ("a byte takes", link.beta_ns_per_byte),
        ("folding one", link.gamma_ns_per_byte),
    ];
    let words = measured.iter().filter_map(|(what, ns)| Some(format!("{what} {:.3} ns", (*ns)?)));
    format!("{} links: {}\n", link.reach.name(), words.collect::<Vec<_>>().join(", "))
}

fn report(n: u32, cells: &[Cell]) -> Result<()> {
    let titles = ["collective", "size", "chosen", "time (µs)", "best", "time (µs)", "loss"];
    let mut table = text::table(titles);
    for cell in cells {
        let (chosen, best) = (cell.chosen(), cell.best());
        table.add_row([
            cell.collective.to_string(),
            format_bytes(cell.bytes),
            chosen.algorithm.to_string(),
            format!("{:.2}", chosen.time_us),
            best.algorithm.to_string(),
            format!("{:.2}", best.time_us),
            format!("{:.0} %", (cell.loss() - 1.0) * 100.0),
        ]);
    }
    let slow = cells.iter().filter(|cell| cell.loss() > 1.15).count();
    let summary = format!("{n} ranks: the choice loses more than 15 % in {slow} of {} cells\n", cells.len());
    text::print(&format!("{}\n{summary}", table.trim_fmt()))
}

fn parse_collective(name: &str) -> std::result::Result<Collective, String> {
    let collective: Collective = name.parse().map_err(|_| {
        let names: Vec<_> = session::tunable().map(Collective::name).collect();
        format!("expected one of {}, found {name}", names.join(", "))
    })?;
    match session::tunable().any(|tunable| tunable == collective) {
        true => Ok(collective),
        false => Err(format!("{collective} has one algorithm only, or blocks of different lengths")),
    }
}

/// The status when the choice is slower than was asked for.
const TOO_SLOW: i32 = 1;
/// Ranks notice a lost one within two seconds, and say so.
const GRACE: Duration = Duration::from_secs(4);
