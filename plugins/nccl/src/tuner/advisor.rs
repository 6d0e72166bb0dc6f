//! A context over a plugin.

use std::ffi::{CStr, c_int, c_void};

use ccl_plugin::tuner::{Call, Candidate, Comm, Tuner};
use ccl_plugin::{CclHostV1, Error, Result, Settings};

use super::calls::{Question, Told};
use super::costs::{Asked, Costs};
use super::plugin::Plugin;
use crate::net::logger::Listening;

/// A plugin that advises one communicator.
pub(crate) struct Advisor {
    plugin: &'static Plugin,
    raw: *mut c_void,
    chunk_bytes: u64,
    /// Whether it was said that the plugin wants what there is not.
    said: bool,
    /// Left after the context has ended.
    _listening: Listening,
}

impl Advisor {
    /// A context; `host` hears what the plugin logs.
    ///
    /// # Safety
    ///
    /// `host` is null or a table that is valid until the context is finalised.
    pub(crate) unsafe fn start(
        plugin: &'static Plugin,
        comm: &Comm<'_>,
        host: *const CclHostV1,
    ) -> Result<Advisor> {
        // SAFETY: the caller's contract: a context keeps it for as long as it lives, and no longer.
        let listening = unsafe { plugin.slot.enter(host) };
        let told = Told {
            comm_id: comm.comm_id,
            nranks: comm.nranks,
            nnodes: comm.nnodes,
            min_node_ranks: comm.min_node_ranks,
            max_node_ranks: comm.max_node_ranks,
        };
        let raw = plugin.make_context(&told)?;
        Ok(Advisor { plugin, raw, chunk_bytes: comm.chunk_bytes, said: false, _listening: listening })
    }

    /// The chunk that the plugin wants of what it has made the cheapest.
    fn advise_chunk(
        &self,
        asked: Question,
        costs: &Costs,
        best: usize,
        candidates: &mut [Candidate<'_>],
    ) -> Result<()> {
        let Some((row, column)) = costs.cell_of(best) else { return Ok(()) };
        let (channels, bytes) = (narrow(candidates[best].channels), self.chunk_bytes as usize);
        // SAFETY: a context that is not ended.
        let answer = unsafe { self.plugin.calls.chunk_size(self.raw, asked, (row, column, channels), bytes) };
        let Some((result, chunk)) = answer else { return Ok(()) };
        self.plugin.outcome("getChunkSize", result)?;
        if chunk != bytes {
            candidates[best].chunk_bytes = chunk as u64;
        }
        Ok(())
    }
}

impl Tuner for Advisor {
    const NAME: &'static CStr = c"nccl";

    /// Nobody could say which plugin is meant; see [`Plugin::init`].
    fn init(_: &Comm<'_>, _: &Settings) -> Result<Advisor> {
        Err(Error::unsupported("init without a plugin of NCCL's"))
    }

    fn advise(&mut self, call: &Call<'_>, candidates: &mut [Candidate<'_>]) -> Result<()> {
        let Some((_, collective)) = COLLECTIVES.iter().find(|(name, _)| *name == call.collective) else {
            return Ok(());
        };
        let asked = Question {
            collective: *collective,
            bytes: call.bytes as usize,
            pipelined: narrow(call.pipelined),
            registered: call.mapped.into(),
        };
        let (mut costs, mut channels) = (Costs::new(candidates), 0);
        // SAFETY: a context that is not ended.
        let result = unsafe { self.plugin.calls.info(self.raw, asked, &mut costs, &mut channels) };
        self.plugin.outcome("getCollInfo", result)?;
        if costs.apply(candidates) == Asked::ForWhatIsNotOffered {
            // The channels and chunks that it wants are those of another algorithm.
            if !self.said {
                self.said = true;
                self.plugin.say_not_offered();
            }
            return Ok(());
        }
        let Some(best) = cheapest(candidates) else { return Ok(()) };
        if let Some(channels) = u32::try_from(channels).ok().filter(|channels| *channels > 0) {
            candidates[best].channels = channels;
        }
        self.advise_chunk(asked, &costs, best, candidates)
    }
}

impl Drop for Advisor {
    fn drop(&mut self) {
        self.plugin.end_context(self.raw);
    }
}

/// The first of those that cost least and are not forbidden.
fn cheapest(candidates: &[Candidate<'_>]) -> Option<usize> {
    let usable = candidates.iter().enumerate().filter(|(_, candidate)| candidate.cost_ns >= 0.0);
    usable.min_by(|(_, a), (_, b)| a.cost_ns.total_cmp(&b.cost_ns)).map(|(place, _)| place)
}

fn narrow(number: u32) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

/// Those that NCCL asks its tuners about, with its numbers.
const COLLECTIVES: [(&str, c_int); 5] =
    [("broadcast", 0), ("reduce", 1), ("all_gather", 2), ("reduce_scatter", 3), ("all_reduce", 4)];
