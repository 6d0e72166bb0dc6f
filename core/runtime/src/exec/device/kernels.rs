//! The kernels that a communicator has loaded, and whether a launch of them fits its device.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ccl_cuda::{Function, Module};

use super::common::Common;
use super::image::{Image, Miss};
use super::{Opened, failed};
use crate::error::{Error, Fault, Result};

/// Loaded kernels by name.
pub(super) struct Kernels {
    /// By the images that they are.
    modules: HashMap<String, Arc<Module>>,
    loaded: HashMap<String, Kernel>,
    /// Whether it was said that kernels take fewer threads than they were to have.
    has_told: bool,
}

/// A kernel and how many of its blocks the device holds at once.
#[derive(Clone)]
pub(super) struct Kernel {
    pub(super) function: Function,
    /// Threads of each block: as many as were asked for, or as it takes.
    pub(super) threads: u32,
    most_blocks: u32,
}

impl Kernels {
    pub(super) fn new() -> Kernels {
        Kernels { modules: HashMap::new(), loaded: HashMap::new(), has_told: false }
    }

    /// The kernel of this name, whose blocks have so many threads, if it takes as many, and bytes of shared memory; loaded on
    /// first use, which blocks.
    ///
    /// # Errors
    ///
    /// No image for the device; the driver's.
    pub(super) fn of(
        &mut self,
        opened: &Opened,
        name: String,
        (wanted, shared_bytes): (u32, u32),
    ) -> Result<Kernel> {
        if let Some(kernel) = self.loaded.get(&name) {
            return Ok(kernel.clone());
        }
        let module = self.module(opened, &name)?;
        let function = module.function(&name).map_err(failed)?;
        function.load().map_err(failed)?;
        let most = function.attributes().map_err(failed)?.max_threads / WARP * WARP;
        let threads = wanted.min(most);
        if threads < wanted && !std::mem::replace(&mut self.has_told, true) {
            tracing::info!(target: "ccl::exec", kernel = name, wanted, threads, "kernels take fewer threads");
        }
        let blocks = function.blocks_per_multiprocessor(threads, shared_bytes as usize).map_err(failed)?;
        let kernel = Kernel { function, threads, most_blocks: blocks * opened.multiprocessors };
        self.loaded.insert(name, kernel.clone());
        Ok(kernel)
    }

    /// The first image that holds a kernel and that the driver takes.
    fn module(&mut self, opened: &Opened, kernel: &str) -> Result<Arc<Module>> {
        let mut why = Vec::new();
        for image in opened.kernels.images(kernel) {
            let found = image.and_then(|image| {
                let key = image.key().into_owned();
                let known = self.modules.get(&key).cloned();
                let module = known.map_or_else(|| loaded(&image, opened, kernel), Ok)?;
                Ok((key, module))
            });
            match found {
                Ok((key, module)) => {
                    self.modules.insert(key, Arc::clone(&module));
                    return Ok(module);
                }
                Err(Miss::Next(reason)) => why.push(reason),
                Err(Miss::Stop(error)) => return Err(error),
            }
        }
        Err(opened.kernels.none(kernel, &why))
    }
}

/// An image of this process, loaded once for all ranks that share a context: loading may wait for kernels, and those of
/// a rank that was faster wait for this one.
fn loaded(image: &Image, opened: &Opened, kernel: &str) -> Result<Arc<Module>, Miss> {
    LOADED.of((opened.context.raw().addr(), image.key().into_owned()), || {
        let begin = Instant::now();
        let (module, tier) = image.load(&opened.kernels, &opened.context)?;
        let code = image.target.map_or_else(|| "as the driver picks".to_owned(), |target| target.to_string());
        let ms = begin.elapsed().as_millis() as u64;
        tracing::info!(target: "ccl::exec", kernel, %tier, code, ms, "kernels loaded");
        Ok(module)
    })
}

/// Threads that run together: blocks have whole ones.
const WARP: u32 = 32;
/// By context and image.
static LOADED: Common<(usize, String), Module> = Common::new();

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
