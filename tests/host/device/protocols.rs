//! Edges between devices under each protocol: the same bytes, and nothing old is taken for new where they alternate.

use ccl::{Communicator, Config, Dtype, Rank, ReduceOp, Request, Result, local};

use super::alone::{alone, settings};
use super::graphs::replays;
use super::{all, hears_of_an_abort, on};
use crate::matrix::sweep_of;

const LINES: [&str; 2] = ["ll", "ll128"];

/// What calls of so many `f32` follow.
fn protocol(comm: &Communicator, collective: ccl::Collective, count: usize) -> Option<&'static str> {
    comm.explain(collective, Dtype::F32, count, Rank(0)).unwrap().protocol
}

#[test]
fn every_collective_under_each_protocol() {
    for name in ["simple", "ll", "ll128"] {
        let forced = [("CCL_PROTO", name)];
        for (n, device) in [(2, "local"), (3, "0"), (5, "local")] {
            let Some(config) = on(device, "every_collective_under_each_protocol", &forced) else { return };
            // Some slots more than there are.
            sweep_of(&config, n, &[0, 1, 29, 5003], &[Dtype::F32], &all());
            local::run_with(&config, n, |comm| {
                for collective in all() {
                    assert_eq!(protocol(&comm, collective, 1 << 24), Some(name), "{collective}");
                }
                comm.barrier()
            })
            .unwrap();
        }
    }
}

#[test]
fn every_dtype_and_operation_under_each_protocol() {
    for name in LINES {
        let forced = [("CCL_PROTO", name)];
        let Some(config) = on("0", "every_dtype_and_operation_under_each_protocol", &forced) else { return };
        sweep_of(&config, 2, &[257], &Dtype::ALL, &[ccl::Collective::AllReduce]);
    }
}

