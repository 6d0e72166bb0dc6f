//! Capture: streams whose work goes into a graph.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use crate::code::*;
use crate::graph::{Graph, Node};
use crate::state::{self, devices, fresh};
use crate::stream::{self, Stream, Work};
use crate::symbols::{Out, item};

/// One capture, from its begin to its end.
pub(crate) struct Capture {
    id: u64,
    handle: usize,
    origin: usize,
    mode: i32,
    thread: ThreadId,
    pub(crate) graph: Arc<Mutex<Graph>>,
    is_invalid: AtomicBool,
    /// The streams that take part.
    streams: Mutex<Vec<Arc<Stream>>>,
}

/// What one stream has of a capture.
pub(crate) struct Part {
    pub(crate) capture: Arc<Capture>,
    /// What the next node waits for.
    tail: Vec<usize>,
}

/// Where in a capture an event was recorded. It does not keep the graph.
#[derive(Clone)]
pub(crate) struct Captured {
    capture: Weak<Capture>,
    nodes: Vec<usize>,
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

impl Capture {
    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid.load(Ordering::Relaxed)
    }
}

impl Part {
    pub(crate) fn captured(&self) -> Captured {
        Captured { capture: Arc::downgrade(&self.capture), nodes: self.tail.clone() }
    }

    /// Adds a node after what the stream has so far.
    pub(crate) fn add(&mut self, kind: &'static str, work: Work) {
        let node = Node { id: fresh(), kind, before: std::mem::take(&mut self.tail), work };
        self.tail.push(node.id);
        graph(&self.capture).nodes.push(node);
    }
}

/// Lets a stream take part in an event's capture, after the event.
pub(crate) fn join(stream: &Arc<Stream>, event: &Captured) -> Answer {
    let mut part = stream.part();
    let of_event = event.capture.upgrade();
    match (&mut *part, of_event) {
        (Some(part), Some(capture)) if Arc::ptr_eq(&part.capture, &capture) => part.tail.extend(&event.nodes),
        (Some(_), _) => return Err(CAPTURE_MERGE),
        (None, capture) => {
            let is_active = |capture: &Arc<Capture>| active().iter().any(|one| Arc::ptr_eq(one, capture));
            let capture = capture.filter(is_active).ok_or(CAPTURED_EVENT)?;
            streams(&capture).push(stream.clone());
            *part = Some(Part { capture, tail: event.nodes.clone() });
        }
    }
    if let Some(part) = &mut *part {
        part.tail.sort_unstable();
        part.tail.dedup();
    }
    Ok(())
}

/// A call that may wait breaks captures that forbid it, and fails.
pub(crate) fn breaks_others() -> Answer {
    let mode = MODE.get();
    let here = std::thread::current().id();
    let broken = |capture: &&Arc<Capture>| match (mode, capture.mode) {
        (RELAXED, _) | (_, RELAXED) => false,
        (GLOBAL, GLOBAL) => true,
        _ => capture.thread == here,
    };
    let mut is_broken = false;
    for capture in active().iter().filter(broken) {
        capture.is_invalid.store(true, Ordering::Relaxed);
        is_broken = true;
    }
    if is_broken { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// The legacy stream would have to wait for captured streams.
pub(crate) fn breaks_legacy(device: usize) -> Answer {
    let blocking = devices().all[device].blocking.lock().unwrap_or_else(PoisonError::into_inner);
    for stream in blocking.iter().filter_map(std::sync::Weak::upgrade) {
        if let Some(part) = &*stream.part() {
            part.capture.is_invalid.store(true, Ordering::Relaxed);
            return Err(CAPTURE_IMPLICIT);
        }
    }
    Ok(())
}

pub(crate) fn thread_exchange_stream_capture_mode(mode: Out<i32>) -> Answer {
    let new = mode.value();
    if !(GLOBAL..=RELAXED).contains(&new) {
        return Err(INVALID_VALUE);
    }
    mode.set(MODE.replace(new));
    Ok(())
}

pub(crate) fn stream_begin_capture(stream: usize, mode: i32) -> Answer {
    let found = stream::of(stream)?;
    if stream < 2 {
        return Err(CAPTURE_UNSUPPORTED);
    }
    let mut part = found.part();
    if part.is_some() {
        return Err(INVALID_VALUE);
    }
    let graph: Arc<Mutex<Graph>> = Arc::default();
    let handle = fresh();
    state::lock(|state| state.graphs.insert(handle, graph.clone()));
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        handle,
        origin: Arc::as_ptr(&found) as usize,
        mode,
        thread: std::thread::current().id(),
        graph,
        is_invalid: AtomicBool::new(false),
        streams: Mutex::new(vec![found.clone()]),
    });
    active().push(capture.clone());
    *part = Some(Part { capture, tail: Vec::new() });
    Ok(())
}

