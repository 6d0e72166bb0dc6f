//! `--memory device`: buffers on the rank's device, calls on a stream, and graphs of calls.
//!
//! Areas stay the host's picture of what the device holds: filled before a call and copied there, copied back and
//! checked after it. Between the two nothing is copied.

#![allow(unsafe_code)]

use ccl::config::Config;
use ccl::{Addresses, Communicator, DeviceWindow, Error, Fault, ReduceOp, Request, Result, Stream};
use ccl_cuda::{CaptureMode, Context, DeviceMemory, Driver, GraphExec, Mapping, PhysicalMemory, Sharing};

use super::area::{Area, GUARD_BYTES};
use super::call::Lane;
use super::options::MemoryKind;

/// A rank's device, with the stream that its calls are put on.
pub(crate) struct Device {
    // What leads to the stream goes first.
    stream: Stream,
    queue: ccl_cuda::Stream,
    context: Context,
}

/// What a lane's areas have on the device.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// Before the memory.
    windows: Vec<DeviceWindow>,
    send: Room,
    recv: Room,
}

/// Memory of a device.
#[derive(Debug)]
enum Room {
    Whole(DeviceMemory),
    Pieces(Mapping),
}

/// Calls that were captured.
pub(crate) struct Graph {
    exec: GraphExec,
}

impl Device {
    /// The device of this rank; nothing if it works on host memory beside others that do not.
    ///
    /// # Errors
    ///
    /// No rank works on a device; the driver's.
    pub(crate) fn of(comm: &Communicator) -> Result<Option<Device>> {
        let mut on_devices = [0_u64];
        comm.all_reduce(&[u64::from(comm.device().is_some())], &mut on_devices, ReduceOp::Sum)?;
        if on_devices == [0] {
            return Err(Error::usage(
                format!("expected ranks that work on devices, found {} on host memory", comm.size()),
                "give --device cuda or --device cuda:K, or set CCL_DEVICE",
            ));
        }
        comm.device().map(Device::numbered).transpose()
    }

    fn numbered(ordinal: u32) -> Result<Device> {
        let config = Config::builder().process()?.build()?;
        let library = config.find("CCL_CUDA_LIBRARY").map(|found| found.value.clone());
        let library = library.filter(|path| !path.is_empty()).map(std::path::PathBuf::from);
        let driver = Driver::load(library.as_deref()).map_err(|absent| {
            let advice = "see `ccl doctor`";
            Error::new(Fault::Device, format!("expected a driver, found none: {absent}"), advice)
        })?;
        let devices = driver.devices().map_err(failed)?;
        let device = devices.get(ordinal as usize).ok_or_else(|| {
            let cause = format!("expected a device below {}, found {ordinal}", devices.len());
            Error::usage(cause, "look at CUDA_VISIBLE_DEVICES")
        })?;
        let context = Context::primary(device).map_err(failed)?;
        let queue = ccl_cuda::Stream::new(&context, 0).map_err(failed)?;
        // SAFETY: the value keeps the stream, and drops what leads to it before it.
        let stream = unsafe { Stream::cuda(&config, ordinal, queue.raw()) }?;
        Ok(Device { stream, queue, context })
    }

    /// Gives a lane memory for areas of up to so many bytes, once for all calls: freeing waits for the whole device, and
    /// so for ranks that share it and wait for this one.
    pub(crate) fn reserve(&self, lane: &mut Lane, bytes: usize, kind: MemoryKind) -> Result<()> {
        let room = || Room::new(&self.context, bytes + GUARD_BYTES, kind).map_err(failed);
        lane.mirror = Some(Mirror { windows: Vec::new(), send: room()?, recv: room()? });
        Ok(())
    }

    /// Copies a lane's areas to the device.
    pub(crate) fn bring(&self, lane: &mut Lane) -> Result<()> {
        let (send, recv) = (lane.send.guarded(), lane.recv.guarded());
        let Some(mirror) = &lane.mirror else { return Ok(()) };
        mirror.send.write(send, &self.queue).map_err(failed)?;
        mirror.recv.write(recv, &self.queue).map_err(failed)
    }

    /// Copies them back.
    pub(crate) fn take_back(&self, lane: &mut Lane) -> Result<()> {
        let Some(mirror) = &lane.mirror else { return Ok(()) };
        let copy = |room: &Room, area: &mut Area| room.read(area.guarded_mut(), &self.queue);
        copy(&mirror.send, &mut lane.send).map_err(failed)?;
        copy(&mirror.recv, &mut lane.recv).map_err(failed)
    }

    /// Puts a call on the stream. `at` are byte offsets into the lane's send area and into the area that takes the
    /// result; which one that is, `in_place` says.
    pub(crate) fn put(&self, comm: &Communicator, request: Request<'_>, at: At<'_>) -> Result<()> {
        // SAFETY: the mirror is as long as the areas, which are as long as the call needs. It lives as long as its lane,
        // which is dropped after `wait`, and nobody else uses it.
        unsafe { comm.enqueue(request, at.addresses(), &self.stream) }
    }

