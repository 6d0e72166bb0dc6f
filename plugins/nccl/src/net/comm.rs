//! The two ends of a connection. Calls that move data do not allocate.

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::Arc;

use ccl_plugin::c;
use ccl_plugin::net::{Memory, MemoryKind, Mr, RecvBuffer, RecvComm, Request, SendBuffer, SendComm};
use ccl_plugin::{Code, Error, Result};

use super::calls::{Outgoing, Rooms};
use super::context::Context;
use super::layout;

type Ptr = *mut c_void;

/// The sending end.
pub(crate) struct Sender(End);

/// The receiving end.
pub(crate) struct Receiver(End);

/// What both ends have in common.
struct End {
    raw: Ptr,
    /// Registrations that are not ended yet.
    mrs: Vec<Ptr>,
    context: Arc<Context>,
}

// SAFETY: NCCL calls functions that take a comm from one thread at a time for each kind of call; here it is one
// for all of them, since they borrow the end mutably.
unsafe impl Send for End {}

impl Sender {
    /// # Safety
    ///
    /// `raw` came from `connect` in this context and is nobody else's.
    pub(crate) unsafe fn new(raw: Ptr, context: Arc<Context>) -> Sender {
        Sender(End { raw, mrs: Vec::new(), context })
    }
}

impl SendComm for Sender {
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        self.0.register(memory)
    }

    fn deregister(&mut self, mr: Mr) -> Result<()> {
        self.0.deregister(mr)
    }

    #[inline]
    fn send(&mut self, message: SendBuffer) -> Result<Option<Request>> {
        let Context { plugin, .. } = *self.0.context;
        self.0.context.check()?;
        self.0.fits("isend", message.bytes)?;
        let SendBuffer { data, bytes, tag, mr } = message;
        let message = Outgoing { data: data.cast_mut().cast(), bytes, tag: tag as c_int, mr: mr.0 as Ptr };
        let mut request = ptr::null_mut();
        // SAFETY: a comm that is open; bytes that the host leaves alone until the request is done.
        plugin.outcome("isend", unsafe { plugin.calls.isend(self.0.raw, &message, &mut request) })?;
        Ok(pending(request))
    }

    #[inline]
    fn test(&mut self, request: Request) -> Result<bool> {
        self.0.test(request, &mut [0; layout::TESTED_SIZES])
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.end_registrations();
        let plugin = self.0.context.plugin;
        // SAFETY: a comm that is open, and not used again.
        plugin.report(plugin.outcome("closeSend", unsafe { plugin.calls.close_send(self.0.raw) }));
    }
}

impl Receiver {
    /// # Safety
    ///
    /// `raw` came from `accept` in this context and is nobody else's.
    pub(crate) unsafe fn new(raw: Ptr, context: Arc<Context>) -> Receiver {
        Receiver(End { raw, mrs: Vec::new(), context })
    }
}

impl RecvComm for Receiver {
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        self.0.register(memory)
    }

    fn deregister(&mut self, mr: Mr) -> Result<()> {
        self.0.deregister(mr)
    }

    #[inline]
    fn receive(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>> {
        let Context { plugin, .. } = *self.0.context;
        self.0.context.check()?;
        for buffer in buffers {
            self.0.fits("irecv", buffer.bytes)?;
        }
        let (mut rooms, mut request) = (rooms(buffers), ptr::null_mut());
        // SAFETY: a comm that is open; room that is the plugin's until the request is done.
        let result = unsafe { plugin.calls.irecv(self.0.raw, buffers.len(), &mut rooms, &mut request) };
        plugin.outcome("irecv", result)?;
        Ok(pending(request))
    }

    #[inline]
    fn test(&mut self, request: Request, sizes: &mut [u64]) -> Result<bool> {
        let mut found = [0; layout::TESTED_SIZES];
        let is_done = self.0.test(request, &mut found)?;
        if is_done {
            for (to, from) in sizes.iter_mut().zip(found) {
                *to = u64::try_from(from).map_err(|_| negative(from))?;
            }
        }
        Ok(is_done)
    }

    fn flush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>> {
        let Context { plugin, .. } = *self.0.context;
        self.0.context.check()?;
        let (mut rooms, mut request) = (rooms(buffers), ptr::null_mut());
        // SAFETY: a comm that is open; buffers whose receive is done.
        let result = unsafe { plugin.calls.iflush(self.0.raw, buffers.len(), &mut rooms, &mut request) };
        plugin.outcome("iflush", result.ok_or_else(|| Error::unsupported("iflush"))?)?;
        Ok(pending(request))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.end_registrations();
        let plugin = self.0.context.plugin;
        // SAFETY: a comm that is open, and not used again.
        plugin.report(plugin.outcome("closeRecv", unsafe { plugin.calls.close_recv(self.0.raw) }));
    }
}

