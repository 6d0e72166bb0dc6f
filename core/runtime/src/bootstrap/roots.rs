//! Several unique ids for one communicator: which rank goes to which root, and what it says there.
//!
//! With k ids the ranks are cut into k contiguous shares, the first n mod k of them one rank longer, and the
//! ranks of share i go to the root of id i, as with NCCL's `ncclCommInitRankScalable`. One of the roots, the
//! *head*, is that at which a communicator with one id would meet; the others are *deputies*, see
//! [`super::deputy`]. The head is found without regard to the order of the ids, so that ranks which have them in
//! different orders are found out by one root.

use std::ops::Range;

use ccl_plan::Rank;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bootstrap::auth::Key;
use crate::bootstrap::id::UniqueId;
use crate::error::{Error, Result};

/// What a rank tells a root of the unique ids that it was given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// Which of them the root's is.
    pub(crate) index: u32,
    /// How many there are.
    pub(crate) roots: u32,
    /// Digest of them in order.
    order: [u8; 16],
    /// Digest of them in any order.
    set: [u8; 16],
    /// The head's id, sealed with the root's secret; empty if the root is the head.
    head: ByteBuf,
}

impl Claim {
    /// Whether the root is the head.
    pub(crate) fn is_of_head(&self) -> bool {
        self.head.is_empty()
    }

    /// The head's id.
    pub(crate) fn head(&self, key: &Key) -> Result<UniqueId> {
        UniqueId::from_bytes(&key.sealer().open(&self.head)?)
    }

    /// The same without the head's id, for the head itself.
    pub(crate) fn to_head(&self) -> Claim {
        Claim { head: ByteBuf::new(), ..self.clone() }
    }

    /// Why two ranks cannot be of one communicator, if this is `rank`'s claim and `other` that of `other_rank`.
    pub(crate) fn objection(&self, rank: u32, other: &Claim, other_rank: u32) -> Option<String> {
        if self.set != other.set || self.roots != other.roots {
            return Some(format!(
                "rank {rank} was given {} unique ids, rank {other_rank} {} that are not the same",
                self.roots, other.roots
            ));
        }
        (self.order != other.order)
            .then(|| format!("rank {rank} was given the unique ids in another order than rank {other_rank}"))
    }
}

/// Why a rank that knows of one unique id, and one that knows of several, cannot be of one communicator.
pub(crate) fn mixed(one: u32, several: u32, claim: &Claim) -> String {
    format!("rank {one} was given one unique id, rank {several} was given {}", claim.roots)
}

/// The unique ids of a communicator of n ranks, as every rank must have them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids<'a> {
    ids: &'a [UniqueId],
    n: u32,
}

