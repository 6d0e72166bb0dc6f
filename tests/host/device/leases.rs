//! Lending from windows in pieces to ranks of other processes and devices: the same bytes, and what stays mapped how long.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ccl::{
    Addresses, Communicator, Config, DeviceBuffer, DeviceWindow, Rank, ReduceOp, Request, Result, local,
};
use ccl_cuda::{CaptureMode, GraphExec, Sharing};

use super::alone::{Fake, alone, in_processes, settings, stream};
use super::pieces::{ALONE, DEVICES, PIECE, WINDOW, held, pieces, read, settle, shared, window, write};

/// Where the windows of [`shared`] begin.
const START: u64 = 1020;
/// Elements that fit slots.
const FEW: usize = 500;

/// Of the calls of [`kinds`], those that send nothing that they overwrite.
const LENT: u64 = 5;

fn lending(more: &[(&'static str, &str)]) -> Config {
    settings(&[more, &ALONE, &[("CCL_PROTO", "simple"), ("CCL_ALGO", "all_reduce:two_shot")]].concat())
}

fn calls(window: &DeviceWindow) -> u64 {
    window.registration().unwrap().calls()
}

/// Copies between a rank's device and this process.
fn copy(fake: &Fake, config: &Config, comm: &Communicator, (to, from): (u64, u64), bytes: usize) {
    let (_, stream) = stream(fake, config, comm.device().unwrap());
    // SAFETY: callers give memory of so many bytes that nobody else uses meanwhile.
    #[allow(unsafe_code)]
    unsafe {
        ccl_cuda::copy(&stream, to, from, bytes).unwrap();
    }
    stream.synchronize().unwrap();
}

/// Calls of several kinds with their names, on `count` elements for each block.
fn kinds(count: usize) -> Vec<(&'static str, Request<'static>)> {
    let all_reduce = Request::all_reduce(&[0.0f32; 0], &mut [], ReduceOp::Sum);
    let reduce_scatter = Request::reduce_scatter(&[0.0f32; 0], &mut [], ReduceOp::Sum);
    vec![
        ("all-reduce", Request { count, ..all_reduce }),
        ("all-gather", Request { count, ..Request::all_gather(&[0.0f32; 0], &mut []) }),
        ("reduce-scatter", Request { count, ..reduce_scatter }),
        ("all-to-all", Request { count, ..Request::all_to_all(&[0.0f32; 0], &mut [], count) }),
        ("broadcast", Request { count, ..Request::broadcast(&mut [0.0f32; 0], Rank(1)) }),
        ("reduce", Request { count, ..Request::reduce(&[0.0f32; 0], &mut [], ReduceOp::Sum, Rank(0)) }),
    ]
}

/// All calls with these buffers; what is in the receive buffer after each.
fn results(
    fake: &Fake,
    config: &Config,
    comm: &Communicator,
    (send, recv): (u64, u64),
    count: usize,
) -> Result<Vec<Vec<f32>>> {
    let (me, all) = (comm.rank().0, comm.size() as usize * count);
    let values: Vec<f32> = (0..all).map(|index| 0.1 * (index as u32 % 1000 + 7 * me) as f32).collect();
    let mut found = Vec::new();
    for (name, call) in kinds(count) {
        copy(fake, config, comm, (send, values.as_ptr() as u64), 4 * all);
        copy(fake, config, comm, (recv, values.as_ptr() as u64), 4 * all);
        let send = if name == "broadcast" { recv } else { send };
        // SAFETY: the buffers outlive the call, and nobody else uses them.
        #[allow(unsafe_code)]
        comm.run_at(call, unsafe { Addresses::new(send as *const u8, recv as *mut u8) })?;
        let mut result = vec![0.0f32; all];
        copy(fake, config, comm, (result.as_mut_ptr() as u64, recv), 4 * all);
        found.push(result);
    }
    Ok(found)
}

/// Calls with buffers in windows have the bytes of calls with others, and are counted.
fn same(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let (me, device) = (u64::from(comm.rank().0), comm.device().unwrap());
    let ways = [Sharing::DescriptorOrFabric; 3];
    let (own, others) = (pieces(fake, device, &ways), pieces(fake, device, &ways));
    let window = window(comm, own.address() + 4096 * me + START, WINDOW)?;
    assert_eq!((window.refusal(), window.registration().unwrap().refusal()), (None, None));
    for count in [1, FEW, 10_007] {
        // One of the two lies over a seam.
        let places = [PIECE as u64 - 1400, PIECE as u64 + PIECE as u64 / 2 + 4 * me];
        let (send, recv) = if me % 2 == 0 { (places[0], places[1]) } else { (places[1], places[0]) };
        let before = calls(&window);
        let lent = results(fake, config, comm, (own.address() + send, own.address() + recv), count)?;
        assert_eq!(calls(&window) - before, LENT, "calls that lent");
        let at = others.address();
        let staged = results(fake, config, comm, (at + send, at + recv), count)?;
        assert_eq!(calls(&window) - before, LENT, "memory that nobody registered");
        let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&lent) == bits(&staged), "{count}: bytes differ");
        // One buffer alone, and one that ends outside.
        let end = own.address() + 4096 * me + START + WINDOW as u64 - 4;
        results(fake, config, comm, (own.address() + send, at + recv), 3)?;
        results(fake, config, comm, (end - 8, at + recv), 3)?;
    }
    comm.barrier()
}

