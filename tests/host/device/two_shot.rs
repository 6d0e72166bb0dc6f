//! Long all-reduces between windows by a kernel of their own: the bytes of the program that they stand for, and its errors.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ccl::reference::element;
use ccl::{
    Addresses, Communicator, Config, DeviceBuffer, DeviceWindow, Dtype, Error, Rank, Reduce, ReduceOp,
    Request, Result, local,
};
use ccl_cuda::CaptureMode;

use super::alone::{Fake, alone, in_processes, joined, settings, stream};
use super::on;

const OWN: [(&str, &str); 2] = [("CCL_CUDA_TWO_SHOT", "1"), ("CCL_ALGO", "all_reduce:two_shot")];
const WINDOW_BYTES: usize = 64 << 10;

/// A rank's buffers and its handles on them.
struct Rooms {
    buffers: [DeviceBuffer; 2],
    windows: [Option<DeviceWindow>; 2],
}

/// One call: which of the buffers are used, and where in them.
#[derive(Clone, Copy)]
struct Place {
    from: (usize, usize),
    to: (usize, usize),
}

impl Rooms {
    fn new(config: &Config, comm: &Communicator) -> Result<Rooms> {
        let buffer = || DeviceBuffer::new(config, comm.device().unwrap(), WINDOW_BYTES);
        let buffers = [buffer()?, buffer()?];
        let windows = [Some(comm.register_window(&buffers[0])?), Some(comm.register_window(&buffers[1])?)];
        Ok(Rooms { buffers, windows })
    }

    /// What a call on these buffers gives.
    fn call(
        &mut self,
        comm: &Communicator,
        kind: (Dtype, Reduce),
        input: &[u8],
        place: Place,
    ) -> Result<Vec<u8>> {
        let mut whole = vec![0u8; WINDOW_BYTES];
        whole[place.from.1..][..input.len()].copy_from_slice(input);
        self.buffers[place.from.0].write(&whole)?;
        let at = |(buffer, offset): (usize, usize)| self.buffers[buffer].address() + offset as u64;
        let (send, recv) = (at(place.from) as *const u8, at(place.to) as *mut u8);
        let count = input.len() / kind.0.size_bytes();
        let mut nothing = [0.0f32; 0];
        let request = Request {
            dtype: kind.0,
            reduce: kind.1,
            count,
            ..Request::all_reduce_in_place(&mut nothing, ReduceOp::Sum)
        };
        // SAFETY: both lie in the buffers, and nobody else uses them.
        #[allow(unsafe_code)]
        comm.run_at(request, unsafe { Addresses::new(send, recv) })?;
        self.buffers[place.to.0].read(&mut whole)?;
        Ok(whole[place.to.1..][..input.len()].to_vec())
    }
}

/// Some numbers, others on every rank.
fn input(dtype: Dtype, count: usize, seed: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut bytes = Vec::new();
    for _ in 0..count {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = state >> 20;
        let bits = if dtype.is_float() {
            element::encode(dtype, (random % 2000) as f64 / 300.0 - 3.0)
        } else {
            random
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size_bytes()]);
    }
    bytes
}

/// What the program gives, whose input is copied to the device.
fn interpreted(comm: &Communicator, kind: (Dtype, Reduce), input: &[u8]) -> Result<Vec<u8>> {
    let mut values = input.to_vec();
    let count = input.len() / kind.0.size_bytes();
    let buffers = ccl::Buffers::InPlace(&mut values);
    let mut nothing = [0.0f32; 0];
    let request = Request::all_reduce_in_place(&mut nothing, ReduceOp::Sum);
    comm.run(Request { dtype: kind.0, reduce: kind.1, count, buffers, ..request })?;
    Ok(values)
}

/// Makes a call both ways, on new numbers.
fn agree(
    comm: &Communicator,
    rooms: &mut Rooms,
    kind: (Dtype, Reduce),
    count: usize,
    place: Place,
) -> Result<()> {
    let input = input(kind.0, count, 100 * count + comm.rank().index());
    let (expected, found) = (interpreted(comm, kind, &input)?, rooms.call(comm, kind, &input, place)?);
    assert!(
        found == expected,
        "{kind:?}, {count} elements: {:x?} instead of {:x?}",
        &found[..8.min(found.len())],
        &expected[..8.min(found.len())]
    );
    Ok(())
}

