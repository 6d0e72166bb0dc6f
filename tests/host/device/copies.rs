//! Host slices of calls, which are copied to the device and back while kernels run.

use std::time::{Duration, Instant};

use ccl::{Rank, ReduceOp, Request, Stream, local};

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
