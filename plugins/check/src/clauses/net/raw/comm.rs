//! The two ends of a connection.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use ccl_plugin::c::{self, CclMemoryV1, CclWatchV1};

use super::{Context, Table, entry, optional};
use crate::breach::{Failed, Outcome, breach};
use crate::clauses::net::buffer::Buffer;

/// A request, until it is dead.
#[derive(Debug)]
pub(crate) struct Pending {
    raw: *mut c_void,
    dead: bool,
    buffers: usize,
    /// What was received, once it is done.
    pub(crate) sizes: Vec<u64>,
}

// SAFETY: an opaque pointer, only used in calls on the comm it belongs to.
unsafe impl Send for Pending {}

impl Pending {
    fn new(raw: *mut c_void, buffers: usize) -> Option<Pending> {
        (!raw.is_null()).then(|| Pending { raw, dead: false, buffers, sizes: Vec::new() })
    }

    /// Never tested again.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }
}

/// The sending end; closed when dropped.
pub(crate) struct SendEnd(End);

/// The receiving end; closed when dropped.
pub(crate) struct RecvEnd(End);

/// What both have in common.
struct End {
    raw: *mut c_void,
    side: u32,
    context: Context,
    /// Registrations of whole buffers, by their ids.
    mrs: HashMap<usize, *mut c_void>,
}

// SAFETY: the contract asks for one thread at a time, not for one thread; calls take `&mut self`.
unsafe impl Send for End {}

impl End {
    fn table(&self) -> &Table {
        self.context.table()
    }

    fn mr(&mut self, buffer: &Buffer) -> Result<*mut c_void, Failed> {
        if let Some(mr) = self.mrs.get(&buffer.id) {
            return Ok(*mr);
        }
        let mr = self.register(&host_memory(buffer, 0..buffer.bytes()))?;
        self.mrs.insert(buffer.id, mr);
        Ok(mr)
    }

    fn register(&mut self, memory: &CclMemoryV1) -> Result<*mut c_void, Failed> {
        let mut mr = ptr::null_mut();
        // SAFETY: a comm that is open, and memory that lives forever (or is refused, being of another kind).
        self.table().call("reg_mr", || unsafe {
            entry!(self.table(), reg_mr)(self.raw, self.side, &raw const *memory, &raw mut mr)
        })?;
        Ok(mr)
    }

    fn deregister(&mut self, mr: *mut c_void) -> Result<(), Failed> {
        // SAFETY: a registration of this comm that no pending request uses, ended once.
        self.table().call("dereg_mr", || unsafe { entry!(self.table(), dereg_mr)(self.raw, self.side, mr) })
    }

    /// Registers parts of a buffer, several times over, and ends all of these again.
    fn register_parts(&mut self, buffer: &Buffer, parts: &[Range<usize>]) -> Result<(), Failed> {
        let mut mrs = Vec::new();
        for part in parts {
            mrs.push(self.register(&host_memory(buffer, part.clone()))?);
        }
        mrs.into_iter().rev().try_for_each(|mr| self.deregister(mr))
    }

    fn turn(&mut self) -> Outcome<*mut c_void> {
        let (turn, mut other) = (optional!(self.table(), turn), ptr::null_mut());
        // SAFETY: a comm that is open and was not turned.
        self.table().call("turn", || unsafe { turn(self.raw, self.side, &raw mut other) })?;
        if other.is_null() {
            return breach("turn reported success and gave no comm");
        }
        Ok(other)
    }

    /// The descriptors to look at; `None` if the host is to wake up by itself.
    fn watch(&mut self) -> Outcome<Option<Vec<CclWatchV1>>> {
        let watch = optional!(self.table(), watch);
        let (mut watched, mut count) = ([CclWatchV1::default(); MOST_WATCHED], 0);
        let room = MOST_WATCHED as u32;
        // SAFETY: a comm that is open, room for as many as is said.
        self.table().call("watch", || unsafe {
            watch(self.raw, self.side, room, watched.as_mut_ptr(), &raw mut count)
        })?;
        let count = count as usize;
        Ok((1..=MOST_WATCHED).contains(&count).then(|| watched[..count].to_vec()))
    }

    fn flagged(&self, tested: Result<(), Failed>, done: u32, request: &mut Pending) -> Result<bool, Failed> {
        request.dead = done != 0 || tested.is_err();
        tested.map(|()| done != 0)
    }
}

