//! `ccl perf`: measures collectives and messages, and checks every result.
//!
//! [`args`] reads the command line into [`options`]; [`start`] decides who the ranks are; [`session`]
//! is one rank's part: [`point`] by point it fills buffers ([`check`], [`layout`], [`area`]), makes
//! [`call`]s, on a [`device`] if asked, and [`measure`]s them; [`report`] prints a [`table`] or [`json`] and a [`plot`].
//! [`workload`] measures training steps instead, and [`overlap`] what a caller that computes loses.

mod area;
mod args;
pub(crate) mod call;
pub(crate) mod check;
mod device;
pub(crate) mod geometry;
mod json;
mod layout;
mod levels;
pub(crate) mod measure;
pub(crate) mod operation;
mod options;
mod overlap;
mod participants;
pub(crate) mod plot;
pub(crate) mod point;
mod report;
mod session;
mod start;
mod table;
mod workload;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use ccl::config::{Config, Source};
use ccl::discover::launcher::Job;
use ccl::{Communicator, Error, Fault, Rank, Result};

use self::args::RanksAs;
use self::options::{Options, Roots};
use self::overlap::Overlap;
use self::start::Start;
use self::workload::Workload;
use crate::ranks::{Exit, Output, Team, cpus};
use crate::text;

pub(crate) use self::args::Args;

/// Measures. The status is 1 if any result was wrong.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let what = match args.workload()? {
        Some(workload) if args.workload.list => {
            return text::print(&workload.list()).map(|()| ExitCode::SUCCESS);
        }
        Some(workload) => What::Workload(workload),
        None => {
            let operations = if args.levels { What::Levels } else { What::Operations };
            args.overlap()?.map_or_else(|| args.options().map(operations), |o| Ok(What::Overlap(o)))?
        }
    };
    let config = config(args)?;
    let job = if args.no_launcher { None } else { Some(Job::discover(&config)?) };
    match start::choose(args.nranks, args.ranks_as, job)? {
        Start::Join(job) => {
            let comm = Communicator::from_job(&job, &config)?;
            what.check_ranks(comm.size())?;
            what.run(&comm).map(status)
        }
        Start::Threads(n) => {
            say_where(args, &config);
            what.check_ranks(n)?;
            threads(args, &what, &config, n).map(status)
        }
        Start::Processes(n) => {
            say_where(args, &config);
            what.check_ranks(n)?;
            processes(args, n)
        }
    }
}

/// What is measured.
enum What {
    Operations(Options),
    /// The same operations at every level of determinism.
    Levels(Options),
    Workload(Workload),
    Overlap(Overlap),
}

impl What {
    /// One rank's part; wrong elements on all ranks.
    fn run(&self, comm: &Communicator) -> Result<u64> {
        match self {
            What::Operations(options) => session::run(comm, options),
            What::Levels(options) => levels::run(comm, options),
            What::Workload(workload) => workload::run(comm, workload),
            What::Overlap(overlap) => overlap::run(comm, overlap),
        }
    }

    /// Whether so many ranks can measure this.
    fn check_ranks(&self, n: u32) -> Result<()> {
        match self {
            What::Operations(Options { roots: Roots::One(Rank(root)), .. })
            | What::Levels(Options { roots: Roots::One(Rank(root)), .. })
                if *root >= n =>
            {
                Err(Error::usage(
                    format!("expected a root below {n}, found {root}"),
                    "ranks are numbered from 0; give --root a smaller one, or all",
                ))
            }
            What::Overlap(_) if n < 2 => Err(Error::usage(
                format!("expected 2 ranks or more for --overlap, found {n}"),
                "an all-reduce of one rank moves nothing that a computation could go on beside; give -n 2",
            )),
            _ => Ok(()),
        }
    }
}

