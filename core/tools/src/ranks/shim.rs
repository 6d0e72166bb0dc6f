//! What a rank's process does before it becomes the command: ties its life to ours, and takes its CPU.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::ranks::cpus;
use crate::text;

/// The hidden subcommand by which [`crate::ranks::Team`] starts a rank.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process that must be our parent.
    #[arg(long)]
    parent: i32,
    /// The CPU to run on.
    #[arg(long)]
    cpu: Option<usize>,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The subcommand's name.
pub(crate) const NAME: &str = "__rank";

/// Becomes the command. Returns only if it cannot.
pub(crate) fn main(args: &Args) -> ccl::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        ccl::Error::system("tie this rank to its parent", error, "check for a filter on prctl")
    })?;
    // The parent may have died before the line above: then nobody waits for us.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return Ok(ExitCode::FAILURE);
    }
    if let Some(cpu) = args.cpu {
        cpus::bind(cpu)?;
    }
    let (program, arguments) = args.command.split_first().expect("clap requires a command");
    let error = Command::new(program).args(arguments).exec();
    text::complain(&format!("ccl: expected a command to run, found {}: {error}", program.display()));
    Ok(ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }))
}
