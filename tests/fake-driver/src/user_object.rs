//! What graphs keep.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use crate::code::*;
use crate::fail::call_back;
use crate::state::{self, fresh};
use crate::symbols::{HostFunction, Out};

/// Data of the program's; when nobody keeps it any more, its destructor is called on a thread of the driver's.
pub(crate) struct UserObject {
    data: usize,
    destroy: HostFunction,
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How many objects have not been destroyed.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Acquire)
}

impl Drop for UserObject {
    fn drop(&mut self) {
        let (destroy, data) = (self.destroy, self.data);
        std::thread::spawn(move || {
            call_back(destroy, data);
            LIVE.fetch_sub(1, Ordering::Release);
        });
    }
}

pub(crate) fn user_object_create(
    place: Out<usize>,
    data: usize,
    destroy: HostFunction,
    references: u32,
    flags: u32,
) -> Answer {
    if flags != NO_SYNC || references == 0 {
        return Err(INVALID_VALUE);
    }
    LIVE.fetch_add(1, Ordering::Relaxed);
    let (object, handle) = (Arc::new(UserObject { data, destroy }), fresh());
    state::lock(|state| state.objects.insert(handle, (object, references as usize)));
    place.set(handle);
    Ok(())
}

pub(crate) fn user_object_release(handle: usize, references: u32) -> Answer {
    let gone = state::lock(|state| {
        let (_, left) = state.objects.get_mut(&handle).ok_or(INVALID_VALUE)?;
        *left = left.checked_sub(references as usize).ok_or(INVALID_VALUE)?;
        Ok::<_, i32>(if *left == 0 { state.objects.remove(&handle) } else { None })
    })?;
    drop(gone);
    Ok(())
}

pub(crate) fn graph_retain_user_object(graph: usize, object: usize, references: u32, flags: u32) -> Answer {
    let graph = crate::graph::graph(graph)?;
    let found = state::lock(|state| state.objects.get(&object).map(|(object, _)| object.clone()));
    let found = found.ok_or(INVALID_VALUE)?;
    let mut graph = graph.lock().unwrap_or_else(PoisonError::into_inner);
    graph.keeps.extend(std::iter::repeat_n(found, references as usize));
    if flags & MOVE != 0 { user_object_release(object, references) } else { Ok(()) }
}

const NO_SYNC: u32 = 1;
const MOVE: u32 = 1;
