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

/// Nobody forces anything: what is chosen goes by the hosts, all ranks choose alike, and what was chosen runs.
#[test]
fn two_levels_are_chosen_between_hosts_and_not_in_one() {
    let count = 1 << 18;
    for hosts in [&[2, 2][..], &[4, 2], &[4]] {
        let said = on_hosts(hosts, &[("CCL_TUNING_FILE", "none")], |comm| {
            let said = comm.explain(Collective::AllReduce, Dtype::F32, count, Rank(0))?;
            let mut sum = vec![comm.rank().0 as f32; count];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            let n = comm.size() as f32;
            assert!(sum.iter().all(|sum| *sum == n * (n - 1.0) / 2.0), "{hosts:?}: {}", sum[0]);
            Ok(said)
        });
        let (two_levels, several) = (said[0].choice.algorithm.is_two_level(), hosts.len() > 1);
        assert_eq!((two_levels, said[0].nodes), (several, hosts.len() as u32), "{}", said[0]);
        assert_eq!(said[0].to_string().contains(&format!(" on {} nodes: two_level", hosts.len())), several);
        for other in &said {
            assert_eq!((other.choice, &other.candidates), (said[0].choice, &said[0].candidates));
        }
    }
}

/// Ranks of a host that do not follow each other: nodes would be other than they are.
#[test]
fn hosts_that_are_not_whole_are_left_out() {
    let said = on_places(&[0, 1, 0, 1], &[("CCL_TUNING_FILE", "none")], |comm| {
        comm.explain(Collective::AllReduce, Dtype::F32, 1 << 18, Rank(0))
    });
    assert!(!said[0].choice.algorithm.is_two_level() && said[0].nodes == 1, "{}", said[0]);
    assert!(said[0].to_string().contains("two_level: no nodes of several ranks are known"), "{}", said[0]);
}

/// Runs `body` on threads that are told to be of so many hosts.
fn on_hosts<R: Send>(
    hosts: &[u32],
    settings: &[(&'static str, &str)],
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Vec<R> {
    let places: Vec<usize> = (0..hosts.iter().sum()).map(|rank| host_of(hosts, Rank(rank))).collect();
    on_places(&places, settings, body)
}

/// The same with the host of each rank.
fn on_places<R: Send>(
    hosts: &[usize],
    settings: &[(&'static str, &str)],
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Vec<R> {
    let n = hosts.len() as u32;
    let of = |rank: u32| -> Config {
        let host = format!("host {}", hosts[rank as usize]);
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
