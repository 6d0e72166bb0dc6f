//! The plan: the programs of all ranks for one decision, made on demand.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::algo::{self, Algorithm, Role};
use crate::collective::Collective;
use crate::ids::{Place, Rank};
use crate::program::{CheckError, Checked, Program};

/// The programs of all ranks for one collective, one algorithm and one order.
///
/// ```
/// use ccl_plan::{Algorithm, Collective, Place, Plan};
///
/// let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 8).unwrap();
/// let program = plan.program(Place(3), Place(0)).check(8).unwrap();
/// assert_eq!(program.name, "all_reduce.ring");
/// assert!(Plan::new(Collective::Barrier, Algorithm::Ring, 8).is_none());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    collective: Collective,
    algorithm: Algorithm,
    n: u32,
    bundle: u32,
    /// Ranks of each node, where they differ.
    nodes: Option<Arc<[u32]>>,
    order: Option<Arc<[Rank]>>,
    /// What all places run, if it is not the algorithm's.
    program: Option<Arc<Program>>,
}

impl Plan {
    /// A plan in which places are ranks; `None` if the algorithm does not carry out the collective
    /// or `n` is not in `1..=2^20`, or more than it serves.
    pub fn new(collective: Collective, algorithm: Algorithm, n: u32) -> Option<Plan> {
        let known = algo::algorithms(collective).contains(&algorithm);
        (known && (1..=algorithm.most_ranks(collective)).contains(&n)).then_some(Plan {
            collective,
            algorithm,
            n,
            bundle: algorithm.bundle(n),
            nodes: None,
            order: None,
            program: None,
        })
    }

    /// A plan of somebody's own: every place runs `program`. It has passed the checker, not the verifier.
    ///
    /// # Errors
    ///
    /// What the checker objects to.
    pub fn of_program(program: Program, n: u32) -> Result<Plan, CheckError> {
        let (collective, algorithm) = (program.collective, Algorithm::User);
        let program = Some(Arc::new(Program::clone(&*program.check(n)?)));
        Ok(Plan { collective, algorithm, n, bundle: 1, nodes: None, order: None, program })
    }

    /// The same plan with `order[place]` as the rank at each place; `None` if `order` is not a
    /// permutation of the ranks.
    pub fn with_order(self, order: &[Rank]) -> Option<Plan> {
        let mut seen = vec![false; self.n as usize];
        for rank in order {
            let seen = seen.get_mut(rank.index())?;
            if core::mem::replace(seen, true) {
                return None;
            }
        }
        let is_permutation = order.len() == seen.len();
        is_permutation.then(|| Plan { order: Some(order.into()), ..self })
    }

    /// The same plan with so many blocks or ranks taken together; `None` if the algorithm cannot: see
    /// [`Algorithm::bundle`].
    pub fn with_bundle(self, bundle: u32) -> Option<Plan> {
        self.algorithm.takes_bundle(self.n, bundle).then_some(Plan { bundle, nodes: None, ..self })
    }

    /// The same plan for nodes of so many ranks each, whose places follow each other; `None` if the algorithm knows no
    /// nodes, a node is empty, they have not n ranks together, or they differ and are more than 256.
    pub fn with_nodes(self, sizes: &[u32]) -> Option<Plan> {
        let (least, most) = (*sizes.iter().min()?, *sizes.iter().max()?);
        let all: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        match () {
            () if !self.algorithm.is_two_level() || least == 0 || all != u64::from(self.n) => None,
            () if least == most => self.with_bundle(least),
            () => Plan::takes_nodes(sizes).then(|| Plan { bundle: least, nodes: Some(sizes.into()), ..self }),
        }
    }

    /// Whether there is a plan for so many nodes of such sizes: at most 256 where they differ.
    pub fn takes_nodes(sizes: &[u32]) -> bool {
        sizes.len() <= MOST_NODES || sizes.iter().all(|size| *size == sizes[0])
    }

    /// What the plan computes.
    pub fn collective(&self) -> Collective {
        self.collective
    }

    /// How.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The number of ranks.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// How many blocks or ranks are taken together; see [`Algorithm::bundle`].
    pub fn bundle(&self) -> u32 {
        self.bundle
    }

    /// The ranks of each node, where they differ; see [`Plan::with_nodes`].
    pub fn nodes(&self) -> Option<&[u32]> {
        self.nodes.as_deref()
    }

    /// The rank at each place; `None` if they are equal.
    pub fn order(&self) -> Option<&[Rank]> {
        self.order.as_deref()
    }

