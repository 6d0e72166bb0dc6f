//! `ccl run`: starts a command as local ranks.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use ccl::Result;

use crate::ranks::{Output, Team, cpus};
use crate::text;

/// Start a command as N ranks on this machine.
///
/// Each rank finds its number in CCL_RANK, CCL_NRANKS and CCL_LOCAL_RANK, and in the variables that
/// torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). When one
/// fails, the others end too. For several machines use their launcher: mpirun, srun, torchrun.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of ranks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nranks: u32,
    /// Write "[rank] " before each line of output
    #[arg(short, long)]
    label: bool,
    /// Bind each rank to a CPU, as many ranks to each; not if that cannot be
    #[arg(long)]
    pin: bool,
    /// Seconds that the other ranks may go on when one has failed
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = crate::args::seconds)]
    grace: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the ranks; the status is that of the first that fails.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let pinned = || cpus::assign(args.nranks, &cpus::allowed());
    let team = Team {
        n: args.nranks,
        command: args.command.clone(),
        variables: Vec::new(),
        cpus: if args.pin { pinned() } else { Vec::new() },
        output: if args.label { Output::Labelled } else { Output::Shared },
        grace: args.grace,
    };
    let Some(failure) = team.run()? else { return Ok(ExitCode::SUCCESS) };
    text::complain(&format!("ccl run: {failure}"));
    Ok(ExitCode::from(failure.exit.status()))
}
