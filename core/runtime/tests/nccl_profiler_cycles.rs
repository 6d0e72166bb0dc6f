//! Communicators under profilers made for NCCL, made and ended a hundred times: alone in their process, so that nobody
//! else opens anything meanwhile.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use std::time::{Duration, Instant};

use ccl::{Config, ReduceOp, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, is_content, profiler, tell};

#[test]
fn a_hundred_communicators_leave_nothing_behind() {
    for version in 1..=6 {
        let file = profiler(&format!("nccl_prof_cycles_{version}"), version, &[]);
        let vars = [("CCL_PROFILER_PLUGIN", &*file), ("CCL_TIMEOUT", "120s")];
        let config = Config::from_vars(vars).unwrap();
        let cycle = || {
            let sums = local::run_with(&config, 2, |comm| {
                let mut sum = [comm.rank().0 + 1; 17];
                comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                Ok(sum)
            });
            assert_eq!(sums.unwrap(), [[3; 17]; 2]);
            is_content(&file, version);
        };
        // What is kept for the life of the process is there after the first.
        cycle();
        let before = (settled(), entries("fd"));
        for _ in 0..99 {
            cycle();
        }
        let after = (settled(), entries("fd"));
        assert!(after.0 <= before.0 && after.1 <= before.1, "version {version}: {before:?}, then {after:?}");
        assert_eq!(ask(&file, "toy_inits", version), 200, "the same plugin each time, which nobody unloaded");
        assert_eq!(tell(&file, "toy_events", version, 1), 200);
        assert_eq!(mapped(&file), 1, "{file}");
    }
}

/// Threads once those that are ending have ended.
fn settled() -> usize {
    let begun = Instant::now();
    while entries("task") > TEST_THREADS && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    entries("task")
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{folder}")).unwrap().count()
}

/// How many times the code of a library is there.
fn mapped(file: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(file) && line.contains("r-xp")).count()
}

/// The harness's own and the test's.
const TEST_THREADS: usize = 2;