impl SendEnd {
    pub(super) fn from_raw(raw: *mut c_void, context: &Context) -> Option<SendEnd> {
        let end = |()| End { raw, side: c::SIDE_SEND, context: context.clone(), mrs: HashMap::new() };
        (!raw.is_null()).then_some(()).map(end).map(SendEnd)
    }

    /// Posts a message; `None`: not now.
    pub(crate) fn post(&mut self, buffer: &Buffer, tag: u32) -> Result<Option<Pending>, Failed> {
        let isend = entry!(self.0.table(), isend);
        self.post_by("isend", isend, buffer, tag)
    }

    /// Posts a message that another follows.
    pub(crate) fn post_more(&mut self, buffer: &Buffer, tag: u32) -> Outcome<Option<Pending>> {
        let isend_more = optional!(self.0.table(), isend_more);
        Ok(self.post_by("isend_more", isend_more, buffer, tag)?)
    }

    /// Posts a message of which only so many first bytes are in the buffer, and the others at `data`.
    pub(crate) fn post_from(
        &mut self,
        buffer: &Buffer,
        tag: u32,
        (head_bytes, data): (usize, &[u8]),
    ) -> Outcome<Option<Pending>> {
        let isend_from = optional!(self.0.table(), isend_from);
        let (mut raw, mr, raw_comm) = (ptr::null_mut(), self.0.mr(buffer)?, self.0.raw);
        let (message, bytes) = (buffer.address().cast(), buffer.bytes() as u64);
        // SAFETY: a comm that is open, memory of its own that lives forever and is registered, and as many bytes
        // elsewhere as the buffer has behind its head.
        self.0.table().call("isend_from", || unsafe {
            isend_from(
                raw_comm,
                message,
                bytes,
                tag,
                mr,
                head_bytes as u64,
                data.as_ptr().cast(),
                &raw mut raw,
            )
        })?;
        Ok(Pending::new(raw, 1))
    }

    fn post_by(
        &mut self,
        name: &'static str,
        isend: Post,
        buffer: &Buffer,
        tag: u32,
    ) -> Result<Option<Pending>, Failed> {
        let (mut raw, bytes) = (ptr::null_mut(), buffer.bytes());
        // Without bytes there need not be an address.
        let (data, mr) = match bytes {
            0 => (ptr::null(), ptr::null_mut()),
            _ => (buffer.address().cast_const(), self.0.mr(buffer)?),
        };
        let (raw_comm, bytes) = (self.0.raw, bytes as u64);
        // SAFETY: a comm that is open, and memory of its own that lives forever and is registered.
        let posted = || unsafe { isend(raw_comm, data.cast(), bytes, tag, mr, &raw mut raw) };
        self.0.table().call(name, posted)?;
        Ok(Pending::new(raw, 1))
    }

    /// Whether a request is done. One that is dead is done.
    pub(crate) fn test(&mut self, request: &mut Pending) -> Result<bool, Failed> {
        if request.dead {
            return Ok(true);
        }
        let mut done = 0;
        // SAFETY: a comm that is open, and a pending request of it: clauses keep them together.
        let tested = self.0.table().call("test_send", || unsafe {
            entry!(self.0.table(), test_send)(self.0.raw, request.raw, &raw mut done)
        });
        self.0.flagged(tested, done, request)
    }

    /// Tests several at once, and says which are done.
    pub(crate) fn test_all(&mut self, requests: &mut [Pending]) -> Outcome<()> {
        let test_sends = optional!(self.0.table(), test_sends);
        let mut live: Vec<_> = requests.iter_mut().filter(|request| !request.dead).collect();
        let raws: Vec<_> = live.iter().map(|request| request.raw).collect();
        let mut done = vec![0; raws.len()];
        // SAFETY: a comm that is open, pending requests of it, and room for as many answers.
        self.0.table().call("test_sends", || unsafe {
            test_sends(self.0.raw, raws.len() as u32, raws.as_ptr(), done.as_mut_ptr())
        })?;
        live.iter_mut().zip(done).for_each(|(request, done)| request.dead = done != 0);
        Ok(())
    }

    pub(crate) fn register_parts(&mut self, buffer: &Buffer, parts: &[Range<usize>]) -> Result<(), Failed> {
        self.0.register_parts(buffer, parts)
    }

