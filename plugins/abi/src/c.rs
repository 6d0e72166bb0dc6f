//! The C side of the contract, field for field what `plugins/include/ccl_net.h` declares.
//!
//! The header has the prose: who calls what from which thread, what may be "not yet", who owns
//! what. A test compiles the header with the C compiler and compares sizes and offsets with these.

use std::ffi::{c_char, c_void};

use abi_stable::StableAbi;

/// The version of the network contract these types describe.
pub const NET_VERSION: u32 = 1;
/// The symbol a network plugin exports, a [`CclNetV1`].
pub const NET_SYMBOL: &std::ffi::CStr = c"cclNet_v1";
/// Bytes of a connection handle.
pub const HANDLE_BYTES: usize = 128;
/// Bytes of a memory key for one-sided operations.
pub const KEY_BYTES: usize = 64;
/// Most buffers a host ever groups in one receive.
pub const MAX_RECVS: usize = 8;

/// `side` of a call about the sending end of a connection.
pub const SIDE_SEND: u32 = 1;
/// `side` of a call about the receiving end of a connection.
pub const SIDE_RECV: u32 = 2;

/// Memory kind and property bit: ordinary host memory.
pub const MEMORY_HOST: u32 = 1;
/// Memory kind and property bit: CUDA device memory, by address.
pub const MEMORY_CUDA: u32 = 2;
/// Memory kind and property bit: device memory exported as a dma-buf descriptor.
pub const MEMORY_DMABUF: u32 = 4;

/// Property flag: data received into device memory needs `flush` before the device reads it.
pub const FLAG_NEEDS_FLUSH: u32 = 1;
/// Property flag: `put`, `get`, `signal` and `export_mr` are there.
pub const FLAG_ONE_SIDED: u32 = 2;
/// Property flag: registering host memory costs next to nothing, so that memory the network has never
/// seen may be registered for one message.
pub const FLAG_ANY_MEMORY: u32 = 4;

/// Log level: the operation fails.
pub const LOG_ERROR: i32 = 1;
/// Log level: something a user should know.
pub const LOG_WARN: i32 = 2;
/// Log level: a decision.
pub const LOG_INFO: i32 = 3;
/// Log level: for who works on the plugin.
pub const LOG_DEBUG: i32 = 4;
/// Log level: every call.
pub const LOG_TRACE: i32 = 5;

/// What the host gives to a plugin; valid from `init` until `finalize` returns.
///
/// Both functions may be called from any thread, also from within a call of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclHostV1 {
    /// Bytes of this table as the host knows it.
    pub size: u32,
    /// Version of the host's table, 1.
    pub version: u32,
    /// Opaque; first argument of both functions.
    pub context: *mut c_void,
    /// Whether a line of `level` would be kept now: 0 or 1. Cheap. May be null (then: yes).
    pub enabled: Option<unsafe extern "C" fn(context: *mut c_void, level: i32) -> i32>,
    /// Takes one line of log; strings are copied. `file` may be null.
    pub log: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            level: i32,
            file: *const c_char,
            line: u32,
            message: *const c_char,
        ),
    >,
}

/// One setting: two NUL-terminated UTF-8 strings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclSettingV1 {
    /// Its name.
    pub key: *const c_char,
    /// Its value.
    pub value: *const c_char,
}

/// The words for a failed call. The host sets `size` before it asks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclErrorV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// The code that the failed call returned.
    pub code: i32,
    /// `errno`, or 0.
    pub os_error: i32,
    /// Zero.
    pub reserved: u32,
    /// Address of the peer involved, NUL-terminated, empty if none.
    pub peer: [c_char; 80],
    /// Text, NUL-terminated.
    pub message: [c_char; 416],
}

/// Memory to register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclMemoryV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// One of [`MEMORY_HOST`], [`MEMORY_CUDA`], [`MEMORY_DMABUF`].
    pub kind: u32,
    /// Its address (for dma-buf: the device address sends and receives will name).
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// For dma-buf: where in the descriptor's buffer `address` is.
    pub dmabuf_offset: u64,
    /// For dma-buf: the descriptor, owned by the host, open during the call only; else -1.
    pub dmabuf_fd: i32,
    /// The device the memory is on, -1 for host memory.
    pub device: i32,
}

