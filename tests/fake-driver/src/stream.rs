//! Streams: threads with a queue.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::capture::{Part, breaks_legacy};
use crate::code::{Answer, CAPTURE_INVALIDATED, INVALID_HANDLE};
use crate::state;

/// What a stream does once, or a graph many times.
pub(crate) type Work = Arc<dyn Fn() -> Answer + Send + Sync>;

/// A stream of one device.
pub(crate) struct Stream {
    pub(crate) device: usize,
    /// Whether it waits for the legacy stream.
    pub(crate) is_blocking: bool,
    pub(crate) priority: i32,
    queue: Mutex<Queue>,
    news: Condvar,
    submitted: AtomicU64,
    completed: AtomicU64,
    /// Its part in a capture.
    pub(crate) part: Mutex<Option<Part>>,
    /// What it comes to its device through, where there are few.
    connection: Option<&'static Connection>,
}

/// A queue of the device that several streams share: nothing in it begins before what was put there earlier, on whatever stream,
/// has begun.
#[derive(Default)]
struct Connection {
    submitted: AtomicU64,
    begun: AtomicU64,
}

/// How far other streams must have come first, its turn, and what is done then.
type Item = (Vec<(Arc<Stream>, u64)>, Turn, Work);

/// The number of an item in its stream's connection, and whether it waits for other streams.
#[derive(Clone, Copy)]
struct Turn {
    number: u64,
    waits: bool,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Item>,
    has_thread: bool,
}

thread_local! {
    /// The default stream of this thread on each device.
    static OF_THREAD: RefCell<HashMap<usize, Arc<Stream>>> = RefCell::default();
}

impl Stream {
    pub(crate) fn new(device: usize, is_blocking: bool, priority: i32) -> Arc<Self> {
        Arc::new(Self {
            device,
            is_blocking,
            priority,
            queue: Mutex::default(),
            news: Condvar::new(),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            part: Mutex::default(),
            connection: Connection::next(device),
        })
    }

    /// Puts work on the stream, or into the graph that it is captured into.
    pub(crate) fn submit(self: &Arc<Self>, kind: &'static str, work: Work) -> Answer {
        if let Some(part) = &mut *self.part() {
            if part.capture.is_invalid() {
                return Err(CAPTURE_INVALIDATED);
            }
            part.add(kind, work);
            return Ok(());
        }
        if self.is_legacy() {
            breaks_legacy(self.device)?;
        }
        self.enqueue(kind, work);
        Ok(())
    }

    /// Puts work on the queue and says its number.
    fn enqueue(self: &Arc<Self>, kind: &'static str, work: Work) -> u64 {
        let before = self.others_to_wait_for();
        state::devices().all[self.device].outstanding.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.submitted.fetch_add(1, Ordering::Release) + 1;
        let place = self.connection.map_or(0, |shared| shared.submitted.fetch_add(1, Ordering::Relaxed));
        let turn = Turn { number: place, waits: kind == "wait" };
        queue.work.push_back((before, turn, work));
        if !std::mem::replace(&mut queue.has_thread, true) {
            let stream = self.clone();
            std::thread::spawn(move || stream.run());
        }
        self.news.notify_one();
        number
    }

    /// The rules of the legacy stream: it waits for all blocking streams, and they for it.
    fn others_to_wait_for(&self) -> Vec<(Arc<Stream>, u64)> {
        let device = &state::devices().all[self.device];
        let mut others = Vec::new();
        if self.is_legacy() {
            let blocking = device.blocking.lock().unwrap_or_else(PoisonError::into_inner);
            others.extend(blocking.iter().filter_map(std::sync::Weak::upgrade));
        } else if self.is_blocking {
            others.push(device.legacy.clone());
        }
        let waits = others.into_iter().map(|other| (other.submitted.load(Ordering::Acquire), other));
        waits
            .filter(|(number, other)| !other.is_done(*number))
            .map(|(number, other)| (other, number))
            .collect()
    }

    fn is_legacy(&self) -> bool {
        std::ptr::eq(self, Arc::as_ptr(&state::devices().all[self.device].legacy))
    }

