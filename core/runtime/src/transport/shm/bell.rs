//! The bell: how a rank that sleeps hears that something moved.
//!
//! Each region has one. Its owner announces in `waiting` that it is about to sleep; whoever posts
//! to it or gives it a credit looks there and rings. The look costs one load of a line that hardly
//! ever changes, and no fence: the store that published the message may still be on its way when
//! `waiting` is read, and the sleeper may check its edges just before and sleep just after. Such a
//! ring is lost, and the sleeper finds the message when its bounded sleep ends (at most a
//! millisecond). A fence would cost every message what this costs hardly any.
//!
//! A rank whose peers are all reached through a network sleeps on what its [`Vigil`] watches instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use super::layout::Region;
use crate::transport::net::Vigil;

/// The two words in a region's header.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct BellLine {
    rings: AtomicU32,
    waiting: AtomicU32,
}

/// A rank's own bell. Cheap to clone; keeps the region mapped.
#[derive(Clone, Debug)]
pub struct Bell {
    region: Arc<Region>,
    vigil: Option<Arc<Vigil>>,
}

impl BellLine {
    /// Wakes the owner if it sleeps.
    #[inline]
    pub(super) fn ring_if_awaited(&self) {
        // Relaxed: see the module text for why no ordering is needed.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // Release pairs with the load in `Bell::rings`: what was posted is visible to the woken.
        self.rings.fetch_add(1, Ordering::Release);
        // Shared, not private: the sleeper is another process. A failure only delays it.
        let _ = futex::wake(&self.rings, futex::Flags::empty(), i32::MAX as u32);
    }
}

impl Bell {
    pub(crate) fn of(region: Arc<Region>) -> Bell {
        Bell { region, vigil: None }
    }

    /// The bell of a rank with edges through a network only, which tell a vigil where their news come from.
    pub(in crate::transport) fn with_vigil(self, vigil: Option<Arc<Vigil>>) -> Bell {
        Bell { vigil, ..self }
    }

    /// Announces a sleeper. It must look at its edges once more before [`Bell::sleep`], and
    /// [`Bell::disarm`] in the end. Returns the rings so far, for `sleep`.
    pub fn arm(&self) -> u32 {
        // SeqCst orders this before the sleeper's next look at its edges on its own side; on the
        // posting side nothing answers it, which is what bounded sleeps are for.
        self.line().waiting.fetch_add(1, Ordering::SeqCst);
        self.vigil.iter().for_each(|vigil| vigil.begin());
        self.rings()
    }

    /// Takes the announcement back.
    pub fn disarm(&self) {
        self.line().waiting.fetch_sub(1, Ordering::Relaxed);
        self.vigil.iter().for_each(|vigil| vigil.end());
    }

    /// Rings so far.
    pub fn rings(&self) -> u32 {
        // Acquire pairs with the increment in `BellLine::ring`.
        self.line().rings.load(Ordering::Acquire)
    }

    /// Sleeps until the bell has rung more often than `heard`, at most `limit`, or for no reason.
    pub fn sleep(&self, heard: u32, limit: Duration) {
        let limit = match &self.vigil {
            Some(vigil) if vigil.sleep(limit) => return,
            // It knew of nothing: the network is not heard.
            Some(_) => limit.min(NETWORK_SLEEP),
            None => limit,
        };
        let Ok(limit) = limit.try_into() else { return };
        self.region.turns().wake_follower();
        self.region.presence().leave(|| {
            // EAGAIN (rung meanwhile), ETIMEDOUT and EINTR all mean: look again.
            let _ = futex::wait(&self.line().rings, futex::Flags::empty(), heard, Some(&limit));
        });
    }

    /// Lets others have the core, and has peers know.
    #[inline]
    pub(crate) fn yield_core(&self) {
        self.leave_core(std::thread::yield_now);
    }

    /// Does something that leaves the core to others, and has peers know.
    #[inline]
    pub(in crate::transport) fn leave_core(&self, leaves: impl FnOnce()) {
        self.region.turns().wake_follower();
        self.region.presence().leave(leaves);
    }

    /// Wakes whoever sleeps on this bell: for another thread of the same rank, to end a wait.
    pub fn ring(&self) {
        self.line().ring();
    }

    fn line(&self) -> &BellLine {
        self.region.bell()
    }
}

/// The longest sleep where news may come from a network that nothing tells of.
pub(in crate::transport) const NETWORK_SLEEP: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn bell() -> Bell {
        Bell::of(Arc::new(Region::for_tests(1)))
    }

    #[test]
    fn a_ring_between_arming_and_sleeping_is_not_missed() {
        let bell = bell();
        let heard = bell.arm();
        bell.line().ring_if_awaited();
        let start = Instant::now();
        bell.sleep(heard, Duration::from_secs(10));
        assert!(start.elapsed() < Duration::from_secs(5));
        bell.disarm();
        bell.line().ring_if_awaited();
        assert_eq!(bell.rings(), heard + 1, "nobody waits any more");
    }

    #[test]
    fn a_sleeper_in_another_thread_is_woken() {
        let bell = bell();
        let sleeper = bell.clone();
        let heard = bell.arm();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            sleeper.sleep(heard, Duration::from_secs(10));
            start.elapsed()
        });
        std::thread::sleep(Duration::from_millis(20));
        bell.line().ring_if_awaited();
        assert!(thread.join().unwrap() < Duration::from_secs(5));
    }

    #[test]
    fn a_sleep_is_bounded() {
        let bell = bell();
        let start = Instant::now();
        bell.sleep(bell.arm(), Duration::from_millis(5));
        assert!(start.elapsed() >= Duration::from_millis(4));
    }
}
