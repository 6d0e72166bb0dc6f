//! `ccl`: measures, tunes, explains, checks and simulates the library, and starts local ranks.
#![deny(unsafe_code)]

mod args;
mod counted;
mod doctor;
mod perf;
mod plan;
mod plugin;
mod ranks;
mod run;
mod sim;
mod size;
mod text;
mod topo;
mod trace;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Collective communication: measure it, tune it, explain it, check it, simulate it, and start local ranks.
#[derive(Debug, Parser)]
#[command(name = "ccl", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Perf(Box<perf::Args>),
    #[command(subcommand)]
    Plan(plan::Command),
    #[command(subcommand)]
    Plugin(plugin::Command),
    Run(run::Args),
    Sim(sim::Args),
    Doctor(doctor::Args),
    Topo(topo::Args),
    Trace(trace::Args),
    Tune(tune::Args),
    #[command(hide = true)]
    Counted(counted::Args),
    #[command(name = ranks::shim::NAME, hide = true)]
    Rank(ranks::shim::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Perf(args) => perf::main(&args),
        Command::Plan(command) => plan::main(&command),
        Command::Plugin(command) => plugin::main(&command),
        Command::Run(args) => run::main(&args),
        Command::Sim(args) => sim::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Topo(args) => topo::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Tune(args) => tune::main(&args),
        Command::Counted(args) => counted::main(&args),
        Command::Rank(args) => ranks::shim::main(&args),
    };
    outcome.unwrap_or_else(|error| {
        text::complain(&format!("ccl: {error}"));
        ExitCode::from(if *error.fault() == ccl::Fault::Usage { EXIT_USAGE } else { EXIT_FAILED })
    })
}

/// The command line or a setting is wrong.
const EXIT_USAGE: u8 = 2;
/// The command could not do its work.
const EXIT_FAILED: u8 = 3;
