//! `ccl plugin`: which plugins would be used, and whether one keeps its contract.

mod check;
mod kind;
mod list;

use std::process::ExitCode;

use ccl::Result;
use clap::Subcommand;

/// List plugins, and check one against its contract.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Check(check::Args),
}

/// Runs the subcommand.
pub(crate) fn main(command: &Command) -> Result<ExitCode> {
    match command {
        Command::List(args) => list::main(args),
        Command::Check(args) => check::main(args),
    }
}
