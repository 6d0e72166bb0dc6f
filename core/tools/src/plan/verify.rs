//! `ccl plan verify`: every algorithm, walked by the verifier and attacked by its mutations.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ccl::plan::verify::mutate::mutations;
use ccl::plan::verify::{Depth, VerifyReport, Witness, plans, verify};
use ccl::plan::{Algorithm, Plan};
use ccl::{Collective, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::{files, large, parse_algorithm, parse_collective};
use crate::text;

/// Verify every algorithm of every collective for every number of ranks, and see that damaged
/// programs are rejected.
///
/// Ends with status 1 if a plan fails, and prints the smallest failing case.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Programs to verify, in place of the library's
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// The largest number of ranks
    #[arg(long, value_name = "N", default_value_t = 64, default_value_if("large", "true", "100000"))]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) max_ranks: u32,
    /// The smallest number of ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) min_ranks: u32,
    /// Only these collectives
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_collective)]
    collective: Vec<Collective>,
    /// Only these algorithms
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_algorithm)]
    algorithm: Vec<Algorithm>,
    /// Programs to damage of each plan with up to 16 ranks, to see that they are rejected
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub(super) mutations: u64,
    /// What the random choice of damages starts from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,
    /// Fewer cases of each plan
    #[arg(long)]
    pub(super) quick: bool,
    /// Plans verified at the same time [default: the number of CPUs]
    #[arg(long, value_name = "J")]
    jobs: Option<NonZero<usize>>,
    /// Only large numbers of ranks, around powers of two up to 100,000: every rank where memory and time allow, else
    /// one for all
    #[arg(long, conflicts_with_all = ["quick", "seed", "mutations", "files"])]
    large: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// Verifies.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if !args.files.is_empty() {
        return files::main(args);
    }
    if args.large {
        return large::main(args);
    }
    let start = Instant::now();
    let outcome = run(args);
    let elapsed = start.elapsed();
    text::print(&if args.json { json(&outcome, elapsed) } else { tables(&outcome, elapsed) })?;
    Ok(if outcome.witnesses.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the verifier said.
#[derive(Default)]
struct Outcome {
    reports: BTreeMap<(Collective, Algorithm), VerifyReport>,
    /// Of each algorithm that failed, the failure with the fewest ranks.
    witnesses: BTreeMap<(Collective, Algorithm), Box<Witness>>,
}

impl Outcome {
    fn add(&mut self, plan: &Plan, result: Result<VerifyReport, Box<Witness>>) {
        let key = (plan.collective(), plan.algorithm());
        match result {
            Ok(report) => *self.reports.entry(key).or_default() += &report,
            Err(witness) => {
                let smallest = self.witnesses.get(&key);
                if smallest.is_none_or(|known| witness.case.n < known.case.n) {
                    self.witnesses.insert(key, witness);
                }
            }
        }
    }

    fn total(&self) -> VerifyReport {
        let mut total = VerifyReport::default();
        self.reports.values().for_each(|report| total += report);
        total
    }
}

/// Verifies on several threads: large plans first, so that no thread ends with a long one.
fn run(args: &Args) -> Outcome {
    let mut plans: Vec<_> = plans(args.min_ranks..=args.max_ranks).filter(|plan| args.wants(plan)).collect();
    plans.reverse();
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    let outcome = Mutex::new(Outcome::default());
    args.on_threads(&plans, |plan| {
        let result = verify(plan, depth).and_then(|report| args.with_damage(plan, report));
        outcome.lock().expect("nothing panics while it adds").add(plan, result);
    });
    outcome.into_inner().expect("nothing panics while it adds")
}

impl Args {
    /// Plans verified at the same time.
    pub(super) fn jobs(&self) -> usize {
        self.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get)
    }

    /// Does `work` for each of `plans`, with as many threads as there are jobs.
    pub(super) fn on_threads(&self, plans: &[Plan], work: impl Fn(&Plan) + Sync) {
        let (next, progress) = (AtomicUsize::new(0), progress(plans.len()));
        let all = || {
            while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                work(plan);
                progress.inc(1);
            }
        };
        thread::scope(|scope| {
            (0..self.jobs()).for_each(|_| {
                scope.spawn(all);
            });
        });
        progress.finish_and_clear();
    }

    pub(super) fn wants(&self, plan: &Plan) -> bool {
        let (collectives, algorithms) = (&self.collective, &self.algorithm);
        (collectives.is_empty() || collectives.contains(&plan.collective()))
            && (algorithms.is_empty() || algorithms.contains(&plan.algorithm()))
    }

    /// The report on a sound plan with what became of damaged ones. An accepted one is a witness
    /// against the verifier.
    fn with_damage(&self, plan: &Plan, mut report: VerifyReport) -> Result<VerifyReport, Box<Witness>> {
        if plan.n() <= MOST_DAMAGED_RANKS {
            report += &mutations(plan, self.seed, self.mutations)?;
        }
        Ok(report)
    }
}

