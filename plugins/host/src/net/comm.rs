//! The two ends of a connection. Calls that move data do not allocate.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_plugin::c::{self, CclMemoryV1, CclWatchV1};
use ccl_plugin::net::MemoryKind;

use crate::error::NetError;
use crate::net::call;
use crate::net::context::{NetContext, object};
use crate::net::plugin::NetPlugin;

/// Memory registered with one comm. It ends with the comm, or earlier with `deregister`.
#[derive(Debug)]
pub struct Mr {
    raw: *mut c_void,
    owner: u64,
    address: usize,
    bytes: usize,
}

// SAFETY: an opaque pointer, only used in calls on the comm that owns it.
unsafe impl Send for Mr {}
// SAFETY: as above; it is never changed.
unsafe impl Sync for Mr {}

/// A pending send or receive of one comm.
///
/// Dropping it forgets the request; the plugin keeps its place until the comm is closed.
#[derive(Debug)]
pub struct Request {
    raw: Option<NonNull<c_void>>,
    owner: u64,
    /// For a send its bytes, for a receive the number of buffers.
    extent: usize,
}

// SAFETY: an opaque pointer, only used in calls on the comm that owns it.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

/// One buffer of a grouped receive.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer<'a> {
    /// Its first byte.
    pub data: *mut u8,
    /// The longest message that fits.
    pub bytes: usize,
    /// The tag of the message.
    pub tag: u32,
    /// The registration it lies in.
    pub mr: &'a Mr,
}

/// The sending end of a connection. Closes when dropped, pending sends included.
#[derive(Debug)]
pub struct SendComm(End);

/// The receiving end of a connection. Closes when dropped, pending receives included.
#[derive(Debug)]
pub struct RecvComm(End);

impl SendComm {
    /// # Safety
    ///
    /// `raw` came from `poll_connect` of this context and is not owned by anyone else.
    pub(super) unsafe fn from_raw(raw: NonNull<c_void>, context: NetContext) -> SendComm {
        SendComm(End::new(raw, context, c::SIDE_SEND))
    }

    /// Makes memory known to the network. It must stay valid until it is deregistered or the comm
    /// is closed.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] or [`NetError::Unsupported`] for a kind the device does not take.
    pub fn register(&mut self, address: *const u8, bytes: usize, kind: MemoryKind) -> Result<Mr, NetError> {
        self.0.register(address as usize, bytes, kind)
    }

    /// Ends a registration; no pending send may use it.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] if it belongs to another comm.
    pub fn deregister(&mut self, mr: Mr) -> Result<(), NetError> {
        self.0.deregister(mr)
    }

    /// Posts a message of `bytes` bytes at `data`; `None`: not now, ask again. Messages with one
    /// tag arrive in the order posted.
    ///
    /// # Safety
    ///
    /// The bytes stay valid and unchanged until [`SendComm::test`] says done or the comm is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] if they do not lie in `mr`; [`NetError::Remote`] naming the peer if it
    /// is gone.
    #[inline]
    pub unsafe fn send(
        &mut self,
        data: *const u8,
        bytes: usize,
        tag: u32,
        mr: &Mr,
    ) -> Result<Option<Request>, NetError> {
        self.0.check_range("isend", data as usize, bytes, mr)?;
        let mut raw = ptr::null_mut();
        call!(
            self.0.plugin,
            isend(self.0.raw.as_ptr(), data.cast(), bytes as u64, tag, mr.raw, &raw mut raw)
        )?;
        Ok(self.0.request(raw, bytes))
    }

    /// As [`SendComm::send`], of a message that another follows at once: it may travel with that one. Call
    /// that, or [`SendComm::test`], before anything that waits.
    ///
    /// # Safety
    ///
    /// As for [`SendComm::send`].
    ///
    /// # Errors
    ///
    /// As for [`SendComm::send`].
    #[inline]
    pub unsafe fn send_more(
        &mut self,
        data: *const u8,
        bytes: usize,
        tag: u32,
        mr: &Mr,
    ) -> Result<Option<Request>, NetError> {
        if self.0.plugin.table().isend_more.is_none() {
            // SAFETY: the caller's contract.
            return unsafe { self.send(data, bytes, tag, mr) };
        }
        self.0.check_range("isend_more", data as usize, bytes, mr)?;
        let mut raw = ptr::null_mut();
        call!(
            self.0.plugin,
            isend_more(self.0.raw.as_ptr(), data.cast(), bytes as u64, tag, mr.raw, &raw mut raw)
        )?;
        Ok(self.0.request(raw, bytes))
    }

