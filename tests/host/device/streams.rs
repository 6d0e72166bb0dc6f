//! The default streams, and calls on several streams.

use ccl::{Addresses, Communicator, DeviceBuffer, ReduceOp, Request, Result, Stream, local};

use super::alone::{alone, settings};

#[test]
fn calls_on_default_streams() {
    alone(module_path!(), "calls_on_default_streams", &[], |fake| {
        let config = settings(&[]);
        local::run_with(&config, 2, |comm| {
            // The legacy stream of a device is one for both ranks, whose kernels wait for each other: one has it.
            let first = match comm.rank().0 {
                0 => Stream::legacy(&config, 0)?,
                _ => Stream::on_device(&config, 0)?,
            };
            let own = Stream::per_thread(&config, 0)?;
            let mut buffer = DeviceBuffer::new(&config, 0, 4000)?;
            buffer.write(&[1i32; 1000])?;
            for _ in 0..4 {
                doubled(&comm, &mut buffer, &first)?;
                first.synchronize()?;
                // The legacy stream and those of threads wait for what is on the other at the time, of either rank, and so
                // does who waits for the legacy stream: no rank is on the one while another is still on the other.
                comm.barrier()?;
                doubled(&comm, &mut buffer, &own)?;
                own.synchronize()?;
                comm.barrier()?;
            }
            let mut values = [0i32; 1000];
            buffer.read(&mut values)?;
            assert!(values.iter().all(|value| *value == 256), "{}", values[0]);
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("default streams");
    });
}

#[test]
fn calls_on_several_streams_keep_their_order() {
    alone(module_path!(), "calls_on_several_streams_keep_their_order", &[], |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let config = settings(more);
            local::run_with(&config, 2, |comm| {
                let streams: Vec<_> = (0..3).map(|_| Stream::on_device(&config, 0)).collect::<Result<_>>()?;
                let mut buffers: Vec<_> =
                    (0..3).map(|_| DeviceBuffer::new(&config, 0, 4000)).collect::<Result<_>>()?;
                for buffer in &mut buffers {
                    buffer.write(&[1i32; 1000])?;
                }
                for _ in 0..5 {
                    for (buffer, stream) in buffers.iter_mut().zip(&streams) {
                        doubled(&comm, buffer, stream)?;
                    }
                }
                for (buffer, stream) in buffers.iter().zip(&streams) {
                    stream.synchronize()?;
                    let mut values = [0i32; 1000];
                    buffer.read(&mut values)?;
                    assert!(values.iter().all(|value| *value == 32), "{}", values[0]);
                }
                comm.barrier()
            })
            .unwrap();
        }
        fake.assert_nothing_is_left("several streams");
    });
}

/// Streams share the queues of their device, of which there are 32 at most (`CUDA_DEVICE_MAX_CONNECTIONS`): a kernel may be held
/// up by what another rank has put there before, and that by a kernel that waits for this one.
#[test]
fn eight_ranks_of_a_device_do_with_its_queues() {
    let queues = [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("CCL_FAKE_CONNECTIONS", "32")];
    let driver = [queues[0], queues[1], ("CCL_FAKE_MULTIPROCESSORS", "132")];
    alone(module_path!(), "eight_ranks_of_a_device_do_with_its_queues", &driver, |fake| {
        let config = settings(&[]);
        local::run_with(&config, 8, |comm| {
            let mut buffers: Vec<_> =
                (0..3).map(|_| DeviceBuffer::new(&config, 0, 4000)).collect::<Result<_>>()?;
            let stream = Stream::on_device(&config, 0)?;
            for turn in 1..4i32 {
                for buffer in &mut buffers {
                    buffer.write(&[turn; 1000])?;
                    for _ in 0..6 {
                        doubled(&comm, buffer, &stream)?;
                    }
                }
                // Some ranks wait here while others have calls left.
                comm.barrier()?;
                let mut ranks = [comm.rank().0];
                comm.all_reduce_in_place(&mut ranks, ReduceOp::Sum)?;
                assert_eq!(ranks, [28]);
                stream.synchronize()?;
                for buffer in &buffers {
                    let mut values = [0i32; 1000];
                    buffer.read(&mut values)?;
                    assert!(values.iter().all(|value| *value == turn << 18), "{}", values[0]);
                }
            }
            // Ranks count them beforehand, with the default one, which the driver has.
            comm.barrier()?;
            assert_eq!(fake.live("stream"), 17, "that of copies, and two for each rank");
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("eight ranks");
    });
}

#[test]
fn a_communicator_that_changes_threads_keeps_the_order_of_default_streams() {
    alone(
        module_path!(),
        "a_communicator_that_changes_threads_keeps_the_order_of_default_streams",
        &[],
        |fake| {
            let config = settings(&[]);
            local::run_with(&config, 2, |comm| {
                let stream = Stream::per_thread(&config, 0)?;
                let mut buffer = DeviceBuffer::new(&config, 0, 40_000)?;
                buffer.write(&[1i32; 10_000])?;
                doubled(&comm, &mut buffer, &stream)?;
                std::thread::scope(|scope| {
                    // The same handle, and another stream.
                    let other = scope.spawn(|| {
                        let comm = comm;
                        doubled(&comm, &mut buffer, &stream)?;
                        stream.synchronize()?;
                        let mut values = [0i32; 10_000];
                        buffer.read(&mut values)?;
                        assert!(values.iter().all(|value| *value == 4), "{}", values[0]);
                        comm.barrier()
                    });
                    other.join().unwrap()
                })
            })
            .unwrap();
            fake.assert_nothing_is_left("changed threads");
        },
    );
}

/// An all-reduce of ones doubles them, on two ranks.
fn doubled(comm: &Communicator, buffer: &mut DeviceBuffer, stream: &Stream) -> Result<()> {
    let count = buffer.len() / 4;
    let call = Request { count, ..Request::all_reduce_in_place(&mut [0i32; 0], ReduceOp::Sum) };
    // SAFETY: callers keep the buffer, and touch it only after the stream has passed the call.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::in_place(buffer), stream)
    }
}
