//! Windows: memory that all ranks of a communicator have registered together.

use std::sync::{Arc, Weak};

use ccl_plan::Rank;

use super::alloc::{Memory, Pages};
use super::region::Mapping;

/// This rank's handle on a [`Memory`] registered with a communicator, made by
/// [`Communicator::register`](crate::Communicator::register).
///
/// While every rank keeps its handle, long collectives whose buffers lie in the window on all ranks move
/// data straight between them. Once a rank has dropped its handle such calls take the ordinary way, with
/// the same results; ranks may drop their handles in any order, at any time between calls, and before or
/// after the communicator and the memory. Dropping one never blocks.
#[derive(Debug)]
pub struct Window {
    registered: Arc<Registered>,
}

/// What a window is to the rank that holds it.
#[derive(Debug)]
pub(crate) struct Registered {
    /// The same on all ranks: how many windows were registered before, plus 1.
    id: u32,
    own: Arc<Pages>,
    views: Views,
}

/// How this rank reaches the memories of all.
#[derive(Debug)]
pub(crate) enum Views {
    /// By rank; the own one is `None`.
    Mapped(Vec<Option<Mapping>>),
    /// At their own addresses: all ranks are threads of this process.
    OneProcess,
    /// Not at all, and why.
    Refused(String),
}

/// The windows that a rank has handles on. Used by one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    registered: u32,
    known: Vec<Weak<Registered>>,
}

/// A buffer's place in a window.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) window: Arc<Registered>,
    /// Bytes from the start of the rank's memory.
    pub(crate) offset: usize,
}

impl Window {
    /// Why long collectives on this memory take the ordinary way; `None` if they need not. The same on all
    /// ranks but for the words.
    pub fn refusal(&self) -> Option<&str> {
        match &self.registered.views {
            Views::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

impl Registered {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn own(&self) -> &Arc<Pages> {
        &self.own
    }

    /// Where `bytes` bytes, `offset` into the memory of `rank`, lie in this process; `None` if they do not
    /// lie in it.
    pub(crate) fn address(&self, rank: Rank, offset: usize, bytes: usize) -> Option<*mut u8> {
        let Views::Mapped(mappings) = &self.views else { return None };
        if offset.checked_add(bytes)? > self.own.bytes() {
            return None;
        }
        // All ranks' memories have the same length.
        Some(match mappings.get(rank.index())? {
            Some(mapping) => mapping.at(offset).as_ptr(),
            None => self.own.at(offset),
        })
    }
}

impl Windows {
    /// Adds the window that all ranks are registering.
    pub(crate) fn add(&mut self, memory: &Memory, views: Views) -> Window {
        self.registered += 1;
        let registered = Arc::new(Registered { id: self.registered, own: Arc::clone(memory.pages()), views });
        self.known.retain(|window| window.strong_count() > 0);
        if matches!(registered.views, Views::Mapped(_)) {
            self.known.push(Arc::downgrade(&registered));
        }
        Window { registered }
    }

    /// The window that this rank's buffer lies in, if it has a handle on one.
    pub(crate) fn find(&self, address: *const u8, bytes: usize) -> Option<Place> {
        self.known.iter().find_map(|window| {
            let window = window.upgrade()?;
            let offset = window.own.offset_of(address, bytes)?;
            (!window.own.is_detached()).then_some(Place { window, offset })
        })
    }
}
