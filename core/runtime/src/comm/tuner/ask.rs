//! Asking a tuner: for each collective that has a choice, and each range of sizes.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ccl_plan::select::{self, Advice, Advised, Choice, Selection};
use ccl_plan::{Collective, Rank};
use ccl_plugin_host::tuner::{Call, Candidate, Comm};
use ccl_plugin_host::{LogFn, LogLine, TunerPlugin};

use crate::config::Config;
use crate::exec::Reach;

/// What a tuner is told of a communicator.
#[derive(Clone, Debug)]
pub(in crate::comm) struct Facts {
    pub(in crate::comm) comm: Comm<'static>,
    /// Whether ranks may reach the buffers of all others.
    pub(in crate::comm) mapped: bool,
    pub(in crate::comm) settings: Vec<(&'static str, String)>,
}

impl Facts {
    /// `nodes` has the ranks of each host.
    pub(in crate::comm) fn new(
        (rank, n, comm_id): (Rank, u32, u64),
        nodes: &[u32],
        reach: Reach,
        max_channels: u16,
        chunk_bytes: usize,
        mapped: bool,
        config: &Config,
    ) -> Facts {
        let comm = Comm {
            rank: rank.0,
            nranks: n,
            nnodes: nodes.len() as u32,
            comm_id,
            name: None,
            reach: reach.name(),
            min_node_ranks: nodes.iter().copied().min().unwrap_or(n),
            max_node_ranks: nodes.iter().copied().max().unwrap_or(n),
            max_channels: max_channels.into(),
            chunk_bytes: chunk_bytes as u64,
        };
        let file = config.tuner_config_file().map(|file| ("config_file", file.display().to_string()));
        Facts { comm, mapped, settings: file.into_iter().collect() }
    }
}

/// A range of sizes of one collective, and what may serve it: first what would be chosen.
struct Question {
    collective: Collective,
    least: u64,
    most: u64,
    bytes: u64,
    usable: Vec<select::Candidate>,
}

/// What `plugin` advises. None, and one warning that names it, if it fails or does not return in time.
pub(super) fn ask(plugin: TunerPlugin, facts: Facts, selection: &Selection, limit: Duration) -> Advice {
    let (questions, said) = (questions(selection), Said::default());
    match consult_apart(plugin, facts, questions, &said, limit) {
        Ok(given) => {
            said.warn_each(plugin.name());
            let by = plugin.name().to_owned();
            tracing::info!(target: "ccl::comm::tuner", tuner = by, ranges = given.len(), "a tuner has advised");
            Advice { by, given }
        }
        Err(error) => {
            let tuner = plugin.name();
            tracing::warn!(
                target: "ccl::comm::tuner", tuner, error, said = said.joined(),
                "goes without the tuner plugin's advice: the cost model chooses",
            );
            Advice::default()
        }
    }
}

/// Asks on a thread of its own, so that a tuner that does not return holds up nobody for longer than `limit`.
fn consult_apart(
    plugin: TunerPlugin,
    facts: Facts,
    questions: Vec<Question>,
    said: &Said,
    limit: Duration,
) -> Result<Vec<Advised>, String> {
    let (sender, receiver) = mpsc::channel();
    let log = said.log();
    let consult = move || {
        // Nobody listens any more if it took too long.
        let _ = sender.send(consult(plugin, &facts, &questions, log));
    };
    let thread = thread::Builder::new().name("ccl-tuner".into()).spawn(consult);
    let thread = thread.map_err(|error| format!("no thread for it could be started: {error}"))?;
    match receiver.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => {
            plugin.give_up();
            Err(format!(
                "expected all of its advice within {limit:?}, found it still at work; it is not asked again"
            ))
        }
        answer => {
            // It has nothing left to do. That it panicked is told below.
            let _ = thread.join();
            answer.unwrap_or_else(|_| Err("asking it panicked".to_owned()))
        }
    }
}