    pub(crate) fn turn(&mut self) -> Outcome<RecvEnd> {
        let raw = self.0.turn()?;
        Ok(RecvEnd(End { raw, side: c::SIDE_RECV, context: self.0.context.clone(), mrs: HashMap::new() }))
    }

    /// Writes to the peer's memory; `None`: not now.
    pub(crate) fn put(&mut self, buffer: &Buffer, key: &Key, offset: u64) -> Outcome<Option<Pending>> {
        let (put, mr, mut raw) = (optional!(self.0.table(), put), self.0.mr(buffer)?, ptr::null_mut());
        let (data, bytes) = (buffer.address().cast_const().cast(), buffer.bytes() as u64);
        // SAFETY: a comm that is open, registered memory that lives forever, 64 readable bytes.
        self.0.table().call("put", || unsafe {
            put(self.0.raw, data, bytes, mr, key.as_ptr(), offset, &raw mut raw)
        })?;
        Ok(Pending::new(raw, 1))
    }

    /// Reads from the peer's memory; `None`: not now.
    pub(crate) fn get(&mut self, buffer: &Buffer, key: &Key, offset: u64) -> Outcome<Option<Pending>> {
        let (get, mr, mut raw) = (optional!(self.0.table(), get), self.0.mr(buffer)?, ptr::null_mut());
        let (data, bytes) = (buffer.address().cast(), buffer.bytes() as u64);
        // SAFETY: as for `put`.
        self.0.table().call("get", || unsafe {
            get(self.0.raw, data, bytes, mr, key.as_ptr(), offset, &raw mut raw)
        })?;
        Ok(Pending::new(raw, 1))
    }

    /// What a put outside the peer's memory of `bytes` returns.
    pub(crate) fn put_beyond(&mut self, buffer: &Buffer, key: &Key, offset: u64) -> Outcome<Option<Failed>> {
        let (put, mr, mut raw) = (optional!(self.0.table(), put), self.0.mr(buffer)?, ptr::null_mut());
        let (data, bytes) = (buffer.address().cast_const().cast(), buffer.bytes() as u64);
        // SAFETY: as for `put`; the offset is refused by a plugin that keeps the contract.
        let posted = self
            .0
            .table()
            .call("put", || unsafe { put(self.0.raw, data, bytes, mr, key.as_ptr(), offset, &raw mut raw) });
        Ok(posted.err())
    }

    /// Adds to a number of the peer; `None`: not now.
    pub(crate) fn signal(&mut self, key: &Key, offset: u64, value: u64) -> Outcome<Option<Pending>> {
        let (signal, mut raw) = (optional!(self.0.table(), signal), ptr::null_mut());
        // SAFETY: a comm that is open, 64 readable bytes.
        let posted = || unsafe { signal(self.0.raw, key.as_ptr(), offset, value, &raw mut raw) };
        self.0.table().call("signal", posted)?;
        Ok(Pending::new(raw, 1))
    }
}

impl RecvEnd {
    pub(super) fn from_raw(raw: *mut c_void, context: &Context) -> Option<RecvEnd> {
        let end = |()| End { raw, side: c::SIDE_RECV, context: context.clone(), mrs: HashMap::new() };
        (!raw.is_null()).then_some(()).map(end).map(RecvEnd)
    }

    /// Posts a group of receives as one request; `None`: not now.
    pub(crate) fn post(&mut self, group: &[(Buffer, u32)]) -> Result<Option<Pending>, Failed> {
        let mut data: Vec<*mut c_void> = Vec::new();
        let (mut bytes, mut tags, mut mrs) = (Vec::new(), Vec::new(), Vec::new());
        for (buffer, tag) in group {
            data.push(if buffer.bytes() == 0 { ptr::null_mut() } else { buffer.address().cast() });
            bytes.push(buffer.bytes() as u64);
            tags.push(*tag);
            mrs.push(if buffer.bytes() == 0 { ptr::null_mut() } else { self.0.mr(buffer)? });
        }
        let (table, n, mut raw) = (self.0.table(), group.len(), ptr::null_mut());
        // SAFETY: a comm that is open, arrays of the stated length, registered memory that lives forever.
        table.call("irecv", || unsafe {
            entry!(table, irecv)(
                self.0.raw,
                n as u32,
                data.as_ptr(),
                bytes.as_ptr(),
                tags.as_ptr(),
                mrs.as_ptr(),
                &raw mut raw,
            )
        })?;
        Ok(Pending::new(raw, n))
    }

