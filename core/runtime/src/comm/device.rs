//! Calls on memory given by address, on streams: those of ranks that work on a device.

use super::Communicator;
use crate::error::Result;
use crate::exec::device::Addresses;
use crate::request::Request;
use crate::stream::Stream;

impl Communicator {
    /// The number of the device that this rank works on (`CCL_DEVICE`); `None` if it works on host memory.
    pub fn device(&self) -> Option<u32> {
        self.with_engine(|engine| Ok(engine.device().map(|device| device.ordinal()))).unwrap_or(None)
    }

    /// Makes one call on memory given by address and waits until this rank's part is complete. The buffers in `request`
    /// are left aside.
    ///
    /// On a device the call does not wait for other streams: what it reads must be there.
    ///
    /// # Errors
    ///
    /// As [`Communicator::run`]; memory that the rank's device cannot reach.
    pub fn run_at(&self, request: Request<'_>, at: Addresses<'_>) -> Result<()> {
        let stream = match self.with_engine(|engine| Ok(engine.device().map(|device| device.stream())))? {
            Some(stream) => Stream::of_device(stream),
            None => Stream::new(),
        };
        // SAFETY: `at` is borrowed until this returns, and the call is complete then, or the communicator has failed.
        let enqueued = unsafe { self.enqueue(request, at, &stream) };
        enqueued.and(self.with_engine(|engine| engine.finish()))
    }

    /// Puts one call on `stream` and returns at once. It runs when the stream comes to it, after all that was put there
    /// before, and what is put there later runs after it. A captured CUDA stream takes the call into its graph, which
    /// may be replayed as long as the communicator is there and all ranks replay theirs.
    ///
    /// A rank that works on a device takes CUDA streams of that device, one that works on host memory host streams.
    ///
    /// # Errors
    ///
    /// A usage error, or the communicator's failure. Errors of the work itself come later, from
    /// [`Stream::synchronize`], [`Communicator::async_error`] or the next call.
    ///
    /// # Safety
    ///
    /// The memory must stay valid until the stream has passed the call or the communicator is dropped, and meanwhile
    /// nobody may write what it reads or touch what it writes.
    pub unsafe fn enqueue(&self, request: Request<'_>, at: Addresses<'_>, stream: &Stream) -> Result<()> {
        self.start_at(request, at, (stream, false))
    }

    pub(super) fn start_at(
        &self,
        mut request: Request<'_>,
        at: Addresses<'_>,
        (stream, is_grouped): (&Stream, bool),
    ) -> Result<()> {
        let shared = self.share()?;
        let started = shared.with(|engine| {
            let gate = match stream.device() {
                Some(_) => None,
                None => Some(stream.enqueue(&shared)),
            };
            engine.start_at(&mut request, at, (stream, gate, is_grouped))
        });
        if stream.device().is_some() {
            stream.is_used_by(&shared);
        }
        started.unwrap_or_else(|| Err(super::closed()))
    }
}
