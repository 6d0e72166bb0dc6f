//! Failing calls of the driver, kernels that wait for ranks that are gone, blocks that do not fit.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccl::transport::PathKind;
use ccl::{
    Addresses, Communicator, Config, DeviceBuffer, Error, Rank, ReduceOp, Request, Result, Stream, UniqueId,
    local,
};

use super::alone::{Fake, alone, settings};

/// In which phase a call fails, the function, and which of its calls from there on.
const FAILURES: &[(Phase, &str, u64)] = &[
    (Phase::Join, "cuDevicePrimaryCtxRetain", 1),
    (Phase::Join, "cuDeviceGetUuid_v2", 2),
    (Phase::Join, "cuStreamCreateWithPriority", 1),
    (Phase::Join, "cuMemAlloc_v2", 1),
    (Phase::Join, "cuMemAlloc_v2", 7),
    (Phase::Join, "cuMemHostAlloc", 2),
    (Phase::Join, "cuMemsetD8Async", 1),
    (Phase::Join, "cuMemcpyAsync", 1),
    // Of the rank that comes later.
    (Phase::Join, "cuMemcpyAsync", 2),
    (Phase::Call, "cuMemAlloc_v2", 1),
    (Phase::Call, "cuMemcpyAsync", 1),
    (Phase::Call, "cuMemcpyAsync", 3),
    (Phase::Call, "cuModuleLoadData", 1),
    (Phase::Call, "cuModuleGetFunction", 2),
    (Phase::Call, "cuFuncLoad", 1),
    (Phase::Call, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 1),
    (Phase::Call, "cuLaunchKernelEx", 1),
    (Phase::Call, "cuLaunchKernelEx", 2),
    (Phase::Call, "cuEventCreate", 1),
    (Phase::Call, "cuEventRecord", 2),
    (Phase::Call, "cuEventQuery", 1),
    (Phase::Call, "cuEventQuery", 5),
    (Phase::Stream, "cuStreamIsCapturing", 1),
    (Phase::Stream, "cuPointerGetAttributes", 2),
    (Phase::Stream, "cuLaunchKernelEx", 1),
    (Phase::Stream, "cuEventRecord", 1),
    (Phase::Stream, "cuStreamWaitEvent", 1),
    (Phase::Close, "cuMemFree_v2", 3),
    (Phase::Close, "cuMemFreeHost", 1),
    (Phase::Close, "cuStreamDestroy_v2", 1),
    (Phase::Close, "cuStreamSynchronize", 1),
    (Phase::Close, "cuEventDestroy_v2", 1),
    (Phase::Close, "cuModuleUnload", 1),
    (Phase::Close, "cuDevicePrimaryCtxRelease_v2", 1),
];

/// When a call of the driver is to fail.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Join,
    /// During the first call, which waits.
    Call,
    /// During the first call on streams.
    Stream,
    Close,
}

#[test]
fn a_failing_call_of_the_driver_is_told_to_all_and_leaves_nothing() {
    alone(module_path!(), "a_failing_call_of_the_driver_is_told_to_all_and_leaves_nothing", &[], |fake| {
        FAILURES.iter().for_each(|failure| is_told(fake, &[], *failure));
        println!("{} failures", FAILURES.len());
    });
}

#[test]
fn failing_calls_for_a_kernel_of_their_own_are_told_to_all_and_leave_nothing() {
    let test = "failing_calls_for_a_kernel_of_their_own_are_told_to_all_and_leave_nothing";
    alone(module_path!(), test, &[], |fake| {
        let own = [("CCL_CUDA_ONE_SHOT", "64K"), ("CCL_ALGO", "all_reduce:one_shot")];
        // All memory of a rank, and what is written there.
        let join = (1..=9).map(|nth| (Phase::Join, "cuMemAlloc_v2", nth));
        let write = (1..=3).map(|nth| (Phase::Join, "cuMemcpyAsync", nth));
        let of_call = ["cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad", "cuLaunchKernelEx"];
        let of_call = of_call.into_iter().map(|function| (Phase::Call, function, 1));
        let of_stream = [(Phase::Stream, "cuLaunchKernelEx", 1), (Phase::Close, "cuMemFree_v2", 5)];
        join.chain(write).chain(of_call).chain(of_stream).for_each(|failure| is_told(fake, &own, failure));
    });
}

