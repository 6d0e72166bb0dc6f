//! Host slices of calls, which are copied to the device and back while kernels run.

use std::time::{Duration, Instant};

use ccl::{Addresses, DeviceBuffer, Rank, Reduce, ReduceOp, Request, Stream, local};

use super::alone::{alone, settings};

/// Longer than what the driver takes aside of memory that is not pinned.
const COUNT: usize = 50_000;

#[test]
fn copies_do_not_wait_for_kernels_that_wait_for_who_copies() {
    alone(module_path!(), "copies_do_not_wait_for_kernels_that_wait_for_who_copies", &[], |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let config = settings(more);
            local::run_with(&config, 2, |comm| {
                let (mut one, mut other) = (vec![1i32; COUNT], vec![2i32; COUNT]);
                let begin = Instant::now();
                comm.scope(|scope| {
                    let sum = |values| Request::all_reduce_in_place(values, ReduceOp::Sum);
                    scope.start(sum(&mut one))?;
                    scope.start(sum(&mut other))?;
                    scope.wait()
                })?;
                let counts = |values: &[i32], wanted| values.iter().filter(|value| **value == wanted).count();
                assert_eq!((counts(&one, 2), counts(&other, 4)), (COUNT, COUNT));
                assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
                comm.barrier()
            })
            .unwrap();
        }
        fake.assert_nothing_is_left("copies");
    });
}

#[test]
fn results_come_back_while_a_later_kernel_waits() {
    alone(module_path!(), "results_come_back_while_a_later_kernel_waits", &[], |fake| {
        let config = settings(&[("CCL_P2P_DISABLE", "1")]);
        local::run_with(&config, 2, |comm| {
            let (mut one, mut other) = (vec![1i32; COUNT], vec![2i32; COUNT]);
            let [early, late] = [(); 2].map(|()| Stream::new());
            comm.scope(|scope| {
                let sum = |values| Request::all_reduce_in_place(values, ReduceOp::Sum);
                scope.start_on(&early, sum(&mut one))?;
                if comm.rank() == Rank(1) {
                    early.synchronize()?;
                    std::thread::sleep(Duration::from_millis(200));
                }
                scope.start_on(&late, sum(&mut other))?;
                late.synchronize()
            })?;
            assert_eq!((one[COUNT - 1], other[COUNT - 1]), (2, 4));
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("results");
    });
}

/// What scales or divides is worked out all the same, and a barrier copies nothing.
#[test]
fn the_driver_copies_the_data_of_one_rank_alone() {
    alone(module_path!(), "the_driver_copies_the_data_of_one_rank_alone", &[], |fake| {
        let blocks_of = |op: Reduce| {
            local::run_with(&settings(&[]), 1, |comm| {
                fake.reset();
                let send: Vec<f32> = (0..COUNT).map(|at| at as f32).collect();
                let mut recv = vec![0.0; COUNT];
                comm.all_reduce(&send, &mut recv, op)?;
                assert_eq!(recv, send);
                let mut gathered = vec![0.0; COUNT];
                comm.all_gather(&send, &mut gathered)?;
                assert_eq!(gathered, send);
                comm.all_reduce_in_place(&mut recv, op)?;
                assert_eq!(recv, send);
                Ok(fake.calls("blocks"))
            })
            .unwrap()[0]
        };
        assert_eq!(blocks_of(ReduceOp::Sum.into()), 0);
        assert!(blocks_of(Reduce::pre_mul_sum(1.0)) > 0 && blocks_of(ReduceOp::Average.into()) > 0);
        fake.assert_nothing_is_left("one rank");
    });
}

/// What a call on a stream asks of the driver while others are under way, which take the driver's locks, too.
#[test]
fn a_call_on_a_stream_asks_little_of_the_driver() {
    alone(module_path!(), "a_call_on_a_stream_asks_little_of_the_driver", &[], |fake| {
        const CALLS: u64 = 100;
        let config = settings(&[("CCL_PROGRESS_THREAD", "0")]);
        let asked = local::run_with(&config, 1, |comm| {
            let ordinal = comm.device().unwrap();
            let mut values = DeviceBuffer::new(&config, ordinal, 4 * COUNT)?;
            let mut sums = DeviceBuffer::new(&config, ordinal, 4 * COUNT)?;
            values.write(&vec![1.0_f32; COUNT])?;
            let stream = Stream::on_device(&config, ordinal)?;
            let mut many = |calls| {
                (0..calls).try_for_each(|_| {
                    let request =
                        Request { count: COUNT, ..Request::all_reduce::<f32>(&[], &mut [], ReduceOp::Sum) };
                    // SAFETY: both buffers live, and nobody touches them, until the stream was waited for.
                    unsafe { comm.enqueue(request, Addresses::of(&values, &mut sums), &stream) }
                })
            };
            many(1)?;
            stream.synchronize()?;
            fake.reset();
            many(CALLS)?;
            let names =
                ["cuMemcpyAsync", "cuEventQuery", "cuEventRecord", "cuCtxPushCurrent_v2", "cuGetErrorName"];
            let asked = names.map(|name| fake.calls(name));
            stream.synchronize()?;
            Ok(asked)
        })
        .unwrap()[0];
        let [copies, queries, records, pushes, names] = asked;
        assert_eq!((copies, records, queries, names), (CALLS, CALLS, 0, 0));
        assert!(pushes <= 3 * CALLS + 10, "{pushes}");
        fake.assert_nothing_is_left("calls");
    });
}

/// Those behind one that has not ended have not either.
#[test]
fn of_calls_that_follow_each_other_the_first_is_asked_for() {
    alone(module_path!(), "of_calls_that_follow_each_other_the_first_is_asked_for", &[], |fake| {
        let config = settings(&[("CCL_PROGRESS_THREAD", "0")]);
        let both = std::sync::Barrier::new(2);
        local::run_with(&config, 2, |comm| {
            let ordinal = comm.device().unwrap();
            let mut values = DeviceBuffer::new(&config, ordinal, 400)?;
            let stream = Stream::on_device(&config, ordinal)?;
            let mut put = || {
                let request =
                    Request { count: 100, ..Request::all_reduce_in_place(&mut [0_u32; 0], ReduceOp::Sum) };
                // SAFETY: the buffer lives, and nobody touches it, until the stream was waited for.
                unsafe { comm.enqueue(request, Addresses::in_place(&mut values), &stream) }
            };
            put()?;
            stream.synchronize()?;
            both.wait();
            if comm.rank() == Rank(0) {
                (0..20).try_for_each(|_| put())?;
                fake.reset();
                for looks in 1..=3 {
                    assert!(comm.async_error().is_none());
                    assert_eq!(fake.calls("cuEventQuery"), looks);
                }
            }
            both.wait();
            if comm.rank() == Rank(1) {
                (0..20).try_for_each(|_| put())?;
            }
            stream.synchronize()
        })
        .unwrap();
        fake.assert_nothing_is_left("calls behind each other");
    });
}
