//! The socket network with a count of what is opened and closed, for tests.
//!
//! Registrations are not counted: they end with the end of a connection that they were made on.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_net_socket::table as socket;
use ccl_plugin_host::NetPlugin;

/// Objects of a kind that were opened and that were closed.
pub(crate) struct Count {
    opened: AtomicU64,
    closed: AtomicU64,
}

impl Count {
    const fn new() -> Count {
        Count { opened: AtomicU64::new(0), closed: AtomicU64::new(0) }
    }

    /// Both, from the beginning or the last call on.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.opened.swap(0, Ordering::Relaxed), self.closed.swap(0, Ordering::Relaxed))
    }

    fn close(&self, code: i32) -> i32 {
        self.closed.fetch_add(1, Ordering::Relaxed);
        code
    }

    /// # Safety
    ///
    /// After success `object` can be read.
    unsafe fn open(&self, code: i32, object: *mut *mut c_void) -> i32 {
        // SAFETY: the caller's contract; "not yet" is null.
        if code == 0 && !unsafe { *object }.is_null() {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        code
    }
}

pub(crate) static LISTENERS: Count = Count::new();
pub(crate) static ATTEMPTS: Count = Count::new();
/// Of connections, each direction by itself.
pub(crate) static ENDS: Count = Count::new();
/// Only how many were closed.
pub(crate) static CONTEXTS: Count = Count::new();

/// The network; its connections serve both ways or one.
pub(crate) fn plugin(turns: bool) -> NetPlugin {
    let mut table = *socket();
    table.finalize = Some(finalize);
    table.listen = Some(listen);
    table.close_listen = Some(close_listen);
    table.connect = Some(connect);
    table.close_connect = Some(close_connect);
    table.accept = Some(accept);
    table.poll_connect = Some(poll_connect);
    table.close_send = Some(close_send);
    table.close_recv = Some(close_recv);
    table.turn = if turns { Some(turn) } else { None };
    NetPlugin::linked(Box::leak(Box::new(table))).unwrap()
}

unsafe extern "C" fn listen(
    context: *mut c_void,
    device: u32,
    handle: *mut u8,
    listener: *mut *mut c_void,
) -> i32 {
    // SAFETY: the host's arguments, as they are; so in all entries below.
    unsafe { LISTENERS.open(socket().listen.unwrap()(context, device, handle, listener), listener) }
}

unsafe extern "C" fn connect(
    context: *mut c_void,
    device: u32,
    handle: *const u8,
    connecting: *mut *mut c_void,
) -> i32 {
    // SAFETY: as in `listen`.
    unsafe { ATTEMPTS.open(socket().connect.unwrap()(context, device, handle, connecting), connecting) }
}

unsafe extern "C" fn accept(listener: *mut c_void, comm: *mut *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    unsafe { ENDS.open(socket().accept.unwrap()(listener, comm), comm) }
}

unsafe extern "C" fn poll_connect(connecting: *mut c_void, comm: *mut *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    unsafe { ENDS.open(socket().poll_connect.unwrap()(connecting, comm), comm) }
}

unsafe extern "C" fn turn(comm: *mut c_void, side: u32, other: *mut *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    unsafe { ENDS.open(socket().turn.unwrap()(comm, side, other), other) }
}

unsafe extern "C" fn close_listen(listener: *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    LISTENERS.close(unsafe { socket().close_listen.unwrap()(listener) })
}

unsafe extern "C" fn close_connect(connecting: *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    ATTEMPTS.close(unsafe { socket().close_connect.unwrap()(connecting) })
}

unsafe extern "C" fn close_send(comm: *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    ENDS.close(unsafe { socket().close_send.unwrap()(comm) })
}

unsafe extern "C" fn close_recv(comm: *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    ENDS.close(unsafe { socket().close_recv.unwrap()(comm) })
}

unsafe extern "C" fn finalize(context: *mut c_void) -> i32 {
    // SAFETY: as in `listen`.
    CONTEXTS.close(unsafe { socket().finalize.unwrap()(context) })
}
