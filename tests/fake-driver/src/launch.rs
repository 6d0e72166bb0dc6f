//! Streams as their callers see them, launches, and what else streams do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ccl_kernels_emulator::{Emulation, Options};

use crate::code::*;
use crate::fail::{self, call_back};
use crate::kernel::{self, Kernel, Own};
use crate::memory::check;
use crate::state::{self, current, devices, fresh, setting};
use crate::stream::{self, Stream, until};
use crate::symbols::{HostFunction, In, Out, item, put};

/// The driver's `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Config {
    grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    stream: usize,
    attributes: usize,
    count: u32,
}

impl Config {
    /// The value of an attribute, if it is there.
    fn attribute(&self, id: u32) -> Option<[u32; 3]> {
        let place = |index| self.attributes + index as usize * ATTRIBUTE_BYTES;
        let index = (0..self.count).find(|index| item::<u32>(place(*index), 0) == id)?;
        Some(item(place(index) + 8, 0))
    }

    /// The shape of a cluster.
    pub(crate) fn cluster(&self) -> [u32; 3] {
        self.attribute(CLUSTER).unwrap_or([1; 3])
    }
}

pub(crate) fn stream_create_with_priority(place: Out<usize>, flags: u32, priority: i32) -> Answer {
    let device = current()?;
    if flags > NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    let priority = priority.clamp(crate::device::GREATEST_PRIORITY, 0);
    let stream = stream::register(Stream::new(device, flags & NON_BLOCKING == 0, priority));
    let handle = fresh();
    state::lock(|state| state.streams.insert(handle, stream));
    place.set(handle);
    Ok(())
}

pub(crate) fn stream_destroy(stream: usize) -> Answer {
    state::lock(|state| state.streams.remove(&stream)).map(drop).ok_or(INVALID_HANDLE)
}

pub(crate) fn stream_query(stream: usize) -> Answer {
    crate::capture::breaks_others()?;
    let stream = not_captured(stream)?;
    if stream.is_idle() { crate::device::failed() } else { Err(NOT_READY) }
}

pub(crate) fn stream_synchronize(stream: usize) -> Answer {
    not_captured(stream)?.synchronize();
    crate::device::failed()
}

/// A stream that can be waited for: waiting for one that is captured breaks the capture.
fn not_captured(stream: usize) -> Answer<Arc<Stream>> {
    let stream = stream::of(stream)?;
    let is_captured = stream.part().is_some();
    if is_captured { Err(CAPTURE_UNSUPPORTED) } else { Ok(stream) }
}

pub(crate) fn stream_priority(stream: usize, priority: Out<i32>) -> Answer {
    priority.set(stream::of(stream)?.priority);
    Ok(())
}

pub(crate) fn stream_flags(stream: usize, flags: Out<u32>) -> Answer {
    let found = stream::of(stream)?;
    flags.set(if stream < 3 || found.is_blocking { 0 } else { NON_BLOCKING });
    Ok(())
}

pub(crate) fn stream_context(stream: usize, context: Out<usize>) -> Answer {
    context.set(state::context_of(stream::of(stream)?.device));
    Ok(())
}

pub(crate) fn launch_host_func(stream: usize, function: HostFunction, data: usize) -> Answer {
    let work = move || {
        call_back(function, data);
        Ok(())
    };
    stream::of(stream)?.submit("host", Arc::new(work))
}

pub(crate) fn stream_write_value32(stream: usize, address: u64, value: u32, _flags: u32) -> Answer {
    word(stream, address, 4)?;
    let work = move || {
        word32(address).store(value, Ordering::Release);
        Ok(())
    };
    stream::of(stream)?.submit("write", Arc::new(work))
}

pub(crate) fn stream_write_value64(stream: usize, address: u64, value: u64, _flags: u32) -> Answer {
    word(stream, address, 8)?;
    let work = move || {
        word64(address).store(value, Ordering::Release);
        Ok(())
    };
    stream::of(stream)?.submit("write", Arc::new(work))
}

pub(crate) fn stream_wait_value32(stream: usize, address: u64, value: u32, flags: u32) -> Answer {
    word(stream, address, 4)?;
    let work = move || {
        until(|| {
            let found = word32(address).load(Ordering::Acquire);
            let later = found.wrapping_sub(value).cast_signed() >= 0;
            met(flags, later, found == value, found & value != 0)
        });
        Ok(())
    };
    stream::of(stream)?.submit("wait", Arc::new(work))
}

pub(crate) fn stream_wait_value64(stream: usize, address: u64, value: u64, flags: u32) -> Answer {
    word(stream, address, 8)?;
    let work = move || {
        until(|| {
            let found = word64(address).load(Ordering::Acquire);
            let later = found.wrapping_sub(value).cast_signed() >= 0;
            met(flags, later, found == value, found & value != 0)
        });
        Ok(())
    };
    stream::of(stream)?.submit("wait", Arc::new(work))
}

fn met(flags: u32, later: bool, equal: bool, common: bool) -> bool {
    match flags & 3 {
        0 => later,
        1 => equal,
        _ => common,
    }
}