fn all_same(test: &str, split: (u32, u32), more: &[(&'static str, &str)]) {
    alone(module_path!(), test, &DEVICES, |fake| {
        let config = lending(more);
        in_processes(split, &config, |comm| same(fake, &config, &comm));
        fake.assert_nothing_is_left("lending from pieces");
    });
}

#[test]
fn pieces_are_lent_between_processes() {
    all_same("pieces_are_lent_between_processes", (3, 1), &[]);
}

#[test]
fn pieces_are_lent_between_processes_of_one_device() {
    all_same("pieces_are_lent_between_processes_of_one_device", (2, 1), &[("CCL_DEVICE", "0")]);
}

#[test]
fn pieces_are_lent_between_threads_of_several_devices() {
    all_same("pieces_are_lent_between_threads_of_several_devices", (1, 3), &[]);
}

#[test]
fn pieces_are_lent_between_threads_in_processes() {
    all_same("pieces_are_lent_between_threads_in_processes", (2, 2), &[]);
}

/// To some threads by a mapping, to others by the owner's own.
#[test]
fn pieces_are_lent_between_threads_some_of_which_share_a_device() {
    let test = "pieces_are_lent_between_threads_some_of_which_share_a_device";
    all_same(test, (1, 3), &[("CCL_DEVICE", "0,1,0")]);
}

/// To threads by address, to the others by window.
#[test]
fn pieces_are_lent_between_threads_in_processes_of_one_device() {
    all_same("pieces_are_lent_between_threads_in_processes_of_one_device", (2, 2), &[("CCL_DEVICE", "0")]);
}

/// A file that ranks of all processes know.
fn sign(comm: &Communicator) -> Result<PathBuf> {
    let mut number = [std::process::id()];
    comm.broadcast(&mut number, Rank(0))?;
    Ok(std::env::temp_dir().join(format!("ccl-lease-{}-{}", number[0], comm.size())))
}

fn wait_for(sign: &Path) {
    let begin = Instant::now();
    while !sign.exists() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} does not appear", sign.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn broadcast(comm: &Communicator, at: u64, stream: &ccl::Stream) -> Result<()> {
    let call = Request { count: FEW, ..Request::broadcast(&mut [0u64; 0], Rank(0)) };
    // SAFETY: callers keep the memory until the call is over, and its graph is gone.
    #[allow(unsafe_code)]
    unsafe {
        comm.enqueue(call, Addresses::new(at as *const u8, at as *mut u8), stream)
    }
}

/// What fits slots is over for its sender at once, and what is lent when it was read.
fn waits(fake: &Fake, config: &Config, comm: &Communicator, is_lent: bool) -> Result<()> {
    let sign = sign(comm)?;
    let (seen, _own) = stream(fake, config, comm.device().unwrap());
    let (own, window) = shared(fake, comm)?;
    let at = own.address() + PIECE as u64 - 160;
    write(fake, config, comm.device().unwrap(), (at, 77 + u64::from(comm.rank().0)));
    comm.barrier()?;
    match (comm.rank(), is_lent) {
        (Rank(0), true) => {
            broadcast(comm, at, &seen)?;
            seen.synchronize()?;
            assert!(sign.exists(), "nothing waited for the reader");
        }
        (Rank(0), false) => {
            broadcast(comm, at, &seen)?;
            seen.synchronize()?;
            std::fs::write(&sign, "").unwrap();
        }
        (_, true) => {
            std::thread::sleep(Duration::from_millis(100));
            std::fs::write(&sign, "").unwrap();
            broadcast(comm, at, &seen)?;
            seen.synchronize()?;
        }
        (_, false) => {
            wait_for(&sign);
            broadcast(comm, at, &seen)?;
            seen.synchronize()?;
        }
    }
    assert_eq!(read(fake, config, comm.device().unwrap(), at), 77);
    assert_eq!(calls(&window), u64::from(is_lent));
    comm.barrier()?;
    let _ = std::fs::remove_file(sign);
    comm.barrier()
}

#[test]
fn who_lends_to_another_process_waits_until_it_was_read() {
    alone(module_path!(), "who_lends_to_another_process_waits_until_it_was_read", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((2, 1), &config, |comm| waits(fake, &config, &comm, true));
        fake.assert_nothing_is_left("lending");
    });
}

