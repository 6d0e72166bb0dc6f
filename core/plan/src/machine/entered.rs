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
    heard: Vec<Vec<u64>>,
}

impl Entered {
    /// Everybody has heard of themselves.
    pub fn new(n: u32) -> Entered {
        let words = n.div_ceil(64) as usize;
        let alone = |rank: u32| {
            let mut set = vec![0; words];
            set[rank as usize / 64] = 1 << (rank % 64);
            set
        };
        Entered { heard: (0..n).map(alone).collect() }
    }

    /// Nobody may leave before having heard of all.
    pub fn judge(&self) -> Result<(), Fault> {
        let n = self.heard.len();
        for (rank, heard) in self.heard.iter().enumerate() {
            let count = heard.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            if count != n {
                let (expected, found) = (format!("word of all {n} ranks"), format!("word of {count}"));
                return Err(Fault::Wrong(Box::new(Wrong {
                    rank: Rank(rank as u32),
                    block: 0,
                    element: 0,
                    expected,
                    found,
                })));
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
        self.heard[who.rank.index()].clone()
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
        let heard = &mut self.heard[who.rank.index()];
        heard.iter_mut().zip(value).for_each(|(mine, theirs)| *mine |= *theirs);
    }
}