fn consult(
    plugin: TunerPlugin,
    facts: &Facts,
    questions: &[Question],
    log: LogFn,
) -> Result<Vec<Advised>, String> {
    let settings: Vec<(&str, &str)> =
        facts.settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let mut context = plugin.init(&facts.comm, &settings, log).map_err(|error| error.to_string())?;
    let mut given: Vec<Advised> = Vec::new();
    for question in questions {
        let call = question.call(facts.mapped);
        let (before, mut after) = (question.candidates(), question.candidates());
        context.advise(&call, &mut after).map_err(|error| error.to_string())?;
        let Some(advised) = question.advised(&before, &after, facts.comm.max_channels) else { continue };
        match given.last_mut() {
            Some(last) if goes_on(last, &advised) => last.up_to = advised.up_to,
            _ => given.push(advised),
        }
    }
    Ok(given)
}

/// Every range of sizes for every collective that has a choice.
fn questions(selection: &Selection) -> Vec<Question> {
    let sizes: Vec<u64> = sizes().collect();
    let of = |collective: Collective| {
        let mut least = 0;
        let usable = selection.usable(collective, &sizes);
        let questions = sizes.iter().zip(usable).map(move |(bytes, usable)| {
            let most = if *bytes == LARGEST_BYTES { u64::MAX } else { *bytes };
            let question = Question { collective, least, most, bytes: *bytes, usable };
            least = most.saturating_add(1);
            question
        });
        questions.filter(|question| question.usable.len() > 1).collect::<Vec<_>>()
    };
    Collective::ALL.into_iter().flat_map(of).collect()
}

/// The powers of two, and the middles between them: the last sizes of the ranges.
fn sizes() -> impl Iterator<Item = u64> {
    let middles = |power: u64| [power, power + power / 2];
    (SMALLEST_POWER..LARGEST_BYTES.ilog2()).map(|power| 1 << power).flat_map(middles).chain([LARGEST_BYTES])
}

impl Question {
    fn call(&self, mapped: bool) -> Call<'static> {
        Call {
            collective: self.collective.name(),
            dtype: None,
            bytes: self.bytes,
            least_bytes: self.least,
            most_bytes: self.most,
            pipelined: 1,
            mapped,
        }
    }

    /// As the tuner sees them. What a tuning file prefers costs no more than anything else.
    fn candidates(&self) -> Vec<Candidate<'static>> {
        let least = self.usable.iter().map(|one| one.time_ns).fold(f64::INFINITY, f64::min);
        let cost = |place, time_ns| if place == 0 { least } else { time_ns };
        let candidate = |(place, one): (usize, &select::Candidate)| Candidate {
            algorithm: one.algorithm.name(),
            protocol: None,
            cost_ns: cost(place, one.time_ns),
            channels: one.channels.into(),
            chunk_bytes: 0,
        };
        self.usable.iter().enumerate().map(candidate).collect()
    }

    /// What the tuner has made of it; nothing if it has no opinion, or one that cannot be followed.
    fn advised(
        &self,
        before: &[Candidate<'_>],
        after: &[Candidate<'_>],
        max_channels: u32,
    ) -> Option<Advised> {
        if before == after || after.iter().any(|one| one.cost_ns.is_nan()) {
            return None;
        }
        let fit = after.iter().zip(&self.usable).filter(|(one, _)| one.cost_ns >= 0.0);
        let (advised, chosen) = fit.min_by(|(a, _), (b, _)| a.cost_ns.total_cmp(&b.cost_ns))?;
        let channels = advised.channels.clamp(1, max_channels.max(1)).try_into().unwrap_or(u16::MAX);
        Some(Advised {
            collective: self.collective,
            from: self.least,
            up_to: self.most,
            choice: Choice { algorithm: chosen.algorithm, channels },
            chunk_bytes: advised.chunk_bytes,
        })
    }
}

/// Whether `next` says the same of the sizes that follow.
fn goes_on(last: &Advised, next: &Advised) -> bool {
    let same = Advised { from: last.from, up_to: last.up_to, ..*next } == *last;
    same && last.up_to.checked_add(1) == Some(next.from)
}

/// Warnings of a tuner while it is asked; the rest of what it says goes to the log at once.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn log(&self) -> LogFn {
        let said = self.clone();
        LogFn::new(move |line| said.take(line))
    }

    fn take(&self, line: &LogLine<'_>) {
        let (plugin, message) = (line.plugin, line.message);
        match line.level {
            tracing::Level::ERROR | tracing::Level::WARN => {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message.to_owned());
            }
            tracing::Level::INFO => tracing::info!(target: "ccl::plugin", plugin, "{message}"),
            tracing::Level::DEBUG => tracing::debug!(target: "ccl::plugin", plugin, "{message}"),
            tracing::Level::TRACE => tracing::trace!(target: "ccl::plugin", plugin, "{message}"),
        }
    }

    fn warn_each(&self, plugin: &str) {
        for message in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            tracing::warn!(target: "ccl::plugin", plugin, "{message}");
        }
    }

    fn joined(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).join("; ")
    }
}

