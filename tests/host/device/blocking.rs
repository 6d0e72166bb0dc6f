//! Launches that return when their kernel has ended.

use std::time::{Duration, Instant};

use ccl::{Addresses, DeviceBuffer, Fault, Rank, ReduceOp, Request, Stream, local};

use super::alone::{alone, settings};

const BLOCKING: &[(&str, &str)] = &[("CUDA_LAUNCH_BLOCKING", "1")];
/// Elements of a call, more than all slots of an edge hold.
const COUNT: usize = 20_000;

#[test]
fn messages_move_while_launches_wait() {
    alone(module_path!(), "messages_move_while_launches_wait", BLOCKING, |fake| {
        for through_the_host in ["1", "0"] {
            let config = settings(&[("CCL_DEVICE", "local"), ("CCL_P2P_DISABLE", through_the_host)]);
            local::run_with(&config, 2, |comm| {
                let (me, peer) = (comm.rank().0 as i32, Rank(1 - comm.rank().0));
                let mut sums = vec![0; COUNT];
                comm.all_reduce(&vec![me + 1; COUNT], &mut sums, ReduceOp::Sum)?;
                assert!(sums.iter().all(|sum| *sum == 3));
                let (mine, mut theirs) = (vec![me; COUNT], vec![9; COUNT]);
                ccl::group(|group| {
                    group.add(&comm, Request::send(&mine, peer));
                    group.add(&comm, Request::recv(&mut theirs, peer));
                    Ok(())
                })?;
                assert!(theirs.iter().all(|value| *value == peer.0 as i32));
                let ordinal = comm.device().unwrap();
                let stream = Stream::on_device(&config, ordinal)?;
                let mut buffer = DeviceBuffer::new(&config, ordinal, 4 * COUNT)?;
                buffer.write(&vec![1i32; COUNT])?;
                for _ in 0..3 {
                    let request =
                        Request { count: COUNT, ..Request::all_reduce_in_place(&mut [0; 0], ReduceOp::Sum) };
                    // SAFETY: the buffer outlives the work on the stream, and nobody else uses it.
                    #[allow(unsafe_code)]
                    unsafe { comm.enqueue(request, Addresses::in_place(&mut buffer), &stream) }?;
                }
                stream.synchronize()?;
                buffer.read(&mut sums)?;
                assert!(sums.iter().all(|sum| *sum == 8));
                comm.barrier()
            })
            .unwrap();
        }
        fake.assert_nothing_is_left("launches that wait");
    });
}

#[test]
fn a_launch_that_nobody_answers_ends_at_the_deadline() {
    alone(module_path!(), "a_launch_that_nobody_answers_ends_at_the_deadline", BLOCKING, |fake| {
        for through_the_host in ["1", "0"] {
            let apart =
                [("CCL_DEVICE", "local"), ("CCL_P2P_DISABLE", through_the_host), ("CCL_TIMEOUT", "1s")];
            let begin = Instant::now();
            local::run_with(&settings(&apart), 2, |comm| {
                if comm.rank() == Rank(0) {
                    let error = comm.all_reduce(&[1; COUNT], &mut [0; COUNT], ReduceOp::Sum).unwrap_err();
                    assert_eq!(*error.fault(), Fault::Timeout, "{error}");
                    assert!(error.cause().contains("a launch that waits for its kernel"), "{error}");
                } else {
                    while comm.async_error().is_none() && begin.elapsed() < Duration::from_secs(10) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                Ok(())
            })
            .unwrap();
            assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
        }
        fake.assert_nothing_is_left("a launch that nobody answered");
    });
}
