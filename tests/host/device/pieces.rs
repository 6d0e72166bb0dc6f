//! Windows of memory that is mapped in pieces, as allocators whose segments grow make it: who reaches it, why not, what is left.

use std::time::{Duration, Instant};

use ccl::{
    Addresses, Communicator, Config, DeviceBuffer, DeviceWindow, Fault, Rank, ReduceOp, Request, Result,
    Stream, local,
};
use ccl_cuda::{CaptureMode, Mapping, PhysicalMemory, Sharing};

use super::alone::{Fake, alone, in_processes, settings, stream};

/// A device for each rank.
pub(super) const DEVICES: [(&str, &str); 1] = [("CCL_FAKE_DEVICES", "4")];
/// Without multicast memory, which is mapped, too.
pub(super) const ALONE: [(&str, &str); 2] = [("CCL_DEVICE", "local"), ("CCL_CUDA_SWITCH", "0")];
pub(super) const PIECE: usize = 2 << 20;
/// From somewhere in the first of three pieces into the last.
pub(super) const WINDOW: usize = 2 * PIECE;
/// Elements of a call that is longer than it takes to return from making it.
const LONG: usize = 32 << 10;

/// Pieces of a device's memory one behind the other, each to be shared in its own way.
pub(super) fn pieces(fake: &Fake, device: u32, ways: &[Sharing]) -> Mapping {
    let device = &fake.driver.devices().unwrap()[device as usize];
    assert_eq!(PhysicalMemory::granularity(device, Sharing::Descriptor).unwrap(), PIECE);
    let pieces = ways.iter().map(|way| PhysicalMemory::new(device, PIECE, *way));
    Mapping::of_pieces(&pieces.collect::<Result<Vec<_>, _>>().unwrap(), &[device]).unwrap()
}

/// What there is of this process's mappings, of addresses reserved for them, and of references to physical memory.
pub(super) fn held(fake: &Fake) -> [u64; 3] {
    ["mapping", "reservation", "physical"].map(|kind| fake.live(kind))
}

pub(super) fn window(comm: &Communicator, at: u64, bytes: usize) -> Result<DeviceWindow> {
    // SAFETY: callers keep the memory as long as the window.
    #[allow(unsafe_code)]
    unsafe {
        comm.register_window_at(at, bytes)
    }
}

/// A window in three pieces that can be shared.
pub(super) fn shared(fake: &Fake, comm: &Communicator) -> Result<(Mapping, DeviceWindow)> {
    let own = pieces(fake, comm.device().unwrap(), &[Sharing::Descriptor; 3]);
    let window = window(comm, own.address() + 1020, WINDOW)?;
    Ok((own, window))
}