    /// Whether a request is done; then its sizes are in it. One that is dead is done.
    pub(crate) fn test(&mut self, request: &mut Pending) -> Result<bool, Failed> {
        if request.dead {
            return Ok(true);
        }
        let (table, mut done, mut bytes) = (self.0.table(), 0, [0; c::MAX_RECVS]);
        // SAFETY: a comm that is open, and a pending request of it: clauses keep them together.
        let tested = table.call("test_recv", || unsafe {
            entry!(table, test_recv)(self.0.raw, request.raw, &raw mut done, bytes.as_mut_ptr())
        });
        request.sizes = bytes[..request.buffers].to_vec();
        self.0.flagged(tested, done, request)
    }

    /// Tests several at once, of one buffer each, and says which are done.
    pub(crate) fn test_all(&mut self, requests: &mut [Pending]) -> Outcome<()> {
        let test_recvs = optional!(self.0.table(), test_recvs);
        let mut live: Vec<_> = requests.iter_mut().filter(|request| !request.dead).collect();
        let raws: Vec<_> = live.iter().map(|request| request.raw).collect();
        let (mut done, mut bytes) = (vec![0; raws.len()], vec![0; raws.len()]);
        // SAFETY: a comm that is open, pending requests of it, and room for as many answers.
        self.0.table().call("test_recvs", || unsafe {
            test_recvs(self.0.raw, raws.len() as u32, raws.as_ptr(), done.as_mut_ptr(), bytes.as_mut_ptr())
        })?;
        for ((request, done), bytes) in live.iter_mut().zip(done).zip(bytes) {
            (request.dead, request.sizes) = (done != 0, vec![bytes]);
        }
        Ok(())
    }

    /// What registering memory of another kind than the device takes returns.
    pub(crate) fn register_kind(&mut self, buffer: &Buffer, kind: u32) -> Option<Failed> {
        let memory = CclMemoryV1 { kind, device: 0, ..host_memory(buffer, 0..buffer.bytes()) };
        self.0.register(&memory).err()
    }

    pub(crate) fn register_parts(&mut self, buffer: &Buffer, parts: &[Range<usize>]) -> Result<(), Failed> {
        self.0.register_parts(buffer, parts)
    }

    pub(crate) fn turn(&mut self) -> Outcome<SendEnd> {
        let raw = self.0.turn()?;
        Ok(SendEnd(End { raw, side: c::SIDE_SEND, context: self.0.context.clone(), mrs: HashMap::new() }))
    }

    pub(crate) fn watch(&mut self) -> Outcome<Option<Vec<CclWatchV1>>> {
        self.0.watch()
    }

    /// The key by which the peer names a buffer.
    pub(crate) fn export(&mut self, buffer: &Buffer) -> Outcome<Key> {
        let (export_mr, mr, mut key) = (optional!(self.0.table(), export_mr), self.0.mr(buffer)?, [0; 64]);
        // SAFETY: a comm that is open, a registration of it, 64 writable bytes.
        self.0.table().call("export_mr", || unsafe { export_mr(self.0.raw, mr, key.as_mut_ptr()) })?;
        Ok(key)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let table = self.context.table();
        let (name, close) = match self.side {
            c::SIDE_SEND => ("close_send", entry!(table, close_send)),
            _ => ("close_recv", entry!(table, close_recv)),
        };
        // SAFETY: a comm that is open, closed once.
        table.close(name, || unsafe { close(self.raw) });
    }
}

pub(crate) type Key = [u8; c::KEY_BYTES];

type Post = unsafe extern "C" fn(*mut c_void, *const c_void, u64, u32, *mut c_void, *mut *mut c_void) -> i32;

fn host_memory(buffer: &Buffer, part: Range<usize>) -> CclMemoryV1 {
    CclMemoryV1 {
        size: size_of::<CclMemoryV1>() as u32,
        kind: c::MEMORY_HOST,
        address: (buffer.address() as usize + part.start) as u64,
        bytes: part.len() as u64,
        dmabuf_offset: 0,
        dmabuf_fd: -1,
        device: -1,
    }
}

const MOST_WATCHED: usize = 16;
