//! Ranks as threads of this process.

use std::sync::Arc;

use ccl_plan::Rank;

use super::Communicator;
use crate::bootstrap::UniqueId;
use crate::config::Config;
use crate::error::{Error, Result};

/// Runs `body` on `n` ranks, each a thread of this process, with the environment's settings; what
/// each rank returned, in rank order.
///
/// # Errors
///
/// The first error of any rank, by rank order.
pub fn run<R: Send>(n: u32, body: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
    run_with(&Config::load()?, n, body)
}

/// [`run`] with given settings.
///
/// # Errors
///
/// As [`run`].
pub fn run_with<R: Send>(
    config: &Config,
    n: u32,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    try_run_with(config, n, body)?.into_iter().collect()
}

/// [`run_with`], but what each rank returned or failed with.
///
/// # Errors
///
/// Only if no rank could be started.
pub fn try_run_with<R: Send>(
    config: &Config,
    n: u32,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<Result<R>>> {
    if n == 1 {
        return Ok(vec![Communicator::alone(config).and_then(body)]);
    }
    let (id, body, config) = (Arc::new(UniqueId::generate_local(config)?), &body, &config);
    std::thread::scope(|scope| {
        let start = |rank| {
            let id = Arc::clone(&id);
            let builder = std::thread::Builder::new().name(format!("rank {rank}"));
            builder
                .spawn_scoped(scope, move || body(Communicator::init_rank(&id, Rank(rank), n, config)?))
                .map_err(|error| {
                    Error::system("start a thread for a rank", error, "raise the limit on threads")
                })
        };
        let threads = (0..n).map(start).collect::<Result<Vec<_>>>()?;
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<R>>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(threads.into_iter().map(join).collect())
    })
}
