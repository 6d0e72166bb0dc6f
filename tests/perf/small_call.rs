//! One 8-byte call after another whose peer has already done its part: what
//! `instructions.rs` counts the instructions of. `small_call all_reduce 50` makes 50.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ccl::{Communicator, Rank, ReduceOp, Request, Result, local};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("an operation");
    let calls: u32 = arguments.next().and_then(|calls| calls.parse().ok()).expect("a number of calls");
    let begun = AtomicU32::new(0);
    local::run(2, |comm| {
        let (mut send, mut recv) = ([1f32, 2.0], [0f32; 4]);
        // The first call makes edges and decides; what follows repeats it.
        make(&name, &comm, &mut send, &mut recv)?;
        for call in 1..=calls {
            if comm.rank() == Rank(1) {
                begun.store(call, Ordering::Release);
                make(&name, &comm, &mut send, &mut recv)?;
            } else {
                while begun.load(Ordering::Acquire) < call {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(2));
                counted(&name, &comm, &mut send, &mut recv)?;
            }
            // Credits come back and nobody is ahead.
            comm.barrier()?;
        }
        Ok(())
    })
    .expect("calls succeed");
}

/// The instructions below this function are counted.
#[inline(never)]
fn counted(name: &str, comm: &Communicator, send: &mut [f32; 2], recv: &mut [f32; 4]) -> Result<()> {
    make(name, comm, send, recv)
}

#[inline(always)]
fn make(name: &str, comm: &Communicator, send: &mut [f32; 2], recv: &mut [f32; 4]) -> Result<()> {
    match name {
        "all_reduce" => comm.all_reduce(send, &mut recv[..2], ReduceOp::Sum),
        "all_gather" => comm.all_gather(&send[..1], &mut recv[..2]),
        "reduce_scatter" => comm.reduce_scatter(send, &mut recv[..1], ReduceOp::Sum),
        "broadcast" => comm.broadcast(send, Rank(0)),
        "all_to_all" => comm.all_to_all(send, &mut recv[..2]),
        "send_recv" if comm.rank() == Rank(0) => comm.send(send, Rank(1)),
        "send_recv" => comm.recv(send, Rank(0)),
        "exchange" => ccl::group(|group| {
            let peer = Rank(1 - comm.rank().0);
            group.add(comm, Request::send(send, peer));
            group.add(comm, Request::recv(&mut recv[..2], peer));
            Ok(())
        }),
        "barrier" => comm.run(Request::barrier()),
        other => panic!("no operation {other}"),
    }
}