#[test]
fn nothing_is_lent_where_nothing_may_be() {
    alone(module_path!(), "nothing_is_lent_where_nothing_may_be", &DEVICES, |fake| {
        let config = lending(&[("CCL_DIRECT_BYTES", "0")]);
        in_processes((2, 1), &config, |comm| waits(fake, &config, &comm, false));
        fake.assert_nothing_is_left("nothing lent");
    });
}

/// A rank that let go of its handle is lent to all the same, and lends nothing.
fn some_lend(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank().0, comm.size());
    let (seen, _own) = stream(fake, config, comm.device().unwrap());
    let (own, mut window) = shared(fake, comm).map(|(own, window)| (own, Some(window)))?;
    if me == 1 {
        window = None;
    }
    let (send, recv) = (own.address() + PIECE as u64 - 1200, own.address() + PIECE as u64 + 100_000);
    for turn in 0..20 {
        write(fake, config, comm.device().unwrap(), (send + 8 * 499, 100 * turn + u64::from(me)));
        let call = Request { count: FEW, ..Request::all_gather(&[0u64; 0], &mut []) };
        // SAFETY: the pieces outlive the calls.
        #[allow(unsafe_code)]
        unsafe {
            comm.enqueue(call, Addresses::new(send as *const u8, recv as *mut u8), &seen)?;
        }
        if turn == 10 && me == 0 {
            // Under way.
            assert_eq!(calls(window.as_ref().unwrap()), 11);
            window = None;
        }
        seen.synchronize()?;
        for rank in 0..u64::from(n) {
            let found = read(fake, config, comm.device().unwrap(), recv + 4000 * rank + 8 * 499);
            assert_eq!(found, 100 * turn + rank, "turn {turn}, rank {rank}");
        }
    }
    // That of rank 2 alone is there.
    let mine = 3 * u64::from(me == 2);
    settle(fake, comm, if me == 2 { [9, 3, 0] } else { [6, 2, 0] })?;
    assert_eq!(window.as_ref().map_or(0, calls), 20 * mine / 3);
    drop(window);
    settle(fake, comm, [3, 1, 0])
}

#[test]
fn ranks_that_lend_and_ranks_that_do_not_share_calls() {
    alone(module_path!(), "ranks_that_lend_and_ranks_that_do_not_share_calls", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((3, 1), &config, |comm| some_lend(fake, &config, &comm));
        fake.assert_nothing_is_left("some that lend");
    });
}

