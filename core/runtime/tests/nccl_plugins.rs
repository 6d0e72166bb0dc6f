//! Communicators over network plugins that were made for NCCL.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../plugins/nccl/tests/common/mod.rs"]
mod toys;

use std::time::{Duration, Instant};

use ccl::transport::PathKind;
use ccl::{Communicator, Config, Rank, ReduceOp, Result, local};
// Calls functions of the plugins in `toys`.
use libloading as _;
use toys::{ask, toy};

fn config(more: &[(&str, &str)]) -> Config {
    config_with("120s", more)
}

fn config_with(timeout: &str, more: &[(&str, &str)]) -> Config {
    let common = [("CCL_SHM_DISABLE", "1"), ("CCL_TIMEOUT", timeout)];
    Config::from_vars(common.iter().chain(more).copied()).unwrap()
}

/// All-reduces of several lengths, each element compared with the sum of what the ranks gave.
fn all_reduce(comm: &Communicator, n: u32) -> Result<()> {
    for count in [1, 1000, 100_003] {
        let value = |rank: u32, i: usize| (i as i64).wrapping_mul(31) ^ i64::from(rank) << 40;
        let mut sum: Vec<i64> = (0..count).map(|i| value(comm.rank().0, i)).collect();
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        let wrong = (0..count).filter(|i| sum[*i] != (0..n).map(|rank| value(rank, *i)).sum::<i64>()).count();
        assert_eq!(wrong, 0, "of {count} elements");
    }
    Ok(())
}

#[test]
fn every_version_carries_an_all_reduce() {
    for version in 6..=12 {
        let file = toy(&format!("nccl_reduce_{version}"), version, &[]);
        let config = config(&[("NCCL_NET_PLUGIN", &file)]);
        local::run_with(&config, 3, |comm| {
            all_reduce(&comm, 3)?;
            let path = comm.path(Rank((comm.rank().0 + 1) % 3))?;
            assert_eq!(path.kind, PathKind::Net);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("version {version}: {error}"));
        assert!(ask(&file, "toy_inits", version) >= if version < 11 { 1 } else { 4 }, "it was not used");
        assert_eq!(ask(&file, "toy_live", version), 0, "version {version} has objects left");
    }
}

#[test]
fn a_connection_that_never_comes_ends_at_the_deadline() {
    let at_the_deadline = |version| {
        let file = toy(&format!("nccl_nothing_{version}"), version, &["-DTOY_FAULT=5"]);
        let config = config_with("5s", &[("NCCL_NET_PLUGIN", &file)]);
        let started = Instant::now();
        let ended =
            local::try_run_with(&config, 2, |comm| comm.all_reduce_in_place(&mut [1f32; 100], ReduceOp::Sum));
        assert!(started.elapsed() < Duration::from_secs(60));
        let texts: Vec<String> =
            ended.unwrap().into_iter().map(|error| error.unwrap_err().to_string()).collect();
        let named = |text: &String| text.contains(&format!("network Toy{version}: poll_connect: expected a"));
        assert!(texts.iter().any(named), "{texts:?}");
    };
    std::thread::scope(|scope| [8, 11].map(|version| _ = scope.spawn(move || at_the_deadline(version))));
}

#[test]
fn a_plugin_whose_test_fails_ends_the_call_on_all_ranks() {
    let file = toy("nccl_broken", 10, &["-DTOY_FAULT=4"]);
    let config = config(&[("NCCL_NET_PLUGIN", &file)]);
    let ended =
        local::try_run_with(&config, 2, |comm| comm.all_reduce_in_place(&mut [1f32; 100], ReduceOp::Sum));
    let texts: Vec<String> = ended.unwrap().into_iter().map(|error| error.unwrap_err().to_string()).collect();
    assert!(
        texts.iter().any(|text| text.contains("network Toy10") && text.contains("ncclSystemError")),
        "{texts:?}"
    );
}

#[test]
fn without_a_plugin_that_works_there_is_an_error_and_no_fallback() {
    let file = toy("nccl_hopeless", 9, &["-DTOY_FAULT=2"]);
    let text = |spec: &str| {
        let config = config(&[("CCL_NET_PLUGIN", spec)]);
        ccl::network::choose(&config).map(|plugin| plugin.name()).map_err(|error| error.to_string())
    };
    let error = text(&file).unwrap_err();
    assert!(error.contains("no hardware of kind 42") && error.contains("CCL_NET_PLUGIN"), "{error}");
    assert_eq!(text("NONE").unwrap(), "socket");
    let good = toy("nccl_hopeful", 9, &[]);
    assert_eq!(text(&format!("{file},{good}")).unwrap(), "Toy9");
}
