//! Messages of a group, which one kernel carries out: no two kernels of a device need to run at the same time.

use ccl::{Addresses, Communicator, Config, DeviceBuffer, Rank, ReduceOp, Request, Result, Stream, local};

use super::alone::{Fake, alone, settings, stream};

/// A device for each rank, which runs one kernel at a time.
const ONE_KERNEL: &[(&str, &str)] = &[("CCL_FAKE_DEVICES", "5"), ("CCL_FAKE_KERNELS", "1")];
/// Elements of a message, more than all slots of an edge hold.
const COUNT: usize = 10_000;

/// Settings of ranks as threads, each with the device of its number; slots hold a part of a message, but for lines.
fn own_devices(more: &[(&'static str, &str)]) -> Config {
    settings(&[more, &[("CCL_DEVICE", "local"), ("CCL_BUFFSIZE", "2K")]].concat())
}

/// A rank's memory, a part for each peer, and its stream.
struct Here {
    comm: Communicator,
    stream: Stream,
    sent: DeviceBuffer,
    received: DeviceBuffer,
}

impl Here {
    fn new(comm: Communicator, config: &Config) -> Result<Here> {
        let device = comm.device().unwrap();
        let bytes = 4 * COUNT * comm.size() as usize;
        let mut here = Here {
            stream: Stream::on_device(config, device)?,
            sent: DeviceBuffer::new(config, device, bytes)?,
            received: DeviceBuffer::new(config, device, bytes)?,
            comm,
        };
        let values: Vec<i32> =
            (0..here.comm.size()).flat_map(|to| here.part(here.comm.rank().0, to)).collect();
        here.sent.write(&values)?;
        Ok(here)
    }

    /// What one rank sends to another.
    fn part(&self, from: u32, to: u32) -> [i32; COUNT] {
        std::array::from_fn(|at| (from * 100 + to) as i32 + 1000 * at as i32)
    }

    fn all(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.comm.size()).map(Rank)
    }

    /// Puts a message of `comm` on the stream.
    fn message<'a>(&'a self, group: &mut ccl::Group<'a>, comm: &'a Communicator, peer: Rank, is_sent: bool) {
        let buffer = if is_sent { &self.sent } else { &self.received };
        let address = buffer.address() + 4 * COUNT as u64 * u64::from(peer.0);
        let none = std::ptr::null_mut();
        // SAFETY: the buffers outlive the work on the stream, and each message has a part of its own.
        #[allow(unsafe_code)]
        unsafe {
            let (call, at) = match is_sent {
                true => (Request::send(&[0i32; 0], peer), Addresses::new(address as *const u8, none)),
                false => (Request::recv(&mut [0i32; 0], peer), Addresses::new(none, address as *mut u8)),
            };
            group.enqueue(comm, Request { count: COUNT, ..call }, at, &self.stream);
        }
    }

    /// Everybody to everybody, sends first.
    fn exchange(&self) -> Result<()> {
        ccl::group(|group| {
            for is_sent in [true, false] {
                self.all().for_each(|peer| self.message(group, &self.comm, peer, is_sent));
            }
            Ok(())
        })
    }

    fn check(&self) {
        self.stream.synchronize().unwrap();
        let mut values = vec![0i32; COUNT * self.comm.size() as usize];
        self.received.read(&mut values).unwrap();
        for from in self.all() {
            let found = &values[COUNT * from.index()..][..COUNT];
            assert_eq!(found, self.part(from.0, self.comm.rank().0), "from rank {from}");
        }
    }

    fn forget(&mut self) -> Result<()> {
        self.received.write(&vec![-1i32; COUNT * self.comm.size() as usize])
    }
}

/// Runs `body` for groups of messages that wait for their receivers between devices, short ones, and those through the host.
fn each_way(n: u32, fake: &Fake, body: impl Fn(Here, &Config) -> Result<()> + Sync) {
    for more in [&[("CCL_PROTO", "simple")][..], &[], &[("CCL_P2P_DISABLE", "1")]] {
        let config = own_devices(more);
        local::run_with(&config, n, |comm| body(Here::new(comm, &config)?, &config)).unwrap();
    }
    fake.assert_nothing_is_left("groups");
}

#[test]
fn one_kernel_at_a_time_is_enough() {
    alone(module_path!(), "one_kernel_at_a_time_is_enough", ONE_KERNEL, |fake| {
        each_way(4, fake, |mut here, _| {
            for _ in 0..3 {
                here.forget()?;
                here.exchange()?;
                here.check();
            }
            here.comm.barrier()
        });
    });
}

