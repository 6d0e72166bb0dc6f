//! The kernels that a communicator has loaded, and whether a launch of them fits its device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ccl_cuda::{Function, Module};
use ccl_kernels::shape::{Protocol, SHARED_BYTES, block_threads, kernel_name};
use ccl_plan::{Collective, Dtype, ReduceOp};

use super::image::Image;
use super::{Opened, failed};
use crate::error::{Error, Fault, Result};

/// Loaded kernels by name.
pub(super) struct Kernels {
    /// By the images that they are.
    modules: HashMap<usize, Module>,
    loaded: HashMap<String, Kernel>,
}

/// A kernel and how many of its blocks the device holds at once.
#[derive(Clone)]
pub(super) struct Kernel {
    pub(super) function: Function,
    most_blocks: u32,
}

impl Kernels {
    pub(super) fn new() -> Kernels {
        Kernels { modules: HashMap::new(), loaded: HashMap::new() }
    }

    /// The kernel of a call; loaded on first use, which blocks.
    ///
    /// # Errors
    ///
    /// No image for the device; the driver's.
    pub(super) fn of(&mut self, opened: &Opened, call: (Collective, Dtype, ReduceOp)) -> Result<Kernel> {
        let name = kernel_name(call.0, call.1, call.2, Protocol::Simple);
        if let Some(kernel) = self.loaded.get(&name) {
            return Ok(kernel.clone());
        }
        let image = Image::of(opened, &name)?;
        let module = match self.modules.entry(image.key()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(image.load(opened)?),
        };
        let function = module.function(&name).map_err(failed)?;
        function.load().map_err(failed)?;
        let threads = block_threads(opened.worker_threads);
        let blocks = function.blocks_per_multiprocessor(threads, SHARED_BYTES as usize).map_err(failed)?;
        let kernel = Kernel { function, most_blocks: blocks * opened.multiprocessors };
        self.loaded.insert(name, kernel.clone());
        Ok(kernel)
    }
}

impl Kernel {
    /// Refuses a launch whose blocks would wait for others that cannot start: `ranks` ranks share the device, each with
    /// `blocks` blocks.
    pub(super) fn admit(&self, blocks: u32, ranks: u32, opened: &Opened) -> Result<()> {
        let needed = blocks.saturating_mul(ranks);
        if needed <= self.most_blocks {
            return Ok(());
        }
        Err(Error::new(
            Fault::Device,
            format!(
                "expected device {} to hold {needed} blocks at once ({blocks} of each of {ranks} ranks), found room for {}",
                opened.context.device().ordinal(),
                self.most_blocks
            ),
            "give each rank a device of its own, or lower CCL_MAX_NCHANNELS or CCL_CUDA_THREADS",
        ))
    }
}