    /// The place of a rank.
    pub fn place_of(&self, rank: Rank) -> Place {
        match self.order() {
            None => Place(rank.0),
            Some(order) => Place(order.iter().position(|r| *r == rank).unwrap_or(0) as u32),
        }
    }

    /// What every place runs, in a plan of [`Plan::of_program`].
    pub fn own_program(&self) -> Option<&Program> {
        self.program.as_deref()
    }

    /// The role of a place. `root` is the root's place, or the peer's of a send or receive.
    pub fn role(&self, place: Place, root: Place) -> Role {
        algo::role(self, place, root)
    }

    /// The program of a place. Places of one role have equal programs.
    pub fn program(&self, place: Place, root: Place) -> Program {
        self.program_of(self.role(place, root))
    }

    /// The program of a role.
    pub fn program_of(&self, role: Role) -> Program {
        match &self.program {
            Some(program) => Program::clone(program),
            None => algo::program(self, role),
        }
    }

    /// The checked program of every role that occurs with this root, and each place's index in
    /// them.
    pub fn cast(&self, root: Place) -> Result<Cast, CheckError> {
        let mut roles: Vec<Role> = Vec::new();
        let mut of_place = Vec::with_capacity(self.n as usize);
        for place in 0..self.n {
            let role = self.role(Place(place), root);
            let index = roles.iter().position(|known| *known == role).unwrap_or_else(|| {
                roles.push(role);
                roles.len() - 1
            });
            of_place.push(index as u16);
        }
        let programs: Result<Vec<Checked>, CheckError> =
            roles.iter().map(|role| self.program_of(*role).check(self.n)).collect();
        Ok(Cast { programs: programs?, of_place })
    }
}

/// The programs of all places: few texts, many ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cast {
    /// The programs, each once.
    pub programs: Vec<Checked>,
    /// For each place, the index of its program.
    pub of_place: Vec<u16>,
}

impl Cast {
    /// The program of a place.
    pub fn program(&self, place: Place) -> Option<&Checked> {
        self.programs.get(usize::from(*self.of_place.get(place.index())?))
    }
}

/// Of different nodes each has a text of its own, in which all others of a rail occur.
const MOST_NODES: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::program::MAX_RANKS;

    fn plans(n: u32) -> impl Iterator<Item = Plan> {
        Collective::ALL.into_iter().flat_map(move |collective| {
            algo::algorithms(collective).iter().filter_map(move |a| Plan::new(collective, *a, n))
        })
    }

    #[test]
    fn every_program_passes_the_checker() {
        for n in (1..40).chain([127, 128, 129, 1000, 4095, 4096, 24_576, (1 << 20) - 1, 1 << 20]) {
            for plan in plans(n) {
                for place in [0, 1, n / 2, n - 1].into_iter().filter(|place| *place < n) {
                    for root in [0, n - 1] {
                        let program = plan.program(Place(place), Place(root));
                        let name = program.name.clone();
                        let checked = program.check(n);
                        assert!(checked.is_ok(), "{name} n={n} place={place} root={root}: {checked:?}");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_ring_is_one_small_text(n in 2..=MAX_RANKS, place in 0..MAX_RANKS) {
            for collective in Collective::ALL {
                let Some(two) = Plan::new(collective, Algorithm::Ring, 2) else { continue };
                let many = Plan::new(collective, Algorithm::Ring, n).unwrap();
                let (two, many) = (two.program(Place(0), Place(0)), many.program(Place(place % n), Place(place % n)));
                prop_assert_eq!(&two, &many);
                prop_assert!(two.to_bytes().len() <= 512, "{}: {}", two.name, two.to_bytes().len());
            }
        }
    }

    #[test]
    fn a_cast_has_a_program_for_each_place() {
        let plan = Plan::new(Collective::Broadcast, Algorithm::Ring, 9).unwrap();
        let cast = plan.cast(Place(4)).unwrap();
        assert_eq!(cast.programs.len(), 3);
        for place in (0..9).map(Place) {
            assert_eq!(**cast.program(place).unwrap(), plan.program(place, Place(4)));
        }
    }

    #[test]
    fn an_order_is_a_permutation() {
        let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 3).unwrap();
        assert!(plan.clone().with_order(&[Rank(2), Rank(0), Rank(1)]).is_some());
        assert!(plan.clone().with_order(&[Rank(2), Rank(0), Rank(2)]).is_none());
        assert!(plan.clone().with_order(&[Rank(1), Rank(0)]).is_none());
        assert!(plan.with_order(&[Rank(1), Rank(0), Rank(3)]).is_none());
    }
}
