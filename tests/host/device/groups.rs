//! Groups with device memory: several ranks and devices of one thread.

use ccl::{Addresses, Communicator, Config, DeviceBuffer, Rank, ReduceOp, Request, Result, Stream};

use super::alone::{alone, joined, settings, stream};

/// What makes things on a device waits for its kernels: whoever launches before all is ready hangs.
const WAITS: &[(&str, &str)] = &[("CCL_FAKE_MAKING_WAITS", "1")];

/// A rank of this thread with what it needs for calls.
struct Here {
    comm: Communicator,
    stream: Stream,
    mine: DeviceBuffer,
    all: DeviceBuffer,
}

fn ranks(configs: &[Config]) -> Result<Vec<Here>> {
    let here = |(comm, config): (Communicator, &Config)| {
        let device = comm.device().unwrap();
        let bytes = 4000 * configs.len();
        Ok(Here {
            stream: Stream::on_device(config, device)?,
            mine: DeviceBuffer::new(config, device, 4000)?,
            all: DeviceBuffer::new(config, device, bytes)?,
            comm,
        })
    };
    joined(configs)?.into_iter().zip(configs).map(here).collect()
}

fn on(devices: &[&str], more: &[(&'static str, &str)]) -> Vec<Config> {
    devices.iter().map(|device| settings(&[more, &[("CCL_DEVICE", device)]].concat())).collect()
}

#[test]
fn one_thread_holds_ranks_of_several_devices() {
    alone(module_path!(), "one_thread_holds_ranks_of_several_devices", WAITS, |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let mut ranks = ranks(&on(&["0", "1", "1"], more)).unwrap();
            for turn in 0..3 {
                for (rank, here) in ranks.iter_mut().enumerate() {
                    here.mine.write(&[turn + rank as i32; 1000]).unwrap();
                }
                reduce_and_gather(&mut ranks).unwrap();
                for here in &ranks {
                    here.stream.synchronize().unwrap();
                    let mut values = [0i32; 3000];
                    here.all.read(&mut values).unwrap();
                    assert!(values.iter().all(|value| *value == 3 * turn + 3), "turn {turn}: {}", values[0]);
                }
            }
        }
        fake.assert_nothing_is_left("ranks of one thread");
    });
}

/// Two calls of every rank, in one group.
fn reduce_and_gather(ranks: &mut [Here]) -> Result<()> {
    ccl::group(|group| {
        for Here { comm, stream, mine, all } in ranks {
            let reduce =
                Request { count: 1000, ..Request::all_reduce_in_place(&mut [0i32; 0], ReduceOp::Sum) };
            let gather = Request { count: 1000, ..Request::all_gather(&[0i32; 0], &mut []) };
            // SAFETY: the buffers outlive the work on the stream.
            #[allow(unsafe_code)]
            unsafe {
                let at = |from: &DeviceBuffer, to: &DeviceBuffer| {
                    Addresses::new(from.address() as *const u8, to.address() as *mut u8)
                };
                group.enqueue(comm, reduce, at(mine, mine), stream);
                group.enqueue(comm, gather, at(mine, all), stream);
            }
        }
        Ok(())
    })
}

