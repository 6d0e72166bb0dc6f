//! Calls of communicators that `ccl perf` does not make: many replays, calls that go on from each other, and an abort.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ccl::{Aborter, Addresses, Communicator, DeviceBuffer, Rank, ReduceOp, Request, Stream, local};
use ccl_cuda::CaptureMode;
use serde_json::json;

use crate::machine::{Machine, Options, Outcome};

/// Replays a captured all-reduce very often; memory may not grow, and the last replay must be right.
pub(crate) fn replay(machine: &Machine, options: &Options) -> Outcome<bool> {
    let (n, replays) = (options.number("ranks", 2)? as u32, options.number("replays", 100_000)?);
    let (count, pace) = (options.number("count", 1000)? as usize, Pace::of(options)?);
    let (grown_device, grown_host) = (AtomicU64::new(0), AtomicU64::new(0));
    let outcomes = local::try_run_with(&machine.config, n, |comm| {
        let (grown, time) = replay_on(machine, &comm, (count, replays), pace)?;
        grown_device.fetch_max(grown.device, Ordering::Relaxed);
        grown_host.fetch_max(grown.host, Ordering::Relaxed);
        Ok(time)
    })?;
    let mut times = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(time) => times.push(time),
            // What a rank that waited for another says comes beside that one's own words.
            Err(error) => eprintln!("facts replay: {error}"),
        }
    }
    if times.len() < n as usize {
        return Ok(false);
    }
    let slowest = times.iter().max().copied().unwrap_or_default();
    let [device, host] = [&grown_device, &grown_host].map(|grown| grown.load(Ordering::Relaxed));
    let constant = device == 0 && host <= HOST_NOISE_BYTES;
    println!(
        "{}",
        json!({ "fact": "replay", "ranks": n, "replays": replays, "us_per_replay": slowest.as_secs_f64() * 1e6 / replays as f64,
            "grown_device_bytes": device, "grown_host_bytes": host, "ok": constant })
    );
    Ok(constant)
}

/// A graph of the call that `put` puts on the stream, which was made once before. It is on the device, and so are those of the other
/// ranks: bringing one there may wait for kernels, and those of a rank that was faster wait for this one.
fn captured(
    comm: &Communicator,
    (queue, stream): (&ccl_cuda::Stream, &Stream),
    mut put: impl FnMut() -> ccl::Result<()>,
) -> ccl::Result<ccl_cuda::GraphExec> {
    put()?;
    stream.synchronize()?;
    queue.begin_capture(CaptureMode::ThreadLocal).map_err(failed)?;
    let put = put();
    let graph = queue.end_capture().map_err(failed);
    put?;
    let mut exec = graph?.instantiate().map_err(failed)?;
    exec.upload(queue).map_err(failed)?;
    stream.synchronize()?;
    comm.barrier()?;
    Ok(exec)
}

