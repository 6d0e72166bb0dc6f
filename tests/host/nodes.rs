//! Ranks of several hosts: what `CCL_HOSTID` says, and what two-level algorithms make of it.

use std::sync::Arc;

use ccl::{Collective, Communicator, Config, Dtype, Rank, ReduceOp, Result, UniqueId};
use ccl_tests::exercise::{self, Placement};

use crate::matrix::config;

/// Hosts of equal and of different numbers of ranks.
const HOSTS: [&[u32]; 6] = [&[2, 2], &[3, 1], &[1, 2], &[2, 3, 2], &[1, 3, 1, 1], &[4, 2]];

#[test]
fn two_levels_are_the_hosts_that_there_are() {
    for hosts in HOSTS {
        for forced in ["allreduce:two_level", "allreduce:two_level_halving"] {
            let wrong = on_hosts(hosts, &[("CCL_ALGO", forced)], |comm| {
                for peer in (0..comm.size()).map(Rank) {
                    let here = host_of(hosts, comm.rank()) == host_of(hosts, peer);
                    let path = comm.path(peer)?.to_string();
                    assert_eq!(path.contains("net"), !here, "{} to {peer}: {path}", comm.rank());
                }
                let mut wrong = Vec::new();
                for (dtype, op) in [
                    (Dtype::I64, ReduceOp::Sum),
                    (Dtype::F32, ReduceOp::Average),
                    (Dtype::Bf16, ReduceOp::PreMulSum),
                    (Dtype::F8E4m3, ReduceOp::Max),
                ] {
                    for count in [0, 1, 3, 1031, 70_000] {
                        let what = (Collective::AllReduce, dtype, op);
                        let case = exercise::case(what, (comm.size(), Rank(0)), count, &[]);
                        for placement in [Placement::OutOfPlace, Placement::InPlace] {
                            wrong.extend(exercise::run(&comm, &case, placement, count as u64)?);
                        }
                    }
                }
                Ok(wrong)
            });
            assert!(wrong.concat().is_empty(), "{hosts:?} {forced}: {wrong:?}");
        }
    }
}

/// Communicators made from others have hosts of their own.
#[test]
fn a_branch_has_its_own_hosts() {
    let settings = [("CCL_ALGO", "allreduce:two_level")];
    on_hosts(&[3, 2, 1], &settings, |comm| {
        let made = comm.split((comm.rank() != Rank(1)).then_some(0), 0)?;
        let Some(made) = made else { return Ok(()) };
        let mut sum = vec![f64::from(made.rank().0); 5000];
        made.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert!(sum.iter().all(|sum| *sum == 10.0), "{sum:?}");
        Ok(())
    });
}

/// Runs `body` on threads that are told to be of so many hosts.
fn on_hosts<R: Send>(
    hosts: &[u32],
    settings: &[(&'static str, &str)],
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Vec<R> {
    let n = hosts.iter().sum();
    let of = |rank| -> Config {
        let host = format!("host {}", host_of(hosts, Rank(rank)));
        config(&[settings, &[("CCL_HOSTID", &host)]].concat())
    };
    let (id, body) = (Arc::new(UniqueId::generate_local(&of(0)).unwrap()), &body);
    std::thread::scope(|scope| {
        let start = |rank| {
            let (id, config) = (Arc::clone(&id), of(rank));
            scope.spawn(move || body(Communicator::init_rank(&id, Rank(rank), n, &config)?))
        };
        let threads: Vec<_> = (0..n).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    })
}

fn host_of(hosts: &[u32], rank: Rank) -> usize {
    let mut first = 0;
    hosts
        .iter()
        .take_while(|ranks| {
            first += **ranks;
            first <= rank.0
        })
        .count()
}