/// From the one buffer to the other, or in the one; where each rank has it elsewhere.
fn places(rank: Rank) -> [Place; 3] {
    let (apart, odd) = (16 * rank.index(), 4 * rank.index());
    [
        Place { from: (0, 0), to: (1, 1024) },
        Place { from: (0, 512 + apart), to: (0, 512 + apart) },
        Place { from: (1, odd), to: (0, 2 * odd) },
    ]
}

const SUM: (Dtype, Reduce) = (Dtype::F32, Reduce::pre_mul_sum(1.0));

#[test]
fn between_windows_a_kernel_of_its_own_gives_the_programs_bytes() {
    for (n, device) in [(2, "local"), (3, "0"), (5, "local")] {
        let test = "between_windows_a_kernel_of_its_own_gives_the_programs_bytes";
        let Some(config) = on(device, test, &OWN) else { return };
        local::run_with(&config, n, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            for count in [1, 29, 1031, 5003] {
                for place in places(comm.rank()) {
                    agree(&comm, &mut rooms, (Dtype::F32, ReduceOp::Sum.into()), count, place)?;
                }
            }
            assert_eq!(comm.window_calls()?, 12);
            comm.barrier()
        })
        .unwrap();
    }
}

#[test]
fn every_dtype_and_operation_between_windows() {
    let Some(config) = on("0", "every_dtype_and_operation_between_windows", &OWN) else { return };
    local::run_with(&config, 3, |comm| {
        let mut rooms = Rooms::new(&config, &comm)?;
        let mut calls = 0;
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                let scalar = [0.5, 2.0, -1.5][comm.rank().index()];
                let reduce = if op == ReduceOp::PreMulSum { Reduce::pre_mul_sum(scalar) } else { op.into() };
                agree(&comm, &mut rooms, (dtype, reduce), 257, places(comm.rank())[0])?;
                calls += 1;
            }
        }
        assert_eq!(comm.window_calls()?, calls);
        comm.barrier()
    })
    .unwrap();
}

/// A rank that takes its handle back, is outside, or names other windows, makes all ranks interpret that call, and no other.
#[test]
fn ranks_whose_buffers_lie_elsewhere_have_all_interpret() {
    let Some(config) = on("local", "ranks_whose_buffers_lie_elsewhere_have_all_interpret", &OWN) else {
        return;
    };
    local::run_with(&config, 3, |comm| {
        let (mut rooms, mut outside) = (Rooms::new(&config, &comm)?, Rooms::new(&config, &comm)?);
        outside.windows = [None, None];
        comm.barrier()?;
        let is_odd = comm.rank() == Rank(1);
        let place = places(comm.rank())[0];
        let other = Place { from: (1, 0), to: (0, 0) };
        let mut calls = 0;
        for turn in 0..40 {
            let (chosen, place) = match (is_odd, turn % 4) {
                (true, 1) => (&mut outside, place),
                (true, 2) => (&mut rooms, other),
                (false, 3) => (&mut outside, place),
                _ => (&mut rooms, place),
            };
            agree(&comm, chosen, SUM, 700 + turn, place)?;
            calls += u64::from(turn % 4 == 0);
            assert_eq!(comm.window_calls()?, calls, "turn {turn}");
        }
        if is_odd {
            rooms.windows[0] = None;
        }
        for _ in 0..3 {
            agree(&comm, &mut rooms, SUM, 1000, place)?;
        }
        assert_eq!(comm.window_calls()?, calls, "without a handle");
        comm.barrier()
    })
    .unwrap();
}

#[test]
fn without_setting_windows_length_or_algorithm_programs_are_interpreted() {
    let test = "without_setting_windows_length_or_algorithm_programs_are_interpreted";
    let kinds: [[(&str, &str); 2]; 4] = [
        [OWN[1], ("CCL_P2P_DISABLE", "0")],
        [OWN[0], ("CCL_ALGO", "all_reduce:ring")],
        [OWN[1], ("CCL_CUDA_TWO_SHOT", "4K")],
        [OWN[1], ("CCL_CUDA_TWO_SHOT", "1G")],
    ];
    for (kind, calls) in kinds.iter().zip([0, 0, 1, 0]) {
        let Some(config) = on("0", test, kind) else { return };
        local::run_with(&config, 2, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            let place = places(comm.rank())[0];
            agree(&comm, &mut rooms, SUM, 1023, place)?;
            agree(&comm, &mut rooms, SUM, 1024, place)?;
            assert_eq!(comm.window_calls()?, calls, "{kind:?}");
            comm.barrier()
        })
        .unwrap();
    }
}

