//! Disagreement, absence and abort: who is named, and how soon.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ccl::{Buffers, Communicator, Config, Fault, Rank, ReduceOp, Request, Result, UniqueId, local};
use ccl_tests::Stolen;

const DEADLINE: Duration = Duration::from_secs(2);
/// How long after it an error may take.
const SOON: Duration = Duration::from_secs(2);

#[test]
fn a_different_count_dtype_operation_or_root_names_the_rank_and_both_signatures() {
    let calls: [(&str, Call); 4] = [
        ("1001", |comm| comm.all_reduce_in_place(&mut [0f32; 1001], ReduceOp::Sum)),
        ("int32", |comm| comm.all_reduce_in_place(&mut [0i32; 1000], ReduceOp::Sum)),
        ("max", |comm| comm.all_reduce_in_place(&mut [0f32; 1000], ReduceOp::Max)),
        ("broadcast", |comm| comm.broadcast(&mut [0f32; 1000], Rank(1))),
    ];
    for (odd, call) in calls {
        let (started, stolen) = (Instant::now(), Stolen::watch());
        let errors = failures(4, |comm| {
            comm.barrier()?;
            if comm.rank() == Rank(3) {
                call(comm)?
            } else {
                usual(comm)?
            }
            comm.barrier()
        });
        let took = started.elapsed();
        assert!(took < DEADLINE + SOON + stolen.so_far(), "{odd}: {took:?}");
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
    let (started, stolen) = (Instant::now(), Stolen::watch());
    let errors = failures(4, |comm| {
        comm.barrier()?;
        if comm.rank() != Rank(2) {
            usual(comm)?;
        } else {
            return told(comm, 10 * DEADLINE);
        }
        Ok(())
    });
    let took = started.elapsed();
    assert!(took < DEADLINE + SOON + stolen.so_far(), "{took:?}");
    for error in errors {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(2) }, "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}

#[test]
fn a_message_that_does_not_fit_is_told_to_all_at_once() {
    let (started, stolen) = (Instant::now(), Stolen::watch());
    // So long that nothing but the message can end a call.
    let config = Config::from_vars([("CCL_TIMEOUT", "60s")]).unwrap();
    let errors = failures_with(&config, 3, |comm| {
        comm.barrier()?;
        match comm.rank().0 {
            0 => {
                let first = comm.recv(&mut [0f32; 10], Rank(1)).unwrap_err();
                assert_eq!(usual(comm).unwrap_err(), first);
                return Err(first);
            }
            1 => comm.send(&[1f32; 20], Rank(0))?,
            _ => {}
        }
        usual(comm)
    });
    let took = started.elapsed();
    assert!(took < 2 * SOON + stolen.so_far(), "{took:?}");
    for error in errors {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(1) }, "{error}");
        assert!(error.cause().contains("expected a message of this call from rank 1"), "{error}");
    }
}

#[test]
fn a_message_that_never_comes_is_told_to_all() {
    let (started, stolen) = (Instant::now(), Stolen::watch());
    let errors = failures(3, |comm| {
        comm.barrier()?;
        match comm.rank().0 {
            0 => comm.recv(&mut [0f32; 10], Rank(1)),
            _ => told(comm, 10 * DEADLINE),
        }
    });
    let took = started.elapsed();
    assert!(took < DEADLINE + SOON + stolen.so_far(), "{took:?}");
    assert_eq!((errors[0].fault(), errors[0].peer()), (&Fault::Timeout, Some(Rank(1))));
    for error in &errors {
        assert!(error.cause().contains("expected rank 1 to take part within 2s"), "{error}");
    }
    for error in &errors[1..] {
        assert_eq!(error.fault(), &Fault::Remote { rank: Rank(1) }, "{error}");
    }
}

#[test]
fn a_rank_that_never_joins_is_named_with_those_present() {
    for config in [config(), out_of_band()] {
        expect_missing_rank_named(&config);
    }
}

