//! What a graph keeps for as long as it may run.

use std::ffi::c_void;

use crate::context::report;
use crate::error::Result;
use crate::load::Driver;
use crate::symbols::Handle;

/// A value whose end is told to us by the driver, when nobody keeps it any more: one reference.
#[derive(Debug)]
pub(crate) struct UserObject {
    driver: Driver,
    handle: Handle,
}

type Destroy = Box<dyn FnOnce() + Send>;

impl UserObject {
    /// An object whose end calls `destroy`.
    pub(crate) fn new(driver: &Driver, destroy: impl FnOnce() + Send + 'static) -> Result<Self> {
        let destroy: Destroy = Box::new(destroy);
        let data = Box::into_raw(Box::new(destroy)).cast();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the data goes over to the one call of `end`; the driver stores one handle.
        let made = unsafe { driver.table.cuUserObjectCreate(&raw mut handle, data, end, 1, NO_SYNC) };
        if let Err(error) = made {
            // SAFETY: no object was made, so the data is still ours.
            unsafe { end(data) };
            return Err(error);
        }
        Ok(Self { driver: driver.clone(), handle })
    }

    /// Moves the reference to a graph.
    pub(crate) fn give_to(mut self, graph: Handle) -> Result<()> {
        if graph.is_null() {
            return Err(crate::capture::no_graph("cuGraphRetainUserObject"));
        }
        // SAFETY: the caller's capture keeps the graph; the reference is ours to move.
        unsafe { self.driver.table.cuGraphRetainUserObject(graph, self.handle, 1, MOVE) }?;
        self.handle = std::ptr::null_mut();
        Ok(())
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: one reference, given back once.
            report(unsafe { self.driver.table.cuUserObjectRelease(self.handle, 1) });
        }
    }
}

/// Calls what [`UserObject::new`] was given.
unsafe extern "C" fn end(data: *mut c_void) {
    // SAFETY: called once, with what `UserObject::new` handed over.
    let destroy = unsafe { Box::from_raw(data.cast::<Destroy>()) };
    // No unwinding into the driver; the panic's message was printed.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(destroy));
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: nobody can wait for the destructor. The driver asks for this flag.
const NO_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;
