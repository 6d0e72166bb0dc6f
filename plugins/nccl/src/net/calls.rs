//! The functions of any version behind one form.
//!
//! Each place where versions differ is an enum of the forms; a table becomes a [`Calls`] once, with what it lacks
//! named, and nothing else asks for the version.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::device::Facts;
use super::layout::{self, CommConfig, Logger, ProfilerCallback, connect, init, irecv, isend, listen};

type Ptr = *mut c_void;

/// A plugin's functions. Those that are optional here are ones that not every host of NCCL's asks for.
pub(crate) struct Calls {
    init: Init,
    devices: layout::Devices,
    get_properties: GetProperties,
    listen: Listen,
    connect: Connect,
    accept: Accept,
    reg_mr: RegMr,
    reg_mr_dma_buf: Option<layout::RegMrDmaBuf>,
    dereg_mr: layout::OnTwo,
    isend: ISend,
    irecv: IRecv,
    iflush: Option<layout::IFlush>,
    test: layout::Test,
    close_send: layout::OnObject,
    close_recv: layout::OnObject,
    close_listen: layout::OnObject,
    finalize: Option<layout::OnObject>,
}

enum Init {
    Logged(init::Logged),
    Profiled(init::Profiled),
    PerCommunicator(init::PerCommunicator),
}

enum GetProperties {
    V6(layout::GetPropertiesV6),
    V7(layout::GetPropertiesV7),
    V8(layout::GetPropertiesV8),
    V9(layout::GetPropertiesV9),
    V11(layout::GetPropertiesV11),
    V12(layout::GetPropertiesV12),
}

enum Listen {
    OnDevice(listen::OnDevice),
    InContext(listen::InContext),
}

enum Connect {
    Plain(connect::Plain),
    Offloaded(connect::Offloaded),
    Configured(connect::Configured),
    InContext(connect::InContext),
}

enum Accept {
    Plain(layout::AcceptPlain),
    Offloaded(layout::AcceptOffloaded),
}

enum RegMr {
    Narrow(layout::RegMrNarrow),
    Wide(layout::RegMrWide),
}

enum ISend {
    Narrow(isend::Narrow),
    Wide(isend::Wide),
    Profiled(isend::Profiled),
}

enum IRecv {
    Narrow(irecv::Narrow),
    Wide(irecv::Wide),
    Profiled(irecv::Profiled),
}

/// A message that `isend` is to take.
pub(crate) struct Outgoing {
    pub(crate) data: Ptr,
    pub(crate) bytes: usize,
    pub(crate) tag: c_int,
    pub(crate) mr: Ptr,
}

/// Room that `irecv` is to fill: as many entries count as the call says.
pub(crate) struct Rooms<const N: usize> {
    pub(crate) data: [Ptr; N],
    pub(crate) bytes: [usize; N],
    pub(crate) tags: [c_int; N],
    pub(crate) mrs: [Ptr; N],
}

impl<const N: usize> Rooms<N> {
    /// The lengths as versions up to 8, and every flush, take them: those that do not fit are cut to what does.
    fn narrow(&self) -> [c_int; N] {
        self.bytes.map(narrow)
    }
}