/// The smallest size asked for is 8 bytes, which stands for those below as well.
const SMALLEST_POWER: u32 = 3;
/// The largest, which stands for all above.
const LARGEST_BYTES: u64 = 1 << 39;

#[cfg(test)]
mod tests {
    use ccl_plan::Algorithm;

    use super::*;

    fn selection() -> Selection {
        let config = Config::builder().set("CCL_TUNING_FILE", "none").build().unwrap();
        crate::exec::selection(&config, 8, Reach::Memory, 8, &[]).unwrap()
    }

    /// What becomes of a question about an all-reduce if its candidates are changed so.
    fn after(change: impl Fn(&mut [Candidate<'static>])) -> Option<Choice> {
        let questions = questions(&selection());
        let asked = |one: &&Question| one.collective == Collective::AllReduce && one.bytes == 1 << 20;
        let question = questions.iter().find(asked).unwrap();
        let mut candidates = question.candidates();
        change(&mut candidates);
        question.advised(&question.candidates(), &candidates, 4).map(|advised| advised.choice)
    }

    fn named<'a>(candidates: &'a mut [Candidate<'static>], name: &str) -> &'a mut Candidate<'static> {
        candidates.iter_mut().find(|one| one.algorithm == name).unwrap()
    }

    #[test]
    fn every_size_is_asked_for_once() {
        let questions = questions(&selection());
        let mut next = 0;
        for question in questions.iter().filter(|one| one.collective == Collective::AllReduce) {
            assert_eq!(question.least, next);
            assert!((question.least..=question.most).contains(&question.bytes));
            next = question.most.wrapping_add(1);
        }
        assert_eq!(next, 0, "to the largest there is");
        let bytes: Vec<u64> = questions[..4].iter().map(|question| question.bytes).collect();
        assert_eq!(bytes, [8, 12, 16, 24]);
        assert!(questions.iter().all(|question| question.collective != Collective::Send));
    }

    #[test]
    fn the_least_cost_wins_and_channels_are_cut_to_what_there_is() {
        let choice = after(|all| (named(all, "ring").cost_ns, named(all, "ring").channels) = (0.0, 64));
        assert_eq!(choice, Some(Choice { algorithm: Algorithm::Ring, channels: 4 }));
        let choice = after(|all| all.iter_mut().for_each(|one| (one.cost_ns, one.channels) = (5.0, 0)));
        let chosen = selection().choose(Collective::AllReduce, 1 << 20).algorithm;
        assert_eq!(
            choice,
            Some(Choice { algorithm: chosen, channels: 1 }),
            "among equals what the host prefers"
        );
        let choice = after(|all| {
            all.iter_mut().for_each(|one| {
                if one.algorithm != "ring" {
                    one.forbid()
                }
            })
        });
        assert_eq!(choice.unwrap().algorithm, Algorithm::Ring);
    }

    #[test]
    fn no_opinion_and_one_that_cannot_be_followed_are_none() {
        assert_eq!(after(|_| ()), None);
        assert_eq!(after(|all| all.iter_mut().for_each(Candidate::forbid)), None);
        assert_eq!(after(|all| named(all, "ring").cost_ns = f64::NAN), None);
        assert!(after(|all| named(all, "ring").cost_ns = f64::INFINITY).is_some());
    }

    #[test]
    fn ranges_that_say_the_same_are_one() {
        let choice = Choice { algorithm: Algorithm::Ring, channels: 1 };
        let advised =
            |from, up_to| Advised { collective: Collective::Reduce, from, up_to, choice, chunk_bytes: 0 };
        assert!(goes_on(&advised(0, 8), &advised(9, 12)));
        assert!(!goes_on(&advised(0, 8), &advised(13, 16)), "nothing was said of what lies between");
        assert!(!goes_on(&advised(0, 8), &Advised { chunk_bytes: 64, ..advised(9, 12) }));
        assert!(!goes_on(&advised(0, u64::MAX), &advised(0, 8)));
    }
}
