//! Communicators with tuners: those made for NCCL, ours in Rust and C, and those that go wrong.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ccl::{Algorithm, Collective, Communicator, Config, Dtype, Explanation, Rank, ReduceOp, Result, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, link, object, toy, toy_tuner};

fn config(more: &[(&str, &str)]) -> Config {
    let common = [("CCL_TUNING_FILE", "none"), ("CCL_TIMEOUT", "60s"), ("CCL_MAX_NCHANNELS", "4")];
    // The last of the same name holds.
    let vars: BTreeMap<&str, &str> = common.iter().chain(more).copied().collect();
    Config::from_vars(vars).unwrap()
}

/// What calls of so many bytes on four ranks do.
fn said(comm: &Communicator, collective: Collective, bytes: usize) -> Result<Explanation> {
    let blocks =
        if collective.name().contains("gather") || collective.name().contains("scatter") { 4 } else { 1 };
    comm.explain(collective, Dtype::I64, bytes / 8 / blocks, Rank(0))
}

/// All-reduces, all-gathers and broadcasts of several lengths, each element compared.
fn collectives(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    for count in [1, 512, 40_003, 200_000] {
        let value = |rank: u32, i: usize| (i as i64).wrapping_mul(31) ^ i64::from(rank) << 40;
        let own: Vec<i64> = (0..count).map(|i| value(comm.rank().0, i)).collect();
        let mut sum = own.clone();
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert!((0..count).all(|i| sum[i] == (0..n).map(|rank| value(rank, i)).sum::<i64>()), "{count}");
        let mut all = vec![0; count * n as usize];
        comm.all_gather(&own, &mut all)?;
        assert!((0..all.len()).all(|i| all[i] == value((i / count) as u32, i % count)), "{count}");
        let mut data = own;
        comm.broadcast(&mut data, Rank(1))?;
        assert!((0..count).all(|i| data[i] == value(1, i)), "{count}");
    }
    Ok(())
}

#[test]
fn every_version_of_nccls_tuners_decides_and_collectives_are_right() {
    for version in 2..=6 {
        let file = toy_tuner(&format!("comm_tuner_{version}"), &[version], &[]);
        let config = config(&[("NCCL_TUNER_PLUGIN", &file)]);
        let ranks = local::run_with(&config, 4, |comm| {
            collectives(&comm)?;
            let wanted = [
                (Collective::AllReduce, Algorithm::DoubleTree),
                (Collective::AllGather, Algorithm::Pat),
                (Collective::ReduceScatter, Algorithm::Pat),
                (Collective::Broadcast, Algorithm::Binomial),
            ];
            for (collective, algorithm) in wanted {
                for bytes in [64, 5000 * 8, 1 << 20] {
                    let said = said(&comm, collective, bytes)?;
                    assert_eq!((said.choice.algorithm, said.choice.channels), (algorithm, 3), "{said}");
                    assert_eq!(said.tuner, Some(format!("Toy{version}")));
                    let text = said.to_string();
                    assert!(text.contains(&format!("; by the tuner plugin Toy{version}")), "{text}");
                    assert!(text.contains("not ring: the tuner plugin advises another"), "{text}");
                }
                // Where it has no opinion the model decides.
                assert_eq!(said(&comm, collective, 2 << 20)?.tuner, None);
            }
            assert_eq!(said(&comm, Collective::AllToAll, 4096)?.tuner, None);
            Ok(said(&comm, Collective::AllReduce, 1 << 20)?.chunk_count)
        });
        let chunks = ranks.unwrap_or_else(|error| panic!("version {version}: {error}"));
        // It asks for 8,200 bytes; cut to what is a number of cache lines.
        assert!(version < 6 || chunks == [8192 / 8; 4], "{chunks:?}");
        assert_eq!(ask(&file, "toy_tuner_inits", version), 1, "rank 0 alone asks");
        assert_eq!(ask(&file, "toy_tuner_live", version), 0);
    }
}

#[test]
fn splits_ask_anew_and_one_rank_asks_nobody() {
    let file = toy_tuner("comm_tuner_split", &[5], &[]);
    let config = config(&[("CCL_TUNER_PLUGIN", &file)]);
    local::run_with(&config, 4, |comm| {
        let pair = comm.split(Some(comm.rank().0 / 2), 0)?.unwrap();
        assert_eq!(
            pair.explain(Collective::AllReduce, Dtype::I64, 8, Rank(0))?.tuner.as_deref(),
            Some("Toy5")
        );
        collectives(&pair)?;
        let alone = comm.split(Some(comm.rank().0), 0)?.unwrap();
        assert_eq!(alone.explain(Collective::AllReduce, Dtype::I64, 8, Rank(0))?.tuner, None);
        Ok(())
    })
    .unwrap();
    assert_eq!(ask(&file, "toy_tuner_inits", 5), 3);
}