#[test]
fn windows_used_locally_have_programs_interpreted() {
    let apart = [OWN[0], OWN[1], ("CCL_P2P_DISABLE", "1")];
    let Some(config) = on("0", "windows_used_locally_have_programs_interpreted", &apart) else { return };
    local::run_with(&config, 2, |comm| {
        let mut rooms = Rooms::new(&config, &comm)?;
        assert!(rooms.windows[0].as_ref().unwrap().refusal().is_some());
        agree(&comm, &mut rooms, SUM, 1000, places(comm.rank())[0])?;
        assert_eq!(comm.window_calls()?, 0);
        comm.barrier()
    })
    .unwrap();
}

/// All between windows.
fn thirty_calls(comm: &Communicator, rooms: &mut Rooms) -> Result<()> {
    for turn in 0..10 {
        for place in places(comm.rank()) {
            agree(comm, rooms, SUM, 400 * turn + 7, place)?;
        }
    }
    assert_eq!(comm.window_calls()?, 30);
    Ok(())
}

#[test]
fn processes_reduce_between_windows() {
    alone(module_path!(), "processes_reduce_between_windows", &[], |fake| {
        let config = settings(&[OWN[0], OWN[1], ("CCL_DEVICE", "local")]);
        in_processes((3, 1), &config, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            thirty_calls(&comm, &mut rooms)?;
            if comm.rank() == Rank(2) {
                rooms.windows[1] = None;
            }
            agree(&comm, &mut rooms, SUM, 1000, places(comm.rank())[0])?;
            agree(&comm, &mut rooms, SUM, 1000, places(comm.rank())[1])?;
            assert_eq!(comm.window_calls()?, 31);
            comm.barrier()
        });
        fake.assert_nothing_is_left("windows between processes");
    });
}

/// Some ranks are reached by their own addresses, some by mappings.
#[test]
fn threads_of_processes_reduce_between_windows() {
    alone(module_path!(), "threads_of_processes_reduce_between_windows", &[], |fake| {
        let config = settings(&[OWN[0], OWN[1], ("CCL_DEVICE", "local")]);
        in_processes((2, 2), &config, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            thirty_calls(&comm, &mut rooms)?;
            // A thread that frees first would wait for kernels of the other.
            comm.suspend()
        });
        fake.assert_nothing_is_left("windows between threads of processes");
    });
}

#[test]
fn a_call_under_way_keeps_windows_whose_handles_are_gone() {
    alone(module_path!(), "a_call_under_way_keeps_windows_whose_handles_are_gone", &[], |fake| {
        let config = settings(&[OWN[0], OWN[1], ("CCL_PROGRESS_THREAD", "0")]);
        in_processes((2, 1), &config, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            let stream = ccl::Stream::on_device(&config, 0)?;
            rooms.buffers[0].write(&[1.0f32 + comm.rank().0 as f32; 16_384])?;
            let mapped = fake.live("ipc");
            // SAFETY: the buffer outlives the call.
            #[allow(unsafe_code)]
            unsafe {
                comm.enqueue(reduce(16_384), Addresses::in_place(&mut rooms.buffers[0]), &stream)?;
            }
            rooms.windows = [None, None];
            assert_eq!(fake.live("ipc"), mapped - 1, "the other buffer's alone");
            stream.synchronize()?;
            let mut values = vec![0.0f32; 16_384];
            rooms.buffers[0].read(&mut values)?;
            assert!(values.iter().all(|value| *value == 3.0), "{}", values[0]);
            comm.barrier()?;
            assert_eq!((fake.live("ipc"), comm.window_calls()?), (mapped - 2, 1));
            comm.barrier()
        });
        fake.assert_nothing_is_left("a call under way");
    });
}

