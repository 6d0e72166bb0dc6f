//! What the ranks of a process have in common: made by the first that asks for it, gone with the last that has it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Such things by what they are called. Making one may wait for ranks that ask for others, or for one that is there, so each has
/// a lock of its own.
pub(super) struct Common<K, T> {
    places: Mutex<Vec<(K, Arc<Place<T>>)>>,
}

type Place<T> = Mutex<Weak<T>>;

impl<K: PartialEq, T> Common<K, T> {
    pub(super) const fn new() -> Common<K, T> {
        Common { places: Mutex::new(Vec::new()) }
    }

    /// What is called so. Waits for nobody but who is making the same.
    ///
    /// # Errors
    ///
    /// That of `make`; whoever asks next tries again.
    pub(super) fn of<E>(&self, key: K, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let place = self.place(key);
        let mut kept = lock(&place);
        if let Some(known) = kept.upgrade() {
            return Ok(known);
        }
        let made = Arc::new(make()?);
        *kept = Arc::downgrade(&made);
        Ok(made)
    }

    fn place(&self, key: K) -> Arc<Place<T>> {
        let mut places = lock(&self.places);
        // Whoever is at a place has it; where nobody is, no lock is waited for.
        places.retain(|(_, place)| Arc::strong_count(place) > 1 || lock(place).strong_count() > 0);
        if let Some((_, place)) = places.iter().find(|(known, _)| *known == key) {
            return Arc::clone(place);
        }
        let place = Arc::new(Place::default());
        places.push((key, Arc::clone(&place)));
        place
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_is_made_for_all_and_goes_with_the_last() {
        let common = Common::new();
        assert_eq!(common.of("a", || Err::<u32, _>("no")), Err("no"));
        let one = common.of("a", || Ok::<_, Infallible>(1)).unwrap();
        let same = common.of("a", || Ok::<_, Infallible>(2)).unwrap();
        assert_eq!((*one, *same), (1, 1));
        assert_eq!(common.of("b", || Ok::<_, Infallible>(3)).as_deref(), Ok(&3));
        drop((one, same));
        assert_eq!(common.of("a", || Ok::<_, Infallible>(4)).as_deref(), Ok(&4));
        assert_eq!(lock(&common.places).len(), 1, "what is gone takes no place");
    }

    /// A rank that is ahead makes what the other needs later, which ends when the other has got what both need now.
    #[test]
    fn what_is_there_is_had_while_something_else_is_made() {
        static COMMON: Common<&str, u32> = Common::new();
        let _first = COMMON.of("first", || Ok::<_, Infallible>(1)).unwrap();
        let (begun, begin) = mpsc::channel();
        let (goes_on, end) = mpsc::channel();
        let ahead = std::thread::spawn(move || {
            COMMON.of("second", || {
                begun.send(()).unwrap();
                end.recv_timeout(Duration::from_secs(10))
            })
        });
        begin.recv_timeout(Duration::from_secs(10)).unwrap();
        std::thread::spawn(move || {
            let found = COMMON.of("first", || Ok::<_, Infallible>(0)).unwrap();
            goes_on.send(*found + 1)
        });
        assert_eq!(ahead.join().unwrap().as_deref(), Ok(&2));
    }
}