#[test]
fn the_users_wish_stands_above_the_tuner_and_a_tuning_file_below() {
    let file = toy_tuner("comm_tuner_wish", &[6], &[]);
    let choice = |more: &[(&str, &str)]| {
        let plugin = [("CCL_TUNER_PLUGIN", file.as_str())];
        let config = config(&[&plugin, more].concat());
        let all = local::run_with(&config, 4, |comm| {
            collectives(&comm)?;
            let said = said(&comm, Collective::AllReduce, 4096)?;
            Ok((said.choice.algorithm, said.tuner.is_some()))
        });
        let all = all.unwrap();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        all[0]
    };
    assert_eq!(choice(&[("CCL_ALGO", "ring")]), (Algorithm::Ring, false));
    assert_ne!(choice(&[("CCL_ALGO", "all_reduce:ring,rabenseifner")]).0, Algorithm::DoubleTree);
    let tuning = format!("{}/wish.toml", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&tuning, "[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\n").unwrap();
    assert_eq!(choice(&[("CCL_TUNING_FILE", &tuning)]), (Algorithm::DoubleTree, true));
    assert_eq!(
        choice(&[("CCL_TUNING_FILE", &tuning), ("CCL_TUNER_PLUGIN", "none")]),
        (Algorithm::Ring, false)
    );
}

#[test]
fn a_tuner_that_goes_wrong_leaves_the_choice_to_the_model() {
    let plain = choices(&config(&[("CCL_TUNER_PLUGIN", "none")]));
    for (fault, version) in [
        ("-DTOY_FAULT=1", 4),
        ("-DTOY_FAULT=2", 3),
        ("-DTOY_FAULT=3", 6),
        ("-DTOY_FAULT=5", 2),
        ("-DTOY_FAULT=5", 5),
    ] {
        let file = toy_tuner(&format!("comm_tuner_bad_{version}_{}", &fault[12..]), &[version], &[fault]);
        assert_eq!(choices(&config(&[("CCL_TUNER_PLUGIN", &file)])), plain, "{fault}");
        assert_eq!(ask(&file, "toy_tuner_live", version), 0);
    }
    assert_eq!(choices(&config(&[("CCL_TUNER_PLUGIN", "/no/such/tuner.so")])), plain);
}

#[test]
fn a_tuner_that_does_not_return_is_left_behind_and_not_asked_again() {
    let file = toy_tuner("comm_tuner_late", &[3], &["-DTOY_FAULT=4"]);
    let config = config(&[("CCL_TUNER_PLUGIN", &file), ("CCL_TIMEOUT", "4s")]);
    let started = Instant::now();
    let choice = choices(&config);
    assert!(choice.iter().all(|(_, tuner)| tuner.is_none()), "{choice:?}");
    let first = started.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&first), "{first:?}");
    let again = Instant::now();
    assert_eq!(choices(&config), choice);
    assert!(again.elapsed() < Duration::from_secs(2), "{:?}", again.elapsed());
    assert_eq!(ask(&file, "toy_tuner_inits", 3), 1);
}

#[test]
fn without_a_tuner_of_its_own_the_library_of_the_network_is_searched() {
    let both = [object("net_with_tuner", "net", 9, &[]), object("net_with_tuner", "tuner", 4, &[])];
    let both = link("net_with_tuner", &both);
    let tuner = |more: &[(&str, &str)]| {
        let config = config(&[&[("CCL_NET_PLUGIN", both.as_str())], more].concat());
        choices(&config)[0].1.clone()
    };
    assert_eq!(tuner(&[]).as_deref(), Some("Toy4"));
    assert_eq!(tuner(&[("CCL_TUNER_PLUGIN", "/no/such/tuner.so")]).as_deref(), Some("Toy4"));
    assert_eq!(tuner(&[("NCCL_TUNER_PLUGIN", "None")]), None);
    let own = toy_tuner("tuner_of_its_own", &[2], &[]);
    assert_eq!(tuner(&[("CCL_TUNER_PLUGIN", &own)]).as_deref(), Some("Toy2"));
    let only_network = toy("net_without_tuner", 9, &[]);
    assert_eq!(tuner(&[("CCL_NET_PLUGIN", &only_network)]), None);
}

/// What small all-reduces and all-gathers do on two ranks, and by whom.
fn choices(config: &Config) -> Vec<(Algorithm, Option<String>)> {
    let all = local::run_with(config, 2, |comm| {
        collectives(&comm)?;
        let of = |collective| comm.explain(collective, Dtype::I64, 512, Rank(0));
        let said = [of(Collective::AllReduce)?, of(Collective::AllGather)?, of(Collective::Broadcast)?];
        Ok(said.map(|said| (said.choice.algorithm, said.tuner)).to_vec())
    });
    let all = all.unwrap();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    all[0].clone()
}