/// Waits until every rank holds what it says: others are heard of when calls are made.
pub(super) fn settle(fake: &Fake, comm: &Communicator, expected: [u64; 3]) -> Result<()> {
    let begin = Instant::now();
    loop {
        let mut waits = [u32::from(held(fake) != expected)];
        comm.all_reduce_in_place(&mut waits, ReduceOp::Max)?;
        if waits == [0] {
            return Ok(());
        }
        let found = held(fake);
        assert!(begin.elapsed() < Duration::from_secs(10), "{found:?}, expected {expected:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a rank finds in 8 bytes of others' memory, and whether it may look there at all.
pub(super) fn read(fake: &Fake, config: &Config, device: u32, at: u64) -> u64 {
    let (_, stream) = stream(fake, config, device);
    let seen = DeviceBuffer::new(config, device, 8).unwrap();
    // SAFETY: nobody writes there meanwhile.
    #[allow(unsafe_code)]
    unsafe {
        ccl_cuda::copy(&stream, seen.address(), at, 8).unwrap();
    }
    stream.synchronize().unwrap();
    let mut found = [0u64];
    seen.read(&mut found).unwrap();
    found[0]
}

pub(super) fn write(fake: &Fake, config: &Config, device: u32, (at, value): (u64, u64)) {
    let (_, stream) = stream(fake, config, device);
    // SAFETY: as above, and the value outlives the copy.
    #[allow(unsafe_code)]
    unsafe {
        ccl_cuda::copy(&stream, at, (&raw const value) as u64, 8).unwrap();
    }
    stream.synchronize().unwrap();
}

/// Every rank says something at the seams of its pieces, which all others read, also when it has let go of its memory.
fn reaches(fake: &Fake, config: &Config, comm: &Communicator, (way, count): (Sharing, usize)) -> Result<()> {
    let (me, n, device) = (comm.rank().0, comm.size(), comm.device().unwrap());
    let own = pieces(fake, device, &vec![way; count]);
    // Where a window begins in its first piece is each rank's own affair.
    let start = 4096 * u64::from(me) + 1020;
    let window = window(comm, own.address() + start, (count - 1) * PIECE)?;
    assert_eq!(window.refusal(), None);
    let seams =
        |rank: u32| (1..count as u64).map(move |seam| seam * PIECE as u64 - 4096 * u64::from(rank) - 1024);
    let says = |rank: u32, place: u64| u64::from(rank + 1) << 40 | place;
    for place in seams(me) {
        write(fake, config, device, (own.address() + start + place, says(me, place)));
    }
    comm.barrier()?;
    let look = || {
        for rank in (0..n).filter(|rank| *rank != me) {
            for place in seams(rank) {
                let at = window.address_of(Rank(rank)).unwrap() + place;
                assert_eq!(read(fake, config, device, at), says(rank, place), "{place} of rank {rank}");
            }
        }
    };
    look();
    comm.barrier()?;
    if comm.rank() == Rank(0) {
        // It goes for those on other devices and in other processes when they let go of it, too.
        drop(own);
        comm.barrier()?;
    } else {
        comm.barrier()?;
        let at = window.address_of(Rank(0)).unwrap();
        let place = seams(0).next().unwrap();
        assert_eq!(read(fake, config, device, at + place), says(0, place));
    }
    comm.barrier()
}

fn all_reach(test: &str, (processes, each): (u32, u32), (way, count): (Sharing, usize)) {
    alone(module_path!(), test, &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        in_processes((processes, each), &config, |comm| reaches(fake, &config, &comm, (way, count)));
        fake.assert_nothing_is_left("pieces");
    });
}

#[test]
fn processes_reach_the_pieces_of_all() {
    all_reach("processes_reach_the_pieces_of_all", (3, 1), (Sharing::Descriptor, 3));
}

#[test]
fn threads_of_several_devices_reach_the_pieces_of_all() {
    all_reach("threads_of_several_devices_reach_the_pieces_of_all", (1, 3), (Sharing::Private, 3));
}

#[test]
fn processes_of_several_threads_reach_the_pieces_of_all() {
    all_reach(
        "processes_of_several_threads_reach_the_pieces_of_all",
        (2, 2),
        (Sharing::DescriptorOrFabric, 3),
    );
}

/// More than come with one note.
#[test]
fn many_pieces_are_passed_one_note_after_the_other() {
    all_reach("many_pieces_are_passed_one_note_after_the_other", (2, 1), (Sharing::Descriptor, 70));
}

/// They need no socket.
#[test]
fn processes_reach_pieces_by_the_handles_of_a_fabric() {
    all_reach("processes_reach_pieces_by_the_handles_of_a_fabric", (3, 1), (Sharing::Fabric, 40));
}

/// Threads of one device need nothing but addresses, and processes of one device map what others have.
#[test]
fn ranks_of_one_device_reach_pieces() {
    alone(module_path!(), "ranks_of_one_device_reach_pieces", &[], |fake| {
        let config = settings(&[]);
        local::run_with(&config, 2, |comm| {
            let (own, window) = shared(fake, &comm)?;
            assert_eq!((window.refusal(), window.registration().unwrap().refusal()), (None, None));
            assert_eq!(window.address_of(comm.rank()), Some(own.address() + 1020));
            comm.barrier()?;
            assert_eq!(fake.live("mapping"), 6);
            comm.barrier()
        })
        .unwrap();
        assert_eq!(fake.calls("cuMemExportToShareableHandle"), 0);
        in_processes((2, 1), &config, |comm| reaches(fake, &config, &comm, (Sharing::Descriptor, 3)));
        fake.assert_nothing_is_left("one device");
    });
}

/// What a rank has mapped of others goes with its handle, and it keeps no reference to anybody's pieces.
#[test]
fn pieces_stay_mapped_as_long_as_handles() {
    alone(module_path!(), "pieces_stay_mapped_as_long_as_handles", &DEVICES, |fake| {
        let config = settings(&ALONE);
        in_processes((3, 1), &config, |comm| {
            let (own, first) = shared(fake, &comm)?;
            assert_eq!(held(fake), [9, 3, 0]);
            let second = window(&comm, own.address(), PIECE)?;
            assert_eq!(held(fake), [11, 5, 0], "one piece of each");
            drop(first);
            // As long as others may lend of theirs.
            settle(fake, &comm, [5, 3, 0])?;
            drop(comm);
            assert_eq!(held(fake), [5, 3, 0]);
            drop((own, second));
            assert_eq!(held(fake), [0; 3]);
            Ok(())
        });
        fake.assert_nothing_is_left("handles");
    });
}

/// An all-reduce over the seam of two pieces, at another place on every rank.
fn reduces(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let (own, window) = shared(fake, comm)?;
    assert_eq!(window.refusal(), None);
    let (me, n, device) = (u64::from(comm.rank().0), u64::from(comm.size()), comm.device().unwrap());
    let at = own.address() + PIECE as u64 - 40 - 8 * me;
    for index in 0..20 {
        write(fake, config, device, (at + 8 * index, 1000 * (me + 1) + index));
    }
    let mut nothing = [0u64; 0];
    let call = Request { count: 20, ..Request::all_reduce_in_place(&mut nothing, ReduceOp::Sum) };
    // SAFETY: the pieces outlive the call, and nobody else uses them.
    #[allow(unsafe_code)]
    comm.run_at(call, unsafe { Addresses::new(at as *const u8, at as *mut u8) })?;
    for index in 0..20 {
        let sum = 1000 * n * (n + 1) / 2 + n * index;
        assert_eq!(read(fake, config, device, at + 8 * index), sum, "{index}");
    }
    assert_eq!(comm.window_calls()?, 1);
    comm.barrier()
}

fn all_reduce(test: &str, split: (u32, u32)) {
    alone(module_path!(), test, &DEVICES, |fake| {
        let own = [("CCL_CUDA_TWO_SHOT", "1"), ("CCL_ALGO", "all_reduce:two_shot"), ("CCL_DEVICE", "local")];
        let config = settings(&own);
        in_processes(split, &config, |comm| reduces(fake, &config, &comm));
        fake.assert_nothing_is_left("calls between pieces");
    });
}

#[test]
fn calls_between_pieces_of_processes_have_a_kernel() {
    all_reduce("calls_between_pieces_of_processes_have_a_kernel", (3, 1));
}

#[test]
fn calls_between_pieces_of_threads_have_a_kernel() {
    all_reduce("calls_between_pieces_of_threads_have_a_kernel", (1, 3));
}

#[test]
fn calls_between_pieces_of_threads_in_processes_have_a_kernel() {
    all_reduce("calls_between_pieces_of_threads_in_processes_have_a_kernel", (2, 2));
}

/// An all-reduce on a stream: twice 128 KiB on either side of a seam.
fn enqueue(comm: &Communicator, own: &Mapping, stream: &Stream) -> Result<[u64; 2]> {
    let at = own.address() + PIECE as u64 - (LONG as u64) * 4;
    let mut nothing = [0u64; 0];
    let call = Request { count: LONG, ..Request::all_reduce_in_place(&mut nothing, ReduceOp::Sum) };
    // SAFETY: the pieces outlive the call and its graph, and nobody else uses them meanwhile.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::new(at as *const u8, at as *mut u8), stream)?;
    }
    Ok([at, at + 8 * (LONG as u64 - 1)])
}

/// Unmapping waits for nothing, so a call under way must have what it uses, and a graph for as long as it may be launched.
fn keeps(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let device = comm.device().unwrap();
    let (seen, queue) = stream(fake, config, device);
    let (own, window) = shared(fake, comm)?;
    write(
        fake,
        config,
        device,
        (own.address() + PIECE as u64 - (LONG as u64) * 4, 1 + u64::from(comm.rank().0)),
    );
    comm.barrier()?;
    let ends = enqueue(comm, &own, &seen)?;
    drop(window);
    assert_eq!(held(fake), [6, 2, 0]);
    seen.synchronize()?;
    comm.barrier()?;
    settle(fake, comm, [3, 1, 0])?;
    assert_eq!(comm.window_calls()?, 1);
    let window = self::window(comm, own.address() + 1020, WINDOW)?;
    queue.begin_capture(CaptureMode::ThreadLocal).unwrap();
    enqueue(comm, &own, &seen)?;
    let mut exec = queue.end_capture().unwrap().instantiate().unwrap();
    drop(window);
    for turn in 1..=10 {
        assert_eq!(held(fake), [6, 2, 0]);
        // SAFETY: the pieces are there.
        #[allow(unsafe_code)]
        unsafe {
            exec.launch(&queue).unwrap();
        }
        seen.synchronize()?;
        assert_eq!(ends.map(|at| read(fake, config, device, at)), [3 << turn, 0], "turn {turn}");
    }
    comm.barrier()?;
    assert_eq!(comm.window_calls()?, 11);
    drop(exec);
    while fake.live("object") > 0 {
        std::thread::yield_now();
    }
    // The next call takes back what the graph kept.
    settle(fake, comm, [3, 1, 0])
}

#[test]
fn calls_and_graphs_keep_pieces_whose_handles_are_gone() {
    alone(module_path!(), "calls_and_graphs_keep_pieces_whose_handles_are_gone", &[], |fake| {
        let own = [("CCL_CUDA_TWO_SHOT", "1"), ("CCL_ALGO", "all_reduce:two_shot"), ("CCL_DEVICE", "local")];
        let config = settings(&[own[0], own[1], own[2], ("CCL_PROGRESS_THREAD", "0")]);
        in_processes((2, 1), &config, |comm| keeps(fake, &config, &comm));
        fake.assert_nothing_is_left("calls and graphs");
    });
}

#[test]
fn pieces_that_cannot_be_passed_on_say_why() {
    alone(module_path!(), "pieces_that_cannot_be_passed_on_say_why", &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        let odd = |comm: &Communicator, way| {
            let last = if comm.rank() == Rank(1) { way } else { Sharing::Descriptor };
            pieces(fake, comm.device().unwrap(), &[Sharing::DescriptorOrFabric, Sharing::Descriptor, last])
        };
        let ways = [Sharing::Private, Sharing::Fabric];
        in_processes((2, 1), &config, |comm| {
            for way in ways {
                let own = odd(&comm, way);
                let refused = window(&comm, own.address(), 2 * PIECE + 4)?;
                let reason = refused.refusal().unwrap();
                let expected =
                    "rank 0 does not reach that of rank 1: processes cannot share it: not all of its";
                assert!(
                    reason.starts_with(expected) && reason.contains("posix file descriptors"),
                    "{reason}"
                );
                assert_eq!(
                    window(&comm, own.address(), 2 * PIECE)?.refusal(),
                    None,
                    "without the last piece"
                );
            }
            comm.barrier()
        });
        // Threads need no descriptor.
        local::run_with(&config, 2, |comm| {
            for way in ways {
                let own = odd(&comm, way);
                assert_eq!(window(&comm, own.address(), 2 * PIECE + 4)?.refusal(), None);
            }
            comm.barrier()
        })
        .unwrap();
        fake.assert_nothing_is_left("pieces that are not passed on");
    });
}

