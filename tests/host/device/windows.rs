//! Device memory that all ranks register together: who reaches it, what ranks hear, what is left.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ccl::{
    Addresses, Communicator, Config, DeviceBuffer, DeviceWindow, Fault, Rank, ReduceOp, Request, Result,
    local,
};

use super::alone::{Fake, alone, in_processes, joined, settings, stream};

fn buffer(config: &Config, comm: &Communicator, bytes: usize) -> Result<DeviceBuffer> {
    DeviceBuffer::new(config, comm.device().unwrap(), bytes)
}

/// A window, and the buffer if the window is to outlive it.
type Kept = (DeviceWindow, Option<DeviceBuffer>);

/// Windows come and go, in another order on every rank, some before their buffers and some after the communicator.
fn come_and_go(config: &Config, comm: Communicator) -> Result<()> {
    let me = comm.rank().index();
    let mut kept: Vec<Kept> = Vec::new();
    for turn in 0..6 {
        let own = buffer(config, &comm, 4096 * (turn + 1))?;
        let window = comm.register_window(&own)?;
        assert_eq!(window.refusal(), None, "turn {turn}");
        assert_eq!(
            window.registration().unwrap().refusal().is_some(),
            comm.size() == 3,
            "in processes alone"
        );
        kept.push((window, if turn % 2 == 0 { Some(own) } else { None }));
        comm.barrier()?;
        // No rank is in a call now, whose kernel freeing would wait for.
        if turn >= 3 {
            kept.remove((turn + me) % 3);
        }
    }
    drop(comm);
    kept.truncate(me + 1);
    Ok(())
}

#[test]
fn threads_register_windows_and_leave_nothing() {
    alone(module_path!(), "threads_register_windows_and_leave_nothing", &[], |fake| {
        for device in ["0", "local"] {
            let config = settings(&[("CCL_DEVICE", device)]);
            local::run_with(&config, 2, |comm| come_and_go(&config, comm)).unwrap();
            fake.assert_nothing_is_left("windows of threads");
        }
    });
}

#[test]
fn threads_borrow_from_windows_as_from_registered_buffers() {
    alone(module_path!(), "threads_borrow_from_windows_as_from_registered_buffers", &[], |fake| {
        let config = settings(&[("CCL_PROTO", "simple"), ("CCL_ALGO", "all_reduce:two_shot")]);
        local::run_with(&config, 2, |comm| {
            let mut own = buffer(&config, &comm, 40_000)?;
            let window = comm.register_window(&own)?;
            comm.run_at(reduce(10_000), Addresses::in_place(&mut own))?;
            assert_eq!(window.registration().unwrap().calls(), 1);
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("lending from windows");
    });
}

#[test]
fn processes_register_windows_and_leave_nothing() {
    alone(module_path!(), "processes_register_windows_and_leave_nothing", &[], |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        in_processes((3, 1), &config, |comm| come_and_go(&config, comm));
        fake.assert_nothing_is_left("windows of processes");
    });
}

#[test]
fn every_rank_reaches_the_memory_of_all() {
    alone(module_path!(), "every_rank_reaches_the_memory_of_all", &[], |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        let reaches = |comm: Communicator| reaches(fake, &config, &comm);
        local::run_with(&config, 3, reaches).unwrap();
        in_processes((3, 1), &config, reaches);
        fake.assert_nothing_is_left("reaching others");
    });
}

/// Windows begin inside of allocations.
fn reaches(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank().0, comm.size());
    let (mut own, seen) = (buffer(config, comm, 8192)?, buffer(config, comm, 4096)?);
    own.write(&vec![100 * me; 2048])?;
    own.write(&[1000 + me; 256])?;
    // SAFETY: the buffer outlives the window.
    #[allow(unsafe_code)]
    let window = unsafe { comm.register_window_at(own.address() + 1020, 4096) }?;
    assert_eq!(window.address_of(comm.rank()), Some(own.address() + 1020));
    assert_eq!(window.address_of(Rank(n)), None);
    comm.barrier()?;
    let (_, stream) = stream(fake, config, comm.device().unwrap());
    for rank in 0..n {
        let mut found = [0u32; 1024];
        // SAFETY: both ranges are as long, and nobody writes them before the next barrier.
        #[allow(unsafe_code)]
        unsafe {
            let theirs = window.address_of(Rank(rank)).unwrap();
            ccl_cuda::copy(&stream, seen.address(), theirs, 4096).unwrap();
        }
        stream.synchronize().unwrap();
        seen.read(&mut found)?;
        assert_eq!((found[0], found[1], found[1023]), (1000 + rank, 100 * rank, 100 * rank));
    }
    comm.barrier()
}

