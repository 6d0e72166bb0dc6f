//! Ranks that fork between calls, as data loaders do: the children are refused, and the parents go on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ccl::{Communicator, Fault, ReduceOp, Request, Result, Stream};

use crate::pool::Worker;

#[test]
fn children_do_no_harm_over_shared_memory() {
    forks("");
}

#[test]
fn children_do_no_harm_over_a_network() {
    forks("CCL_SHM_DISABLE=1");
}

fn forks(settings: &str) {
    let mut workers: Vec<Worker> = (0..3).map(|_| Worker::start_with(settings)).collect();
    let id = workers[0].make_id("20s");
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.tell(&format!("join {id} {rank} 3 20s fork"));
    }
    workers.iter_mut().for_each(|worker| worker.until("ok").unwrap());
    workers.iter_mut().for_each(Worker::expect_nothing_left);
}

/// The worker's side: every rank forks before every round, and makes its calls beside its child; what was wrong.
pub(crate) fn work(comm: &Communicator) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let stream = Stream::new();
    sums(comm, &mut wrong)?;
    let mut first = fork(|| child(comm, &stream));
    for round in 0..ROUNDS {
        if round == ROUNDS / 2 {
            // From now on a thread shares what the calls go through.
            let mut values = vec![1u32; LONG];
            comm.scope(|scope| {
                scope.start_on(&stream, Request::all_reduce_in_place(&mut values, ReduceOp::Sum))
            })?;
        }
        let second = fork(|| child(comm, &stream));
        sums(comm, &mut wrong)?;
        for child in [first, second] {
            let objection = ended(child);
            if objection != 0 {
                wrong.push(format!("round {round}: the child ended with {objection}"));
            }
        }
        first = fork(|| child(comm, &stream));
    }
    wrong.extend(Some(ended(first)).filter(|objection| *objection != 0).map(|_| "the last child".to_owned()));
    Ok(wrong)
}

/// Calls of all lengths.
fn sums(comm: &Communicator, wrong: &mut Vec<String>) -> Result<()> {
    for count in [2, 1000, LONG] {
        let mut values = vec![comm.rank().0 + 1; count];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        if values.iter().any(|value| *value != 6) {
            wrong.push(format!("{count} elements"));
        }
    }
    Ok(())
}

/// What a child does with what it has of its parent; the number of the first thing that was not refused, or 0.
fn child(comm: &Communicator, stream: &Stream) -> i32 {
    let mut values = vec![1u32; LONG];
    let outcomes = [
        comm.all_reduce_in_place(&mut values[..2], ReduceOp::Sum),
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum),
        comm.send(&values, ccl::Rank(0)),
        comm.barrier(),
        comm.split(Some(0), 0).map(|_| ()),
        comm.memory().map(|_| ()),
        comm.async_error().map_or(Ok(()), Err),
        comm.scope(|scope| scope.start(Request::barrier())),
        stream.synchronize(),
        ccl::group(|group| {
            group.add(comm, Request::barrier());
            Ok(())
        }),
    ];
    let refused = |outcome: &Result<()>| match outcome {
        Ok(()) => false,
        Err(error) => {
            *error.fault() == Fault::Usage
                && error.cause().contains("after fork")
                && error.advice().contains("make a new communicator")
        }
    };
    comm.aborter().abort("a child said so");
    let config = comm.config().clone();
    // SAFETY: the parent's communicator is another process's; this copy is not used again, since the child ends here.
    #[allow(unsafe_code)]
    drop(unsafe { std::ptr::read(comm) });
    let own = Communicator::alone(&config).and_then(|own| own.barrier());
    let not_refused = outcomes.iter().position(|outcome| !refused(outcome));
    match (not_refused, own) {
        (Some(place), _) => place as i32 + 1,
        (None, Err(_)) => 50,
        (None, Ok(())) => 0,
    }
}

/// Forks; the child does this and ends. The child's number.
#[allow(unsafe_code)]
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the C library leaves a child whose parent has threads an allocator that works, and the child
    // takes no other lock that a thread of the parent may hold.
    let number = unsafe { libc::fork() };
    if number != 0 {
        return number;
    }
    // SAFETY: nobody else uses the clock that ends this process if it hangs.
    unsafe { libc::alarm(LIMIT_S) };
    let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANIC);
    // SAFETY: this process ends without running what its parent's would at its end.
    unsafe { libc::_exit(code) }
}

/// Waits for a child; what it ended with.
#[allow(unsafe_code)]
fn ended(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the status is this function's.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child, "{}", std::io::Error::last_os_error());
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

const ROUNDS: usize = 20;
const LONG: usize = 100_000;
/// A child that hangs ends then.
const LIMIT_S: u32 = 20;
const PANIC: i32 = 99;