#[test]
fn host_slices_of_several_ranks_of_one_thread() {
    alone(module_path!(), "host_slices_of_several_ranks_of_one_thread", WAITS, |fake| {
        let ranks = ranks(&on(&["0", "1"], &[])).unwrap();
        let mut values = [[1i32; 1000], [2; 1000]];
        ccl::group(|group| {
            for (here, values) in ranks.iter().zip(&mut values) {
                group.add(&here.comm, Request::all_reduce_in_place(values, ReduceOp::Sum));
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(values, [[3; 1000]; 2]);
        drop(ranks);
        fake.assert_nothing_is_left("host slices");
    });
}

#[test]
fn messages_of_a_group_run_side_by_side() {
    alone(module_path!(), "messages_of_a_group_run_side_by_side", WAITS, |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            // Slots hold less than a message, so that each waits for its receiver.
            let more = [more, &[("CCL_BUFFSIZE", "2K")]].concat();
            let mut ranks = ranks(&on(&["0", "1", "0"], &more)).unwrap();
            for (rank, here) in ranks.iter_mut().enumerate() {
                here.mine.write(&[rank as i32; 1000]).unwrap();
            }
            // Everybody to everybody, sends first.
            ccl::group(|group| {
                for here in &ranks {
                    for peer in 0..3u32 {
                        message(group, here, Rank(peer), true);
                    }
                    for peer in 0..3u32 {
                        message(group, here, Rank(peer), false);
                    }
                }
                Ok(())
            })
            .unwrap();
            for here in &ranks {
                here.stream.synchronize().unwrap();
                let mut values = [9i32; 3000];
                here.all.read(&mut values).unwrap();
                let expected: Vec<_> = (0..3).flat_map(|rank| [rank; 1000]).collect();
                assert_eq!(values[..], expected[..]);
            }
        }
        fake.assert_nothing_is_left("messages of a group");
    });
}

fn message<'a>(group: &mut ccl::Group<'a>, here: &'a Here, peer: Rank, is_sent: bool) {
    let (mine, theirs) = (here.mine.address(), here.all.address() + 4000 * u64::from(peer.0));
    // SAFETY: the buffers outlive the work on the stream, and all parts are others.
    #[allow(unsafe_code)]
    unsafe {
        let none = std::ptr::null_mut();
        let (call, at) = match is_sent {
            true => (Request::send(&[0i32; 0], peer), Addresses::new(mine as *const u8, none)),
            false => (Request::recv(&mut [0i32; 0], peer), Addresses::new(none, theirs as *mut u8)),
        };
        group.enqueue(&here.comm, Request { count: 1000, ..call }, at, &here.stream);
    }
}

#[test]
fn groups_of_messages_are_captured() {
    alone(module_path!(), "groups_of_messages_are_captured", WAITS, |fake| {
        for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
            let configs = on(&["0", "1"], more);
            let mut ranks = ranks(&configs).unwrap();
            let mut captured = Vec::new();
            for (here, (config, device)) in ranks.iter_mut().zip(configs.iter().zip(0..)) {
                let (seen, own) = stream(fake, config, device);
                own.begin_capture(ccl_cuda::CaptureMode::Relaxed).unwrap();
                here.stream = seen;
                captured.push(own);
            }
            ccl::group(|group| {
                for here in &ranks {
                    for peer in [1 - here.comm.rank().0, here.comm.rank().0] {
                        message(group, here, Rank(peer), true);
                        message(group, here, Rank(peer), false);
                    }
                }
                Ok(())
            })
            .unwrap();
            let graphs: Vec<_> = captured.iter().map(|own| own.end_capture().unwrap()).collect();
            let mut execs: Vec<_> = graphs.iter().map(|graph| graph.instantiate().unwrap()).collect();
            for turn in 0..20 {
                for (rank, here) in (0..).zip(&mut ranks) {
                    here.mine.write(&[10 * turn + rank; 1000]).unwrap();
                }
                for (exec, own) in execs.iter_mut().zip(&captured) {
                    // SAFETY: the buffers outlive the run.
                    #[allow(unsafe_code)]
                    unsafe {
                        exec.launch(own).unwrap();
                    }
                }
                for here in &ranks {
                    here.stream.synchronize().unwrap();
                    let mut values = [0i32; 2000];
                    here.all.read(&mut values).unwrap();
                    let expected: Vec<_> = (0..2).flat_map(|rank| [10 * turn + rank; 1000]).collect();
                    assert_eq!(values[..], expected[..], "turn {turn}");
                }
            }
        }
        fake.assert_nothing_is_left("captured groups");
    });
}

#[test]
fn a_group_that_is_refused_launches_nothing_of_that_rank() {
    alone(module_path!(), "a_group_that_is_refused_launches_nothing_of_that_rank", WAITS, |fake| {
        let ranks = ranks(&on(&["0", "1"], &[])).unwrap();
        let refused = ccl::group(|group| {
            for here in &ranks {
                let call =
                    Request { count: 1001, ..Request::all_reduce_in_place(&mut [0i32; 0], ReduceOp::Sum) };
                // SAFETY: as long as the buffer is not, the call is refused.
                #[allow(unsafe_code)]
                unsafe {
                    let at = Addresses::new(16 as *const u8, 16 as *mut u8);
                    group.enqueue(&here.comm, call, at, &here.stream);
                }
            }
            Ok(())
        });
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("rank 0: all_reduce: expected memory of device 0"), "{error}");
        for here in &ranks {
            assert!(here.comm.async_error().is_none());
        }
        drop(ranks);
        fake.assert_nothing_is_left("a refused group");
    });
}
