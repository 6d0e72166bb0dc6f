//! What a call would do, and why.

use std::fmt;

use ccl_plan::select::{Candidate, Choice};
use ccl_plan::{Collective, Dtype, Rank};

use super::Communicator;
use crate::error::Result;
use crate::exec::{Carried, Reach};
use crate::transport::Path;

/// What a communicator would do with a call. The same on all ranks, but for `paths` and whether there is a `protocol`.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The call's collective.
    pub collective: Collective,
    /// The number of ranks.
    pub n: u32,
    /// The hosts that they are on, as far as the choice goes by them: 1 where the ranks of a host do not follow each other, or
    /// every rank is on one of its own.
    pub nodes: u32,
    /// How the farthest peer is reached.
    pub reach: Reach,
    /// Cores that all ranks share; 0 if they are not on one host, or have devices of their own.
    pub cores: u32,
    /// The size that the choice goes by, in bytes: the vector, or all n blocks.
    pub bytes: u64,
    /// What was chosen.
    pub choice: Choice,
    /// The tuner plugin whose advice that was.
    pub tuner: Option<String>,
    /// Elements that one Move takes at a time.
    pub chunk_count: usize,
    /// How data gets from rank to rank.
    pub carried: Carried,
    /// The protocol that edges follow, on a rank that works on a device; `switch` where what all are sent goes through
    /// multicast memory, `special` where a kernel of its own does without edges.
    pub protocol: Option<&'static str>,
    /// What the cost model predicts, in nanoseconds.
    pub predicted_ns: f64,
    /// Every algorithm of the collective: the chosen one first, then by predicted time, with why they lost.
    pub candidates: Vec<Candidate>,
    /// The way to each of the other ranks.
    pub paths: Vec<(Rank, Path)>,
}