impl<'a> Ids<'a> {
    /// Errors: there are none, more than ranks, or two are the same.
    pub(crate) fn new(ids: &'a [UniqueId], n: u32) -> Result<Ids<'a>> {
        let k = ids.len();
        if k == 0 || k > n as usize {
            let cause = format!("expected 1 to {n} unique ids for {n} ranks, found {k}");
            return Err(Error::usage(cause, "make one unique id for some tens or hundreds of ranks"));
        }
        let mut sorted: Vec<(&UniqueId, usize)> = ids.iter().zip(0..).collect();
        sorted.sort_by_key(|(id, index)| (id.job(), *index));
        match sorted.windows(2).find(|pair| pair[0].0.job() == pair[1].0.job()) {
            None => Ok(Ids { ids, n }),
            Some(pair) => {
                let cause = format!(
                    "expected {k} different unique ids, found the same as number {} and number {}",
                    pair[0].1, pair[1].1
                );
                Err(Error::usage(cause, "make each unique id with a call of its own"))
            }
        }
    }

    /// The root that `rank` goes to, and what it says there if there are others.
    pub(crate) fn of(&self, rank: Rank) -> Result<(&'a UniqueId, Option<Claim>)> {
        let k = self.ids.len() as u32;
        let index = share_of(rank.0, self.n, k);
        let id = &self.ids[index as usize];
        if k == 1 {
            return Ok((id, None));
        }
        let head = &self.ids[self.head()];
        let sealed = match head == id {
            true => Vec::new(),
            false => Key::new(id).sealer().seal(&head.to_bytes())?,
        };
        let mut sorted: Vec<&UniqueId> = self.ids.iter().collect();
        sorted.sort_by_key(|id| id.job());
        let (order, set) = (digest(self.ids.iter()), digest(sorted.into_iter()));
        Ok((id, Some(Claim { index, roots: k, order, set, head: sealed.into() })))
    }

    /// Which of them is the head's.
    pub(crate) fn head(&self) -> usize {
        let jobs = self.ids.iter().enumerate().map(|(index, id)| (id.job(), index));
        jobs.min().map_or(0, |(_, index)| index)
    }
}

/// The share, of k, that `rank` of `n` is in.
pub(crate) fn share_of(rank: u32, n: u32, k: u32) -> u32 {
    let (length, longer) = (n / k, n % k);
    let in_longer = longer * (length + 1);
    match rank < in_longer {
        true => rank / (length + 1),
        false => longer + (rank - in_longer) / length.max(1),
    }
}

/// The ranks of share `index` of k.
pub(crate) fn share(index: u32, n: u32, k: u32) -> Range<u32> {
    let (length, longer) = (n / k, n % k);
    let start = |index: u32| index * length + index.min(longer);
    start(index)..start(index + 1)
}

fn digest<'a>(ids: impl Iterator<Item = &'a UniqueId>) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key("ccl 2026 the unique ids of a communicator");
    ids.for_each(|id| {
        hasher.update(&id.to_bytes());
    });
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(k: u32) -> Vec<UniqueId> {
        (0..k).map(|_| UniqueId::new(Vec::new()).unwrap()).collect()
    }

    #[test]
    fn ids_must_be_different_and_not_more_than_ranks() {
        let mut given = ids(3);
        assert!(Ids::new(&given, 3).is_ok());
        let error = Ids::new(&given, 2).unwrap_err();
        assert!(error.cause().contains("expected 1 to 2 unique ids for 2 ranks, found 3"), "{error}");
        assert!(Ids::new(&[], 2).unwrap_err().cause().contains("found 0"));
        given.push(given[1].clone());
        let error = Ids::new(&given, 9).unwrap_err();
        assert!(error.cause().contains("the same as number 1 and number 3"), "{error}");
    }

    #[test]
    fn the_head_is_the_same_in_any_order_and_known_to_deputies_only() {
        let given = ids(3);
        let other: Vec<UniqueId> = given.iter().rev().cloned().collect();
        let (first, second) = (Ids::new(&given, 3).unwrap(), Ids::new(&other, 3).unwrap());
        let head = &given[first.head()];
        assert_eq!(head, &other[second.head()]);
        let claims: Vec<_> = (0..3).map(|rank| first.of(Rank(rank)).unwrap()).collect();
        for (id, claim) in &claims {
            let claim = claim.as_ref().unwrap();
            assert_eq!(claim.is_of_head(), *id == head);
            if !claim.is_of_head() {
                assert_eq!(&claim.head(&Key::new(id)).unwrap(), head);
                assert!(claim.head(&Key::new(head)).is_err(), "sealed with the root's own secret");
                assert!(!claim.head.windows(32).any(|bytes| bytes == head.secret().0));
            }
        }
        let claim = |ids: &Ids<'_>, rank| ids.of(Rank(rank)).unwrap().1.unwrap();
        let text = claim(&first, 0).objection(0, &claim(&second, 1), 1).unwrap();
        assert_eq!(text, "rank 0 was given the unique ids in another order than rank 1");
        assert_eq!(claim(&first, 0).objection(0, &claim(&first, 2), 2), None);
        let others = ids(2);
        let text = claim(&first, 0).objection(0, &claim(&Ids::new(&others, 3).unwrap(), 1), 1).unwrap();
        assert_eq!(text, "rank 0 was given 3 unique ids, rank 1 2 that are not the same");
    }

    proptest! {
        #[test]
        fn shares_are_contiguous_and_even(n in 1u32..500, k in 1u32..20) {
            prop_assume!(k <= n);
            let shares: Vec<_> = (0..k).map(|index| share(index, n, k)).collect();
            prop_assert_eq!((shares[0].start, shares[k as usize - 1].end), (0, n));
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() >= pair[1].len()));
            prop_assert!(shares[0].len() - shares[k as usize - 1].len() <= 1);
            for (index, share) in shares.iter().enumerate() {
                prop_assert!(share.clone().all(|rank| share_of(rank, n, k) == index as u32));
            }
        }
    }
}