/// What a network device is. The host sets `size`; the plugin fills at most that much.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CclNetPropertiesV1 {
    /// Bytes of this struct as the host knows it.
    pub size: u32,
    /// Any of the `MEMORY_*` bits.
    pub memory_kinds: u32,
    /// Any of the `FLAG_*` bits.
    pub flags: u32,
    /// Port number on the chip, 1-based; 0 unknown.
    pub port: u32,
    /// Equal for devices that share one chip's bandwidth.
    pub guid: u64,
    /// Longest message.
    pub max_message_bytes: u64,
    /// Bandwidth in 10⁶ bits per second; 0 unknown.
    pub speed_mbps: u32,
    /// One-way latency added by the network, in nanoseconds; 0 unknown.
    pub latency_ns: u32,
    /// Most connections at a time; 0 no limit.
    pub max_comms: u32,
    /// Most buffers in one grouped receive, 1..=[`MAX_RECVS`].
    pub max_recvs: u32,
    /// Requests that fit in flight on one comm, at least 8.
    pub max_requests: u32,
    /// Position among the node's NICs for rail-aligned fabrics; -1 unknown.
    pub rail: i32,
    /// Fabric plane; -1 unknown.
    pub plane: i32,
    /// Zero.
    pub reserved: u32,
    /// Name, NUL-terminated.
    pub name: [c_char; 64],
    /// Device directory in sysfs, NUL-terminated, empty for a virtual device.
    pub pci_path: [c_char; 256],
}

/// What to look at to hear of news, as `poll(2)` takes it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CclWatchV1 {
    /// The descriptor.
    pub descriptor: i32,
    /// `POLLIN` and the like.
    pub events: i16,
    /// Zero.
    pub reserved: i16,
}

/// A network plugin: the table exported as `cclNet_v1`.
///
/// Grows only at its end. `size` is the plugin's; a host reads no more than that and treats what is
/// missing as null. Entries up to `close_recv` are required, the rest may be null. Every entry
/// returns at once and returns a [`Code`](crate::Code).
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
#[sabi(kind(Prefix(prefix_ref = CclNetV1Ref, prefix_fields = CclNetV1Fields)))]
#[sabi(missing_field(panic))]
pub struct CclNetV1 {
    /// Bytes of this table as the plugin knows it.
    pub size: u32,
    /// [`NET_VERSION`].
    pub version: u32,
    /// Name of the network, NUL-terminated, valid as long as the library is loaded.
    pub name: *const c_char,
    /// Makes a context. The host's table and the settings' strings: see [`CclHostV1`].
    #[sabi(unsafe_opaque_field)]
    pub init: Option<
        unsafe extern "C" fn(
            host: *const CclHostV1,
            settings: *const CclSettingV1,
            setting_count: u32,
            context: *mut *mut c_void,
        ) -> i32,
    >,
    /// Ends a context; nothing made from it is left.
    pub finalize: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Words for the last call of this thread that failed.
    #[sabi(unsafe_opaque_field)]
    pub last_error: Option<unsafe extern "C" fn(error: *mut CclErrorV1) -> i32>,
    /// Number of devices.
    pub devices: Option<unsafe extern "C" fn(context: *mut c_void, count: *mut u32) -> i32>,
    /// Describes a device.
    #[sabi(unsafe_opaque_field)]
    pub properties: Option<
        unsafe extern "C" fn(context: *mut c_void, device: u32, properties: *mut CclNetPropertiesV1) -> i32,
    >,
    /// Starts listening; fills 128 bytes of `handle`.
    pub listen: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            device: u32,
            handle: *mut u8,
            listener: *mut *mut c_void,
        ) -> i32,
    >,
    /// Takes the next connection; null: not yet.
    pub accept: Option<unsafe extern "C" fn(listener: *mut c_void, recv_comm: *mut *mut c_void) -> i32>,
    /// Stops listening. Accepted comms live on.
    pub close_listen: Option<unsafe extern "C" fn(listener: *mut c_void) -> i32>,
    /// Starts connecting to the listener that filled `handle`.
    pub connect: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            device: u32,
            handle: *const u8,
            connecting: *mut *mut c_void,
        ) -> i32,
    >,
    /// Takes the connection once it is made; null: not yet.
    pub poll_connect:
        Option<unsafe extern "C" fn(connecting: *mut c_void, send_comm: *mut *mut c_void) -> i32>,
    /// Ends the attempt; a comm taken from it lives on.
    pub close_connect: Option<unsafe extern "C" fn(connecting: *mut c_void) -> i32>,
    /// Registers memory for use on one comm.
    #[sabi(unsafe_opaque_field)]
    pub reg_mr: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            side: u32,
            memory: *const CclMemoryV1,
            mr: *mut *mut c_void,
        ) -> i32,
    >,
    /// Ends a registration.
    pub dereg_mr: Option<unsafe extern "C" fn(comm: *mut c_void, side: u32, mr: *mut c_void) -> i32>,
    /// Posts a message; null request: not now.
    pub isend: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            data: *const c_void,
            bytes: u64,
            tag: u32,
            mr: *mut c_void,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Posts `n` receives as one request; null request: not now.
    pub irecv: Option<
        unsafe extern "C" fn(
            recv_comm: *mut c_void,
            n: u32,
            data: *const *mut c_void,
            bytes: *const u64,
            tags: *const u32,
            mrs: *const *mut c_void,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Whether a send, put, get or signal is done; then the request is dead.
    pub test_send:
        Option<unsafe extern "C" fn(send_comm: *mut c_void, request: *mut c_void, done: *mut u32) -> i32>,
    /// Whether a receive or flush is done, and the sizes received; then the request is dead.
    pub test_recv: Option<
        unsafe extern "C" fn(
            recv_comm: *mut c_void,
            request: *mut c_void,
            done: *mut u32,
            bytes: *mut u64,
        ) -> i32,
    >,
    /// Closes the sending end, pending requests included.
    pub close_send: Option<unsafe extern "C" fn(send_comm: *mut c_void) -> i32>,
    /// Closes the receiving end, pending requests included.
    #[sabi(last_prefix_field)]
    pub close_recv: Option<unsafe extern "C" fn(recv_comm: *mut c_void) -> i32>,
    /// Optional: `test_send` for several requests of one comm.
    pub test_sends: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            n: u32,
            requests: *const *mut c_void,
            done: *mut u32,
        ) -> i32,
    >,
    /// Optional: `test_recv` for several ungrouped receives of one comm.
    pub test_recvs: Option<
        unsafe extern "C" fn(
            recv_comm: *mut c_void,
            n: u32,
            requests: *const *mut c_void,
            done: *mut u32,
            bytes: *mut u64,
        ) -> i32,
    >,
    /// Optional: makes received data visible to the device; null request: nothing to do.
    pub flush: Option<
        unsafe extern "C" fn(
            recv_comm: *mut c_void,
            n: u32,
            data: *const *mut c_void,
            bytes: *const u64,
            mrs: *const *mut c_void,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Optional: every later and pending call on the context's objects fails with `ABORTED`.
    pub abort: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Optional: a key of [`KEY_BYTES`] by which the peer's `put`, `get`, `signal` name this memory.
    pub export_mr: Option<unsafe extern "C" fn(recv_comm: *mut c_void, mr: *mut c_void, key: *mut u8) -> i32>,
    /// Optional: writes into the peer's memory; null request: not now.
    pub put: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            data: *const c_void,
            bytes: u64,
            mr: *mut c_void,
            key: *const u8,
            offset_bytes: u64,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Optional: reads from the peer's memory; null request: not now.
    pub get: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            data: *mut c_void,
            bytes: u64,
            mr: *mut c_void,
            key: *const u8,
            offset_bytes: u64,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Optional: adds `value` to a u64 of the peer after all earlier puts; null request: not now.
    pub signal: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            key: *const u8,
            offset_bytes: u64,
            value: u64,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Optional: the other direction of a connection: of a send comm a recv comm, and the other way round.
    pub turn: Option<unsafe extern "C" fn(comm: *mut c_void, side: u32, other: *mut *mut c_void) -> i32>,
    /// Optional: `isend` of a message that another follows at once.
    pub isend_more: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            data: *const c_void,
            bytes: u64,
            tag: u32,
            mr: *mut c_void,
            request: *mut *mut c_void,
        ) -> i32,
    >,
    /// Optional: where news of what is pending on a comm comes from, at most `n` places.
    #[sabi(unsafe_opaque_field)]
    pub watch: Option<
        unsafe extern "C" fn(
            comm: *mut c_void,
            side: u32,
            n: u32,
            watched: *mut CclWatchV1,
            count: *mut u32,
        ) -> i32,
    >,
    /// Optional: `isend` of a message most of which is yet elsewhere.
    pub isend_from: Option<
        unsafe extern "C" fn(
            send_comm: *mut c_void,
            message: *mut c_void,
            bytes: u64,
            tag: u32,
            mr: *mut c_void,
            head_bytes: u64,
            data: *const c_void,
            request: *mut *mut c_void,
        ) -> i32,
    >,
}