/// Other ranks' memory stays mapped as long as a graph reads it, although handles go.
#[test]
fn graphs_keep_windows_whose_handles_are_gone() {
    alone(module_path!(), "graphs_keep_windows_whose_handles_are_gone", &[], |fake| {
        let config = settings(&[OWN[0], OWN[1], ("CCL_DEVICE", "local")]);
        local::run_with(&config, 2, |comm| replayed(fake, &config, &comm)).unwrap();
        in_processes((2, 1), &config, |comm| replayed(fake, &config, &comm));
        fake.assert_nothing_is_left("graphs between windows");
    });
}

fn replayed(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let (seen, own) = stream(fake, config, comm.device().unwrap());
    let mut rooms = Rooms::new(config, comm)?;
    let regions = fake.live("ipc");
    own.begin_capture(CaptureMode::ThreadLocal).unwrap();
    // SAFETY: the buffer outlives the graph.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(reduce(16_384), Addresses::in_place(&mut rooms.buffers[0]), &seen)?;
    }
    let mut exec = own.end_capture().unwrap().instantiate().unwrap();
    rooms.windows = [None, None];
    // In processes, the way to the other rank's second buffer is gone.
    assert_eq!(fake.live("ipc"), regions.saturating_sub(1));
    for turn in 1..=100 {
        rooms.buffers[0].write(&[turn as f32 + comm.rank().0 as f32; 16_384])?;
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            exec.launch(&own).unwrap();
        }
        seen.synchronize()?;
        let mut values = vec![0.0f32; 16_384];
        rooms.buffers[0].read(&mut values)?;
        assert!(values.iter().all(|value| *value == 2.0 * turn as f32 + 1.0), "turn {turn}: {}", values[0]);
        assert_eq!(comm.window_calls()?, turn);
    }
    comm.barrier()?;
    drop(exec);
    while fake.live("object") > 0 {
        std::thread::yield_now();
    }
    // The next call takes back what the graph kept.
    comm.barrier()?;
    assert_eq!(fake.live("ipc"), regions.saturating_sub(2));
    agree(comm, &mut rooms, SUM, 100, places(comm.rank())[0])
}

