//! Settings that one rank alone has, and that the others need not know of.

use crate::pool::{self, Worker};

#[test]
fn faults_of_one_rank_change_nothing_that_ranks_agree_on() {
    let fault = "CCL_FAULT=delay:us=20";
    for all in ["", "CCL_SHM_DISABLE=1"] {
        // Both ends of some edges, with ranks that share cores.
        for (n, alone) in [(2, 1), (4, 0), (4, 3)] {
            let mut workers: Vec<Worker> = (0..n)
                .map(|rank| {
                    Worker::start_with(&if rank == alone { format!("{all},{fault}") } else { all.to_owned() })
                })
                .collect();
            for work in ["check", "20"] {
                pool::join(&mut workers.iter_mut().collect::<Vec<_>>(), "30s", work);
                for (rank, worker) in workers.iter().enumerate() {
                    assert_eq!(worker.result().1, Ok(()), "{all} {n} {alone}: rank {rank}, {work}");
                }
            }
        }
    }
}