#[test]
fn memory_with_a_hole_or_of_another_device_is_told_to_all() {
    alone(module_path!(), "memory_with_a_hole_or_of_another_device_is_told_to_all", &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        in_processes((2, 1), &config, |comm| {
            let own = pieces(fake, comm.device().unwrap(), &[Sharing::Descriptor; 3]);
            if comm.rank() == Rank(1) {
                fake.unmap(own.address() + PIECE as u64, PIECE);
            }
            let error = window(&comm, own.address() + 1020, WINDOW).unwrap_err();
            assert_eq!(*error.fault(), Fault::Usage, "{error}");
            assert!(error.to_string().contains("expected memory of one allocation"), "{error}");
            assert_eq!(window(&comm, own.address() + 1020, PIECE - 1020)?.refusal(), None, "before the hole");
            let elsewhere = pieces(fake, 1, &[Sharing::Descriptor]);
            let refused = window(&comm, elsewhere.address(), 4096)?;
            let reason = refused.refusal().unwrap();
            assert!(reason.contains("it is memory of device 1, and the rank works on device 0"), "{reason}");
            comm.barrier()
        });
        fake.assert_nothing_is_left("a hole");
    });
}

/// Rank 1 fails in one call of the driver; all ranks hear of it, nothing of the window is left, and the next one works.
fn hears(
    (fake, bare): (&Fake, [u64; 3]),
    comm: &Communicator,
    way: Sharing,
    (function, nth): (&str, u64),
) -> Result<()> {
    let own = pieces(fake, comm.device().unwrap(), &[way; 3]);
    let before = [bare[0] + 3, bare[1] + 1, bare[2]];
    settle(fake, comm, before)?;
    if comm.rank() == Rank(1) {
        fake.fail(function, nth, 999);
    }
    comm.barrier()?;
    let refused = window(comm, own.address() + 1020, WINDOW)?;
    comm.barrier()?;
    let reason = refused.refusal().unwrap_or_else(|| panic!("{function}, call {nth}"));
    assert!(reason.contains("rank 1") && reason.contains(function), "{function}, call {nth}: {reason}");
    assert_eq!(refused.address_of(Rank(0)), None);
    if comm.rank() == Rank(1) {
        assert_eq!(fake.failed(function), 1);
        fake.reset();
    }
    assert_eq!(held(fake), before, "{function}, call {nth}");
    assert_eq!(window(comm, own.address() + 1020, WINDOW)?.refusal(), None);
    comm.barrier()
}