#[test]
fn windows_serve_after_resuming() {
    alone(module_path!(), "windows_serve_after_resuming", &[], |fake| {
        let config = settings(&OWN);
        local::run_with(&config, 2, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            for turn in 1..4 {
                agree(&comm, &mut rooms, SUM, 1000, places(comm.rank())[0])?;
                assert_eq!(comm.window_calls()?, turn);
                comm.suspend()?;
                assert_eq!(comm.device_memory()?, 0);
                comm.resume()?;
            }
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("windows after resuming");
    });
}

/// Mail says what call a rank is in.
#[test]
fn ranks_that_disagree_between_windows_hear_of_it() {
    let test = "ranks_that_disagree_between_windows_hear_of_it";
    let Some(config) = on("0", test, &OWN) else { return };
    let begin = Instant::now();
    for counts in [[100, 101], [100, 10_000], [1, 2]] {
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            comm.run_at(reduce(counts[comm.rank().index()]), Addresses::in_place(&mut rooms.buffers[0]))
        });
        for outcome in outcomes.unwrap() {
            let text = outcome.unwrap_err().to_string();
            assert!(counts.iter().all(|count| text.contains(&count.to_string())), "{counts:?}: {text}");
        }
    }
    // The deadline is after 30.
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[test]
fn an_abort_ends_a_kernel_between_windows() {
    let short = [OWN[0], OWN[1], ("CCL_TIMEOUT", "20s")];
    let Some(config) = on("0", "an_abort_ends_a_kernel_between_windows", &short) else { return };
    let begin = Instant::now();
    let outcomes = local::try_run_with(&config, 2, |comm| {
        let mut rooms = Rooms::new(&config, &comm)?;
        if comm.rank() == Rank(1) {
            std::thread::sleep(Duration::from_millis(200));
            comm.aborter().abort("the test is about this");
            return Ok(());
        }
        comm.run_at(reduce(100), Addresses::in_place(&mut rooms.buffers[0]))
    });
    let error = outcomes.unwrap().swap_remove(0).unwrap_err().to_string();
    assert!(error.contains("the test is about this"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn an_abort_ends_a_kernel_between_windows_of_processes() {
    alone(module_path!(), "an_abort_ends_a_kernel_between_windows_of_processes", &[], |fake| {
        let config = settings(&OWN);
        in_processes((2, 1), &config, |comm| {
            let mut rooms = Rooms::new(&config, &comm)?;
            if comm.rank() == Rank(1) {
                std::thread::sleep(Duration::from_millis(200));
                comm.aborter().abort("the test is about this");
                return Ok(());
            }
            let outcome = comm.run_at(reduce(100), Addresses::in_place(&mut rooms.buffers[0]));
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("the test is about this"), "{error}");
            Ok(())
        });
        fake.assert_nothing_is_left("an abort between windows");
    });
}

#[test]
fn one_thread_launches_between_windows_of_two_ranks() {
    alone(module_path!(), "one_thread_launches_between_windows_of_two_ranks", &[], |fake| {
        let configs = ["0", "1"].map(|device| settings(&[OWN[0], OWN[1], ("CCL_DEVICE", device)]));
        let made = std::thread::scope(|scope| {
            let make = |(comm, config): (Communicator, _)| {
                scope.spawn(move || Rooms::new(config, &comm).map(|rooms| (comm, rooms)))
            };
            let making: Vec<_> = joined(&configs).unwrap().into_iter().zip(&configs).map(make).collect();
            making.into_iter().map(|made| made.join().unwrap().unwrap()).collect::<Vec<_>>()
        });
        let (ranks, mut rooms): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        let streams: Vec<_> =
            (0..2).map(|device| ccl::Stream::on_device(&configs[0], device).unwrap()).collect();
        for (own, value) in rooms.iter_mut().zip([1.5f32, 2.0]) {
            own.buffers[0].write(&[value; 1000]).unwrap();
        }
        ccl::group(|group| {
            for ((comm, own), stream) in ranks.iter().zip(&mut rooms).zip(&streams) {
                // SAFETY: the buffers live until the streams are synchronised.
                #[allow(unsafe_code)]
                unsafe {
                    group.enqueue(comm, reduce(1000), Addresses::in_place(&mut own.buffers[0]), stream);
                }
            }
            Ok(())
        })
        .unwrap();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        for (comm, own) in ranks.iter().zip(&rooms) {
            let mut values = [0.0f32; 1000];
            own.buffers[0].read(&mut values).unwrap();
            assert_eq!((values, comm.window_calls().unwrap()), ([3.5; 1000], 1));
        }
        drop((rooms, streams, ranks));
        fake.assert_nothing_is_left("a group between windows");
    });
}

#[test]
fn failing_calls_of_the_driver_are_told_to_all_and_leave_nothing() {
    alone(module_path!(), "failing_calls_of_the_driver_are_told_to_all_and_leave_nothing", &[], |fake| {
        let kinds = [
            ("cuModuleGetFunction", 1),
            ("cuFuncLoad", 2),
            ("cuMemAlloc_v2", 1),
            ("cuMemcpyAsync", 2),
            ("cuLaunchKernelEx", 1),
            ("cuLaunchKernelEx", 2),
            ("cuLaunchKernelEx", 3),
        ];
        for (function, nth) in kinds {
            let config = settings(&OWN);
            let met = Barrier::new(2);
            let outcomes = local::try_run_with(&config, 2, |comm| {
                let mut rooms = Rooms::new(&config, &comm)?;
                if met.wait().is_leader() {
                    fake.fail(function, nth, 999);
                }
                met.wait();
                let outcome = comm.run_at(reduce(1000), Addresses::in_place(&mut rooms.buffers[0]));
                met.wait();
                // Who had its part of the call made hears in the next.
                outcome.and_then(|()| comm.barrier())
            });
            assert_eq!(fake.failed(function), 1, "{function}, call {nth}");
            outcomes.unwrap().into_iter().for_each(|outcome| names(&outcome.unwrap_err(), function));
            fake.reset();
            fake.assert_nothing_is_left(function);
        }
    });
}

#[track_caller]
fn names(error: &Error, function: &str) {
    let text = error.to_string();
    assert!(text.contains(function) && text.contains("CUDA_ERROR_UNKNOWN (999)"), "{text}");
}

fn reduce(count: usize) -> Request<'static> {
    Request { count, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) }
}
