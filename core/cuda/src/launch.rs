//! Launches.

use std::ffi::c_void;

use cudarc::driver::sys;
use sys::CUlaunchAttributeID as Id;

use crate::error::{Error, Result};
use crate::module::Function;
use crate::stream::Stream;
use crate::symbols::Handle;

/// How a kernel is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch<'a> {
    /// Blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads of one block, in three dimensions.
    pub block: [u32; 3],
    /// Dynamic shared memory of one block.
    pub shared_bytes: u32,
    /// What else the launch asks for; at most four.
    pub attributes: &'a [LaunchAttribute],
}

/// What a launch may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchAttribute {
    /// All blocks are on the device at once, or the launch fails.
    Cooperative,
    /// Blocks come in clusters of this shape, whose blocks see each other's shared memory.
    Cluster([u32; 3]),
    /// System-scope fences wait only for writes of the same domain. Communication uses 1, the rest of the process 0.
    RemoteMemoryDomain,
    /// Greater priorities are smaller numbers.
    Priority(i32),
}

impl Launch<'_> {
    /// Launches `function` on `stream` with one argument by value. Never blocks, unless the stream's queue is full.
    ///
    /// # Errors
    ///
    /// The driver's: too many resources, an argument of another size, work that failed earlier.
    ///
    /// # Safety
    ///
    /// The kernel must take exactly one argument laid out like `T`, and everything it reads and writes must stay valid
    /// until it is done.
    pub unsafe fn run<T: Copy>(&self, function: &Function, stream: &Stream, argument: &T) -> Result<()> {
        let mut bytes = size_of::<T>();
        let mut extra = [
            BUFFER_POINTER,
            std::ptr::from_ref(argument).cast_mut().cast(),
            BUFFER_BYTES,
            (&raw mut bytes).cast(),
            std::ptr::null_mut(),
        ];
        self.with_config(stream.raw(), |config| {
            // SAFETY: the driver copies the argument before it returns; the rest is the caller's contract.
            stream.within(|| unsafe {
                let none = std::ptr::null_mut();
                stream.context().table().cuLaunchKernelEx(config, function.raw(), none, extra.as_mut_ptr())
            })
        })
    }

    /// Calls `work` with the launch as the driver reads it.
    pub(crate) fn with_config<T>(
        &self,
        stream: Handle,
        work: impl FnOnce(*const sys::CUlaunchConfig) -> Result<T>,
    ) -> Result<T> {
        let mut attributes = [NOTHING; MOST_ATTRIBUTES];
        if self.attributes.len() > MOST_ATTRIBUTES {
            let what =
                format!("expected at most {MOST_ATTRIBUTES} attributes, found {}", self.attributes.len());
            return Err(Error::Usage { call: "cuLaunchKernelEx", what });
        }
        for (place, attribute) in attributes.iter_mut().zip(self.attributes) {
            *place = attribute.encoded();
        }
        let config = sys::CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared_bytes,
            hStream: stream.cast(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: self.attributes.len() as u32,
        };
        work(&raw const config)
    }
}

impl LaunchAttribute {
    fn encoded(self) -> sys::CUlaunchAttribute {
        let mut value = NOTHING.value;
        let id = match self {
            Self::Cooperative => {
                value.cooperative = 1;
                Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            }
            Self::Cluster([x, y, z]) => {
                value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
                Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            }
            Self::RemoteMemoryDomain => {
                value.memSyncDomain = sys::CUlaunchMemSyncDomain::CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
                Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            }
            Self::Priority(priority) => {
                value.priority = priority;
                Id::CU_LAUNCH_ATTRIBUTE_PRIORITY
            }
        };
        sys::CUlaunchAttribute { id, pad: [0; 4], value }
    }
}

const MOST_ATTRIBUTES: usize = 4;

const NOTHING: sys::CUlaunchAttribute = sys::CUlaunchAttribute {
    id: Id::CU_LAUNCH_ATTRIBUTE_IGNORE,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue { pad: [0; 64] },
};

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`: the arguments follow as one block of bytes.
const BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
/// `CU_LAUNCH_PARAM_BUFFER_SIZE`: a pointer to their size follows.
const BUFFER_BYTES: *mut c_void = std::ptr::without_provenance_mut(2);