fn config(args: &Args) -> Result<Config> {
    let builder = Config::builder().process()?;
    let builder = match args.timeout {
        Some(timeout) => builder.set("CCL_TIMEOUT", format!("{}s", timeout.as_secs_f64())),
        None => builder,
    };
    let config = builder.clone().build()?;
    let on_device = args.memory.is_on_device();
    let is_unset = !config.find("CCL_DEVICE").is_some_and(|found| found.source != Source::Default);
    let wanted = args.device.setting().or((on_device && is_unset).then(|| "local".to_owned()));
    match (wanted, ccl::devices(&config)) {
        (_, Err(none)) if on_device => Err(Error::new(
            Fault::Device,
            format!("expected a device for --memory device, found {none}"),
            "see `ccl doctor`, or leave --memory to measure on host memory",
        )),
        (Some(device), Ok(_)) => builder.set("CCL_DEVICE", device).build(),
        _ => Ok(config),
    }
}

/// Says what ranks work on, if a device was asked for.
fn say_where(args: &Args, config: &Config) {
    if args.device.setting().is_none() {
        return;
    }
    match ccl::devices(config) {
        Err(none) => text::complain(&format!("ccl perf: {none}; measured on host memory")),
        Ok(_) if args.memory.is_on_device() => {}
        Ok(_) => text::complain("ccl perf: ranks work on devices; every call copies its data there and back"),
    }
}

/// Ranks as threads of this process; wrong elements on all of them.
fn threads(args: &Args, what: &What, config: &Config, n: u32) -> Result<u64> {
    let cpus = assigned(args, n);
    let rank = |comm: Communicator| {
        if let Some(cpu) = cpus[comm.rank().index()] {
            cpus::bind(cpu)?;
        }
        what.run(&comm)
    };
    let mut wrong = 0;
    let mut first_error: Option<Error> = None;
    for outcome in ccl::local::try_run_with(config, n, rank)? {
        match outcome {
            // Every rank knows the sum.
            Ok(sum) => wrong = sum,
            Err(error) if first_error.as_ref().is_none_or(|known| comes_before(&error, known)) => {
                first_error = Some(error);
            }
            Err(_) => {}
        }
    }
    first_error.map_or(Ok(wrong), Err)
}

/// Whether an error tells more of what went wrong than one of a lower rank.
fn comes_before(error: &Error, known: &Error) -> bool {
    let is_cause = |error: &Error| error.consequence_of().is_none_or(|rank| Some(rank) == error.rank());
    *error.fault() == Fault::Usage || (is_cause(error) && !is_cause(known))
}

/// Ranks as processes that run this same command and find themselves in a launcher's job.
fn processes(args: &Args, n: u32) -> Result<ExitCode> {
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--no-launcher");
    let team = Team {
        n,
        command: [OsString::from("/proc/self/exe")].into_iter().chain(arguments).collect(),
        variables: Vec::new(),
        cpus: assigned(args, n),
        output: Output::FirstOnly,
        grace: GRACE,
    };
    let Some(failure) = team.run()? else { return Ok(ExitCode::SUCCESS) };
    if failure.exit != Exit::Code(WRONG) {
        text::complain(&format!("ccl perf: {failure}"));
    }
    Ok(ExitCode::from(failure.exit.status()))
}

fn assigned(args: &Args, n: u32) -> Vec<Option<usize>> {
    if args.no_pin {
        return vec![None; n as usize];
    }
    let mut cpus = cpus::assign(n, &cpus::allowed());
    match (args.overlap, args.ranks_as) {
        (false, _) => {}
        // Rank 0 binds the thread that computes itself, so that its progress thread may run elsewhere.
        (true, RanksAs::Processes) => cpus[0] = None,
        (true, RanksAs::Threads) => cpus.fill(None),
    }
    cpus
}

fn status(wrong: u64) -> ExitCode {
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(WRONG as u8) }
}

/// The status when a result was wrong.
const WRONG: i32 = 1;
/// Ranks notice a lost one within two seconds, and say so.
const GRACE: Duration = Duration::from_secs(4);
