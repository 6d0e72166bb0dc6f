//! CUDA streams as [`Stream`]s: operations of a device's communicator are put on them.

use std::ffi::c_void;
use std::sync::Arc;

use super::{Opened, failed};
use crate::config::Config;
use crate::error::Result;
use crate::stream::Stream;

impl Stream {
    /// A CUDA stream of the caller's on device `device`, such as a framework's `cudaStream_t`. Operations of a
    /// communicator on that device are put on it and run when it comes to them; calls return at once.
    ///
    /// # Errors
    ///
    /// There is no such device.
    ///
    /// # Safety
    ///
    /// `handle` must be a stream of the device's primary context that outlives the value and its clones.
    pub unsafe fn cuda(config: &Config, device: u32, handle: *mut c_void) -> Result<Stream> {
        let opened = Opened::numbered(config, device)?;
        // SAFETY: the caller's contract.
        let stream = unsafe { ccl_cuda::Stream::borrowed(&opened.context, handle) };
        Ok(Stream::of_device(Arc::new(stream)))
    }

    /// A new CUDA stream on device `device`.
    ///
    /// # Errors
    ///
    /// There is no such device; the driver's.
    pub fn on_device(config: &Config, device: u32) -> Result<Stream> {
        let opened = Opened::numbered(config, device)?;
        let stream = ccl_cuda::Stream::new(&opened.context, 0).map_err(failed)?;
        Ok(Stream::of_device(Arc::new(stream)))
    }

    /// The device's legacy default stream, which waits for all others that do not say otherwise.
    ///
    /// # Errors
    ///
    /// There is no such device.
    pub fn legacy(config: &Config, device: u32) -> Result<Stream> {
        let opened = Opened::numbered(config, device)?;
        Ok(Stream::of_device(Arc::new(ccl_cuda::Stream::legacy(&opened.context))))
    }

    /// The default stream of whichever thread makes a call.
    ///
    /// # Errors
    ///
    /// There is no such device.
    pub fn per_thread(config: &Config, device: u32) -> Result<Stream> {
        let opened = Opened::numbered(config, device)?;
        Ok(Stream::of_device(Arc::new(ccl_cuda::Stream::per_thread(&opened.context))))
    }
}