impl Calls {
    /// The functions of a table of this version, and its name; or what it lacks, in NCCL's words.
    ///
    /// # Safety
    ///
    /// `table` points to a table of that version, 6 to 12, as `layout` has it.
    pub(crate) unsafe fn read(
        version: u32,
        table: *const c_void,
    ) -> Result<(Calls, *const c_char), &'static str> {
        macro_rules! read {
            ($table:ident, $init:ident, $properties:ident, $listen:ident, $connect:ident, $accept:ident, $reg_mr:ident,
             $transfer:ident, $finalize:expr) => {{
                // SAFETY: the caller's contract.
                let table = unsafe { table.cast::<layout::$table>().read() };
                let finalize: fn(&layout::$table) -> Result<Option<layout::OnObject>, &'static str> =
                    $finalize;
                let calls = Calls {
                    init: Init::$init(table.init.ok_or("init")?),
                    devices: table.devices.ok_or("devices")?,
                    get_properties: GetProperties::$properties(table.get_properties.ok_or("getProperties")?),
                    listen: Listen::$listen(table.listen.ok_or("listen")?),
                    connect: Connect::$connect(table.connect.ok_or("connect")?),
                    accept: Accept::$accept(table.accept.ok_or("accept")?),
                    reg_mr: RegMr::$reg_mr(table.reg_mr.ok_or("regMr")?),
                    reg_mr_dma_buf: table.reg_mr_dma_buf,
                    dereg_mr: table.dereg_mr.ok_or("deregMr")?,
                    isend: ISend::$transfer(table.isend.ok_or("isend")?),
                    irecv: IRecv::$transfer(table.irecv.ok_or("irecv")?),
                    iflush: table.iflush,
                    test: table.test.ok_or("test")?,
                    close_send: table.close_send.ok_or("closeSend")?,
                    close_recv: table.close_recv.ok_or("closeRecv")?,
                    close_listen: table.close_listen.ok_or("closeListen")?,
                    finalize: finalize(&table)?,
                };
                Ok((calls, table.name))
            }};
        }
        match version {
            6 => read!(NetV6, Logged, V6, OnDevice, Plain, Plain, Narrow, Narrow, |_| Ok(None)),
            7 => read!(NetV7, Logged, V7, OnDevice, Offloaded, Offloaded, Narrow, Narrow, |_| Ok(None)),
            8 => read!(NetV8, Logged, V8, OnDevice, Offloaded, Offloaded, Wide, Narrow, |_| Ok(None)),
            9 => read!(NetV9, Logged, V9, OnDevice, Offloaded, Offloaded, Wide, Wide, |_| Ok(None)),
            10 => read!(NetV10, Profiled, V9, OnDevice, Configured, Offloaded, Wide, Profiled, |_| Ok(None)),
            11 => read!(
                NetV11,
                PerCommunicator,
                V11,
                InContext,
                InContext,
                Offloaded,
                Wide,
                Profiled,
                |table| { table.finalize.ok_or("finalize").map(Some) }
            ),
            12 => read!(
                NetV12,
                PerCommunicator,
                V12,
                InContext,
                InContext,
                Offloaded,
                Wide,
                Profiled,
                |table| { table.finalize.ok_or("finalize").map(Some) }
            ),
            _ => Err("a version from 6 to 12"),
        }
    }

    /// Whether `init` is called for each communicator, and `finalize` after it.
    pub(crate) fn has_contexts(&self) -> bool {
        matches!(self.init, Init::PerCommunicator(_))
    }

    /// Whether it can make received bytes visible to a device.
    pub(crate) fn flushes(&self) -> bool {
        self.iflush.is_some()
    }

    /// Whether lengths of messages are 32 bits wide.
    pub(crate) fn is_narrow(&self) -> bool {
        matches!(self.isend, ISend::Narrow(_))
    }

    /// Whether lengths of registrations are 32 bits wide.
    pub(crate) fn registers_narrowly(&self) -> bool {
        matches!(self.reg_mr, RegMr::Narrow(_))
    }
}

// Safety of every call below: the plugin was loaded from a table of its version; contexts, comms, listeners,
// registrations and requests came from the function that makes such objects and were not ended, and are used by
// one thread at a time.
impl Calls {
    pub(crate) unsafe fn init(
        &self,
        context: &mut Ptr,
        communicator: u64,
        mut config: CommConfig,
        logger: Logger,
    ) -> c_int {
        // SAFETY: the logger and the callback live as long as the process.
        unsafe {
            match self.init {
                Init::Logged(init) => init(logger),
                Init::Profiled(init) => init(logger, NO_EVENTS),
                Init::PerCommunicator(init) => {
                    init(context, communicator, &raw mut config, logger, NO_EVENTS)
                }
            }
        }
    }

    /// Ends a context, in versions that have them.
    pub(crate) unsafe fn finalize(&self, context: Ptr) -> c_int {
        // SAFETY: the contract above.
        self.finalize.map_or(0, |finalize| unsafe { finalize(context) })
    }

