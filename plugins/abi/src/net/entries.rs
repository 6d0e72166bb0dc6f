//! The C entries over a [`Net`]: null checks, boxes, and nothing else.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::slice;

use super::traits::{Connecting, Listener, Net, RecvComm, SendComm};
use super::types::{Elsewhere, Memory, MemoryKind, Mr, RecvBuffer, Request, SendBuffer};
use crate::c::{
    self, CclErrorV1, CclHostV1, CclMemoryV1, CclNetPropertiesV1, CclNetV1, CclSettingV1, CclWatchV1,
};
use crate::error::{Error, Result};
use crate::forward;
use crate::guard::{Object, fill_last_error, guard, read_handle};
use crate::settings::Settings;

/// The table of a network, for a host that links it in.
///
/// The network's `tracing` is the host's; nothing is exported from the library.
pub const fn table<N: Net>() -> &'static CclNetV1 {
    const { &Entries::<N>::table(Entries::<N>::init) }
}

/// What the entry `init` of [`table`] does, with `make` in place of [`Net::init`]: for networks that share one
/// type and one table, of which `init` alone could not tell which is meant. The context is used with that table.
///
/// # Safety
///
/// `host`, `settings`, `count` and `out` are as `ccl_net.h` asks of a host that calls `init`.
pub unsafe fn init_by<N: Net>(
    make: impl FnOnce(&Settings) -> Result<N>,
    host: *const CclHostV1,
    settings: *const CclSettingV1,
    count: u32,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { Entries::<N>::init_by(make, host, settings, count, out) }
}

/// The table of a network that is loaded: it also forwards what the plugin logs.
pub(crate) const fn exported_table<N: Net>() -> CclNetV1 {
    Entries::<N>::table(Entries::<N>::init_exported)
}

type Init = unsafe extern "C" fn(*const CclHostV1, *const CclSettingV1, u32, *mut *mut c_void) -> i32;
type Ptr = *mut c_void;

struct Entries<N>(PhantomData<N>);

/// A network handed to the host as a pointer, which no other context has while this one lives, even
/// if the network has no size.
struct Context<N> {
    net: N,
    _place: u8,
}

impl<N> Context<N> {
    fn leak(net: N) -> Ptr {
        Box::into_raw(Box::new(Context { net, _place: 0 })).cast()
    }
}

// Safety of every entry below: it is called by a host that keeps the contract of `ccl_net.h`: each
// object pointer came from the entry that makes such objects and was not closed, out pointers are
// writable, arrays have the stated lengths, and one object is used by one thread at a time.
impl<N: Net> Entries<N> {
    const fn table(init: Init) -> CclNetV1 {
        CclNetV1 {
            name: N::NAME.as_ptr(),
            init: Some(init),
            finalize: Some(Self::finalize),
            last_error: Some(last_error),
            devices: Some(Self::devices),
            properties: Some(Self::properties),
            listen: Some(Self::listen),
            accept: Some(Self::accept),
            close_listen: Some(Self::close::<N::Listener>),
            connect: Some(Self::connect),
            poll_connect: Some(Self::poll_connect),
            close_connect: Some(Self::close::<N::Connecting>),
            reg_mr: Some(Self::reg_mr),
            dereg_mr: Some(Self::dereg_mr),
            isend: Some(Self::isend),
            irecv: Some(Self::irecv),
            test_send: Some(Self::test_send),
            test_recv: Some(Self::test_recv),
            close_send: Some(Self::close::<N::SendComm>),
            close_recv: Some(Self::close::<N::RecvComm>),
            test_sends: Some(Self::test_sends),
            test_recvs: Some(Self::test_recvs),
            flush: Some(Self::flush),
            abort: Some(Self::abort),
            isend_more: Some(Self::isend_more),
            turn: if N::TWO_WAY { Some(Self::turn) } else { None },
            watch: if N::WATCHABLE { Some(Self::watch) } else { None },
            isend_from: if N::SENDS_FROM { Some(Self::isend_from) } else { None },
            ..CclNetV1::EMPTY
        }
    }

    unsafe extern "C" fn init(
        host: *const CclHostV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut Ptr,
    ) -> i32 {
        // SAFETY: the same contract.
        unsafe { Self::init_by(N::init, host, settings, count, out) }
    }

