//! Communicators that give their device memory back for a while.

use std::sync::Barrier;

use ccl::{Addresses, Communicator, Config, DeviceBuffer, Error, ReduceOp, Request, Result, local};
use ccl_cuda::CaptureMode;

use super::alone::{Fake, alone, joined, settings, stream};
use crate::matrix::config as host_settings;

#[test]
fn a_suspended_communicator_has_no_device_memory() {
    alone(module_path!(), "a_suspended_communicator_has_no_device_memory", &[], |fake| {
        let one_shot = [("CCL_CUDA_ONE_SHOT", "64K"), ("CCL_ALGO", "all_reduce:one_shot")];
        let kinds: [&[(&'static str, &str)]; 4] =
            [&[], &[("CCL_DEVICE", "local")], &[("CCL_P2P_DISABLE", "1")], &one_shot];
        for more in kinds {
            let config = settings(more);
            let met = Barrier::new(2);
            local::run_with(&config, 2, |comm| turns(fake, &config, &comm, &met)).unwrap();
            fake.assert_nothing_is_left("suspending");
        }
    });
}

/// Calls, nothing, calls again, three times.
fn turns(fake: &Fake, config: &Config, comm: &Communicator, met: &Barrier) -> Result<()> {
    let number = comm.device().unwrap();
    let mut buffer = DeviceBuffer::new(config, number, 40_000)?;
    let registered = comm.register_buffer(&buffer)?;
    for turn in 0..3 {
        calls(comm, &mut buffer, turn as f32)?;
        let before = comm.device_memory()?;
        assert!(before > 10_000, "{before} bytes");
        comm.suspend()?;
        assert_eq!((comm.device_memory()?, comm.device()), (0, Some(number)));
        met.wait();
        assert_eq!(fake.live("memory"), 2, "more than the ranks' own buffers");
        assert!(comm.async_error().is_none());
        let mut host = [0.0f32; 3];
        let refused = [
            comm.all_reduce_in_place(&mut host, ReduceOp::Sum),
            comm.run_at(reduce(10_000), Addresses::in_place(&mut buffer)),
            comm.register_buffer(&buffer).map(drop),
            comm.path(comm.rank()).map(drop),
        ];
        refused.into_iter().for_each(|outcome| is_refused(&outcome.unwrap_err()));
        met.wait();
        comm.resume()?;
    }
    calls(comm, &mut buffer, 7.0)?;
    drop(registered);
    comm.barrier()
}

/// On host memory and on device memory.
fn calls(comm: &Communicator, buffer: &mut DeviceBuffer, value: f32) -> Result<()> {
    let mut host = [value + comm.rank().0 as f32; 3000];
    comm.all_reduce_in_place(&mut host, ReduceOp::Sum)?;
    assert_eq!(host, [2.0 * value + 1.0; 3000]);
    buffer.write(&[value; 10_000])?;
    comm.run_at(reduce(10_000), Addresses::in_place(buffer))?;
    let mut values = [0.0f32; 10_000];
    buffer.read(&mut values)?;
    assert!(values.iter().all(|found| *found == 2.0 * value), "{} of {value}", values[0]);
    comm.barrier()
}

#[test]
fn what_was_registered_is_lent_after_resuming() {
    alone(module_path!(), "what_was_registered_is_lent_after_resuming", &[], |fake| {
        let config = settings(&[("CCL_PROTO", "simple"), ("CCL_ALGO", "all_reduce:two_shot")]);
        local::run_with(&config, 2, |comm| {
            let mut buffer = DeviceBuffer::new(&config, 0, 40_000)?;
            let registered = comm.register_buffer(&buffer)?;
            for turn in 1..4 {
                comm.run_at(reduce(10_000), Addresses::in_place(&mut buffer))?;
                assert_eq!(registered.calls(), turn);
                comm.suspend()?;
                comm.resume()?;
            }
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("lending after resuming");
    });
}

#[test]
fn hosts_and_devices_suspend_together() {
    alone(module_path!(), "hosts_and_devices_suspend_together", &[], |fake| {
        let configs = ["0", "none", "1", "none"].map(|device| settings(&[("CCL_DEVICE", device)]));
        let ranks = joined(&configs).unwrap();
        let rank = |comm: Communicator| -> Result<()> {
            for turn in 0..3 {
                let mut host = [turn as f32 + comm.rank().0 as f32; 3000];
                comm.all_reduce_in_place(&mut host, ReduceOp::Sum)?;
                assert_eq!(host, [4.0 * turn as f32 + 6.0; 3000]);
                comm.suspend()?;
                is_refused(&comm.all_reduce_in_place(&mut host, ReduceOp::Sum).unwrap_err());
                comm.resume()?;
            }
            comm.barrier()
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
            running.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
        });
        fake.assert_nothing_is_left("a mixed communicator");
    });
}

#[test]
fn ranks_of_the_host_suspend_as_well() {
    local::run_with(&host_settings(&[]), 3, |comm| {
        let twice = comm.resume().unwrap_err().to_string();
        assert!(twice.contains("resume: expected a suspended communicator"), "{twice}");
        comm.suspend()?;
        assert_eq!((comm.device_memory()?, comm.device()), (0, None));
        is_refused(&comm.barrier().unwrap_err());
        let twice = comm.suspend().unwrap_err().to_string();
        assert!(twice.contains("suspend: expected a communicator that is not suspended"), "{twice}");
        comm.resume()?;
        comm.barrier()
    })
    .unwrap();
}

#[test]
fn graphs_keep_a_communicator_awake() {
    alone(module_path!(), "graphs_keep_a_communicator_awake", &[], |fake| {
        let config = settings(&[]);
        let met = Barrier::new(2);
        local::run_with(&config, 2, |comm| {
            let (seen, own) = stream(fake, &config, 0);
            let mut buffer = DeviceBuffer::new(&config, 0, 40_000)?;
            own.begin_capture(CaptureMode::ThreadLocal).unwrap();
            // SAFETY: the buffer outlives the graph.
            #[allow(unsafe_code)]
            unsafe {
                comm.enqueue(reduce(10_000), Addresses::in_place(&mut buffer), &seen)?;
            }
            let graph = own.end_capture().unwrap();
            // The first rank's is gone, and it hears of the other's.
            met.wait();
            let graph = match comm.rank().0 {
                0 => {
                    drop(graph);
                    while fake.live("object") > 1 {
                        std::thread::yield_now();
                    }
                    None
                }
                _ => Some(graph),
            };
            let error = comm.suspend().unwrap_err().to_string();
            assert!(error.contains("found one on rank 1"), "{error}");
            met.wait();
            drop(graph);
            while fake.live("object") > 0 {
                std::thread::yield_now();
            }
            met.wait();
            comm.suspend()?;
            comm.resume()?;
            comm.run_at(reduce(10_000), Addresses::in_place(&mut buffer))?;
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("graphs");
    });
}

#[test]
fn a_driver_that_fails_meanwhile_is_told_to_all() {
    alone(module_path!(), "a_driver_that_fails_meanwhile_is_told_to_all", &[], |fake| {
        let failures = [
            (false, "cuStreamSynchronize", 1),
            (true, "cuMemAlloc_v2", 1),
            (true, "cuMemAlloc_v2", 6),
            (true, "cuMemsetD8Async", 1),
            (true, "cuMemcpyAsync", 1),
        ];
        for (resumes, function, nth) in failures {
            let config = settings(&[]);
            let met = Barrier::new(2);
            let outcomes = local::try_run_with(&config, 2, |comm| {
                comm.all_reduce_in_place(&mut [1.0f32; 5000], ReduceOp::Sum)?;
                if resumes {
                    comm.suspend()?;
                }
                if met.wait().is_leader() {
                    fake.fail(function, nth, 2);
                }
                met.wait();
                let outcome = if resumes { comm.resume() } else { comm.suspend() };
                met.wait();
                // It stays failed.
                let later = comm.all_reduce_in_place(&mut [1.0f32; 5], ReduceOp::Sum);
                assert_eq!(outcome.clone().unwrap_err().cause(), later.unwrap_err().cause());
                assert!(comm.async_error().is_some());
                outcome
            });
            assert_eq!(fake.failed(function), 1, "{function}");
            for outcome in outcomes.unwrap() {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains(function) && error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
            }
            fake.reset();
            fake.assert_nothing_is_left(function);
        }
    });
}

#[test]
fn an_abort_reaches_a_suspended_communicator() {
    alone(module_path!(), "an_abort_reaches_a_suspended_communicator", &[], |fake| {
        let config = settings(&[]);
        let met = Barrier::new(2);
        local::run_with(&config, 2, |comm| {
            comm.all_reduce_in_place(&mut [1.0f32; 5000], ReduceOp::Sum)?;
            comm.suspend()?;
            met.wait();
            if comm.rank().0 == 0 {
                comm.aborter().abort("no more of this");
            }
            while comm.async_error().is_none() {
                std::thread::yield_now();
            }
            let error = comm.resume().unwrap_err().to_string();
            assert!(error.contains("no more of this"), "{error}");
            Ok(())
        })
        .unwrap();
        fake.assert_nothing_is_left("an abort");
    });
}

#[track_caller]
fn is_refused(error: &Error) {
    assert!(*error.fault() == ccl::Fault::Usage && error.to_string().contains("resume it first"), "{error}");
}

fn reduce(count: usize) -> Request<'static> {
    Request { count, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) }
}