    /// Puts messages on the stream as one group: which of them comes first does not matter.
    pub(crate) fn put_together<const N: usize>(
        &self,
        comm: &Communicator,
        requests: [Request<'_>; N],
        at: At<'_>,
    ) -> Result<()> {
        ccl::group(|group| {
            for request in requests {
                // SAFETY: as in `put`.
                unsafe { group.enqueue(comm, request, at.addresses(), &self.stream) };
            }
            Ok(())
        })
    }

    /// Waits for everything that was put.
    pub(crate) fn wait(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// Takes what `put` puts into a graph, in place of running it.
    pub(crate) fn capture(&self, put: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.wait()?;
        self.queue.begin_capture(CaptureMode::ThreadLocal).map_err(failed)?;
        let put = put();
        let graph = self.queue.end_capture().map_err(failed);
        put?;
        let mut exec = graph?.instantiate().map_err(failed)?;
        exec.upload(&self.queue).map_err(failed)?;
        Ok(Graph { exec })
    }

    /// Puts a replay on the stream.
    pub(crate) fn replay(&self, graph: &mut Graph) -> Result<()> {
        // SAFETY: the lanes that were captured keep their memory until the graph is gone.
        unsafe { graph.exec.launch(&self.queue) }.map_err(failed)
    }
}

impl Room {
    fn new(context: &Context, bytes: usize, kind: MemoryKind) -> ccl_cuda::Result<Room> {
        if kind != MemoryKind::Pieces {
            return DeviceMemory::new(context, bytes).map(Room::Whole);
        }
        let device = context.device();
        let each = PhysicalMemory::granularity(device, Sharing::Descriptor)?;
        let piece = |_| PhysicalMemory::new(device, each, Sharing::Descriptor);
        let pieces = (0..bytes.div_ceil(each)).map(piece).collect::<ccl_cuda::Result<Vec<_>>>()?;
        Mapping::of_pieces(&pieces, &[device]).map(Room::Pieces)
    }

    fn address(&self) -> u64 {
        match self {
            Room::Whole(memory) => memory.address(),
            Room::Pieces(mapping) => mapping.address(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Room::Whole(memory) => memory.bytes(),
            Room::Pieces(mapping) => mapping.bytes(),
        }
    }

    fn write(&self, from: &[u8], queue: &ccl_cuda::Stream) -> ccl_cuda::Result<()> {
        assert!(from.len() <= self.bytes(), "areas are as long as was reserved");
        // SAFETY: both ranges are valid until the copy is waited for, here.
        unsafe { ccl_cuda::copy(queue, self.address(), from.as_ptr() as u64, from.len()) }?;
        queue.synchronize()
    }

    fn read(&self, to: &mut [u8], queue: &ccl_cuda::Stream) -> ccl_cuda::Result<()> {
        assert!(to.len() <= self.bytes(), "areas are as long as was reserved");
        // SAFETY: as above.
        unsafe { ccl_cuda::copy(queue, to.as_mut_ptr() as u64, self.address(), to.len()) }?;
        queue.synchronize()
    }
}

/// Registers a lane's memory for areas of up to so many bytes together with all ranks. Those that work on host memory
/// take part.
pub(crate) fn register(comm: &Communicator, lane: &mut Lane, bytes: usize) -> Result<()> {
    let bytes = bytes + GUARD_BYTES;
    let Some(mirror) = &mut lane.mirror else {
        let none = vec![0u8; bytes];
        for _ in 0..2 {
            // SAFETY: the memory outlives the window, which goes at once.
            unsafe { comm.register_window_at(none.as_ptr().addr() as u64, bytes) }?;
        }
        return Ok(());
    };
    for memory in [&mirror.send, &mirror.recv] {
        // SAFETY: the mirror keeps the memory longer than the window.
        let window = unsafe { comm.register_window_at(memory.address(), bytes) }?;
        if let Some(reason) = window.refusal() {
            crate::text::complain(&format!("ccl perf: windows are used locally only: {reason}"));
        } else if let (Room::Pieces(_), Some(reason)) =
            (memory, window.registration().and_then(|registration| registration.refusal()))
        {
            crate::text::complain(&format!("ccl perf: windows are not lent: {reason}"));
        }
        mirror.windows.push(window);
    }
    Ok(())
}

/// Where a call's data lies.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    /// The lane's memory.
    pub(crate) mirror: &'a Mirror,
    /// Where the input begins in the send area.
    pub(crate) send_bytes: usize,
    /// Where the result begins.
    pub(crate) recv_bytes: usize,
    /// Whether the result lies in the send area.
    pub(crate) in_place: bool,
}

impl At<'_> {
    fn addresses(&self) -> Addresses<'static> {
        let (send, recv) = (self.mirror.send.address(), self.mirror.recv.address());
        let recv = if self.in_place { send } else { recv };
        let (send, recv) =
            ((send + self.send_bytes as u64) as *const u8, (recv + self.recv_bytes as u64) as *mut u8);
        // SAFETY: the addresses are used by calls alone, whose contract says how long they must live.
        unsafe { Addresses::new(send, recv) }
    }
}

fn failed(error: ccl_cuda::Error) -> Error {
    Error::new(Fault::Device, error.to_string(), "see `ccl doctor` for what this device and driver can do")
}
