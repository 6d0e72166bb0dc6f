//! One kernel, or a copy, alone on the device.

use std::collections::BTreeSet;
use std::time::Duration;

use ccl_cuda::{Launch, Module};
use ccl_kernels::layout::{DeviceComm, DeviceError, LaneBarrier, LaunchArgs, bytes_of, record_of};
use ccl_kernels::shape::{GROUP_KERNEL, Protocol, SHARED_BYTES, block_threads, kernel_name, plan_image};
use ccl_kernels::special::Special;
use ccl_plan::program::Program;
use ccl_plan::{Collective, Dtype, ReduceOp};
use serde_json::json;

use crate::machine::{Machine, Options, Outcome, time};

/// Device memory to device memory, by the driver.
pub(crate) fn copy(machine: &Machine, options: &Options) -> Outcome<bool> {
    let stream = machine.stream()?;
    let mut right = true;
    for bytes in options.numbers("bytes", &[8, 1 << 20, 1 << 26, 1 << 30])? {
        let bytes = bytes as usize;
        let (from, to) = (machine.zeros(bytes)?, machine.zeros(bytes)?);
        from.fill(7, &stream)?;
        let wanted = Duration::from_millis(options.number("ms", 50)?);
        let one = time(wanted, |count| {
            for _ in 0..count {
                // SAFETY: both live until the stream was waited for.
                unsafe { ccl_cuda::copy(&stream, to.address(), from.address(), bytes) }?;
            }
            Ok(stream.synchronize()?)
        })?;
        let mut last = [0; 1];
        to.read(bytes - 1, &mut last, &stream)?;
        right &= last == [7];
        println!(
            "{}",
            json!({ "fact": "copy", "bytes": bytes, "time_us": one.as_secs_f64() * 1e6,
                "gb_per_s": bytes as f64 / one.as_secs_f64() / 1e9, "ok": last == [7] })
        );
    }
    Ok(right)
}

/// Launches of a kernel that does nothing: put on a stream one after another, and waited for one by one.
pub(crate) fn launch(machine: &Machine, options: &Options) -> Outcome<bool> {
    let stream = machine.stream()?;
    let fill = Module::load(&machine.context, PTX)?.function("ccl_contract_fill")?;
    let memory = machine.zeros(256)?;
    let nothing = Fill { address: memory.address(), value: 0, count: 0 };
    let launch = Launch { grid: [1; 3], block: [1; 3], shared_bytes: 0, attributes: &[] };
    let wanted = Duration::from_millis(options.number("ms", 50)?);
    // SAFETY: the kernel takes one `Fill`, and writes nothing.
    let run = || unsafe { launch.run(&fill, &stream, &nothing) };
    let queued = time(wanted, |count| {
        for number in 1..=count {
            run()?;
            if number % 512 == 0 {
                stream.synchronize()?;
            }
        }
        Ok(stream.synchronize()?)
    })?;
    let done = time(wanted, |count| {
        for _ in 0..count {
            run().and_then(|()| stream.synchronize())?;
        }
        Ok(())
    })?;
    println!(
        "{}",
        json!({ "fact": "launch", "queued_us": queued.as_secs_f64() * 1e6, "done_us": done.as_secs_f64() * 1e6 })
    );
    Ok(true)
}

/// What every kernel takes.
pub(crate) fn registers(machine: &Machine, options: &Options) -> Outcome<bool> {
    let threads = block_of(options)?;
    let mut names = BTreeSet::from([GROUP_KERNEL.to_owned()]);
    for dtype in Dtype::ALL {
        for op in ReduceOp::ALL {
            for protocol in Protocol::ALL {
                names.insert(kernel_name(Collective::AllReduce, dtype, op, protocol));
                names.insert(kernel_name(Collective::AllGather, dtype, op, protocol));
            }
            names.extend(Special::ALL.map(|special| special.kernel_name(dtype, op)));
        }
    }
    let mut missing = Vec::new();
    for name in &names {
        let Some(kernel) = machine.kernel(name)? else {
            missing.push(name.clone());
            continue;
        };
        let attributes = kernel.attributes()?;
        let blocks = kernel.blocks_per_multiprocessor(threads, SHARED_BYTES as usize)?;
        println!(
            "{}",
            json!({ "fact": "registers", "kernel": name, "registers": attributes.registers,
                "local_bytes": attributes.local_bytes, "most_threads": attributes.max_threads,
                "blocks_per_multiprocessor": blocks, "capability": attributes.binary_version })
        );
    }
    println!("{}", json!({ "fact": "kernels", "found": names.len() - missing.len(), "missing": missing }));
    Ok(missing.len() < names.len())
}

