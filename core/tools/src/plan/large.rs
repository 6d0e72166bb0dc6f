//! `ccl plan verify --large`: up to 100,000 ranks.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ccl::plan::verify::{Budget, LARGE, LargeReport, Method, Witness, verify_large};
use ccl::plan::{Algorithm, Plan, algorithms};
use ccl::{Collective, Result};
use serde::Serialize;

use super::verify::Args;
use crate::text;

/// Verifies; status 1 if a plan fails.
pub(super) fn main(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let ranks: Vec<u32> =
        LARGE.into_iter().filter(|n| (args.min_ranks..=args.max_ranks).contains(n)).collect();
    let outcome = run(args, &ranks);
    let elapsed = start.elapsed();
    text::print(&if args.json { outcome.json(elapsed) } else { outcome.text(elapsed) })?;
    Ok(if outcome.witnesses.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was seen of one algorithm of a collective.
#[derive(Default, Serialize)]
struct Row {
    plans: u64,
    /// The largest number of ranks of which all were walked, of which one stood for all, of which some were walked.
    all_ranks: u32,
    one_for_all: u32,
    some_ranks: u32,
    slots: usize,
    walks: u64,
    steps: u64,
    seconds: f64,
    /// Why larger numbers are not among them.
    limits: Vec<String>,
}

#[derive(Default)]
struct Outcome {
    rows: BTreeMap<(Collective, Algorithm), Row>,
    witnesses: Vec<Witness>,
}

fn run(args: &Args, ranks: &[u32]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut plans = Vec::new();
    // Large plans first, so that no thread ends with a long one.
    for n in ranks.iter().rev() {
        for collective in Collective::ALL {
            for algorithm in algorithms(collective) {
                match Plan::new(collective, *algorithm, *n) {
                    Some(plan) if args.wants(&plan) => plans.push(plan),
                    Some(_) => {}
                    None => outcome.limit(collective, *algorithm),
                }
            }
        }
    }
    outcome.rows.retain(|key, _| plans.iter().any(|plan| (plan.collective(), plan.algorithm()) == *key));
    let budget = Budget { steps: MOST_STEPS, bytes: MOST_BYTES / args.jobs() as u64 };
    let shared = Mutex::new(outcome);
    args.on_threads(&plans, |plan| {
        let start = Instant::now();
        let result = verify_large(plan, budget);
        shared.lock().expect("nothing panics while it adds").add(plan, result, start.elapsed());
    });
    shared.into_inner().expect("nothing panics while it adds")
}

impl Outcome {
    fn limit(&mut self, collective: Collective, algorithm: Algorithm) {
        let most = algorithm.most_ranks(collective);
        let why = format!("serves up to {most} ranks: more blocks have no room in a slot");
        let limits = &mut self.rows.entry((collective, algorithm)).or_default().limits;
        if !limits.contains(&why) {
            limits.push(why);
        }
    }

    fn add(&mut self, plan: &Plan, result: Result<Option<LargeReport>, Box<Witness>>, took: Duration) {
        let row = self.rows.entry((plan.collective(), plan.algorithm())).or_default();
        row.seconds += took.as_secs_f64();
        match result {
            Ok(Some(report)) => row.add(plan.n(), &report),
            Ok(None) => row.limits.push(format!("{}: a walk takes too much time or memory", plan.n())),
            Err(witness) => self.witnesses.push(*witness),
        }
    }

    fn text(&self, elapsed: Duration) -> String {
        let mut table = text::table([
            "collective",
            "algorithm",
            "plans",
            "all ranks",
            "one for all",
            "some ranks",
            "slots",
            "walks",
            "steps",
            "s",
            "limit",
        ]);
        let up_to = |n: u32| if n == 0 { String::new() } else { format!("to {n}") };
        for ((collective, algorithm), row) in &self.rows {
            table.add_row([
                collective.to_string(),
                algorithm.to_string(),
                row.plans.to_string(),
                up_to(row.all_ranks),
                up_to(row.one_for_all),
                up_to(row.some_ranks),
                row.slots.to_string(),
                row.walks.to_string(),
                row.steps.to_string(),
                format!("{:.1}", row.seconds),
                row.limits.join("; "),
            ]);
        }
        let [plans, walks, steps] = self.totals();
        let seconds = elapsed.as_secs_f64();
        let mut text = format!("{}\n{EXPLANATION}", table.trim_fmt());
        text += &format!("{plans} plans hold in {walks} walks of {steps} steps; {seconds:.1} s\n");
        for witness in &self.witnesses {
            text += &format!("FAILED: {witness}\n");
        }
        text
    }

    fn json(&self, elapsed: Duration) -> String {
        let rows = self.rows.iter().map(|((collective, algorithm), row)| {
            serde_json::json!({ "collective": collective.name(), "algorithm": algorithm.name(), "seen": row })
        });
        let [plans, walks, steps] = self.totals();
        let value = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ok": self.witnesses.is_empty(),
            "seconds": elapsed.as_secs_f64(),
            "total": { "plans": plans, "walks": walks, "steps": steps },
            "algorithms": rows.collect::<Vec<_>>(),
            "witnesses": self.witnesses.iter().map(|witness| witness.to_string()).collect::<Vec<_>>(),
        });
        format!("{value}\n")
    }

    fn totals(&self) -> [u64; 3] {
        self.rows.values().fold([0; 3], |[plans, walks, steps], row| {
            [plans + row.plans, walks + row.walks, steps + row.steps]
        })
    }
}

impl Row {
    fn add(&mut self, n: u32, report: &LargeReport) {
        let largest = match report.method {
            Method::All => &mut self.all_ranks,
            Method::One => &mut self.one_for_all,
            Method::Some => &mut self.some_ranks,
        };
        *largest = n.max(*largest);
        self.plans += 1;
        self.slots = self.slots.max(report.slots);
        self.walks += report.walks;
        self.steps += report.steps;
    }
}

const EXPLANATION: &str = "all ranks: every rank is walked; one for all: n² steps or elements are too many, but all ranks
run one text that says the same to each, turned round; some ranks: folds go by absolute places, so ranks of every role
are walked against what they send themselves, turned round, and must send the same
";

/// Steps of a walk of all ranks: some ten seconds.
const MOST_STEPS: u64 = 20_000_000;
/// Bytes of all walks at the same time, about.
const MOST_BYTES: u64 = 4 << 30;
