//! Communicators over plugins made for NCCL, made and ended a hundred times: alone in their process, so that
//! nobody else opens anything meanwhile.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use ccl::{Config, ReduceOp, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, toy};

#[test]
fn a_hundred_communicators_leave_nothing_behind() {
    for version in [9, 12] {
        let file = toy(&format!("nccl_cycles_{version}"), version, &[]);
        let vars = [("CCL_SHM_DISABLE", "1"), ("CCL_NET_PLUGIN", &file), ("CCL_TIMEOUT", "120s")];
        let config = Config::from_vars(vars).unwrap();
        let cycle = || {
            let sums = local::run_with(&config, 2, |comm| {
                let mut sum = [comm.rank().0 + 1; 17];
                comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                Ok(sum)
            });
            assert_eq!(sums.unwrap(), [[3; 17]; 2]);
            assert_eq!(ask(&file, "toy_live", version), 0);
        };
        // What is kept for the life of the process is there after the first.
        cycle();
        let before = descriptors();
        for _ in 0..99 {
            cycle();
        }
        // What served the first may still be closing something then.
        assert!(descriptors() <= before, "{} after {before}", descriptors());
        assert_eq!(ask(&file, "toy_inits", version), if version < 11 { 1 } else { 201 });
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