fn replay_on(
    machine: &Machine,
    comm: &Communicator,
    (count, replays): (usize, u64),
    pace: Pace,
) -> ccl::Result<(Held, Duration)> {
    let _watch = Watch::over(comm.aborter(), pace.limit);
    let ordinal = comm.device().ok_or_else(|| failed("a rank works on host memory: set CCL_DEVICE"))?;
    let queue = ccl_cuda::Stream::new(&machine.context, 0).map_err(failed)?;
    // SAFETY: the stream lives until the end of this function, and what leads to it is dropped before.
    let stream = unsafe { Stream::cuda(&machine.config, ordinal, queue.raw()) }?;
    let mut send = DeviceBuffer::new(&machine.config, ordinal, 4 * count)?;
    let mut recv = DeviceBuffer::new(&machine.config, ordinal, 4 * count)?;
    send.write(&vec![comm.rank().0 as f32 + 1.0; count])?;
    let put = || {
        let request = Request { count, ..Request::all_reduce_in_place(&mut [0.0_f32; 0], ReduceOp::Sum) };
        // SAFETY: both buffers live, and nobody touches them, until the stream was waited for the last time.
        unsafe { comm.enqueue(request, Addresses::of(&send, &mut recv), &stream) }
    };
    let mut exec = captured(comm, (&queue, &stream), put)?;
    let mut run = |times: u64| {
        for number in 1..=times {
            // SAFETY: the communicator and both buffers outlive the graph.
            unsafe { exec.launch(&queue) }.map_err(failed)?;
            if number % pace.together == 0 {
                stream.synchronize()?;
            }
        }
        stream.synchronize()
    };
    run(replays / 10)?;
    comm.barrier()?;
    let before = Held::now(machine)?;
    comm.barrier()?;
    let start = Instant::now();
    run(replays)?;
    let time = start.elapsed();
    let after = Held::now(machine)?;
    let grown = Held {
        device: after.device.saturating_sub(before.device),
        host: after.host.saturating_sub(before.host),
    };
    comm.barrier()?;
    recv.write(&vec![0.0_f32; count])?;
    comm.barrier()?;
    run(1)?;
    let mut values = vec![0.0_f32; count];
    recv.read(&mut values)?;
    let n = comm.size();
    let expected = (n * (n + 1) / 2) as f32;
    // Nobody leaves before all have looked.
    comm.barrier()?;
    match values.iter().find(|value| **value != expected) {
        Some(found) => Err(failed(format!("expected {expected} after replays, found {found}"))),
        None => Ok((grown, time)),
    }
}

/// Replays an in-place all-reduce whose result is the next one's input, so that a value that is wrong once stays wrong: what calls
/// of equal data hide, such as a line that is torn and holds the other half of the call before. Of an odd number of ranks, whose
/// products never become 0.
pub(crate) fn chain(machine: &Machine, options: &Options) -> Outcome<bool> {
    let (n, replays) = (options.number("ranks", 3)? as u32, options.number("replays", 2000)?);
    let count = options.number("count", 1031)? as usize;
    let pace = Pace::of(options)?;
    if n.is_multiple_of(2) {
        return Err(format!("expected an odd number of ranks, found {n}").into());
    }
    let outcomes =
        local::try_run_with(&machine.config, n, |comm| chain_on(machine, &comm, (count, replays), pace))?;
    let (mut wrong, mut is_whole) = (0, true);
    for outcome in outcomes {
        match outcome {
            Ok(found) => wrong += found,
            Err(error) => {
                is_whole = false;
                eprintln!("facts chain: {error}");
            }
        }
    }
    if wrong > 0 {
        eprintln!("facts chain: {wrong} wrong elements of {count} on {n} ranks");
    }
    println!(
        "{}",
        json!({ "fact": "chain", "ranks": n, "replays": replays, "count": count, "wrong": wrong,
            "ok": is_whole && wrong == 0 })
    );
    Ok(is_whole && wrong == 0)
}