impl End {
    fn register(&mut self, memory: &Memory) -> Result<Mr> {
        let Context { plugin, .. } = *self.context;
        self.context.check()?;
        let (data, bytes) = (memory.address as Ptr, memory.bytes);
        if plugin.calls.registers_narrowly() && bytes > c_int::MAX as usize {
            return Err(too_long("regMr", plugin.version(), c_int::MAX as usize, bytes));
        }
        let (mut mr, kind) = (ptr::null_mut(), memory.kind);
        let (call, result) = match kind {
            MemoryKind::Host => {
                // SAFETY: a comm that is open; memory that the host vouches for.
                let result = unsafe { plugin.calls.reg_mr(self.raw, data, bytes, layout::PTR_HOST, &mut mr) };
                ("regMr", result)
            }
            MemoryKind::Cuda { .. } => {
                // SAFETY: as above.
                let result = unsafe { plugin.calls.reg_mr(self.raw, data, bytes, layout::PTR_CUDA, &mut mr) };
                ("regMr", result)
            }
            MemoryKind::DmaBuf { fd, offset_bytes, .. } => {
                let (memory, place) = ((data, bytes), (fd, offset_bytes));
                // SAFETY: as above; the descriptor is open during the call.
                let result = unsafe { plugin.calls.reg_mr_dma_buf(self.raw, memory, place, &mut mr) };
                ("regMrDmaBuf", result.ok_or_else(|| Error::unsupported("regMrDmaBuf"))?)
            }
            _ => return Err(Error::unsupported("this kind of memory")),
        };
        plugin.outcome(call, result)?;
        self.mrs.push(mr);
        Ok(Mr(mr as usize))
    }

    fn deregister(&mut self, mr: Mr) -> Result<()> {
        let raw = mr.0 as Ptr;
        match self.mrs.iter().rposition(|known| *known == raw) {
            None => return Err(Error::invalid("expected a registration of this connection, found another")),
            Some(at) => drop(self.mrs.swap_remove(at)),
        }
        let plugin = self.context.plugin;
        // SAFETY: a comm that is open, and a registration of it that is not used again.
        plugin.outcome("deregMr", unsafe { plugin.calls.dereg_mr(self.raw, raw) })
    }

    /// Before a comm is closed: plugins expect that nothing is registered with it any more.
    fn end_registrations(&mut self) {
        while let Some(mr) = self.mrs.pop() {
            let plugin = self.context.plugin;
            // SAFETY: a comm that is open, and a registration of it that is not used again.
            plugin.report(plugin.outcome("deregMr", unsafe { plugin.calls.dereg_mr(self.raw, mr) }));
        }
    }

    #[inline]
    fn test(&mut self, request: Request, sizes: &mut [c_int; layout::TESTED_SIZES]) -> Result<bool> {
        let Context { plugin, .. } = *self.context;
        self.context.check()?;
        let mut done = 0;
        // SAFETY: a request of this comm that is not done; room for as many sizes as a plugin may fill in.
        plugin.outcome("test", unsafe { plugin.calls.test(request.0.get() as Ptr, &mut done, sizes) })?;
        Ok(done != 0)
    }

    /// Whether the version can say such a length.
    #[inline]
    fn fits(&self, call: &'static str, bytes: usize) -> Result<()> {
        let plugin = self.context.plugin;
        let most = if plugin.calls.is_narrow() { layout::ASSUMED_MESSAGE_BYTES } else { c_int::MAX as usize };
        if bytes <= most { Ok(()) } else { Err(too_long(call, plugin.version(), most, bytes)) }
    }
}

fn rooms(buffers: &[RecvBuffer]) -> Rooms<{ c::MAX_RECVS }> {
    let mut rooms =
        Rooms { data: [ptr::null_mut(); _], bytes: [0; _], tags: [0; _], mrs: [ptr::null_mut(); _] };
    for (index, buffer) in buffers.iter().enumerate().take(c::MAX_RECVS) {
        (rooms.data[index], rooms.bytes[index]) = (buffer.data.cast(), buffer.bytes);
        (rooms.tags[index], rooms.mrs[index]) = (buffer.tag as c_int, buffer.mr.0 as Ptr);
    }
    rooms
}

/// A request, or not now.
fn pending(request: Ptr) -> Option<Request> {
    NonZeroUsize::new(request as usize).map(Request)
}

#[cold]
fn too_long(call: &str, version: u32, most: usize, bytes: usize) -> Error {
    Error::invalid(format!("{call}: contract v{version} takes at most {most} bytes, found {bytes}"))
}

#[cold]
fn negative(size: c_int) -> Error {
    Error::new(Code::INTERNAL, format!("expected the length of a message from test, found {size}"))
}
