//! A trial: two ranks as threads, an all-reduce through memory, and one through the network.

use std::time::{Duration, Instant};

use ccl::{Communicator, Config, Rank, ReduceOp, Result, local};

use super::Finding;

/// Runs both.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    [("memory", "0"), ("network", "1")].map(|(what, avoid)| trial(config, what, avoid)).into()
}

fn trial(config: &Config, what: &'static str, avoid_memory: &str) -> Finding {
    let start = Instant::now();
    let outcome = with(config, avoid_memory).and_then(|config| local::run_with(&config, 2, rank));
    match outcome {
        Err(error) => Finding::problem("trial", what, "failed", error.to_string()),
        Ok(ranks) => {
            let time = ranks.iter().map(|(time, _)| *time).max().unwrap_or_default();
            let found = format!("all-reduce of 8 bytes: {:.1} µs", time.as_secs_f64() * 1e6);
            let path = ranks.into_iter().map(|(_, path)| path).next().unwrap_or_default();
            Finding::ok("trial", what, found, format!("{path}; {} ms in all", start.elapsed().as_millis()))
        }
    }
}

/// The settings of the trial: those of `config`, with a short deadline.
fn with(config: &Config, avoid_memory: &str) -> Result<Config> {
    let set = config.resolved().iter().filter(|resolved| !resolved.value.is_empty());
    let pairs = set.map(|resolved| (resolved.setting.name, resolved.value.clone()));
    let placed =
        ["CCL_RANK", "CCL_NRANKS", "CCL_LOCAL_RANK", "CCL_LOCAL_NRANKS", "CCL_SECRET", "CCL_CONF_FILE"];
    let builder = pairs
        .filter(|(name, _)| !placed.contains(name))
        .fold(Config::builder(), |builder, (name, value)| builder.set(name, value));
    builder
        .set("CCL_SHM_DISABLE", avoid_memory)
        .set("CCL_TIMEOUT", "10s")
        .set("CCL_INIT_TIMEOUT", "10s")
        .build()
}

/// One rank's part: the time of a call, and the path to the other.
fn rank(comm: Communicator) -> Result<(Duration, String)> {
    let mine = [f64::from(comm.rank().0) + 1.0];
    let mut sum = [0.0];
    let mut once = || comm.all_reduce(&mine, &mut sum, ReduceOp::Sum);
    (0..WARM_UP).try_for_each(|_| once())?;
    let start = Instant::now();
    (0..CALLS).try_for_each(|_| once())?;
    let time = start.elapsed() / CALLS;
    if sum != [3.0] {
        return Err(ccl::Error::bug(format!("expected a sum of 3, found {}", sum[0])));
    }
    Ok((time, comm.path(Rank(1 - comm.rank().0))?.to_string()))
}

const WARM_UP: u32 = 20;
const CALLS: u32 = 200;
