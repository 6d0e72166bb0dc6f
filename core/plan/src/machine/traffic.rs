//! The domain of bytes: how much goes over each edge.

use alloc::collections::BTreeMap;

use super::fault::Fault;
use super::{Domain, Who};
use crate::ids::Rank;

/// What went over the edges from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Slots filled.
    pub messages: u64,
    /// Elements in them.
    pub elements: u64,
}

/// Counts what every pair of ranks exchanges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    pairs: BTreeMap<(Rank, Rank), Load>,
}

impl Traffic {
    /// Nothing yet.
    pub fn new() -> Traffic {
        Traffic::default()
    }

    /// Sender, receiver and load, in order of rank.
    pub fn pairs(&self) -> impl Iterator<Item = (Rank, Rank, Load)> {
        self.pairs.iter().map(|((from, to), load)| (*from, *to, *load))
    }

    /// What one rank sends.
    pub fn sent(&self, rank: Rank) -> Load {
        total(self.pairs().filter(|(from, ..)| *from == rank))
    }

    /// What one rank receives.
    pub fn received(&self, rank: Rank) -> Load {
        total(self.pairs().filter(|(_, to, _)| *to == rank))
    }
}

fn total(pairs: impl Iterator<Item = (Rank, Rank, Load)>) -> Load {
    pairs.fold(Load::default(), |sum, (.., load)| Load {
        messages: sum.messages + load.messages,
        elements: sum.elements + load.elements,
    })
}

impl Domain for Traffic {
    type Value = ();
    type Credit = ();

    fn input(&mut self, _: &Who, _: usize, _: usize, _: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn output(&mut self, _: &Who, _: usize, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn token(&mut self, _: &Who) {}

    fn join(&mut self, _: &mut (), (): ()) -> Result<(), Fault> {
        Ok(())
    }

    fn piece(&mut self, _: &(), _: usize, _: usize) {}

    fn fold(&mut self, _: &mut (), (): ()) -> Result<(), Fault> {
        Ok(())
    }

    fn post(&mut self, _: &mut ()) -> Result<(), Fault> {
        Ok(())
    }

    fn store(&mut self, _: &Who, _: usize, _: &()) -> Result<(), Fault> {
        Ok(())
    }

    fn travel(&mut self, who: &Who, to: Rank, count: usize, _: &()) {
        let load = self.pairs.entry((who.rank, to)).or_default();
        load.messages += 1;
        load.elements += count as u64;
    }
}