pub(crate) fn stream_end_capture(stream: usize, place: Out<usize>) -> Answer {
    let stream = stream::of(stream)?;
    let own = stream.part().as_ref().map(|part| (part.capture.clone(), part.tail.clone()));
    let (capture, tail) = own.ok_or(INVALID_VALUE)?;
    if capture.origin != Arc::as_ptr(&stream) as usize {
        return Err(CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
        return Err(WRONG_THREAD);
    }
    let joined = is_joined(&capture, &tail);
    for stream in streams(&capture).drain(..) {
        *stream.part() = None;
    }
    active().retain(|other| !Arc::ptr_eq(other, &capture));
    let ended = if capture.is_invalid() {
        Err(CAPTURE_INVALIDATED)
    } else if joined {
        Ok(())
    } else {
        Err(CAPTURE_UNJOINED)
    };
    match ended {
        Ok(()) => place.set(capture.handle),
        Err(_) => {
            place.set(0);
            drop(state::lock(|state| state.graphs.remove(&capture.handle)));
        }
    }
    ended
}

/// Ends every capture without a graph, as a failing end does.
pub(crate) fn abandon() {
    for capture in std::mem::take(&mut *active()) {
        for stream in streams(&capture).drain(..) {
            *stream.part() = None;
        }
        drop(state::lock(|state| state.graphs.remove(&capture.handle)));
    }
}

/// Whether what every stream did last comes before what the first stream waits for.
fn is_joined(capture: &Arc<Capture>, tail: &[usize]) -> bool {
    let graph = graph(capture);
    let (mut reached, mut left) = (Vec::new(), tail.to_vec());
    while let Some(id) = left.pop() {
        if !reached.contains(&id) {
            reached.push(id);
            left.extend(graph.nodes.iter().filter(|node| node.id == id).flat_map(|node| node.before.clone()));
        }
    }
    drop(graph);
    let streams = streams(capture).clone();
    let tails = streams.iter().filter_map(|stream| stream.part().as_ref().map(|part| part.tail.clone()));
    tails.flatten().all(|id| reached.contains(&id))
}

pub(crate) fn stream_is_capturing(stream: usize, status: Out<i32>) -> Answer {
    let found = stream::of(stream)?;
    if stream < 2 {
        breaks_legacy(found.device)?;
    }
    status.set(found.part().as_ref().map_or(0, |part| if part.capture.is_invalid() { 2 } else { 1 }));
    Ok(())
}

pub(crate) fn stream_capture_info(
    stream: usize,
    status: Out<i32>,
    id: Out<u64>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    count: Out<usize>,
) -> Answer {
    let found = stream::of(stream)?;
    let part = found.part();
    let Some(part) = &*part else {
        status.set(0);
        return Ok(());
    };
    status.set(if part.capture.is_invalid() { 2 } else { 1 });
    id.set(part.capture.id);
    graph.set(part.capture.handle);
    dependencies.set(part.tail.as_ptr() as usize);
    count.set(part.tail.len());
    Ok(())
}

pub(crate) fn stream_capture_info_with_edges(
    stream: usize,
    status: Out<i32>,
    id: Out<u64>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    _edges: Out<usize>,
    count: Out<usize>,
) -> Answer {
    stream_capture_info(stream, status, id, graph, dependencies, count)
}

pub(crate) fn stream_update_capture_dependencies(
    stream: usize,
    dependencies: usize,
    count: usize,
    flags: u32,
) -> Answer {
    let stream = stream::of(stream)?;
    let mut part = stream.part();
    let Some(part) = &mut *part else { return Err(INVALID_VALUE) };
    let nodes: Vec<usize> = (0..count).map(|index| item(dependencies, index)).collect();
    let known = |id: &usize| graph(&part.capture).nodes.iter().any(|node| node.id == *id);
    if !nodes.iter().all(known) {
        return Err(INVALID_VALUE);
    }
    if flags == SET {
        part.tail = nodes;
    } else {
        part.tail.extend(nodes);
    }
    Ok(())
}

pub(crate) fn stream_update_capture_dependencies_with_edges(
    stream: usize,
    dependencies: usize,
    _edges: usize,
    count: usize,
    flags: u32,
) -> Answer {
    stream_update_capture_dependencies(stream, dependencies, count, flags)
}

fn active() -> MutexGuard<'static, Vec<Arc<Capture>>> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn graph(capture: &Capture) -> MutexGuard<'_, Graph> {
    capture.graph.lock().unwrap_or_else(PoisonError::into_inner)
}

fn streams(capture: &Capture) -> MutexGuard<'_, Vec<Arc<Stream>>> {
    capture.streams.lock().unwrap_or_else(PoisonError::into_inner)
}

const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;
const SET: u32 = 1;
