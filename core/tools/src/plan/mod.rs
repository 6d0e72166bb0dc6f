//! `ccl plan`: shows, verifies and explains the programs that carry out collectives.

mod explain;
mod files;
mod large;
mod memory;
mod show;
mod verify;

use std::process::ExitCode;

use ccl::plan::{Algorithm, algo};
use ccl::{Collective, Error, Result};
use clap::Subcommand;

/// Show, verify and explain plans.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Explain(explain::Args),
    Memory(memory::Args),
    Show(show::Args),
    Verify(verify::Args),
}

/// Runs the subcommand.
pub(crate) fn main(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Explain(args) => explain::main(args),
        Command::Memory(args) => memory::main(args),
        Command::Show(args) => show::main(args),
        Command::Verify(args) => verify::main(args),
    }
}

/// Collectives by name, also without underscores.
fn parse_collective(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
    let known = Collective::ALL.into_iter().find(|collective| plain(collective.name()) == plain(text));
    known.ok_or_else(|| {
        let names = Collective::ALL.map(Collective::name);
        format!("expected one of {}, found `{text}`", names.join(", "))
    })
}

fn parse_algorithm(text: &str) -> Result<Algorithm, String> {
    text.parse().map_err(|_| {
        let names = Algorithm::ALL.map(Algorithm::name);
        format!("expected one of {}, found `{text}`", names.join(", "))
    })
}

/// The error for a pair that does not go together.
fn unsuitable(collective: Collective, algorithm: Algorithm) -> Error {
    let names: Vec<_> = algo::algorithms(collective).iter().map(|algorithm| algorithm.name()).collect();
    Error::usage(
        format!("expected an algorithm for {collective} ({}), found {algorithm}", names.join(", ")),
        "`ccl plan show` lists the algorithms of every collective",
    )
}