    /// # Safety
    ///
    /// Arguments as for the entry `init`.
    unsafe fn init_by(
        make: impl FnOnce(&Settings) -> Result<N>,
        host: *const CclHostV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut Ptr,
    ) -> i32 {
        // The host hears what `init` logs, also that it panicked, under a key no context can have.
        let key: Ptr = out.cast();
        // SAFETY: the host's table is valid during this call, at the end of which we leave.
        unsafe { forward::enter(key, host) };
        let code = guard(Self::at("init"), || {
            // SAFETY: the contract of the entries.
            let settings = unsafe { Settings::from_c(settings, count) }?;
            let context = Context::leak(make(&settings)?);
            // SAFETY: the host's table is valid until `finalize`, where we leave.
            unsafe { forward::enter(context, host) };
            // SAFETY: the contract of the entries.
            unsafe { out.write(context) };
            Ok(())
        });
        forward::leave(key);
        code
    }

    unsafe extern "C" fn init_exported(
        host: *const CclHostV1,
        settings: *const CclSettingV1,
        count: u32,
        out: *mut Ptr,
    ) -> i32 {
        forward::install();
        // SAFETY: the same contract.
        unsafe { Self::init(host, settings, count, out) }
    }

    unsafe extern "C" fn finalize(context: Ptr) -> i32 {
        let code = guard(Self::at("finalize"), || {
            // SAFETY: a context from `init`, used no more.
            drop(unsafe { Box::from_raw(context.cast::<Context<N>>()) });
            Ok(())
        });
        forward::leave(context);
        code
    }

    unsafe extern "C" fn abort(context: Ptr) -> i32 {
        guard(Self::at("abort"), || {
            // SAFETY: a context from `init`.
            unsafe { &*context.cast::<Context<N>>() }.net.abort();
            Ok(())
        })
    }

    unsafe extern "C" fn devices(context: Ptr, count: *mut u32) -> i32 {
        guard(Self::at("devices"), || {
            // SAFETY: a context from `init`.
            let found = unsafe { &*context.cast::<Context<N>>() }.net.devices()?;
            // SAFETY: the contract of the entries.
            unsafe { count.write(found) };
            Ok(())
        })
    }