#[test]
fn whatever_fails_while_pieces_are_passed_all_hear() {
    alone(module_path!(), "whatever_fails_while_pieces_are_passed_all_hear", &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        // The first of these look whether all is mapped.
        let calls = [
            ("cuMemGetAddressRange_v2", [4, 6]),
            ("cuPointerGetAttributes", [3, 5]),
            ("cuMemRetainAllocationHandle", [1, 3]),
            ("cuMemExportToShareableHandle", [1, 3]),
            ("cuMemImportFromShareableHandle", [1, 6]),
            ("cuMemAddressReserve", [1, 2]),
            ("cuMemMap", [1, 6]),
            ("cuMemSetAccess", [1, 6]),
        ];
        in_processes((3, 1), &config, |comm| {
            let bare = held(fake);
            for way in [Sharing::Descriptor, Sharing::Fabric] {
                for (function, nth) in
                    calls.iter().flat_map(|(function, both)| both.map(|nth| (*function, nth)))
                {
                    hears((fake, bare), &comm, way, (function, nth))?;
                }
            }
            Ok(())
        });
        fake.assert_nothing_is_left("failing calls");
    });
}

/// Threads on several devices map each other's pieces without passing descriptors.
#[test]
fn whatever_fails_between_threads_all_hear() {
    alone(module_path!(), "whatever_fails_between_threads_all_hear", &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        let calls = [("cuMemRetainAllocationHandle", 12), ("cuMemAddressReserve", 2), ("cuMemMap", 6)];
        for (function, most) in calls {
            for nth in 1..=most {
                local::run_with(&config, 2, |comm| {
                    let own = pieces(fake, comm.device().unwrap(), &[Sharing::Private; 3]);
                    comm.barrier()?;
                    if comm.rank() == Rank(1) {
                        fake.fail(function, nth, 999);
                    }
                    comm.barrier()?;
                    let refused = window(&comm, own.address(), WINDOW + 4)?;
                    assert!(refused.refusal().is_some_and(|reason| reason.contains(function)), "{refused:?}");
                    comm.barrier()
                })
                .unwrap();
                assert_eq!(fake.failed(function), 1, "{function}, call {nth}");
                fake.reset();
                fake.assert_nothing_is_left(function);
            }
        }
    });
}

