//! The v-forms: tables that do not fit each other, and ranks that know different parts of them.

use ccl::local::{run, run_with};
use ccl::{Blocks, Buffers, Collective, Communicator, Dtype, Error, Fault, Rank, ReduceOp, Request, Result};

use crate::matrix::config;

/// Blocks one behind the other, on both sides.
struct Tables {
    send: (Vec<usize>, Vec<usize>),
    recv: (Vec<usize>, Vec<usize>),
}

impl Tables {
    fn new(send: &[usize], recv: &[usize]) -> Tables {
        let side = |counts: &[usize]| {
            let offset = |rank: usize| counts[..rank].iter().sum();
            (counts.to_vec(), (0..counts.len()).map(offset).collect())
        };
        Tables { send: side(send), recv: side(recv) }
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks {
            send_counts: &self.send.0,
            send_offsets: &self.send.1,
            recv_counts: &self.recv.0,
            recv_offsets: &self.recv.1,
        }
    }
}

#[test]
fn a_ranks_own_block_has_one_length() {
    for n in [1, 2] {
        let refused = run(n, |comm| {
            let me = comm.rank().index();
            // One element to and from each rank, but for what a rank sends itself.
            let (mut sent, received) = (vec![1; n as usize], vec![1; n as usize]);
            sent[me] = 1000;
            for tables in [Tables::new(&sent, &received), Tables::new(&received, &sent)] {
                let lengths = [&tables.send.0, &tables.recv.0].map(|counts| counts.iter().sum());
                let (send, mut recv) = (vec![7u8; lengths[0]], vec![9u8; lengths[1]]);
                let call = Request::all_to_all_v(&send, &mut recv, tables.blocks());
                is_refused(comm.run(call));
                // Only the root keeps a block of its own.
                if me == 0 {
                    let own = &send[..tables.send.0[0]];
                    is_refused(comm.run(Request::gather_v(own, &mut recv, Rank(0), tables.blocks())));
                    let own = &mut recv[..tables.recv.0[0]];
                    is_refused(comm.run(Request::scatter_v(&send, own, Rank(0), tables.blocks())));
                }
                assert!(recv.iter().all(|element| *element == 9));
            }
            // Nothing has happened, and the communicator goes on.
            let mut sum = [1u32];
            comm.run(Request::all_reduce_in_place(&mut sum, ReduceOp::Sum))?;
            Ok(sum)
        });
        assert_eq!(refused.unwrap(), vec![[n]; n as usize]);
    }
}

#[track_caller]
fn is_refused(outcome: Result<()>) {
    let error: Error = outcome.unwrap_err();
    assert_eq!(*error.fault(), Fault::Usage);
    for number in ["1000", "found", "own block"] {
        assert!(error.to_string().contains(number), "{error}");
    }
}

#[test]
fn offsets_of_empty_blocks_say_nothing() {
    for anywhere in [1_000_000, usize::MAX / 8, usize::MAX] {
        let received = run(2, |comm| {
            let (me, peer) = (comm.rank().index(), 1 - comm.rank().index());
            let (mut counts, mut offsets) = ([0; 2], [0; 2]);
            (counts[peer], offsets[me]) = (3, anywhere);
            let blocks = Blocks {
                send_counts: &counts,
                send_offsets: &offsets,
                recv_counts: &counts,
                recv_offsets: &offsets,
            };
            let mut buffer = [me as u8; 3];
            let call = Request {
                buffers: Buffers::InPlace(&mut buffer),
                ..Request::all_to_all_v::<u8>(&[], &mut [], blocks)
            };
            comm.run(call)?;
            let mut apart = [9u8; 3];
            comm.run(Request::all_to_all_v(&[me as u8; 3], &mut apart, blocks))?;
            Ok((buffer, apart))
        });
        assert_eq!(received.unwrap(), [([1; 3], [1; 3]), ([0; 3], [0; 3])]);
    }
}

/// What a rank fills in of tables that are not used, or receives itself, decides nothing that others must decide alike.
#[test]
fn ranks_that_know_different_tables_do_the_same() {
    let config = config(&[("CCL_MAX_NCHANNELS", "2"), ("CCL_SHM_DISABLE", "1"), ("CCL_TIMEOUT", "20")]);
    for count in [1usize, 1000, 300_000] {
        let right = run_with(&config, 3, |comm| {
            Ok([
                scatter_sums(&comm, count)?,
                all_to_last(&comm, count)?,
                gather_at_last(&comm, count)?,
                scatter_from_last(&comm, count)?,
            ])
        });
        assert_eq!(right.unwrap(), [[true; 4]; 3], "{count}");
    }
}

/// The receive table, which nobody needs, is filled with the own count.
fn scatter_sums(comm: &Communicator, count: usize) -> Result<bool> {
    let counts = [count, 1, 2];
    let own = counts[comm.rank().index()];
    let tables = Tables::new(&counts, &[own; 3]);
    let mut recv = vec![0u32; own];
    let send = vec![1u32; count + 3];
    comm.run(Request::reduce_scatter_v(&send, &mut recv, ReduceOp::Sum, tables.blocks()))?;
    Ok(recv.iter().all(|element| *element == 3))
}

/// Only the last rank receives anything.
fn all_to_last(comm: &Communicator, count: usize) -> Result<bool> {
    let me = comm.rank().0;
    let received = if me == 2 { [count; 3] } else { [0; 3] };
    let tables = Tables::new(&[0, 0, count], &received);
    let mut recv = vec![9u32; received.iter().sum()];
    comm.run(Request::all_to_all_v(&vec![me; count], &mut recv, tables.blocks()))?;
    Ok(recv.chunks(count).zip(0..).all(|(block, from)| block.iter().all(|element| *element == from)))
}

fn gather_at_last(comm: &Communicator, count: usize) -> Result<bool> {
    let me = comm.rank().0;
    let own = [count, 0, 1];
    let tables = Tables::new(&own, if me == 2 { &own } else { &[] });
    let mut recv = vec![9u32; if me == 2 { count + 1 } else { 0 }];
    comm.run(Request::gather_v(&vec![me; own[me as usize]], &mut recv, Rank(2), tables.blocks()))?;
    Ok(recv.iter().enumerate().all(|(place, element)| *element == if place < count { 0 } else { 2 }))
}

fn scatter_from_last(comm: &Communicator, count: usize) -> Result<bool> {
    let me = comm.rank().index();
    let own = [count, 0, 1];
    let tables = Tables::new(if me == 2 { &own } else { &[] }, &own);
    let send = vec![5u32; if me == 2 { count + 1 } else { 0 }];
    let mut recv = vec![9u32; own[me]];
    comm.run(Request::scatter_v(&send, &mut recv, Rank(2), tables.blocks()))?;
    Ok(recv.iter().all(|element| *element == 5))
}

#[test]
fn choices_do_not_go_by_what_only_some_ranks_know() {
    let config = config(&[("CCL_MAX_NCHANNELS", "2"), ("CCL_SHM_DISABLE", "1")]);
    let chosen = run_with(&config, 2, |comm| {
        let collectives = [Collective::AllToAllV, Collective::GatherV, Collective::ScatterV];
        let of = |count| {
            collectives.map(|collective| {
                comm.explain(collective, Dtype::F32, count, Rank(0)).unwrap().choice.channels
            })
        };
        Ok((of(1), of(1 << 22)))
    });
    for (few, many) in chosen.unwrap() {
        assert_eq!(few, many);
    }
}
