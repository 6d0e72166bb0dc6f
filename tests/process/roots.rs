//! Ranks that meet at several roots, each in a process of its own.

use std::time::{Duration, Instant};

use ccl::{Communicator, Rank, Result, UniqueId};
use ccl_tests::Stolen;

use crate::kills::names;
use crate::pool::{self, Worker};

#[test]
fn ranks_meet_compute_and_leave_nothing_at_two_and_three_roots() {
    for settings in pool::bands() {
        for (n, k) in [(6, 2), (7, 3)] {
            let mut workers: Vec<Worker> = (0..n).map(|_| Worker::start_with(&settings)).collect();
            let ids = ids(&mut workers, k, "20s");
            join(&mut workers, &ids, "20s", "check");
            workers.iter_mut().for_each(|worker| worker.until("ok").unwrap());
            workers.iter_mut().for_each(Worker::expect_nothing_left);
        }
    }
}

#[test]
fn several_addresses_in_a_setting_are_as_many_roots() {
    let mut workers: Vec<Worker> = (0..5).map(|_| Worker::start()).collect();
    let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let addresses = [0; 3].map(|_| format!("127.0.0.1:{}", port())).join(",");
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("job {addresses} {rank} 5 20s check"));
    }
    workers.iter_mut().for_each(|worker| worker.until("ok").unwrap());
    workers.iter_mut().for_each(Worker::expect_nothing_left);
}

#[test]
fn communicators_are_split_across_roots_without_sockets() {
    for (k, settings) in [2, 3, 1].into_iter().zip(pool::bands()) {
        let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start_with(&settings)).collect();
        let ids = ids(&mut workers, k, "20s");
        join(&mut workers, &ids, "20s", "split");
        workers.iter_mut().for_each(|worker| worker.until("ok").unwrap());
        workers.iter_mut().for_each(Worker::expect_nothing_left);
    }
}

#[test]
fn a_killed_rank_is_named_by_the_ranks_of_all_roots() {
    // Rank 0 and the first ranks of the other shares have roots beside them; rank 5 has not.
    let bands = pool::bands();
    for ((k, dead), settings) in
        [(2, 5), (2, 0), (2, 3), (3, 0), (3, 2), (3, 4)].into_iter().zip(bands.iter().cycle())
    {
        let mut workers: Vec<Worker> = (0..6).map(|_| Worker::start_with(settings)).collect();
        let ids = ids(&mut workers, k, "20s");
        join(&mut workers, &ids, "20s", "endless");
        workers.iter().for_each(|worker| worker.until("in").unwrap());
        std::thread::sleep(Duration::from_millis(20));
        let stolen = Stolen::watch();
        let killed = workers[dead].kill();
        for (rank, worker) in workers.iter().enumerate().filter(|(rank, _)| *rank != dead) {
            expect_named(worker, (rank, dead), (killed, &stolen));
        }
        let survivors = workers.iter_mut().enumerate().filter(|(rank, _)| *rank != dead);
        survivors.for_each(|(_, worker)| worker.expect_nothing_left());
    }
}

#[test]
fn an_abort_reaches_the_ranks_of_all_roots() {
    for k in [2, 3] {
        let mut workers: Vec<Worker> = (0..6).map(|_| Worker::start()).collect();
        let ids = ids(&mut workers, k, "20s");
        join(&mut workers, &ids, "20s", "abort");
        workers[5].until("ok").unwrap();
        let (aborted, stolen) = (Instant::now(), Stolen::watch());
        for (rank, worker) in workers[..5].iter().enumerate() {
            let error = expect_named(worker, (rank, 5), (aborted, &stolen));
            assert!(error.contains("aborted: enough of this"), "rank {rank}: {error}");
        }
        workers.iter_mut().for_each(Worker::expect_nothing_left);
    }
}

#[test]
fn ids_in_another_order_are_an_error_on_all_ranks() {
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    let ids = ids(&mut workers, 2, "5s");
    let turned = vec![ids[1].clone(), ids[0].clone()];
    for (rank, worker) in workers.iter_mut().enumerate() {
        let ids = if rank == 1 { &turned } else { &ids };
        worker.tell(&format!("join {} {rank} 4 5s check", ids.join(",")));
    }
    for (rank, worker) in workers.iter().enumerate() {
        let error = worker.result().1.unwrap_err();
        assert!(
            error.contains("was given the unique ids in another order than rank"),
            "rank {rank}: {error}"
        );
    }
}

/// The worker's side: after a few calls the last rank ends the communicator.
pub(crate) fn abort(comm: &Communicator) -> Result<Vec<String>> {
    let last = comm.rank().0 + 1 == comm.size();
    for _ in 0..5 {
        comm.barrier()?;
    }
    if last {
        comm.aborter().abort("enough of this");
        return Ok(Vec::new());
    }
    loop {
        comm.barrier()?;
    }
}

/// The error of `rank`, which names `culprit` soon after `since`.
fn expect_named(
    worker: &Worker,
    (rank, culprit): (usize, usize),
    (since, stolen): (Instant, &Stolen),
) -> String {
    let (at, result) = worker.result();
    let took = at.saturating_duration_since(since);
    let error = result.expect_err("the communicator has ended");
    assert!(names(&error, culprit), "rank {rank}, {culprit} was to be named: {error}");
    assert!(took < LIMIT + stolen.so_far(), "rank {rank} returned after {took:?}: {error}");
    error
}

/// k ids, each made by the first rank of its share.
fn ids(workers: &mut [Worker], k: u32, init_timeout: &str) -> Vec<String> {
    let n = workers.len() as u32;
    let make = |index| {
        let Rank(first) = UniqueId::first_rank(index, n, k).unwrap();
        workers[first as usize].make_id(init_timeout)
    };
    (0..k).map(make).collect()
}

fn join(workers: &mut [Worker], ids: &[String], init_timeout: &str, work: &str) {
    let n = workers.len();
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("join {} {rank} {n} {init_timeout} {work}", ids.join(",")));
    }
}

const LIMIT: Duration = Duration::from_secs(2);
