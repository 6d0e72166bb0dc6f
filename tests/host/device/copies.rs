//! Host slices of calls, which are copied to the device and back while kernels run.

use std::time::{Duration, Instant};

use ccl::{Rank, Reduce, ReduceOp, Request, Stream, local};

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
