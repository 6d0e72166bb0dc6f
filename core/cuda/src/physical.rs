//! Physical device memory apart from addresses: made, shared, and mapped where several devices reach it.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys;

use crate::context::{Context, report};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::load::Driver;
use crate::multicast::Multicast;

/// Physical memory of one device, or what another process shared of it.
#[derive(Debug)]
pub struct PhysicalMemory {
    pub(crate) allocation: Allocation,
}

/// Addresses of this process, with physical memory or a multicast object behind them. The mapping keeps what is behind
/// it, even when the value that made that is gone.
#[derive(Debug)]
pub struct Mapping {
    driver: Driver,
    address: u64,
    bytes: usize,
    /// How long what is mapped so far is, one piece behind the other.
    pieces: Vec<usize>,
}

/// How physical memory can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Not at all.
    Private,
    /// With processes of this host, by posix file descriptor.
    Descriptor,
    /// With every node of the fabric.
    Fabric,
    /// Either way.
    DescriptorOrFabric,
}

/// What another process, perhaps on another node of the fabric, opens physical memory by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricHandle(pub [u8; 64]);

/// The driver's `CUmemAllocationProp`, in which ways of sharing are a set and not one of an enumeration.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AllocationProperties {
    kind: c_int,
    shared_by: c_int,
    location: sys::CUmemLocation,
    windows: *mut c_void,
    flags: sys::CUmemAllocationProp_st__bindgen_ty_1,
}

const _: () = assert!(size_of::<AllocationProperties>() == size_of::<sys::CUmemAllocationProp>());

/// The driver's handle of memory or of a multicast object: one reference.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) driver: Driver,
    pub(crate) handle: u64,
    pub(crate) bytes: usize,
}

impl Sharing {
    /// Of a set of the driver's kinds, some of which are of other systems.
    pub(crate) fn of(kinds: u64) -> Self {
        let has = |kind: c_int| kinds & u64::from(kind.cast_unsigned()) != 0;
        match (has(DESCRIPTOR), has(FABRIC)) {
            (false, false) => Self::Private,
            (true, false) => Self::Descriptor,
            (false, true) => Self::Fabric,
            (true, true) => Self::DescriptorOrFabric,
        }
    }

    /// Whether posix file descriptors share it.
    #[must_use]
    pub fn by_descriptor(self) -> bool {
        matches!(self, Self::Descriptor | Self::DescriptorOrFabric)
    }

    /// Whether handles of a fabric share it.
    #[must_use]
    pub fn by_fabric(self) -> bool {
        matches!(self, Self::Fabric | Self::DescriptorOrFabric)
    }
}

