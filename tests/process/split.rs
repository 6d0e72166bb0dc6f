//! Communicators made from others, with ranks that are processes.

use ccl::{Communicator, Fault, Rank, ReduceOp, Result};

use crate::pool::Worker;

#[test]
fn processes_split_without_sockets_and_what_they_made_works() {
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    let id = workers[0].make_id("20s");
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("join {id} {rank} 4 20s split"));
    }
    workers.iter_mut().for_each(|worker| worker.until("ok").unwrap());
    workers.iter_mut().for_each(Worker::expect_nothing_left);
}

#[test]
fn a_death_leaves_communicators_alone_that_it_is_not_in() {
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::start()).collect();
    let id = workers[0].make_id("20s");
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("join {id} {rank} 4 20s split-death"));
    }
    workers[..3].iter_mut().for_each(|worker| worker.until("ok").unwrap());
}

/// The worker's side: splits in several ways and uses what comes of it; what was wrong.
pub(crate) fn work(comm: &Communicator) -> Result<Vec<String>> {
    let rank = comm.rank().0;
    comm.barrier()?;
    let before = sockets();
    let half = some(comm.split(Some(rank / 2), 0)?);
    let turned = some(comm.split(Some(0), -i64::from(rank))?);
    let single = some(comm.split(Some(rank), 0)?);
    let none = comm.split(None, 0)?;
    let pair = some(turned.split(Some(turned.rank().0 % 2), 0)?);
    let after = sockets();
    let mut wrong = Vec::new();
    if none.is_some() || (half.size(), turned.size(), single.size(), pair.size()) != (2, 4, 1, 2) {
        wrong.push("sizes".to_owned());
    }
    if turned.rank() != Rank(3 - rank) {
        wrong.push(format!("rank {rank} became {}", turned.rank()));
    }
    for count in [1, 5000, 3_000_000] {
        for comm in [&half, &turned, &single, &pair, comm] {
            let n = comm.size();
            let mut values = vec![comm.rank().0 + 1; count];
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            if values.iter().any(|value| *value != n * (n + 1) / 2) {
                wrong.push(format!("{count} elements among {n} ranks"));
            }
        }
    }
    if after != before {
        wrong.push(format!("{before} sockets became {after}"));
    }
    Ok(wrong)
}

/// The worker's side: the last rank dies, and only those notice that have to do with it.
pub(crate) fn death(comm: &Communicator) -> Result<Vec<String>> {
    let rank = comm.rank().0;
    let half = some(comm.split(Some(rank / 2), 0)?);
    // Whoever hears of the death before the end of this barrier loses it, too.
    let all_are_here = comm.barrier();
    if rank == 3 {
        all_are_here?;
        std::process::abort();
    }
    let mut wrong = Vec::new();
    while comm.barrier().is_ok() {}
    if rank == 2 {
        let error = half.barrier().expect_err("its other rank is dead");
        if *error.fault() != (Fault::Remote { rank: Rank(1) }) {
            wrong.push(format!("expected rank 1 to be blamed, found {error}"));
        }
        return Ok(wrong);
    }
    for count in [1, 100_000] {
        let mut values = vec![1_u32; count];
        half.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        if values.iter().any(|value| *value != 2) {
            wrong.push(format!("{count} elements after the death"));
        }
    }
    Ok(wrong)
}

fn some(made: Option<Communicator>) -> Communicator {
    made.expect("this rank gave a color")
}

/// Sockets that this process holds.
fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
