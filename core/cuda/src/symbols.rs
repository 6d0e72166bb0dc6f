//! The driver's functions that we call, each with our own signature: codes come back as numbers, never as an enum.
//!
//! A code that a newer driver invents is then a value like any other. The number before a name is the version of the
//! driver that brought the function, for those that a driver may lack; `0` says that every driver we take has it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use crate::error::{Error, Failure};
use crate::load::Missing;
use crate::physical::AllocationProperties;

/// Anything that the driver names by an opaque pointer: contexts, streams, events, modules, graphs.
pub(crate) type Handle = *mut c_void;

/// What the driver calls with one pointer of ours.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// One function of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The name that the library exports.
    pub name: &'static str,
    /// The version of the driver that brought it, as `cuDriverGetVersion` counts (12030 is 12.3); 0 if it must be there.
    pub since: u32,
}

macro_rules! symbols {
    ($($since:literal $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The functions found in one library.
        #[allow(non_snake_case)]
        pub(crate) struct Table {
            version: u32,
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        /// Every function that this crate calls.
        pub const SYMBOLS: &[Symbol] = &[$(Symbol { name: stringify!($name), since: $since }),*];

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Table {
            /// Finds every function that a driver of `version` may have.
            ///
            /// # Errors
            ///
            /// The name of a function that every driver has and this library lacks.
            pub(crate) fn find(library: &libloading::Library, version: u32) -> Result<Self, Missing> {
                Ok(Self {
                    version,
                    $($name: {
                        // SAFETY: the signature beside the name is the one that the driver documents for it.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        gate(found.ok().map(|symbol| *symbol), stringify!($name), $since, version)?
                    },)*
                })
            }

            /// Whether the function of this name may be called.
            pub(crate) fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name.is_some(),)*
                    _ => false,
                }
            }

            $(
                // Two are called by the address, since their failure has no words.
                #[allow(dead_code)]
                /// Calls the driver's function of this name and checks its code.
                ///
                /// # Safety
                ///
                /// What the driver asks of this function's arguments.
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Error> {
                    let Some(function) = self.$name else {
                        return Err(self.missing(stringify!($name), $since));
                    };
                    // SAFETY: the caller keeps the driver's contract; the library is never unloaded.
                    let code = unsafe { function($($argument),*) };
                    self.check(stringify!($name), code)
                }
            )*
        }
    };
}

