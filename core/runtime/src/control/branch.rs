//! Beginning a communicator on the control connection of another.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ccl_plan::Rank;

use super::shared::{Shared, lock};
use super::{Control, GRACE};
use crate::bootstrap::infos::Infos;
use crate::bootstrap::process::Process;
use crate::bootstrap::wire::{self, Host, ToMember, ToRoot};
use crate::control::member::Keepers;
use crate::error::{Error, Fault, Result};

/// A communicator that this rank is joining on a connection that it has.
pub(super) struct Sprout {
    pub(super) branch: u64,
    rank: Rank,
    n: u32,
    found: Mutex<Option<Result<Begun>>>,
    changed: Condvar,
}

/// A communicator that has begun, and the infos of its ranks.
type Begun = (Arc<Shared>, Infos);

impl Sprout {
    /// The root's first word; the communicator, if it has begun.
    pub(super) fn answered(&self, body: &[u8], parent: &Shared) -> Option<Arc<Shared>> {
        let begun = match wire::decode(body) {
            Some(ToMember::Table { infos, root, hosts, head }) if infos.len() == self.n as usize => {
                let keepers = Keepers { root: Host { process: root, ranks: hosts }, head };
                let of = (parent.this.clone(), keepers, (Arc::clone(&parent.trunk), self.branch));
                Ok((Arc::new(Shared::new((self.rank, self.n), of.0, of.1, of.2)), infos))
            }
            Some(ToMember::Refused(refusal)) => Err(Error::new(
                refusal.fault.into(),
                refusal.text,
                "look at the named rank first: its log says more",
            )),
            _ => Err(Error::bug("expected the table of ranks from the root, found something else")),
        };
        let shared = begun.as_ref().ok().map(|(shared, _)| Arc::clone(shared));
        self.settle(begun);
        shared
    }

    /// The root says this of the head.
    pub(super) fn head_news(&self, body: &[u8]) {
        if let Some(ToMember::HeadLost { .. }) = wire::decode(body) {
            self.lost();
        }
    }

    /// The connection ended first.
    pub(super) fn lost(&self) {
        self.settle(Err(Error::new(
            Fault::Network,
            "the control connection ended while a communicator was made from this one",
            "see why the process that made the unique id ended",
        )));
    }

    fn settle(&self, begun: Result<Begun>) {
        lock(&self.found).get_or_insert(begun);
        self.changed.notify_all();
    }

    /// Waits for the root's word, `patience` at most or until `parent` has failed.
    fn wait(&self, parent: &Shared, patience: Duration) -> Result<Begun> {
        let until = Instant::now() + patience;
        let mut found = lock(&self.found);
        loop {
            if let Some(begun) = found.take() {
                return begun;
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(parent.root_silent());
            }
            if let Some(error) = parent.alarm.error() {
                return Err(error);
            }
            let waited = self.changed.wait_timeout(found, rest.min(LOOK_AT_PARENT));
            found = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl Control {
    /// Joins, as `rank` of `n`, communicator `branch` on this one's connection; every rank gets every rank's
    /// `info`, by rank. All its ranks are ranks of this communicator, and agree on a number that is not 0 and
    /// that no other communicator on these connections has.
    ///
    /// Blocks until all are in, at most 1.5 s longer than the deadline.
    ///
    /// # Errors
    ///
    /// Names the missing ranks and those present, or the rank that failed with its reason.
    pub(crate) fn begin(
        &self,
        branch: u64,
        (rank, n): (Rank, u32),
        info: Vec<u8>,
    ) -> Result<(Control, Infos)> {
        self.usable()?;
        let sprout =
            Arc::new(Sprout { branch, rank, n, found: Mutex::default(), changed: Condvar::default() });
        self.shared.trunk.sprouts().push(Arc::clone(&sprout));
        let remaining_ms = self.patience.as_millis() as u64;
        let first = ToRoot::Join { process: Process::this(), remaining_ms, info: wire::blob(&info) };
        let begun = self.say_first(branch, (rank, n), &first);
        let begun = begun.and_then(|()| sprout.wait(&self.shared, self.patience + GRACE));
        self.shared.trunk.sprouts().retain(|other| !Arc::ptr_eq(other, &sprout));
        let (shared, infos) = begun?;
        let mut children = lock(&self.shared.children);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&shared));
        drop(children);
        Ok((Control { shared, patience: self.patience }, infos))
    }

    /// The number of the communicator that split `split` makes of ranks with this color.
    pub(crate) fn number_of_branch(&self, split: u64, color: u32) -> u64 {
        let mut hasher = blake3::Hasher::new();
        for word in [self.shared.branch, split, u64::from(color)] {
            hasher.update(&word.to_le_bytes());
        }
        let bytes = hasher.finalize();
        bytes.as_bytes().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1))
    }

    /// Instead of [`Control::begin`]: makes its other ranks give up, naming this one and `reason`.
    pub(crate) fn begin_failed(&self, branch: u64, who: (Rank, u32), reason: &str) {
        if let Err(error) = self.say_first(branch, who, &ToRoot::Fail { reason: wire::bounded(reason) }) {
            tracing::debug!(target: "ccl::control", %error, "could not announce a failure");
        }
    }

    fn say_first(&self, branch: u64, (rank, n): (Rank, u32), first: &ToRoot) -> Result<()> {
        let body = wire::body(first).into();
        self.shared.send_outside(&ToRoot::Begin { branch, rank: rank.0, n, body })
    }
}

/// Between two looks at whether the communicator that one is made from has failed.
const LOOK_AT_PARENT: Duration = Duration::from_millis(50);
