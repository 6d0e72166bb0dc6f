//! Buffers that all ranks reach, as those of threads are: the special paths against the oracle and against
//! the plans.

use ccl::{Buffers, Collective, Config, Dtype, Rank, Reduce, ReduceOp, Request, Result, local};

use crate::matrix::{config, sweep_of};

#[test]
fn every_dtype_and_operation_between_mapped_buffers() {
    for n in [2, 3, 4, 5, 8] {
        sweep_of(&always(&[]), n, &[1, 7, 1031], &Dtype::ALL, &WITH_A_PATH);
    }
}

#[test]
fn several_visits() {
    // Longer than a visit.
    for (n, count) in [(2, 700_001), (3, 400_003), (7, 300_007)] {
        sweep_of(&always(&[]), n, &[count], &[Dtype::F32], &WITH_A_PATH);
    }
}

#[test]
fn every_rank_may_have_a_scalar_of_its_own() {
    for n in [2, 5] {
        let sums = local::run_with(&always(&[]), n, |comm| {
            let mut values = vec![1.0f64; 3001];
            let scalar = f64::from(1 << comm.rank().0);
            comm.all_reduce_in_place(&mut values, Reduce::pre_mul_sum(scalar))?;
            Ok(values)
        });
        let expected = f64::from((1 << n) - 1);
        assert!(sums.unwrap().iter().flatten().all(|sum| *sum == expected));
    }
}

#[test]
fn the_bits_are_those_of_the_plan() {
    for n in [2, 5, 8] {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F8E4m3] {
            for op in ReduceOp::ALL {
                for count in [3, 60_001] {
                    let results =
                        [always(&[]), config(&[])].map(|config| bits(&config, n, (dtype, op), count));
                    assert!(results[0] == results[1], "{dtype} {op} n = {n} count = {count}");
                }
            }
        }
    }
}