impl Communicator {
    /// Says what a call of `count` elements of `dtype` would do: as in [`Request`](crate::Request), and for
    /// v-forms of the average block. `root` is ignored where there is none.
    ///
    /// Local, and never blocks. Whether the buffers of a call are mapped shows only when it is made: until then
    /// [`Carried::Mapped`] says that they may be.
    ///
    /// # Errors
    ///
    /// A root that is no rank, settings that leave the collective without an algorithm that fits, or a
    /// communicator that is being dropped.
    pub fn explain(
        &self,
        collective: Collective,
        dtype: Dtype,
        count: usize,
        root: Rank,
    ) -> Result<Explanation> {
        let ((explained, tuner), (candidates, protocol), (reach, cores, nodes)) =
            self.with_engine(|engine| {
                let explained = engine.explain(collective, dtype, count, root)?;
                let candidates = engine.plans().selection().explain(collective, explained.bytes);
                let inputs = engine.plans().selection().inputs();
                let nodes = inputs.known_nodes().map_or(1, |nodes| nodes.sizes().len() as u32);
                let advice = engine.plans().selection().advice_on(collective, explained.bytes);
                let tuner = advice.map(|_| inputs.advice.by.clone());
                let way = (collective, dtype, count);
                let protocol = engine.device().map(|device| device.way(way, explained.choice.algorithm));
                Ok((
                    (explained, tuner),
                    (candidates, protocol),
                    (engine.plans().reach(), inputs.rates.cores, nodes),
                ))
            })?;
        let others = (0..self.n).map(Rank).filter(|rank| *rank != self.rank);
        Ok(Explanation {
            collective,
            n: self.n,
            nodes,
            reach,
            cores,
            bytes: explained.bytes,
            choice: explained.choice,
            tuner,
            chunk_count: explained.chunk_count,
            carried: explained.carried,
            protocol,
            predicted_ns: candidates.first().map_or(0.0, |chosen| chosen.time_ns),
            candidates,
            paths: others.map(|rank| Ok((rank, self.path(rank)?))).collect::<Result<_>>()?,
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { collective, n, bytes, choice, chunk_count, carried, predicted_ns, .. } = self;
        let channels = choice.channels;
        write!(f, "{collective} of {bytes} bytes with {n} ranks")?;
        if self.nodes > 1 {
            write!(f, " on {} nodes", self.nodes)?;
        }
        write!(f, ": {} on {channels} channel", choice.algorithm)?;
        if channels != 1 {
            f.write_str("s")?;
        }
        write!(f, ", {chunk_count} elements at a time, {carried}")?;
        if let Some(protocol) = self.protocol {
            write!(f, " under {protocol}")?;
        }
        write!(f, "; predicted {:.2} µs", predicted_ns / 1e3)?;
        if let Some(tuner) = &self.tuner {
            write!(f, "; by the tuner plugin {tuner}")?;
        }
        for candidate in self.candidates.iter().skip(1) {
            let (time_us, reason) = (candidate.time_ns / 1e3, candidate.standing.reason());
            write!(f, "\n  not {}: {reason} ({time_us:.2} µs)", candidate.algorithm)?;
        }
        for (rank, path) in &self.paths {
            write!(f, "\n  to rank {rank}: {path}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ccl_plan::{Algorithm, Shape};

    use super::*;
    use crate::discover::processor::is_of_amd;
    use crate::exec::engine::RAN;
    use crate::exec::step::{LENT, TOLD};
    use crate::reference::{Case, Counts};
    use crate::{Buffers, Config, ReduceOp, Request};

    /// Xorshift, by Marsaglia.
    fn random_below(state: &Cell<u64>, limit: u64) -> u64 {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x % limit
    }

    /// 500 random calls on three ranks, each explained first; what the engine then ran is what was said.
    #[test]
    fn explanations_are_what_runs() {
        let config = Config::builder().set("CCL_TUNING_FILE", "none").build().unwrap();
        let choices = crate::local::run_with(&config, 3, |comm| {
            let (state, mut seen) = (Cell::new(2026), std::collections::HashSet::new());
            let below = |limit: usize| random_below(&state, limit as u64) as usize;
            let even = |collective: &Collective| !collective.uneven() && !collective.is_message();
            let even: Vec<Collective> = Collective::ALL.into_iter().filter(even).collect();
            for _ in 0..500 {
                let collective = even[below(even.len())];
                let dtype = Dtype::ALL[below(Dtype::ALL.len())];
                let count = below(1 << below(18));
                let root = Rank(below(3) as u32);
                let case = Case {
                    collective,
                    dtype,
                    op: ReduceOp::Max,
                    n: 3,
                    root,
                    scalar: 1.0,
                    counts: Counts::Even(count),
                };
                let said = comm.explain(collective, dtype, count, root)?;
                let size = dtype.size_bytes();
                let send = vec![0; case.send_count(comm.rank()) * size];
                let mut recv = vec![0; case.recv_count(comm.rank()) * size];
                RAN.with(|ran| *ran.borrow_mut() = None);
                comm.run(Request {
                    collective,
                    dtype,
                    reduce: ReduceOp::Max.into(),
                    count,
                    root,
                    buffers: Buffers::Separate { send: &send, recv: &mut recv },
                    blocks: None,
                })?;
                let name = format!("{collective}.{}", said.choice.algorithm);
                let expected = (name, said.choice.channels, said.chunk_count, said.carried);
                assert_eq!(RAN.with(|ran| ran.borrow().clone()), Some(expected), "{said}");
                seen.insert((collective, said.choice.algorithm));
            }
            Ok(seen.len())
        });
        assert!(choices.unwrap().iter().all(|seen| *seen >= 10));
    }

    /// These algorithms, in slots or read by processes: threads map all of each other's memory.
    fn unmapped(algorithms: &str) -> Config {
        let usual = Config::builder().set("CCL_TUNING_FILE", "none").set("CCL_MAPPED_BYTES", "0");
        usual.set("CCL_TIMEOUT", "20").set("CCL_ALGO", algorithms).build().unwrap()
    }

    #[test]
    fn ranks_of_one_process_choose_plans_that_work_in_their_buffers() {
        let chosen = |algorithms: &str| {
            let usual = Config::builder().set("CCL_TUNING_FILE", "none").set("CCL_TIMEOUT", "20");
            let config = usual.set("CCL_ALGO", algorithms).build().unwrap();
            let said = crate::local::run_with(&config, 6, |comm| {
                let all = [Collective::AllReduce, Collective::ReduceScatter, Collective::Broadcast];
                let said = all.map(|collective| comm.explain(collective, Dtype::I8, 1 << 20, Rank(0)));
                said.into_iter()
                    .map(|said| said.map(|s| (s.choice.algorithm, s.carried)))
                    .collect::<Result<Vec<_>>>()
            });
            said.unwrap()
        };
        let mapped = [Algorithm::TwoShot, Algorithm::Direct, Algorithm::Direct].map(|a| (a, Carried::Mapped));
        assert!(chosen("").iter().all(|said| *said == mapped));
        for said in chosen("allreduce:ring") {
            assert_eq!(said[0].0, Algorithm::Ring, "what the user asks for");
            assert_eq!(said[1..], mapped[1..]);
        }
    }

    #[test]
    fn what_is_slower_to_read_directly_goes_through_slots() {
        let config = unmapped("");
        // On a processor of AMD that is everything, on others some.
        let reads = !is_of_amd();
        for n in [2, 4] {
            let lent = crate::local::run_with(&config, n, |comm| {
                let carried = |collective: &Collective| {
                    let count = (4 << 20) / if collective.input() == Shape::Whole { 1 } else { n as usize };
                    Ok((*collective, comm.explain(*collective, Dtype::I8, count, Rank(1))?.carried))
                };
                Collective::ALL.iter().map(carried).collect::<Result<Vec<_>>>()
            });
            for said in lent.unwrap() {
                let lent = said.into_iter().filter(|(_, carried)| *carried == Carried::Lent);
                let lent: Vec<Collective> = lent.map(|(collective, _)| collective).collect();
                let gathers = [Collective::AllGather, Collective::AllGatherV];
                let slots = [Collective::AllReduce, Collective::Broadcast, Collective::Reduce];
                assert!(gathers.iter().all(|collective| lent.contains(collective) == reads), "{n} {lent:?}");
                assert!(slots.iter().all(|collective| !lent.contains(collective)), "{n} {lent:?}");
                assert_eq!(lent.contains(&Collective::Scatter), reads && n > 2, "{n} {lent:?}");
                for collective in [Collective::AllToAll, Collective::Send] {
                    assert_eq!(lent.contains(&collective), reads, "{n} {collective} {lent:?}");
                }
            }
        }
    }

    /// How many messages each of four ranks has lent, and told of a slot that another message filled, after `calls`.
    fn handed(calls: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<(u64, u64)> {
        let config = unmapped("direct,two_shot");
        let ranks = crate::local::run_with(&config, 4, |comm| {
            LENT.set(0);
            TOLD.set(0);
            calls(&comm)?;
            Ok((LENT.get(), TOLD.get()))
        });
        ranks.unwrap()
    }

    #[test]
    fn one_slot_serves_all_receivers_of_the_same() {
        let chunks = |comm: &Communicator, collective, count: usize| {
            let said = comm.explain(collective, Dtype::I8, count, Rank(0)).unwrap();
            count.div_ceil(said.chunk_count) as u64
        };
        let told = handed(|comm| {
            let mut data = vec![1i8; 98_304];
            comm.broadcast(&mut data, Rank(0))?;
            let expected =
                if comm.rank() == Rank(0) { 2 * chunks(comm, Collective::Broadcast, 98_304) } else { 0 };
            assert_eq!(TOLD.get(), expected);
            let mut gathered = vec![0; 4 * data.len()];
            comm.all_gather(&data, &mut gathered)?;
            let expected = expected + 2 * chunks(comm, Collective::AllGather, 98_304);
            assert_eq!(TOLD.get(), expected);
            comm.all_reduce_in_place(&mut data, ReduceOp::Max)?;
            assert_eq!(TOLD.get(), expected + 2);
            // What fits in or beside a line needs no slot.
            comm.broadcast(&mut data[..4096], Rank(0))?;
            assert_eq!(TOLD.get(), expected + 2);
            Ok(())
        });
        assert!(told.iter().all(|(lent, _)| *lent == 0), "{told:?}");
    }

    #[test]
    fn messages_of_lone_senders_are_lent_however_long() {
        // With a core for each rank they are copied, as they are on a processor of AMD.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for bytes in [1 << 20, 4 << 20] {
            let lent = handed(|comm| {
                let (data, mut other) = (vec![1i8; bytes], vec![0i8; bytes]);
                match comm.rank().0 {
                    0 => comm.send(&data, Rank(1)),
                    1 => comm.recv(&mut other, Rank(0)),
                    _ => Ok(()),
                }
            });
            let expected = u64::from(cores < 4 && !is_of_amd());
            assert_eq!(lent, [(expected, 0), (0, 0), (0, 0), (0, 0)], "{bytes}");
        }
    }

    #[test]
    fn an_explanation_reads_well() {
        let config = Config::builder().set("CCL_TUNING_FILE", "none").build().unwrap();
        let texts = crate::local::run_with(&config, 2, |comm| {
            comm.explain(Collective::AllReduce, Dtype::F32, 4, Rank(0)).map(|said| said.to_string())
        });
        for (rank, text) in (0..).zip(texts.unwrap()) {
            assert!(text.starts_with("all_reduce of 16 bytes with 2 ranks: "), "{text}");
            assert!(text.contains("on 1 channel, 4 elements at a time, in slots; predicted"), "{text}");
            assert!(text.contains("\n  not ring: takes longer ("), "{text}");
            assert!(text.contains(&format!("\n  to rank {}: loopback (", 1 - rank)), "{text}");
        }
    }
}
