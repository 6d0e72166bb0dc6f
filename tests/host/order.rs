//! Order: messages, groups, streams, scopes, several communicators of one thread.

use std::time::Duration;

use ccl::{Config, Rank, ReduceOp, Request, Stream, UniqueId, group, local};

#[test]
fn messages_in_any_order_within_a_group() {
    local::run(4, |comm| {
        let (me, n) = (comm.rank().0, comm.size());
        let sent: Vec<Vec<u32>> = (0..n).map(|to| vec![me * 100 + to; 70_000]).collect();
        let mut received: Vec<Vec<u32>> = (0..n).map(|_| vec![0; 70_000]).collect();
        group(|group| {
            // Sends first, all of them longer than the slots: only a group can do this.
            for (to, buffer) in sent.iter().enumerate() {
                group.add(&comm, Request::send(buffer, Rank(to as u32)));
            }
            for (from, buffer) in received.iter_mut().enumerate().rev() {
                group.add(&comm, Request::recv(buffer, Rank(from as u32)));
            }
            Ok(())
        })?;
        for (from, buffer) in received.iter().enumerate() {
            assert!(buffer.iter().all(|value| *value == from as u32 * 100 + me), "from {from}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_message_to_oneself_where_all_others_are_reached_over_a_network() {
    let config = Config::from_vars([("CCL_SHM_DISABLE", "1"), ("CCL_TIMEOUT", "20s")]).unwrap();
    let run = |comm: &ccl::Communicator, count: usize| {
        let me = comm.rank();
        let (sent, mut received) = (vec![me.0 + 7; count], vec![0_u32; count]);
        group(|group| {
            group.add(comm, Request::send(&sent, me));
            group.add(comm, Request::recv(&mut received, me));
            Ok(())
        })?;
        assert_eq!(sent, received);
        // And to others as before, in slots of the network's length.
        let peer = Rank(1 - me.0);
        group(|group| {
            group.add(comm, Request::send(&sent, peer));
            group.add(comm, Request::recv(&mut received, peer));
            Ok(())
        })?;
        assert!(received.iter().all(|value| *value == peer.0 + 7), "{count}");
        Ok(())
    };
    local::run_with(&config, 2, |comm| {
        [1, 70_000, 3 << 20].into_iter().try_for_each(|count| run(&comm, count))
    })
    .unwrap();
}

#[test]
fn several_messages_between_two_ranks_keep_their_order() {
    local::run(2, |comm| {
        let peer = Rank(1 - comm.rank().0);
        let sent: Vec<Vec<u64>> = (0..10).map(|i| vec![i; 1 + i as usize * 9000]).collect();
        let mut received: Vec<Vec<u64>> = (0..10).map(|i| vec![99; 1 + i * 9000]).collect();
        group(|group| {
            sent.iter().for_each(|buffer| group.add(&comm, Request::send(buffer, peer)));
            received.iter_mut().for_each(|buffer| group.add(&comm, Request::recv(buffer, peer)));
            Ok(())
        })?;
        assert_eq!(sent, received);
        Ok(())
    })
    .unwrap();
}

/// Long enough to be cut into pieces, which a rank that has nothing else to do copies and others lend: one way, both
/// ways, and beside a shorter one, so that the rank has nothing else to do any more in the middle of it.
#[test]
fn long_messages_alone_and_beside_others() {
    const LONG: usize = (5 << 20) / 4 + 3;
    local::run(3, |comm| {
        let (me, next, previous) = (comm.rank().0, (comm.rank().0 + 1) % 3, (comm.rank().0 + 2) % 3);
        let values = |rank: u32| (0..LONG as u32).map(move |i| i * 3 + rank);
        let mine: Vec<u32> = values(me).collect();
        let mut theirs = vec![0; LONG];
        for from in 0..3 {
            theirs.fill(0);
            if me == from {
                comm.send(&mine, Rank(next))?;
            } else if previous == from {
                comm.recv(&mut theirs, Rank(previous))?;
                assert!(theirs.iter().copied().eq(values(previous)), "one way from rank {from}");
            }
        }
        for short in [LONG, LONG / 3, 1] {
            // Ranks send the long one or the short one, and receive the other.
            let (sent, received) = match me {
                0 => (LONG, short),
                1 => (short, LONG),
                _ => (short, short),
            };
            theirs.fill(0);
            group(|group| {
                group.add(&comm, Request::send(&mine[..sent], Rank(next)));
                group.add(&comm, Request::recv(&mut theirs[..received], Rank(previous)));
                Ok(())
            })?;
            assert!(
                theirs[..received].iter().copied().eq(values(previous).take(received)),
                "{short} elements"
            );
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_group_of_collectives_and_messages() {
    local::run(3, |comm| {
        let me = comm.rank().0;
        let (next, previous) = (Rank((me + 1) % 3), Rank((me + 2) % 3));
        let (mut a, mut b, mine, mut theirs) = (vec![1i32; 5000], vec![2i64; 3], [me; 4], [9; 4]);
        group(|group| {
            group.add(&comm, Request::all_reduce_in_place(&mut a, ReduceOp::Sum));
            group.add(&comm, Request::send(&mine, next));
            group.add(&comm, Request::all_reduce_in_place(&mut b, ReduceOp::Product));
            group.add(&comm, Request::recv(&mut theirs, previous));
            Ok(())
        })?;
        assert_eq!((a[4999], b[2], theirs), (3, 8, [previous.0; 4]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn one_thread_holds_all_ranks() {
    let config = Config::from_vars([("CCL_TIMEOUT", "20s")]).unwrap();
    let id = UniqueId::generate_local(&config).unwrap();
    let joining: Vec<_> = (0..3)
        .map(|rank| ccl::Communicator::init_rank_nonblocking(&id, Rank(rank), 3, &config).unwrap())
        .collect();
    let comms: Vec<_> = joining.into_iter().map(|joining| joining.wait().unwrap()).collect();
    let mut buffers: Vec<Vec<f64>> = (0..3).map(|rank| vec![f64::from(rank); 100_000]).collect();
    group(|group| {
        for (comm, buffer) in comms.iter().zip(&mut buffers) {
            group.add(comm, Request::all_reduce_in_place(buffer, ReduceOp::Max));
        }
        Ok(())
    })
    .unwrap();
    assert!(buffers.iter().flatten().all(|value| *value == 2.0));
}

#[test]
fn scopes_overlap_with_the_caller_and_streams_keep_order() {
    local::run(2, |comm| {
        let mut vectors: Vec<Vec<i32>> = (0..6).map(|i| vec![i; 200_000]).collect();
        let stream = Stream::new();
        comm.scope(|scope| {
            for vector in &mut vectors {
                scope.start_on(&stream, Request::all_reduce_in_place(vector, ReduceOp::Sum))?;
            }
            stream.synchronize()?;
            assert!(stream.is_idle());
            Ok(())
        })?;
        for (i, vector) in vectors.iter().enumerate() {
            assert!(vector.iter().all(|value| *value == 2 * i as i32), "vector {i}");
        }
        // Blocking calls after asynchronous ones still work.
        let mut value = [1u8];
        comm.all_reduce_in_place(&mut value, ReduceOp::Sum)?;
        assert_eq!(value, [2]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn asynchronous_work_progresses_while_nobody_waits() {
    local::run(2, |comm| {
        let mut vector = vec![1i32; 1 << 20];
        let stream = Stream::new();
        comm.scope(|scope| {
            scope.start_on(&stream, Request::all_reduce_in_place(&mut vector, ReduceOp::Sum))?;
            let patience = std::time::Instant::now();
            while !stream.is_idle() {
                assert!(patience.elapsed().as_secs() < 20, "nobody drives");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Ok(())
        })?;
        assert_eq!(vector[0], 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_progress_thread_drives_what_several_communicators_left() {
    let config = Config::from_vars([("CCL_TIMEOUT", "20s")]).unwrap();
    let ids: Vec<_> = (0..3).map(|_| UniqueId::generate_local(&config).unwrap()).collect();
    let rank = |rank: u32| {
        let join = |id| ccl::Communicator::init_rank(id, Rank(rank), 2, &config).unwrap();
        let comms: Vec<_> = ids.iter().map(join).collect();
        for round in 0..30 {
            let mut vectors = vec![vec![1i32; 1000 << (round % 8)]; 3];
            let streams: Vec<_> = (0..3).map(|_| Stream::new()).collect();
            let [first, second, third] = &mut vectors[..] else { unreachable!() };
            let sum = |vector| Request::all_reduce_in_place(vector, ReduceOp::Sum);
            let all = comms[0].scope(|a| {
                comms[1].scope(|b| {
                    comms[2].scope(|c| {
                        a.start_on(&streams[0], sum(first))?;
                        b.start_on(&streams[1], sum(second))?;
                        c.start_on(&streams[2], sum(third))?;
                        // One rank waits for a communicator and leaves; the other does for another.
                        streams[(round + rank as usize) % 3].synchronize()?;
                        let patience = std::time::Instant::now();
                        while !streams.iter().all(Stream::is_idle) {
                            assert!(patience.elapsed().as_secs() < 20, "nobody drives");
                            std::thread::yield_now();
                        }
                        Ok(())
                    })
                })
            });
            all.unwrap();
            assert!(vectors.iter().flatten().all(|value| *value == 2), "round {round}");
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(|| rank(0));
        threads.spawn(|| rank(1));
    });
}

#[test]
fn a_caller_that_waits_does_not_keep_other_communicators_from_progress() {
    let config = Config::from_vars([("CCL_TIMEOUT", "20s")]).unwrap();
    let ids: Vec<_> = (0..2).map(|_| UniqueId::generate_local(&config).unwrap()).collect();
    let rank = |rank: u32| {
        let join = |id| ccl::Communicator::init_rank(id, Rank(rank), 2, &config).unwrap();
        let [left, waited] = [join(&ids[0]), join(&ids[1])];
        for round in 0..20 {
            let (mut long, mut short) = (vec![1i32; 1 << 20], [1i32; 8]);
            let sum = |vector| Request::all_reduce_in_place(vector, ReduceOp::Sum);
            let done = if rank == 0 {
                left.scope(|a| {
                    a.start(Request::all_reduce_in_place(&mut long, ReduceOp::Sum))?;
                    // Ends only once the other rank is done with the first.
                    waited.scope(|b| b.start(sum(&mut short)))
                })
            } else {
                left.all_reduce_in_place(&mut long, ReduceOp::Sum).and_then(|()| waited.run(sum(&mut short)))
            };
            done.unwrap();
            assert!(long.iter().chain(&short).all(|value| *value == 2), "round {round}");
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(|| rank(0));
        threads.spawn(|| rank(1));
    });
}

#[test]
fn a_communicator_that_stalls_does_not_slow_down_others_of_its_group() {
    const CALLS: usize = 3_000;
    let config = Config::from_vars([("CCL_TIMEOUT", "60s")]).unwrap();
    let ids: Vec<_> = (0..2).map(|_| UniqueId::generate_local(&config).unwrap()).collect();
    let rank = |rank: u32| {
        let join = |id| ccl::Communicator::init_rank(id, Rank(rank), 2, &config).unwrap();
        let [stalled, busy] = [join(&ids[0]), join(&ids[1])];
        let exchange = |beside: bool| {
            let (mut sums, mut late) = (vec![[1_u32]; CALLS], [0_u8]);
            let started = std::time::Instant::now();
            group(|group| {
                if beside && rank == 0 {
                    group.add(&stalled, Request::recv(&mut late, Rank(1)));
                }
                for sum in &mut sums {
                    group.add(&busy, Request::all_reduce_in_place(sum, ReduceOp::Sum));
                }
                Ok(())
            })
            .unwrap();
            let took = started.elapsed();
            if beside && rank == 1 {
                stalled.send(&[7_u8], Rank(0)).unwrap();
            }
            assert!(sums.iter().all(|sum| *sum == [2]));
            assert_eq!(late[0], if beside && rank == 0 { 7 } else { 0 });
            took
        };
        (exchange(false), exchange(true))
    };
    let (alone, beside) = std::thread::scope(|threads| {
        threads.spawn(|| rank(0));
        threads.spawn(|| rank(1)).join().unwrap()
    });
    println!("alone {alone:?}, beside one that stalls {beside:?}");
    assert!(beside < alone * 10 + Duration::from_millis(500), "alone {alone:?}, beside {beside:?}");
}
