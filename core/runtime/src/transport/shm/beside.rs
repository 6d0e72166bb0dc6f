//! What the ranks of one process have in common: each region is mapped once, for all of them.
//!
//! Were each thread to map every other's region, n threads would make n² mappings: the system allows some
//! 65,000 for a process, and making them took most of the time of joining long before that.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::layout::Region;
use super::neighbours::Reachable;
use crate::error::Result;

/// The regions that ranks of one communicator reach from this process, while they connect.
#[derive(Debug)]
pub(super) struct Beside {
    /// How many ranks of this process connect.
    expected: usize,
    state: Mutex<State>,
    all_here: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Ranks of this process whose regions are here.
    here: usize,
    /// By the nonces that they show.
    regions: HashMap<Nonce, Arc<Region>>,
}

type Nonce = [u8; 32];

impl Beside {
    /// Where the ranks of this process with these nonces meet, in the order of ranks.
    pub(super) fn meet<'a>(nonces: impl Iterator<Item = &'a Nonce>) -> Arc<Beside> {
        let (mut hasher, mut expected) = (blake3::Hasher::new(), 0);
        for nonce in nonces {
            hasher.update(nonce);
            expected += 1;
        }
        let key: Nonce = hasher.finalize().into();
        let mut meetings = lock(&MEETINGS);
        meetings.retain(|(_, beside)| beside.strong_count() > 0);
        let met = meetings.iter().find(|(other, _)| *other == key).and_then(|(_, beside)| beside.upgrade());
        met.unwrap_or_else(|| {
            let (state, all_here) = (Mutex::default(), Condvar::new());
            let beside = Arc::new(Beside { expected, state, all_here });
            meetings.push((key, Arc::downgrade(&beside)));
            beside
        })
    }

    /// Brings the region of a rank of this process.
    pub(super) fn bring(&self, nonce: Nonce, region: &Arc<Region>) {
        let mut state = lock(&self.state);
        state.regions.insert(nonce, Arc::clone(region));
        state.here += 1;
        if state.here >= self.expected {
            self.all_here.notify_all();
        }
    }

    /// Waits until all ranks of this process have brought theirs, or `deadline`.
    ///
    /// Errors: those of `check`, which is called now and then.
    pub(super) fn wait(&self, deadline: Instant, check: &dyn Fn() -> Result<()>) -> Result<()> {
        loop {
            let limit = deadline.saturating_duration_since(Instant::now()).min(TICK);
            let missing = |state: &mut State| state.here < self.expected;
            let waited = self.all_here.wait_timeout_while(lock(&self.state), limit, missing);
            let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(state);
            if !timeout.timed_out() || Instant::now() >= deadline {
                return Ok(());
            }
            check()?;
        }
    }

    /// The regions that show these nonces, as far as they are mapped here.
    pub(super) fn regions<'a>(&self, nonces: impl Iterator<Item = &'a Nonce>) -> Vec<Option<Arc<Region>>> {
        let state = lock(&self.state);
        nonces.map(|nonce| state.regions.get(nonce).cloned()).collect()
    }

    /// The region that shows this nonce; maps it unless another rank of this process has.
    pub(super) fn map_once(&self, nonce: &Nonce, map: impl FnOnce() -> Result<Region, String>) -> Reachable {
        if let Some(region) = lock(&self.state).regions.get(nonce) {
            return Ok(Arc::clone(region));
        }
        let region = Arc::new(map()?);
        Ok(Arc::clone(lock(&self.state).regions.entry(*nonce).or_insert(region)))
    }
}

/// Where ranks of this process meet, by what they meet as. Empty but while some connect.
static MEETINGS: Mutex<Vec<(Nonce, Weak<Beside>)>> = Mutex::new(Vec::new());

/// A panic while a lock was held left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between two looks at what else may end the wait.
const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn ranks_of_a_process_meet_and_map_once() {
        let nonces: Vec<Nonce> = (0..8).map(|rank| [rank; 32]).collect();
        let (maps, stranger) = (AtomicU32::new(0), [99; 32]);
        std::thread::scope(|scope| {
            for rank in 0..8 {
                let (nonces, maps) = (&nonces, &maps);
                scope.spawn(move || {
                    let beside = Beside::meet(nonces.iter());
                    beside.bring(nonces[rank], &Arc::new(Region::for_tests(1)));
                    beside.wait(Instant::now() + Duration::from_secs(20), &|| Ok(())).unwrap();
                    assert!(beside.regions(nonces.iter()).iter().all(Option::is_some));
                    let mapped = beside.map_once(&stranger, || {
                        maps.fetch_add(1, Ordering::Relaxed);
                        Ok(Region::for_tests(1))
                    });
                    let found = beside.regions([&stranger].into_iter()).swap_remove(0);
                    assert!(Arc::ptr_eq(&mapped.unwrap(), &found.unwrap()));
                });
            }
        });
        assert!(maps.into_inner() >= 1);
        assert_eq!(Arc::strong_count(&Beside::meet(nonces.iter())), 1, "nothing is kept");
    }

    #[test]
    fn whoever_is_missing_is_waited_for_until_the_deadline() {
        let nonces = [[71; 32], [72; 32]];
        let beside = Beside::meet(nonces.iter());
        beside.bring(nonces[0], &Arc::new(Region::for_tests(1)));
        beside.wait(Instant::now() + Duration::from_millis(20), &|| Ok(())).unwrap();
        assert_eq!(beside.regions(nonces.iter()).iter().filter(|region| region.is_some()).count(), 1);
        let refused = beside.wait(Instant::now() + Duration::from_secs(20), &|| {
            Err(crate::error::Error::bug("what the test is about"))
        });
        assert!(refused.is_err());
    }
}