#[test]
fn a_rank_without_the_device_for_infos_out_of_band_is_named_by_all_with_its_devices() {
    let id = UniqueId::generate_local(&config()).unwrap();
    let joining: Vec<_> = (0..3)
        .map(|rank| {
            let names = if rank == 1 { "nosuch0" } else { "^nosuch0" };
            let vars = [("CCL_TIMEOUT", "20s"), ("NCCL_OOB_NET_ENABLE", "1"), ("NCCL_OOB_NET_IFNAME", names)];
            let config = Config::from_vars(vars).unwrap();
            Communicator::init_rank_nonblocking(&id, Rank(rank), 3, &config).unwrap()
        })
        .collect();
    for joining in joining {
        let error = joining.wait().unwrap_err().to_string();
        assert!(error.contains("CCL_OOB_NET_IFNAME=nosuch0 allows, found "), "{error}");
        assert!(error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_network_that_cannot_be_had_is_named_before_anybody_waits_for_it() {
    for net in ["none", "ib"] {
        let vars = [("CCL_TIMEOUT", "20s"), ("CCL_OOB_NET_ENABLE", "1"), ("CCL_NET", net)];
        let (config, started) = (Config::from_vars(vars).unwrap(), Instant::now());
        for result in local::try_run_with(&config, 2, |comm| comm.barrier()).unwrap() {
            let error = result.unwrap_err().to_string();
            assert!(
                error.contains(&format!("expected the network {net} (CCL_NET), found socket")),
                "{error}"
            );
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[test]
fn one_rank_needs_no_network_for_its_infos() {
    let vars = [("CCL_OOB_NET_ENABLE", "1"), ("CCL_OOB_NET_IFNAME", "nosuch0")];
    let config = Config::from_vars(vars).unwrap();
    local::run_with(&config, 1, |comm| comm.barrier()).unwrap();
    // And a communicator of several that is split into single ranks.
    let config = Config::from_vars(vars.into_iter().take(1)).unwrap();
    local::run_with(&config, 2, |comm| {
        comm.split(Some(comm.rank().0), 0)?.map_or(Ok(()), |one| one.barrier())
    })
    .unwrap();
}

fn expect_missing_rank_named(config: &Config) {
    let id = UniqueId::generate_local(config).unwrap();
    let (started, stolen) = (Instant::now(), Stolen::watch());
    let joining: Vec<_> = [0, 1, 3]
        .map(|rank| Communicator::init_rank_nonblocking(&id, Rank(rank), 4, config).unwrap())
        .into_iter()
        .collect();
    for joining in joining {
        let error = joining.wait().unwrap_err().to_string();
        assert!(error.contains("missing: rank 2"), "{error}");
        assert!(error.contains("rank 0 at") && error.contains("rank 3 at"), "{error}");
    }
    let took = started.elapsed();
    assert!(took < DEADLINE + SOON + stolen.so_far(), "{took:?}");
}

#[test]
fn an_abort_ends_blocked_calls_everywhere_at_once() {
    static ABORTED: OnceLock<Instant> = OnceLock::new();
    let stolen = Stolen::watch();
    // So long that nothing but the abort can end a call.
    let config = Config::from_vars([("CCL_TIMEOUT", "60s")]).unwrap();
    let errors = failures_with(&config, 3, |comm| {
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
        if comm.rank() == Rank(0) { told(comm, 30 * DEADLINE) } else { usual(comm) }
    });
    let since = ABORTED.get().unwrap().elapsed();
    assert!(since < SOON + stolen.so_far(), "{since:?}");
    for error in errors {
        assert!(error.to_string().contains("the operator said so"), "{error}");
    }
}

#[test]
fn settings_that_differ_are_shown_with_both_values() {
    for (name, values) in [("CCL_SLOTS", ["4", "8"]), ("CCL_OOB_NET_ENABLE", ["0", "1"])] {
        let id = UniqueId::generate_local(&config()).unwrap();
        let join = |(rank, value)| {
            let config = Config::from_vars([(name, value)]).unwrap();
            Communicator::init_rank_nonblocking(&id, Rank(rank), 2, &config).unwrap()
        };
        let joining: Vec<_> = (0..).zip(values).map(join).collect();
        for joining in joining {
            let error = joining.wait().unwrap_err().to_string();
            assert!(values.iter().any(|value| error.contains(&format!("{name} = {value}"))), "{error}");
            assert!(error.contains("rank 0") && error.contains("rank 1"), "{error}");
        }
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

/// Other ranks make no group, so whatever was launched would be taken for the call after it.
#[test]
fn a_usage_error_in_a_group_launches_none_of_its_calls() {
    local::run_with(&config(), 2, |comm| {
        comm.barrier()?;
        let alone = Communicator::alone(&config())?;
        let (mut sum, mut short, mut kept) = ([1_u32; 4], [0_u8; 3], [9_u8; 2]);
        if comm.rank() == Rank(0) {
            let refused = ccl::group(|group| {
                group.add(&comm, Request::all_reduce_in_place(&mut sum, ReduceOp::Sum));
                group.add(&comm, Request::broadcast(&mut short, Rank(2)));
                Ok(())
            });
            let error = refused.unwrap_err();
            assert_eq!(error.fault(), &Fault::Usage, "{error}");
            assert!(error.to_string().contains("below 2"), "{error}");
            // Of another communicator than the one whose call is refused.
            let refused = ccl::group(|group| {
                group.add(&alone, Request::all_gather(&[5_u8; 2], &mut kept));
                group.add(&comm, Request::broadcast(&mut short, Rank(3)));
                Ok(())
            });
            assert!(refused.unwrap_err().to_string().contains("below 2"));
            assert_eq!(kept, [9; 2]);
            // And of one that takes no calls now.
            alone.suspend()?;
            let refused = ccl::group(|group| {
                group.add(&comm, Request::all_reduce_in_place(&mut sum, ReduceOp::Sum));
                group.add(&alone, Request::all_gather(&[5_u8; 2], &mut kept));
                Ok(())
            });
            assert_eq!(refused.unwrap_err().fault(), &Fault::Usage);
        }
        comm.all_gather(&[comm.rank().0 as u8], &mut kept)?;
        assert_eq!((kept, sum), ([0, 1], [1; 4]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_a_call_without_a_root_says_of_one_is_ignored() {
    local::run(2, |comm| {
        for root in [0, 7, u32::MAX] {
            let mut sum = [comm.rank().0 + 1; 3];
            let request = Request::all_reduce_in_place(&mut sum, ReduceOp::Sum);
            comm.run(Request { root: Rank(root), ..request })?;
            assert_eq!(sum, [3; 3]);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_like_earlier_ones_are_held_to_the_same() {
    local::run(2, |comm| {
        let mine = comm.rank().0 as f32;
        for round in 0..3 {
            let mut sum = [0f32; 4];
            comm.all_reduce(&[mine; 4], &mut sum, ReduceOp::Sum)?;
            assert_eq!(sum, [1.0; 4]);
            for short in [(4, 3), (3, 4), (0, 4), (4, 0)] {
                let mut recv = vec![0f32; short.1];
                let error = comm.all_reduce(&vec![mine; short.0], &mut recv, ReduceOp::Sum).unwrap_err();
                assert_eq!(error.fault(), &Fault::Usage, "{short:?}: {error}");
            }
            // The same call by all but its buffers: longer ones, one for both, and apart again.
            let mut long = [7f32; 6];
            let send = [mine; 4];
            comm.run(Request { count: 4, ..Request::all_reduce(&send, &mut long, ReduceOp::Sum) })?;
            assert_eq!(long, [1.0, 1.0, 1.0, 1.0, 7.0, 7.0]);
            let mut both = [mine; 4];
            comm.all_reduce_in_place(&mut both, ReduceOp::Sum)?;
            assert_eq!(both, [1.0; 4]);
            let me = comm.rank().0 as u8;
            let mut blocks = [9; 2];
            comm.all_gather(&[me], &mut blocks)?;
            assert_eq!(blocks, [0, 1], "round {round}");
            let mut blocks = [9; 2];
            blocks[usize::from(me)] = me;
            comm.run(Request {
                buffers: Buffers::InPlace(&mut blocks),
                ..Request::all_gather(&[me], &mut [0; 2])
            })?;
            assert_eq!(blocks, [0, 1], "in place, round {round}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn nothing_is_left_after_many_communicators() {
    local::run(2, |_| Ok(())).unwrap();
    let before = resources();
    for config in [config(), out_of_band()].iter().cycle().take(10) {
        local::run_with(config, 3, |comm| comm.barrier()).unwrap();
    }
    let patience = Instant::now();
    while resources() != before && patience.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(resources(), before, "descriptors or mappings of shared memory");
}

type Call = fn(&Communicator) -> Result<()>;

fn usual(comm: &Communicator) -> Result<()> {
    comm.all_reduce_in_place(&mut [0f32; 1000], ReduceOp::Sum)
}

/// Waits in no call until the communicator fails, and is told nevertheless.
fn told(comm: &Communicator, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        if let Some(error) = comm.async_error() {
            return Err(error);
        }
    }
    Ok(())
}

fn config() -> Config {
    Config::from_vars([("CCL_TIMEOUT", "2s")]).unwrap()
}

fn out_of_band() -> Config {
    Config::from_vars([("CCL_TIMEOUT", "2s"), ("CCL_OOB_NET_ENABLE", "1")]).unwrap()
}

/// The error of every rank; each must have one.
fn failures(n: u32, body: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<ccl::Error> {
    failures_with(&config(), n, body)
}

fn failures_with(
    config: &Config,
    n: u32,
    body: impl Fn(&Communicator) -> Result<()> + Sync,
) -> Vec<ccl::Error> {
    let results = local::try_run_with(config, n, |comm| body(&comm)).unwrap();
    results.into_iter().map(|result| result.expect_err("every rank fails")).collect()
}

/// Descriptors, and mappings of anonymous files, of this process. Tests of this binary run side by
/// side, so only what this library calls its own is counted.
fn resources() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:ccl")).count()
}
