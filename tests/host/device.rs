//! Ranks on devices, and mixed with ranks on the host, against the oracle.
//!
//! Under the machine's CUDA driver if it has one, or the one that `CCL_CUDA_LIBRARY` names (and kernels for it,
//! `CCL_CUDA_IMAGE`); else under one without a device behind it, which runs the kernels' sources.

mod alone;
mod blocking;
mod captures;
mod channels;
mod compiled;
mod contexts;
mod copies;
mod failures;
mod graphs;
mod groups;
mod leases;
mod lent;
mod pieces;
mod protocols;
mod queues;
mod special;
mod streams;
mod suspended;
mod switch;
mod together;
mod two_shot;
mod windows;

use ccl::transport::PathKind;
use ccl::{
    Addresses, Collective, Config, DeviceBuffer, Dtype, Rank, ReduceOp, Request, Stream, devices, local,
};
use ccl_tests::{exercise, program, skip};

use crate::matrix::{config, sweep_of};

/// Settings of the tests, or nothing where there is no device; says so then.
fn on(device: &str, test: &str, more: &[(&'static str, &str)]) -> Option<Config> {
    let environment = Config::load().unwrap();
    let value = |name: &str| environment.find(name).map(|found| found.value.clone()).unwrap_or_default();
    let (mut library, mut image) = (value("CCL_CUDA_LIBRARY"), value("CCL_CUDA_IMAGE"));
    if library.is_empty() && devices(&config(&[])).is_err() {
        library = program::fake_driver().to_str().unwrap().to_owned();
        // It goes by the names of kernels and takes any text for an image.
        image = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda/interpret.cu").to_owned();
    }
    let usual = [
        ("CCL_DEVICE", device),
        ("CCL_CUDA_LIBRARY", &library),
        ("CCL_CUDA_IMAGE", &image),
        ("CCL_CUDA_THREADS", "64"),
        ("CCL_BUFFSIZE", "16K"),
        ("CCL_SLOTS", "4"),
        // Programs are interpreted, unless a test asks for kernels of their own.
        ("CCL_CUDA_ONE_SHOT", "0"),
        ("CCL_CUDA_TWO_SHOT", "0"),
    ];
    // The first of a name counts, also if it is empty.
    let usual = usual.into_iter().filter(|(name, _)| !more.iter().any(|(other, _)| other == name));
    let config = config(&more.iter().copied().chain(usual).collect::<Vec<_>>());
    match devices(&config) {
        Ok(_) => Some(config),
        Err(none) => {
            skip(test, &none.to_string());
            None
        }
    }
}

fn all() -> Vec<Collective> {
    exercise::collectives().collect()
}

#[test]
fn every_collective_on_devices() {
    for n in [1, 2, 4] {
        let Some(config) = on("0", "every_collective_on_devices", &[]) else { return };
        sweep_of(&config, n, &[0, 1, 1031], &[Dtype::F32], &all());
    }
}

#[test]
fn every_dtype_and_operation_on_devices() {
    let Some(config) = on("local", "every_dtype_and_operation_on_devices", &[]) else { return };
    sweep_of(&config, 2, &[257], &Dtype::ALL, &[Collective::AllReduce, Collective::ReduceScatter]);
}

#[test]
fn kernels_have_no_more_threads_than_they_take() {
    let most = [("CCL_CUDA_THREADS", "1024")];
    let Some(config) = on("0", "kernels_have_no_more_threads_than_they_take", &most) else { return };
    sweep_of(&config, 2, &[257], &[Dtype::F32], &[Collective::AllReduce]);
}

#[test]
fn hosts_and_devices_together() {
    let Some(config) = on("0,none,1,none", "hosts_and_devices_together", &[]) else { return };
    sweep_of(&config, 4, &[1, 1031], &[Dtype::F32], &all());
    sweep_of(&config, 4, &[257], &Dtype::ALL, &[Collective::AllReduce]);
}

#[test]
fn hosts_and_devices_cut_alike() {
    // Slots of ranks on the host alone may be longer where they share cores.
    let slots = [("CCL_SLOTS", "8"), ("CCL_BUFFSIZE", "64K")];
    let Some(config) = on("0,none,1,none", "hosts_and_devices_cut_alike", &slots) else { return };
    sweep_of(&config, 4, &[20_011], &[Dtype::F32], &all());
}

#[test]
fn devices_that_do_not_reach_each_other() {
    for more in [&[("CCL_P2P_DISABLE", "1")][..], &[("CCL_P2P_DISABLE", "1"), ("CCL_SHM_DISABLE", "1")]] {
        let Some(config) = on("0", "devices_that_do_not_reach_each_other", more) else { return };
        sweep_of(&config, 3, &[1031], &[Dtype::F32], &all());
    }
}

#[test]
fn paths_say_how_devices_reach_each_other() {
    let Some(config) = on("0,1,none", "paths_say_how_devices_reach_each_other", &[]) else { return };
    let kinds = local::run_with(&config, 3, |comm| {
        let kinds: Vec<_> = (0..3).map(|peer| comm.path(Rank(peer)).map(|path| path.kind)).collect();
        Ok((comm.device(), kinds.into_iter().collect::<ccl::Result<Vec<_>>>()?))
    });
    use PathKind::{Loopback, P2p};
    let kinds = kinds.unwrap();
    assert_eq!(kinds[0], (Some(0), vec![P2p, P2p, Loopback]));
    assert_eq!(kinds[1], (Some(1), vec![P2p, P2p, Loopback]));
    assert_eq!(kinds[2], (None, vec![Loopback; 3]));
}

#[test]
fn calls_on_device_memory_follow_their_stream() {
    let Some(config) = on("0", "calls_on_device_memory_follow_their_stream", &[]) else { return };
    local::run_with(&config, 2, |comm| {
        let device = comm.device().unwrap();
        let mut buffer = DeviceBuffer::new(&config, device, 4000)?;
        buffer.write(&[1.0f32; 1000])?;
        let call =
            || Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
        comm.run_at(call(), Addresses::in_place(&mut buffer))?;
        let stream = Stream::on_device(&config, device)?;
        for _ in 0..3 {
            // SAFETY: the buffer lives, and nobody touches it, until the stream is synchronised.
            #[allow(unsafe_code)]
            unsafe {
                comm.enqueue(call(), Addresses::in_place(&mut buffer), &stream)?;
            }
        }
        stream.synchronize()?;
        let mut values = [0.0f32; 1000];
        buffer.read(&mut values)?;
        assert!(values.iter().all(|value| *value == 16.0), "{:?}", &values[..4]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_on_host_memory_refuse_device_buffers() {
    let Some(device) = on("0", "ranks_on_host_memory_refuse_device_buffers", &[]) else { return };
    local::run_with(&config(&[("CCL_DEVICE", "none")]), 2, |comm| {
        let mut buffer = DeviceBuffer::new(&device, 0, 4000)?;
        let call = Request { count: 1000, ..Request::all_reduce_in_place(&mut [0.0f32; 0], ReduceOp::Sum) };
        let error = comm.run_at(call, Addresses::in_place(&mut buffer)).unwrap_err();
        assert!(error.to_string().contains("found a DeviceBuffer"), "{error}");
        comm.barrier()
    })
    .unwrap();
}

#[test]
fn messages_on_devices_cross_each_other() {
    for more in [&[][..], &[("CCL_P2P_DISABLE", "1")]] {
        let Some(config) = on("0", "messages_on_devices_cross_each_other", more) else { return };
        local::run_with(&config, 2, |comm| {
            let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
            let (mine, mut theirs) = (vec![me.0; 9000], vec![9; 9000]);
            ccl::group(|group| {
                group.add(&comm, Request::send(&mine, peer));
                group.add(&comm, Request::recv(&mut theirs, peer));
                Ok(())
            })?;
            assert!(theirs.iter().all(|value| *value == peer.0));
            comm.barrier()
        })
        .unwrap();
    }
}

/// Rank 0 is in an all-reduce when rank 1 aborts, and hears why.
#[track_caller]
fn hears_of_an_abort(config: &Config) {
    let outcomes = local::try_run_with(config, 2, |comm| {
        if comm.rank() == Rank(1) {
            std::thread::sleep(std::time::Duration::from_millis(200));
            comm.aborter().abort("the test is about this");
            return Ok(());
        }
        comm.all_reduce_in_place(&mut [1.0f32; 100], ReduceOp::Sum)
    });
    let error = outcomes.unwrap().swap_remove(0).unwrap_err();
    assert!(error.to_string().contains("the test is about this"), "{error}");
}

#[test]
fn a_rank_that_leaves_ends_the_kernels_of_the_others() {
    let short = [("CCL_TIMEOUT", "20s")];
    let Some(config) = on("0", "a_rank_that_leaves_ends_the_kernels_of_the_others", &short) else { return };
    hears_of_an_abort(&config);
}

#[test]
fn ranks_that_ask_for_different_counts_hear_of_both() {
    let Some(config) = on("0", "ranks_that_ask_for_different_counts_hear_of_both", &[]) else { return };
    let outcomes = local::try_run_with(&config, 2, |comm| {
        let count = 100 + comm.rank().index();
        comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
    });
    for outcome in outcomes.unwrap() {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("100") && text.contains("101"), "{text}");
    }
}

#[test]
fn a_rank_without_its_device_says_why() {
    let config = config(&[("CCL_DEVICE", "0"), ("CCL_CUDA_LIBRARY", "/nowhere/libcuda.so.1")]);
    let errors = local::try_run_with(&config, 2, |comm| comm.barrier()).unwrap();
    for error in errors {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("no CUDA device") && text.contains("/nowhere"), "{text}");
    }
}
