//! Special host paths: collectives between buffers that all ranks have mapped.
//!
//! Where every rank can reach every other's buffers, nothing need travel through slots. Each rank says
//! where its buffers are and waits until all have entered; folds its part of the vector, from all send
//! buffers straight to all receive buffers that it belongs in; says that it is done, and waits until all
//! are. That is two messages per peer and one pass over the data, whatever n is.
//!
//! | plan shape | this rank folds or copies | to |
//! |---|---|---|
//! | all_reduce.two_shot | slice r of all vectors | slice r of everybody's result |
//! | reduce_scatter.direct | block r of all vectors | its own result |
//! | all_gather.direct, .ring | its own block | block r of everybody's result |
//! | broadcast.direct, .ring | the root's vector | its own |
//!
//! Contributions are folded in rank order, as these plans do, so the bits are the same. In place is safe:
//! what a rank writes nobody but itself reads, and it has read it by then. Work is done in visits of less
//! than a millisecond, between which failures are noticed: see [`crate::transport::Fabric::visit`].
//!
//! A rank whose buffers are not mapped says so; then all take the plan's steps.

mod entry;
mod job;

use ccl_plan::select::{Choice, Rule};
use ccl_plan::{Algorithm, Channel, Collective, Rank};

use self::entry::{Entry, UNMAPPED};
use self::job::{Job, lengths};
use super::host::{Poll, Reason, Stop, edge_tag};
use super::reduce::{Contribution, Stores};
use super::step::{Bindings, mismatch, of_peer};
use crate::discover::processor::is_of_amd;
use crate::error::Error;
use crate::memory::Place;
use crate::request::Bound;
use crate::transport::{EdgeIndex, Fabric};

/// A call that is on this path, or may be.
pub(super) struct Mapped {
    stage: Stage,
    /// Peers told, and heard of, in this stage.
    told: usize,
    heard: usize,
    peers: Vec<Peer>,
    /// What each rank says; only its own until it is heard.
    entries: Vec<Entry>,
    /// The windows that this rank's send and receive buffers lie in.
    windows: Option<[Place; 2]>,
    /// Once all have entered.
    job: Option<Job>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Enter,
    Work,
    Leave,
}

struct Peer {
    rank: Rank,
    to: EdgeIndex,
    from: EdgeIndex,
}

/// What came of polling.
pub(super) enum Outcome {
    /// As of any operation.
    Polled(Poll),
    /// Some rank's buffers are not mapped: the plan's steps are next.
    Unmapped,
}

/// Whether there is a special path for these plans.
pub(super) fn has_path(collective: Collective, algorithm: Algorithm) -> bool {
    matches!(
        (collective, algorithm),
        (Collective::AllReduce, Algorithm::TwoShot)
            | (Collective::ReduceScatter, Algorithm::Direct)
            | (Collective::AllGather | Collective::Broadcast, Algorithm::Direct | Algorithm::Ring)
    )
}

/// What stands above the cost model, which knows nothing of this path, where all ranks are in one process: from so many bytes on
/// it is faster than any other plan's steps (ADR 0123). Nothing where one of `others` says something of the collective.
pub(super) fn rules(from: u64, others: &[Rule]) -> Vec<Rule> {
    let rule = |(collective, algorithm, least)| {
        let choice = Choice { algorithm, channels: 1 };
        Rule { collective, from: from.max(least), up_to: u64::MAX, choice }
    };
    let mut rules = Vec::from(FASTER.map(rule));
    rules.retain(|rule| others.iter().all(|other| other.collective != rule.collective));
    rules
}

impl Mapped {
    /// The call of one of `n` ranks.
    pub(super) fn new(
        bound: &Bound,
        (rank, n): (Rank, u32),
        fabric: &mut Fabric,
    ) -> Result<Box<Mapped>, Error> {
        let edge_tag = edge_tag(bound.collective);
        let mut peers = Vec::with_capacity(n as usize);
        for peer in (0..n).map(Rank).filter(|peer| *peer != rank) {
            let to = fabric.send_edge(peer, Channel(0), edge_tag)?;
            let from = fabric.receive_edge(peer, Channel(0), edge_tag)?;
            peers.push(Peer { rank: peer, to, from });
        }
        let windows = if fabric.one_process() { None } else { windows(bound, n, fabric) };
        let own = Entry::of(bound, windows.as_ref(), fabric.one_process());
        let entries = vec![own; n as usize];
        Ok(Box::new(Mapped { stage: Stage::Enter, told: 0, heard: 0, peers, entries, windows, job: None }))
    }