/// Of memory of `cuMemAlloc` nothing is lent, of pieces beside it all.
#[test]
fn only_pieces_are_lent_to_other_processes() {
    alone(module_path!(), "only_pieces_are_lent_to_other_processes", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((3, 1), &config, |comm| {
            let (me, device) = (comm.rank().0, comm.device().unwrap());
            let buffer = DeviceBuffer::new(&config, device, WINDOW)?;
            let own = pieces(fake, device, &[Sharing::Descriptor; 2]);
            let at = if me == 2 { buffer.address() } else { own.address() };
            let window = window(&comm, at, WINDOW)?;
            assert_eq!(window.refusal(), None);
            let refusal = window.registration().unwrap().refusal();
            assert_eq!(refusal, (me == 2).then_some("the other ranks are other processes"));
            let lent = results(fake, &config, &comm, (at, at + 1_000_000), FEW)?;
            assert_eq!(calls(&window), if me == 2 { 0 } else { LENT });
            let other = DeviceBuffer::new(&config, device, WINDOW)?;
            let staged = results(fake, &config, &comm, (other.address(), other.address() + 1_000_000), FEW)?;
            assert_eq!(lent, staged);
            comm.barrier()
        });
        fake.assert_nothing_is_left("memory of two kinds");
    });
}

/// A broadcast in a graph.
fn captured(comm: &Communicator, at: u64, (seen, queue): (&ccl::Stream, &ccl_cuda::Stream)) -> GraphExec {
    queue.begin_capture(CaptureMode::ThreadLocal).unwrap();
    broadcast(comm, at, seen).unwrap();
    queue.end_capture().unwrap().instantiate().unwrap()
}

/// Graphs lend from windows whose handles are gone on all ranks, in processes that hold each other's pieces as long as that.
fn replays(fake: &Fake, config: &Config, comm: &Communicator) -> Result<()> {
    let (me, device) = (comm.rank().0, comm.device().unwrap());
    let (seen, queue) = stream(fake, config, device);
    let (own, window) = shared(fake, comm)?;
    let at = own.address() + PIECE as u64 - 160;
    let mut exec = captured(comm, at, (&seen, &queue));
    assert_eq!(calls(&window), 1);
    drop(window);
    settle(fake, comm, [6, 2, 0])?;
    // Whoever registers in vain says what it lends all the same.
    let refused = self::window(comm, own.address(), if me == 0 { 1 << 40 } else { WINDOW });
    assert!(refused.unwrap_err().to_string().contains("one allocation"));
    for turn in 0..10 {
        write(fake, config, device, (at + 8 * 499, turn + 1000 * u64::from(me)));
        comm.barrier()?;
        // Registering meanwhile is another's affair.
        let other = (turn % 4 == 1).then(|| shared(fake, comm)).transpose()?;
        // SAFETY: the pieces are there.
        #[allow(unsafe_code)]
        unsafe {
            exec.launch(&queue).unwrap();
        }
        seen.synchronize()?;
        drop(other);
        assert_eq!(read(fake, config, device, at + 8 * 499), turn, "turn {turn}");
        comm.barrier()?;
    }
    settle(fake, comm, [6, 2, 0])?;
    // The reader's graph goes first, and the other's window stays; then all goes.
    let gone = |exec: Option<GraphExec>| {
        drop(exec);
        while fake.live("object") > 0 {
            std::thread::yield_now();
        }
    };
    let mut exec = Some(exec);
    if me == 1 {
        gone(exec.take());
    }
    settle(fake, comm, if me == 0 { [3, 1, 0] } else { [6, 2, 0] })?;
    gone(exec);
    settle(fake, comm, [3, 1, 0])
}

#[test]
fn graphs_lend_after_handles_are_gone() {
    alone(module_path!(), "graphs_lend_after_handles_are_gone", &DEVICES, |fake| {
        let config = lending(&[("CCL_PROGRESS_THREAD", "0")]);
        in_processes((2, 1), &config, |comm| replays(fake, &config, &comm));
        fake.assert_nothing_is_left("graphs that lend");
    });
}

/// Memory that comes and goes: what is lent is what is there now.
#[test]
fn windows_come_and_go() {
    alone(module_path!(), "windows_come_and_go", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((2, 1), &config, |comm| {
            for turn in 0..12 {
                let (own, window) = shared(fake, &comm)?;
                let at = own.address() + PIECE as u64 - 1200;
                write(fake, &config, comm.device().unwrap(), (at, turn));
                let call =
                    Request { count: FEW, ..Request::broadcast(&mut [0u64; 0], Rank(turn as u32 % 2)) };
                write(fake, &config, comm.device().unwrap(), (at, 2 * turn + u64::from(comm.rank().0)));
                // SAFETY: the pieces outlive the call.
                #[allow(unsafe_code)]
                comm.run_at(call, unsafe { Addresses::new(at as *const u8, at as *mut u8) })?;
                assert_eq!(read(fake, &config, comm.device().unwrap(), at), 2 * turn + turn % 2);
                assert_eq!(calls(&window), 1);
                // Those of the turn before at most.
                assert!(held(fake)[0] <= 9, "{:?}", held(fake));
                if turn % 3 == 0 {
                    comm.suspend()?;
                    comm.resume()?;
                    broadcast_again(fake, &config, &comm, at)?;
                    assert_eq!(calls(&window), 2, "after resuming");
                }
            }
            settle(fake, &comm, [0; 3])
        });
        fake.assert_nothing_is_left("windows that come and go");
    });
}