/// A failing call of the driver is told to all, and leaves nothing.
#[track_caller]
fn is_told(fake: &Fake, more: &[(&'static str, &str)], (phase, function, nth): (Phase, &str, u64)) {
    let case = format!("{phase:?}: {function}, call {nth}");
    println!("{case}");
    let begin = Instant::now();
    let outcomes = fail_in(fake, &settings(more), phase, (function, nth));
    // Sooner than any deadline.
    assert!(begin.elapsed() < Duration::from_secs(10), "{case}: {:?}", begin.elapsed());
    assert_eq!(fake.failed(function), 1, "{case}");
    if phase == Phase::Close {
        assert!(outcomes.iter().all(Result::is_ok), "{case}: {outcomes:?}");
    } else {
        let operation = if phase == Phase::Join { "init" } else { "all_reduce" };
        assert_all_heard(outcomes, operation, &[function, "CUDA_ERROR_UNKNOWN (999)"], "; see `ccl doctor`");
    }
    fake.reset();
    fake.assert_nothing_is_left(&case);
}

fn fail_in(fake: &Fake, config: &Config, phase: Phase, (function, nth): (&str, u64)) -> Vec<Result<()>> {
    if phase == Phase::Join {
        fake.fail(function, nth, 999);
    }
    let met = std::sync::Barrier::new(2);
    // Every rank comes to the second meeting, also one that has failed.
    let arm = |now: Phase| {
        if met.wait().is_leader() && now == phase {
            fake.fail(function, nth, 999);
        }
        met.wait();
    };
    let joined = local::try_run_with(config, 2, |comm| {
        if phase == Phase::Join {
            // The other rank may never get here.
            return comm.all_reduce_in_place(&mut [1.0f32; 5000], ReduceOp::Sum);
        }
        arm(Phase::Call);
        let called = comm.all_reduce_in_place(&mut [1.0f32; 5000], ReduceOp::Sum);
        let mut buffer = DeviceBuffer::new(config, 0, 4000);
        let streams: Vec<Result<Stream>> = (0..2).map(|_| Stream::on_device(config, 0)).collect();
        arm(Phase::Stream);
        let enqueued = called.and_then(|()| {
            let buffer = buffer.as_mut().map_err(|error| error.clone())?;
            for stream in &streams {
                let stream = stream.as_ref().map_err(|error| error.clone())?;
                let call =
                    Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
                // SAFETY: the buffer outlives the communicator's work.
                #[allow(unsafe_code)]
                unsafe {
                    comm.enqueue(call, Addresses::in_place(buffer), stream)?;
                }
            }
            for stream in streams.iter().flatten() {
                stream.synchronize()?;
            }
            comm.barrier()
        });
        arm(Phase::Close);
        drop(comm);
        enqueued
    });
    joined.unwrap_or_else(|error| panic!("{phase:?}: {function}: {error}"))
}

/// All ranks say what failed, and the one where it did also during what and what to do.
#[track_caller]
fn assert_all_heard<T>(outcomes: Vec<Result<T>>, operation: &str, parts: &[&str], advice: &str) {
    let mut first = 0;
    for outcome in outcomes {
        let Err(error) = outcome else { panic!("no rank heard of {parts:?}") };
        let text = error.to_string();
        let own = match error.consequence_of() {
            Some(_) => ["reports", "that rank's log"],
            None => [operation, advice],
        };
        first += u32::from(error.consequence_of().is_none());
        for part in ["rank "].iter().chain(parts).chain(&own) {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
    assert!(first > 0, "nobody is the first");
}

#[test]
fn an_error_that_stays_is_an_asynchronous_error() {
    alone(module_path!(), "an_error_that_stays_is_an_asynchronous_error", &[], |fake| {
        let config = settings(&[("CCL_PROGRESS_THREAD", "0"), ("CCL_DEVICE", "local")]);
        let met = std::sync::Barrier::new(2);
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let device = comm.device().unwrap();
            let mut buffer = DeviceBuffer::new(&config, device, 4000)?;
            let stream = Stream::on_device(&config, device)?;
            assert!(comm.async_error().is_none());
            comm.barrier()?;
            if met.wait().is_leader() {
                // An illegal address, found when somebody looks.
                fake.fail("cuEventQuery", 1, 700);
            }
            met.wait();
            let call =
                Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
            // SAFETY: the buffer outlives the communicator's work.
            #[allow(unsafe_code)]
            unsafe {
                comm.enqueue(call, Addresses::in_place(&mut buffer), &stream)?;
            }
            let error = loop {
                match comm.async_error() {
                    Some(error) => break error,
                    None => std::thread::yield_now(),
                }
            };
            Err::<(), _>(error)
        });
        let parts = ["cuEventQuery", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"];
        assert_all_heard(outcomes.unwrap(), "all_reduce", &parts, "end this process");
        fake.reset();
        fake.assert_nothing_is_left("an error that stays");
    });
}

#[test]
fn ranks_whose_blocks_do_not_fit_are_refused() {
    let small = [("CCL_FAKE_MULTIPROCESSORS", "1")];
    alone(module_path!(), "ranks_whose_blocks_do_not_fit_are_refused", &small, |fake| {
        let config = settings(&[("CCL_CUDA_THREADS", "512"), ("CCL_ALGO", "ring")]);
        let outcomes = local::try_run_with(&config, 5, |comm| {
            comm.all_reduce_in_place(&mut [1.0f32; 100_000], ReduceOp::Sum)
        });
        let parts = ["expected device 0 to hold ", "of each of 5 ranks", "found room for 4"];
        assert_all_heard(
            outcomes.unwrap(),
            "all_reduce",
            &parts,
            "lower CCL_MAX_NCHANNELS or CCL_CUDA_THREADS",
        );
        fake.assert_nothing_is_left("a refusal");
    });
}

#[test]
fn an_abort_ends_kernels_that_wait() {
    alone(module_path!(), "an_abort_ends_kernels_that_wait", &[], |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let config = settings(more);
            let outcomes = local::try_run_with(&config, 2, |comm| {
                let mut buffer = DeviceBuffer::new(&config, 0, 4000)?;
                let stream = Stream::on_device(&config, 0)?;
                comm.barrier()?;
                if comm.rank() == Rank(1) {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    comm.aborter().abort("the test is about this");
                    return comm.barrier();
                }
                let call =
                    Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
                // SAFETY: the buffer outlives the communicator's work.
                #[allow(unsafe_code)]
                unsafe {
                    comm.enqueue(call, Addresses::in_place(&mut buffer), &stream)?;
                }
                stream.synchronize()
            });
            for outcome in outcomes.unwrap() {
                let text = outcome.unwrap_err().to_string();
                assert!(text.contains("the test is about this"), "{text}");
            }
            fake.assert_nothing_is_left("an abort");
        }
    });
}

#[test]
fn a_killed_process_ends_kernels_that_wait_for_it() {
    alone(module_path!(), "a_killed_process_ends_kernels_that_wait_for_it", &[], |fake| {
        if let Ok(id) = std::env::var(PEER) {
            // The rank that is killed: it joins, makes one call, and no other.
            let config = settings(&[(P2P_DISABLE, &std::env::var(P2P_DISABLE).unwrap())]);
            let comm = Communicator::init_rank(&id.parse().unwrap(), Rank(1), 2, &config).unwrap();
            comm.barrier().unwrap();
            return std::thread::sleep(Duration::from_secs(60));
        }
        for disable in ["0", "1"] {
            let config = settings(&[(P2P_DISABLE, disable)]);
            let (error, took) = wait_for_killed(&config, disable).unwrap();
            let text = error.to_string();
            assert!(text.contains("all_reduce") && text.contains("rank 1"), "{text}");
            assert!(took < Duration::from_secs(10), "{took:?}: {text}");
            println!("{took:?} after the kill: {text}");
            fake.assert_nothing_is_left("a killed process");
        }
    });
}

/// What a rank hears whose kernel waits for a process that is killed, and how soon.
fn wait_for_killed(config: &Config, disable: &str) -> Result<(Error, Duration)> {
    let id = UniqueId::generate_local(config)?;
    let name = "device::failures::a_killed_process_ends_kernels_that_wait_for_it";
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", name]).env(PEER, id.to_hex()).env(P2P_DISABLE, disable).stdout(Stdio::null());
    let mut peer = peer.spawn().unwrap();
    let killed = std::cell::Cell::new(None);
    let heard = hear(config, &id, disable == "0", || {
        killed.set(Some(Instant::now()));
        peer.kill().unwrap();
    });
    // It has ended, or must.
    let _ = peer.kill();
    peer.wait().unwrap();
    Ok((heard?, killed.get().expect("it was killed").elapsed()))
}

/// Joins, puts a call on a stream whose kernel waits for the peer, and waits for the stream while that is killed.
fn hear(config: &Config, id: &UniqueId, is_direct: bool, kill: impl FnOnce()) -> Result<Error> {
    let comm = Communicator::init_rank(id, Rank(0), 2, config)?;
    let path = comm.path(Rank(1))?;
    assert_eq!(path.kind == PathKind::P2p, is_direct, "{path:?}");
    comm.barrier()?;
    let mut buffer = DeviceBuffer::new(config, 0, 4000)?;
    let stream = Stream::on_device(config, 0)?;
    let call = Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
    // SAFETY: the buffer outlives the communicator's work.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::in_place(&mut buffer), &stream)?;
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(!stream.is_idle(), "the kernel waits");
    kill();
    Ok(stream.synchronize().expect_err("the peer is gone"))
}

const PEER: &str = "CCL_TEST_PEER_OF";
const P2P_DISABLE: &str = "CCL_P2P_DISABLE";