    /// Advances without blocking; one visit at most.
    pub(super) fn poll(
        &mut self,
        call: Bindings<'_>,
        (rank, n): (Rank, u32),
        fabric: &mut Fabric,
    ) -> Result<Outcome, Stop> {
        if let (Stage::Work, Some(job)) = (self.stage, &mut self.job) {
            if job.is_done() {
                self.next(Stage::Leave);
            } else {
                visit(job, call, fabric)?;
            }
            return Ok(Outcome::Polled(Poll::Progress));
        }
        let before = (self.told, self.heard);
        let met = self.meet(call, rank, fabric)?;
        let moved = before != (self.told, self.heard);
        Ok(match (met, self.stage) {
            (false, _) => Outcome::Polled(if moved { Poll::Progress } else { Poll::Stalled }),
            (true, Stage::Leave) => Outcome::Polled(Poll::Done),
            (true, _) => match self.share(call, (rank, n), fabric)? {
                Some(job) => {
                    self.job = Some(job);
                    self.next(Stage::Work);
                    Outcome::Polled(Poll::Progress)
                }
                None => Outcome::Unmapped,
            },
        })
    }

    /// The peer that has not been heard of.
    pub(super) fn waiting_for(&self) -> Option<Rank> {
        self.peers.get(self.heard).map(|peer| peer.rank)
    }

    /// Keeps processes that might still write to the receive buffer from being seen.
    pub(super) fn detach(&self, bound: &Bound, n: u32) {
        let Some([_, place]) = &self.windows else { return };
        let (_, bytes) = lengths(bound, n);
        // SAFETY: the buffer is borrowed mutably for this operation, which has failed.
        let detached = unsafe { place.window.own().detach(place.offset..place.offset + bytes) };
        if let Err(error) = detached {
            tracing::warn!(%error, "a stopped process may still write to a buffer of a failed call");
        }
    }

    fn next(&mut self, stage: Stage) {
        (self.stage, self.told, self.heard) = (stage, 0, 0);
    }

    /// Tells all peers where this rank is, and hears it of them; whether all are there.
    fn meet(&mut self, call: Bindings<'_>, rank: Rank, fabric: &mut Fabric) -> Result<bool, Stop> {
        let own = self.entries[rank.index()].to_bytes();
        let words: &[u8] = if self.stage == Stage::Enter { &own } else { &[] };
        while let Some(peer) = self.peers.get(self.told) {
            if !fabric.sender(peer.to).try_send(words, call.tag)? {
                return Ok(false);
            }
            self.told += 1;
        }
        while let Some(peer) = self.peers.get(self.heard) {
            let edge = fabric.receiver(peer.from);
            let of_peer = |error| of_peer(error, peer.rank);
            let Some(slot) = edge.peek().map_err(of_peer)? else { return Ok(false) };
            if slot.tag != call.tag || slot.bytes != words.len() || slot.lent {
                return Err(mismatch(peer.rank, call.tag, words.len(), &slot));
            }
            if let (Stage::Enter, Some(message)) = (self.stage, edge.message().map_err(of_peer)?) {
                let entry = Entry::from_bytes(message.payload);
                if !entry.agrees(&self.entries[rank.index()]) {
                    return Err(mismatch(peer.rank, !call.tag, words.len(), &slot));
                }
                self.entries[peer.rank.index()] = entry;
            }
            edge.release().map_err(of_peer)?;
            self.heard += 1;
        }
        Ok(true)
    }

