//! What communicators do while the plugin listens.

use std::net::TcpListener;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::{Communicator, Rank, ReduceOp, Request, local};

use crate::report::SCENARIO;

/// Plays the scenario that the environment names; nothing without one.
pub(crate) fn play() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    match &*scenario {
        "eager" => local::run(2, |comm| eager(&comm)).map(drop).unwrap(),
        "network" => local::run(2, |comm| network(&comm)).map(drop).unwrap(),
        "grouped" => local::run(4, |comm| grouped(&comm)).map(drop).unwrap(),
        "many" => local::run(1, |comm| many(&comm)).map(drop).unwrap(),
        "toggled" => local::run(2, |comm| toggled(&comm)).map(drop).unwrap(),
        "aborted" => local::run(2, |comm| aborted(&comm)).map(drop).unwrap(),
        "traced" => local::run(2, |comm| traced(&comm)).map(drop).unwrap(),
        "absent" => absent(),
        "progress" => local::run(2, |comm| progress(&comm)).map(drop).unwrap(),
        "killed" => killed(),
        "rank of killed" => rank_of_killed(),
        other => panic!("no scenario {other}"),
    }
}

fn eager(comm: &Communicator) -> ccl::Result<()> {
    let peer = Rank(1 - comm.rank().0);
    for count in [1, 1000, 300_000] {
        let mut data = vec![1.0f32; count];
        for _ in 0..20 {
            comm.all_reduce_in_place(&mut data, ReduceOp::Max)?;
        }
        comm.barrier()?;
    }
    for _ in 0..20 {
        let mut byte = [comm.rank().0];
        if comm.rank() == Rank(0) {
            comm.send(&byte, peer)?;
            comm.recv(&mut byte, peer)?;
        } else {
            comm.recv(&mut byte, peer)?;
            comm.send(&byte, peer)?;
        }
    }
    Ok(())
}

fn network(comm: &Communicator) -> ccl::Result<()> {
    let mut data = vec![1.0f32; 100_000];
    for _ in 0..20 {
        comm.all_reduce_in_place(&mut data, ReduceOp::Max)?;
    }
    Ok(())
}

fn grouped(comm: &Communicator) -> ccl::Result<()> {
    exchange(comm)?;
    // An error of the caller's is heard of as well, and ends nothing.
    assert!(comm.run(Request::send(&[1.0f32], Rank(99))).is_err());
    assert!(
        ccl::group(|group| {
            group.add(comm, Request::send(&[1.0f32], Rank(99)));
            Ok(())
        })
        .is_err()
    );
    let made = comm.split(Some(comm.rank().0 % 2), 0)?;
    made.as_ref().map_or(Ok(()), exchange)
}

/// Ten groups, and a scope.
fn exchange(comm: &Communicator) -> ccl::Result<()> {
    let (rank, n) = (comm.rank().0, comm.size());
    let (next, before) = (Rank((rank + 1) % n), Rank((rank + n - 1) % n));
    for _ in 0..10 {
        let (mine, mut theirs, mut sum) = ([rank; 100], [0; 100], [1u32; 100]);
        ccl::group(|group| {
            group.add(comm, Request::send(&mine, next));
            group.add(comm, Request::recv(&mut theirs, before));
            group.add(comm, Request::all_reduce_in_place(&mut sum, ReduceOp::Sum));
            Ok(())
        })?;
        assert_eq!((theirs[0], sum[0]), (before.0, n));
    }
    let (mut a, mut b) = (vec![1.0f32; 70_000], vec![2.0f32; 70_000]);
    comm.scope(|scope| {
        scope.start(Request::all_reduce_in_place(&mut a, ReduceOp::Max))?;
        scope.start(Request::all_reduce_in_place(&mut b, ReduceOp::Max))
    })
}

/// More than a profiler hears of that sleeps meanwhile.
pub(crate) const MANY: u64 = 4000;

fn many(comm: &Communicator) -> ccl::Result<()> {
    (0..MANY).try_for_each(|_| comm.barrier())
}

