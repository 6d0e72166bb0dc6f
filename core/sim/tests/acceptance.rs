//! What the simulator must show: published figures, and its own speed.
#![expect(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use std::time::Instant;

use ccl_plan::machine::Case;
use ccl_plan::machine::clock::Link;
use ccl_plan::{Algorithm, Channel, Collective, Plan, Rank};
use ccl_sim::{Clocks, Costs, Job, Swept, even_case, sweep};

/// Nodes of six ranks.
fn nodes_of_six(from: Rank, to: Rank, _: Channel) -> Link {
    match from.0 / 6 == to.0 / 6 {
        true => Link { alpha_ns: 1000.0, beta_ns_per_byte: 0.02 },
        false => Link { alpha_ns: 2700.0, beta_ns_per_byte: 0.08 },
    }
}

/// Seconds of the host's time, and what was found.
fn timed(algorithm: Algorithm, case: &Case, clocks: Clocks) -> (f64, Swept) {
    let start = Instant::now();
    let plan = Plan::new(Collective::AllReduce, algorithm, case.n).unwrap();
    let job = Job::new(&plan, case, 4).unwrap();
    let swept = sweep(&job, &Costs { link: nodes_of_six, gamma_ns_per_byte: 0.001 }, clocks).unwrap();
    (start.elapsed().as_secs_f64(), swept)
}

#[test]
fn sweeps_are_fast() {
    let ring = Case { chunk_count: 1 << 18, ..even_case(24_576, 24_576 << 10) };
    // Not a multiple: chunks of 44 KiB, the last of them empty.
    let uneven = Case { grain_count: 4, ..Case { count: 1 << 28, ..ring.clone() } };
    let tree = Case { chunk_count: 1 << 17, ..even_case(24_576, 16 << 20) };
    let large = Case { n: 100_000, ..tree.clone() };
    for (what, algorithm, case, clocks, limit_s) in [
        ("ring, 24,576 ranks, 96 MiB", Algorithm::Ring, &ring, Clocks::Full, 2.0),
        ("ring, 24,576 ranks, 1 GiB", Algorithm::Ring, &uneven, Clocks::Full, 2.0),
        ("ring, 24,576 ranks, 96 MiB, shared clocks", Algorithm::Ring, &ring, Clocks::Shared, 0.1),
        ("double tree, 24,576 ranks, 64 MiB", Algorithm::DoubleTree, &tree, Clocks::Full, 0.1),
        ("double tree, 100,000 ranks, 64 MiB", Algorithm::DoubleTree, &large, Clocks::Full, 1.0),
    ] {
        let (seconds, swept) = timed(algorithm, case, clocks);
        println!("{what}: {seconds:.3} s for {} steps, {:.0} µs", swept.steps, swept.finish_ns / 1e3);
        assert!(seconds < limit_s, "{what}: {seconds} s");
    }
}
