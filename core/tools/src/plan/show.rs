//! `ccl plan show`: the program of a collective, as text or as the records that are executed.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl::exec::read_program;
use ccl::plan::algo::algorithms;
use ccl::plan::program::Program;
use ccl::plan::{Algorithm, Place, Plan};
use ccl::{Collective, Error, Rank, Result};

use super::{parse_algorithm, parse_collective, unsuitable};
use crate::text;

/// Print the programs of a plan; without a collective, which algorithms there are.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The collective, or a file with a program
    #[arg(value_name = "COLLECTIVE or FILE", value_parser = parse_what)]
    what: Option<What>,
    /// The algorithm [default: the collective's first]
    #[arg(short, long, value_parser = parse_algorithm)]
    algorithm: Option<Algorithm>,
    /// Number of ranks
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    nranks: u32,
    /// Only this rank's program [default: every different one]
    #[arg(long)]
    rank: Option<u32>,
    /// The root, or the peer of a send or receive
    #[arg(long, default_value_t = 0)]
    root: u32,
    /// Print the binary records in hexadecimal
    #[arg(long)]
    binary: bool,
}

/// Prints.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    text::print(&match &args.what {
        None => list(),
        Some(What::Collective(collective)) => show(args, *collective)?,
        Some(What::File(file)) => show_file(args, file)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What is shown.
#[derive(Clone, Debug)]
enum What {
    Collective(Collective),
    File(PathBuf),
}

fn parse_what(text: &str) -> Result<What, String> {
    match parse_collective(text) {
        Ok(collective) => Ok(What::Collective(collective)),
        Err(_) if Path::new(text).is_file() => Ok(What::File(text.into())),
        Err(error) => Err(format!("{error}, which is no file either")),
    }
}

/// A program of one's own, as it will be executed.
fn show_file(args: &Args, file: &Path) -> Result<String> {
    let program = read_program(file)?;
    let refused =
        |error| Error::usage(format!("{}: {error}", file.display()), "`ccl plan verify FILE` tells more");
    let checked = program.check(args.nranks).map_err(refused)?;
    let bytes = checked.to_bytes();
    let header = format!("# {} for {} ranks, {} bytes: all\n", checked.name, args.nranks, bytes.len());
    Ok(header + &if args.binary { hexadecimal(&bytes) } else { checked.to_string() })
}

fn list() -> String {
    let mut table = text::table(["collective", "algorithms"]);
    for collective in Collective::ALL {
        let names: Vec<_> = algorithms(collective).iter().map(|algorithm| algorithm.name()).collect();
        table.add_row([collective.name(), &names.join(" ")]);
    }
    table.trim_fmt() + "\n"
}

fn show(args: &Args, collective: Collective) -> Result<String> {
    let n = args.nranks;
    if let Some(rank) = args.rank.iter().chain([&args.root]).find(|rank| **rank >= n) {
        let cause = format!("expected a rank below {n}, found {rank}");
        return Err(Error::usage(cause, "ranks are numbered from 0; give more ranks with -n"));
    }
    let algorithm = args.algorithm.unwrap_or(algorithms(collective)[0]);
    let plan = Plan::new(collective, algorithm, n).ok_or_else(|| unsuitable(collective, algorithm))?;
    let places = args.rank.map_or(0..n, |rank| rank..rank + 1);
    let mut programs: Vec<(Program, Vec<Rank>)> = Vec::new();
    let mut roles = Vec::new();
    for place in places {
        let role = plan.role(Place(place), Place(args.root));
        match roles.iter().position(|known| *known == role) {
            Some(index) => programs[index].1.push(Rank(place)),
            None => {
                roles.push(role);
                programs.push((plan.program_of(role), vec![Rank(place)]));
            }
        }
    }
    let mut text = String::new();
    for (program, ranks) in &programs {
        let bytes = program.to_bytes();
        let ranks = text::ranges(ranks);
        let _ = writeln!(text, "# {} for {n} ranks, {} bytes: rank {ranks}", program.name, bytes.len());
        text += &if args.binary { hexadecimal(&bytes) } else { program.to_string() };
        text.push('\n');
    }
    Ok(text)
}

/// 16 bytes to a line, which is an operand or half an instruction.
fn hexadecimal(bytes: &[u8]) -> String {
    let line = |(index, line): (usize, &[u8])| {
        let digits: String = line.iter().map(|byte| format!(" {byte:02x}")).collect();
        format!("{:06x} {digits}\n", index * 16)
    };
    bytes.chunks(16).enumerate().map(line).collect()
}