    pub(crate) unsafe fn devices(&self, count: &mut c_int) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.devices)(count) }
    }

    /// What the plugin says of a device; the strings are copied.
    pub(crate) unsafe fn properties(&self, device: c_int) -> (c_int, Facts) {
        macro_rules! ask {
            ($function:expr, $properties:ident) => {{
                // SAFETY: numbers, and pointers that may be null.
                let mut found: layout::$properties = unsafe { std::mem::zeroed() };
                // SAFETY: a struct of the version's layout.
                let code = unsafe { $function(device, &raw mut found) };
                // SAFETY: what a plugin says of itself: strings that end in NUL, or null.
                (code, if code == 0 { unsafe { Facts::of(&found) } } else { Facts::default() })
            }};
        }
        match self.get_properties {
            GetProperties::V6(function) => ask!(function, PropertiesV6),
            GetProperties::V7(function) => ask!(function, PropertiesV7),
            GetProperties::V8(function) => ask!(function, PropertiesV8),
            GetProperties::V9(function) => ask!(function, PropertiesV9),
            GetProperties::V11(function) => ask!(function, PropertiesV11),
            GetProperties::V12(function) => ask!(function, PropertiesV12),
        }
    }

    pub(crate) unsafe fn listen(
        &self,
        context: Ptr,
        device: c_int,
        handle: Ptr,
        listener: &mut Ptr,
    ) -> c_int {
        // SAFETY: the contract above; a handle of 128 writable bytes.
        unsafe {
            match self.listen {
                Listen::OnDevice(listen) => listen(device, handle, listener),
                Listen::InContext(listen) => listen(context, device, handle, listener),
            }
        }
    }

    /// `handle` is the same memory in every call for one connection: plugins keep their state in it.
    pub(crate) unsafe fn connect(
        &self,
        (context, device): (Ptr, c_int),
        mut config: CommConfig,
        handle: Ptr,
        comm: &mut Ptr,
    ) -> c_int {
        let mut offload = ptr::null_mut();
        // SAFETY: the contract above; a handle of 128 writable bytes.
        unsafe {
            match self.connect {
                Connect::Plain(connect) => connect(device, handle, comm),
                Connect::Offloaded(connect) => connect(device, handle, comm, &raw mut offload),
                Connect::Configured(connect) => {
                    connect(device, &raw mut config, handle, comm, &raw mut offload)
                }
                Connect::InContext(connect) => connect(context, device, handle, comm, &raw mut offload),
            }
        }
    }

    pub(crate) unsafe fn accept(&self, listener: Ptr, comm: &mut Ptr) -> c_int {
        let mut offload = ptr::null_mut();
        // SAFETY: the contract above.
        unsafe {
            match self.accept {
                Accept::Plain(accept) => accept(listener, comm),
                Accept::Offloaded(accept) => accept(listener, comm, &raw mut offload),
            }
        }
    }

    /// `bytes` fits 31 bits if the version registers narrowly.
    pub(crate) unsafe fn reg_mr(
        &self,
        comm: Ptr,
        data: Ptr,
        bytes: usize,
        kind: c_int,
        mr: &mut Ptr,
    ) -> c_int {
        // SAFETY: the contract above; memory that the host vouches for.
        unsafe {
            match self.reg_mr {
                RegMr::Narrow(reg_mr) => reg_mr(comm, data, narrow(bytes), kind, mr),
                RegMr::Wide(reg_mr) => reg_mr(comm, data, bytes, kind, mr),
            }
        }
    }

    /// `None` if the plugin has no such function.
    pub(crate) unsafe fn reg_mr_dma_buf(
        &self,
        comm: Ptr,
        (data, bytes): (Ptr, usize),
        (fd, offset): (c_int, u64),
        mr: &mut Ptr,
    ) -> Option<c_int> {
        // SAFETY: the contract above; memory that the host vouches for, and a descriptor that is open.
        self.reg_mr_dma_buf
            .map(|reg_mr| unsafe { reg_mr(comm, data, bytes, layout::PTR_CUDA, offset, fd, mr) })
    }

    pub(crate) unsafe fn dereg_mr(&self, comm: Ptr, mr: Ptr) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.dereg_mr)(comm, mr) }
    }

    /// The message's length fits 31 bits if the version is narrow.
    #[inline]
    pub(crate) unsafe fn isend(&self, comm: Ptr, message: &Outgoing, request: &mut Ptr) -> c_int {
        let Outgoing { data, bytes, tag, mr } = *message;
        // SAFETY: the contract above; bytes that the host leaves alone until the request is done.
        unsafe {
            match self.isend {
                ISend::Narrow(isend) => isend(comm, data, narrow(bytes), tag, mr, request),
                ISend::Wide(isend) => isend(comm, data, bytes, tag, mr, request),
                ISend::Profiled(isend) => isend(comm, data, bytes, tag, mr, ptr::null_mut(), request),
            }
        }
    }

    /// The first `n` of `rooms`; their lengths fit 31 bits if the version is narrow. `request` says null: a
    /// completion is always wanted.
    #[inline]
    pub(crate) unsafe fn irecv<const N: usize>(
        &self,
        comm: Ptr,
        n: usize,
        rooms: &mut Rooms<N>,
        request: &mut Ptr,
    ) -> c_int {
        let (count, mut handles) = (n as c_int, [ptr::null_mut(); N]);
        let mut narrow = rooms.narrow();
        let Rooms { data, bytes, tags, mrs } = rooms;
        let (data, bytes) = (data.as_mut_ptr(), bytes.as_mut_ptr());
        let (tags, mrs) = (tags.as_mut_ptr(), mrs.as_mut_ptr());
        // SAFETY: the contract above; arrays of at least `n`.
        unsafe {
            match self.irecv {
                IRecv::Narrow(irecv) => irecv(comm, count, data, narrow.as_mut_ptr(), tags, mrs, request),
                IRecv::Wide(irecv) => irecv(comm, count, data, bytes, tags, mrs, request),
                IRecv::Profiled(irecv) => {
                    irecv(comm, count, data, bytes, tags, mrs, handles.as_mut_ptr(), request)
                }
            }
        }
    }

    /// `None` if the plugin has no such function.
    pub(crate) unsafe fn iflush<const N: usize>(
        &self,
        comm: Ptr,
        n: usize,
        rooms: &mut Rooms<N>,
        request: &mut Ptr,
    ) -> Option<c_int> {
        let mut bytes = rooms.narrow();
        let (data, mrs) = (rooms.data.as_mut_ptr(), rooms.mrs.as_mut_ptr());
        // SAFETY: the contract above; arrays of at least `n`.
        self.iflush.map(|iflush| unsafe { iflush(comm, n as c_int, data, bytes.as_mut_ptr(), mrs, request) })
    }

    #[inline]
    pub(crate) unsafe fn test(
        &self,
        request: Ptr,
        done: &mut c_int,
        sizes: &mut [c_int; layout::TESTED_SIZES],
    ) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.test)(request, done, sizes.as_mut_ptr()) }
    }

    pub(crate) unsafe fn close_send(&self, comm: Ptr) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.close_send)(comm) }
    }

    pub(crate) unsafe fn close_recv(&self, comm: Ptr) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.close_recv)(comm) }
    }

    pub(crate) unsafe fn close_listen(&self, listener: Ptr) -> c_int {
        // SAFETY: the contract above.
        unsafe { (self.close_listen)(listener) }
    }
}

/// A length as versions take it that have 31 bits for it.
fn narrow(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

/// Nobody listens to a plugin's own events: they succeed, and have no handle.
unsafe extern "C" fn no_events(
    handle: *mut *mut c_void,
    happens: c_int,
    _: *mut c_void,
    _: i64,
    _: *mut c_void,
) -> c_int {
    if happens == EVENT_STARTS && !handle.is_null() {
        // SAFETY: where the plugin keeps its handle.
        unsafe { handle.write(ptr::null_mut()) };
    }
    0
}

const NO_EVENTS: ProfilerCallback = no_events;
const EVENT_STARTS: c_int = 0;