/// What all ranks get of inputs of every magnitude, so that the order of folding shows.
fn bits(config: &Config, n: u32, (dtype, op): (Dtype, ReduceOp), count: usize) -> Vec<Vec<u8>> {
    let config = Config::builder()
        .vars(config.resolved().iter().map(|one| (one.setting.name, one.value.clone())))
        .set("CCL_ALGO", "allreduce:two_shot;reducescatter:direct");
    let body = |comm: ccl::Communicator| -> Result<Vec<u8>> {
        let size = dtype.size_bytes();
        let mut state = u64::from(comm.rank().0) << 32 | 1;
        let mut send = vec![0; count * size * n as usize];
        for byte in &mut send {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        let mut results = Vec::new();
        for (collective, send_bytes) in
            [(Collective::AllReduce, count * size), (Collective::ReduceScatter, count * size * n as usize)]
        {
            let mut recv = vec![0; count * size];
            comm.run(Request {
                collective,
                dtype,
                reduce: if op == ReduceOp::PreMulSum { Reduce::pre_mul_sum(0.3) } else { op.into() },
                count,
                root: Rank(0),
                buffers: Buffers::Separate { send: &send[..send_bytes], recv: &mut recv },
                blocks: None,
            })?;
            results.extend(recv);
        }
        Ok(results)
    };
    local::run_with(&config.build().unwrap(), n, body).unwrap()
}

#[test]
fn a_broadcast_from_a_buffer_apart_reaches_the_root_as_well() {
    local::run_with(&always(&[]), 3, |comm| {
        let (sent, mut got) = (vec![7u8; 100_000], vec![0u8; 100_000]);
        let root = Rank(1);
        comm.run(Request {
            buffers: Buffers::Separate {
                send: if comm.rank() == root { &sent } else { &[] },
                recv: &mut got,
            },
            root,
            ..Request::broadcast(&mut [0u8; 100_000], root)
        })?;
        assert!(got == sent);
        Ok(())
    })
    .unwrap();
}

#[test]
fn memory_is_registered_and_dropped_in_any_order() {
    for n in [1, 3] {
        local::run_with(&always(&[]), n, |comm| {
            let mut kept = ccl::mem_alloc(40_000)?;
            let first = comm.register(&kept)?;
            let second = comm.register(&ccl::mem_alloc(0)?)?;
            assert_eq!((first.refusal(), second.refusal()), (None, None));
            if comm.rank() == Rank(0) {
                drop(first);
            }
            let values = kept.as_mut_slice::<i64>();
            values.fill(1);
            comm.all_reduce_in_place(values, ReduceOp::Sum)?;
            assert!(values.iter().all(|value| *value == i64::from(comm.size())));
            drop(comm);
            drop(second);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn memories_of_different_lengths_are_refused_and_nothing_has_happened() {
    local::run_with(&always(&[]), 3, |comm| {
        let memory = ccl::mem_alloc(1000 + usize::from(comm.rank() == Rank(2)))?;
        let error = comm.register(&memory).unwrap_err();
        assert_eq!(*error.fault(), ccl::Fault::Usage);
        assert!(error.cause().contains("1000 bytes on rank 0 and 1001 on rank 2"), "{error}");
        comm.barrier()
    })
    .unwrap();
}

#[test]
fn a_rank_that_does_something_else_is_named() {
    let config = config(&[("CCL_MAPPED_BYTES", "1"), ("CCL_TIMEOUT", "2s")]);
    let outcomes = local::try_run_with(&config, 3, |comm| {
        let mut values = vec![1f32; if comm.rank() == Rank(1) { 70_001 } else { 70_000 }];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)
    });
    for outcome in outcomes.unwrap() {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("70000") && text.contains("70001"), "{text}");
    }
}

/// One thread drives two ranks: no step may wait for another rank's.
#[test]
fn one_thread_drives_all_ranks() {
    let config = always(&[]);
    let id = ccl::UniqueId::generate_local(&config).unwrap();
    let joining: Vec<_> = (0..2)
        .map(|rank| ccl::Communicator::init_rank_nonblocking(&id, Rank(rank), 2, &config).unwrap())
        .collect();
    let comms: Vec<_> = joining.into_iter().map(|joining| joining.wait().unwrap()).collect();
    let mut buffers = [vec![1u32; 600_000], vec![2u32; 600_000]];
    ccl::group(|group| {
        for (comm, buffer) in comms.iter().zip(&mut buffers) {
            group.add(comm, Request::all_reduce_in_place(buffer, ReduceOp::Sum));
        }
        Ok(())
    })
    .unwrap();
    assert!(buffers.iter().flatten().all(|value| *value == 3));
}

/// Rank 0 gives up in the middle, frees its buffers and goes on; nobody may touch them any more.
#[test]
fn buffers_of_a_rank_that_gives_up_are_left_alone() {
    for round in 0..20 {
        let config = always(&[("CCL_DEBUG", "NONE")]);
        let outcomes = local::try_run_with(&config, 3, |comm| {
            let mut values = vec![1f32; 3 << 20];
            let aborter = comm.aborter();
            std::thread::scope(|scope| {
                if comm.rank() == Rank(0) {
                    scope.spawn(move || {
                        std::thread::sleep(std::time::Duration::from_micros(300 * round));
                        aborter.abort("enough");
                    });
                }
                let mut outcome = Ok(());
                while outcome.is_ok() {
                    values.fill(1.0);
                    outcome = comm.all_reduce_in_place(&mut values, ReduceOp::Sum);
                }
                values.fill(-1.0);
                std::thread::sleep(std::time::Duration::from_millis(3));
                assert!(values.iter().all(|value| *value == -1.0), "written after the call had failed");
                outcome
            })
        });
        for outcome in outcomes.unwrap() {
            let error = outcome.unwrap_err();
            // Who finds the memory withdrawn may report that before the abort has gone round.
            let known = ["enough", "gave up while its buffers were used"];
            assert!(known.iter().any(|cause| error.cause().contains(cause)), "{error}");
        }
    }
}

fn always(more: &[(&'static str, &str)]) -> Config {
    let config = config(&[&[("CCL_MAPPED_BYTES", "1")], more].concat());
    assert_eq!(config.mapped(), 1);
    config
}

const WITH_A_PATH: [Collective; 4] =
    [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Broadcast];
