//! Numbers for things that a contract names by number.

use std::num::NonZeroUsize;

use ccl_plugin::net::{Memory, Mr, Request};
use ccl_plugin::{Error, Result};

use crate::net;

/// Things by number, from 1; numbers are used again.
pub(super) struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots(Vec::new())
    }
}

impl<T> Slots<T> {
    pub(super) fn put(&mut self, value: T) -> NonZeroUsize {
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(value);
        NonZeroUsize::MIN.saturating_add(at)
    }

    pub(super) fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number.checked_sub(1)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.0.get_mut(number.checked_sub(1)?)?.as_mut()
    }

    pub(super) fn take(&mut self, number: usize) -> Option<T> {
        self.0.get_mut(number.checked_sub(1)?)?.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}

/// The kind of memory as the network inside takes it.
pub(super) fn kind(memory: &Memory) -> net::MemoryKind {
    memory.kind
}

/// The registration of the network inside.
pub(super) fn registered(mrs: &Slots<net::Mr>, mr: Mr) -> Result<&net::Mr> {
    mrs.get(mr.0)
        .ok_or_else(|| Error::invalid(format!("expected a registration of this comm, found {}", mr.0)))
}

/// The words for a request that is not there.
#[cold]
pub(super) fn unknown(request: Request) -> Error {
    Error::invalid(format!("expected a pending request of this comm, found {}", request.0))
}