/// Slow enough for a profiler to change its mind meanwhile.
fn toggled(comm: &Communicator) -> ccl::Result<()> {
    (0..100).try_for_each(|call| {
        // As uneven as that, because a profiler that hears of two launches at a time leaves the mask as it was. One that falls behind,
        // on a busy host, catches up with an odd number of them.
        std::thread::sleep(Duration::from_millis(if call % 9 == 0 { 60 } else { 1 + call * 7 % 12 }));
        comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum)
    })
}

/// Rank 0 aborts while rank 1 waits for it.
fn aborted(comm: &Communicator) -> ccl::Result<()> {
    static CALLS: AtomicBool = AtomicBool::new(false);
    comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum)?;
    if comm.rank() == Rank(0) {
        while !CALLS.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        comm.aborter().abort("the test says so");
        return Ok(());
    }
    CALLS.store(true, Ordering::Release);
    assert!(comm.all_reduce_in_place(&mut vec![1.0f32; 100_000], ReduceOp::Sum).is_err());
    Ok(())
}

/// Long calls of several kinds: readers of traces may round to microseconds.
fn traced(comm: &Communicator) -> ccl::Result<()> {
    let n = comm.size() as usize;
    let (mut whole, mut part) = (vec![1.0f32; LONG], vec![1.0f32; LONG / n]);
    for _ in 0..5 {
        comm.all_reduce_in_place(&mut whole, ReduceOp::Max)?;
        comm.all_gather(&part, &mut whole)?;
        comm.reduce_scatter(&whole, &mut part, ReduceOp::Max)?;
        comm.broadcast(&mut whole, Rank(1))?;
        if comm.rank() == Rank(0) {
            comm.send(&whole, Rank(1))?;
        } else {
            comm.recv(&mut whole, Rank(0))?;
        }
    }
    Ok(())
}

/// Elements of a long call.
const LONG: usize = 2_000_000;

/// Rank 2 of three stays away from a barrier, until its own file says so.
fn absent() {
    let prefix = std::env::var("CCL_FLIGHT_FILE").unwrap();
    let own = std::path::PathBuf::from(format!("{prefix}2"));
    let ends = local::try_run_with(&ccl::Config::load().unwrap(), 3, |comm| {
        comm.all_reduce_in_place(&mut [1.0f32; 5], ReduceOp::Sum)?;
        if comm.rank() != Rank(2) {
            return comm.barrier();
        }
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while !own.exists() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    });
    assert!(ends.unwrap()[..2].iter().all(Result::is_err));
}

/// Nobody waits, so the progress thread drives.
fn progress(comm: &Communicator) -> ccl::Result<()> {
    for _ in 0..5 {
        let mut data = vec![1.0f32; 200_000];
        comm.scope(|scope| {
            scope.start(Request::all_reduce_in_place(&mut data, ReduceOp::Max))?;
            std::thread::sleep(Duration::from_millis(100));
            Ok(())
        })?;
    }
    Ok(())
}

/// Three processes, of which one dies in the middle.
fn killed() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: u32| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "scenario_of_a_test", "--nocapture"])
            .env(SCENARIO, "rank of killed")
            .env("CCL_RANK", rank.to_string())
            .env("CCL_NRANKS", "3")
            .env("CCL_COMM_ID", format!("127.0.0.1:{port}"))
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = (0..3).map(start).collect();
    let ends: Vec<bool> = ranks.into_iter().map(|mut rank| rank.wait().unwrap().success()).collect();
    assert_eq!(ends, [true, true, false]);
}

fn rank_of_killed() {
    let comm = Communicator::from_env().unwrap();
    let mut data = vec![1.0f32; 50_000];
    let mut call = || comm.all_reduce_in_place(&mut data, ReduceOp::Max);
    call().unwrap();
    if comm.rank() == Rank(2) {
        std::process::abort();
    }
    assert!(call().is_err());
}
