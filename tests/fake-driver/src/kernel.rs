//! Images and kernels: found by name, whatever the image.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::code::*;
use crate::launch::Config;
use crate::state::{self, current, devices, fresh};
use crate::symbols::{Out, Text, item};

/// What a launch runs.
#[derive(Clone, Copy)]
pub(crate) enum Kernel {
    /// The kernel's own source.
    Emulated(ccl_kernels_emulator::Kernel),
    /// A kernel of the contract checks, which have it in PTX.
    Own(Own),
}

/// Kernels that no source is needed for.
#[derive(Clone, Copy)]
pub(crate) enum Own {
    /// Stores a word at so many places.
    Fill,
    /// Waits until a word has a value.
    Wait,
    /// Stores where nothing is.
    Fault,
}

/// Every kernel that was asked for, by its handle; handles stay valid, as functions do.
static KERNELS: LazyLock<Mutex<HashMap<usize, Kernel>>> = LazyLock::new(Mutex::default);

impl Kernel {
    fn named(name: &str) -> Option<Self> {
        match name {
            "ccl_contract_fill" => Some(Self::Own(Own::Fill)),
            "ccl_contract_wait" => Some(Self::Own(Own::Wait)),
            "ccl_contract_fault" => Some(Self::Own(Own::Fault)),
            _ => ccl_kernels_emulator::kernel(name).map(Self::Emulated),
        }
    }

    /// Size of the one argument.
    pub(crate) fn args_bytes(self) -> usize {
        match self {
            Self::Emulated(kernel) => kernel.args_bytes(),
            Self::Own(Own::Fill) => 16,
            Self::Own(Own::Wait) => 16,
            Self::Own(Own::Fault) => 8,
        }
    }

    pub(crate) fn most_threads(self) -> u32 {
        match self {
            Self::Emulated(kernel) => kernel.most_threads(),
            Self::Own(_) => 1024,
        }
    }
}

pub(crate) fn of(handle: usize) -> Answer<Kernel> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).copied().ok_or(INVALID_HANDLE)
}

/// How many blocks one multiprocessor holds.
pub(crate) fn blocks_each(threads: u32, shared_bytes: usize) -> i32 {
    let by_threads = 2048 / threads.next_multiple_of(32).max(32);
    let by_memory = (228 << 10) / (shared_bytes + 1024);
    by_threads.min(by_memory as u32).min(32) as i32
}

pub(crate) fn module_load_data(module: Out<usize>, image: usize) -> Answer {
    crate::capture::breaks_others()?;
    current()?;
    state::make();
    if image == 0 {
        return Err(INVALID_VALUE);
    }
    let magic: [u8; 4] = item(image, 0);
    let is_text = magic.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    if !(magic == *b"\x7fELF" || magic == [0x50, 0xed, 0x55, 0xba] || is_text) {
        return Err(INVALID_IMAGE);
    }
    let handle = fresh();
    state::lock(|state| state.modules.insert(handle, ()));
    module.set(handle);
    Ok(())
}

pub(crate) fn module_unload(module: usize) -> Answer {
    state::lock(|state| state.modules.remove(&module)).ok_or(INVALID_HANDLE)
}

pub(crate) fn module_function(function: Out<usize>, module: usize, name: Text) -> Answer {
    if !state::lock(|state| state.modules.contains_key(&module)) {
        return Err(INVALID_HANDLE);
    }
    let kernel = Kernel::named(&name.value()?).ok_or(NOT_FOUND)?;
    let handle = fresh();
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, kernel);
    function.set(handle);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "as many as the driver's")]
pub(crate) fn library_load_data(
    library: Out<usize>,
    image: usize,
    _jit_options: Out<i32>,
    _jit_values: Out<usize>,
    _jit_count: u32,
    _options: Out<i32>,
    _values: Out<usize>,
    _count: u32,
) -> Answer {
    // Libraries need no context; any will do to check the image.
    let pushed = current().is_err().then(|| state::push(state::context_of(0)));
    let loaded = module_load_data(library, image);
    if let Some(Ok(())) = pushed {
        state::pop()?;
    }
    loaded
}

pub(crate) fn library_unload(library: usize) -> Answer {
    module_unload(library)
}

pub(crate) fn library_kernel(kernel: Out<usize>, library: usize, name: Text) -> Answer {
    module_function(kernel, library, name)
}

pub(crate) fn kernel_function(function: Out<usize>, kernel: usize) -> Answer {
    current()?;
    of(kernel)?;
    function.set(kernel);
    Ok(())
}

pub(crate) fn func_load(function: usize) -> Answer {
    crate::capture::breaks_others()?;
    state::make();
    of(function).map(drop)
}

pub(crate) fn func_attribute(value: Out<i32>, attribute: i32, function: usize) -> Answer {
    let kernel = of(function)?;
    value.set(match attribute {
        0 => kernel.most_threads() as i32,
        4 => 64,
        1..=3 | 7..=15 => 0,
        5 | 6 => 90,
        _ => return Err(INVALID_VALUE),
    });
    Ok(())
}

pub(crate) fn func_set_attribute(function: usize, attribute: i32, value: i32) -> Answer {
    of(function)?;
    let fits = attribute != DYNAMIC_SHARED || (0..=227 << 10).contains(&value);
    if fits { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn occupancy_max_active_blocks_per_multiprocessor(
    blocks: Out<i32>,
    function: usize,
    block_threads: i32,
    shared_bytes: usize,
) -> Answer {
    let most = of(function)?.most_threads();
    let threads = u32::try_from(block_threads).map_err(|_| INVALID_VALUE)?;
    blocks.set(if threads > most { 0 } else { blocks_each(threads, shared_bytes) });
    Ok(())
}

pub(crate) fn occupancy_max_active_clusters(
    clusters: Out<i32>,
    function: usize,
    config: crate::symbols::In<Config>,
) -> Answer {
    of(function)?;
    let config = config.value()?;
    let blocks = blocks_each(config.block.iter().product(), config.shared_bytes as usize);
    clusters.set(
        blocks * devices().multiprocessors(current()?)
            / config.cluster().iter().product::<u32>().max(1) as i32,
    );
    Ok(())
}

const DYNAMIC_SHARED: i32 = 8;
