//! Where a device's kernels come from.

use std::path::Path;

use ccl_cuda::Module;

use super::{Opened, failed};
use crate::error::{Error, Fault, Result};

/// The image that holds a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Image<'a> {
    /// A file that a setting names, with every kernel.
    File(&'a Path),
    /// A part of this build.
    Embedded(&'static [u8]),
}

impl<'a> Image<'a> {
    /// The image that holds `kernel`. Errors: this build has none.
    pub(super) fn of(opened: &'a Opened, kernel: &str) -> Result<Image<'a>> {
        match &opened.image {
            Some(path) => Ok(Image::File(path)),
            None => ccl_kernels::image::embedded(kernel).map(Image::Embedded).ok_or_else(none_here),
        }
    }

    /// What it is found by again.
    pub(super) fn key(self) -> usize {
        match self {
            Image::File(_) => 0,
            Image::Embedded(bytes) => bytes.as_ptr().addr(),
        }
    }

    /// Loads it, which blocks. Errors: the file cannot be read; the driver's.
    pub(super) fn load(self, opened: &Opened) -> Result<Module> {
        match self {
            Image::File(path) => Module::load(&opened.context, &read(path)?),
            Image::Embedded(bytes) => Module::load(&opened.context, bytes),
        }
        .map_err(failed)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let doing = format!("read the kernels in {} (CCL_CUDA_IMAGE)", path.display());
        Error::system(&doing, error, "name a cubin, fatbin or PTX file that can be read")
    })
}

fn none_here() -> Error {
    Error::new(
        Fault::Device,
        "expected kernels for the device, found none in this build",
        "build with CCL_KERNELS=fatbin and CUDA's compiler, name a file with kernels in CCL_CUDA_IMAGE, or leave CCL_DEVICE \
         unset to work on host memory",
    )
}
