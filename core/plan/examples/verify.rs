//! Verifies every plan up to a number of ranks on all cores and prints what was walked.
//!
//! `cargo run --release -p ccl-plan --example verify -- 64`

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ccl_plan::verify::mutate::mutations;
use ccl_plan::verify::{Depth, VerifyReport, plans, verify};

fn main() {
    let max_ranks = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(16);
    let plans: Vec<_> = plans(1..=max_ranks).collect();
    let (next, total) = (AtomicUsize::new(0), Mutex::new(VerifyReport::default()));
    let start = Instant::now();
    let work = || {
        while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            let damaged = |report: VerifyReport| {
                let mutations = mutations(plan, 1, if plan.n() <= 16 { 64 } else { 0 })?;
                Ok((report, mutations))
            };
            match verify(plan, Depth::Full).and_then(damaged) {
                Ok((report, mutations)) => {
                    let mut total = total.lock().expect("no verifier panics");
                    *total += &report;
                    *total += &mutations;
                }
                Err(witness) => {
                    eprintln!("{witness}");
                    std::process::exit(1);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    println!("{:#?}\n{:.1?}", total.lock().expect("no verifier panics"), start.elapsed());
}
