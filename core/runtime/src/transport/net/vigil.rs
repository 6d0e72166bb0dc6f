//! What a rank that sleeps watches: the descriptors that news of its network edges come from.
//!
//! A network rings no bell. Where all peers are reached through one that says where its news come from
//! (`watch` of the contract), the ends of edges on which a poll found nothing put that here while somebody
//! is about to sleep, and the sleep is a `ppoll` of just these.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What one rank watches while it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// Threads that are about to sleep, or do.
    watchers: AtomicU32,
    watched: Mutex<Watched>,
    /// A descriptor was ready, and nothing has moved since.
    was_ready: AtomicBool,
}

#[derive(Debug, Default)]
struct Watched {
    at: Vec<libc::pollfd>,
    /// Something is waited for whose news come from nowhere.
    blind: bool,
}

impl Vigil {
    /// Somebody is about to sleep.
    pub(crate) fn begin(&self) {
        // Relaxed, here and below: the watcher polls its edges itself before it sleeps.
        self.watchers.fetch_add(1, Ordering::Relaxed);
    }

    /// He does not any more.
    pub(crate) fn end(&self) {
        self.was_ready.store(false, Ordering::Relaxed);
        if self.watchers.fetch_sub(1, Ordering::Relaxed) == 1 {
            drop(self.take());
        }
    }

    /// Whether somebody wants to know what to watch.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// News may come from here.
    pub(crate) fn add(&self, descriptor: i32, events: i16) {
        let mut watched = self.lock();
        match watched.at.iter_mut().find(|known| known.fd == descriptor) {
            Some(known) => known.events |= events,
            None => watched.at.push(libc::pollfd { fd: descriptor, events, revents: 0 }),
        }
    }

    /// News may come from elsewhere.
    pub(crate) fn add_unknown(&self) {
        self.lock().blind = true;
    }

    /// Sleeps until one of what was added since the last sleep is ready, at most `limit`, or for no reason; whether
    /// there was anything to watch. If nothing moved after the last time, that which was ready is not what is
    /// waited for: yields once instead.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let Watched { mut at, blind } = self.take();
        if at.is_empty() {
            return false;
        }
        if self.was_ready.swap(false, Ordering::Relaxed) {
            std::thread::yield_now();
            return true;
        }
        let limit = if blind { limit.min(BLIND) } else { limit };
        self.was_ready.store(sleep_on(&mut at, limit), Ordering::Relaxed);
        true
    }

    fn take(&self) -> Watched {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sleeps until one of these is ready, at most `limit`, or for no reason; whether one is.
pub(crate) fn sleep_on(at: &mut [libc::pollfd], limit: Duration) -> bool {
    let (tv_sec, tv_nsec) =
        (limit.as_secs() as libc::time_t, libc::c_long::from(limit.subsec_nanos() as i32));
    let limit = libc::timespec { tv_sec, tv_nsec };
    // SAFETY: an array of its length. A descriptor that was closed meanwhile is answered at once, and one that is
    // somebody else's by now is only looked at.
    unsafe { libc::ppoll(at.as_mut_ptr(), at.len() as libc::nfds_t, &raw const limit, std::ptr::null()) > 0 }
}

/// The longest sleep while news may come from elsewhere.
const BLIND: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_sleep_ends_when_something_is_ready() {
        let (reader, writer) = std::io::pipe().unwrap();
        let vigil = Vigil::default();
        vigil.begin();
        vigil.add(reader.as_raw_fd(), libc::POLLIN);
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                rustix::io::write(&writer, b"x").unwrap();
            });
            assert!(vigil.sleep(LONG));
        });
        assert!((Duration::from_millis(20)..LONG).contains(&started.elapsed()));
        // What was not added again is not watched again.
        assert!(!vigil.sleep(LONG));
    }

    #[test]
    fn what_is_ready_for_nothing_does_not_keep_others_from_the_core() {
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        let vigil = Vigil::default();
        vigil.begin();
        let sleep = |expected| {
            vigil.add(reader.as_raw_fd(), libc::POLLIN);
            assert!(vigil.sleep(LONG));
            assert_eq!(vigil.was_ready.load(Ordering::Relaxed), expected);
        };
        sleep(true);
        sleep(false);
        sleep(true);
        // Something moved.
        vigil.end();
        vigil.begin();
        sleep(true);
    }

    #[test]
    fn sleeps_are_short_where_news_come_from_elsewhere_too() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let vigil = Vigil::default();
        assert!(!vigil.is_on() && !vigil.sleep(LONG));
        vigil.begin();
        assert!(vigil.is_on());
        vigil.add(reader.as_raw_fd(), libc::POLLIN);
        vigil.add_unknown();
        let started = Instant::now();
        assert!(vigil.sleep(LONG));
        assert!(started.elapsed() < LONG);
        vigil.add(reader.as_raw_fd(), libc::POLLIN);
        vigil.add(reader.as_raw_fd(), libc::POLLOUT);
        assert_eq!(vigil.lock().at.len(), 1);
        vigil.end();
        assert!(vigil.lock().at.is_empty() && !vigil.is_on());
    }
}
