//! Devices, and what is known of them without a context.

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::driver::sys::{CUdevice_P2PAttribute as LinkAttribute, CUdevice_attribute as Attribute};

use crate::error::{Error, Result};
use crate::load::Driver;

/// One device of this process.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    ordinal: i32,
    handle: c_int,
}

/// What is known of the way between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLink {
    /// Whether kernels of the one may read and write memory of the other.
    pub access: bool,
    /// The driver's rank of the way: 0 is the best.
    pub performance_rank: i32,
    /// Whether atomics work across it.
    pub native_atomics: bool,
}

/// What the admission check and the choice of images need to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Compute capability: (9, 0) for sm_90.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Threads of one block, at most.
    pub block_threads: u32,
    /// Shared memory of one block, at most, when the kernel asks for it.
    pub block_shared_bytes: u32,
    /// Threads that one multiprocessor holds at once.
    pub multiprocessor_threads: u32,
    /// All device memory.
    pub memory_bytes: usize,
}

/// What a device, with this driver, can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAbilities {
    /// Physical memory apart from addresses ([`crate::PhysicalMemory`]).
    pub virtual_memory: bool,
    /// Sharing it by posix file descriptor.
    pub posix_handles: bool,
    /// Sharing it across nodes of one fabric.
    pub fabric_handles: bool,
    /// Multicast objects ([`crate::Multicast`]).
    pub multicast: bool,
    /// DMA buffers that a NIC can register.
    pub dma_buf: bool,
    /// Direct access by other PCIe devices.
    pub gpu_direct_rdma: bool,
    /// Waiting for 64-bit values on streams.
    pub wait_values: bool,
    /// Cooperative launches.
    pub cooperative_launch: bool,
    /// Addresses are the same on the host and on devices.
    pub unified_addresses: bool,
    /// Memory and events of other processes.
    pub ipc: bool,
}

impl Device {
    pub(crate) fn new(driver: &Driver, ordinal: i32) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the driver stores one number.
        unsafe { driver.table.cuDeviceGet(&raw mut handle, ordinal) }?;
        Ok(Self { driver: driver.clone(), ordinal, handle })
    }

    /// The device at a PCI bus id such as `0000:3b:00.0`.
    ///
    /// # Errors
    ///
    /// The driver's, if it sees no such device.
    pub fn at_pci(driver: &Driver, bus_id: &str) -> Result<Self> {
        let text = CString::new(bus_id).map_err(|_| Error::Usage {
            call: "cuDeviceGetByPCIBusId",
            what: format!("expected a bus id without zero bytes, found {bus_id:?}"),
        })?;
        let mut handle = 0;
        // SAFETY: the text ends with a zero; the driver stores one number.
        unsafe { driver.table.cuDeviceGetByPCIBusId(&raw mut handle, text.as_ptr()) }?;
        Ok(Self { driver: driver.clone(), ordinal: handle, handle })
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its number among the devices of this process.
    #[must_use]
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    pub(crate) fn handle(&self) -> c_int {
        self.handle
    }

    /// Its name, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn name(&self) -> Result<String> {
        // SAFETY: the driver writes at most the bytes it is told of.
        self.text(|text, bytes| unsafe { self.driver.table.cuDeviceGetName(text, bytes, self.handle) })
    }

    /// Its PCI bus id, `domain:bus:device.function` in lower-case hexadecimal digits, as NVML and sysfs write it.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn pci_bus_id(&self) -> Result<String> {
        // SAFETY: the driver writes at most the bytes it is told of.
        let id = self
            .text(|text, bytes| unsafe { self.driver.table.cuDeviceGetPCIBusId(text, bytes, self.handle) })?;
        Ok(id.to_ascii_lowercase())
    }

    /// What it is known by everywhere, for ever.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        // SAFETY: the driver stores 16 bytes.
        unsafe { self.driver.table.cuDeviceGetUuid_v2(&raw mut uuid, self.handle) }?;
        Ok(uuid)
    }

    /// What the admission check and the choice of images need.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn limits(&self) -> Result<DeviceLimits> {
        use Attribute as A;

        let mut memory_bytes = 0;
        // SAFETY: the driver stores one number.
        unsafe { self.driver.table.cuDeviceTotalMem_v2(&raw mut memory_bytes, self.handle) }?;
        Ok(DeviceLimits {
            capability: (
                self.number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                self.number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: self.number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            block_threads: self.number(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            block_shared_bytes: self.number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            multiprocessor_threads: self.number(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            memory_bytes,
        })
    }

    /// What it can do. What this driver does not know, it cannot.
    #[must_use]
    pub fn abilities(&self) -> DeviceAbilities {
        use Attribute as A;

        let can = |attribute| self.number(attribute).is_ok_and(|value| value != 0);
        DeviceAbilities {
            virtual_memory: can(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
            posix_handles: can(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            fabric_handles: can(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            multicast: self.driver.has("cuMulticastCreate")
                && can(A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
            dma_buf: can(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            gpu_direct_rdma: can(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
            wait_values: can(A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
            cooperative_launch: can(A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
            unified_addresses: can(A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
            ipc: can(A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
        }
    }

    /// What is known of the way to `peer`.
    ///
    /// # Errors
    ///
    /// The driver's; a device has no way to itself.
    pub fn link_to(&self, peer: &Self) -> Result<DeviceLink> {
        use LinkAttribute as L;

        let mut access = 0;
        // SAFETY: the driver stores one number.
        unsafe { self.driver.table.cuDeviceCanAccessPeer(&raw mut access, self.handle, peer.handle) }?;
        let ask = |attribute: LinkAttribute| {
            let (mut value, attribute) = (0, attribute as c_int);
            // SAFETY: the driver stores one number.
            let asked = unsafe {
                self.driver.table.cuDeviceGetP2PAttribute(&raw mut value, attribute, self.handle, peer.handle)
            };
            asked.map(|()| value)
        };
        Ok(DeviceLink {
            access: access != 0,
            performance_rank: ask(L::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
            native_atomics: ask(L::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        })
    }

    /// One attribute.
    fn number(&self, attribute: Attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the driver stores one number, and refuses attributes that it does not know.
        unsafe { self.driver.table.cuDeviceGetAttribute(&raw mut value, attribute as c_int, self.handle) }?;
        Ok(value.max(0).cast_unsigned())
    }

    /// A text that the driver writes, given where to and how many bytes there are.
    fn text(&self, write: impl Fn(*mut c_char, c_int) -> Result<()>) -> Result<String> {
        let mut bytes = [0u8; TEXT_BYTES];
        write(bytes.as_mut_ptr().cast(), (TEXT_BYTES - 1) as c_int)?;
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Enough for every text that the driver writes about a device.
const TEXT_BYTES: usize = 256;

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Eq for Device {}