    /// As [`SendComm::send`], of a message of which only the first `head_bytes` are at `message`; the others are
    /// at `data`, and not used after this. What could not be sent from there was copied to its place in the message.
    /// `None`: not now, and nothing was.
    ///
    /// # Safety
    ///
    /// As for [`SendComm::send`], of `message`, all of whose bytes are writable during the call. `bytes - head_bytes`
    /// bytes at `data` are readable during the call, and lie outside of it.
    ///
    /// # Errors
    ///
    /// As for [`SendComm::send`]; [`NetError::Unsupported`] unless [`NetPlugin::sends_from`]; [`NetError::Usage`] for
    /// a message that is no longer than its head.
    #[inline]
    pub unsafe fn send_from(
        &mut self,
        (message, bytes, tag): (*mut u8, usize, u32),
        mr: &Mr,
        (head_bytes, data): (usize, *const u8),
    ) -> Result<Option<Request>, NetError> {
        self.0.check_range("isend_from", message as usize, bytes, mr)?;
        let mut raw = ptr::null_mut();
        let (comm, head_bytes) = (self.0.raw.as_ptr(), head_bytes as u64);
        call!(
            self.0.plugin,
            isend_from(
                comm,
                message.cast(),
                bytes as u64,
                tag,
                mr.raw,
                head_bytes,
                data.cast(),
                &raw mut raw
            )
        )?;
        Ok(self.0.request(raw, bytes))
    }

    /// Whether a send is done, and its bytes. After that, or after an error, the request is dead.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] for a dead request or one of another comm; [`NetError::Remote`] naming
    /// the peer.
    #[inline]
    pub fn test(&mut self, request: &mut Request) -> Result<Option<usize>, NetError> {
        let raw = self.0.check_request("test_send", request)?;
        let mut done = 0;
        let tested = call!(self.0.plugin, test_send(self.0.raw.as_ptr(), raw.as_ptr(), &raw mut done));
        if done != 0 || tested.is_err() {
            request.raw = None;
        }
        tested.map(|()| (done != 0).then_some(request.extent))
    }

    /// The other direction of the connection: what the peer sends at its end, after the same call there.
    /// Once; [`NetPlugin::turns`] says whether a network offers it.
    ///
    /// # Errors
    ///
    /// [`NetError::Unsupported`]; [`NetError::Usage`] the second time.
    pub fn turn(&mut self) -> Result<RecvComm, NetError> {
        let raw = self.0.turn()?;
        // SAFETY: a comm that `turn` just gave for a send comm.
        Ok(unsafe { RecvComm::from_raw(raw, self.0.context.clone()) })
    }

    /// Calls `at` with each descriptor, and the events of `poll(2)`, that news of what is pending come from;
    /// whether there are any, and these are all. Ask right after tests that found nothing done.
    ///
    /// # Errors
    ///
    /// [`NetError::Unsupported`] unless [`NetPlugin::is_watchable`].
    pub fn watch(&mut self, at: impl FnMut(i32, i16)) -> Result<bool, NetError> {
        self.0.watch(at)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &NetContext {
        &self.0.context
    }
}

impl RecvComm {
    /// # Safety
    ///
    /// `raw` came from `accept` of this context and is not owned by anyone else.
    pub(super) unsafe fn from_raw(raw: NonNull<c_void>, context: NetContext) -> RecvComm {
        RecvComm(End::new(raw, context, c::SIDE_RECV))
    }

    /// Makes memory known to the network, as [`SendComm::register`] does.
    ///
    /// # Errors
    ///
    /// As for [`SendComm::register`].
    pub fn register(&mut self, address: *mut u8, bytes: usize, kind: MemoryKind) -> Result<Mr, NetError> {
        self.0.register(address as usize, bytes, kind)
    }

    /// Ends a registration; no pending receive may use it.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] if it belongs to another comm.
    pub fn deregister(&mut self, mr: Mr) -> Result<(), NetError> {
        self.0.deregister(mr)
    }

    /// Posts room for a message; `None`: not now, ask again. The oldest receive with a message's
    /// tag gets it.
    ///
    /// # Safety
    ///
    /// The bytes stay valid and untouched by anybody else until [`RecvComm::test`] says done or the
    /// comm is dropped. Bytes past the end of a shorter message may be overwritten.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] if they do not lie in `mr`; [`NetError::Remote`] naming the peer if it
    /// is gone.
    #[inline]
    pub unsafe fn recv(
        &mut self,
        data: *mut u8,
        bytes: usize,
        tag: u32,
        mr: &Mr,
    ) -> Result<Option<Request>, NetError> {
        self.0.check_range("irecv", data as usize, bytes, mr)?;
        let (mut raw, data, mr) = (ptr::null_mut(), data.cast::<c_void>(), mr.raw);
        let bytes = bytes as u64;
        call!(
            self.0.plugin,
            irecv(
                self.0.raw.as_ptr(),
                1,
                &raw const data,
                &raw const bytes,
                &raw const tag,
                &raw const mr,
                &raw mut raw,
            )
        )?;
        Ok(self.0.request(raw, 1))
    }

