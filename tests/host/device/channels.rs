//! How many channels calls have where nobody says: as many as there is room for on all devices, and of those as many as pay.

use std::path::{Path, PathBuf};

use ccl::memory::DeviceFootprint;
use ccl::{Collective, Config, Dtype, Rank, ReduceOp, Request, Result, local};

use super::all;
use super::alone::{Fake, alone, joined, settings};
use super::graphs::replays;
use crate::matrix::sweep_of;

/// As many as an H100 has.
const LARGE: [(&str, &str); 2] = [("CCL_FAKE_MULTIPROCESSORS", "132"), ("CCL_FAKE_DEVICES", "4")];
const APART: (&str, &str) = ("CCL_DEVICE", "local");

/// Channels of a short and of a long all-reduce, and of a long message; the same on all ranks.
fn channels(configs: &[Config]) -> [u16; 3] {
    let one = |comm: ccl::Communicator| -> Result<[u16; 3]> {
        let of = |kind, count| Ok(comm.explain(kind, Dtype::F32, count, Rank(0))?.choice.channels);
        let found = [of(Collective::AllReduce, 1000)?, of(Collective::AllReduce, 1 << 22)?];
        let message = of(Collective::Send, 1 << 22)?;
        comm.barrier()?;
        Ok([found[0], found[1], message])
    };
    let said: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> =
            joined(configs).unwrap().into_iter().map(|comm| scope.spawn(|| one(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
    });
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    said[0]
}

/// Of `n` ranks with the same settings.
fn of(n: usize, more: &[(&'static str, &str)]) -> [u16; 3] {
    channels(&vec![settings(more); n])
}

#[test]
fn ranks_agree_on_as_many_as_there_is_room_for() {
    alone(module_path!(), "ranks_agree_on_as_many_as_there_is_room_for", &LARGE, |fake| {
        assert_eq!(of(2, &[APART]), [1, 32, 16]);
        assert_eq!(of(4, &[APART]), [1, 32, 8], "messages with all others run side by side");
        // On one device they share its room.
        assert_eq!(of(2, &[]), [1, 16, 8]);
        assert_eq!(of(4, &[]), [1, 8, 2]);
        assert_eq!(of(3, &[("CCL_DEVICE", "0,1,0")]), [1, 16, 4]);
        // What the user says counts, whatever there is room for.
        assert_eq!(of(2, &[APART, ("CCL_MAX_NCHANNELS", "1")]), [1, 1, 1]);
        assert_eq!(of(4, &[("CCL_MAX_NCHANNELS", "4")]), [1, 4, 4]);
        // Where somebody works on host memory or goes through it there is one, as between hosts.
        assert_eq!(of(2, &[("CCL_P2P_DISABLE", "1")]), [1, 1, 1]);
        let through_the_host = [("CCL_P2P_DISABLE", "1")];
        assert_eq!(channels(&[settings(&[]), settings(&through_the_host)]), [1, 1, 1]);
        assert_eq!(channels(&[settings(&[]), settings(&[("CCL_DEVICE", "none")])]), [1, 1, 1]);
        fake.assert_nothing_is_left("ranks that agree");
    });
}

/// Slots were made for many channels, and then all goes through the host.
#[test]
fn devices_that_turn_out_to_be_apart_have_one() {
    alone(module_path!(), "devices_that_turn_out_to_be_apart_have_one", &LARGE, |fake| {
        let apart = |run: &dyn Fn(&Config)| {
            fake.reset();
            fake.fail("cuCtxEnablePeerAccess", 1, 217);
            run(&settings(&[APART]));
            assert_eq!(fake.failed("cuCtxEnablePeerAccess"), 1);
        };
        apart(&|config| assert_eq!(channels(&[config.clone(), config.clone()]), [1, 1, 1]));
        let kinds = [Collective::AllReduce, Collective::AllGather, Collective::AllToAll];
        apart(&|config| sweep_of(config, 2, &[1, 1031, 30_001], &[Dtype::F32], &kinds));
        fake.assert_nothing_is_left("devices that are apart");
    });
}

#[test]
fn the_smallest_device_says_how_many() {
    let uneven = [("CCL_FAKE_MULTIPROCESSORS", "132,20,3")];
    let devices = [uneven[0], ("CCL_FAKE_DEVICES", "3")];
    alone(module_path!(), "the_smallest_device_says_how_many", &devices, |fake| {
        let on = |devices: &[&str]| -> Vec<Config> {
            devices.iter().map(|device| settings(&[("CCL_DEVICE", device)])).collect()
        };
        assert_eq!(channels(&on(&["0", "1"])), [1, 4, 2]);
        assert_eq!(channels(&on(&["1", "0"])), [1, 4, 2]);
        assert_eq!(channels(&on(&["0", "2"])), [1, 1, 1]);
        assert_eq!(channels(&on(&["0", "0", "1"])), [1, 4, 1]);
        fake.assert_nothing_is_left("uneven devices");
    });
}

/// Blocks of one call of each rank, of so many elements.
fn blocks(fake: &Fake, config: &Config, count: usize) -> u64 {
    let after = |calls: usize| {
        fake.reset();
        local::run_with(config, 2, |comm| {
            let mut values = vec![1.0f32; count];
            for _ in 0..calls {
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            }
            assert!(values.iter().all(|value| *value == (1 << calls) as f32));
            Ok(())
        })
        .unwrap();
        fake.calls("blocks")
    };
    after(2) - after(1)
}

#[test]
fn short_calls_have_one_block_and_long_ones_all() {
    alone(module_path!(), "short_calls_have_one_block_and_long_ones_all", &LARGE, |fake| {
        let with = |more: &[(&'static str, &str)]| settings(&[more, &[APART]].concat());
        assert_eq!([100, 40_000, 300_000].map(|count| blocks(fake, &with(&[]), count)), [2, 8, 64]);
        let two = with(&[("CCL_MAX_NCHANNELS", "2")]);
        assert_eq!([100, 40_000, 300_000].map(|count| blocks(fake, &two, count)), [2, 4, 4]);
    });
}

/// Nothing is asked of a device, and what is said is what ranks then take, but for tables.
#[test]
fn what_slots_take_is_known_before() {
    alone(module_path!(), "what_slots_take_is_known_before", &LARGE, |fake| {
        let own = [
            ("CCL_CUDA_ONE_SHOT", ""),
            ("CCL_CUDA_TWO_SHOT", "64K"),
            ("CCL_BUFFSIZE", "128K"),
            ("CCL_SLOTS", "8"),
        ];
        type Settings<'a> = &'a [(&'static str, &'static str)];
        let cases: [(u32, u32, Settings<'_>); 8] = [
            (1, 1, &own),
            (2, 2, &own),
            (2, 1, &[&own[..], &[APART]].concat()),
            (4, 4, &own),
            (4, 1, &[&own[..], &[APART, ("CCL_CUDA_SWITCH", "0")]].concat()),
            (3, 3, &[("CCL_PROTO", "simple"), own[1], own[2]]),
            (3, 3, &[("CCL_MAX_NCHANNELS", "4"), ("CCL_CHUNK_BYTES", "64K")]),
            (2, 2, &[("CCL_CUDA_ONE_SHOT", "1M"), ("CCL_BUFFSIZE", "1M"), ("CCL_CHUNK_BYTES", "1M")]),
        ];
        for (n, sharing, more) in cases {
            let config = settings(more);
            let said = DeviceFootprint::before_use(n, (sharing, 132), &config).unwrap();
            let taken = memory(n, more);
            assert!(taken >= said.region_bytes, "{n} ranks, {more:?}: {taken} of {said:?}");
            assert!(taken < said.region_bytes + (1 << 20), "{n} ranks, {more:?}: {taken} of {said:?}");
            if n > 1 {
                assert_eq!(of(n as usize, more)[1], said.channels, "{n} ranks, {more:?}");
            }
        }
        assert!(DeviceFootprint::before_use(2, (3, 132), &settings(&[])).is_err());
        fake.assert_nothing_is_left("footprints");
    });
}

/// Goes with its files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("ccl-channels-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tuning file in which every call has so many channels.
fn rules(folder: &Path, turn: usize, channels: u32) -> PathBuf {
    let rule = |collective: Collective| {
        let algorithms = ccl::plan::algorithms(collective);
        let algorithm = algorithms[turn % algorithms.len()];
        format!(
            "[[rule]]\ncollective = \"{collective}\"\nalgorithm = \"{algorithm}\"\nchannels = {channels}\n"
        )
    };
    let file = folder.join(format!("{turn}.toml"));
    let text = all().into_iter().map(rule).collect::<String>();
    std::fs::write(&file, format!("machine = \"any\"\n{text}")).unwrap();
    file
}

#[test]
fn every_collective_on_many_channels() {
    alone(module_path!(), "every_collective_on_many_channels", &LARGE, |fake| {
        let folder = Folder::new();
        for turn in 0..4 {
            let file = rules(&folder.0, turn, 16);
            let config = settings(&[APART, ("CCL_TUNING_FILE", file.to_str().unwrap())]);
            sweep_of(&config, 3, &[0, 1, 1031], &[Dtype::F32], &all());
        }
        // And as selection takes them, longer than all slots.
        let config = settings(&[APART]);
        let kinds =
            [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
        sweep_of(&config, 2, &[150_003], &[Dtype::U8], &kinds);
        sweep_of(&settings(&[]), 3, &[80_001], &[Dtype::U8], &all());
        fake.assert_nothing_is_left("many channels");
    });
}

#[test]
fn graphs_on_many_channels() {
    alone(module_path!(), "graphs_on_many_channels", &LARGE, |fake| {
        let folder = Folder::new();
        let file = rules(&folder.0, 0, 8);
        let config = settings(&[APART, ("CCL_TUNING_FILE", file.to_str().unwrap())]);
        replays(fake, &config, 3, 100);
        fake.assert_nothing_is_left("replays");
    });
}

#[test]
fn long_messages_with_all_others_fit() {
    alone(module_path!(), "long_messages_with_all_others_fit", &LARGE, |fake| {
        for config in [settings(&[APART]), settings(&[])] {
            local::run_with(&config, 4, |comm| {
                let (me, n) = (comm.rank().0, comm.size());
                let mine = vec![me; 60_000];
                let mut theirs: Vec<_> = (0..n).map(|_| vec![9; 60_000]).collect();
                ccl::group(|group| {
                    for (peer, values) in (0..n).map(Rank).zip(&mut theirs) {
                        group.add(&comm, Request::send(&mine, peer));
                        group.add(&comm, Request::recv(values, peer));
                    }
                    Ok(())
                })?;
                assert!((0..n).zip(&theirs).all(|(peer, values)| *values == vec![peer; 60_000]), "rank {me}");
                comm.barrier()
            })
            .unwrap();
        }
        fake.assert_nothing_is_left("long messages");
    });
}

#[test]
fn more_than_fit_are_refused_if_the_user_says_so() {
    let small = [("CCL_FAKE_MULTIPROCESSORS", "1")];
    alone(module_path!(), "more_than_fit_are_refused_if_the_user_says_so", &small, |fake| {
        let long = |more: &[(&'static str, &str)]| {
            let config = settings(&[more, &[("CCL_CUDA_THREADS", "512")]].concat());
            local::try_run_with(&config, 2, |comm| {
                comm.all_reduce_in_place(&mut vec![1.0f32; 300_000], ReduceOp::Sum)
            })
            .unwrap()
        };
        assert!(long(&[]).iter().all(|outcome| outcome.is_ok()));
        let refused = long(&[("CCL_MAX_NCHANNELS", "8")]);
        let texts: Vec<_> = refused.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
        assert!(texts.iter().all(|text| text.contains("expected device 0 to hold 16 blocks")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("lower CCL_MAX_NCHANNELS")), "{texts:?}");
        fake.assert_nothing_is_left("a refusal");
    });
}

/// Device memory of each rank.
fn memory(n: u32, more: &[(&'static str, &str)]) -> u64 {
    let taken = local::run_with(&settings(more), n, |comm| {
        let before = comm.device_memory()?;
        comm.suspend()?;
        comm.resume()?;
        assert_eq!(comm.device_memory()?, before, "what is taken again");
        comm.barrier()?;
        Ok(before)
    });
    taken.unwrap().into_iter().max().unwrap()
}

#[test]
fn slots_of_many_channels_are_bounded() {
    alone(module_path!(), "slots_of_many_channels_are_bounded", &LARGE, |fake| {
        const MIB: u64 = 1 << 20;
        let usual = [APART, ("CCL_BUFFSIZE", "512K"), ("CCL_SLOTS", "8")];
        let long = [APART, ("CCL_BUFFSIZE", "8M"), ("CCL_SLOTS", "8"), ("CCL_CHUNK_BYTES", "1M")];
        // 32 channels to 2 ranks under 3 tags, of 4 slots of 128 KiB under simple and of 32 KiB under the others; and little else.
        let taken = memory(2, &usual);
        assert!((169 * MIB..172 * MIB).contains(&taken), "{taken}");
        // Slots of 1 MiB leave fewer channels.
        assert_eq!(of(2, &long), [1, 16, 16]);
        let taken = memory(2, &long);
        assert!((400 * MIB..512 * MIB).contains(&taken), "{taken}");
        fake.assert_nothing_is_left("slots");
    });
}
