//! The functions that the library exports, each with the part of the driver that does it.

use std::ffi::CStr;
use std::ffi::c_char;

use crate::code::{Answer, INVALID_VALUE};
use crate::fail::{Way, entry};
use crate::launch::Config;
use crate::virtual_memory::Properties;
use crate::{
    capture, device, event, graph, host, ipc, kernel, launch, memory, multicast, user_object, virtual_memory,
};

/// Where the caller wants a value.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

/// Where the caller has a value.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

/// A text of the caller's.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

/// What the driver calls with one pointer of the caller's.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut std::ffi::c_void);

/// A handle that goes to other processes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bytes64(pub(crate) [u8; 64]);

impl<T> Out<T> {
    /// Stores a value, unless the caller wants none.
    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: callers of a driver give it a place for what it stores, or null.
            unsafe { self.0.write(value) }
        }
    }

    /// What is there.
    pub(crate) fn value(self) -> T
    where
        T: Copy,
    {
        // SAFETY: called for arguments only that the driver reads and writes.
        unsafe { self.0.read() }
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn value(self) -> Answer<T> {
        // SAFETY: callers of a driver give it a value of the type that it documents, or null.
        unsafe { self.0.as_ref() }.copied().ok_or(INVALID_VALUE)
    }
}

impl Text {
    pub(crate) fn value(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: callers of a driver end texts with a zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// The `index`th of the values at an address that the caller gave.
pub(crate) fn item<T: Copy>(address: usize, index: usize) -> T {
    // SAFETY: callers of a driver say how many values there are, and `index` is below that.
    unsafe { (address as *const T).add(index).read_unaligned() }
}

/// Stores the `index`th of the values at an address that the caller gave.
pub(crate) fn put<T>(address: usize, index: usize, value: T) {
    // SAFETY: callers of a driver say how many places there are, and `index` is below that.
    unsafe { (address as *mut T).add(index).write_unaligned(value) }
}

macro_rules! driver {
    ($($way:ident $name:ident($($argument:ident: $type:ty),*) = $module:ident::$part:ident;)*) => {
        $(
            #[doc = concat!("The driver's `", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments, private_interfaces, unreachable_pub)]
            pub extern "C" fn $name($($argument: $type),*) -> i32 {
                entry(stringify!($name), Way::$way, || $module::$part($($argument),*))
            }
        )*
    };
}

driver! {
    Always cuInit(flags: u32) = device::init;
    Always cuDriverGetVersion(version: Out<i32>) = device::driver_version;
    Always cuGetErrorName(code: i32, name: Out<usize>) = device::error_name;
    Always cuGetErrorString(code: i32, text: Out<usize>) = device::error_string;
    Always cuDeviceGetCount(count: Out<i32>) = device::device_count;
    Always cuDeviceGet(device: Out<i32>, ordinal: i32) = device::device_get;
    Instead cuDeviceGetName(name: usize, bytes: i32, device: i32) = device::device_name;
    Instead cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) = device::device_uuid;
    Instead cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) = device::device_attribute;
    Instead cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) = device::device_total_mem;
    Instead cuDeviceGetPCIBusId(id: usize, bytes: i32, device: i32) = device::device_pci_bus_id;
    Instead cuDeviceGetByPCIBusId(device: Out<i32>, id: Text) = device::device_by_pci_bus_id;
    Instead cuDevicePrimaryCtxRetain(context: Out<usize>, device: i32) = device::device_primary_context_retain;
    Afterwards cuDevicePrimaryCtxRelease_v2(device: i32) = device::device_primary_context_release;
    Instead cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) = device::device_primary_context_state;
    Always cuCtxPushCurrent_v2(context: usize) = device::context_push_current;
    Afterwards cuCtxPopCurrent_v2(context: Out<usize>) = device::context_pop_current;
    Always cuCtxGetCurrent(context: Out<usize>) = device::context_current;
    Instead cuCtxGetDevice(device: Out<i32>) = device::context_device;
    Instead cuCtxSynchronize() = device::context_synchronize;
    Instead cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = device::context_stream_priority_range;
    Instead cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) = device::device_can_access_peer;
    Instead cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) = device::device_link_attribute;
    Instead cuCtxEnablePeerAccess(peer: usize, flags: u32) = device::context_enable_peer_access;
    Instead cuCtxDisablePeerAccess(peer: usize) = device::context_disable_peer_access;
    Instead cuStreamCreateWithPriority(stream: Out<usize>, flags: u32, priority: i32) = launch::stream_create_with_priority;
    Afterwards cuStreamDestroy_v2(stream: usize) = launch::stream_destroy;
    Instead cuStreamQuery(stream: usize) = launch::stream_query;
    Instead cuStreamSynchronize(stream: usize) = launch::stream_synchronize;
    Instead cuStreamWaitEvent(stream: usize, event: usize, flags: u32) = event::stream_wait_event;
    Instead cuStreamGetPriority(stream: usize, priority: Out<i32>) = launch::stream_priority;
    Instead cuStreamGetFlags(stream: usize, flags: Out<u32>) = launch::stream_flags;
    Instead cuStreamGetCtx(stream: usize, context: Out<usize>) = launch::stream_context;
    Instead cuLaunchHostFunc(stream: usize, function: HostFunction, data: usize) = launch::launch_host_func;
    Instead cuStreamWriteValue32_v2(stream: usize, address: u64, value: u32, flags: u32) = launch::stream_write_value32;
    Instead cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) = launch::stream_write_value64;
    Instead cuStreamWaitValue32_v2(stream: usize, address: u64, value: u32, flags: u32) = launch::stream_wait_value32;
    Instead cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) = launch::stream_wait_value64;
    Instead cuEventCreate(event: Out<usize>, flags: u32) = event::event_create;
    Afterwards cuEventDestroy_v2(event: usize) = event::event_destroy;
    Instead cuEventRecord(event: usize, stream: usize) = event::event_record;
    Instead cuEventRecordWithFlags(event: usize, stream: usize, flags: u32) = event::event_record_with_flags;
    Instead cuEventQuery(event: usize) = event::event_query;
    Instead cuEventSynchronize(event: usize) = event::event_synchronize;
    Instead cuEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) = event::event_elapsed_time;
    Instead cuModuleLoadData(module: Out<usize>, image: usize) = kernel::module_load_data;
    Afterwards cuModuleUnload(module: usize) = kernel::module_unload;
    Instead cuModuleGetFunction(function: Out<usize>, module: usize, name: Text) = kernel::module_function;
    Instead cuLibraryLoadData(library: Out<usize>, image: usize, jit_options: Out<i32>, jit_values: Out<usize>, jit_count: u32, options: Out<i32>, values: Out<usize>, count: u32) = kernel::library_load_data;
    Afterwards cuLibraryUnload(library: usize) = kernel::library_unload;
    Instead cuLibraryGetKernel(kernel: Out<usize>, library: usize, name: Text) = kernel::library_kernel;
    Instead cuKernelGetFunction(function: Out<usize>, kernel: usize) = kernel::kernel_function;
    Instead cuFuncLoad(function: usize) = kernel::func_load;
    Instead cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: usize) = kernel::func_attribute;
    Instead cuFuncSetAttribute(function: usize, attribute: i32, value: i32) = kernel::func_set_attribute;
    Instead cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: usize, block_threads: i32, shared_bytes: usize) = kernel::occupancy_max_active_blocks_per_multiprocessor;
    Instead cuOccupancyMaxActiveClusters(clusters: Out<i32>, function: usize, config: In<Config>) = kernel::occupancy_max_active_clusters;
    Instead cuLaunchKernelEx(config: In<Config>, function: usize, arguments: usize, extra: usize) = launch::launch_kernel_ex;
    Instead cuMemAlloc_v2(address: Out<u64>, bytes: usize) = memory::mem_alloc;
    Afterwards cuMemFree_v2(address: u64) = memory::mem_free;
    Instead cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = memory::mem_info;
    Instead cuMemHostAlloc(address: Out<usize>, bytes: usize, flags: u32) = host::mem_host_alloc;
    Afterwards cuMemFreeHost(address: usize) = host::mem_free_host;
    Instead cuMemHostRegister_v2(address: usize, bytes: usize, flags: u32) = host::mem_host_register;
    Afterwards cuMemHostUnregister(address: usize) = host::mem_host_unregister;
    Instead cuMemHostGetDevicePointer_v2(device: Out<u64>, host: usize, flags: u32) = host::mem_host_device_pointer;
    Instead cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) = memory::memcpy_async;
    Instead cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: usize) = memory::memset_bytes_async;
    Instead cuMemsetD32Async(address: u64, value: u32, count: usize, stream: usize) = memory::memset_words_async;
    Instead cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) = memory::mem_address_range;
    Instead cuPointerGetAttributes(count: u32, attributes: usize, values: usize, address: u64) = memory::pointer_attributes;
    Instead cuPointerSetAttribute(value: usize, attribute: i32, address: u64) = memory::pointer_set_attribute;
    Instead cuMemGetHandleForAddressRange(handle: usize, address: u64, bytes: usize, kind: i32, flags: u64) = memory::mem_handle_for_address_range;
    Instead cuIpcGetMemHandle(handle: Out<Bytes64>, address: u64) = ipc::ipc_mem_handle;
    Instead cuIpcOpenMemHandle_v2(address: Out<u64>, handle: Bytes64, flags: u32) = ipc::ipc_open_mem_handle;
    Afterwards cuIpcCloseMemHandle(address: u64) = ipc::ipc_close_mem_handle;
    Instead cuIpcGetEventHandle(handle: Out<Bytes64>, event: usize) = ipc::ipc_event_handle;
    Instead cuIpcOpenEventHandle(event: Out<usize>, handle: Bytes64) = ipc::ipc_open_event_handle;
    Instead cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, option: i32) = virtual_memory::mem_allocation_granularity;
    Instead cuMemCreate(handle: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) = virtual_memory::mem_create;
    Afterwards cuMemRelease(handle: u64) = virtual_memory::mem_release;
    Instead cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, wish: u64, flags: u64) = virtual_memory::mem_address_reserve;
    Afterwards cuMemAddressFree(address: u64, bytes: usize) = virtual_memory::mem_address_free;
    Instead cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) = virtual_memory::mem_map;
    Afterwards cuMemUnmap(address: u64, bytes: usize) = virtual_memory::mem_unmap;
    Instead cuMemSetAccess(address: u64, bytes: usize, access: usize, count: usize) = virtual_memory::mem_set_access;
    Instead cuMemRetainAllocationHandle(handle: Out<u64>, address: usize) = virtual_memory::mem_retain_allocation_handle;
    Instead cuMemExportToShareableHandle(shared: usize, handle: u64, kind: i32, flags: u64) = virtual_memory::mem_export_to_shareable_handle;
    Instead cuMemImportFromShareableHandle(handle: Out<u64>, shared: usize, kind: i32) = virtual_memory::mem_import_from_shareable_handle;
    Instead cuMulticastCreate(handle: Out<u64>, properties: In<multicast::Properties>) = multicast::multicast_create;
    Instead cuMulticastAddDevice(handle: u64, device: i32) = multicast::multicast_add_device;
    Instead cuMulticastBindMem(handle: u64, offset: usize, memory: u64, memory_offset: usize, bytes: usize, flags: u64) = multicast::multicast_bind_mem;
    Instead cuMulticastUnbind(handle: u64, device: i32, offset: usize, bytes: usize) = multicast::multicast_unbind;
    Instead cuMulticastGetGranularity(bytes: Out<usize>, properties: In<multicast::Properties>, option: i32) = multicast::multicast_granularity;
    Instead cuThreadExchangeStreamCaptureMode(mode: Out<i32>) = capture::thread_exchange_stream_capture_mode;
    Instead cuStreamBeginCapture_v2(stream: usize, mode: i32) = capture::stream_begin_capture;
    Instead cuStreamEndCapture(stream: usize, graph: Out<usize>) = capture::stream_end_capture;
    Instead cuStreamIsCapturing(stream: usize, status: Out<i32>) = capture::stream_is_capturing;
    Instead cuStreamGetCaptureInfo_v2(stream: usize, status: Out<i32>, id: Out<u64>, graph: Out<usize>, dependencies: Out<usize>, count: Out<usize>) = capture::stream_capture_info;
    Instead cuStreamGetCaptureInfo_v3(stream: usize, status: Out<i32>, id: Out<u64>, graph: Out<usize>, dependencies: Out<usize>, edges: Out<usize>, count: Out<usize>) = capture::stream_capture_info_with_edges;
    Instead cuStreamUpdateCaptureDependencies(stream: usize, dependencies: usize, count: usize, flags: u32) = capture::stream_update_capture_dependencies;
    Instead cuStreamUpdateCaptureDependencies_v2(stream: usize, dependencies: usize, edges: usize, count: usize, flags: u32) = capture::stream_update_capture_dependencies_with_edges;
    Afterwards cuGraphDestroy(graph: usize) = graph::graph_destroy;
    Instead cuGraphGetNodes(graph: usize, nodes: usize, count: Out<usize>) = graph::graph_nodes;
    Instead cuGraphInstantiateWithFlags(exec: Out<usize>, graph: usize, flags: u64) = graph::graph_instantiate_with_flags;
    Instead cuGraphUpload(exec: usize, stream: usize) = graph::graph_upload;
    Instead cuGraphLaunch(exec: usize, stream: usize) = graph::graph_launch;
    Instead cuGraphExecUpdate_v2(exec: usize, graph: usize, result: Out<i32>) = graph::graph_exec_update;
    Afterwards cuGraphExecDestroy(exec: usize) = graph::graph_exec_destroy;
    Instead cuUserObjectCreate(object: Out<usize>, data: usize, destroy: HostFunction, references: u32, flags: u32) = user_object::user_object_create;
    Afterwards cuUserObjectRelease(object: usize, references: u32) = user_object::user_object_release;
    Instead cuGraphRetainUserObject(graph: usize, object: usize, references: u32, flags: u32) = user_object::graph_retain_user_object;
}
