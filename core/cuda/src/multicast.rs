//! Multicast objects: one address whose stores reach the memory of several devices, and whose loads can fold it.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};

use cudarc::driver::sys;

use crate::device::Device;
use crate::error::Result;
use crate::load::Driver;
use crate::physical::{Allocation, DESCRIPTOR, FABRIC, FabricHandle, PhysicalMemory, Sharing};

/// A multicast object. First every device is added, by whichever process has it, then memory is bound, then it is mapped
/// ([`crate::Mapping::of_multicast`]).
#[derive(Debug)]
pub struct Multicast {
    pub(crate) allocation: Allocation,
}

impl Multicast {
    /// An object of `bytes` for this many devices; bytes are a multiple of [`Multicast::granularity`].
    ///
    /// # Errors
    ///
    /// The driver's; and of a driver before 12.1 ([`crate::DeviceAbilities::multicast`]).
    pub fn new(driver: &Driver, devices: u32, bytes: usize, sharing: Sharing) -> Result<Self> {
        let (mut handle, properties) = (0, properties(devices, bytes, sharing));
        // SAFETY: the driver reads the properties and stores one handle, which the value gives back once.
        unsafe { driver.table.cuMulticastCreate(&raw mut handle, &raw const properties) }?;
        Ok(Self { allocation: Allocation { driver: driver.clone(), handle, bytes } })
    }

    /// What sizes and offsets are multiples of.
    ///
    /// # Errors
    ///
    /// As [`Multicast::new`].
    pub fn granularity(driver: &Driver, devices: u32, bytes: usize, sharing: Sharing) -> Result<usize> {
        let (mut granularity, properties) = (0, properties(devices, bytes, sharing));
        let recommended = sys::CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED as c_int;
        // SAFETY: the driver reads the properties and stores one number.
        unsafe {
            driver.table.cuMulticastGetGranularity(&raw mut granularity, &raw const properties, recommended)
        }?;
        Ok(granularity)
    }

    /// The object of another process of this host.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn from_descriptor(driver: &Driver, shared: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        Ok(Self { allocation: Allocation::from_descriptor(driver, shared, bytes)? })
    }

    /// The object of another process of the fabric.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn from_fabric(driver: &Driver, shared: &FabricHandle, bytes: usize) -> Result<Self> {
        Ok(Self { allocation: Allocation::from_fabric(driver, shared, bytes)? })
    }

    /// A descriptor for other processes of this host.
    ///
    /// # Errors
    ///
    /// The driver's, unless the object was made with [`Sharing::Descriptor`].
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.allocation.descriptor()
    }

    /// A handle for other processes of the fabric.
    ///
    /// # Errors
    ///
    /// The driver's, unless the object was made with [`Sharing::Fabric`].
    pub fn fabric(&self) -> Result<FabricHandle> {
        self.allocation.fabric()
    }

    /// Makes `device` a member.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn add(&self, device: &Device) -> Result<()> {
        // SAFETY: the object lives.
        unsafe { self.table().cuMulticastAddDevice(self.allocation.handle, device.handle()) }
    }

    /// Binds all of `memory` at this offset of the object. May block until every device is added.
    ///
    /// # Errors
    ///
    /// The driver's: a device that is no member, a range outside the object.
    pub fn bind(&self, offset_bytes: usize, memory: &PhysicalMemory) -> Result<()> {
        let Allocation { handle, bytes, .. } = &memory.allocation;
        // SAFETY: both live; the driver keeps the memory while it is bound.
        unsafe {
            self.table().cuMulticastBindMem(self.allocation.handle, offset_bytes, *handle, 0, *bytes, 0)
        }
    }

    /// Takes back what `device` has bound in this range.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn unbind(&self, device: &Device, offset_bytes: usize, bytes: usize) -> Result<()> {
        // SAFETY: the object lives.
        unsafe {
            self.table().cuMulticastUnbind(self.allocation.handle, device.handle(), offset_bytes, bytes)
        }
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.allocation.bytes
    }

    /// Gives the reference back before the value is dropped, and says whether that worked.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn close(mut self) -> Result<()> {
        self.allocation.release()
    }

    fn table(&self) -> &crate::symbols::Table {
        &self.allocation.driver.table
    }
}

fn properties(devices: u32, bytes: usize, sharing: Sharing) -> sys::CUmulticastObjectProp {
    let kinds = match sharing {
        Sharing::Private => 0,
        Sharing::Descriptor => DESCRIPTOR,
        Sharing::Fabric => FABRIC,
        Sharing::DescriptorOrFabric => DESCRIPTOR | FABRIC,
    };
    let handle_types = u64::from(kinds.cast_unsigned());
    sys::CUmulticastObjectProp { numDevices: devices, size: bytes, handleTypes: handle_types, flags: 0 }
}