/// The driver fails for good where a rank looks whether its own memory is there.
#[test]
fn a_failure_before_anything_is_offered_fails_all() {
    alone(module_path!(), "a_failure_before_anything_is_offered_fails_all", &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        in_processes((2, 1), &config, |comm| {
            let own = pieces(fake, comm.device().unwrap(), &[Sharing::Descriptor; 3]);
            if comm.rank() == Rank(1) {
                fake.fail("cuMemGetAddressRange_v2", 2, 999);
            }
            let error = window(&comm, own.address(), WINDOW).unwrap_err().to_string();
            assert!(error.contains("cuMemGetAddressRange_v2") && error.contains("999"), "{error}");
            Ok(())
        });
        fake.assert_nothing_is_left("a failing driver");
    });
}

#[test]
fn pieces_go_after_an_abort() {
    alone(module_path!(), "pieces_go_after_an_abort", &DEVICES, |fake| {
        let config = settings(&[("CCL_DEVICE", "local")]);
        in_processes((2, 1), &config, |comm| {
            let (own, window) = shared(fake, &comm)?;
            if comm.rank() == Rank(1) {
                comm.aborter().abort("no more of this");
            }
            let error = shared(fake, &comm).unwrap_err().to_string();
            assert!(error.contains("no more of this"), "{error}");
            drop(comm);
            assert_eq!(fake.live("mapping"), 6);
            drop((window, own));
            assert_eq!(fake.live("mapping"), 0);
            Ok(())
        });
        fake.assert_nothing_is_left("an abort");
    });
}
