//! Registering memory with all ranks.

use super::Communicator;
#[cfg(doc)]
use crate::error::Fault;
use crate::error::Result;
use crate::memory::{Memory, Window};

impl Communicator {
    /// Makes this rank's `memory` known to all other ranks, and theirs to this one. A collective: every rank
    /// calls it at the same place among its calls, with memory of the same length.
    ///
    /// Afterwards long all-reduces, reduce-scatters, all-gathers and broadcasts whose buffers lie in the window
    /// on every rank, at any offsets, move data straight between them; calls on other buffers work as
    /// ever. [`Window::refusal`] says if that cannot be here, for example since a rank is on another host;
    /// programs need not care. Ranks that are threads of one process need no window, for any buffers.
    ///
    /// The memory remains the caller's: other ranks touch it only inside calls that it makes with it.
    ///
    /// Waits for what is outstanding, then blocks until all ranks have called it, at most until
    /// `CCL_TIMEOUT`. Touches all pages, so that calls do not have to.
    ///
    /// # Errors
    ///
    /// [`Fault::Usage`] if lengths differ, with two ranks and both lengths (nothing has happened then);
    /// otherwise the communicator's failure.
    ///
    /// ```
    /// # ccl::local::run(2, |comm| {
    /// let mut memory = ccl::mem_alloc(4 << 20)?;
    /// let _window = comm.register(&memory)?;
    /// let gradients = memory.as_mut_slice::<f32>();
    /// gradients.fill(comm.rank().0 as f32);
    /// comm.all_reduce_in_place(gradients, ccl::ReduceOp::Sum)?;
    /// assert!(gradients.iter().all(|value| *value == 1.0));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn register(&self, memory: &Memory) -> Result<Window> {
        self.with_engine(|engine| engine.register(memory))
    }
}
