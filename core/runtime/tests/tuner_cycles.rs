//! Communicators with a tuner, made and ended a hundred times: alone in their process, so that nobody else opens or
//! starts anything meanwhile.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use std::time::{Duration, Instant};

use ccl::{Config, ReduceOp, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, toy_tuner};

#[test]
fn a_hundred_communicators_leave_nothing_behind() {
    for version in [3, 6] {
        let file = toy_tuner(&format!("tuner_cycles_{version}"), &[version], &[]);
        let config = Config::from_vars([("CCL_TUNER_PLUGIN", file.as_str())]).unwrap();
        let cycle = || {
            let sums = local::run_with(&config, 2, |comm| {
                let mut sum = [comm.rank().0 + 1; 17];
                comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                Ok(sum)
            });
            assert_eq!(sums.unwrap(), [[3; 17]; 2]);
            assert_eq!(ask(&file, "toy_tuner_live", version), 0);
        };
        // What is kept for the life of the process is there after the first.
        cycle();
        let before = (count("fd"), count("task"));
        for _ in 0..99 {
            cycle();
        }
        // The root of the last may not be gone yet, as little as that of the first.
        let patience = Instant::now();
        let left = loop {
            let left = (count("fd"), count("task"));
            if left.0 <= before.0 && left.1 <= before.1 || patience.elapsed() > Duration::from_secs(30) {
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(left.0 <= before.0 && left.1 <= before.1, "{left:?}: {before:?}");
        assert_eq!(ask(&file, "toy_tuner_inits", version), 100);
    }
}

fn count(of: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count()
}