// SAFETY: the table is only ever read, and its name points to a static string, by the contract.
unsafe impl Sync for CclNetV1 {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for CclNetV1 {}
// SAFETY: the fields of the table above, for the layout check.
unsafe impl Sync for CclNetV1Fields {}
// SAFETY: as above.
unsafe impl Send for CclNetV1Fields {}

impl CclNetV1 {
    /// Bytes up to and including the last required entry.
    pub const REQUIRED_BYTES: usize = std::mem::offset_of!(CclNetV1, test_sends);

    /// A table with nothing in it but its size and version.
    pub const EMPTY: CclNetV1 = CclNetV1 {
        size: size_of::<CclNetV1>() as u32,
        version: NET_VERSION,
        name: c"".as_ptr(),
        init: None,
        finalize: None,
        last_error: None,
        devices: None,
        properties: None,
        listen: None,
        accept: None,
        close_listen: None,
        connect: None,
        poll_connect: None,
        close_connect: None,
        reg_mr: None,
        dereg_mr: None,
        isend: None,
        irecv: None,
        test_send: None,
        test_recv: None,
        close_send: None,
        close_recv: None,
        test_sends: None,
        test_recvs: None,
        flush: None,
        abort: None,
        export_mr: None,
        put: None,
        get: None,
        signal: None,
        turn: None,
        isend_more: None,
        watch: None,
        isend_from: None,
    };
}
