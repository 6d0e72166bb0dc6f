//! Communicators that wait for nothing cost nothing: neither time nor threads.

use std::sync::Barrier;
use std::time::Duration;

use ccl::{Communicator, Rank, ReduceOp, Request, UniqueId};
use rustix::time::{ClockId, clock_gettime};

use crate::pool::Worker;
use crate::worker::{config, say};

#[test]
fn idle_communicators_use_less_than_a_hundredth_of_a_core() {
    let seconds: u32 = std::env::var("CCL_IDLE_S").map_or(3, |value| value.parse().unwrap());
    let mut threads = vec![Worker::start()];
    let mut processes: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    for (what, workers) in [("threads", &mut threads), ("processes", &mut processes)] {
        let costs = idle(workers, 4, 8, seconds);
        let used_us: u64 = costs.iter().map(|cost| cost.cpu_us).sum();
        println!("8 communicators of 4 ranks as {what}: {used_us} us of {seconds} s");
        assert!(used_us < 10_000 * u64::from(seconds), "{what}: {used_us} us of {seconds} s");
        workers.iter_mut().for_each(Worker::expect_nothing_left);
    }
}

#[test]
fn more_communicators_are_not_more_threads() {
    let mut workers: Vec<Worker> = (0..2).map(|_| Worker::start()).collect();
    let mut threads = |communicators| -> Vec<usize> {
        idle(&mut workers, 4, communicators, 0).iter().map(|cost| cost.threads).collect()
    };
    assert_eq!(threads(1), threads(20));
}

/// What idling cost a process.
struct Cost {
    cpu_us: u64,
    threads: usize,
}

/// Makes so many communicators of `n` ranks, dealt evenly to the workers, uses each of them, and lets
/// them idle.
fn idle(workers: &mut [Worker], n: usize, communicators: usize, seconds: u32) -> Vec<Cost> {
    let ids: Vec<_> = (0..communicators).map(|_| workers[0].make_id("20s")).collect();
    let each = n / workers.len();
    for (index, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("idle {} {each} {n} {seconds} {}", index * each, ids.join(" ")));
    }
    let cost = |worker: &mut Worker| {
        let (_, answer) = worker.answer().expect("the process lives");
        let numbers: Vec<u64> = answer.split(' ').skip(1).map(|word| word.parse().expect(&answer)).collect();
        worker.until("ok").unwrap();
        Cost { cpu_us: numbers[0], threads: numbers[1] as usize }
    };
    workers.iter_mut().map(cost).collect()
}

/// The worker's side: `idle <first rank> <ranks> <n> <seconds> <id>...`; its ranks are threads. Answers
/// `idle` with the microseconds of processor time used and the number of threads, then `ok`.
pub(crate) fn serve(words: &[&str]) {
    let numbers: Vec<u32> = words[..4].iter().map(|word| word.parse().unwrap()).collect();
    let [first, ranks, n, seconds] = numbers[..] else { unreachable!() };
    let ids: Vec<UniqueId> = words[4..].iter().map(|id| id.parse().unwrap()).collect();
    let (ready, done) = (Barrier::new(ranks as usize + 1), Barrier::new(ranks as usize + 1));
    std::thread::scope(|scope| {
        for rank in first..first + ranks {
            let (ids, ready, done) = (&ids, &ready, &done);
            scope.spawn(move || {
                let make = |id| Communicator::init_rank(id, Rank(rank), n, &config("20s")).unwrap();
                let communicators: Vec<_> = ids.iter().map(make).collect();
                communicators.iter().for_each(busy);
                ready.wait();
                done.wait();
            });
        }
        ready.wait();
        // The last rank of another process may be a moment late.
        std::thread::sleep(SETTLES);
        let before = cpu_us();
        std::thread::sleep(Duration::from_secs(seconds.into()));
        let used_us = cpu_us() - before;
        say(&format!("idle {used_us} {}", std::fs::read_dir("/proc/self/task").unwrap().count()));
        done.wait();
    });
    say("ok");
}

/// A blocking call and an asynchronous one, for which the progress thread starts.
fn busy(comm: &Communicator) {
    let mut values = vec![1f32; 1 << 16];
    comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
    comm.scope(|scope| scope.start(Request::all_reduce_in_place(&mut values, ReduceOp::Sum))).unwrap();
    assert_eq!(values[0], (comm.size() * comm.size()) as f32);
}

/// Processor time of this process so far.
fn cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

const SETTLES: Duration = Duration::from_millis(300);