fn word(stream: usize, address: u64, bytes: usize) -> Answer {
    let device = stream::of(stream)?.device;
    let known = state::lock(|state| state.range(address).is_some());
    if !known || !address.is_multiple_of(bytes as u64) {
        return Err(INVALID_VALUE);
    }
    check(device, &[(address, bytes)])
}

fn word32<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: known and aligned when it was queued; the caller keeps it valid.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

fn word64<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: known and aligned when it was queued; the caller keeps it valid.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

pub(crate) fn launch_kernel_ex(
    config: In<Config>,
    function: usize,
    arguments: usize,
    extra: usize,
) -> Answer {
    let (config, kernel) = (config.value()?, kernel::of(function)?);
    let args = args(kernel, arguments, extra)?;
    let (grid, block) = (config.grid.iter().product::<u32>(), config.block.iter().product::<u32>());
    if grid == 0 || block == 0 || block > kernel.most_threads() {
        return Err(INVALID_VALUE);
    }
    let shared_bytes = config.shared_bytes as usize;
    if shared_bytes > 227 << 10 {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    let stream = stream::of(config.stream)?;
    let room = kernel::blocks_each(block, shared_bytes) * devices().multiprocessors(stream.device);
    if config.attribute(COOPERATIVE).is_some_and(|[on, ..]| on != 0) && grid > room as u32 {
        return Err(TOO_LARGE);
    }
    fail::note("blocks", grid.into());
    let device = stream.device;
    let most = setting("CCL_FAKE_KERNELS", 0);
    let work = move || {
        let running = &devices().all[device].running;
        let begin = |count: usize| (most == 0 || count < most).then_some(count + 1);
        until(|| running.fetch_update(Ordering::Acquire, Ordering::Relaxed, begin).is_ok());
        let outcome = run((kernel, device), (grid, block), shared_bytes, &args);
        running.fetch_sub(1, Ordering::Release);
        outcome
    };
    stream.submit("kernel", Arc::new(work))?;
    if setting("CUDA_LAUNCH_BLOCKING", 0) != 0 && stream.part().is_none() {
        stream.synchronize();
    }
    Ok(())
}

/// The bytes of the one argument, however they are given.
fn args(kernel: Kernel, arguments: usize, extra: usize) -> Answer<Vec<u8>> {
    let bytes = kernel.args_bytes();
    let (mut from, mut given) = (0usize, bytes);
    if extra == 0 {
        if arguments == 0 {
            return Err(INVALID_VALUE);
        }
        from = item(arguments, 0);
    }
    for index in (0..).step_by(2).take_while(|index| extra != 0 && item::<usize>(extra, *index) != 0) {
        let value: usize = item(extra, index + 1);
        match item::<usize>(extra, index) {
            1 => from = value,
            2 => given = item(value, 0),
            _ => return Err(INVALID_VALUE),
        }
    }
    if given != bytes || from == 0 {
        return Err(INVALID_VALUE);
    }
    Ok((0..bytes).map(|index| item(from, index)).collect())
}

fn run(
    (kernel, device): (Kernel, usize),
    (grid, block): (u32, u32),
    shared_bytes: usize,
    args: &[u8],
) -> Answer {
    let kernel = match kernel {
        Kernel::Own(own) => return run_own((own, device), args),
        Kernel::Emulated(kernel) => kernel,
    };
    let hang_after = Duration::from_millis(setting("CCL_FAKE_HANG_MS", 20_000) as u64);
    let seed = setting("CCL_FAKE_SEED", 1) as u64;
    let plant = setting("CCL_FAKE_PLANT", 0) as u32;
    let windows = crate::multicast::windows();
    let mut emulation = Emulation::new(Options { seed, hang_after, plant, windows, ..Options::default() });
    // SAFETY: who launched keeps what the arguments point to; a kernel that goes elsewhere is a bug that tests look for.
    let added = unsafe { emulation.add(kernel, grid, block, shared_bytes, args) };
    added.map_err(|_| LAUNCH_OUT_OF_RESOURCES)?;
    emulation.run().map_err(|report| {
        eprintln!("fake driver: {} failed: {report}", kernel.name());
        LAUNCH_FAILED
    })
}

fn run_own((own, device): (Own, usize), args: &[u8]) -> Answer {
    let word = |index: usize| item::<u32>(args.as_ptr() as usize, index);
    let address: u64 = item(args.as_ptr() as usize, 0);
    match own {
        Own::Fill => {
            let (value, count) = (word(2), word(3) as usize);
            check(device, &[(address, count * 4)]).map_err(|_| ILLEGAL_ADDRESS)?;
            (0..count).for_each(|index| put(address as usize, index, value));
        }
        Own::Wait => until(|| word32(address).load(Ordering::Acquire) == word(2)),
        Own::Fault => return Err(ILLEGAL_ADDRESS),
    }
    Ok(())
}

const NON_BLOCKING: u32 = 1;
const COOPERATIVE: u32 = 2;
const CLUSTER: u32 = 4;
const ATTRIBUTE_BYTES: usize = 72;