    unsafe extern "C" fn properties(context: Ptr, device: u32, out: *mut CclNetPropertiesV1) -> i32 {
        guard(Self::at("properties"), || {
            // SAFETY: a context from `init`.
            let found = unsafe { &*context.cast::<Context<N>>() }.net.properties(device)?.to_c();
            // SAFETY: the host wrote the size of its struct, all of which is writable.
            unsafe {
                let room = ((*out).size as usize).min(size_of::<CclNetPropertiesV1>());
                std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), out.cast::<u8>(), room);
                (*out).size = room as u32;
            }
            Ok(())
        })
    }

    unsafe extern "C" fn listen(context: Ptr, device: u32, handle: *mut u8, out: *mut Ptr) -> i32 {
        guard(Self::at("listen"), || {
            // SAFETY: a context from `init`.
            let (found, listener) = unsafe { &*context.cast::<Context<N>>() }.net.listen(device)?;
            // SAFETY: 128 writable bytes, and a writable pointer.
            unsafe {
                handle.cast::<[u8; c::HANDLE_BYTES]>().write(found.0);
                out.write(Object::leak(listener));
            }
            Ok(())
        })
    }

    unsafe extern "C" fn accept(listener: Ptr, out: *mut Ptr) -> i32 {
        guard(Self::at("accept"), || {
            // SAFETY: a listener from `listen`.
            let comm = unsafe { object::<N::Listener>(listener) }.with(Listener::accept)?;
            // SAFETY: the contract of the entries.
            unsafe { out.write(comm.map_or(std::ptr::null_mut(), Object::leak)) };
            Ok(())
        })
    }

    unsafe extern "C" fn connect(context: Ptr, device: u32, handle: *const u8, out: *mut Ptr) -> i32 {
        guard(Self::at("connect"), || {
            // SAFETY: 128 readable bytes.
            let handle = unsafe { read_handle(handle) };
            // SAFETY: a context from `init`.
            let connecting = unsafe { &*context.cast::<Context<N>>() }.net.connect(device, &handle)?;
            // SAFETY: the contract of the entries.
            unsafe { out.write(Object::leak(connecting)) };
            Ok(())
        })
    }

    unsafe extern "C" fn poll_connect(connecting: Ptr, out: *mut Ptr) -> i32 {
        guard(Self::at("poll_connect"), || {
            // SAFETY: from `connect`.
            let comm = unsafe { object::<N::Connecting>(connecting) }.with(Connecting::poll)?;
            // SAFETY: the contract of the entries.
            unsafe { out.write(comm.map_or(std::ptr::null_mut(), Object::leak)) };
            Ok(())
        })
    }

    unsafe extern "C" fn close<T>(this: Ptr) -> i32 {
        guard(Self::at("close"), || {
            // SAFETY: an object of this type, used no more.
            drop(unsafe { Box::from_raw(this.cast::<Object<T>>()) });
            Ok(())
        })
    }

    unsafe extern "C" fn reg_mr(comm: Ptr, side: u32, memory: *const CclMemoryV1, out: *mut Ptr) -> i32 {
        guard(Self::at("reg_mr"), || {
            // SAFETY: readable, by the contract.
            let memory = memory_from_c(unsafe { &*memory })?;
            // SAFETY: a comm of the stated side.
            let mr = unsafe {
                match side {
                    c::SIDE_SEND => object::<N::SendComm>(comm).with(|comm| comm.register(&memory))?,
                    c::SIDE_RECV => object::<N::RecvComm>(comm).with(|comm| comm.register(&memory))?,
                    _ => return Err(bad_side(side)),
                }
            };
            // SAFETY: the contract of the entries.
            unsafe { out.write(mr.0 as Ptr) };
            Ok(())
        })
    }

    unsafe extern "C" fn dereg_mr(comm: Ptr, side: u32, mr: Ptr) -> i32 {
        guard(Self::at("dereg_mr"), || {
            let mr = Mr(mr as usize);
            // SAFETY: a comm of the stated side.
            unsafe {
                match side {
                    c::SIDE_SEND => object::<N::SendComm>(comm).with(|comm| comm.deregister(mr)),
                    c::SIDE_RECV => object::<N::RecvComm>(comm).with(|comm| comm.deregister(mr)),
                    _ => Err(bad_side(side)),
                }
            }
        })
    }

    unsafe extern "C" fn turn(comm: Ptr, side: u32, out: *mut Ptr) -> i32 {
        guard(Self::at("turn"), || {
            // SAFETY: a comm of the stated side.
            let other = unsafe {
                match side {
                    c::SIDE_SEND => Object::leak(object::<N::SendComm>(comm).with(N::turn_send)?),
                    c::SIDE_RECV => Object::leak(object::<N::RecvComm>(comm).with(N::turn_recv)?),
                    _ => return Err(bad_side(side)),
                }
            };
            // SAFETY: the contract of the entries.
            unsafe { out.write(other) };
            Ok(())
        })
    }

    unsafe extern "C" fn watch(
        comm: Ptr,
        side: u32,
        n: u32,
        watched: *mut CclWatchV1,
        count: *mut u32,
    ) -> i32 {
        guard(Self::at("watch"), || {
            let mut found = 0;
            let mut at = |descriptor, events| {
                if found < n {
                    // SAFETY: an array of `n`.
                    unsafe {
                        watched.add(found as usize).write(CclWatchV1 { descriptor, events, reserved: 0 })
                    };
                }
                found += 1;
            };
            // SAFETY: a comm of the stated side.
            unsafe {
                match side {
                    c::SIDE_SEND => object::<N::SendComm>(comm).with(|comm| {
                        comm.watch(&mut at);
                        Ok(())
                    })?,
                    c::SIDE_RECV => object::<N::RecvComm>(comm).with(|comm| {
                        comm.watch(&mut at);
                        Ok(())
                    })?,
                    _ => return Err(bad_side(side)),
                }
            };
            // SAFETY: the contract of the entries.
            unsafe { count.write(found) };
            Ok(())
        })
    }

    unsafe extern "C" fn isend(
        comm: Ptr,
        data: *const c_void,
        bytes: u64,
        tag: u32,
        mr: Ptr,
        out: *mut Ptr,
    ) -> i32 {
        let message = SendBuffer { data: data.cast(), bytes: bytes as usize, tag, mr: Mr(mr as usize) };
        // SAFETY: the contract of the entries.
        guard(Self::at("isend"), || unsafe { Self::sent(comm, out, |comm| comm.send(message)) })
    }

    unsafe extern "C" fn isend_more(
        comm: Ptr,
        data: *const c_void,
        bytes: u64,
        tag: u32,
        mr: Ptr,
        out: *mut Ptr,
    ) -> i32 {
        let message = SendBuffer { data: data.cast(), bytes: bytes as usize, tag, mr: Mr(mr as usize) };
        // SAFETY: the contract of the entries.
        guard(Self::at("isend_more"), || unsafe { Self::sent(comm, out, |comm| comm.send_more(message)) })
    }

    unsafe extern "C" fn isend_from(
        comm: Ptr,
        message: Ptr,
        bytes: u64,
        tag: u32,
        mr: Ptr,
        head_bytes: u64,
        data: *const c_void,
        out: *mut Ptr,
    ) -> i32 {
        let message =
            SendBuffer { data: message.cast_const().cast(), bytes: bytes as usize, tag, mr: Mr(mr as usize) };
        let of = Elsewhere { head_bytes: head_bytes as usize, data: data.cast() };
        guard(Self::at("isend_from"), || {
            if of.head_bytes >= message.bytes {
                return Err(Error::invalid("expected a message longer than its head"));
            }
            // SAFETY: the contract of the entries.
            unsafe { Self::sent(comm, out, |comm| comm.send_from(message, of)) }
        })
    }

    /// # Safety
    ///
    /// A comm from `poll_connect` or `turn`, and a place for a request.
    unsafe fn sent(
        comm: Ptr,
        out: *mut Ptr,
        send: impl FnOnce(&mut N::SendComm) -> Result<Option<Request>>,
    ) -> Result<()> {
        // SAFETY: a comm of ours.
        let request = unsafe { object::<N::SendComm>(comm) }.with(send)?;
        // SAFETY: the caller's contract.
        unsafe { out.write(request_to_c(request)) };
        Ok(())
    }

    unsafe extern "C" fn irecv(
        comm: Ptr,
        n: u32,
        data: *const Ptr,
        bytes: *const u64,
        tags: *const u32,
        mrs: *const Ptr,
        out: *mut Ptr,
    ) -> i32 {
        guard(Self::at("irecv"), || {
            // SAFETY: arrays of `n`.
            let (buffers, n) = unsafe { buffers_from_c(n, data, bytes, tags, mrs) }?;
            // SAFETY: a comm from `accept`.
            let request = unsafe { object::<N::RecvComm>(comm) }.with(|comm| comm.receive(&buffers[..n]))?;
            // SAFETY: the contract of the entries.
            unsafe { out.write(request_to_c(request)) };
            Ok(())
        })
    }

    unsafe extern "C" fn flush(
        comm: Ptr,
        n: u32,
        data: *const Ptr,
        bytes: *const u64,
        mrs: *const Ptr,
        out: *mut Ptr,
    ) -> i32 {
        guard(Self::at("flush"), || {
            // SAFETY: arrays of `n`.
            let (buffers, n) = unsafe { buffers_from_c(n, data, bytes, std::ptr::null(), mrs) }?;
            // SAFETY: a comm from `accept`.
            let request = unsafe { object::<N::RecvComm>(comm) }.with(|comm| comm.flush(&buffers[..n]))?;
            // SAFETY: the contract of the entries.
            unsafe { out.write(request_to_c(request)) };
            Ok(())
        })
    }

    unsafe extern "C" fn test_send(comm: Ptr, request: Ptr, done: *mut u32) -> i32 {
        guard(Self::at("test_send"), || {
            let request = request_from_c(request)?;
            // SAFETY: a comm from `poll_connect`.
            let is_done = unsafe { object::<N::SendComm>(comm) }.with(|comm| comm.test(request))?;
            // SAFETY: the contract of the entries.
            unsafe { done.write(is_done.into()) };
            Ok(())
        })
    }

    unsafe extern "C" fn test_recv(comm: Ptr, request: Ptr, done: *mut u32, bytes: *mut u64) -> i32 {
        guard(Self::at("test_recv"), || {
            let request = request_from_c(request)?;
            let mut sizes = [0; c::MAX_RECVS];
            // SAFETY: a comm from `accept`.
            let is_done =
                unsafe { object::<N::RecvComm>(comm) }.with(|comm| comm.test(request, &mut sizes))?;
            // SAFETY: `done` is writable, `bytes` has room for MAX_RECVS sizes.
            unsafe {
                done.write(is_done.into());
                if is_done {
                    bytes.cast::<[u64; c::MAX_RECVS]>().write(sizes);
                }
            }
            Ok(())
        })
    }

    unsafe extern "C" fn test_sends(comm: Ptr, n: u32, requests: *const Ptr, done: *mut u32) -> i32 {
        guard(Self::at("test_sends"), || {
            // SAFETY: a comm from `poll_connect`.
            let comm = unsafe { object::<N::SendComm>(comm) };
            for index in 0..n as usize {
                // SAFETY: arrays of `n`.
                let request = request_from_c(unsafe { *requests.add(index) })?;
                let is_done = comm.with(|comm| comm.test(request))?;
                // SAFETY: as above.
                unsafe { done.add(index).write(is_done.into()) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn test_recvs(
        comm: Ptr,
        n: u32,
        requests: *const Ptr,
        done: *mut u32,
        bytes: *mut u64,
    ) -> i32 {
        guard(Self::at("test_recvs"), || {
            // SAFETY: a comm from `accept`.
            let comm = unsafe { object::<N::RecvComm>(comm) };
            for index in 0..n as usize {
                // SAFETY: arrays of `n`.
                let request = request_from_c(unsafe { *requests.add(index) })?;
                let mut sizes = [0; c::MAX_RECVS];
                let is_done = comm.with(|comm| comm.test(request, &mut sizes))?;
                // SAFETY: as above; the requests are of one buffer each.
                unsafe {
                    done.add(index).write(is_done.into());
                    bytes.add(index).write(sizes[0]);
                }
            }
            Ok(())
        })
    }

    const NAME: &'static str = match N::NAME.to_str() {
        Ok(name) => name,
        Err(_) => "plugin",
    };

    const fn at(entry: &'static str) -> (&'static str, &'static str) {
        (Self::NAME, entry)
    }
}

unsafe extern "C" fn last_error(out: *mut CclErrorV1) -> i32 {
    // SAFETY: the host wrote the size of its struct, all of which is writable.
    unsafe {
        let room = ((*out).size as usize).min(size_of::<CclErrorV1>());
        let mut found: CclErrorV1 = CclErrorV1 {
            size: room as u32,
            code: 0,
            os_error: 0,
            reserved: 0,
            peer: [0; _],
            message: [0; _],
        };
        fill_last_error(&mut found);
        std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), out.cast::<u8>(), room);
    }
    0
}

/// # Safety
///
/// `this` came from [`Object::leak`] of a `T`, was not closed, and nobody else uses it now.
#[inline]
unsafe fn object<'a, T>(this: Ptr) -> &'a mut Object<T> {
    // SAFETY: the caller's promise.
    unsafe { &mut *this.cast::<Object<T>>() }
}

/// # Safety
///
/// The arrays have `n` entries; `tags` may be null.
#[inline]
unsafe fn buffers_from_c(
    n: u32,
    data: *const Ptr,
    bytes: *const u64,
    tags: *const u32,
    mrs: *const Ptr,
) -> Result<([RecvBuffer; c::MAX_RECVS], usize)> {
    let n = n as usize;
    if n == 0 || n > c::MAX_RECVS {
        return Err(Error::invalid(format!("expected 1 to {} buffers, found {n}", c::MAX_RECVS)));
    }
    // SAFETY: arrays of `n`, by the caller's promise.
    let (data, bytes, mrs) = unsafe {
        (slice::from_raw_parts(data, n), slice::from_raw_parts(bytes, n), slice::from_raw_parts(mrs, n))
    };
    let none = RecvBuffer { data: std::ptr::null_mut(), bytes: 0, tag: 0, mr: Mr::NONE };
    let mut buffers = [none; c::MAX_RECVS];
    for (index, buffer) in buffers[..n].iter_mut().enumerate() {
        // SAFETY: `tags` has `n` entries unless it is null.
        let tag = if tags.is_null() { 0 } else { unsafe { *tags.add(index) } };
        *buffer = RecvBuffer {
            data: data[index].cast(),
            bytes: bytes[index] as usize,
            tag,
            mr: Mr(mrs[index] as usize),
        };
    }
    Ok((buffers, n))
}

fn memory_from_c(memory: &CclMemoryV1) -> Result<Memory> {
    let kind = match memory.kind {
        c::MEMORY_HOST => MemoryKind::Host,
        c::MEMORY_CUDA => MemoryKind::Cuda { device: memory.device },
        c::MEMORY_DMABUF => MemoryKind::DmaBuf {
            device: memory.device,
            fd: memory.dmabuf_fd,
            offset_bytes: memory.dmabuf_offset,
        },
        other => return Err(Error::invalid(format!("expected a memory kind of 1, 2 or 4, found {other}"))),
    };
    Ok(Memory { address: memory.address as usize, bytes: memory.bytes as usize, kind })
}

#[inline]
fn request_to_c(request: Option<Request>) -> Ptr {
    request.map_or(std::ptr::null_mut(), |request| request.0.get() as Ptr)
}

#[inline]
fn request_from_c(request: Ptr) -> Result<Request> {
    NonZeroUsize::new(request as usize)
        .map(Request)
        .ok_or_else(|| Error::invalid("expected a request, found a null pointer"))
}

#[cold]
fn bad_side(side: u32) -> Error {
    Error::invalid(format!("expected side {} or {}, found {side}", c::SIDE_SEND, c::SIDE_RECV))
}
