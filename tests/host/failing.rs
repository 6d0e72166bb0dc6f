//! Disagreement, absence and abort: who is named, and how soon.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ccl::{Communicator, Config, Fault, Rank, ReduceOp, Result, UniqueId, local};

const DEADLINE: Duration = Duration::from_secs(2);

#[test]
fn a_different_count_dtype_operation_or_root_names_the_rank_and_both_signatures() {
    let calls: [(&str, Call); 4] = [
        ("1001", |comm| comm.all_reduce_in_place(&mut [0f32; 1001], ReduceOp::Sum)),
        ("int32", |comm| comm.all_reduce_in_place(&mut [0i32; 1000], ReduceOp::Sum)),
        ("max", |comm| comm.all_reduce_in_place(&mut [0f32; 1000], ReduceOp::Max)),
        ("broadcast", |comm| comm.broadcast(&mut [0f32; 1000], Rank(1))),
    ];
    for (odd, call) in calls {
        let started = Instant::now();
        let errors = failures(4, |comm| {
            comm.barrier()?;
            if comm.rank() == Rank(3) {
                call(comm)?
            } else {
                usual(comm)?
            }
            comm.barrier()
        });
        assert!(started.elapsed() < DEADLINE + Duration::from_secs(2), "{odd}: {:?}", started.elapsed());
        for error in errors {
            let text = error.to_string();
            assert_eq!(error.fault(), &Fault::Remote { rank: Rank(3) }, "{odd}: {text}");
            assert!(
                text.contains("rank 3") && text.contains(odd) && text.contains("all_reduce of 1000 float"),
                "{odd}: {text}"
            );
        }
    }
}

#[test]
fn a_skipped_call_names_the_rank_that_skipped_it() {
    let started = Instant::now();
    let errors = failures(4, |comm| {
        comm.barrier()?;
        if comm.rank() != Rank(2) {
            usual(comm)?;
        } else {
            std::thread::sleep(DEADLINE + Duration::from_millis(900));
            if let Some(error) = comm.async_error() {
                return Err(error);
            }
        }
        Ok(())
    });
    assert!(started.elapsed() < DEADLINE + Duration::from_secs(2), "{:?}", started.elapsed());
    for error in errors {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) }, "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}

#[test]
fn a_rank_that_never_joins_is_named_with_those_present() {
    let config = config();
    let id = UniqueId::generate_local(&config).unwrap();
    let started = Instant::now();
    let joining: Vec<_> = [0, 1, 3]
        .map(|rank| Communicator::init_rank_nonblocking(&id, Rank(rank), 4, &config).unwrap())
        .into_iter()
        .collect();
    for joining in joining {
        let error = joining.wait().unwrap_err().to_string();
        assert!(error.contains("missing: rank 2"), "{error}");
        assert!(error.contains("rank 0 at") && error.contains("rank 3 at"), "{error}");
    }
    assert!(started.elapsed() < DEADLINE + Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn an_abort_ends_blocked_calls_everywhere_at_once() {
    static ABORTED: OnceLock<Instant> = OnceLock::new();
    let errors = failures(3, |comm| {
        comm.barrier()?;
        if comm.rank() == Rank(1) {
            let aborter = comm.aborter();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                ABORTED.get_or_init(Instant::now);
                aborter.abort("the operator said so");
                aborter.abort("twice");
            });
        }
        if comm.rank() == Rank(0) {
            // In no call, and told nevertheless.
            let told = std::iter::repeat_with(|| {
                std::thread::sleep(Duration::from_millis(10));
                comm.async_error()
            });
            let in_time = |_: &_| ABORTED.get().is_none_or(|aborted| aborted.elapsed() < DEADLINE);
            told.take_while(in_time).flatten().next().map_or(Ok(()), Err)
        } else {
            usual(comm)
        }
    });
    let since = ABORTED.get().unwrap().elapsed();
    assert!(since < DEADLINE, "{since:?}");
    for error in errors {
        assert!(error.to_string().contains("the operator said so"), "{error}");
    }
}

#[test]
fn settings_that_differ_are_shown_with_both_values() {
    let id = UniqueId::generate_local(&config()).unwrap();
    let joining: Vec<_> = ["4", "8"]
        .iter()
        .enumerate()
        .map(|(rank, slots)| {
            let config = Config::from_vars([("CCL_TIMEOUT", "2s"), ("CCL_SLOTS", slots)]).unwrap();
            Communicator::init_rank_nonblocking(&id, Rank(rank as u32), 2, &config).unwrap()
        })
        .collect();
    for joining in joining {
        let error = joining.wait().unwrap_err().to_string();
        assert!(error.contains("CCL_SLOTS = 4") || error.contains("CCL_SLOTS = 8"), "{error}");
        assert!(error.contains("rank 0") && error.contains("rank 1"), "{error}");
    }
}

#[test]
fn usage_errors_leave_the_communicator_whole() {
    local::run(2, |comm| {
        let error = comm.all_reduce(&[1f32; 4], &mut [0f32; 3], ReduceOp::Sum).unwrap_err();
        assert_eq!(error.fault(), &Fault::Usage);
        let error = comm.broadcast(&mut [0u8; 3], Rank(2)).unwrap_err();
        assert!(error.to_string().contains("below 2"), "{error}");
        comm.all_reduce(&[1f32; 4], &mut [0f32; 4], ReduceOp::Sum)
    })
    .unwrap();
}

#[test]
fn nothing_is_left_after_many_communicators() {
    local::run(2, |_| Ok(())).unwrap();
    let before = resources();
    for _ in 0..10 {
        local::run(3, |comm| comm.barrier()).unwrap();
    }
    let patience = Instant::now();
    while resources() != before && patience.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(resources(), before, "descriptors or mappings of shared memory");
}

type Call = fn(&Communicator) -> Result<()>;

fn usual(comm: &Communicator) -> Result<()> {
    comm.all_reduce_in_place(&mut [0f32; 1000], ReduceOp::Sum)
}

fn config() -> Config {
    Config::from_vars([("CCL_TIMEOUT", "2s")]).unwrap()
}

/// The error of every rank; each must have one.
fn failures(n: u32, body: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<ccl::Error> {
    let results = local::try_run_with(&config(), n, |comm| body(&comm)).unwrap();
    results.into_iter().map(|result| result.expect_err("every rank fails")).collect()
}

/// Descriptors, and mappings of anonymous files, of this process. Tests of this binary run side by
/// side, so only what this library calls its own is counted.
fn resources() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:ccl")).count()
}
