//! Everything against the oracle.

use ccl::{Collective, Communicator, Config, Dtype, Rank, ReduceOp, Result, local};
use ccl_plan::Algorithm;
use ccl_tests::exercise::{self, Placement};

#[test]
fn every_dtype_and_operation_in_shared_memory() {
    for n in [1, 2, 3, 4, 5, 8] {
        sweep(&config(&[]), n, &[0, 1, 7, 1031], &Dtype::ALL);
    }
}

#[test]
fn everything_read_directly() {
    let reason = local::run(2, |comm| Ok(comm.path(Rank(1 - comm.rank().0))?.reason)).unwrap().swap_remove(0);
    if reason.contains("process_vm_readv") {
        return ccl_tests::skip("everything_read_directly", &reason);
    }
    assert!(reason.ends_with("long messages may be read directly"), "{reason}");
    for n in [2, 3, 5] {
        sweep(&config(&[("CCL_DIRECT_BYTES", "1")]), n, &[1, 1031], &Dtype::ALL);
    }
    let few = [("CCL_DIRECT_BYTES", "1"), ("CCL_BUFFSIZE", "8K"), ("CCL_SLOTS", "2")];
    for n in [2, 7] {
        sweep(&config(&few), n, &[5000, 500_001], &[Dtype::F16]);
    }
}

#[test]
fn nothing_read_directly() {
    for n in [2, 5] {
        sweep(&config(&[("CCL_DIRECT_BYTES", "0")]), n, &[(1 << 17) + 3], &[Dtype::F32]);
    }
}

#[test]
fn every_dtype_and_operation_over_sockets() {
    let reason = |comm: Communicator| Ok(comm.path(Rank(1 - comm.rank().0))?.reason);
    for reason in local::run_with(&over_sockets(), 2, reason).unwrap() {
        assert!(reason.ends_with("long messages are sent from user memory"), "{reason}");
    }
    for n in [2, 3] {
        sweep(&over_sockets(), n, &[0, 1, 1031], &Dtype::ALL);
    }
}

#[test]
fn sizes_beyond_every_slot() {
    let config = config(&[("CCL_BUFFSIZE", "64K")]);
    for (n, dtype, count) in [(2, Dtype::F32, (1 << 19) + 3), (3, Dtype::U8, (1 << 20) + 3)] {
        sweep(&config, n, &[count], &[dtype]);
    }
    // Over sockets, the longest piece that is lent and a bit more.
    sweep(&over_sockets(), 2, &[(1 << 20) + 3], &[Dtype::U8]);
}

#[test]
fn the_fewest_and_smallest_slots() {
    let config = config(&[("CCL_BUFFSIZE", "8K"), ("CCL_SLOTS", "2")]);
    for n in [2, 4, 7] {
        sweep(&config, n, &[5000], &[Dtype::I32]);
    }
}

#[test]
fn every_algorithm_forced() {
    for collective in exercise::collectives() {
        for algorithm in ccl_plan::algorithms(collective) {
            let forced = format!("{collective}:{algorithm}");
            for direct in ["0", "1"] {
                let config = config(&[("CCL_ALGO", &forced), ("CCL_DIRECT_BYTES", direct)]);
                for (n, dtype) in [(2, Dtype::F32), (3, Dtype::Bf16), (6, Dtype::F32)] {
                    sweep_of(&config, n, &[0, 1, 40_000], &[dtype], &[collective]);
                }
            }
        }
    }
}

/// Trees and exchanges are of another shape for nearly every number of ranks; all of them are among the tests that
/// take long.
#[test]
fn logarithmic_algorithms_for_every_small_number_of_ranks() {
    for collective in exercise::collectives() {
        for algorithm in ccl_plan::algorithms(collective).iter().filter(|a| is_logarithmic(**a)) {
            let forced = format!("{collective}:{algorithm}");
            // Several passes even of short vectors.
            let small = config(&[("CCL_ALGO", &forced), ("CCL_BUFFSIZE", "8K"), ("CCL_SLOTS", "2")]);
            for n in [4, 7, 9] {
                sweep_of(&small, n, &[1, 5000], &[Dtype::I32], &[collective]);
            }
            let sockets = config(&[("CCL_ALGO", &forced), ("CCL_SHM_DISABLE", "1")]);
            for n in [3, 8] {
                sweep_of(&sockets, n, &[40_000], &[Dtype::F32], &[collective]);
            }
        }
    }
}

fn is_logarithmic(algorithm: Algorithm) -> bool {
    use Algorithm::{Direct, Dissemination, OneShot, Ring, TwoShot};
    ![Ring, OneShot, TwoShot, Direct, Dissemination].contains(&algorithm)
}

#[test]
fn sixty_four_ranks() {
    sweep(&config(&[]), 64, &[1, 1031], &[Dtype::I32]);
}

fn over_sockets() -> Config {
    config(&[("CCL_SHM_DISABLE", "1")])
}

/// Ranks are threads, whose buffers are mapped: off unless asked for, so that slots and lending are tested.
pub(crate) fn config(settings: &[(&'static str, &str)]) -> Config {
    // Of several values the first counts.
    let usual = [("CCL_TIMEOUT", "30s"), ("CCL_DEBUG", "WARN"), ("CCL_MAPPED_BYTES", "0")];
    Config::from_vars([settings, &usual].concat()).unwrap()
}

fn sweep(config: &Config, n: u32, counts: &[usize], dtypes: &[Dtype]) {
    sweep_of(config, n, counts, dtypes, &exercise::collectives().collect::<Vec<_>>());
}

pub(crate) fn sweep_of(
    config: &Config,
    n: u32,
    counts: &[usize],
    dtypes: &[Dtype],
    collectives: &[Collective],
) {
    let wrong = local::run_with(config, n, |comm| {
        let mut wrong = Vec::new();
        for collective in collectives {
            for dtype in dtypes {
                for op in ops(*collective) {
                    for count in counts {
                        wrong.extend(both_placements(&comm, (*collective, *dtype, *op), *count)?);
                    }
                }
            }
        }
        comm.barrier()?;
        Ok(wrong)
    });
    let wrong: Vec<_> = wrong.unwrap().into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn ops(collective: Collective) -> &'static [ReduceOp] {
    if collective.reduces() { &ReduceOp::ALL } else { &[ReduceOp::Sum] }
}

fn both_placements(
    comm: &Communicator,
    what: (Collective, Dtype, ReduceOp),
    count: usize,
) -> Result<Vec<String>> {
    let n = comm.size();
    let counts = exercise::uneven_counts(what.0, n, count);
    let root = Rank(count as u32 % n);
    let case = exercise::case(what, (n, root), count, &counts);
    let mut wrong = Vec::new();
    for placement in [Placement::OutOfPlace, Placement::InPlace] {
        wrong.extend(exercise::run(comm, &case, placement, count as u64 + 1)?);
    }
    Ok(wrong)
}
