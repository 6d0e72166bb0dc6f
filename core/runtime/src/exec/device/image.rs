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
    let _ = (opened, failed);
    Err(Error::new(Fault::Device, "expected kernels, found none", "build with a CUDA compiler"))
}
