//! What the driver knows of an address.

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::CUpointer_attribute as Attribute;

use crate::context::Context;
use crate::error::Result;
use crate::physical::Sharing;

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointerFacts {
    /// Whose memory it is.
    pub kind: PointerKind,
    /// The ordinal of its device; the device that pinned it, for host memory; nothing if the driver does not know it.
    pub device: Option<i32>,
    /// The context it was made in; null for memory without one, such as that of [`crate::Mapping`].
    pub context: *mut c_void,
    /// Where kernels of the context that was asked find it; 0 if they do not.
    pub device_address: u64,
    /// Where its allocation begins; 0 if the driver does not know it. Of mapped memory the reserved addresses count, of which
    /// not all need be mapped ([`PointerFacts::range`]).
    pub base: u64,
    /// How long its allocation is; as above.
    pub bytes: usize,
    /// Whether it moves between host and devices by itself.
    pub is_managed: bool,
    /// Whether [`crate::IpcMemory`] can share it.
    pub ipc_capable: bool,
    /// How the [`crate::PhysicalMemory`] behind it can be shared; not at all if there is none.
    pub sharing: Sharing,
    /// A number that no other allocation of this process has.
    pub id: u64,
}

// SAFETY: the context's handle is only a number here.
unsafe impl Send for PointerFacts {}
// SAFETY: as above.
unsafe impl Sync for PointerFacts {}

/// Whose memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointerKind {
    /// Ordinary host memory, which the driver does not know.
    Unknown,
    /// Host memory that is pinned or registered.
    Host,
    /// A device's.
    Device,
    /// A kind that this crate does not know, by the driver's number.
    Other(u32),
}

impl PointerFacts {
    /// What the driver knows of `address`, as seen from `context`. The address is not read. Never blocks.
    ///
    /// # Errors
    ///
    /// The driver's; an address that it does not know is no error.
    pub fn of(context: &Context, address: u64) -> Result<Self> {
        let mut raw = Raw { device: -1, context: std::ptr::null_mut(), ..Raw::default() };
        let (mut attributes, mut values) = raw.questions();
        let count = attributes.len() as u32;
        // SAFETY: each value has room for what its attribute stores; the driver does not read the address.
        context.within(|| unsafe {
            let (attributes, values) = (attributes.as_mut_ptr(), values.as_mut_ptr());
            context.table().cuPointerGetAttributes(count, attributes, values, address)
        })?;
        Ok(raw.facts())
    }

    /// The allocation around `address`, or what is mapped there at once: where it begins and how long it is.
    ///
    /// # Errors
    ///
    /// The driver's, if the address is in no allocation of the context's device.
    pub fn range(context: &Context, address: u64) -> Result<(u64, usize)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the driver looks the address up and stores two numbers.
        context.within(|| unsafe {
            context.table().cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address)
        })?;
        Ok((base, bytes))
    }

    /// Makes the driver's own copies to and from the allocation wait until the data is there, so that other devices that
    /// read it directly, such as a NIC, never see it half done.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn order_copies(context: &Context, address: u64) -> Result<()> {
        let yes = 1u32;
        let attribute = Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int;
        // SAFETY: the driver reads one number of 4 bytes.
        context.within(|| unsafe {
            context.table().cuPointerSetAttribute((&raw const yes).cast(), attribute, address)
        })
    }
}

/// Where the driver stores its answers.
struct Raw {
    kind: u32,
    device: c_int,
    context: *mut c_void,
    device_address: u64,
    base: u64,
    bytes: usize,
    managed: u32,
    ipc: u8,
    kinds: u64,
    id: u64,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            kind: 0,
            device: -1,
            context: std::ptr::null_mut(),
            device_address: 0,
            base: 0,
            bytes: 0,
            managed: 0,
            ipc: 0,
            kinds: 0,
            id: 0,
        }
    }
}

impl Raw {
    /// The attributes to ask for, and where each answer goes.
    fn questions(&mut self) -> ([c_int; 10], [*mut c_void; 10]) {
        use Attribute as A;

        let attributes = [
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            A::CU_POINTER_ATTRIBUTE_CONTEXT,
            A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
            A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        ];
        let values = [
            (&raw mut self.kind).cast(),
            (&raw mut self.device).cast(),
            (&raw mut self.context).cast(),
            (&raw mut self.device_address).cast(),
            (&raw mut self.base).cast(),
            (&raw mut self.bytes).cast(),
            (&raw mut self.managed).cast(),
            (&raw mut self.ipc).cast(),
            (&raw mut self.kinds).cast(),
            (&raw mut self.id).cast(),
        ];
        (attributes.map(|attribute| attribute as c_int), values)
    }

    fn facts(&self) -> PointerFacts {
        let kind = match self.kind {
            0 => PointerKind::Unknown,
            1 => PointerKind::Host,
            2 => PointerKind::Device,
            other => PointerKind::Other(other),
        };
        let known = kind != PointerKind::Unknown && self.device >= 0;
        PointerFacts {
            kind,
            device: known.then_some(self.device),
            context: self.context,
            device_address: self.device_address,
            base: self.base,
            bytes: self.bytes,
            is_managed: self.managed != 0,
            ipc_capable: self.ipc != 0,
            sharing: Sharing::of(self.kinds),
            id: self.id,
        }
    }
}
