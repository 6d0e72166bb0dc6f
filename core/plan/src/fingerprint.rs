//! Fingerprints: 64-bit digests of what all ranks must agree on.
//!
//! Equal inputs give equal digests on every rank, machine and version of the compiler. They tell
//! accidents, not attacks.

use xxhash_rust::xxh3::Xxh3Default;

use crate::plan::Plan;
use crate::program::Program;

/// A digest being made. Each item goes in with its length, so that no two sequences of items read
/// the same.
#[derive(Clone)]
pub struct Fingerprint(Xxh3Default);

impl Fingerprint {
    /// A digest for one purpose.
    pub fn new(purpose: &str) -> Fingerprint {
        let mut fingerprint = Fingerprint(Xxh3Default::new());
        fingerprint.bytes(purpose.as_bytes());
        fingerprint
    }

    /// Adds a number.
    pub fn word(&mut self, word: u64) {
        self.0.update(&word.to_le_bytes());
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.update(bytes);
    }

    /// The digest.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

impl Plan {
    /// A digest of what the plan is made from.
    pub fn fingerprint(&self) -> u64 {
        let mut fingerprint = Fingerprint::new("plan");
        fingerprint.word(self.collective() as u64);
        fingerprint.word(self.algorithm() as u64);
        fingerprint.word(u64::from(self.n()));
        fingerprint.word(u64::from(self.bundle()));
        if let Some(nodes) = self.nodes() {
            nodes.iter().for_each(|size| fingerprint.word(u64::from(*size)));
        }
        if let Some(program) = self.own_program() {
            fingerprint.word(program.fingerprint());
        }
        let order = self.order().unwrap_or_default();
        fingerprint.word(order.len() as u64);
        order.iter().for_each(|rank| fingerprint.word(u64::from(rank.0)));
        fingerprint.finish()
    }
}

impl Program {
    /// A digest of the program's binary form.
    pub fn fingerprint(&self) -> u64 {
        let mut fingerprint = Fingerprint::new("program");
        fingerprint.bytes(&self.to_bytes());
        fingerprint.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Collective, Place, Rank};

    #[test]
    fn digests_do_not_change_between_versions() {
        let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 4).unwrap();
        assert_eq!(plan.fingerprint(), 7_350_658_656_337_059_162);
        assert_eq!(plan.program(Place(0), Place(0)).fingerprint(), 3_155_637_894_841_498_607);
    }

    #[test]
    fn an_order_is_part_of_a_plan() {
        let plan = Plan::new(Collective::AllReduce, Algorithm::Ring, 3).unwrap();
        let turned = plan.clone().with_order(&[Rank(1), Rank(2), Rank(0)]).unwrap();
        assert_ne!(plan.fingerprint(), turned.fingerprint());
    }
}
