//! Requests in flight, without allocation.

use std::num::NonZeroUsize;

use ccl_plugin::Error;
use ccl_plugin::net::Request;

/// Requests that fit in flight on one comm.
pub(crate) const SLOTS: usize = 256;

/// A ring of requests, named by a sequence number that never comes back.
pub(crate) struct Slots<T> {
    ring: Box<[Entry<T>]>,
    next: usize,
}

struct Entry<T> {
    /// Which request is here, while one is.
    sequence: Option<usize>,
    value: T,
}

impl<T: Default> Slots<T> {
    pub(crate) fn new() -> Slots<T> {
        let entry = || Entry { sequence: None, value: T::default() };
        Slots { ring: std::iter::repeat_with(entry).take(SLOTS).collect(), next: 0 }
    }

    /// Whether `count` requests can be taken in a row.
    #[inline]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        (0..count).all(|ahead| self.ring[(self.next + ahead) % SLOTS].sequence.is_none())
    }

    /// Takes the next place; [`Slots::has_room`] said there is one.
    #[inline]
    pub(crate) fn take(&mut self, value: T) -> usize {
        let (sequence, index) = (self.next, self.next % SLOTS);
        self.ring[index] = Entry { sequence: Some(sequence), value };
        self.next += 1;
        sequence
    }

    /// The value of a request in flight.
    #[inline]
    pub(crate) fn at(&mut self, sequence: usize) -> &mut T {
        &mut self.ring[sequence % SLOTS].value
    }

    /// Gives a place back.
    #[inline]
    pub(crate) fn free(&mut self, sequence: usize) {
        self.ring[sequence % SLOTS].sequence = None;
    }

    /// The sequence number of a request the host holds.
    #[inline]
    pub(crate) fn find(&self, request: Request) -> Result<usize, Error> {
        let sequence = request.0.get() - 1;
        match self.ring[sequence % SLOTS].sequence {
            Some(found) if found == sequence => Ok(sequence),
            _ => Err(Error::invalid(format!("expected a pending request, found number {sequence}"))),
        }
    }
}

/// What the host holds for a sequence number.
#[inline]
pub(crate) fn request(sequence: usize) -> Request {
    Request(NonZeroUsize::MIN.saturating_add(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_but_numbers_do_not() {
        let mut slots = Slots::<u8>::new();
        let first = slots.take(7);
        for _ in 1..SLOTS {
            slots.take(0);
        }
        assert!(!slots.has_room(1));
        assert_eq!(slots.find(request(first)).unwrap(), first);
        slots.free(first);
        assert!(slots.has_room(1) && !slots.has_room(2));
        let again = slots.take(8);
        assert_ne!(again, first);
        assert!(slots.find(request(first)).is_err());
        assert_eq!(*slots.at(slots.find(request(again)).unwrap()), 8);
    }
}
