//! Calls in graphs: replays, joined streams, both ends in either order.

use std::sync::Barrier;

use ccl::{
    Addresses, Blocks, Communicator, Config, DeviceBuffer, Rank, ReduceOp, Request, Result, Stream, local,
};
use ccl_cuda::{CaptureMode, Event, EventKind, Graph, GraphExec};

use super::alone::{Fake, alone, settings, stream};

#[test]
fn a_graph_replays_many_times() {
    alone(module_path!(), "a_graph_replays_many_times", &[], |fake| {
        replays(fake, &settings(&[("CCL_DEVICE", "local")]), 2, 1000);
        fake.assert_nothing_is_left("replays");
    });
}

#[test]
fn a_graph_replays_through_the_host() {
    alone(module_path!(), "a_graph_replays_through_the_host", &[], |fake| {
        replays(fake, &settings(&[("CCL_P2P_DISABLE", "1"), ("CCL_TIMEOUT", "5s")]), 2, 100);
        fake.assert_nothing_is_left("replays through the host");
    });
}

#[test]
fn an_idle_graph_through_the_host_does_not_expire() {
    alone(module_path!(), "an_idle_graph_through_the_host_does_not_expire", &[], |fake| {
        let config = settings(&[("CCL_P2P_DISABLE", "1"), ("CCL_TIMEOUT", "1s")]);
        local::run_with(&config, 2, |comm| {
            let (seen, own) = stream(fake, &config, 0);
            let (mut sum, mut all) =
                (DeviceBuffer::new(&config, 0, 1200)?, DeviceBuffer::new(&config, 0, 2400)?);
            let graph = captured(&own, || three_calls(&comm, &mut sum, &mut all, &seen));
            let mut exec = graph.instantiate().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(2500));
            assert!(comm.async_error().is_none(), "{:?}", comm.async_error());
            sum.write(&[2.0f32; 300])?;
            replay(&mut exec, &own);
            // The progress thread alone moves messages for a caller that knows nothing of ccl.
            own.synchronize().unwrap();
            let mut values = [0.0f32; 600];
            all.read(&mut values)?;
            assert_eq!(values, [4.0; 600]);
            drop((exec, graph));
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("an idle graph");
    });
}

#[test]
fn streams_of_a_capture_are_joined_by_events() {
    alone(module_path!(), "streams_of_a_capture_are_joined_by_events", &[], |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let config = settings(more);
            local::run_with(&config, 2, |comm| two_streams(fake, &config, &comm)).unwrap();
        }
        fake.assert_nothing_is_left("joined streams");
    });
}

/// Calls on two branches of a graph, which the communicator puts in order: they use the same edges.
fn two_streams(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let ((one, own), (other, beside)) = (stream(fake, config, 0), stream(fake, config, 0));
    let mut buffers: Vec<_> = (0..6).map(|_| DeviceBuffer::new(config, 0, 8000)).collect::<Result<_>>()?;
    let context = own.context();
    let events: Vec<_> = (0..2).map(|_| Event::new(context, EventKind::Order).unwrap()).collect();
    let graph = captured(&own, || {
        events[0].record(&own).and_then(|()| beside.wait(&events[0])).unwrap();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let call = Request { count: 2000, ..Request::all_reduce_in_place(&mut [0i32; 0], ReduceOp::Sum) };
            let stream = if index % 2 == 0 { &one } else { &other };
            // SAFETY: the buffers outlive the graph.
            #[allow(unsafe_code)]
            unsafe {
                comm.enqueue(call, Addresses::in_place(buffer), stream)?;
            }
        }
        events[1].record(&beside).and_then(|()| own.wait(&events[1])).unwrap();
        Ok(())
    });
    let mut exec = graph.instantiate().unwrap();
    for turn in 0..20 {
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.write(&[turn + index as i32 + comm.rank().0 as i32; 2000])?;
        }
        replay(&mut exec, &own);
        one.synchronize()?;
        for (index, buffer) in buffers.iter().enumerate() {
            let mut values = [0; 2000];
            buffer.read(&mut values)?;
            let expected = 2 * (turn + index as i32) + 1;
            assert!(values.iter().all(|value| *value == expected), "turn {turn}, buffer {index}");
        }
    }
    comm.barrier()
}

#[test]
fn graph_and_communicator_go_in_either_order() {
    alone(module_path!(), "graph_and_communicator_go_in_either_order", &[], |fake| {
        for graph_first in [true, false] {
            let config = settings(&[]);
            local::run_with(&config, 2, |comm| {
                let (seen, own) = stream(fake, &config, 0);
                let mut buffer = DeviceBuffer::new(&config, 0, 4000)?;
                let graph = captured(&own, || uneven(&comm, &mut buffer, &seen));
                let mut exec = graph.instantiate().unwrap();
                replay(&mut exec, &own);
                seen.synchronize()?;
                comm.barrier()?;
                drop(graph);
                if graph_first {
                    let tables = fake.live("host");
                    drop(exec);
                    // What the graph kept is used again.
                    while fake.live("object") > 0 {
                        std::thread::yield_now();
                    }
                    for _ in 0..5 {
                        uneven(&comm, &mut buffer, &seen)?;
                        seen.synchronize()?;
                    }
                    comm.barrier()?;
                    assert!(fake.live("host") <= tables, "{tables} and then {}", fake.live("host"));
                    comm.barrier()
                } else {
                    drop((comm, seen));
                    exec.close().unwrap();
                    Ok(())
                }
            })
            .unwrap();
            fake.assert_nothing_is_left(if graph_first {
                "the graph first"
            } else {
                "the communicator first"
            });
        }
    });
}

