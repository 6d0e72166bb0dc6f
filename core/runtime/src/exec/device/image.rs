//! Where a device's kernels come from.

use ccl_cuda::Module;

use super::{Opened, failed};
use crate::error::{Error, Fault, Result};

/// The kernels, loaded.
///
/// # Errors
///
/// There are none for this device; the driver's.
pub(super) fn load(opened: &Opened) -> Result<Module> {
    let Some(path) = &opened.image else {
        return Err(Error::new(
            Fault::Device,
            "expected kernels for the device, found none in this build",
            "name a file with them in CCL_CUDA_IMAGE, or leave CCL_DEVICE unset to work on host memory",
        ));
    };
    let image = std::fs::read(path).map_err(|error| {
        let doing = format!("read the kernels in {} (CCL_CUDA_IMAGE)", path.display());
        Error::system(&doing, error, "name a cubin, fatbin or PTX file that can be read")
    })?;
    Module::load(&opened.context, &image).map_err(failed)
}
