//! What was measured here against what the simulator says of it.
//!
//! The lines of `ccl tune --json` are cells: one algorithm at one size. Every other size calibrates the simulator;
//! the error is that of the others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl::exec::Reach;
use ccl::plan::machine::{Buffers, Case};
use ccl::plan::{Algorithm, Collective, Plan, Shape};
use ccl::{Error, Rank, Result};
use ccl_sim::Job;
use ccl_sim::host::{self, Carried, Host, Sample};
use serde::Deserialize;
use serde_json::json;

use super::refused;
use crate::text;

/// A line of `ccl tune --json`; what else stands there is passed over.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    collective: String,
    algorithm: String,
    ranks: u32,
    cores: u32,
    reach: Reach,
    bytes: u64,
    chunk_bytes: usize,
    carried: String,
    time_us: f64,
}

/// Links, ranks, collective, algorithm and bytes of a cell.
type Name = (&'static str, u32, String, String, u64);

/// A line that makes sense.
struct Cell {
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    reach: Reach,
    bytes: u64,
    /// Whether it is one to calibrate by.
    calibrates: bool,
    sample: Sample,
    simulated_ns: f64,
}

/// Compares, and says how far off the simulator is; status 1 if that is more than `limit` per cent in the median.
pub(super) fn main(files: &[PathBuf], as_json: bool, limit: Option<f64>) -> Result<ExitCode> {
    let mut cells = read(files)?;
    let mut hosts = Vec::new();
    for of_run in cells.chunk_by_mut(Cell::is_of_run) {
        hosts.push(simulate(of_run, &files[0])?);
    }
    text::print(&match as_json {
        true => cells.iter().map(Cell::json).collect(),
        false => report(&hosts, &cells),
    })?;
    let failed = limit.is_some_and(|limit| 100.0 * Spread::of(&cells).middle > limit);
    Ok(if failed { ExitCode::from(TOO_FAR_OFF) } else { ExitCode::SUCCESS })
}

/// Calibrates by some of the cells of a run and simulates all; the host as it was found.
fn simulate(cells: &mut [Cell], file: &Path) -> Result<Host> {
    let failed = |error| refused(file, error);
    let samples: Vec<Sample> =
        cells.iter().filter(|cell| cell.calibrates).map(|cell| cell.sample.clone()).collect();
    let start = cells.first().map_or(Host::new(Reach::Memory.rates()), |cell| cell.sample.host);
    let host = host::calibrate(&samples, &start).map_err(failed)?;
    for cell in cells {
        cell.simulated_ns = cell.sample.time_ns(&host).map_err(failed)?;
    }
    Ok(host)
}

/// The cells of all files. Of a cell that is there more than once the middle time counts, of two the lesser.
fn read(files: &[PathBuf]) -> Result<Vec<Cell>> {
    let mut lines: BTreeMap<Name, Vec<(Line, &PathBuf, usize)>> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let doing = format!("read the measurements {}", file.display());
            Error::system(&doing, error, "`ccl tune --json` writes such a file")
        })?;
        for (number, text) in text.lines().enumerate() {
            let line: Line = serde_json::from_str(text).map_err(|error| wrong(file, number, &error))?;
            let key =
                (line.reach.name(), line.ranks, line.collective.clone(), line.algorithm.clone(), line.bytes);
            lines.entry(key).or_default().push((line, file, number));
        }
    }
    let mut sizes: Vec<u32> = lines.keys().map(|key| doublings(key.4)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let cells = lines.into_values().map(|mut same| {
        same.sort_by(|(a, ..), (b, ..)| a.time_us.total_cmp(&b.time_us));
        let (line, file, number) = same.swap_remove((same.len() - 1) / 2);
        let place = sizes.iter().position(|size| *size == doublings(line.bytes)).unwrap_or(0);
        Cell::new(&line, place % 2 == 1).map_err(|cause| wrong(file, number, &cause))
    });
    let cells: Vec<Cell> = cells.collect::<Result<_>>()?;
    match cells.iter().any(|cell| cell.calibrates) {
        true => Ok(cells),
        false => Err(Error::usage(
            format!("expected measurements of two sizes or more in {}, found fewer", files[0].display()),
            "`ccl tune --json` without -b measures eleven",
        )),
    }
}

/// A line that is none, or whose numbers do not fit together.
fn wrong(file: &Path, number: usize, cause: &dyn std::fmt::Display) -> Error {
    Error::usage(
        format!(
            "expected lines of `ccl tune --json`, found in line {} of {}: {cause}",
            number + 1,
            file.display()
        ),
        "write the file anew with `ccl tune --json > FILE`",
    )
}

/// Sizes of one doubling are one size: those of blocks are cut to whole elements.
fn doublings(bytes: u64) -> u32 {
    bytes.next_power_of_two().ilog2()
}