/// A call with tables.
fn uneven(comm: &Communicator, buffer: &mut DeviceBuffer, seen: &Stream) -> Result<()> {
    let me = comm.rank().index();
    let (counts, offsets) = ([300, 700], [0, 300]);
    let blocks = Blocks {
        send_counts: &counts[me..=me],
        send_offsets: &[0],
        recv_counts: &counts,
        recv_offsets: &offsets,
    };
    let call = Request::all_gather_v(&[0.0f32; 0], &mut [], blocks);
    let own = buffer.address() + 4 * offsets[me] as u64;
    // SAFETY: the buffer outlives the graph, and a rank's own block lies in it.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::new(own as *const u8, buffer.address() as *mut u8), seen)
    }
}

#[test]
fn a_broken_capture_is_the_callers_fault() {
    alone(module_path!(), "a_broken_capture_is_the_callers_fault", &[], |fake| {
        let config = settings(&[]);
        local::run_with(&config, 2, |comm| {
            let (seen, own) = stream(fake, &config, 0);
            let mut buffer = DeviceBuffer::new(&config, 0, 4000)?;
            let call =
                || Request { count: 9, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
            own.begin_capture(CaptureMode::ThreadLocal).unwrap();
            // Memory is not to be had meanwhile; asking for it breaks the capture.
            assert!(DeviceBuffer::new(&config, 0, 16).is_err());
            let on = |at: Addresses<'_>| {
                // SAFETY: the buffer outlives the stream's work.
                #[allow(unsafe_code)]
                unsafe {
                    comm.enqueue(call(), at, &seen)
                }
            };
            let error = on(Addresses::in_place(&mut buffer)).unwrap_err().to_string();
            assert!(error.contains("all_reduce") && error.contains("capture"), "{error}");
            own.end_capture().unwrap_err();
            on(Addresses::in_place(&mut buffer))?;
            seen.synchronize()?;
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("a broken capture");
    });
}

/// An all-reduce, an all-gather of its result and a broadcast of that, captured once, with new inputs for each replay.
pub(super) fn replays(fake: &Fake, config: &Config, n: u32, times: u64) {
    let met = Barrier::new(n as usize);
    local::run_with(config, n, |comm| {
        let (me, device) = (comm.rank(), comm.device().unwrap());
        let (seen, own) = stream(fake, config, device);
        let (mut sum, mut all) =
            (DeviceBuffer::new(config, device, 1200)?, DeviceBuffer::new(config, device, 1200 * n as usize)?);
        let graph = captured(&own, || three_calls(&comm, &mut sum, &mut all, &seen));
        let mut exec = graph.instantiate().unwrap();
        let mut before = Vec::new();
        for turn in 0..times {
            sum.write(&[turn as f32 + me.0 as f32; 300])?;
            replay(&mut exec, &own);
            seen.synchronize()?;
            let mut values = vec![0.0f32; 300 * n as usize];
            all.read(&mut values)?;
            let expected = (0..n).map(|rank| turn as f32 + rank as f32).sum::<f32>();
            assert!(values.iter().all(|value| *value == expected), "turn {turn}: {:?}", &values[..3]);
            met.wait();
            match turn {
                10 => before = fake.all(),
                _ if turn + 1 == times => assert_eq!(fake.all(), before, "objects after {times} replays"),
                _ => {}
            }
            met.wait();
        }
        // Others go on as ever, also while the graph is there and after it.
        comm.all_reduce_in_place(&mut [1.0f32; 10], ReduceOp::Sum)?;
        drop((exec, graph));
        comm.barrier()
    })
    .unwrap();
}

fn three_calls(
    comm: &Communicator,
    sum: &mut DeviceBuffer,
    all: &mut DeviceBuffer,
    seen: &Stream,
) -> Result<()> {
    let count = 300 * comm.size() as usize;
    let reduce = Request { count: 300, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
    let gather = Request { count: 300, ..Request::all_gather(&[0.0f32; 0], &mut []) };
    let broadcast = Request { count, ..Request::broadcast(&mut [0.0f32; 0], Rank(0)) };
    // SAFETY: the buffers outlive the graph, and nobody touches them while it runs.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(reduce, Addresses::in_place(sum), seen)?;
        comm.enqueue(gather, Addresses::of(sum, all), seen)?;
        comm.enqueue(broadcast, Addresses::in_place(all), seen)
    }
}

fn captured(own: &ccl_cuda::Stream, work: impl FnOnce() -> Result<()>) -> Graph {
    own.begin_capture(CaptureMode::ThreadLocal).unwrap();
    work().unwrap();
    own.end_capture().unwrap()
}

/// Starts a graph, whose buffers the callers keep until it is done.
fn replay(exec: &mut GraphExec, own: &ccl_cuda::Stream) {
    // SAFETY: see above.
    #[allow(unsafe_code)]
    unsafe {
        exec.launch(own).unwrap();
    }
}