impl PhysicalMemory {
    /// `bytes` of the device's memory; a multiple of [`PhysicalMemory::granularity`]. Nothing is known in it.
    ///
    /// # Errors
    ///
    /// The driver's: out of memory, a way of sharing that this machine does not have.
    pub fn new(device: &Device, bytes: usize, sharing: Sharing) -> Result<Self> {
        let (driver, properties) = (device.driver(), properties(device, sharing));
        let mut handle = 0;
        // SAFETY: the driver reads the properties and stores one handle, which the value gives back once.
        unsafe { driver.table.cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) }?;
        Ok(Self { allocation: Allocation { driver: driver.clone(), handle, bytes } })
    }

    /// What sizes are multiples of.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn granularity(device: &Device, sharing: Sharing) -> Result<usize> {
        let (mut bytes, properties) = (0, properties(device, sharing));
        let recommended =
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as c_int;
        // SAFETY: the driver reads the properties and stores one number.
        unsafe {
            device.driver().table.cuMemGetAllocationGranularity(
                &raw mut bytes,
                &raw const properties,
                recommended,
            )
        }?;
        Ok(bytes)
    }

    /// What is mapped at `address` in this process, whoever mapped it: one more reference to it.
    ///
    /// # Errors
    ///
    /// The driver's, if nothing is mapped there.
    pub fn behind(context: &Context, address: u64) -> Result<Self> {
        let (_, bytes) = crate::pointer::PointerFacts::range(context, address)?;
        Self::mapped(context, address, bytes)
    }

    /// [`PhysicalMemory::behind`] of `bytes`, where they are known.
    ///
    /// # Errors
    ///
    /// The driver's, if nothing is mapped at `address`, or no physical memory such as this.
    pub fn mapped(context: &Context, address: u64, bytes: usize) -> Result<Self> {
        let (mut handle, driver) = (0, context.driver());
        // SAFETY: the driver looks the address up and stores one handle, which the value gives back once.
        context.within(|| unsafe {
            driver.table.cuMemRetainAllocationHandle(&raw mut handle, address as *mut c_void)
        })?;
        Ok(Self { allocation: Allocation { driver: driver.clone(), handle, bytes } })
    }

    /// What another process of this host shared, of `bytes`.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn from_descriptor(driver: &Driver, shared: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        Ok(Self { allocation: Allocation::from_descriptor(driver, shared, bytes)? })
    }

    /// What another process of the fabric shared, of `bytes`.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn from_fabric(driver: &Driver, shared: &FabricHandle, bytes: usize) -> Result<Self> {
        Ok(Self { allocation: Allocation::from_fabric(driver, shared, bytes)? })
    }

    /// A descriptor for other processes of this host. It keeps the memory for as long as it is open.
    ///
    /// # Errors
    ///
    /// The driver's, unless the memory was made with [`Sharing::Descriptor`].
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.allocation.descriptor()
    }

    /// A handle for other processes of the fabric. It is valid while the memory is there.
    ///
    /// # Errors
    ///
    /// The driver's, unless the memory was made with [`Sharing::Fabric`].
    pub fn fabric(&self) -> Result<FabricHandle> {
        self.allocation.fabric()
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// Gives the reference back before the value is dropped, and says whether that worked. Mappings keep the memory.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.allocation.release()
    }
}

impl Mapping {
    /// Maps all of `memory`, for reading and writing by `devices`.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(memory: &PhysicalMemory, devices: &[&Device]) -> Result<Self> {
        Self::of(&[&memory.allocation], devices)
    }

    /// Maps all of these, one behind the other, for reading and writing by `devices`.
    ///
    /// # Errors
    ///
    /// The driver's; one of usage if there are none.
    pub fn of_pieces(pieces: &[PhysicalMemory], devices: &[&Device]) -> Result<Self> {
        let pieces: Vec<_> = pieces.iter().map(|memory| &memory.allocation).collect();
        Self::of(&pieces, devices)
    }

    /// Maps all of a multicast object: what a device stores there, every member's memory gets.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn of_multicast(multicast: &Multicast, devices: &[&Device]) -> Result<Self> {
        Self::of(&[&multicast.allocation], devices)
    }

    fn of(pieces: &[&Allocation], devices: &[&Device]) -> Result<Self> {
        let Some(driver) = pieces.first().map(|first| &first.driver) else {
            let what = "expected memory to map, found none; give some".to_owned();
            return Err(Error::Usage { call: "cuMemMap", what });
        };
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let mut address = 0;
        // SAFETY: the driver stores one address, which the value gives back once.
        unsafe { driver.table.cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) }?;
        let mut mapping = Self { driver: driver.clone(), address, bytes, pieces: Vec::new() };
        let access: Vec<_> = devices.iter().map(|device| access(device)).collect();
        for Allocation { handle, bytes, .. } in pieces {
            let at = address + mapping.pieces.iter().sum::<usize>() as u64;
            // SAFETY: the range was reserved above and is not mapped yet, the handle lives.
            unsafe { driver.table.cuMemMap(at, *bytes, 0, *handle, 0) }?;
            mapping.pieces.push(*bytes);
            // SAFETY: the range is mapped; the driver reads as many descriptions as it is told of.
            unsafe { driver.table.cuMemSetAccess(at, *bytes, access.as_ptr(), access.len()) }?;
        }
        Ok(mapping)
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Unmaps before the value is dropped, and says whether that worked. The device must be done with the range.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let address = std::mem::take(&mut self.address);
        if address == 0 {
            return Ok(());
        }
        let (mut at, mut done) = (address, Ok(()));
        for bytes in std::mem::take(&mut self.pieces) {
            // SAFETY: mapped once, unmapped once.
            done = done.and(unsafe { self.driver.table.cuMemUnmap(at, bytes) });
            at += bytes as u64;
        }
        // SAFETY: reserved once, given back once.
        done.and(unsafe { self.driver.table.cuMemAddressFree(address, self.bytes) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _relaxed = crate::capture::RelaxedCapture::to_drop(&self.driver);
        report(self.release());
    }
}