fn progress(total: usize) -> ProgressBar {
    let progress = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} plans {eta}");
    progress.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn tables(outcome: &Outcome, elapsed: Duration) -> String {
    let mut table = text::table([
        "collective",
        "algorithm",
        "plans",
        "programs",
        "walks",
        "slots",
        "determinism",
        "mutations",
        "rejected",
        "equivalent",
    ]);
    for ((collective, algorithm), report) in &outcome.reports {
        let finding = report.findings.get(&(*collective, *algorithm));
        table.add_row([
            collective.to_string(),
            algorithm.to_string(),
            report.plans.to_string(),
            report.programs.to_string(),
            report.walks.to_string(),
            finding.map_or(String::new(), |finding| finding.slots.to_string()),
            finding.map_or("", |finding| finding.level.name()).to_owned(),
            report.mutations.to_string(),
            report.rejected.to_string(),
            report.equivalent.to_string(),
        ]);
    }
    let mut text = format!("{}\n{}\n", table.trim_fmt(), sentence(&outcome.total(), elapsed));
    for witness in outcome.witnesses.values() {
        text += &format!("FAILED: {witness}\n");
    }
    text
}

fn sentence(total: &VerifyReport, elapsed: Duration) -> String {
    format!(
        "{} plans ({} programs) hold in {} walks of {} steps; {} damaged programs: {} rejected, {} equivalent; {:.1} s",
        total.plans,
        total.programs,
        total.walks,
        total.steps,
        total.mutations,
        total.rejected,
        total.equivalent,
        elapsed.as_secs_f64(),
    )
}

/// The numbers of one algorithm, or of all.
#[derive(Serialize)]
struct Numbers {
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'static str>,
    plans: u64,
    programs: u64,
    walks: u64,
    steps: u64,
    mutations: u64,
    rejected: u64,
    equivalent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    determinism: Option<&'static str>,
}

impl Numbers {
    fn new(key: Option<(Collective, Algorithm)>, report: &VerifyReport) -> Numbers {
        let finding = key.and_then(|key| report.findings.get(&key));
        Numbers {
            collective: key.map(|(collective, _)| collective.name()),
            algorithm: key.map(|(_, algorithm)| algorithm.name()),
            plans: report.plans,
            programs: report.programs,
            walks: report.walks,
            steps: report.steps,
            mutations: report.mutations,
            rejected: report.rejected,
            equivalent: report.equivalent,
            slots: finding.map(|finding| finding.slots),
            determinism: finding.map(|finding| finding.level.name()),
        }
    }
}

fn json(outcome: &Outcome, elapsed: Duration) -> String {
    let algorithms: Vec<_> =
        outcome.reports.iter().map(|(key, report)| Numbers::new(Some(*key), report)).collect();
    let witnesses: Vec<_> = outcome.witnesses.values().map(|witness| witness.to_string()).collect();
    let value = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ok": witnesses.is_empty(),
        "seconds": elapsed.as_secs_f64(),
        "total": Numbers::new(None, &outcome.total()),
        "algorithms": algorithms,
        "witnesses": witnesses,
    });
    format!("{value}\n")
}

/// Damage shows with a few ranks or never.
const MOST_DAMAGED_RANKS: u32 = 16;
