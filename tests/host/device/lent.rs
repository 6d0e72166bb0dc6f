//! Lending of device memory: the same bytes with and without it.

use ccl::{Addresses, Communicator, DeviceBuffer, Dtype, ReduceOp, Request, Result, Stream, local};
use ccl_cuda::CaptureMode;

use super::alone::{Fake, alone, settings, stream};
use super::{all, on};
use crate::matrix::sweep_of;

#[test]
fn every_collective_without_lending() {
    let off = [("CCL_DIRECT_BYTES", "0")];
    let Some(config) = on("0", "every_collective_without_lending", &off) else { return };
    sweep_of(&config, 3, &[1, 1031], &[Dtype::F32], &all());
}

#[test]
fn registered_memory_is_lent() {
    alone(module_path!(), "registered_memory_is_lent", &[], |fake| {
        let kinds = [
            ("CCL_DEVICE", "local", None),
            ("CCL_DIRECT_BYTES", "0", Some("CCL_DIRECT_BYTES is 0")),
            ("CCL_P2P_DISABLE", "1", Some("CCL_P2P_DISABLE")),
        ];
        let results = kinds.map(|(name, value, refusal)| {
            let config = settings(&[(name, value), SIMPLE, TWO_SHOT]);
            let run = |comm: Communicator| {
                let device = comm.device().unwrap();
                let mut buffer = DeviceBuffer::new(&config, device, 40_000)?;
                buffer.write(&(0..10_000).map(|i| 0.1 * (i + comm.rank().0) as f32).collect::<Vec<_>>())?;
                let registered = comm.register_buffer(&buffer)?;
                assert_eq!(registered.refusal(), refusal);
                comm.run_at(reduce(10_000), Addresses::in_place(&mut buffer))?;
                assert_eq!(registered.calls(), u64::from(refusal.is_none()), "calls that lent");
                // What is not registered any more is copied.
                drop(registered);
                comm.run_at(reduce(10_000), Addresses::in_place(&mut buffer))?;
                let mut values = vec![0.0f32; 10_000];
                buffer.read(&mut values)?;
                comm.barrier()?;
                Ok(values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            local::run_with(&config, 2, run).unwrap()
        });
        assert!(results[0] == results[1] && results[1] == results[2], "bytes differ");
        fake.assert_nothing_is_left("lending");
    });
}

#[test]
fn memory_that_is_not_one_piece_is_not_registered() {
    alone(module_path!(), "memory_that_is_not_one_piece_is_not_registered", &[], |fake| {
        let config = settings(&[]);
        local::run_with(&config, 2, |comm| {
            let buffer = DeviceBuffer::new(&config, 0, 4000)?;
            // SAFETY: nothing is registered.
            #[allow(unsafe_code)]
            let error = unsafe { comm.register_at(buffer.address(), 1 << 30) }.unwrap_err().to_string();
            assert!(error.contains("register: expected memory of one allocation"), "{error}");
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("a refused registration");
    });
}

#[test]
fn captured_calls_lend_without_registration() {
    alone(module_path!(), "captured_calls_lend_without_registration", &[], |fake| {
        let config = settings(&[("CCL_DEVICE", "local"), SIMPLE, TWO_SHOT]);
        local::run_with(&config, 2, |comm| captured(fake, &comm, &config)).unwrap();
        fake.assert_nothing_is_left("captured lending");
    });
}

fn captured(fake: &Fake, comm: &Communicator, config: &ccl::Config) -> Result<()> {
    let device = comm.device().unwrap();
    let (seen, own) = stream(fake, config, device);
    let mut buffer = DeviceBuffer::new(config, device, 40_000)?;
    // It counts what is lent of it, which the capture would do without it.
    let registered = comm.register_buffer(&buffer)?;
    own.begin_capture(CaptureMode::ThreadLocal).unwrap();
    put(comm, &mut buffer, &seen)?;
    let graph = own.end_capture().unwrap();
    assert_eq!(registered.calls(), 1);
    let mut exec = graph.instantiate().unwrap();
    for turn in 0..20 {
        buffer.write(&[turn as f32; 10_000])?;
        // SAFETY: the buffer outlives the run.
        #[allow(unsafe_code)]
        unsafe {
            exec.launch(&own).unwrap();
        }
        seen.synchronize()?;
        let mut values = [0.0f32; 10_000];
        buffer.read(&mut values)?;
        assert!(values.iter().all(|value| *value == 2.0 * turn as f32), "turn {turn}: {}", values[0]);
    }
    comm.barrier()
}

fn put(comm: &Communicator, buffer: &mut DeviceBuffer, stream: &Stream) -> Result<()> {
    // SAFETY: the buffer outlives the graph.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(reduce(10_000), Addresses::in_place(buffer), stream)
    }
}

fn reduce(count: usize) -> Request<'static> {
    Request { count, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) }
}

/// An algorithm that sends what stays as it is, in place too.
const TWO_SHOT: (&str, &str) = ("CCL_ALGO", "all_reduce:two_shot");
/// The protocol under which slots lend.
const SIMPLE: (&str, &str) = ("CCL_PROTO", "simple");
