//! What all ranks are sent, stored once in multicast memory: the oracle's bytes, and edges wherever it cannot be had.

use std::process::Command;

use ccl::exec::Reach;
use ccl::{Collective, Communicator, Config, Dtype, Rank, Result, UniqueId, local};

use super::alone::{alone, settings};
use super::graphs::replays;
use crate::matrix::sweep_of;

/// A device for each rank of the largest communicator here.
const DEVICES: [(&str, &str); 1] = [("CCL_FAKE_DEVICES", "6")];
const ALGORITHMS: &str = "all_reduce:two_shot;all_gather:direct;all_gather_v:direct;broadcast:direct";
const SHARING: [(&str, &str); 3] =
    [("CCL_DEVICE", "local"), ("CCL_PROTO", "simple"), ("CCL_ALGO", ALGORITHMS)];
const KINDS: [Collective; 3] = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast];

fn with(more: &[(&'static str, &'static str)]) -> Config {
    // The first of a name counts.
    settings(&more.iter().chain(&SHARING).copied().collect::<Vec<_>>())
}

/// Calls that share payloads, some more than there are slots; how they went, and how many payloads that were.
fn calls(comm: &Communicator) -> Result<([Option<&'static str>; 3], u64)> {
    let (me, n) = (comm.rank().0, comm.size());
    let count = 5003;
    let own: Vec<u32> = (0..count).map(|at| me * 1000 + at % 100).collect();
    let mut all = vec![0; own.len() * n as usize];
    comm.all_gather(&own, &mut all)?;
    for (at, value) in (0..).zip(&all) {
        assert_eq!(*value, at / count * 1000 + at % count % 100, "rank {me}, element {at}");
    }
    let mut from_root = if me == 1 { own.clone() } else { vec![0; own.len()] };
    comm.broadcast(&mut from_root, Rank(1))?;
    assert!((0..).zip(&from_root).all(|(at, value): (u32, _)| *value == 1000 + at % 100), "rank {me}");
    let way =
        |kind| comm.explain(kind, Dtype::U32, count as usize, Rank(0)).map(|explained| explained.protocol);
    Ok(([way(KINDS[0])?, way(KINDS[1])?, way(KINDS[2])?], comm.multicast_payloads()?))
}

#[test]
fn what_all_are_sent_is_stored_once() {
    alone(module_path!(), "what_all_are_sent_is_stored_once", &DEVICES, |fake| {
        for n in [3, 4, 6] {
            let config = with(&[]);
            sweep_of(&config, n, &[0, 1, 29, 5003], &[Dtype::F32], &KINDS);
            let ways = local::run_with(&config, n, |comm| calls(&comm)).unwrap();
            assert!(
                ways.iter().all(|(ways, sent)| *ways == [Some("switch"); 3] && *sent > 0),
                "{n}: {ways:?}"
            );
            println!("{n} ranks: {:?}", ways.iter().map(|(_, sent)| sent).collect::<Vec<_>>());
        }
        fake.assert_nothing_is_left("multicast memory");
    });
}

#[test]
fn one_shot_all_reduces_of_every_dtype_and_operation() {
    alone(module_path!(), "one_shot_all_reduces_of_every_dtype_and_operation", &DEVICES, |_| {
        let config = with(&[("CCL_ALGO", "all_reduce:one_shot")]);
        sweep_of(&config, 3, &[257], &Dtype::ALL, &[Collective::AllReduce]);
        let sent = local::run_with(&config, 3, |comm| {
            comm.all_reduce_in_place(&mut [1.0f32; 1000], ccl::ReduceOp::Sum)?;
            comm.multicast_payloads()
        });
        assert!(sent.unwrap().iter().all(|sent| *sent > 0));
    });
}

/// How ranks reach each other is what multicast memory and devices of their own make of it, on all ranks alike.
#[test]
fn selection_knows_how_devices_reach_each_other() {
    alone(module_path!(), "selection_knows_how_devices_reach_each_other", &DEVICES, |_| {
        let reach = |more: &[(&'static str, &'static str)], n| {
            let said = local::run_with(&with(more), n, |comm| {
                let said = comm.explain(Collective::Broadcast, Dtype::F32, 1 << 20, Rank(0))?;
                Ok((said.reach, said.cores))
            });
            let said = said.unwrap();
            assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
            said[0].0
        };
        assert_eq!(reach(&[], 3), Reach::Multicast);
        assert_eq!(reach(&[], 2), Reach::Devices);
        assert_eq!(reach(&[("CCL_CUDA_SWITCH", "0")], 3), Reach::Devices);
        // Beside each other they have no multicast memory. Ranks that work on host memory or go through it are as they were.
        assert_eq!(reach(&[("CCL_DEVICE", "0,1,0")], 3), Reach::Devices);
        assert_eq!(reach(&[("CCL_DEVICE", "0,1,none")], 3), Reach::Memory);
        assert_eq!(reach(&[("CCL_P2P_DISABLE", "1")], 3), Reach::Memory);
    });
}

/// Text for devices that have no multicast memory has plain stores in its place, on whatever device it runs.
#[test]
fn text_for_earlier_devices_stores_nothing_for_all() {
    let earlier = [("CCL_FAKE_NVRTC_TARGET", "80"), ("CCL_FAKE_DEVICES", "3")];
    alone(module_path!(), "text_for_earlier_devices_stores_nothing_for_all", &earlier, |fake| {
        let nvrtc = ccl_tests::program::fake_driver().to_str().unwrap().to_owned().leak();
        let compiling =
            [("CCL_CUDA_IMAGE", ""), ("CCL_NVRTC_LIBRARY", &*nvrtc), ("CCL_KERNEL_CACHE", "none")];
        let config = with(&compiling);
        if ccl::kernel_supply(&config, None).from.contains("embedded") {
            return ccl_tests::skip(
                "text_for_earlier_devices_stores_nothing_for_all",
                "this build embeds kernels",
            );
        }
        let ways = local::run_with(&config, 3, |comm| calls(&comm)).unwrap();
        assert!(ways.iter().all(|(ways, sent)| *ways == [Some("simple"); 3] && *sent == 0), "{ways:?}");
        fake.assert_nothing_is_left("edges in place of multicast memory");
    });
}

/// What the cost model counts once is what goes through multicast memory, whatever the protocols, on all ranks alike.
#[test]
fn selection_knows_what_is_stored_once() {
    alone(module_path!(), "selection_knows_what_is_stored_once", &DEVICES, |_| {
        let (mut stored, mut not) = (0, 0);
        for protocols in ["", "simple", "^ll128", "ll", "simple;broadcast:ll128"] {
            for algorithms in ["", ALGORITHMS] {
                let config = with(&[("CCL_PROTO", protocols), ("CCL_ALGO", algorithms)]);
                let said = local::run_with(&config, 4, |comm| {
                    let mut said = Vec::new();
                    for kind in [KINDS[0], KINDS[1], KINDS[2], Collective::ReduceScatter] {
                        for count in [1, 2048, 8192, 8193, 1 << 17, 1 << 19, (1 << 19) + 1, 1 << 22] {
                            let one = comm.explain(kind, Dtype::F32, count, Rank(0))?;
                            said.push((
                                kind,
                                one.bytes,
                                one.choice,
                                one.candidates[0].multicast,
                                one.protocol,
                            ));
                        }
                    }
                    Ok(said)
                });
                let said = said.unwrap();
                assert!(said.iter().all(|one| *one == said[0]), "{protocols} {algorithms}");
                for one @ (.., counted, protocol) in &said[0] {
                    assert_eq!(*counted, *protocol == Some("switch"), "{protocols} {algorithms}: {one:?}");
                    *(if *counted { &mut stored } else { &mut not }) += 1;
                }
            }
        }
        println!("{stored} stored once, {not} not");
        assert!(stored > 30 && not > 30, "{stored} {not}");
    });
}

#[test]
fn graphs_and_suspended_communicators() {
    alone(module_path!(), "graphs_and_suspended_communicators", &DEVICES, |fake| {
        replays(fake, &with(&[]), 3, 100);
        local::run_with(&with(&[]), 3, |comm| {
            for _ in 0..2 {
                assert!(calls(&comm)?.1 > 0);
                comm.suspend()?;
                assert_eq!(comm.device_memory()?, 0);
                comm.resume()?;
                assert_eq!(comm.multicast_payloads()?, 0);
            }
            Ok(())
        })
        .unwrap();
        fake.assert_nothing_is_left("graphs and suspensions");
    });
}

/// Without multicast memory the same calls go from edge to edge.
#[track_caller]
fn goes_without(config: &Config, n: u32) {
    let ways = local::run_with(config, n, |comm| calls(&comm)).unwrap();
    assert!(ways.iter().all(|(ways, sent)| *ways == [Some("simple"); 3] && *sent == 0), "{ways:?}");
}

#[test]
fn where_it_cannot_be_had_edges_serve() {
    alone(module_path!(), "where_it_cannot_be_had_edges_serve", &DEVICES, |fake| {
        goes_without(&with(&[("CCL_CUDA_SWITCH", "0")]), 3);
        goes_without(&with(&[("NCCL_NVLS_ENABLE", "0")]), 3);
        goes_without(&with(&[("CCL_DEVICE", "0,1,0")]), 3);
        goes_without(&with(&[]), 2);
        assert_eq!(fake.calls("cuMulticastCreate"), 0);
        fake.assert_nothing_is_left("communicators without multicast memory");
    });
}

#[test]
fn an_older_driver_has_none() {
    let older = [DEVICES[0], ("CCL_FAKE_DRIVER_VERSION", "12000")];
    alone(module_path!(), "an_older_driver_has_none", &older, |_| goes_without(&with(&[]), 3));
}

#[test]
fn whatever_fails_all_ranks_do_without() {
    alone(module_path!(), "whatever_fails_all_ranks_do_without", &DEVICES, |fake| {
        let calls = [
            ("cuMemGetAllocationGranularity", 2),
            ("cuMulticastGetGranularity", 1),
            ("cuMulticastCreate", 1),
            ("cuMulticastAddDevice", 1),
            ("cuMulticastAddDevice", 3),
            ("cuMemCreate", 2),
            ("cuMulticastBindMem", 1),
            ("cuMulticastBindMem", 3),
            ("cuMemAddressReserve", 1),
            ("cuMemMap", 4),
            ("cuMemSetAccess", 1),
            ("cuMemSetAccess", 6),
            ("cuModuleLoadData", 1),
            ("cuLaunchKernelEx", 2),
        ];
        for (function, nth) in calls {
            println!("{function}, call {nth}");
            fake.fail(function, nth, 999);
            goes_without(&with(&[]), 3);
            assert_eq!(fake.failed(function), 1, "{function}");
            fake.reset();
            fake.assert_nothing_is_left(function);
        }
    });
}

/// The driver says that all is well, and one device gets nothing.
#[test]
fn what_does_not_arrive_is_found_before_it_is_used() {
    let deaf = [DEVICES[0], ("CCL_FAKE_DEAF_DEVICE", "2")];
    alone(module_path!(), "what_does_not_arrive_is_found_before_it_is_used", &deaf, |fake| {
        goes_without(&with(&[]), 4);
        assert_eq!(fake.calls("cuMulticastBindMem"), 4);
    });
}

#[test]
fn ranks_that_disagree_or_abort_hear_of_it() {
    alone(module_path!(), "ranks_that_disagree_or_abort_hear_of_it", &DEVICES, |fake| {
        let config = with(&[]);
        let outcomes = local::try_run_with(&config, 3, |comm| {
            let count = 100 + comm.rank().index() / 2;
            comm.all_gather(&vec![1.0f32; count], &mut vec![0.0; 3 * count])
        });
        for outcome in outcomes.unwrap() {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("100") && text.contains("101"), "{text}");
        }
        let outcomes = local::try_run_with(&config, 3, |comm| {
            if comm.rank() == Rank(1) {
                std::thread::sleep(std::time::Duration::from_millis(100));
                comm.aborter().abort("the test is about this");
                return Ok(());
            }
            comm.all_gather(&[1.0f32; 5000], &mut [0.0; 15_000])
        });
        let error = outcomes.unwrap().swap_remove(0).unwrap_err();
        assert!(error.to_string().contains("the test is about this"), "{error}");
        fake.assert_nothing_is_left("disagreement and an abort");
    });
}