/// A rank's ways to the others' memory go with its handle.
#[test]
fn processes_map_as_many_windows_as_they_have_handles() {
    alone(module_path!(), "processes_map_as_many_windows_as_they_have_handles", &[], |fake| {
        let config = settings(&[]);
        in_processes((2, 1), &config, |comm| {
            let regions = fake.live("ipc");
            let own = buffer(&config, &comm, 4096)?;
            let (first, second) = (comm.register_window(&own)?, comm.register_window(&own)?);
            assert_eq!(fake.live("ipc"), regions + 2);
            drop(second);
            assert_eq!(fake.live("ipc"), regions + 1);
            comm.barrier()?;
            drop((first, own));
            assert_eq!(fake.live("ipc"), regions);
            comm.barrier()
        });
        fake.assert_nothing_is_left("handles");
    });
}

/// All ranks make a call that is refused, hear why, and go on.
#[track_caller]
fn all_hear(
    config: &Config,
    n: u32,
    register: impl Fn(&Communicator) -> Result<DeviceWindow> + Sync,
    parts: &[&str],
) {
    let outcomes = local::try_run_with(config, n, |comm| {
        let error = register(&comm).unwrap_err();
        assert_eq!(*error.fault(), Fault::Usage, "{error}");
        let own = buffer(config, &comm, 4096)?;
        assert_eq!(comm.register_window(&own)?.refusal(), None, "nothing has happened");
        comm.barrier()?;
        Ok(error.to_string())
    });
    for outcome in outcomes.unwrap() {
        let text = outcome.unwrap();
        assert!(parts.iter().chain(&["register_window"]).all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn ranks_with_other_lengths_are_named() {
    alone(module_path!(), "ranks_with_other_lengths_are_named", &[], |fake| {
        let config = settings(&[]);
        for odd in 0..3 {
            let register = |comm: &Communicator| {
                let bytes = if comm.rank().0 == odd { 4004 } else { 4000 };
                comm.register_window(&buffer(&config, comm, bytes)?)
            };
            let usual = u32::from(odd == 0);
            let text = format!("found 4004 bytes on rank {odd} and 4000 on rank {usual}");
            all_hear(&config, 3, register, &[&text]);
        }
        fake.assert_nothing_is_left("other lengths");
    });
}

#[test]
fn ranks_that_cannot_register_are_named() {
    alone(module_path!(), "ranks_that_cannot_register_are_named", &[], |fake| {
        let config = settings(&[]);
        let register = |comm: &Communicator| {
            let own = buffer(&config, comm, 4000)?;
            if comm.rank() != Rank(1) {
                return comm.register_window(&own);
            }
            // SAFETY: nothing is registered.
            #[allow(unsafe_code)]
            let refused = unsafe { comm.register_window_at(own.address(), 1 << 30) };
            refused.map_err(|error| {
                assert!(!error.to_string().contains("of rank 1"), "{error}");
                error
            })
        };
        all_hear(&config, 3, register, &["expected memory of one allocation"]);
        all_hear(
            &config,
            2,
            |comm| comm.register_window(&buffer(&config, comm, 0)?),
            &["expected memory of some bytes"],
        );
        fake.assert_nothing_is_left("refused windows");
    });
}

#[test]
fn windows_that_some_rank_does_not_reach_are_used_locally() {
    alone(module_path!(), "windows_that_some_rank_does_not_reach_are_used_locally", &[], |fake| {
        let apart = settings(&[("CCL_P2P_DISABLE", "1")]);
        local::run_with(&apart, 2, |comm| {
            let own = buffer(&apart, &comm, 4000)?;
            let window = comm.register_window(&own)?;
            assert_eq!(window.refusal(), Some("rank 0 does not reach that of rank 1: CCL_P2P_DISABLE"));
            comm.barrier()
        })
        .unwrap();
        let mixed = ["0", "none", "0"].map(|device| settings(&[("CCL_DEVICE", device)]));
        with_the_host(&mixed);
        fake.assert_nothing_is_left("windows used locally");
    });
}

/// Ranks on devices and one on the host register memory, and make a call with it.
fn with_the_host(configs: &[Config]) {
    let rank = |(comm, config): (Communicator, &Config)| -> Result<()> {
        if comm.device().is_none() {
            let error =
                comm.register_window(&DeviceBuffer::new(&configs[0], 0, 4000)?).unwrap_err().to_string();
            assert!(error.contains("found a DeviceBuffer"), "{error}");
            let mut values = vec![1.0f32; 1000];
            // SAFETY: the vector outlives the window.
            #[allow(unsafe_code)]
            let window = unsafe { comm.register_window_at(values.as_ptr().addr() as u64, 4000) }?;
            assert_eq!(
                window.refusal(),
                Some("rank 0 does not reach that of rank 1: rank 1 works on host memory")
            );
            assert!(window.registration().is_none());
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            assert_eq!(values, [3.0; 1000]);
            return comm.barrier();
        }
        let mut own = buffer(config, &comm, 4000)?;
        let error = comm.register_window(&own).unwrap_err().to_string();
        assert!(error.contains("found of rank 1: ") && error.contains("found a DeviceBuffer"), "{error}");
        let window = comm.register_window(&own)?;
        assert!(window.refusal().is_some_and(|reason| reason.contains("rank 1 works on host memory")));
        let local = window.registration().unwrap();
        own.write(&[1.0f32; 1000])?;
        comm.run_at(reduce(1000), Addresses::in_place(&mut own))?;
        assert_eq!(local.refusal(), None);
        let mut values = [0.0f32; 1000];
        own.read(&mut values)?;
        assert_eq!(values, [3.0; 1000]);
        comm.barrier()
    };
    let ranks = joined(configs).unwrap();
    std::thread::scope(|scope| {
        let running: Vec<_> = ranks.into_iter().zip(configs).map(|ends| scope.spawn(|| rank(ends))).collect();
        running.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    });
}

#[test]
fn a_handle_that_cannot_be_opened_keeps_windows_local_everywhere() {
    alone(module_path!(), "a_handle_that_cannot_be_opened_keeps_windows_local_everywhere", &[], |fake| {
        let config = settings(&[]);
        in_processes((2, 1), &config, |comm| {
            let own = buffer(&config, &comm, 4096)?;
            if comm.rank() == Rank(1) {
                fake.fail("cuIpcOpenMemHandle_v2", 1, 999);
            }
            let window = comm.register_window(&own)?;
            let reason = window.refusal().unwrap();
            assert!(
                reason.contains("rank 1 does not reach that of rank 0: cuIpcOpenMemHandle_v2"),
                "{reason}"
            );
            assert_eq!(comm.register_window(&own)?.refusal(), None);
            comm.barrier()
        });
        fake.reset();
        fake.assert_nothing_is_left("a handle that cannot be opened");
    });
}

#[test]
fn a_driver_that_fails_while_registering_is_told_to_all() {
    alone(module_path!(), "a_driver_that_fails_while_registering_is_told_to_all", &[], |fake| {
        for nth in [1, 2, 3] {
            let config = settings(&[]);
            let met = Barrier::new(2);
            let outcomes = local::try_run_with(&config, 2, |comm| {
                let own = buffer(&config, &comm, 4096)?;
                if met.wait().is_leader() {
                    fake.fail("cuPointerGetAttributes", nth, 999);
                }
                met.wait();
                let outcome = comm.register_window(&own).map(drop);
                met.wait();
                outcome
            });
            assert_eq!(fake.failed("cuPointerGetAttributes"), 1);
            for outcome in outcomes.unwrap() {
                let error = outcome.unwrap_err().to_string();
                assert!(
                    error.contains("cuPointerGetAttributes") && error.contains("UNKNOWN (999)"),
                    "{error}"
                );
            }
            fake.reset();
            fake.assert_nothing_is_left("a failing driver");
        }
    });
}

#[test]
fn a_rank_that_does_not_register_is_named() {
    alone(module_path!(), "a_rank_that_does_not_register_is_named", &[], |fake| {
        let config = settings(&[("CCL_TIMEOUT", "1s")]);
        let met = Barrier::new(2);
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let own = buffer(&config, &comm, 4096)?;
            let outcome = if comm.rank() == Rank(0) { comm.register_window(&own).map(drop) } else { Ok(()) };
            met.wait();
            outcome
        });
        let error = outcomes.unwrap().swap_remove(0).unwrap_err().to_string();
        assert!(error.contains("register_window") && error.contains("rank 1"), "{error}");
        fake.assert_nothing_is_left("a rank that does not register");
    });
}

/// A rank that waits for others to register hears of an abort, and windows go after it as ever.
#[test]
fn windows_go_after_an_abort() {
    alone(module_path!(), "windows_go_after_an_abort", &[], |fake| {
        let config = settings(&[]);
        in_processes((2, 1), &config, |comm| aborted(fake, &config, comm));
        fake.assert_nothing_is_left("an abort");
    });
}

fn aborted(fake: &Fake, config: &Config, comm: Communicator) -> Result<()> {
    let own = buffer(config, &comm, 4096)?;
    let window = comm.register_window(&own)?;
    let begin = Instant::now();
    if comm.rank() == Rank(1) {
        comm.aborter().abort("no more of this");
    }
    let error = comm.register_window(&own).unwrap_err().to_string();
    assert!(error.contains("no more of this"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    drop(comm);
    assert_eq!(fake.live("ipc"), 1, "the handle's");
    drop(window);
    assert_eq!(fake.live("ipc"), 0);
    Ok(())
}

#[test]
fn suspended_communicators_register_nothing_and_keep_windows() {
    alone(module_path!(), "suspended_communicators_register_nothing_and_keep_windows", &[], |fake| {
        let config = settings(&[]);
        local::run_with(&config, 2, |comm| {
            let own = buffer(&config, &comm, 4096)?;
            let window = comm.register_window(&own)?;
            comm.suspend()?;
            let error = comm.register_window(&own).unwrap_err().to_string();
            assert!(error.contains("resume it first"), "{error}");
            comm.resume()?;
            assert_eq!(comm.register_window(&own)?.refusal(), None);
            drop(window);
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("suspending with windows");
    });
}

fn reduce(count: usize) -> Request<'static> {
    Request { count, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) }
}
