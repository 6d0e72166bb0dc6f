//! Calls on memory given by address, on streams: those of ranks that work on a device.

use super::Communicator;
use super::group::Group;
use crate::error::Result;
use crate::exec::device::{Addresses, DeviceBuffer, DeviceWindow, Registered, Registration};
use crate::exec::engine::Engine;
use crate::request::Request;
use crate::stream::{Stream, Turn};

impl Communicator {
    /// The number of the device that this rank works on (`CCL_DEVICE`); `None` if it works on host memory.
    pub fn device(&self) -> Option<u32> {
        self.with_engine(|engine| Ok(engine.device_number())).unwrap_or(None)
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
    /// may be replayed as long as the communicator is there and all ranks replay theirs; replays and other calls of the
    /// communicator must be ordered by the caller.
    ///
    /// A thread with several ranks puts calls on their streams by [`Group::enqueue`]: the first call of a kind makes
    /// things on the device, which may wait for all kernels there.
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
    pub unsafe fn enqueue(&self, mut request: Request<'_>, at: Addresses<'_>, stream: &Stream) -> Result<()> {
        // Both in one turn: between two others would be called to drive what is outstanding.
        self.at_stream(stream, |engine, turn| {
            engine.start_at(&mut request, at, (turn, false))?;
            engine.launch_queued()
        })
    }

    /// Lets later calls with [`Communicator::enqueue`] and [`Communicator::run_at`] lend this buffer: ranks of this
    /// process that reach its device read it where it is, instead of what is copied to slots. Local: other ranks need
    /// not register theirs. Calls that are captured lend without it.
    ///
    /// [`Registration::refusal`] says if that cannot be here; calls work all the same, with the same results.
    ///
    /// # Errors
    ///
    /// A rank that works on host memory; the driver's.
    pub fn register_buffer(&self, buffer: &DeviceBuffer) -> Result<Registration> {
        self.with_engine(|engine| engine.register_on_device(&Registered::Buffer(buffer)))
    }

    /// [`Communicator::register_buffer`] for `bytes` bytes at `address`, of one allocation.
    ///
    /// # Errors
    ///
    /// As there; memory that the driver does not know.
    ///
    /// # Safety
    ///
    /// The memory must stay where it is as long as the registration is there.
    pub unsafe fn register_at(&self, address: u64, bytes: usize) -> Result<Registration> {
        self.with_engine(|engine| engine.register_on_device(&Registered::Range(address, bytes)))
    }

    /// Makes this rank's `buffer` known to all other ranks, and theirs to this one. A collective: every rank calls it
    /// at the same place among its calls, with a buffer of the same length. It does for this rank what
    /// [`Communicator::register_buffer`] does, too, and what lies in a window in pieces (`cuMemMap`) is lent to all ranks, also
    /// those of other processes.
    ///
    /// If some rank does not reach another's memory the buffer is used by its own rank alone: [`DeviceWindow::refusal`]
    /// and the log say so. Calls work all the same, with the same results.
    ///
    /// Waits for what is outstanding, then blocks until all ranks have called it, at most until `CCL_TIMEOUT`: one
    /// thread cannot register for several ranks.
    ///
    /// # Errors
    ///
    /// A usage error, on all ranks, if lengths differ, with a rank that differs, or if some rank cannot register its
    /// memory, with that rank: nothing has happened then. Otherwise the communicator's failure.
    ///
    /// [`DeviceWindow::refusal`]: crate::DeviceWindow::refusal
    pub fn register_window(&self, buffer: &DeviceBuffer) -> Result<DeviceWindow> {
        self.with_engine(|engine| engine.register_window(&Registered::Buffer(buffer)))
    }

    /// [`Communicator::register_window`] for `bytes` bytes at `address`, of one allocation, or of pieces that are mapped one
    /// behind the other (`cuMemMap`), if ranks are other processes such as can be shared by posix file descriptor, or all by
    /// handles of a fabric. A rank that works on host memory gives any memory; windows are then used locally only, on all
    /// ranks.
    ///
    /// # Errors
    ///
    /// As there; memory that the driver does not know.
    ///
    /// # Safety
    ///
    /// The memory must stay where it is as long as the window is there, or a graph with calls on it, and so must what is mapped
    /// there.
    pub unsafe fn register_window_at(&self, address: u64, bytes: usize) -> Result<DeviceWindow> {
        self.with_engine(|engine| engine.register_window(&Registered::Range(address, bytes)))
    }

    /// How many calls of this rank a kernel of their own has made between windows so far (`CCL_CUDA_TWO_SHOT`), replays
    /// included, as far as kernels have come. The same on all ranks once all are done. Never blocks.
    ///
    /// # Errors
    ///
    /// The communicator is being dropped.
    pub fn window_calls(&self) -> Result<u64> {
        self.with_engine(|engine| Ok(engine.device().map_or(0, |device| device.window_calls())))
    }

    /// Gives back all device memory that the communicator has taken, on all ranks, until [`Communicator::resume`]: slots, programs,
    /// scratch, copies of host memory. Connections, settings, streams, registrations and loaded kernels stay. Ranks that work on host memory take part,
    /// and give their scratch back.
    ///
    /// Waits for all calls made so far, and for all other ranks, which suspend as well: one thread cannot suspend several
    /// ranks. Until it is resumed every call is a usage error; [`Communicator::async_error`] still says if a rank has failed.
    ///
    /// # Errors
    ///
    /// A usage error, on all ranks, where graphs hold calls of the communicator: they have addresses of its memory. A usage
    /// error if it is suspended already. The driver's, and those of ranks that do not come in time, fail the communicator.
    pub fn suspend(&self) -> Result<()> {
        self.with_engine(|engine| engine.suspend())
    }

    /// Takes device memory again, on all ranks, and lets calls be made as before [`Communicator::suspend`]. Devices agree
    /// anew on who reaches whom. Waits for all other ranks.
    ///
    /// # Errors
    ///
    /// A usage error if it is not suspended. Too little device memory, other errors of the driver, and those of ranks that do
    /// not come in time, fail the communicator.
    pub fn resume(&self) -> Result<()> {
        self.with_engine(|engine| engine.resume())
    }

    /// Device memory that the communicator has taken for this rank now, in bytes; 0 while it is suspended, and for a rank that works on
    /// host memory. What a driver adds to each allocation, the code of kernels, and copies of host memory
    /// that calls under way have, are not in it. Never blocks.
    ///
    /// # Errors
    ///
    /// The communicator is being dropped.
    pub fn device_memory(&self) -> Result<u64> {
        self.with_engine(|engine| Ok(engine.device().map_or(0, |device| device.memory_bytes())))
    }

    /// How many payloads this rank has stored once for all others so far, in multicast memory (`CCL_CUDA_SWITCH`); 0 where there
    /// is none. Waits until the device has read that out, on a stream of its own.
    ///
    /// # Errors
    ///
    /// The driver's; the communicator is being dropped.
    pub fn multicast_payloads(&self) -> Result<u64> {
        self.with_engine(|engine| engine.device().map_or(Ok(0), |device| device.multicast_payloads()))
    }

    /// Queues a call for its stream; the engine is told to launch it by whoever calls this.
    pub(super) fn start_at(
        &self,
        request: &mut Request<'_>,
        at: Addresses<'_>,
        (stream, is_grouped): (&Stream, bool),
    ) -> Result<()> {
        self.at_stream(stream, |engine, turn| engine.start_at(request, at, (turn, is_grouped)))
    }

    /// Lets the engine do something whose turn is on a stream.
    fn at_stream(
        &self,
        stream: &Stream,
        start: impl FnOnce(&mut Engine, Turn<'_>) -> Result<()>,
    ) -> Result<()> {
        let shared = self.share()?;
        let started = shared.with(|engine| start(engine, Turn::new(stream, &shared)));
        if stream.device().is_some() {
            stream.is_used_by(&shared);
        }
        started.unwrap_or_else(|| Err(super::closed()))
    }
}

impl<'a> Group<'a> {
    /// Adds a call on memory given by address. When the group is launched it goes on `stream` as by
    /// [`Communicator::enqueue`], and the group does not wait for it.
    ///
    /// All calls of the group are made ready before the first is launched, so one thread can hold ranks of several
    /// devices. A communicator's collectives go first, in the order they were added, then all its messages together, whatever their
    /// order: a collective and a message of one group must not use what the other makes. Communicators that share a stream follow each
    /// other in an order that all ranks share.
    ///
    /// # Safety
    ///
    /// As [`Communicator::enqueue`].
    pub unsafe fn enqueue(
        &mut self,
        communicator: &'a Communicator,
        request: Request<'a>,
        at: Addresses<'a>,
        stream: &'a Stream,
    ) {
        self.add_at(communicator, request, (at, stream));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use ccl_plan::{Rank, ReduceOp};

    use super::*;
    use crate::error::Fault;
    use crate::{Config, local};

    /// Nobody but the callers drives calls, and none waits so long as a deadline.
    fn config() -> Config {
        Config::from_vars([("CCL_TIMEOUT", "30s"), ("CCL_PROGRESS_THREAD", "0")]).unwrap()
    }

    /// Puts an all-reduce of these values on a stream.
    fn enqueue(comm: &Communicator, values: &mut [i32], stream: &Stream) -> Result<()> {
        let count = values.len();
        let request = Request { count, ..Request::all_reduce::<i32>(&[], &mut [], ReduceOp::Sum) };
        let address = values.as_mut_ptr();
        // SAFETY: tests keep the values, and leave them alone, until the stream or the communicator is done.
        unsafe { comm.enqueue(request, Addresses::new(address.cast_const().cast(), address.cast()), stream) }
    }

    /// What comes of waiting for the stream, which must end.
    fn synchronized(stream: &Stream) -> Result<()> {
        let (sender, ended) = channel();
        let stream = stream.clone();
        std::thread::spawn(move || sender.send(stream.synchronize()));
        ended.recv_timeout(SOON).expect("waiting for the stream ends")
    }

    #[test]
    fn nobody_waits_on_a_stream_for_a_communicator_that_was_dropped() {
        let (comm, stream) = (Communicator::alone(&config()).unwrap(), Stream::new());
        let mut values = [1; 10];
        enqueue(&comm, &mut values, &stream).unwrap();
        drop(comm);
        let error = synchronized(&stream).unwrap_err();
        assert!(error.cause().contains("is being dropped"), "{error}");
    }

    #[test]
    fn a_call_that_is_refused_takes_no_place_on_its_stream() {
        let (comm, stream) = (Communicator::alone(&config()).unwrap(), Stream::new());
        let mut values = [1; 10];
        // SAFETY: the call is refused.
        let refused = unsafe {
            let at = Addresses::new(std::ptr::null(), values.as_mut_ptr().cast());
            comm.enqueue(Request { count: 10, ..Request::broadcast::<i32>(&mut [], Rank(1)) }, at, &stream)
        };
        assert_eq!(refused.unwrap_err().fault(), &Fault::Usage);
        enqueue(&comm, &mut values, &stream).unwrap();
        synchronized(&stream).unwrap();
        comm.suspend().unwrap();
        enqueue(&comm, &mut values, &stream).unwrap_err();
        let mut others = [2; 10];
        comm.scope(|scope| {
            let request = Request::all_reduce_in_place(&mut others, ReduceOp::Sum);
            scope.start_on(&stream, request).unwrap_err();
            Ok(())
        })
        .unwrap();
        comm.resume().unwrap();
        enqueue(&comm, &mut values, &stream).unwrap();
        synchronized(&stream).unwrap();
    }

    #[test]
    fn a_call_that_is_refused_leaves_the_others_of_its_group_alone() {
        let (comm, stream) = (Communicator::alone(&config()).unwrap(), Stream::new());
        let (values, mut copied) = ([1_i32; 10], [9; 10]);
        // SAFETY: both stay to the end of the test, and are left alone while a call is on the stream.
        let at = unsafe { Addresses::new(values.as_ptr().cast(), copied.as_mut_ptr().cast()) };
        let request = || Request { count: 10, ..Request::all_reduce::<i32>(&[], &mut [], ReduceOp::Sum) };
        let refused = crate::group(|group| {
            let bad = Request { count: 10, ..Request::broadcast::<i32>(&mut [], Rank(1)) };
            // SAFETY: the buffers stay, and the second call, which has none, is refused.
            unsafe {
                group.enqueue(&comm, request(), at, &stream);
                group.enqueue(&comm, bad, Addresses::new(std::ptr::null(), std::ptr::null_mut()), &stream);
            }
            Ok(())
        });
        assert_eq!(refused.unwrap_err().fault(), &Fault::Usage);
        synchronized(&stream).unwrap();
        assert_eq!(copied, [9; 10]);
        // SAFETY: the buffers stay until the stream has passed the call.
        unsafe { comm.enqueue(request(), at, &stream) }.unwrap();
        synchronized(&stream).unwrap();
        assert_eq!(copied, values);
    }

    #[test]
    fn what_is_behind_a_lost_call_on_its_stream_ends_on_all_ranks_at_once() {
        let started = Instant::now();
        let outcomes = local::try_run_with(&config(), 2, |comm| {
            comm.barrier()?;
            let mut values = [1; 10];
            if comm.rank() == Rank(1) {
                return comm.all_reduce_in_place(&mut values, ReduceOp::Sum);
            }
            let (first, stream) = (Communicator::alone(&config())?, Stream::new());
            enqueue(&first, &mut [1; 10], &stream)?;
            enqueue(&comm, &mut values, &stream)?;
            drop(first);
            let ended = comm.barrier();
            // What has nothing to do with it goes on, elsewhere.
            let other = Communicator::alone(&config())?;
            let refused = enqueue(&other, &mut [1; 10], &stream).unwrap_err();
            assert_eq!(refused.fault(), &Fault::Usage, "{refused}");
            other.barrier()?;
            ended
        });
        assert!(started.elapsed() < SOON);
        let errors: Vec<_> = outcomes.unwrap().into_iter().map(Result::unwrap_err).collect();
        let faults = [Fault::Aborted, Fault::Remote { rank: Rank(0) }];
        for (error, fault) in errors.iter().zip(&faults) {
            assert_eq!(error.fault(), fault, "{error}");
            assert!(error.cause().contains("found that one before it failed"), "{error}");
        }
    }

    #[test]
    fn a_call_before_a_lost_one_on_its_stream_is_made() {
        let [first, second] = [(); 2].map(|()| Communicator::alone(&config()).unwrap());
        let (mut values, stream) = ([[1; 10]; 3], Stream::new());
        let [one, two, three] = &mut values;
        enqueue(&first, one, &stream).unwrap();
        enqueue(&first, two, &stream).unwrap();
        enqueue(&second, three, &stream).unwrap();
        drop(second);
        assert!(synchronized(&stream).is_err());
        first.barrier().unwrap();
    }

    /// Far shorter than the deadline.
    const SOON: Duration = Duration::from_secs(15);
}
