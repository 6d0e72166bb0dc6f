//! The host's side of the contract: contexts of a tuner, and questions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ccl_plugin_host::tuner::{Call, Candidate, Comm, TunerContext};
use ccl_plugin_host::{LogFn, TunerPlugin};

use crate::breach::{Outcome, Stop, breach};
use crate::pulse::Pulse;

/// A tuner, and what it has said.
pub(crate) struct Stage {
    pub(super) plugin: TunerPlugin,
    pub(super) settings: Vec<(String, String)>,
    pub(super) pulse: Arc<Pulse>,
    said: Arc<Mutex<Vec<String>>>,
}

/// A context that is noted while it ends.
pub(super) struct Context<'a> {
    raw: Option<TunerContext>,
    stage: &'a Stage,
}

impl Stage {
    pub(super) fn new(plugin: TunerPlugin, settings: Vec<(String, String)>, pulse: Arc<Pulse>) -> Stage {
        Stage { plugin, settings, pulse, said: Arc::default() }
    }

    /// A context for so many ranks.
    pub(super) fn context(&self, nranks: u32) -> Outcome<Context<'_>> {
        let settings: Vec<_> =
            self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let said = Arc::clone(&self.said);
        let log = LogFn::new(move |line| lock(&said).push(line.message.to_owned()));
        let comm = comm(nranks);
        match self.pulse.during("init", || self.plugin.init(&comm, &settings, log)) {
            Ok(raw) => Ok(Context { raw: Some(raw), stage: self }),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// How long anything that must come may take.
    pub(super) fn patience(&self) -> Duration {
        self.pulse.patience
    }

    /// What the tuner has logged so far.
    pub(super) fn said(&self) -> Vec<String> {
        lock(&self.said).clone()
    }

    fn failed<T>(&self, error: &str) -> Outcome<T> {
        let last = self.said().pop().map(|line| format!("; it said: {line}")).unwrap_or_default();
        breach(format!("expected no error, found {error}{last}"))
    }
}

impl Context<'_> {
    /// What the tuner makes of these candidates.
    pub(super) fn advise<'c>(
        &mut self,
        call: &Call<'_>,
        candidates: &[Candidate<'c>],
    ) -> Outcome<Vec<Candidate<'c>>> {
        let mut advised = candidates.to_vec();
        let Some(raw) = &mut self.raw else { return Err(Stop::Skip("the context has ended".into())) };
        match self.stage.pulse.during("advise", || raw.advise(call, &mut advised)) {
            Ok(()) => Ok(advised),
            Err(error) => {
                self.stage.failed(&format!("{error} for {} of {} bytes", call.collective, call.bytes))
            }
        }
    }

    /// As [`Context::advise`] of the usual candidates, whose costs must stay numbers.
    pub(super) fn numbers(&mut self, collective: &str, bytes: u64) -> Outcome<Vec<Candidate<'static>>> {
        let advised = self.advise(&call(collective, bytes), &candidates())?;
        match advised.iter().find(|one| one.cost_ns.is_nan()) {
            None => Ok(advised),
            Some(one) => breach(format!(
                "expected costs that are numbers, found one that is none for {} of {collective} of {bytes} bytes",
                one.algorithm
            )),
        }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        self.stage.pulse.during("finalize", || drop(self.raw.take()));
    }
}

/// A communicator of so many ranks.
pub(super) fn comm(nranks: u32) -> Comm<'static> {
    Comm {
        rank: 0,
        nranks,
        nnodes: 2,
        comm_id: u64::from(nranks) << 32 | 5,
        name: None,
        reach: "network",
        min_node_ranks: nranks / 2,
        max_node_ranks: nranks.div_ceil(2),
        max_channels: 8,
        chunk_bytes: 256 << 10,
    }
}

/// A question about one size.
pub(super) fn call(collective: &str, bytes: u64) -> Call<'_> {
    let (least_bytes, most_bytes) = (bytes - bytes / 4, bytes);
    Call { collective, dtype: None, bytes, least_bytes, most_bytes, pipelined: 1, mapped: false }
}

/// What there usually is to choose from.
pub(super) fn candidates() -> Vec<Candidate<'static>> {
    let of = |(place, algorithm): (usize, &'static str)| candidate(algorithm, 1000.0 * (place + 1) as f64);
    ["ring", "two_shot", "double_tree", "binomial", "pat", "swing"].into_iter().enumerate().map(of).collect()
}

pub(super) fn candidate(algorithm: &str, cost_ns: f64) -> Candidate<'_> {
    Candidate { algorithm, protocol: None, cost_ns, channels: 1, chunk_bytes: 0 }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every collective that a host of this version may ask about.
pub(super) const COLLECTIVES: [&str; 13] = [
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "all_gather_v",
    "reduce_scatter_v",
    "gather_v",
    "scatter_v",
    "barrier",
];
