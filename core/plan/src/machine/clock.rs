//! The domain of time: when each step could have happened at the earliest.
//!
//! A step starts when its lane is free, its slots have arrived and its credits are back; folding
//! costs γ per byte; each slot sent keeps the lane for β per byte and arrives α later; the credit
//! goes back in α as well. What led to each moment is carried along, so the finish time comes with
//! the composition of the critical path.

use alloc::vec::Vec;

use super::fault::Fault;
use super::{Domain, Who, Work};
use crate::ids::Rank;

/// One edge's cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Time per message.
    pub alpha_ns: f64,
    /// Time per byte moved.
    pub beta_ns_per_byte: f64,
}

/// A point in time and what led to it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Moment {
    /// Time since the start.
    pub ns: f64,
    /// Messages on the way here.
    pub messages: u64,
    /// Bytes moved on the way here.
    pub moved_bytes: u64,
    /// Bytes folded on the way here.
    pub folded_bytes: u64,
}

/// The walk's data as moments.
#[derive(Clone, Debug)]
pub struct Clock<L> {
    link: L,
    gamma_ns_per_byte: f64,
    element_bytes: u64,
    lanes: Vec<Moment>,
    spent: Spent,
}

/// What all lanes did together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// Slots filled.
    pub messages: u64,
    /// Bytes in them.
    pub moved_bytes: u64,
    /// Bytes folded.
    pub folded_bytes: u64,
}

impl<L: Fn(Rank, Rank) -> Link> Clock<L> {
    /// A clock over links given by their ends.
    pub fn new(link: L, gamma_ns_per_byte: f64, element_bytes: usize) -> Clock<L> {
        let element_bytes = element_bytes as u64;
        Clock { link, gamma_ns_per_byte, element_bytes, lanes: Vec::new(), spent: Spent::default() }
    }

    /// When the last lane finished, with the critical path that led there.
    pub fn finish(&self) -> Moment {
        self.lanes.iter().copied().fold(Moment::default(), Moment::later)
    }

    /// What all lanes have done so far.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    fn lane(&mut self, who: &Who) -> &mut Moment {
        let index = who.fiber as usize;
        if self.lanes.len() <= index {
            self.lanes.resize(index + 1, Moment::default());
        }
        &mut self.lanes[index]
    }
}

impl Moment {
    /// The later of two.
    pub fn later(self, other: Moment) -> Moment {
        if other.ns > self.ns { other } else { self }
    }
}

impl<L: Fn(Rank, Rank) -> Link> Domain for Clock<L> {
    type Value = Moment;
    type Credit = Moment;

    fn input(&mut self, _: &Who, _: usize, _: usize, _: bool) -> Result<Moment, Fault> {
        Ok(Moment::default())
    }

    fn output(&mut self, _: &Who, _: usize, _: usize) -> Result<Moment, Fault> {
        Ok(Moment::default())
    }

    fn token(&mut self, _: &Who) -> Moment {
        Moment::default()
    }

    fn join(&mut self, value: &mut Moment, more: Moment) -> Result<(), Fault> {
        *value = value.later(more);
        Ok(())
    }

    fn piece(&mut self, value: &Moment, _: usize, _: usize) -> Moment {
        *value
    }

    fn fold(&mut self, left: &mut Moment, right: Moment) -> Result<(), Fault> {
        *left = left.later(right);
        Ok(())
    }

    fn post(&mut self, _: &mut Moment) -> Result<(), Fault> {
        Ok(())
    }

    fn store(&mut self, _: &Who, _: usize, _: &Moment) -> Result<(), Fault> {
        Ok(())
    }

    fn done(&mut self, who: &Who, work: &Work, credits: &[Moment], value: &mut Moment) {
        let folded = work.count as u64 * self.element_bytes * u64::from(work.inputs.saturating_sub(1));
        let cost_ns = self.gamma_ns_per_byte * folded as f64;
        self.spent.folded_bytes += folded;
        let lane = self.lane(who);
        let start = credits.iter().copied().fold(lane.later(*value), Moment::later);
        *lane = Moment { ns: start.ns + cost_ns, folded_bytes: start.folded_bytes + folded, ..start };
        *value = *lane;
    }

    fn credit(&mut self, who: &Who, to: Rank) -> Moment {
        let back_ns = (self.link)(who.rank, to).alpha_ns;
        let lane = self.lane(who);
        Moment { ns: lane.ns + back_ns, ..*lane }
    }

    fn travel(&mut self, who: &Who, to: Rank, count: usize, _: &Moment) -> Moment {
        let link = (self.link)(who.rank, to);
        let bytes = count as u64 * self.element_bytes;
        self.spent.messages += 1;
        self.spent.moved_bytes += bytes;
        let lane = self.lane(who);
        lane.ns += link.beta_ns_per_byte * bytes as f64;
        lane.moved_bytes += bytes;
        Moment { ns: lane.ns + link.alpha_ns, messages: lane.messages + 1, ..*lane }
    }
}