fn broadcast_again(fake: &Fake, config: &Config, comm: &Communicator, at: u64) -> Result<()> {
    let device = comm.device().unwrap();
    write(fake, config, device, (at, 500 + u64::from(comm.rank().0)));
    let (seen, _own) = stream(fake, config, device);
    broadcast(comm, at, &seen)?;
    seen.synchronize()?;
    assert_eq!(read(fake, config, device, at), 500);
    comm.barrier()
}

/// As many as have slots; each of the others is as windows were before.
#[test]
fn so_many_windows_are_lent_at_a_time() {
    alone(module_path!(), "so_many_windows_are_lent_at_a_time", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((2, 1), &config, |comm| {
            let own = pieces(fake, comm.device().unwrap(), &[Sharing::Descriptor]);
            let mut windows: Vec<_> =
                (0..32).map(|place| window(&comm, own.address() + 4096 * place, 8192).unwrap()).collect();
            let refused = |window: &DeviceWindow| window.registration().unwrap().refusal().is_some();
            assert!(!windows.iter().any(refused));
            let more = window(&comm, own.address(), 8192)?;
            assert_eq!(more.refusal(), None);
            assert_eq!(more.registration().unwrap().refusal(), Some("32 windows are lent already"));
            broadcast_again(fake, &config, &comm, own.address() + 4096)?;
            let counted: Vec<u64> = windows.iter().map(calls).collect();
            assert_eq!((counted.iter().sum::<u64>(), counted[1]), (1, 1), "of two windows the newest");
            windows.remove(7);
            let next = window(&comm, own.address(), PIECE)?;
            assert!(!refused(&next));
            broadcast_again(fake, &config, &comm, own.address() + PIECE as u64 - 4096)?;
            assert_eq!(calls(&next), 1);
            drop((windows, more, next));
            settle(fake, &comm, [1, 1, 0])
        });
        fake.assert_nothing_is_left("many windows");
    });
}

/// Where a rank cannot say where windows begin they are not lent, on any rank, and the next one is.
#[test]
fn what_fails_while_registering_costs_lending() {
    alone(module_path!(), "what_fails_while_registering_costs_lending", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((3, 1), &config, |comm| {
            for function in ["cuMemcpyAsync", "cuStreamSynchronize"] {
                comm.barrier()?;
                if comm.rank() == Rank(1) {
                    fake.fail(function, 1, 999);
                }
                let (own, window) = shared(fake, &comm)?;
                if comm.rank() == Rank(1) {
                    assert_eq!(fake.failed(function), 1, "{function}");
                    fake.reset();
                }
                assert_eq!(window.refusal(), None, "{function}");
                let reason = window.registration().unwrap().refusal().unwrap();
                assert!(reason.contains("rank 1") && reason.contains(function), "{reason}");
                broadcast_again(fake, &config, &comm, own.address() + 4000)?;
                assert_eq!(calls(&window), 0);
                drop(window);
                assert_eq!(held(fake), [3, 1, 0], "nobody keeps what is not lent");
                let (other, window) = shared(fake, &comm)?;
                broadcast_again(fake, &config, &comm, other.address() + 4000)?;
                assert_eq!(calls(&window), 1);
            }
            comm.barrier()
        });
        fake.assert_nothing_is_left("failing calls");
    });
}