impl Cell {
    fn new(line: &Line, calibrates: bool) -> std::result::Result<Cell, String> {
        let known = |what: &str, name: &str| format!("expected {what}, found {name}");
        let collective: Collective =
            line.collective.parse().map_err(|_| known("a collective", &line.collective))?;
        let algorithm: Algorithm =
            line.algorithm.parse().map_err(|_| known("an algorithm", &line.algorithm))?;
        let carried = match line.carried.as_str() {
            "slots" => Carried::Slots,
            "lent" => Carried::Lent,
            other => return Err(known("slots or lent", other)),
        };
        if !(line.time_us > 0.0 && line.time_us < 1e12) {
            return Err(format!("expected a time above 0, found {} µs", line.time_us));
        }
        let plan = Plan::new(collective, algorithm, line.ranks).ok_or_else(|| {
            format!("expected a plan for {} ranks, found {collective}.{algorithm}", line.ranks)
        })?;
        let elements = line.bytes as usize / ELEMENT_BYTES;
        let blocks = if collective.input() == Shape::Whole { 1 } else { line.ranks as usize };
        let case = Case {
            n: line.ranks,
            count: elements / blocks,
            channels: 1,
            chunk_count: (line.chunk_bytes / ELEMENT_BYTES).max(1),
            grain_count: GRAIN_BYTES / ELEMENT_BYTES,
            slots: SLOTS,
            root: Rank(0),
            buffers: Buffers::Apart,
            blocks: None,
        };
        let job = Job::new(&plan, &case, ELEMENT_BYTES).map_err(|error| error.to_string())?;
        let rates = ccl::plan::cost::Rates { cores: line.cores, ..line.reach.rates() };
        let host = Host { carried, ..Host::new(rates) };
        let sample = Sample { job, host, measured_ns: 1e3 * line.time_us };
        Ok(Cell {
            collective,
            algorithm,
            ranks: line.ranks,
            reach: line.reach,
            bytes: line.bytes,
            calibrates,
            sample,
            simulated_ns: 0.0,
        })
    }

    /// Whether both are of the same ranks, which are calibrated together.
    fn is_of_run(&self, other: &Cell) -> bool {
        (self.reach, self.ranks) == (other.reach, other.ranks)
    }

    /// How far off the simulated time is, as a share of the measured one.
    fn error(&self) -> f64 {
        self.simulated_ns / self.sample.measured_ns - 1.0
    }

    fn json(&self) -> String {
        let object = json!({
            "collective": self.collective.name(),
            "algorithm": self.algorithm.name(),
            "ranks": self.ranks,
            "reach": self.reach.name(),
            "bytes": self.bytes,
            "measured_us": self.sample.measured_ns / 1e3,
            "simulated_us": self.simulated_ns / 1e3,
            "calibrates": self.calibrates,
        });
        format!("{object}\n")
    }
}

/// How far off the cells are that did not calibrate.
struct Spread {
    cells: usize,
    /// Of the distances, the median, and what nine in ten are below.
    middle: f64,
    most: f64,
}

impl Spread {
    fn of(cells: &[Cell]) -> Spread {
        let tested = cells.iter().filter(|cell| !cell.calibrates);
        let mut errors: Vec<f64> = tested.map(|cell| cell.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        let at = |tenths: usize| errors.get(errors.len() * tenths / 10).copied().unwrap_or(0.0);
        Spread { cells: errors.len(), middle: at(5), most: at(9) }
    }
}

fn report(hosts: &[Host], cells: &[Cell]) -> String {
    let mut table = text::table(["links", "ranks", "collective", "cells", "median (%)", "9 in 10 (%)"]);
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let mut row = |links: &str, ranks: &str, name: &str, cells: &[Cell]| {
        let Spread { cells, middle, most } = Spread::of(cells);
        let names = [links, ranks, name].map(str::to_owned);
        table.add_row(names.into_iter().chain([cells.to_string(), percent(middle), percent(most)]));
    };
    let mut found = String::new();
    for (of_run, host) in cells.chunk_by(Cell::is_of_run).zip(hosts) {
        let (links, ranks) = (of_run[0].reach.name(), of_run[0].ranks.to_string());
        for of_one in of_run.chunk_by(|a, b| a.collective == b.collective) {
            row(links, &ranks, of_one[0].collective.name(), of_one);
        }
        row(links, &ranks, "all", of_run);
        found += &format!("\n# {links}, {ranks} ranks\n{}", told(host, links));
    }
    row("all", "all", "all", cells);
    format!("{}\n{found}", table.trim_fmt())
}

/// What was found by calibrating, as a scenario may say it.
fn told(host: &Host, links: &str) -> String {
    let rates = host.rates;
    let found = [
        ("alpha_ns", rates.alpha_ns),
        ("switch_ns", rates.switch_ns),
        ("message_ns", rates.message_ns),
        ("move_ns", rates.move_ns),
        ("call_ns", host.call_ns),
        ("read_ns", host.read_ns),
        ("slot_ns_per_byte", host.slot_ns_per_byte),
        ("first_ns", host.first_ns),
        ("first_bytes", host.first_bytes),
        ("beta_ns_per_byte", rates.beta_ns_per_byte),
        ("gamma_ns_per_byte", rates.gamma_ns_per_byte),
        ("far", rates.far),
        ("far_bytes", rates.far_bytes),
    ];
    let lines = found.map(|(name, value)| format!("{name} = {}\n", rounded(value)));
    format!("[host]\ncores = {}\nlinks = \"{links}\"\n{}", rates.cores, lines.concat())
}

/// Three digits that count.
fn rounded(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

/// `ccl tune` measures elements of four bytes; the rest are the library's defaults.
const ELEMENT_BYTES: usize = 4;
const GRAIN_BYTES: usize = 64;
const SLOTS: usize = 8;
/// The status when the simulator is farther off than was asked for.
const TOO_FAR_OFF: u8 = 1;