    /// Posts room for several messages as one request, at most `max_recvs` of the device.
    ///
    /// # Safety
    ///
    /// As for [`RecvComm::recv`], for each buffer.
    ///
    /// # Errors
    ///
    /// As for [`RecvComm::recv`].
    pub unsafe fn recv_group(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<Option<Request>, NetError> {
        let n = buffers.len();
        if n == 0 || n > c::MAX_RECVS {
            let words = format!("expected 1 to {} buffers, found {n}", c::MAX_RECVS);
            return Err(NetError::usage(self.0.plugin.name(), "irecv", words));
        }
        let (mut data, mut mrs) = ([ptr::null_mut(); c::MAX_RECVS], [ptr::null_mut(); c::MAX_RECVS]);
        let (mut bytes, mut tags) = ([0u64; c::MAX_RECVS], [0u32; c::MAX_RECVS]);
        for (index, buffer) in buffers.iter().enumerate() {
            self.0.check_range("irecv", buffer.data as usize, buffer.bytes, buffer.mr)?;
            (data[index], bytes[index]) = (buffer.data.cast::<c_void>(), buffer.bytes as u64);
            (tags[index], mrs[index]) = (buffer.tag, buffer.mr.raw);
        }
        let mut raw = ptr::null_mut();
        call!(
            self.0.plugin,
            irecv(
                self.0.raw.as_ptr(),
                n as u32,
                data.as_ptr(),
                bytes.as_ptr(),
                tags.as_ptr(),
                mrs.as_ptr(),
                &raw mut raw,
            )
        )?;
        Ok(self.0.request(raw, n))
    }

    /// Whether a receive is done, and the bytes of its (first) message. After that, or after an
    /// error, the request is dead.
    ///
    /// # Errors
    ///
    /// [`NetError::Usage`] for a dead request or one of another comm; [`NetError::TooLong`] for a
    /// message that did not fit; [`NetError::Remote`] naming the peer.
    #[inline]
    pub fn test(&mut self, request: &mut Request) -> Result<Option<usize>, NetError> {
        let mut bytes = [0; c::MAX_RECVS];
        Ok(self.test_into(request, &mut bytes)?.then_some(bytes[0] as usize))
    }

    /// Whether all messages of a grouped receive are there; their bytes in the order of the
    /// buffers.
    ///
    /// # Errors
    ///
    /// As for [`RecvComm::test`]; [`NetError::Usage`] if `sizes` is shorter than the group.
    pub fn test_group(&mut self, request: &mut Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        if sizes.len() < request.extent {
            let words = format!("expected room for {} sizes, found {}", request.extent, sizes.len());
            return Err(NetError::usage(self.0.plugin.name(), "test_recv", words));
        }
        let mut bytes = [0; c::MAX_RECVS];
        let done = self.test_into(request, &mut bytes)?;
        if done {
            sizes.iter_mut().zip(&bytes[..request.extent]).for_each(|(to, from)| *to = *from as usize);
        }
        Ok(done)
    }

    /// The other direction of the connection: to the peer, who receives at its end after the same call
    /// there. Once; [`NetPlugin::turns`] says whether a network offers it.
    ///
    /// # Errors
    ///
    /// [`NetError::Unsupported`]; [`NetError::Usage`] the second time.
    pub fn turn(&mut self) -> Result<SendComm, NetError> {
        let raw = self.0.turn()?;
        // SAFETY: a comm that `turn` just gave for a recv comm.
        Ok(unsafe { SendComm::from_raw(raw, self.0.context.clone()) })
    }

    /// What news of what is pending come from, as [`SendComm::watch`] tells.
    ///
    /// # Errors
    ///
    /// As for [`SendComm::watch`].
    pub fn watch(&mut self, at: impl FnMut(i32, i16)) -> Result<bool, NetError> {
        self.0.watch(at)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &NetContext {
        &self.0.context
    }

    #[inline]
    fn test_into(
        &mut self,
        request: &mut Request,
        bytes: &mut [u64; c::MAX_RECVS],
    ) -> Result<bool, NetError> {
        let raw = self.0.check_request("test_recv", request)?;
        let mut done = 0;
        let tested = call!(
            self.0.plugin,
            test_recv(self.0.raw.as_ptr(), raw.as_ptr(), &raw mut done, bytes.as_mut_ptr())
        );
        if done != 0 || tested.is_err() {
            request.raw = None;
        }
        tested.map(|()| done != 0)
    }
}

/// What both ends have in common.
#[derive(Debug)]
struct End {
    raw: NonNull<c_void>,
    plugin: NetPlugin,
    side: u32,
    /// Never used again in this process, so that a request or registration finds its comm.
    id: u64,
    context: NetContext,
}

// SAFETY: the contract asks for one thread at a time, not for one thread; calls take `&mut self`.
unsafe impl Send for End {}

impl End {
    fn new(raw: NonNull<c_void>, context: NetContext, side: u32) -> End {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        End { raw, plugin: context.plugin(), side, id, context }
    }

    fn register(&mut self, address: usize, bytes: usize, kind: MemoryKind) -> Result<Mr, NetError> {
        let memory = memory_to_c(address, bytes, kind);
        let mut raw = ptr::null_mut();
        call!(self.plugin, reg_mr(self.raw.as_ptr(), self.side, &raw const memory, &raw mut raw))?;
        Ok(Mr { raw, owner: self.id, address, bytes })
    }

    fn deregister(&mut self, mr: Mr) -> Result<(), NetError> {
        if mr.owner != self.id {
            return Err(self.foreign("dereg_mr", "registration"));
        }
        call!(self.plugin, dereg_mr(self.raw.as_ptr(), self.side, mr.raw))
    }

    fn turn(&mut self) -> Result<NonNull<c_void>, NetError> {
        let mut raw = ptr::null_mut();
        call!(self.plugin, turn(self.raw.as_ptr(), self.side, &raw mut raw))?;
        object(self.plugin, "turn", raw)
    }

    fn watch(&mut self, mut at: impl FnMut(i32, i16)) -> Result<bool, NetError> {
        let (mut watched, mut count) = ([CclWatchV1::default(); MOST_WATCHED], 0);
        let (raw, room) = (self.raw.as_ptr(), MOST_WATCHED as u32);
        call!(self.plugin, watch(raw, self.side, room, watched.as_mut_ptr(), &raw mut count))?;
        let all = (1..=MOST_WATCHED).contains(&(count as usize));
        if all {
            watched[..count as usize].iter().for_each(|watch| at(watch.descriptor, watch.events));
        }
        Ok(all)
    }

    #[inline]
    fn check_range(&self, call: &'static str, data: usize, bytes: usize, mr: &Mr) -> Result<(), NetError> {
        if mr.owner != self.id {
            return Err(self.foreign(call, "registration"));
        }
        // Cannot wrap: `data - address` is checked first, and a registration fits in memory.
        if data < mr.address || data - mr.address > mr.bytes || bytes > mr.bytes - (data - mr.address) {
            return Err(self.outside(call, data, bytes, mr));
        }
        Ok(())
    }

    #[inline]
    fn check_request(&self, call: &'static str, request: &Request) -> Result<NonNull<c_void>, NetError> {
        if request.owner != self.id {
            return Err(self.foreign(call, "request"));
        }
        request.raw.ok_or_else(|| {
            NetError::usage(self.plugin.name(), call, "expected a pending request, found one that ended")
        })
    }

    #[inline]
    fn request(&self, raw: *mut c_void, extent: usize) -> Option<Request> {
        NonNull::new(raw).map(|raw| Request { raw: Some(raw), owner: self.id, extent })
    }

    #[cold]
    fn foreign(&self, call: &'static str, what: &str) -> NetError {
        NetError::usage(self.plugin.name(), call, format!("the {what} belongs to another connection"))
    }

    #[cold]
    fn outside(&self, call: &'static str, data: usize, bytes: usize, mr: &Mr) -> NetError {
        let words = format!(
            "expected bytes within the registration of {} at {:#x}, found {bytes} at {data:#x}",
            mr.bytes, mr.address
        );
        NetError::usage(self.plugin.name(), call, words)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        let closed = match self.side {
            c::SIDE_SEND => call!(self.plugin, close_send(raw)),
            _ => call!(self.plugin, close_recv(raw)),
        };
        if let Err(error) = closed {
            tracing::warn!("{error}");
        }
    }
}

/// Descriptors of one comm: of one with more, news are not waited for.
const MOST_WATCHED: usize = 16;

fn memory_to_c(address: usize, bytes: usize, kind: MemoryKind) -> CclMemoryV1 {
    let (kind, device, dmabuf_fd, dmabuf_offset) = match kind {
        MemoryKind::Cuda { device } => (c::MEMORY_CUDA, device, -1, 0),
        MemoryKind::DmaBuf { device, fd, offset_bytes } => (c::MEMORY_DMABUF, device, fd, offset_bytes),
        _ => (c::MEMORY_HOST, -1, -1, 0),
    };
    CclMemoryV1 {
        size: size_of::<CclMemoryV1>() as u32,
        kind,
        address: address as u64,
        bytes: bytes as u64,
        dmabuf_offset,
        dmabuf_fd,
        device,
    }
}
