//! `ccl counted`: one 8-byte call after another whose peer has already done its part, for a tool that counts the
//! instructions below one function. `tests/perf/instructions.rs` runs it; a program of its own would have to be
//! optimised as a whole once more.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ccl::{Communicator, Rank, ReduceOp, Request, Result, local};

/// Make small calls whose instructions callgrind counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    operation: Operation,
    /// How many calls.
    calls: u32,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
    SendRecv,
    /// A send and a receive in one group.
    Exchange,
    Barrier,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let operation = args.operation;
    let begun = AtomicU32::new(0);
    local::run(2, |comm| {
        let (mut send, mut recv) = ([1f32, 2.0], [0f32; 4]);
        // The first call makes edges and decides; what follows repeats it.
        make(operation, &comm, &mut send, &mut recv)?;
        for call in 1..=args.calls {
            if comm.rank() == Rank(1) {
                begun.store(call, Ordering::Release);
                make(operation, &comm, &mut send, &mut recv)?;
            } else {
                while begun.load(Ordering::Acquire) < call {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(2));
                small_call(operation, &comm, &mut send, &mut recv)?;
            }
            // Credits come back and nobody is ahead.
            comm.barrier()?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The instructions below this function are counted.
#[inline(never)]
fn small_call(
    operation: Operation,
    comm: &Communicator,
    send: &mut [f32; 2],
    recv: &mut [f32; 4],
) -> Result<()> {
    make(operation, comm, send, recv)
}

#[inline(always)]
fn make(operation: Operation, comm: &Communicator, send: &mut [f32; 2], recv: &mut [f32; 4]) -> Result<()> {
    match operation {
        Operation::AllReduce => comm.all_reduce(send, &mut recv[..2], ReduceOp::Sum),
        Operation::AllGather => comm.all_gather(&send[..1], &mut recv[..2]),
        Operation::ReduceScatter => comm.reduce_scatter(send, &mut recv[..1], ReduceOp::Sum),
        Operation::Broadcast => comm.broadcast(send, Rank(0)),
        Operation::AllToAll => comm.all_to_all(send, &mut recv[..2]),
        Operation::SendRecv if comm.rank() == Rank(0) => comm.send(send, Rank(1)),
        Operation::SendRecv => comm.recv(send, Rank(0)),
        Operation::Exchange => ccl::group(|group| {
            let peer = Rank(1 - comm.rank().0);
            group.add(comm, Request::send(send, peer));
            group.add(comm, Request::recv(&mut recv[..2], peer));
            Ok(())
        }),
        Operation::Barrier => comm.run(Request::barrier()),
    }
}
