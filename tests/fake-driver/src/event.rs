//! Events: two counters, of what was recorded and of what was reached. Those of other processes lie in shared memory.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags};

use crate::arena::{PAGE, memory_file};
use crate::capture::{self, Captured};
use crate::code::*;
use crate::state::{self, current, fresh};
use crate::stream::{self, Stream, until};
use crate::symbols::Out;

pub(crate) struct Event {
    pub(crate) flags: u32,
    counters: Counters,
    /// When it was reached last.
    reached: Mutex<Option<Instant>>,
    /// Where in a capture it was recorded.
    captured: Mutex<Option<Captured>>,
}

/// A page with two counters, so that other processes can map it.
pub(crate) struct Counters {
    page: usize,
    pub(crate) file: Option<OwnedFd>,
}

impl Counters {
    fn new(file: OwnedFd) -> Answer<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses.
        let page =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, protection, MapFlags::SHARED, &file, 0) };
        Ok(Self { page: page.map_err(|_| OUT_OF_MEMORY)? as usize, file: Some(file) })
    }

    fn private() -> Self {
        let counters: Box<[AtomicU64; 2]> = Box::default();
        Self { page: Box::into_raw(counters) as usize, file: None }
    }

    fn both(&self) -> &[AtomicU64; 2] {
        // SAFETY: the page or the box has two aligned counters, and lives as long as `self`.
        unsafe { &*(self.page as *const [AtomicU64; 2]) }
    }

    fn recorded(&self) -> &AtomicU64 {
        &self.both()[0]
    }

    fn reached(&self) -> &AtomicU64 {
        &self.both()[1]
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if self.file.is_some() {
            // SAFETY: mapped by `new`; nobody else has the address.
            let _ = unsafe { rustix::mm::munmap(self.page as *mut _, PAGE) };
        } else {
            // SAFETY: made by `private`.
            drop(unsafe { Box::from_raw(self.page as *mut [AtomicU64; 2]) });
        }
    }
}

impl Event {
    fn new(flags: u32, counters: Counters) -> Arc<Self> {
        Arc::new(Self { flags, counters, reached: Mutex::default(), captured: Mutex::default() })
    }

    /// The event of a file that this or another process made.
    pub(crate) fn open(file: OwnedFd) -> Answer<Arc<Self>> {
        Ok(Self::new(INTERPROCESS | NO_TIMING, Counters::new(file)?))
    }

    /// The descriptor that others open it by.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        self.counters.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn reach(&self, number: u64) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.counters.reached().fetch_max(number, Ordering::Release);
    }

    fn is_done(&self) -> bool {
        self.has_reached(self.counters.recorded().load(Ordering::Acquire))
    }

    fn has_reached(&self, number: u64) -> bool {
        self.counters.reached().load(Ordering::Acquire) >= number
    }

    fn captured(&self) -> Option<Captured> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) fn event_create(place: Out<usize>, flags: u32) -> Answer {
    current()?;
    if flags & INTERPROCESS != 0 && flags & NO_TIMING == 0 {
        return Err(INVALID_VALUE);
    }
    let counters = if flags & INTERPROCESS != 0 {
        Counters::new(memory_file("ccl-fake-event", PAGE)?)?
    } else {
        Counters::private()
    };
    place.set(insert(Event::new(flags, counters)));
    Ok(())
}

pub(crate) fn insert(event: Arc<Event>) -> usize {
    let handle = fresh();
    state::lock(|state| state.events.insert(handle, event));
    handle
}

pub(crate) fn of(handle: usize) -> Answer<Arc<Event>> {
    state::lock(|state| state.events.get(&handle).cloned()).ok_or(INVALID_HANDLE)
}

pub(crate) fn event_destroy(handle: usize) -> Answer {
    state::lock(|state| state.events.remove(&handle)).map(drop).ok_or(INVALID_HANDLE)
}

pub(crate) fn event_record(event: usize, stream: usize) -> Answer {
    event_record_with_flags(event, stream, 0)
}

pub(crate) fn event_record_with_flags(event: usize, stream: usize, flags: u32) -> Answer {
    let (event, stream) = (of(event)?, stream::of(stream)?);
    let captured = stream.part().as_ref().map(capture::Part::captured);
    let is_external = flags & EXTERNAL != 0;
    if is_external && captured.is_none() {
        return Err(INVALID_VALUE);
    }
    *event.captured.lock().unwrap_or_else(PoisonError::into_inner) =
        captured.clone().filter(|_| !is_external);
    if captured.is_some() && !is_external {
        return Ok(());
    }
    record(event, &stream, captured.is_some())
}

fn record(event: Arc<Event>, stream: &Arc<Stream>, is_captured: bool) -> Answer {
    let now = if is_captured { 0 } else { event.counters.recorded().fetch_add(1, Ordering::AcqRel) + 1 };
    let work = move || {
        let number =
            if is_captured { event.counters.recorded().fetch_add(1, Ordering::AcqRel) + 1 } else { now };
        event.reach(number);
        Ok(())
    };
    stream.submit("record", Arc::new(work))
}

pub(crate) fn stream_wait_event(stream: usize, event: usize, _flags: u32) -> Answer {
    let (event, stream) = (of(event)?, stream::of(stream)?);
    if let Some(captured) = event.captured() {
        return capture::join(&stream, &captured);
    }
    if stream.part().is_some() {
        return Err(CAPTURE_ISOLATION);
    }
    let number = event.counters.recorded().load(Ordering::Acquire);
    let work = move || {
        until(|| event.has_reached(number));
        Ok(())
    };
    stream.submit("wait", Arc::new(work))
}

pub(crate) fn event_query(event: usize) -> Answer {
    capture::breaks_others()?;
    let event = of(event)?;
    if event.captured().is_some() {
        return Err(CAPTURED_EVENT);
    }
    if event.is_done() { crate::device::failed() } else { Err(NOT_READY) }
}

pub(crate) fn event_synchronize(event: usize) -> Answer {
    capture::breaks_others()?;
    let event = of(event)?;
    if event.captured().is_some() {
        return Err(CAPTURED_EVENT);
    }
    until(|| event.is_done());
    crate::device::failed()
}

pub(crate) fn event_elapsed_time(milliseconds: Out<f32>, start: usize, end: usize) -> Answer {
    let (start, end) = (of(start)?, of(end)?);
    if (start.flags | end.flags) & NO_TIMING != 0 {
        return Err(INVALID_HANDLE);
    }
    if !start.is_done() || !end.is_done() {
        return Err(NOT_READY);
    }
    let at = |event: &Event| *event.reached.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(start), Some(end)) = (at(&start), at(&end)) else { return Err(INVALID_HANDLE) };
    let later = end.saturating_duration_since(start).as_secs_f32();
    milliseconds.set((later - start.saturating_duration_since(end).as_secs_f32()) * 1e3);
    Ok(())
}

const NO_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;
const EXTERNAL: u32 = 1;
