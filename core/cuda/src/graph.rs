//! Graphs: captured work, to run as often as wanted.

use std::ffi::c_int;

use crate::capture::Node;
use crate::context::{Context, report};
use crate::error::{Error, Result, code};
use crate::stream::Stream;
use crate::symbols::Handle;
use crate::user_object::UserObject;

/// Captured work. Not to be changed by two threads at once, so it can be sent but not shared.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    handle: Handle,
}

/// A graph made ready to run. One launch of it runs after the other.
#[derive(Debug)]
pub struct GraphExec {
    context: Context,
    handle: Handle,
}

/// Whether a ready graph took over what another graph says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphUpdate {
    /// It did.
    Done,
    /// The graphs differ by more than arguments: instantiate the other. The number is the driver's reason.
    Refused(i32),
}

/// The driver's `CUgraphExecUpdateResultInfo`, with a number in place of its enumeration.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct UpdateResult {
    reason: c_int,
    node: Handle,
    from: Handle,
}

// SAFETY: the driver takes handles of graphs from any thread, one at a time, which `&mut` and no `Sync` give.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Send for GraphExec {}

impl Graph {
    /// What was captured on a stream of `context`.
    pub(crate) fn new(context: &Context, handle: Handle) -> Self {
        Self { context: context.clone(), handle }
    }

    /// Its nodes.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        let mut count = 0;
        // SAFETY: the graph lives; without a place for nodes the driver stores their number.
        unsafe { self.context.table().cuGraphGetNodes(self.handle, std::ptr::null_mut(), &raw mut count) }?;
        let mut handles = vec![std::ptr::null_mut(); count];
        // SAFETY: there is a place for each node, and nobody else changes the graph.
        unsafe { self.context.table().cuGraphGetNodes(self.handle, handles.as_mut_ptr(), &raw mut count) }?;
        handles.truncate(count);
        Ok(handles.into_iter().map(Node).collect())
    }

    /// Calls `destroy` when this graph and everything instantiated from it are gone; see [`crate::CaptureInfo::keep`].
    ///
    /// # Errors
    ///
    /// The driver's; `destroy` is then called before this returns.
    pub fn keep(&mut self, destroy: impl FnOnce() + Send + 'static) -> Result<()> {
        UserObject::new(self.context.driver(), destroy)?.give_to(self.handle)
    }

    /// Makes the graph ready to run. Takes microseconds for each node.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn instantiate(&self) -> Result<GraphExec> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the graph lives; the driver stores one handle, which the value gives back once.
        self.context.within(|| unsafe {
            self.context.table().cuGraphInstantiateWithFlags(&raw mut handle, self.handle, 0)
        })?;
        Ok(GraphExec { context: self.context.clone(), handle })
    }

    /// Destroys the graph before it is dropped, and says whether that worked. What was instantiated from it stays.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: made once, destroyed once.
        self.context.within(|| unsafe { self.context.table().cuGraphDestroy(handle) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        report(self.release());
    }
}

impl GraphExec {
    /// Brings what the graph needs onto the device now, rather than at its first launch.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        stream.within(|| unsafe { self.context.table().cuGraphUpload(self.handle, stream.raw()) })
    }

    /// Runs the graph when `stream` comes to it. Never blocks. While `stream` is captured the graph becomes part of the
    /// capture.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// Everything that the captured work reads and writes must be valid until the run is done.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: both live; the rest is the caller's contract.
        stream.within(|| unsafe { self.context.table().cuGraphLaunch(self.handle, stream.raw()) })
    }

    /// Takes over arguments from a graph with the same nodes and edges.
    ///
    /// # Errors
    ///
    /// The driver's. A graph that differs by more is no error.
    pub fn update(&mut self, graph: &Graph) -> Result<GraphUpdate> {
        let none = std::ptr::null_mut();
        let mut result = UpdateResult { reason: 0, node: none, from: none };
        // SAFETY: both live; the driver stores why not.
        let updated = self.context.within(|| unsafe {
            self.context.table().cuGraphExecUpdate_v2(self.handle, graph.handle, &raw mut result)
        });
        match updated {
            Ok(()) => Ok(GraphUpdate::Done),
            Err(error) if error.code() == Some(code::GRAPH_EXEC_UPDATE_FAILURE) => {
                tracing::debug!(reason = result.reason, node = ?result.node, from = ?result.from, "graph not updated");
                Ok(GraphUpdate::Refused(result.reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Destroys the ready graph before it is dropped, and says whether that worked. Runs in progress end as they would.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> std::result::Result<(), Error> {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: made once, destroyed once.
        self.context.within(|| unsafe { self.context.table().cuGraphExecDestroy(handle) })
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        report(self.release());
    }
}