impl Allocation {
    pub(crate) fn from_descriptor(driver: &Driver, shared: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        // By this kind of handle the driver takes the descriptor itself in place of the pointer.
        let descriptor = shared.as_raw_fd() as usize as *mut c_void;
        Self::import(driver, descriptor, DESCRIPTOR, bytes)
    }

    pub(crate) fn from_fabric(driver: &Driver, shared: &FabricHandle, bytes: usize) -> Result<Self> {
        let mut shared = *shared;
        Self::import(driver, (&raw mut shared.0).cast(), FABRIC, bytes)
    }

    fn import(driver: &Driver, shared: *mut c_void, kind: c_int, bytes: usize) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: `shared` is what the kind asks for; the driver stores one handle, which the value gives back once.
        unsafe { driver.table.cuMemImportFromShareableHandle(&raw mut handle, shared, kind) }?;
        Ok(Self { driver: driver.clone(), handle, bytes })
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        let mut descriptor: c_int = -1;
        let place = (&raw mut descriptor).cast();
        // SAFETY: the driver stores one descriptor.
        unsafe { self.driver.table.cuMemExportToShareableHandle(place, self.handle, DESCRIPTOR, 0) }?;
        // SAFETY: the driver made the descriptor for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(crate) fn fabric(&self) -> Result<FabricHandle> {
        let mut handle = FabricHandle([0; 64]);
        let place = (&raw mut handle.0).cast();
        // SAFETY: the driver stores 64 bytes.
        unsafe { self.driver.table.cuMemExportToShareableHandle(place, self.handle, FABRIC, 0) }?;
        Ok(handle)
    }

    pub(crate) fn release(&mut self) -> Result<()> {
        let handle = std::mem::take(&mut self.handle);
        if handle == 0 {
            return Ok(());
        }
        // SAFETY: one reference, given back once.
        unsafe { self.driver.table.cuMemRelease(handle) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        report(self.release());
    }
}

/// A descriptor that a NIC can register, for `bytes` of device memory at `address`; both multiples of the page size.
///
/// # Errors
///
/// The driver's, if the device cannot ([`crate::DeviceAbilities::dma_buf`]).
pub fn dma_buf(context: &Context, address: u64, bytes: usize) -> Result<OwnedFd> {
    let mut descriptor: c_int = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
    // SAFETY: the driver looks the range up and stores one descriptor.
    context.within(|| unsafe {
        let place = (&raw mut descriptor).cast();
        context.table().cuMemGetHandleForAddressRange(place, address, bytes, kind, 0)
    })?;
    // SAFETY: the driver made the descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn properties(device: &Device, sharing: Sharing) -> AllocationProperties {
    AllocationProperties {
        kind: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_int,
        shared_by: match sharing {
            Sharing::Private => 0,
            Sharing::Descriptor => DESCRIPTOR,
            Sharing::Fabric => FABRIC,
            Sharing::DescriptorOrFabric => DESCRIPTOR | FABRIC,
        },
        location: location(device),
        windows: std::ptr::null_mut(),
        flags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(device.abilities().gpu_direct_rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: &Device) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle() }
}

fn access(device: &Device) -> sys::CUmemAccessDesc {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sys::CUmemAccessDesc { location: location(device), flags }
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const DESCRIPTOR: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC: c_int = 8;