/// The wrong elements of one rank.
fn chain_on(
    machine: &Machine,
    comm: &Communicator,
    (count, replays): (usize, u64),
    pace: Pace,
) -> ccl::Result<usize> {
    let _watch = Watch::over(comm.aborter(), pace.limit);
    let ordinal = comm.device().ok_or_else(|| failed("a rank works on host memory: set CCL_DEVICE"))?;
    let queue = ccl_cuda::Stream::new(&machine.context, 0).map_err(failed)?;
    // SAFETY: the stream lives until the end of this function, and what leads to it is dropped before.
    let stream = unsafe { Stream::cuda(&machine.config, ordinal, queue.raw()) }?;
    let mut buffer = DeviceBuffer::new(&machine.config, ordinal, 4 * count)?;
    let first: Vec<u32> = (0..count as u32).map(|place| 2 * place + 1).collect();
    buffer.write(&first)?;
    let put = || {
        let request = Request { count, ..Request::all_reduce_in_place(&mut [0_u32; 0], ReduceOp::Sum) };
        // SAFETY: the buffer lives, and nobody touches it, until the stream was waited for the last time.
        unsafe { comm.enqueue(request, Addresses::in_place(&mut buffer), &stream) }
    };
    let mut exec = captured(comm, (&queue, &stream), put)?;
    for number in 1..=replays {
        // SAFETY: the communicator and the buffer outlive the graph.
        unsafe { exec.launch(&queue) }.map_err(failed)?;
        if number % pace.together == 0 {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    let mut found = vec![0_u32; count];
    buffer.read(&mut found)?;
    let factor = (0..=replays).fold(1_u32, |factor, _| factor.wrapping_mul(comm.size()));
    // Nobody leaves before all have looked.
    comm.barrier()?;
    Ok(first.iter().zip(&found).filter(|(first, found)| first.wrapping_mul(factor) != **found).count())
}

/// How soon a kernel that waits for a rank that does not come ends when that one aborts.
pub(crate) fn abort(machine: &Machine, options: &Options) -> Outcome<bool> {
    let limit = Duration::from_millis(options.number("limit_ms", 2000)?);
    let aborted = std::sync::OnceLock::new();
    let outcomes = local::try_run_with(&machine.config, 2, |comm| {
        if comm.rank() == Rank(1) {
            std::thread::sleep(Duration::from_millis(300));
            let _ = aborted.set(Instant::now());
            comm.aborter().abort("the suite is about this");
            return Ok(None);
        }
        let ordinal = comm.device().ok_or_else(|| failed("a rank works on host memory: set CCL_DEVICE"))?;
        let mut buffer = DeviceBuffer::new(&machine.config, ordinal, 4000)?;
        let request =
            Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0_f32; 0], ReduceOp::Sum) };
        let error = comm.run_at(request, Addresses::in_place(&mut buffer)).err();
        Ok(error.map(|error| (error.to_string(), aborted.get().map(Instant::elapsed))))
    })?;
    let told = outcomes.into_iter().find_map(|outcome| outcome.ok().flatten());
    let (text, after) = told.ok_or("the call of the rank that waits did not fail")?;
    let after = after.ok_or("it failed before the abort")?;
    let right = text.contains("the suite is about this") && after <= limit;
    println!("{}", json!({ "fact": "abort", "ms": after.as_secs_f64() * 1e3, "error": text, "ok": right }));
    Ok(right)
}

/// How replays follow each other.
#[derive(Clone, Copy)]
struct Pace {
    /// So many are under way at most.
    together: u64,
    /// All of them take no longer.
    limit: Duration,
}

impl Pace {
    fn of(options: &Options) -> Outcome<Pace> {
        let together = options.number("together", 64)?.max(1);
        Ok(Pace { together, limit: Duration::from_secs(options.number("limit_s", 20)?) })
    }
}

/// Aborts a communicator whose replays, which no deadline watches, take too long: what each rank waited for is then its error.
struct Watch {
    _done: Sender<()>,
}

impl Watch {
    fn over(aborter: Aborter, limit: Duration) -> Watch {
        let (_done, done) = channel();
        std::thread::spawn(move || {
            if done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                aborter.abort(&format!("replays took longer than {} s", limit.as_secs()));
            }
        });
        Watch { _done }
    }
}

/// Memory in use, of the device and of this process.
struct Held {
    device: u64,
    host: u64,
}

impl Held {
    fn now(machine: &Machine) -> ccl::Result<Held> {
        let memory = machine.context.memory().map_err(failed)?;
        let pages = std::fs::read_to_string("/proc/self/statm").map_err(failed)?;
        let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let host = resident.ok_or_else(|| failed("no resident pages in /proc/self/statm"))? * 4096;
        Ok(Held { device: (memory.total_bytes - memory.free_bytes) as u64, host })
    }
}

fn failed(cause: impl ToString) -> ccl::Error {
    ccl::Error::new(ccl::Fault::Device, cause.to_string(), "see tests/gpu/README.md")
}

/// Allocators and stacks of threads take pages late.
const HOST_NOISE_BYTES: u64 = 4 << 20;