symbols! {
    // The driver itself.
    0 cuInit(flags: c_uint);
    0 cuDriverGetVersion(version: *mut c_int);
    0 cuGetErrorName(code: c_int, name: *mut *const c_char);
    0 cuGetErrorString(code: c_int, text: *mut *const c_char);
    // Devices and contexts.
    0 cuDeviceGetCount(count: *mut c_int);
    0 cuDeviceGet(device: *mut c_int, ordinal: c_int);
    0 cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int);
    0 cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
    0 cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    0 cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    0 cuDeviceGetPCIBusId(id: *mut c_char, bytes: c_int, device: c_int);
    0 cuDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char);
    0 cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    0 cuDevicePrimaryCtxRelease_v2(device: c_int);
    0 cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    0 cuCtxPushCurrent_v2(context: Handle);
    0 cuCtxPopCurrent_v2(context: *mut Handle);
    0 cuCtxGetCurrent(context: *mut Handle);
    0 cuCtxGetDevice(device: *mut c_int);
    0 cuCtxSynchronize();
    0 cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    // Peers.
    0 cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);
    0 cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, device: c_int, peer: c_int);
    0 cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    0 cuCtxDisablePeerAccess(peer: Handle);
    // Streams.
    0 cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    0 cuStreamDestroy_v2(stream: Handle);
    0 cuStreamQuery(stream: Handle);
    0 cuStreamSynchronize(stream: Handle);
    0 cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    0 cuStreamGetPriority(stream: Handle, priority: *mut c_int);
    0 cuStreamGetFlags(stream: Handle, flags: *mut c_uint);
    0 cuStreamGetCtx(stream: Handle, context: *mut Handle);
    0 cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void);
    0 cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint);
    0 cuStreamWriteValue64_v2(stream: Handle, address: u64, value: u64, flags: c_uint);
    0 cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint);
    0 cuStreamWaitValue64_v2(stream: Handle, address: u64, value: u64, flags: c_uint);
    // Events.
    0 cuEventCreate(event: *mut Handle, flags: c_uint);
    0 cuEventDestroy_v2(event: Handle);
    0 cuEventRecord(event: Handle, stream: Handle);
    0 cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    0 cuEventQuery(event: Handle);
    0 cuEventSynchronize(event: Handle);
    0 cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle);
    // Code.
    0 cuModuleLoadData(module: *mut Handle, image: *const c_void);
    0 cuModuleUnload(module: Handle);
    0 cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    12000 cuLibraryLoadData(
        library: *mut Handle, image: *const c_void,
        jit_options: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint,
        options: *mut c_int, values: *mut *mut c_void, count: c_uint,
    );
    12000 cuLibraryUnload(library: Handle);
    12000 cuLibraryGetKernel(kernel: *mut Handle, library: Handle, name: *const c_char);
    12000 cuKernelGetFunction(function: *mut Handle, kernel: Handle);
    12040 cuFuncLoad(function: Handle);
    0 cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle);
    0 cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int);
    0 cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: Handle, block_threads: c_int, shared_bytes: usize,
    );
    11080 cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: Handle, config: *const sys::CUlaunchConfig);
    0 cuLaunchKernelEx(
        config: *const sys::CUlaunchConfig, function: Handle,
        arguments: *mut *mut c_void, extra: *mut *mut c_void,
    );
    // Memory.
    0 cuMemAlloc_v2(address: *mut u64, bytes: usize);
    0 cuMemFree_v2(address: u64);
    0 cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    0 cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    0 cuMemFreeHost(address: *mut c_void);
    0 cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    0 cuMemHostUnregister(address: *mut c_void);
    0 cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, flags: c_uint);
    0 cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle);
    0 cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: Handle);
    0 cuMemsetD32Async(address: u64, value: u32, count: usize, stream: Handle);
    0 cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
    0 cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: u64);
    0 cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: u64);
    11070 cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: u64, bytes: usize, kind: c_int, flags: u64,
    );
    // Memory and events of other processes.
    0 cuIpcGetMemHandle(handle: *mut sys::CUipcMemHandle, address: u64);
    0 cuIpcOpenMemHandle_v2(address: *mut u64, handle: sys::CUipcMemHandle, flags: c_uint);
    0 cuIpcCloseMemHandle(address: u64);
    0 cuIpcGetEventHandle(handle: *mut sys::CUipcEventHandle, event: Handle);
    0 cuIpcOpenEventHandle(event: *mut Handle, handle: sys::CUipcEventHandle);
    // Physical memory, addresses, and what joins them.
    0 cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const AllocationProperties, option: c_int);
    0 cuMemCreate(handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: u64);
    0 cuMemRelease(handle: u64);
    0 cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, wish: u64, flags: u64);
    0 cuMemAddressFree(address: u64, bytes: usize);
    0 cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    0 cuMemUnmap(address: u64, bytes: usize);
    0 cuMemSetAccess(address: u64, bytes: usize, access: *const sys::CUmemAccessDesc, count: usize);
    0 cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void);
    0 cuMemExportToShareableHandle(shared: *mut c_void, handle: u64, kind: c_int, flags: u64);
    0 cuMemImportFromShareableHandle(handle: *mut u64, shared: *mut c_void, kind: c_int);
    12010 cuMulticastCreate(handle: *mut u64, properties: *const sys::CUmulticastObjectProp);
    12010 cuMulticastAddDevice(handle: u64, device: c_int);
    12010 cuMulticastBindMem(
        handle: u64, offset: usize, memory: u64, memory_offset: usize, bytes: usize, flags: u64,
    );
    12010 cuMulticastUnbind(handle: u64, device: c_int, offset: usize, bytes: usize);
    12010 cuMulticastGetGranularity(bytes: *mut usize, properties: *const sys::CUmulticastObjectProp, option: c_int);
    // Capture and graphs.
    0 cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    0 cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    0 cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    0 cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    11030 cuStreamGetCaptureInfo_v2(
        stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle,
        dependencies: *mut *const Handle, count: *mut usize,
    );
    12030 cuStreamGetCaptureInfo_v3(
        stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle,
        dependencies: *mut *const Handle, edges: *mut *const c_void, count: *mut usize,
    );
    11030 cuStreamUpdateCaptureDependencies(
        stream: Handle, dependencies: *mut Handle, count: usize, flags: c_uint,
    );
    12030 cuStreamUpdateCaptureDependencies_v2(
        stream: Handle, dependencies: *mut Handle, edges: *const c_void, count: usize, flags: c_uint,
    );
    0 cuGraphDestroy(graph: Handle);
    0 cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    0 cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    0 cuGraphUpload(exec: Handle, stream: Handle);
    0 cuGraphLaunch(exec: Handle, stream: Handle);
    12000 cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: *mut crate::graph::UpdateResult);
    0 cuGraphExecDestroy(exec: Handle);
    0 cuUserObjectCreate(object: *mut Handle, data: *mut c_void, destroy: HostFunction, references: c_uint, flags: c_uint);
    0 cuUserObjectRelease(object: Handle, references: c_uint);
    0 cuGraphRetainUserObject(graph: Handle, object: Handle, references: c_uint, flags: c_uint);
}

/// What the driver calls work that is not done.
const NOT_READY: &str = "CUDA_ERROR_NOT_READY";

impl Table {
    /// The version of the driver behind the table.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// A code as a result.
    fn check(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        if code == crate::error::code::NOT_READY {
            // No failure, and asked for often.
            return Err(Error::Failed(Failure {
                call,
                code,
                name: NOT_READY.to_owned(),
                text: String::new(),
            }));
        }
        let name =
            self.words(self.cuGetErrorName, code).unwrap_or_else(|| "a code unknown to this driver".into());
        let text = self.words(self.cuGetErrorString, code).unwrap_or_default();
        Err(Error::Failed(Failure { call, code, name, text }))
    }

    /// What one of the driver's two tables of words says of a code; nothing if it does not know it.
    fn words(
        &self,
        function: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
        code: c_int,
    ) -> Option<String> {
        let mut words = std::ptr::null();
        // SAFETY: the driver stores a pointer to a string of its own, or null.
        let found = unsafe { function?(code, &raw mut words) };
        if found != 0 || words.is_null() {
            return None;
        }
        // SAFETY: checked above; the string ends with a zero and lives as long as the library.
        Some(unsafe { std::ffi::CStr::from_ptr(words) }.to_string_lossy().into_owned())
    }

    fn missing(&self, call: &'static str, since: u32) -> Error {
        Error::Missing { call, since, driver: self.version }
    }
}

/// Keeps a function that was found, unless the driver is older than it; fails if every driver has it.
fn gate<F>(found: Option<F>, name: &'static str, since: u32, version: u32) -> Result<Option<F>, Missing> {
    match found {
        Some(function) if since <= version => Ok(Some(function)),
        None if since == 0 => Err(Missing { name }),
        _ => Ok(None),
    }
}