#[test]
fn few_multiprocessors_take_messages_of_many_peers_one_after_the_other() {
    let few = [ONE_KERNEL, &[("CCL_FAKE_MULTIPROCESSORS", "2,4,4,4,4")]].concat();
    alone(
        module_path!(),
        "few_multiprocessors_take_messages_of_many_peers_one_after_the_other",
        &few,
        |fake| {
            each_way(5, fake, |mut here, _| {
                here.forget()?;
                let blocks = fake.calls("blocks");
                here.exchange()?;
                here.check();
                here.comm.barrier()?;
                assert!(fake.calls("blocks") - blocks <= 5 * 4, "two for messages, and a barrier's");
                here.comm.barrier()
            });
        },
    );
}

#[test]
fn one_kernel_at_a_time_is_enough_in_graphs() {
    alone(module_path!(), "one_kernel_at_a_time_is_enough_in_graphs", ONE_KERNEL, |fake| {
        each_way(3, fake, |mut here, config| {
            let (seen, own) = stream(fake, config, here.comm.device().unwrap());
            own.begin_capture(ccl_cuda::CaptureMode::Relaxed).unwrap();
            here.stream = seen;
            here.exchange()?;
            let graph = own.end_capture().unwrap();
            let mut exec = graph.instantiate().unwrap();
            for _ in 0..5 {
                here.forget()?;
                // SAFETY: the buffers outlive the run.
                #[allow(unsafe_code)]
                unsafe {
                    exec.launch(&own).unwrap();
                }
                here.check();
            }
            here.comm.barrier()
        });
    });
}

#[test]
fn messages_of_host_memory_are_launched_together() {
    alone(module_path!(), "messages_of_host_memory_are_launched_together", ONE_KERNEL, |fake| {
        each_way(3, fake, |here, _| {
            let me = here.comm.rank();
            let sent: Vec<_> = here.all().map(|to| here.part(me.0, to.0)).collect();
            let mut received = vec![[0i32; COUNT]; 3];
            for _ in 0..3 {
                received.fill([-1; COUNT]);
                ccl::group(|group| {
                    for (peer, values) in here.all().zip(&sent) {
                        group.add(&here.comm, Request::send(values, peer));
                    }
                    for (peer, values) in here.all().zip(&mut received) {
                        group.add(&here.comm, Request::recv(values, peer));
                    }
                    Ok(())
                })?;
                for (from, values) in here.all().zip(&received) {
                    assert_eq!(*values, here.part(from.0, me.0), "from rank {from}");
                }
            }
            here.comm.barrier()
        });
    });
}

#[test]
fn messages_do_not_wait_for_collectives_of_their_group() {
    alone(module_path!(), "messages_do_not_wait_for_collectives_of_their_group", ONE_KERNEL, |fake| {
        each_way(2, fake, |mut here, config| {
            here.forget()?;
            let mut sum = DeviceBuffer::new(config, here.comm.device().unwrap(), 4 * COUNT)?;
            sum.write(&[1i32; COUNT])?;
            let me = here.comm.rank();
            let other = Rank(1 - me.0);
            ccl::group(|group| {
                here.message(group, &here.comm, me, true);
                here.message(group, &here.comm, other, me.0 == 0);
                let call =
                    Request { count: COUNT, ..Request::all_reduce::<i32>(&[], &mut [], ReduceOp::Sum) };
                // SAFETY: the buffers outlive the work on the stream.
                #[allow(unsafe_code)]
                unsafe {
                    let at = Addresses::new(sum.address() as *const u8, sum.address() as *mut u8);
                    group.enqueue(&here.comm, call, at, &here.stream);
                }
                here.message(group, &here.comm, other, me.0 == 1);
                here.message(group, &here.comm, me, false);
                Ok(())
            })?;
            here.check();
            let mut values = [0i32; COUNT];
            sum.read(&mut values)?;
            assert_eq!(values, [2; COUNT]);
            here.comm.barrier()
        });
    });
}

#[test]
fn communicators_of_one_stream_may_be_named_in_any_order() {
    alone(module_path!(), "communicators_of_one_stream_may_be_named_in_any_order", ONE_KERNEL, |fake| {
        each_way(2, fake, |mut here, _| {
            here.forget()?;
            let (me, other) = (here.comm.rank(), Rank(1 - here.comm.rank().0));
            let next = here.comm.split(Some(0), i64::from(me.0))?.unwrap();
            // Each rank names first the communicator on which it sends.
            let (first, second) = if me.0 == 0 { (&here.comm, &next) } else { (&next, &here.comm) };
            ccl::group(|group| {
                here.message(group, first, other, true);
                here.message(group, second, other, false);
                here.message(group, &here.comm, me, true);
                here.message(group, &here.comm, me, false);
                Ok(())
            })?;
            here.check();
            here.comm.barrier()
        });
    });
}