/// A driver that does not unmap costs addresses, and nothing else.
#[test]
fn what_fails_while_letting_go_is_no_error() {
    alone(module_path!(), "what_fails_while_letting_go_is_no_error", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((2, 1), &config, |comm| {
            let (own, first) = shared(fake, &comm)?;
            fake.fail("cuMemUnmap", 1, 999);
            drop(first);
            let (_, second) = shared(fake, &comm)?;
            broadcast_again(fake, &config, &comm, own.address() + 4000)?;
            assert_eq!(fake.failed("cuMemUnmap"), 1);
            fake.reset();
            drop(second);
            comm.barrier()
        });
    });
}

/// A rank lends to one that does not come: all end.
fn aborts(fake: &Fake, config: &Config, comm: Communicator) -> Result<()> {
    let (seen, _own) = stream(fake, config, comm.device().unwrap());
    let (own, window) = shared(fake, &comm)?;
    comm.barrier()?;
    if comm.rank() == Rank(1) {
        std::thread::sleep(Duration::from_millis(30));
        comm.aborter().abort("no more of this");
        assert!(comm.barrier().is_err());
    } else {
        let outcome = broadcast(&comm, own.address() + 4000, &seen).and_then(|()| seen.synchronize());
        let error = outcome.and_then(|()| comm.barrier()).unwrap_err().to_string();
        assert!(error.contains("no more of this"), "{error}");
    }
    drop((comm, window));
    drop(own);
    Ok(())
}

/// Communicators go before windows, and after them; also while another is still there.
fn goes(fake: &Fake, config: &Config, comm: Communicator) -> Result<()> {
    let (own, window) = shared(fake, &comm)?;
    broadcast_again(fake, config, &comm, own.address() + 4000)?;
    match comm.rank() {
        Rank(0) => {
            drop(window);
            drop(comm);
        }
        _ => {
            drop(comm);
            drop(window);
        }
    }
    drop(own);
    Ok(())
}

#[test]
fn an_abort_ends_those_who_lend() {
    alone(module_path!(), "an_abort_ends_those_who_lend", &DEVICES, |fake| {
        let config = lending(&[]);
        local::run_with(&config, 2, |comm| aborts(fake, &config, comm)).unwrap();
        fake.assert_nothing_is_left("an abort of threads");
        in_processes((2, 1), &config, |comm| aborts(fake, &config, comm));
        fake.assert_nothing_is_left("an abort");
    });
}

#[test]
fn communicators_go_before_windows() {
    alone(module_path!(), "communicators_go_before_windows", &DEVICES, |fake| {
        let config = lending(&[]);
        local::run_with(&config, 2, |comm| goes(fake, &config, comm)).unwrap();
        fake.assert_nothing_is_left("communicators of threads");
        in_processes((2, 1), &config, |comm| goes(fake, &config, comm));
        fake.assert_nothing_is_left("communicators");
    });
}

/// Messages of a group are lent, those beside no others are not.
#[test]
fn messages_of_groups_are_lent_between_processes() {
    alone(module_path!(), "messages_of_groups_are_lent_between_processes", &DEVICES, |fake| {
        let config = lending(&[]);
        in_processes((2, 1), &config, |comm| {
            let (me, device) = (comm.rank().0, comm.device().unwrap());
            let (seen, _own) = stream(fake, &config, device);
            let (own, window) = shared(fake, &comm)?;
            let (send, recv) = (own.address() + PIECE as u64 - 1200, own.address() + 100_000);
            for turn in 0..5u64 {
                write(fake, &config, device, (send + 8 * 499, 10 * turn + u64::from(me)));
                let peer = Rank(1 - me);
                ccl::group(|group| {
                    let to = Request { count: FEW, ..Request::send(&[0u64; 0], peer) };
                    let from = Request { count: FEW, ..Request::recv(&mut [0u64; 0], peer) };
                    // SAFETY: the pieces outlive the work on the stream.
                    #[allow(unsafe_code)]
                    unsafe {
                        let at = |send: u64, recv: u64| Addresses::new(send as *const u8, recv as *mut u8);
                        group.enqueue(&comm, to, at(send, 0), &seen);
                        group.enqueue(&comm, from, at(0, recv), &seen);
                    }
                    Ok(())
                })?;
                seen.synchronize()?;
                assert_eq!(read(fake, &config, device, recv + 8 * 499), 10 * turn + u64::from(peer.0));
            }
            assert!(calls(&window) >= 5, "{}", calls(&window));
            comm.barrier()
        });
        fake.assert_nothing_is_left("messages");
    });
}