    /// The stream's thread: ends when nothing was queued for a while.
    fn run(self: Arc<Self>) {
        while let Some((before, turn, work)) = self.next() {
            for (other, number) in before {
                until(|| other.is_done(number));
            }
            self.take(turn, false);
            let device = &state::devices().all[self.device];
            // After a failure that stays nothing runs any more, but the queue still drains.
            if device.sticky.load(Ordering::Relaxed) == 0
                && let Err(code) = work()
            {
                device.sticky.store(code, Ordering::Relaxed);
            }
            self.take(turn, true);
            drop(work);
            self.completed.fetch_add(1, Ordering::Release);
            device.outstanding.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for the item's turn and lets the next one have its own: what waits for other streams only once it has.
    fn take(&self, turn: Turn, is_done: bool) {
        let Some(shared) = self.connection else { return };
        if !is_done {
            until(|| shared.begun.load(Ordering::Acquire) == turn.number);
        }
        if is_done == turn.waits {
            shared.begun.store(turn.number + 1, Ordering::Release);
        }
    }

    fn next(&self) -> Option<Item> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            let (back, timeout) = self.news.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = back;
            if timeout.timed_out() && queue.work.is_empty() {
                queue.has_thread = false;
                return None;
            }
        }
    }

    fn is_done(&self, number: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= number
    }

    /// Whether everything is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_done(self.submitted.load(Ordering::Acquire))
    }

    /// Waits until everything that is queued now is done. For the legacy stream also what that waits for.
    pub(crate) fn synchronize(self: &Arc<Self>) {
        if self.is_legacy() {
            let before = self.others_to_wait_for();
            before.iter().for_each(|(other, number)| until(|| other.is_done(*number)));
        }
        let number = self.submitted.load(Ordering::Acquire);
        until(|| self.is_done(number));
    }

    pub(crate) fn part(&self) -> MutexGuard<'_, Option<Part>> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// That of a new stream: one of its device's after the other. None where every stream has its own.
    fn next(device: usize) -> Option<&'static Connection> {
        let each =
            |_| (0..state::setting("CCL_FAKE_CONNECTIONS", 0)).map(|_| Connection::default()).collect();
        let devices = || {
            (0..state::setting("CCL_FAKE_DEVICES", 2).max(1)).map(|index| (AtomicU64::new(0), each(index)))
        };
        let (streams, all) = CONNECTIONS.get_or_init(|| devices().collect()).get(device)?;
        let place = streams.fetch_add(1, Ordering::Relaxed) as usize;
        all.get(place % all.len().max(1))
    }
}

/// By device: how many streams there have been, and the connections.
static CONNECTIONS: OnceLock<Vec<(AtomicU64, Vec<Connection>)>> = OnceLock::new();

/// The stream of a handle, in the current context.
pub(crate) fn of(handle: usize) -> Answer<Arc<Stream>> {
    let device = state::current()?;
    match handle {
        0 | 1 => Ok(state::devices().all[device].legacy.clone()),
        2 => Ok(OF_THREAD.with_borrow_mut(|streams| {
            streams.entry(device).or_insert_with(|| register(Stream::new(device, true, 0))).clone()
        })),
        _ => state::lock(|state| state.streams.get(&handle).cloned()).ok_or(INVALID_HANDLE),
    }
}

/// Makes a blocking stream known to the legacy stream.
pub(crate) fn register(stream: Arc<Stream>) -> Arc<Stream> {
    if stream.is_blocking {
        let device = &state::devices().all[stream.device];
        let mut blocking = device.blocking.lock().unwrap_or_else(PoisonError::into_inner);
        blocking.retain(|other| other.strong_count() > 0);
        blocking.push(Arc::downgrade(&stream));
    }
    stream
}

/// Waits for something that another thread or process does.
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    for turn in 0u32.. {
        if done() {
            return;
        }
        match turn {
            0..100 => std::hint::spin_loop(),
            100..200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// How long a stream without work keeps its thread.
const IDLE: Duration = Duration::from_millis(200);
