//! The domain of numbers: plain arithmetic on plain arrays.
//!
//! It knows nothing of contributions, so it is a second opinion on what
//! [`provenance`](super::provenance) accepts: what does not compute the right numbers is wrong.
//! Undefined memory holds rubbish, as it would.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use super::fault::{Fault, Wrong};
use super::tally::mix;
use super::{Domain, Stage, Who};
use crate::contract::Contributors;
use crate::ids::Rank;

/// Every rank's buffers, as numbers.
pub struct Numbers {
    ranks: Vec<Buffers>,
    reduces: bool,
}

struct Buffers {
    cells: Vec<u64>,
    input: usize,
    output: usize,
}

impl Numbers {
    /// All buffers before the collective.
    pub fn new(stage: &Stage<'_>) -> Numbers {
        let ranks = (0..stage.case.n).map(|rank| Buffers::new(stage, Rank(rank))).collect();
        Numbers { ranks, reduces: stage.collective.reduces() }
    }

    /// Compares with what arithmetic says.
    pub fn judge(&self, stage: &Stage<'_>) -> Result<(), Fault> {
        for rank in (0..stage.case.n).map(Rank) {
            for (block, (offset, count)) in stage.output_blocks(rank).into_iter().enumerate() {
                let due = stage.collective.due(rank, block as u32, stage.source());
                for element in 0..count {
                    let expected = match due.from {
                        Contributors::One(one) => contribution(one, due.block, element),
                        Contributors::All => (0..stage.case.n)
                            .map(|r| scale(contribution(Rank(r), due.block, element)))
                            .fold(0, u64::wrapping_add),
                    };
                    let expected = if self.reduces { complete(expected) } else { expected };
                    let buffers = &self.ranks[rank.index()];
                    let found =
                        buffers.cells.get(buffers.output + offset + element).copied().unwrap_or(RUBBISH);
                    if found != expected {
                        let (expected, found) = (expected.to_string(), found.to_string());
                        return Err(Fault::Wrong(Box::new(Wrong {
                            rank,
                            block: block as u32,
                            element,
                            expected,
                            found,
                        })));
                    }
                }
            }
        }
        Ok(())
    }

    fn read(&self, who: &Who, at: usize, count: usize) -> Vec<u64> {
        let cells = &self.ranks[who.rank.index()].cells;
        (at..at + count).map(|at| cells.get(at).copied().unwrap_or(RUBBISH)).collect()
    }
}

impl Buffers {
    fn new(stage: &Stage<'_>, rank: Rank) -> Buffers {
        let (brings, gets) = (stage.input_blocks(rank), stage.output_blocks(rank));
        let end_of = |blocks: &[(usize, usize)]| blocks.iter().map(|(at, len)| at + len).max().unwrap_or(0);
        let (input, output) = match stage.overlap(rank) {
            None => (0, end_of(&brings)),
            Some(overlap) => ((-overlap).max(0) as usize, overlap.max(0) as usize),
        };
        let mut cells = vec![RUBBISH; (input + end_of(&brings)).max(output + end_of(&gets))];
        for (block, (offset, count)) in brings.into_iter().enumerate() {
            for element in 0..count {
                cells[input + offset + element] = contribution(rank, block as u32, element);
            }
        }
        Buffers { cells, input, output }
    }
}

impl Domain for Numbers {
    type Value = Vec<u64>;
    type Credit = ();

    fn input(&mut self, who: &Who, offset: usize, count: usize, pre: bool) -> Result<Vec<u64>, Fault> {
        let numbers = self.read(who, self.ranks[who.rank.index()].input + offset, count);
        Ok(if pre { numbers.into_iter().map(scale).collect() } else { numbers })
    }

    fn output(&mut self, who: &Who, offset: usize, count: usize) -> Result<Vec<u64>, Fault> {
        Ok(self.read(who, self.ranks[who.rank.index()].output + offset, count))
    }

    fn token(&mut self, _: &Who) -> Vec<u64> {
        Vec::new()
    }

    fn join(&mut self, value: &mut Vec<u64>, more: Vec<u64>) -> Result<(), Fault> {
        value.extend(more);
        Ok(())
    }

    fn piece(&mut self, value: &Vec<u64>, start: usize, count: usize) -> Vec<u64> {
        value.iter().copied().skip(start).take(count).collect()
    }

    fn fold(&mut self, left: &mut Vec<u64>, right: Vec<u64>) -> Result<(), Fault> {
        left.iter_mut().zip(right).for_each(|(left, right)| *left = left.wrapping_add(right));
        Ok(())
    }

    fn post(&mut self, value: &mut Vec<u64>) -> Result<(), Fault> {
        value.iter_mut().for_each(|number| *number = complete(*number));
        Ok(())
    }

    fn store(&mut self, who: &Who, offset: usize, value: &Vec<u64>) -> Result<(), Fault> {
        let Buffers { cells, output, .. } = &mut self.ranks[who.rank.index()];
        let outside = Fault::Range { buffer: "receive", offset, count: value.len() };
        let at = *output + offset;
        cells.get_mut(at..at + value.len()).ok_or(outside)?.copy_from_slice(value);
        Ok(())
    }
}

/// What a rank brings.
fn contribution(rank: Rank, block: u32, element: usize) -> u64 {
    mix(mix(u64::from(rank.0)) ^ mix(u64::from(block) << 32) ^ element as u64)
}

/// The scalar of a pre-multiplied sum.
fn scale(number: u64) -> u64 {
    number.wrapping_mul(3)
}

/// Stands for the division of an average: seen if done twice or in the middle.
fn complete(number: u64) -> u64 {
    (number ^ 0x5555).wrapping_mul(5)
}

/// What is in memory that nobody wrote.
const RUBBISH: u64 = 0xdead_beef_dead_beef;
