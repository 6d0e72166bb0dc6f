//! Capture: what is put on a stream becomes a graph instead of running.

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::{CUstreamCaptureMode as Mode, CUstreamUpdateCaptureDependencies_flags as Update};

use crate::context::report;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::load::Driver;
use crate::stream::Stream;
use crate::symbols::Handle;
use crate::user_object::UserObject;

/// Whose unsafe calls break a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Those of every thread.
    Global,
    /// Those of the capturing thread.
    ThreadLocal,
    /// Nobody's.
    Relaxed,
}

/// Whether a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureStatus {
    /// It is not.
    None,
    /// It is.
    Active,
    /// It is, but something broke the capture; it must be ended.
    Invalidated,
}

/// A capture in progress, seen from one stream that takes part in it.
#[derive(Debug)]
pub struct CaptureInfo {
    driver: Driver,
    id: u64,
    graph: Handle,
    dependencies: Vec<Node>,
}

/// A node of a graph, while the graph is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node(pub(crate) Handle);

/// Lets this thread make calls that would break a capture, such as allocations; until dropped, on the same thread.
#[derive(Debug)]
pub struct RelaxedCapture {
    driver: Driver,
    before: c_int,
    /// The mode belongs to the thread.
    _here: std::marker::PhantomData<*const ()>,
}

// SAFETY: handles of graphs and nodes are only names; the driver takes them from any thread, one at a time.
unsafe impl Send for CaptureInfo {}
// SAFETY: as above.
unsafe impl Send for Node {}

impl Stream {
    /// Begins to capture the stream. Not possible on the legacy stream.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn begin_capture(&self, mode: CaptureMode) -> Result<()> {
        // SAFETY: the stream lives.
        self.within(|| unsafe { self.context().table().cuStreamBeginCapture_v2(self.raw(), mode.number()) })
    }

    /// Ends the capture that began here.
    ///
    /// # Errors
    ///
    /// The driver's: a capture that was broken, streams that took part and were not joined, another thread. The capture
    /// has then ended too.
    pub fn end_capture(&self) -> Result<Graph> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives; the driver stores one handle, which the value gives back once.
        self.within(|| unsafe { self.context().table().cuStreamEndCapture(self.raw(), &raw mut graph) })?;
        Ok(Graph::new(self.context(), graph))
    }

    /// Whether the stream is captured. Never blocks; allowed in every capture, but not on the legacy stream while a
    /// blocking stream of its context is captured.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        let mut status = 0;
        // SAFETY: the stream lives; the driver stores one number.
        self.within(|| unsafe { self.context().table().cuStreamIsCapturing(self.raw(), &raw mut status) })?;
        Ok(CaptureStatus::of(status))
    }

    /// The capture that the stream takes part in; nothing if there is none, or it is broken.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn capture_info(&self) -> Result<Option<CaptureInfo>> {
        let table = self.context().table();
        let (mut status, mut id, mut graph) = (0, 0, std::ptr::null_mut());
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        self.within(|| {
            let (status, id, graph) = (&raw mut status, &raw mut id, &raw mut graph);
            let (nodes, count) = (&raw mut nodes, &raw mut count);
            if table.has("cuStreamGetCaptureInfo_v3") {
                let none = std::ptr::null_mut();
                // SAFETY: the stream lives; the driver stores what it is given places for. Without a place for data of
                // edges it answers that some are there, rather than dropping them.
                unsafe { table.cuStreamGetCaptureInfo_v3(self.raw(), status, id, graph, nodes, none, count) }
            } else {
                // SAFETY: as above.
                unsafe { table.cuStreamGetCaptureInfo_v2(self.raw(), status, id, graph, nodes, count) }
            }
        })?;
        if CaptureStatus::of(status) != CaptureStatus::Active {
            return Ok(None);
        }
        // SAFETY: the driver stored so many handles, valid until the next call that concerns the stream.
        let dependencies = (0..count).map(|index| Node(unsafe { nodes.add(index).read() })).collect();
        Ok(Some(CaptureInfo { driver: self.context().driver().clone(), id, graph, dependencies }))
    }

    /// What the next captured node of the stream waits for: these, and nothing else.
    ///
    /// # Errors
    ///
    /// The driver's: a stream that is not captured, nodes of another graph.
    pub fn set_capture_dependencies(&self, nodes: &[Node]) -> Result<()> {
        let table = self.context().table();
        let mut handles: Vec<Handle> = nodes.iter().map(|node| node.0).collect();
        let (first, count) = (handles.as_mut_ptr(), handles.len());
        let flags = Update::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
        self.within(|| {
            if table.has("cuStreamUpdateCaptureDependencies_v2") {
                let none = std::ptr::null();
                // SAFETY: the stream lives; the driver reads so many handles, and no data of edges.
                unsafe { table.cuStreamUpdateCaptureDependencies_v2(self.raw(), first, none, count, flags) }
            } else {
                // SAFETY: as above.
                unsafe { table.cuStreamUpdateCaptureDependencies(self.raw(), first, count, flags) }
            }
        })
    }
}

impl CaptureInfo {
    /// A number that no other capture of this process has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What the next captured node of the stream waits for.
    #[must_use]
    pub fn dependencies(&self) -> &[Node] {
        &self.dependencies
    }

    /// The driver's handle of the graph that is being made.
    #[must_use]
    pub fn raw_graph(&self) -> *mut c_void {
        self.graph
    }

    /// Calls `destroy` when the graph being made and everything instantiated from it are gone. It is called on a thread
    /// of the driver's, and must not call the driver.
    ///
    /// # Errors
    ///
    /// The driver's; `destroy` is then called before this returns.
    pub fn keep(&self, destroy: impl FnOnce() + Send + 'static) -> Result<()> {
        let object = UserObject::new(&self.driver, destroy)?;
        object.give_to(self.graph)
    }
}

impl RelaxedCapture {
    /// Begins on the calling thread.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn enter(driver: &Driver) -> Result<Self> {
        let mut mode = CaptureMode::Relaxed.number();
        // SAFETY: the driver swaps one number.
        unsafe { driver.table.cuThreadExchangeStreamCaptureMode(&raw mut mode) }?;
        Ok(Self { driver: driver.clone(), before: mode, _here: std::marker::PhantomData })
    }

    /// For a value that is dropped: whoever drops it cannot know who captures what. Nothing after a failure that stays.
    pub(crate) fn to_drop(driver: &Driver) -> Option<Self> {
        Self::enter(driver).ok()
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: the driver swaps one number.
        report(unsafe { self.driver.table.cuThreadExchangeStreamCaptureMode(&raw mut self.before) });
    }
}

impl CaptureMode {
    fn number(self) -> c_int {
        match self {
            Self::Global => Mode::CU_STREAM_CAPTURE_MODE_GLOBAL as c_int,
            Self::ThreadLocal => Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_int,
            Self::Relaxed => Mode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int,
        }
    }
}

impl CaptureStatus {
    /// Whether work put on the stream now would not run.
    #[must_use]
    pub fn is_capturing(self) -> bool {
        self != Self::None
    }

    /// The driver's number; what a newer driver invents is no capture that we could add to.
    fn of(number: c_int) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Active,
            _ => Self::Invalidated,
        }
    }
}

/// Refuses a graph that nobody has.
pub(crate) fn no_graph(call: &'static str) -> Error {
    Error::Usage { call, what: "expected a graph, found none; end the capture first".into() }
}
