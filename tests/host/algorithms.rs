//! Every algorithm of every collective, forced, with every small number of ranks and some larger ones.

use std::time::Instant;

use ccl_plan::{Collective, Dtype, algorithms};
use ccl_tests::exercise;

use crate::matrix::{config, sweep_of};

/// How ranks that are threads reach each other.
const PATHS: [(&str, (&str, &str)); 3] = [
    ("memory", ("CCL_DIRECT_BYTES", "0")),
    ("memory, read directly", ("CCL_DIRECT_BYTES", "1")),
    ("sockets", ("CCL_SHM_DISABLE", "1")),
];

#[test]
#[ignore = "takes long: a step of `scripts/test long`"]
fn every_algorithm_with_every_number_of_ranks() {
    let collectives: Vec<Collective> = exercise::collectives().collect();
    let most = collectives.iter().map(|collective| algorithms(*collective).len()).max().unwrap();
    for n in (2..=17).chain([33, 64]) {
        for (path, setting) in PATHS {
            let start = Instant::now();
            for turn in 0..most {
                let forced = exercise::forced(&collectives, n, turn);
                let config = config(&[("CCL_ALGO", &forced), setting]);
                sweep_of(&config, n, &[1, 67], &Dtype::ALL, &collectives);
            }
            println!("{n} ranks, {path}: {most} algorithms of each collective, {:?}", start.elapsed());
        }
    }
}