#[test]
fn processes_share_an_object() {
    const NAME: &str = "processes_share_an_object";
    alone(module_path!(), NAME, &DEVICES, |fake| {
        let config = with(&[]);
        let joins = |id: &UniqueId, rank| {
            let comm = Communicator::init_rank(id, Rank(rank), 3, &config).unwrap();
            let (ways, sent) = calls(&comm).unwrap();
            assert!(ways == [Some("switch"); 3] && sent > 0, "rank {rank}: {ways:?}, {sent}");
            comm.barrier().unwrap();
        };
        if let Ok(peer) = std::env::var(PEER) {
            let (rank, id) = peer.split_once(':').unwrap();
            return joins(&id.parse().unwrap(), rank.parse().unwrap());
        }
        let id = UniqueId::generate_local(&config).unwrap();
        let peer = |rank: u32| {
            let mut peer = Command::new(std::env::current_exe().unwrap());
            let name = format!("device::switch::{NAME}");
            peer.args(["--exact", &name, "--nocapture"]).env(PEER, format!("{rank}:{}", id.to_hex()));
            peer.spawn().unwrap()
        };
        let peers = [peer(1), peer(2)];
        joins(&id, 0);
        for mut peer in peers {
            assert!(peer.wait().unwrap().success());
        }
        fake.assert_nothing_is_left("processes");
    });
}

const PEER: &str = "CCL_TEST_PEER_OF_SWITCH";
