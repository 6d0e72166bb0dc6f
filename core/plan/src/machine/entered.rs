//! The domain of barriers: of whom each rank has heard that they entered.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::fault::{Fault, Wrong};
use super::{Domain, Who, Work};
use crate::ids::Rank;

/// For every rank, the set of ranks it has heard of.
pub struct Entered {
    n: u32,
    first: Rank,
    heard: Vec<Vec<u64>>,
}

impl Entered {
    /// Everybody has heard of themselves.
    pub fn new(n: u32) -> Entered {
        Entered { n, first: Rank(0), heard: (0..n).map(|rank| alone(n, rank)).collect() }
    }

    /// One rank has heard of itself: see [`super::walk_turned`].
    pub fn of_one(n: u32, rank: Rank) -> Entered {
        Entered { n, first: rank, heard: [alone(n, rank.0)].into() }
    }

    /// Nobody may leave before having heard of all.
    pub fn judge(&self) -> Result<(), Fault> {
        let n = self.n;
        for (rank, heard) in (self.first.0..).map(Rank).zip(&self.heard) {
            let count = heard.iter().map(|word| word.count_ones()).sum::<u32>();
            if count != n {
                let (expected, found) = (format!("word of all {n} ranks"), format!("word of {count}"));
                return Err(Fault::Wrong(Box::new(Wrong { rank, block: 0, element: 0, expected, found })));
            }
        }
        Ok(())
    }
}

impl Domain for Entered {
    type Value = Vec<u64>;
    type Credit = ();

    fn input(&mut self, _: &Who, _: usize, _: usize, _: bool) -> Result<Self::Value, Fault> {
        Err(Fault::NotAnEdge)
    }

    fn output(&mut self, _: &Who, _: usize, _: usize) -> Result<Self::Value, Fault> {
        Err(Fault::NotAnEdge)
    }

    fn token(&mut self, who: &Who) -> Self::Value {
        self.heard[who.rank.index() - self.first.index()].clone()
    }

    fn join(&mut self, _: &mut Self::Value, _: Self::Value) -> Result<(), Fault> {
        Err(Fault::NotAnEdge)
    }

    fn piece(&mut self, value: &Self::Value, _: usize, _: usize) -> Self::Value {
        value.clone()
    }

    fn fold(&mut self, _: &mut Self::Value, _: Self::Value) -> Result<(), Fault> {
        Err(Fault::NotAnEdge)
    }

    fn post(&mut self, _: &mut Self::Value) -> Result<(), Fault> {
        Err(Fault::NotAnEdge)
    }

    fn store(&mut self, _: &Who, _: usize, _: &Self::Value) -> Result<(), Fault> {
        Err(Fault::NotAnEdge)
    }

    fn done(&mut self, who: &Who, _: &Work, _: &[()], value: &mut Self::Value) {
        let heard = &mut self.heard[who.rank.index() - self.first.index()];
        heard.iter_mut().zip(value).for_each(|(mine, theirs)| *mine |= *theirs);
    }

    fn turn(&mut self, value: Self::Value, by: u32) -> Self::Value {
        let mut turned = vec![0; value.len()];
        let entered = |rank: &u32| value[*rank as usize / 64] >> (rank % 64) & 1 == 1;
        for rank in (0..self.n).filter(entered) {
            let rank = (rank + by) % self.n;
            turned[rank as usize / 64] |= 1 << (rank % 64);
        }
        turned
    }
}

/// The set of one rank.
fn alone(n: u32, rank: u32) -> Vec<u64> {
    let mut set = vec![0; n.div_ceil(64) as usize];
    set[rank as usize / 64] = 1 << (rank % 64);
    set
}
