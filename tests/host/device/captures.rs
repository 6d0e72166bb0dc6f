//! Calls while somebody captures: neither breaks the other.

use std::sync::Barrier;
use std::time::Duration;

use ccl::{Addresses, Communicator, DeviceBuffer, Rank, ReduceOp, Request, Result, Stream, local};
use ccl_cuda::{CaptureMode, Graph};

use super::alone::{Fake, alone, settings, stream};

/// Runs `body` while another thread captures a stream of its own, in the mode that forbids the most to all threads.
fn beside_a_capture(fake: &Fake, body: impl FnOnce()) {
    let (_, own) = stream(fake, &settings(&[]), 0);
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            own.begin_capture(CaptureMode::Global).unwrap();
            begun.wait();
            done.wait();
            own.end_capture().map(Graph::close)
        });
        begun.wait();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        done.wait();
        let captured = capturing.join().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        captured.expect("nobody broke the capture").unwrap();
    });
}

/// A call on a stream, with an input of ones; the sums are looked at when the stream is done.
fn enqueue(comm: &Communicator, buffer: &mut DeviceBuffer, stream: &Stream) -> Result<()> {
    buffer.write(&[1i32; 1000])?;
    let call = Request { count: 1000, ..Request::all_reduce_in_place(&mut [0i32; 0], ReduceOp::Sum) };
    // SAFETY: the buffer outlives the work on the stream, and nobody touches it until then.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::in_place(buffer), stream)
    }
}

fn assert_summed(buffer: &DeviceBuffer, stream: &Stream) -> Result<()> {
    stream.synchronize()?;
    let mut values = [0i32; 1000];
    buffer.read(&mut values)?;
    assert!(values.iter().all(|value| *value == 2), "{}", values[0]);
    Ok(())
}

#[test]
fn calls_that_are_outstanding_leave_captures_of_other_threads_alone() {
    alone(module_path!(), "calls_that_are_outstanding_leave_captures_of_other_threads_alone", &[], |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let config = settings(more);
            let met = Barrier::new(3);
            std::thread::scope(|scope| {
                let ranks = scope.spawn(|| {
                    local::run_with(&config, 2, |comm| {
                        let stream = Stream::on_device(&config, 0)?;
                        let mut buffer = DeviceBuffer::new(&config, 0, 4000)?;
                        // All that the call needs is there, so that the capture meets nothing but a look at it.
                        enqueue(&comm, &mut buffer, &stream)?;
                        assert_summed(&buffer, &stream)?;
                        met.wait();
                        met.wait();
                        if comm.rank() == Rank(1) {
                            // Meanwhile rank 0's is outstanding: the progress thread looks at it, and it itself.
                            std::thread::sleep(Duration::from_millis(200));
                        }
                        enqueue(&comm, &mut buffer, &stream)?;
                        assert!(comm.async_error().is_none(), "{:?}", comm.async_error());
                        assert_summed(&buffer, &stream)?;
                        let ended = comm.async_error();
                        met.wait();
                        assert!(ended.is_none(), "{ended:?}");
                        comm.barrier()
                    })
                });
                met.wait();
                beside_a_capture(fake, || {
                    met.wait();
                    met.wait();
                });
                ranks.join().unwrap().unwrap();
            });
        }
        fake.assert_nothing_is_left("calls beside a capture");
    });
}

#[test]
fn first_calls_of_a_kind_leave_captures_of_other_threads_alone() {
    alone(module_path!(), "first_calls_of_a_kind_leave_captures_of_other_threads_alone", &[], |fake| {
        let config = settings(&[]);
        beside_a_capture(fake, || {
            // Joining takes memory as well.
            local::run_with(&config, 2, |comm| {
                let mut values = vec![1i32; 100_000];
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
                assert!(values.iter().all(|value| *value == 2));
                let (peer, mut received) = (Rank(1 - comm.rank().0), vec![0i32; 1000]);
                ccl::group(|group| {
                    group.add(&comm, Request::send(&values[..1000], peer));
                    group.add(&comm, Request::recv(&mut received, peer));
                    Ok(())
                })?;
                assert!(received.iter().all(|value| *value == 2));
                comm.barrier()
            })
            .unwrap();
        });
        fake.assert_nothing_is_left("first calls beside a capture");
    });
}