#[test]
fn a_rank_alone_sends_to_itself() {
    for name in LINES {
        let forced = [("CCL_PROTO", name)];
        let Some(config) = on("0", "a_rank_alone_sends_to_itself", &forced) else { return };
        sweep_of(&config, 1, &[0, 67], &[Dtype::F32], &all());
        local::run_with(&config, 1, |comm| {
            let (sent, mut got) = ([1.5f32, 2.5], [0.0f32; 2]);
            ccl::group(|group| {
                group.add(&comm, Request::send(&sent, Rank(0)));
                group.add(&comm, Request::recv(&mut got, Rank(0)));
                Ok(())
            })?;
            assert_eq!(got, sent);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn ranks_of_the_host_keep_all_to_simple() {
    for name in LINES {
        let forced = [("CCL_PROTO", name)];
        let Some(config) = on("0,none,1", "ranks_of_the_host_keep_all_to_simple", &forced) else { return };
        sweep_of(&config, 3, &[1, 1031], &[Dtype::F32], &all());
        let seen = local::run_with(&config, 3, |comm| Ok(protocol(&comm, ccl::Collective::AllReduce, 1)));
        assert_eq!(seen.unwrap(), [Some("simple"), None, Some("simple")]);
    }
}

#[test]
fn edges_through_the_host_keep_all_to_simple() {
    let apart = [("CCL_P2P_DISABLE", "1"), ("CCL_PROTO", "ll")];
    let Some(config) = on("0", "edges_through_the_host_keep_all_to_simple", &apart) else { return };
    sweep_of(&config, 2, &[1, 1031], &[Dtype::F32], &all());
    let seen = local::run_with(&config, 2, |comm| Ok(protocol(&comm, ccl::Collective::AllReduce, 1)));
    assert_eq!(seen.unwrap(), [Some("simple"); 2]);
}

/// Three protocols in turn, between the same ranks. Chunks are so short that those of ll come to more messages on an edge
/// than 16 bits count, and to longer and shorter ones.
#[test]
fn protocols_alternate_on_the_same_edges() {
    let turns = [
        ("CCL_PROTO", "simple;all_reduce:ll;all_gather:ll128"),
        ("CCL_ALGO", "all_reduce:ring;all_gather:ring;reduce_scatter:ring"),
        ("CCL_CHUNK_BYTES", "64"),
    ];
    let Some(config) = on("0", "protocols_alternate_on_the_same_edges", &turns) else { return };
    local::run_with(&config, 2, |comm| {
        use ccl::Collective::{AllGather, AllReduce, ReduceScatter};
        let all = [AllReduce, AllGather, ReduceScatter].map(|collective| protocol(&comm, collective, 10));
        assert_eq!(all, [Some("ll"), Some("ll128"), Some("simple")]);
        (0..1100).try_for_each(|turn| three(&comm, turn, [1000, 40, 33]))
    })
    .unwrap();
}

/// The length alone decides.
#[test]
fn calls_of_all_lengths_alternate() {
    let Some(config) = on("local", "calls_of_all_lengths_alternate", &[("CCL_BUFFSIZE", "64K")]) else {
        return;
    };
    local::run_with(&config, 3, |comm| {
        let lengths = [1, 8192, 8193, 65_536, 65_537];
        let all = lengths.map(|count| protocol(&comm, ccl::Collective::AllReduce, count));
        assert_eq!(all, ["ll", "ll", "ll128", "ll128", "simple"].map(Some));
        for (turn, count) in [3, 9000, 66_000, 5, 100, 10_000, 7].into_iter().enumerate() {
            three(&comm, turn as u32, [count, count / 3, count / 3])?;
        }
        Ok(())
    })
    .unwrap();
}

/// One call of each of three collectives; what comes out is another in every turn.
fn three(comm: &Communicator, turn: u32, [sum, each, part]: [usize; 3]) -> Result<()> {
    let (me, n) = (comm.rank().0, comm.size());
    let value = |rank: u32, at: usize| turn.wrapping_mul(7) + rank * 1000 + at as u32 % 100;
    let all = |at: usize| (0..n).map(|rank| value(rank, at)).sum::<u32>();
    let mut values: Vec<u32> = (0..sum).map(|at| value(me, at)).collect();
    comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
    assert!((0..sum).all(|at| values[at] == all(at)), "turn {turn}: all-reduce of {sum}");
    let own: Vec<u32> = (0..each).map(|at| value(me, at)).collect();
    let mut gathered = vec![0; each * n as usize];
    comm.all_gather(&own, &mut gathered)?;
    let right = |at: usize| gathered[at] == value((at / each) as u32, at % each);
    assert!((0..gathered.len()).all(right), "turn {turn}: all-gather of {each}");
    let mine: Vec<u32> = (0..part * n as usize).map(|at| value(me, at)).collect();
    let mut scattered = vec![0; part];
    comm.reduce_scatter(&mine, &mut scattered, ReduceOp::Sum)?;
    let right = |at: usize| scattered[at] == all(me as usize * part + at);
    assert!((0..part).all(right), "turn {turn}: reduce-scatter of {part}");
    Ok(())
}

#[test]
fn graphs_replay_under_each_protocol() {
    alone(module_path!(), "graphs_replay_under_each_protocol", &[], |fake| {
        for name in LINES {
            replays(fake, &settings(&[("CCL_DEVICE", "local"), ("CCL_PROTO", name)]), 2, 300);
        }
        fake.assert_nothing_is_left("replays under protocols");
    });
}

#[test]
fn messages_cross_under_each_protocol() {
    for name in LINES {
        let Some(config) = on("0", "messages_cross_under_each_protocol", &[("CCL_PROTO", name)]) else {
            return;
        };
        local::run_with(&config, 2, |comm| {
            let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
            for turn in 0..20 {
                let count = 1 + 500 * turn as usize;
                let (mine, mut theirs) = (vec![me.0 + turn; count], vec![99; count]);
                ccl::group(|group| {
                    group.add(&comm, Request::send(&mine, peer));
                    group.add(&comm, Request::recv(&mut theirs, peer));
                    Ok(())
                })?;
                assert!(theirs.iter().all(|value| *value == peer.0 + turn));
            }
            comm.barrier()
        })
        .unwrap();
    }
}

/// Flags say whose the lines are.
#[test]
fn ranks_that_disagree_hear_of_it_under_each_protocol() {
    for name in LINES {
        let Some(config) = on("0", "ranks_that_disagree_hear_of_it", &[("CCL_PROTO", name)]) else { return };
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let count = 100 + comm.rank().index();
            comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
        });
        for outcome in outcomes.unwrap() {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("100") && text.contains("101"), "{name}: {text}");
        }
    }
}

/// Each rank waits where the other does not send: under another protocol.
#[test]
fn ranks_under_different_protocols_hear_of_it_soon() {
    for counts in [[100, 20_000], [100, 600_000], [20_000, 600_000]] {
        let Some(config) =
            on("0", "ranks_under_different_protocols_hear_of_it_soon", &[("CCL_ALGO", "ring")])
        else {
            return;
        };
        let begin = std::time::Instant::now();
        let outcomes = local::try_run_with(&config, 2, |comm| {
            let count = counts[comm.rank().index()];
            comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
        });
        for outcome in outcomes.unwrap() {
            let text = outcome.unwrap_err().to_string();
            assert!(counts.iter().all(|count| text.contains(&count.to_string())), "{counts:?}: {text}");
        }
        // The deadline is after 30.
        assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{counts:?}: {:?}", begin.elapsed());
    }
}

#[test]
fn an_abort_ends_kernels_under_each_protocol() {
    for name in LINES {
        let short = [("CCL_PROTO", name), ("CCL_TIMEOUT", "20s")];
        let Some(config) = on("0", "an_abort_ends_kernels_under_each_protocol", &short) else { return };
        hears_of_an_abort(&config);
    }
}

#[test]
fn ranks_with_other_protocols_do_not_join() {
    let Some(config) = on("0", "ranks_with_other_protocols_do_not_join", &[("CCL_PROTO", "ll")]) else {
        return;
    };
    let Some(other) = on("0", "ranks_with_other_protocols_do_not_join", &[("CCL_PROTO", "simple")]) else {
        return;
    };
    let id = ccl::UniqueId::generate_local(&config).unwrap();
    let join = |(rank, config): (u32, &Config)| {
        let (id, config) = (id.clone(), config.clone());
        std::thread::spawn(move || Communicator::init_rank(&id, Rank(rank), 2, &config).map(drop))
    };
    let joining: Vec<_> = (0..).zip([&config, &other]).map(join).collect();
    let errors = joining.into_iter().map(|thread| thread.join().unwrap().unwrap_err().to_string());
    let errors: Vec<_> = errors.collect();
    assert!(errors.iter().any(|text| text.contains("found CCL_PROTO = ")), "{errors:?}");
}
