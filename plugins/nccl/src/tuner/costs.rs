//! NCCL's table of costs, and how our algorithms stand in it.
//!
//! | row of NCCL's | ours |
//! |---|---|
//! | Tree | `double_tree`, else `binomial` |
//! | Ring | `ring` |
//! | PAT | `pat` |
//! | CollnetDirect, CollnetChain, NVLS, NVLSTree | none: not offered |
//!
//! All three protocols of a row cost the same and mean the same, since how data passes from rank to rank is no choice
//! here. Algorithms without a row keep what the host predicts.

use std::ffi::c_int;

use ccl_plugin::tuner::Candidate;

use super::layout::{ALGORITHMS, IGNORE, PROTOCOLS};

/// A table of costs in microseconds, and what it was before the plugin had it.
pub(crate) struct Costs {
    cells: [[f32; PROTOCOLS]; ALGORITHMS],
    before: [[f32; PROTOCOLS]; ALGORITHMS],
    /// Of each row, which candidate it stands for.
    candidates: [Option<usize>; ALGORITHMS],
    /// Whether a cell was chosen that is not offered.
    chose_elsewhere: bool,
}

impl Costs {
    /// The table for these candidates.
    pub(crate) fn new(candidates: &[Candidate<'_>]) -> Costs {
        let mut cells = [[IGNORE; PROTOCOLS]; ALGORITHMS];
        let mut places = [None; ALGORITHMS];
        for (row, names) in ROWS {
            let of = |name: &&str| candidates.iter().position(|candidate| candidate.algorithm == *name);
            places[row] = names.iter().find_map(of);
            if let Some(place) = places[row] {
                cells[row] = [(candidates[place].cost_ns / NS_PER_US) as f32; PROTOCOLS];
            }
        }
        Costs { cells, before: cells, candidates: places, chose_elsewhere: false }
    }

    /// What a plugin gets: said to be a table of pointers, but one block of numbers.
    pub(crate) fn address(&mut self) -> *mut *mut f32 {
        self.cells.as_mut_ptr().cast()
    }

    /// Whether an algorithm of CollNet is offered.
    pub(crate) fn has_collnet(&self) -> bool {
        self.cells[COLLNET_CHAIN][SIMPLE] != IGNORE
    }

    /// Whether one of NVLS is.
    pub(crate) fn has_nvls(&self) -> bool {
        [NVLS, NVLS_TREE].iter().any(|row| self.cells[*row][SIMPLE] != IGNORE)
    }

    /// What version 2 says in place of costs: the cell is the cheapest, if it is offered.
    pub(crate) fn choose(&mut self, algorithm: c_int, protocol: c_int) {
        let row = usize::try_from(algorithm).ok().and_then(|row| self.cells.get_mut(row));
        let cell = row.zip(usize::try_from(protocol).ok()).and_then(|(row, column)| row.get_mut(column));
        match cell.filter(|cell| **cell != IGNORE) {
            Some(cell) => *cell = 0.0,
            None => self.chose_elsewhere = algorithm >= 0,
        }
    }

    /// Writes what the plugin has changed into the candidates. Says whether it asked for what was not offered.
    pub(crate) fn apply(&self, candidates: &mut [Candidate<'_>]) -> Asked {
        let mut asked = if self.chose_elsewhere { Asked::ForWhatIsNotOffered } else { Asked::ForNothingElse };
        for (row, (cells, before)) in self.cells.iter().zip(&self.before).enumerate() {
            let changed = cells.iter().zip(before).any(|(cell, before)| cell.to_bits() != before.to_bits());
            match self.candidates[row] {
                _ if !changed => (),
                Some(place) => candidates[place].cost_ns = cost_ns(cells),
                None if cells.iter().any(|cell| *cell >= 0.0) => asked = Asked::ForWhatIsNotOffered,
                None => (),
            }
        }
        asked
    }

    /// The row and the cheapest column of a candidate that has a row.
    pub(crate) fn cell_of(&self, candidate: usize) -> Option<(usize, usize)> {
        let row = self.candidates.iter().position(|place| *place == Some(candidate))?;
        let usable = |column: &usize| self.cells[row][*column] >= 0.0;
        // Of equal cells the last: Simple.
        let best = (0..PROTOCOLS)
            .rev()
            .filter(usable)
            .min_by(|a, b| self.cells[row][*a].total_cmp(&self.cells[row][*b]));
        best.map(|column| (row, column))
    }
}

/// Whether a plugin made a cell positive that was not offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    ForNothingElse,
    ForWhatIsNotOffered,
}

/// The least cost of a row; forbidden where no cell is left.
fn cost_ns(cells: &[f32; PROTOCOLS]) -> f64 {
    let usable = cells.iter().copied().filter(|cell| *cell >= 0.0);
    usable.min_by(f32::total_cmp).map_or(f64::from(IGNORE), |us| f64::from(us) * NS_PER_US)
}

/// Rows of NCCL's for which there is one of these, the first that there is.
const ROWS: [(usize, &[&str]); 3] = [(0, &["double_tree", "binomial"]), (1, &["ring"]), (6, &["pat"])];
const COLLNET_CHAIN: usize = 3;
const NVLS: usize = 4;
const NVLS_TREE: usize = 5;
const SIMPLE: usize = 2;
const NS_PER_US: f64 = 1e3;

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(algorithm: &str, cost_ns: f64) -> Candidate<'_> {
        Candidate { algorithm, protocol: None, cost_ns, channels: 1, chunk_bytes: 0 }
    }

    fn candidates() -> Vec<Candidate<'static>> {
        vec![candidate("swing", 500.0), candidate("ring", 3000.0), candidate("double_tree", 2000.0)]
    }

    fn costs_after(change: impl Fn(&mut [[f32; 3]; 7])) -> (Vec<f64>, Asked) {
        let mut all = candidates();
        let mut costs = Costs::new(&all);
        change(&mut costs.cells);
        let asked = costs.apply(&mut all);
        (all.iter().map(|candidate| candidate.cost_ns).collect(), asked)
    }

    #[test]
    fn our_algorithms_stand_in_their_rows_and_nothing_else_is_offered() {
        let costs = Costs::new(&candidates());
        let expected = [[2.0; 3], [3.0; 3], [-1.0; 3], [-1.0; 3], [-1.0; 3], [-1.0; 3], [-1.0; 3]];
        assert_eq!(costs.cells, expected);
        assert!(!costs.has_collnet() && !costs.has_nvls());
    }

    #[test]
    fn a_cell_of_any_protocol_means_its_algorithm() {
        assert_eq!(costs_after(|cells| cells[1][0] = 0.0), (vec![500.0, 0.0, 2000.0], Asked::ForNothingElse));
        assert_eq!(costs_after(|cells| cells[0] = [IGNORE; 3]).0, [500.0, 3000.0, -1.0]);
        assert_eq!(costs_after(|cells| cells[0] = [IGNORE, 7.0, IGNORE]).0, [500.0, 3000.0, 7000.0]);
        assert_eq!(costs_after(|cells| cells[1] = [f32::NAN; 3]).0, [500.0, -1.0, 2000.0]);
        assert_eq!(costs_after(|_| ()).0, [500.0, 3000.0, 2000.0]);
    }

    #[test]
    fn what_is_not_offered_cannot_be_had() {
        let (after, asked) = costs_after(|cells| cells[4][2] = 0.0);
        assert_eq!((after, asked), (vec![500.0, 3000.0, 2000.0], Asked::ForWhatIsNotOffered));
        let mut costs = Costs::new(&candidates());
        for (algorithm, protocol) in [(6, 2), (1, 9), (40, 0)] {
            costs.choose(algorithm, protocol);
            assert_eq!(costs.apply(&mut candidates()), Asked::ForWhatIsNotOffered);
        }
        costs.choose(-1, 0);
        assert_eq!(costs.apply(&mut candidates()), Asked::ForNothingElse);
        costs.choose(1, 2);
        let mut all = candidates();
        costs.apply(&mut all);
        assert_eq!((all[1].cost_ns, costs.cell_of(1), costs.cell_of(0)), (0.0, Some((1, 2)), None));
    }
}
