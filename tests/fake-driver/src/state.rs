//! Everything the driver knows, and who is where.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::arena::Arena;
use crate::code::{Answer, INVALID_CONTEXT, INVALID_DEVICE};
use crate::event::Event;
use crate::graph::{Exec, Graph};
use crate::memory::Range;
use crate::stream::Stream;
use crate::user_object::UserObject;
use crate::virtual_memory::Physical;

/// The devices. They live as long as the process.
pub(crate) struct Devices {
    pub(crate) all: Vec<Device>,
    pub(crate) version: i32,
    /// Times ten.
    pub(crate) capability: i32,
    /// Of each; the last is that of all behind it.
    multiprocessors: Vec<i32>,
    /// Whether what makes or frees memory or loads code waits for all work of its device.
    making_waits: bool,
}

/// One device and its primary context.
pub(crate) struct Device {
    pub(crate) arena: Arena,
    pub(crate) retained: AtomicUsize,
    /// The code that every call answers after a failure that stays.
    pub(crate) sticky: AtomicI32,
    /// What was put on streams and is not done.
    pub(crate) outstanding: AtomicUsize,
    /// Kernels that run.
    pub(crate) running: AtomicUsize,
    pub(crate) legacy: Arc<Stream>,
    /// Streams that wait for the legacy stream, and it for them.
    pub(crate) blocking: Mutex<Vec<Weak<Stream>>>,
}

/// What programs have handles of.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) streams: HashMap<usize, Arc<Stream>>,
    pub(crate) events: HashMap<usize, Arc<Event>>,
    pub(crate) modules: HashMap<usize, ()>,
    /// Every range of memory, by where it begins.
    pub(crate) ranges: BTreeMap<u64, Range>,
    /// Reserved addresses, by where they begin.
    pub(crate) reservations: BTreeMap<u64, usize>,
    /// References to physical memory.
    pub(crate) physical: HashMap<u64, (Arc<Physical>, usize)>,
    pub(crate) graphs: HashMap<usize, Arc<Mutex<Graph>>>,
    pub(crate) execs: HashMap<usize, Arc<Mutex<Exec>>>,
    pub(crate) objects: HashMap<usize, (Arc<UserObject>, usize)>,
    /// Pairs of devices, of which the first may use memory of the second.
    pub(crate) peers: Vec<(usize, usize)>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static DEVICES: LazyLock<Devices> = LazyLock::new(Devices::from_environment);
static NEXT: AtomicU64 = AtomicU64::new(0x0c_c100);

thread_local! {
    /// Contexts pushed on this thread.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Works on the state. Nothing that waits may happen inside.
pub(crate) fn lock<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn devices() -> &'static Devices {
    &DEVICES
}

/// A handle that never was one before.
pub(crate) fn fresh() -> usize {
    NEXT.fetch_add(16, Ordering::Relaxed) as usize
}

pub(crate) fn device(ordinal: i32) -> Answer<&'static Device> {
    usize::try_from(ordinal).ok().and_then(|ordinal| devices().all.get(ordinal)).ok_or(INVALID_DEVICE)
}

/// The device of a context's handle.
pub(crate) fn of_context(context: usize) -> Answer<usize> {
    let device = context.wrapping_sub(CONTEXT);
    let live = devices().all.get(device).is_some_and(|found| found.retained.load(Ordering::Relaxed) > 0);
    if live { Ok(device) } else { Err(INVALID_CONTEXT) }
}

/// The handle of a device's context.
pub(crate) fn context_of(device: usize) -> usize {
    CONTEXT + device
}

/// The device of the current context.
pub(crate) fn current() -> Answer<usize> {
    of_context(current_context())
}

/// The current context's handle, or 0.
pub(crate) fn current_context() -> usize {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

pub(crate) fn push(context: usize) -> Answer {
    of_context(context)?;
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
    Ok(())
}

pub(crate) fn pop() -> Answer<usize> {
    CONTEXTS.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)
}

/// What makes or frees something may wait for all work of the current device, as drivers do at times.
pub(crate) fn make() {
    if let (true, Ok(device)) = (devices().making_waits, current()) {
        let outstanding = &devices().all[device].outstanding;
        crate::stream::until(|| outstanding.load(Ordering::Acquire) == 0);
    }
}

/// The failure that stays in the current context.
pub(crate) fn sticky() -> Option<i32> {
    let code = devices().all.get(current().ok()?)?.sticky.load(Ordering::Relaxed);
    (code != 0).then_some(code)
}

/// Lets every later call in the current context, or else everywhere, fail with `code`.
pub(crate) fn stick(code: i32) {
    let only = current().ok();
    for (index, device) in devices().all.iter().enumerate() {
        if only.is_none_or(|only| only == index) {
            device.sticky.store(code, Ordering::Relaxed);
        }
    }
}

/// A number from the environment.
pub(crate) fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Numbers with commas between them.
fn list(name: &str, default: i32) -> Vec<i32> {
    let text = std::env::var(name).unwrap_or_default();
    let numbers: Vec<i32> = text.split(',').filter_map(|number| number.parse().ok()).collect();
    if numbers.is_empty() { vec![default] } else { numbers }
}

impl State {
    /// How many objects of each kind there are.
    pub(crate) fn live(&mut self) -> Vec<(&'static str, usize)> {
        let contexts = devices().all.iter().filter(|device| device.retained.load(Ordering::Relaxed) > 0);
        let mut counts = vec![
            ("context", contexts.count()),
            ("stream", self.streams.len()),
            ("event", self.events.len()),
            ("module", self.modules.len()),
            ("reservation", self.reservations.len()),
            ("physical", self.physical.len()),
            ("graph", self.graphs.len()),
            ("exec", self.execs.len()),
            ("object", crate::user_object::live()),
            ("program", crate::nvrtc::live()),
        ];
        for range in self.ranges.values() {
            counts.push((range.kind.name(), 1));
        }
        counts
    }
}

impl Devices {
    pub(crate) fn multiprocessors(&self, device: usize) -> i32 {
        let last = self.multiprocessors.last();
        self.multiprocessors.get(device).or(last).copied().unwrap_or_default()
    }

    fn from_environment() -> Self {
        let count = setting("CCL_FAKE_DEVICES", 2);
        Self {
            all: (0..count).map(Device::new).collect(),
            version: setting("CCL_FAKE_DRIVER_VERSION", 13_000) as i32,
            capability: setting("CCL_FAKE_CAPABILITY", 90) as i32,
            multiprocessors: list("CCL_FAKE_MULTIPROCESSORS", 16),
            making_waits: setting("CCL_FAKE_MAKING_WAITS", 0) != 0,
        }
    }
}

impl Device {
    fn new(index: usize) -> Self {
        Self {
            arena: Arena::new(setting("CCL_FAKE_MEMORY", 1 << 33).min(1 << 34)),
            retained: AtomicUsize::new(0),
            sticky: AtomicI32::new(0),
            outstanding: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            legacy: Stream::new(index, false, 0),
            blocking: Mutex::default(),
        }
    }
}

/// The first context's handle; they are all different from every other handle.
const CONTEXT: usize = 0x0cc1;
