//! Threads on which the context of another device is current, or none.

use ccl::{Addresses, Communicator, Config, DeviceBuffer, ReduceOp, Request, Result, Stream, local};
use ccl_cuda::Context;

use super::alone::{Fake, alone, settings};

/// The context of a device, as a framework makes it current.
fn context(fake: &Fake, ordinal: u32) -> Context {
    Context::primary(&fake.driver.devices().unwrap()[ordinal as usize]).unwrap()
}

/// Runs `work` with a context current on this thread; with none if none is given.
fn with<T>(current: Option<&Context>, work: impl FnOnce() -> T) -> T {
    match current {
        Some(current) => current.within(|| Ok(work())).unwrap(),
        None => work(),
    }
}

fn enqueue(comm: &Communicator, address: u64, stream: &Stream) -> Result<()> {
    let call = Request { count: 1000, ..Request::all_reduce_in_place(&mut [0i32; 0], ReduceOp::Sum) };
    // SAFETY: callers keep the buffer until the stream is done.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::new(address as *const u8, address as *mut u8), stream)
    }
}

/// Calls of both ranks on their own memory, with each context current in turn.
fn calls(fake: &Fake, config: &Config) {
    let contexts = [context(fake, 0), context(fake, 1)];
    local::run_with(config, 2, |comm| {
        let device = comm.device().unwrap();
        let stream = Stream::on_device(config, device)?;
        let mut buffer = DeviceBuffer::new(config, device, 4000)?;
        for current in [None, Some(&contexts[1 - device as usize]), Some(&contexts[device as usize])] {
            buffer.write(&[1i32; 1000])?;
            let registration = with(current, || comm.register_buffer(&buffer))?;
            with(current, || enqueue(&comm, buffer.address(), &stream))?;
            stream.synchronize()?;
            let mut values = [0i32; 1000];
            buffer.read(&mut values)?;
            assert!(values.iter().all(|value| *value == 2), "{}", values[0]);
            drop(registration);
            comm.barrier()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_do_not_ask_which_context_is_current() {
    alone(module_path!(), "calls_do_not_ask_which_context_is_current", &[], |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            calls(fake, &settings(&[more, &[("CCL_DEVICE", "local")]].concat()));
        }
        fake.assert_nothing_is_left("calls in other contexts");
    });
}

#[test]
fn memory_that_only_the_current_context_reaches_is_refused() {
    alone(module_path!(), "memory_that_only_the_current_context_reaches_is_refused", &[], |fake| {
        let config = settings(&[("CCL_P2P_DISABLE", "1"), ("CCL_DEVICE", "local")]);
        let contexts = [context(fake, 0), context(fake, 1)];
        local::run_with(&config, 2, |comm| {
            let device = comm.device().unwrap();
            let stream = Stream::on_device(&config, device)?;
            let other = 1 - device;
            let theirs = DeviceBuffer::new(&config, other, 4000)?;
            let current = Some(&contexts[other as usize]);
            let error = with(current, || enqueue(&comm, theirs.address(), &stream)).unwrap_err().to_string();
            let reason = format!("of device {other}, which this one does not reach");
            assert!(error.contains(&reason), "{error}");
            comm.barrier()
        })
        .unwrap();
        drop(contexts);
        fake.assert_nothing_is_left("a refusal");
    });
}