#[test]
fn ends_leave_captures_of_other_threads_alone() {
    alone(module_path!(), "ends_leave_captures_of_other_threads_alone", &[], |fake| {
        let config = settings(&[]);
        let make = || DeviceBuffer::new(&config, 0, 4000);
        let mut buffers = [make().unwrap(), make().unwrap()];
        let streams = [(); 2].map(|()| Stream::on_device(&config, 0).unwrap());
        let started = Barrier::new(2);
        beside_a_capture(fake, || {
            let each: Vec<_> = buffers.iter_mut().zip(&streams).map(std::sync::Mutex::new).collect();
            local::run_with(&config, 2, |comm| {
                let rank = comm.rank().index();
                let (buffer, stream) = &mut *each[rank].lock().unwrap();
                comm.barrier()?;
                if rank == 1 {
                    started.wait();
                    std::thread::sleep(Duration::from_millis(100));
                    comm.aborter().abort("the test is about this");
                    return Ok(());
                }
                enqueue(&comm, buffer, stream)?;
                started.wait();
                while comm.async_error().is_none() {
                    std::thread::yield_now();
                }
                assert!(stream.synchronize().is_err(), "it says why the call ended");
                drop(comm);
                Ok(())
            })
            .unwrap();
            drop(each);
            drop(buffers);
        });
        drop(streams);
        fake.assert_nothing_is_left("ends beside a capture");
    });
}

/// A message to the other rank and one from it, in one group.
fn exchange(comm: &Communicator, buffers: &[DeviceBuffer; 2], stream: &Stream) -> Result<()> {
    let peer = Rank(1 - comm.rank().0);
    let call = |request: Request<'static>| Request { count: 1000, ..request };
    let at = |buffer: &DeviceBuffer| (buffer.address() as *const u8, buffer.address() as *mut u8);
    ccl::group(|group| {
        // SAFETY: the buffers outlive the work on the stream and its graph.
        #[allow(unsafe_code)]
        unsafe {
            let (send, recv) = (at(&buffers[0]).0, at(&buffers[1]).1);
            let nothing: &'static mut [i32] = &mut [];
            group.enqueue(
                comm,
                call(Request::send(&[0i32; 0], peer)),
                Addresses::new(send, std::ptr::null_mut()),
                stream,
            );
            group.enqueue(
                comm,
                call(Request::recv(nothing, peer)),
                Addresses::new(std::ptr::null(), recv),
                stream,
            );
        }
        Ok(())
    })
}

#[test]
fn groups_run_while_another_of_the_same_ranks_is_captured() {
    alone(module_path!(), "groups_run_while_another_of_the_same_ranks_is_captured", &[], |fake| {
        let config = settings(&[]);
        local::run_with(&config, 2, |comm| {
            let (peer, (seen, own)) = (1 - comm.rank().0 as i32, stream(fake, &config, 0));
            let eager = Stream::on_device(&config, 0)?;
            let make = || -> Result<_> {
                Ok([DeviceBuffer::new(&config, 0, 4000)?, DeviceBuffer::new(&config, 0, 4000)?])
            };
            let (mut captured, mut other) = (make()?, make()?);
            captured[0].write(&[10 + comm.rank().0 as i32; 1000])?;
            other[0].write(&[20 + comm.rank().0 as i32; 1000])?;
            let assert_has = |buffers: &[DeviceBuffer; 2], wanted: i32| {
                let mut values = [0i32; 1000];
                buffers[1].read(&mut values)?;
                assert_eq!(values, [wanted; 1000]);
                Ok::<_, ccl::Error>(())
            };
            let mut streams = Vec::new();
            for turn in 0..3 {
                own.begin_capture(CaptureMode::ThreadLocal).unwrap();
                exchange(&comm, &captured, &seen)?;
                exchange(&comm, &other, &eager)?;
                exchange(&comm, &captured, &seen)?;
                let graph = own.end_capture().unwrap();
                eager.synchronize()?;
                assert_has(&other, 20 + peer)?;
                let mut exec = graph.instantiate().unwrap();
                // SAFETY: the buffers outlive the work of the graph.
                #[allow(unsafe_code)]
                unsafe {
                    exec.launch(&own).unwrap();
                }
                seen.synchronize()?;
                assert_has(&captured, 10 + peer)?;
                other[1].write(&[turn; 1000])?;
                captured[1].write(&[turn; 1000])?;
                comm.barrier()?;
                streams.push(fake.live("stream"));
                comm.barrier()?;
            }
            assert_eq!(streams[1..], [streams[0]; 2], "streams of captures that ended are used again");
            Ok(())
        })
        .unwrap();
        fake.assert_nothing_is_left("groups beside captures");
    });
}
