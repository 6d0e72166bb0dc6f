//! What the clock of a profiler that was made for NCCL says: alone in its process, whose profilers share a thread.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use std::time::Duration;

use ccl::{Config, Rank, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{is_content, profiler, tell};

/// Such profilers take times when they are called, so they are called at the distances of the events.
#[test]
fn events_last_as_long_as_they_took() {
    for version in [2, 6] {
        let file = profiler(&format!("nccl_prof_paced_{version}"), version, &["-DTOY_MASK=2"]);
        let vars = [("CCL_PROFILER_PLUGIN", &*file), ("CCL_TIMEOUT", "120s")];
        let config = Config::from_vars(vars).unwrap();
        // Other programs may keep the delivering thread off its core: one round without them is enough.
        let rounds: Vec<i32> = (0..ROUNDS).map(|_| lasting(&config, &file, version)).collect();
        // Told of in lots of a millisecond, one in three would last at all.
        assert!(
            rounds.iter().any(|lasting| *lasting > CALLS / 2),
            "version {version}: {rounds:?} of {CALLS}"
        );
        is_content(&file, version);
        assert_eq!(tell(&file, "toy_events", version, 1), 2 * CALLS * ROUNDS);
    }
}

/// How many collectives lasted a while to the profiler, of those in which rank 0 waited.
fn lasting(config: &Config, file: &str, version: u32) -> i32 {
    let before = tell(file, "toy_lasting", version, 1);
    let ranks = local::run_with(config, 2, |comm| {
        (0..CALLS).try_for_each(|_| {
            if comm.rank() == Rank(1) {
                std::thread::sleep(Duration::from_micros(200));
            }
            comm.barrier()
        })
    });
    ranks.unwrap();
    tell(file, "toy_lasting", version, 1) - before
}

const CALLS: i32 = 100;
const ROUNDS: i32 = 5;