    /// What this rank has to do, if all buffers are mapped: the same answer on all ranks.
    fn share(&self, call: Bindings<'_>, me: (Rank, u32), fabric: &Fabric) -> Result<Option<Job>, Stop> {
        let Bindings { bound, decision, .. } = call;
        let first = self.entries[0].windows;
        if first.contains(&UNMAPPED) || self.entries.iter().any(|entry| entry.windows != first) {
            return Ok(None);
        }
        let (send, recv) = lengths(bound, me.1);
        let mut inputs = Vec::with_capacity(self.entries.len());
        let mut outputs = Vec::with_capacity(self.entries.len());
        for (rank, entry) in (0..).map(Rank).zip(&self.entries) {
            let address = |side: usize, bytes: usize| {
                let found = self.address(rank, side, entry.places[side], bytes);
                found.ok_or_else(|| outside(rank, entry.places[side]))
            };
            inputs.push(Contribution { start: address(0, send)?.cast_const(), scalar: entry.scalar });
            outputs.push(address(1, recv)?);
        }
        let both = if bound.in_place { send.max(recv) } else { send + recv };
        let long = both.saturating_mul(inputs.len()) > fabric.cache_bytes() / CACHE_SHARE;
        // Who writes where it has just read does so through the caches (ADR 0108).
        let read_before = bound.in_place && bound.collective.reduces() && is_of_amd();
        let stores = if long && !read_before { Stores::Streaming } else { Stores::Cached };
        Ok(Some(Job::of(bound, decision, me, (inputs, outputs), stores)))
    }

    fn address(&self, rank: Rank, side: usize, place: u64, bytes: usize) -> Option<*mut u8> {
        match &self.windows {
            Some(windows) => windows[side].window.address(rank, usize::try_from(place).ok()?, bytes),
            None => Some(std::ptr::with_exposed_provenance_mut(usize::try_from(place).ok()?)),
        }
    }
}

fn visit(job: &mut Job, call: Bindings<'_>, fabric: &Fabric) -> Result<(), Stop> {
    let visited = fabric.visit(|| {
        // SAFETY: every rank has said where its buffers are, and that they are those of this call, whose
        // lengths they were checked against; it waits inside its call until this rank has left. One that
        // fails withdraws its memory first and waits for visitors, and `Fabric::visit` does not get here.
        // Jobs of different ranks write different elements, and read what no other rank writes.
        unsafe { job.visit(&call.decision.reduction, call.bound) }
    });
    visited.map_err(gave_up)?;
    job.advance(call.bound);
    Ok(())
}

/// The windows that both buffers of a call lie in.
fn windows(bound: &Bound, n: u32, fabric: &Fabric) -> Option<[Place; 2]> {
    let (send, recv) = lengths(bound, n);
    Some([fabric.window(bound.send, send)?, fabric.window(bound.recv.cast_const(), recv)?])
}

#[cold]
fn outside(rank: Rank, place: u64) -> Stop {
    Reason::Failed(Error::bug(format!("rank {rank} says that its buffer is {place} bytes into its window")))
        .into()
}

#[cold]
fn gave_up(peer: Rank) -> Stop {
    let error = Error::new(
        crate::Fault::Network,
        "the peer gave up while its buffers were used",
        "look for its own error",
    );
    Reason::Failed(error.with_peer(peer)).into()
}

/// Which plans are faster here than any other's steps, and from how many bytes on at least: a broadcast reads all of its root's buffer
/// from one core.
const FASTER: [(Collective, Algorithm, u64); 3] = [
    (Collective::AllReduce, Algorithm::TwoShot, 0),
    (Collective::ReduceScatter, Algorithm::Direct, 0),
    (Collective::Broadcast, Algorithm::Direct, 256 << 10),
];

/// Stores go around the cache if all buffers together exceed so small a share of the last-level cache.
/// Others use it too, and a store through it reads the line first.
const CACHE_SHARE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_plans_that_have_a_path_from_where_it_is_taken() {
        let rules = rules(64 << 10, &[]);
        assert!(rules.iter().all(|rule| has_path(rule.collective, rule.choice.algorithm)));
        assert_eq!(rules.iter().map(|rule| rule.from >> 10).collect::<Vec<_>>(), [64, 64, 256]);
    }

    #[test]
    fn what_a_tuning_file_says_of_a_collective_stands() {
        let choice = Choice { algorithm: Algorithm::Ring, channels: 1 };
        let said = Rule { collective: Collective::AllReduce, from: 0, up_to: 64, choice };
        let rules = rules(64 << 10, &[said]);
        assert!(
            rules.len() == FASTER.len() - 1 && rules.iter().all(|rule| rule.collective != said.collective)
        );
    }
}