/// What reading a program costs: a launch of many short Moves, less one of few.
pub(crate) fn decode(machine: &Machine, options: &Options) -> Outcome<bool> {
    let (few, many) = (steps(machine, options, 1)?, steps(machine, options, 60)?);
    let steps = OUTER * (60 - 1);
    let (few_us, many_us) = (few.as_secs_f64() * 1e6, many.as_secs_f64() * 1e6);
    println!(
        "{}",
        json!({ "fact": "decode", "ns_per_step": (many_us - few_us) * 1e3 / f64::from(steps),
            "few_us": few_us, "many_us": many_us, "few_steps": OUTER, "many_steps": OUTER * 60 })
    );
    Ok(true)
}

/// Threads of a block, as calls have them where `threads` says what CCL_CUDA_THREADS does.
fn block_of(options: &Options) -> Outcome<u32> {
    Ok(block_threads((options.number("threads", 512)? as u32).max(96) - 64))
}

/// The time of a launch that copies 16 bytes `OUTER` × `inner` times.
fn steps(machine: &Machine, options: &Options, inner: u32) -> Outcome<Duration> {
    let text = format!(
        "program broadcast.steps\ncollective broadcast\nchunks 1\nscratch 0\nlane 0 of 1\n  for i in 0..{OUTER}\n    \
         for j in 0..{inner}\n      copy in -> out chunk 0\n    end\n  end\n"
    );
    let program: Program = text.parse().map_err(|error| format!("{text}: {error}"))?;
    let program = program.check(1).map_err(|error| format!("{text}: {error:?}"))?;
    let plan = machine.zeros(plan_image(&program, None, 0, 0).len())?;
    let stream = machine.stream()?;
    plan.write(0, &plan_image(&program, None, 0, plan.address()), &stream)?;
    let (index, abort) = (machine.zeros(4096)?, machine.zeros(256)?);
    let (error, barriers) =
        (machine.zeros(size_of::<DeviceError>())?, machine.zeros(size_of::<LaneBarrier>())?);
    let comm = DeviceComm {
        n: 1,
        edges: index.address(),
        edge_index: index.address(),
        channels: 1,
        tags: 1,
        abort: abort.address(),
        error: error.address(),
        barriers: barriers.address(),
        ..DeviceComm::default()
    };
    let comm = machine.holding(bytes_of(&comm))?;
    let (input, output) = (machine.holding(&[9; 16])?, machine.zeros(16)?);
    let args = LaunchArgs {
        comm: comm.address(),
        plan: plan.address(),
        input: input.address(),
        output: output.address(),
        count: 16,
        chunk_count: 16,
        grain_count: 16,
        channels: 1,
        element_bytes: 1,
        ..LaunchArgs::default()
    };
    let kernel = kernel_name(Collective::Broadcast, Dtype::U8, ReduceOp::Sum, Protocol::Simple);
    let kernel = machine.needed(&kernel)?;
    let threads = block_of(options)?;
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], shared_bytes: SHARED_BYTES, attributes: &[] };
    let wanted = Duration::from_millis(options.number("ms", 50)?);
    let one = time(wanted, |count| {
        for _ in 0..count {
            // SAFETY: the kernel takes one `LaunchArgs`; all that it leads to lives until the stream was waited for.
            unsafe { launch.run(&kernel, &stream, &args) }.and_then(|()| stream.synchronize())?;
        }
        Ok(())
    })?;
    let mut found = [0; size_of::<DeviceError>()];
    error.read(0, &mut found, &stream)?;
    let found: DeviceError = record_of(&found).ok_or("a record of another size")?;
    let mut result = [0; 16];
    output.read(0, &mut result, &stream)?;
    if found.code != 0 || result != [9; 16] {
        return Err(format!("expected 16 copied bytes, found {result:?} and {found:?}").into());
    }
    Ok(one)
}

const OUTER: u32 = 60;

/// The argument of `ccl_contract_fill`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fill {
    address: u64,
    value: u32,
    count: u32,
}

/// Returns without storing anything.
const PTX: &[u8] = b"
.version 7.0
.target sm_80
.address_size 64
.visible .entry ccl_contract_fill(.param .align 8 .b8 args[16]) {
  ret;
}
";
