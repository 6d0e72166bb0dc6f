//! Memory that processes register and map: results, dropping, kills, and what stays behind.

use std::time::Duration;

use ccl::{Collective, Communicator, Dtype, Rank, ReduceOp, Result};
use ccl_tests::Stolen;
use ccl_tests::exercise::{self, Placement};

use crate::pool::{self, Worker};

#[test]
fn everything_that_has_a_path_in_windows() {
    for n in [2, 5] {
        run(n, "windows");
    }
}

#[test]
fn a_hundred_windows_leave_nothing() {
    run(3, "cycles");
}

#[test]
fn survivors_of_a_rank_killed_in_a_mapped_call_name_it_and_leave_nothing() {
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    for trial in 0..12 {
        let dead = trial % workers.len();
        pool::join(&mut workers.iter_mut().collect::<Vec<_>>(), "30s", "endless-mapped");
        for worker in &workers {
            worker.until("mapped").unwrap();
        }
        // A call takes some 10 ms here, so that trials hit it at different places.
        std::thread::sleep(Duration::from_micros(20_000 + 1300 * trial as u64));
        let stolen = Stolen::watch();
        let killed = workers[dead].kill();
        for (rank, worker) in workers.iter().enumerate().filter(|(rank, _)| *rank != dead) {
            let (at, result) = worker.result();
            let text = result.unwrap_err();
            assert!(text.contains(&format!("rank {dead}")), "trial {trial}, rank {rank}: {text}");
            let took = at.saturating_duration_since(killed);
            assert!(took < Duration::from_secs(2) + stolen.so_far(), "trial {trial}, rank {rank}: {took:?}");
        }
        for (_, worker) in workers.iter_mut().enumerate().filter(|(rank, _)| *rank != dead) {
            worker.expect_nothing_left();
        }
        workers[dead] = Worker::start();
    }
}

fn run(n: usize, work: &str) {
    let mut workers: Vec<Worker> = (0..n).map(|_| Worker::start()).collect();
    pool::join(&mut workers.iter_mut().collect::<Vec<_>>(), "30s", work);
    for worker in &workers {
        assert_eq!(worker.result().1, Ok(()));
    }
    workers.iter_mut().for_each(Worker::expect_nothing_left);
}

/// Calls between windows, at odd places in them, some of which not all ranks have a handle on; what came out
/// wrong.
pub(crate) fn sweep(comm: &Communicator) -> Result<Vec<String>> {
    let n = comm.size();
    let (mut send, mut recv) = (ccl::mem_alloc(WINDOW_BYTES)?, ccl::mem_alloc(WINDOW_BYTES)?);
    let mut windows = [Some(comm.register(&send)?), Some(comm.register(&recv)?)];
    let mut wrong = Vec::new();
    for window in windows.iter().flatten() {
        wrong.extend(window.refusal().map(|reason| format!("not mapped: {reason}")));
    }
    for (round, dtype) in [Dtype::F32, Dtype::Bf16, Dtype::I64, Dtype::U8].into_iter().enumerate() {
        if round == 2 && comm.rank() == Rank(1) {
            windows[0] = None;
        }
        if round == 3 {
            windows = [None, None];
        }
        for collective in
            [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Broadcast]
        {
            for op in ReduceOp::ALL {
                for placement in [Placement::OutOfPlace, Placement::InPlace] {
                    let case = exercise::case((collective, dtype, op), (n, Rank(n - 1)), COUNT, &[]);
                    // Different places on different ranks.
                    let at = 8 * (comm.rank().index() + 3);
                    let buffers = (&mut send.as_mut_slice()[at..], &mut recv.as_mut_slice()[2 * at..]);
                    wrong.extend(exercise::run_in(comm, &case, placement, 5, buffers)?);
                }
            }
        }
    }
    comm.barrier()?;
    Ok(wrong)
}

/// Registers and drops in different orders; whether anything stays behind.
pub(crate) fn cycles(comm: &Communicator, resources: impl Fn() -> String) -> Result<Vec<String>> {
    let before = resources();
    for cycle in 0..100 {
        let mut memory = ccl::mem_alloc(COUNT * 4)?;
        let window = comm.register(&memory)?;
        if let Some(reason) = window.refusal() {
            return Ok(vec![format!("not mapped: {reason}")]);
        }
        let values = memory.as_mut_slice::<i32>();
        values.fill(1);
        comm.all_reduce_in_place(values, ReduceOp::Sum)?;
        if values.iter().any(|value| *value != comm.size() as i32) {
            return Ok(vec![format!("cycle {cycle}: wrong sums")]);
        }
        if (cycle + comm.rank().index()).is_multiple_of(2) {
            drop(window);
            drop(memory);
        } else {
            drop(memory);
            drop(window);
        }
    }
    let after = resources();
    Ok(if grew(&before, &after) { vec![format!("{before} before, {after} after")] } else { Vec::new() })
}

/// Whether some number in `after` is greater than the one in its place in `before`: what was opened to join may
/// be closed meanwhile.
fn grew(before: &str, after: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> { text.split(' ').filter_map(|word| word.parse().ok()).collect() };
    let (before, after) = (numbers(before), numbers(after));
    assert!(!before.is_empty() && before.len() == after.len(), "{before:?} {after:?}");
    before.iter().zip(&after).any(|(before, after)| after > before)
}

/// Long calls in windows until one fails.
pub(crate) fn endless(comm: &Communicator) -> Result<Vec<String>> {
    let mut memory = ccl::mem_alloc(16 << 20)?;
    let window = comm.register(&memory)?;
    if let Some(reason) = window.refusal() {
        return Ok(vec![format!("not mapped: {reason}")]);
    }
    crate::worker::say("mapped");
    let values = memory.as_mut_slice::<f32>();
    loop {
        values.fill(1.0);
        comm.all_reduce_in_place(values, ReduceOp::Sum)?;
        if values.iter().any(|value| *value != comm.size() as f32) {
            return Ok(vec!["wrong sums".into()]);
        }
    }
}

/// More than 64 KiB of every dtype, and no whole lines.
const COUNT: usize = 70_003;
const WINDOW_BYTES: usize = 8 << 20;
