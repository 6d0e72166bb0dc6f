//! Finding the driver. That there is none is a value.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::device::Device;
use crate::error::{Error, Result, code};
use crate::symbols::Table;

/// The oldest driver that ccl uses, as `cuDriverGetVersion` counts: 12.0.
pub const MINIMUM_VERSION: u32 = 12_000;

/// The CUDA driver of this process, initialised.
///
/// Cheap to clone; usable from every thread. The library is never unloaded.
#[derive(Clone)]
pub struct Driver {
    pub(crate) table: Arc<Table>,
}

/// Why there is no driver. Not an error: most machines have no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absent {
    /// No such library.
    #[error(
        "no CUDA driver: {library} cannot be loaded ({reason}); install NVIDIA's driver if this machine has a device"
    )]
    Library {
        /// What was looked for.
        library: String,
        /// What the dynamic loader said.
        reason: String,
    },
    /// The library is there for linking only.
    #[error(
        "no CUDA driver: {library} is a stub made for linking; take the CUDA toolkit's stubs off LD_LIBRARY_PATH"
    )]
    Stub {
        /// Which library.
        library: String,
    },
    /// The driver is there, devices are not.
    #[error(
        "no device: the CUDA driver {library} finds none; look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// Which library.
        library: String,
    },
    /// Older than what ccl uses.
    #[error(
        "expected a CUDA driver of version {MINIMUM_VERSION} or newer, found {found}; install a newer one"
    )]
    TooOld {
        /// Its version, as `cuDriverGetVersion` counts.
        found: u32,
    },
    /// A function is missing that every driver has.
    #[error(
        "{library} is no CUDA driver: expected the function {symbol}, found none; look where it comes from"
    )]
    MissingSymbol {
        /// Which library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// The driver cannot be initialised.
    #[error("the CUDA driver cannot be used: {0}")]
    Failed(Error),
}

/// A function that every driver has, and this library lacks.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) name: &'static str,
}

impl Driver {
    /// Loads and initialises the driver in the library at `path`, or the one that the system finds.
    ///
    /// The answer for a path is kept, so that asking again costs one lock. May block for as long as the driver needs to
    /// wake its devices, on some machines seconds.
    ///
    /// # Errors
    ///
    /// Why there is no driver to use.
    pub fn load(path: Option<&Path>) -> std::result::Result<Self, Absent> {
        let path = path.unwrap_or(Path::new(LIBRARY));
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = loaded.iter().find(|(known, _)| known == path) {
            return answer.clone();
        }
        let answer = open(path).map(|table| Self { table: Arc::new(table) });
        match &answer {
            Ok(driver) => {
                tracing::debug!(library = %path.display(), version = driver.version(), "driver loaded")
            }
            Err(absent) => tracing::debug!(library = %path.display(), "{absent}"),
        }
        loaded.push((path.to_owned(), answer.clone()));
        answer
    }

    /// The driver's version, as it counts: 12030 is 12.3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.table.version()
    }

    /// Whether this driver has the function of this name (with its suffix, such as `cuMemAlloc_v2`).
    #[must_use]
    pub fn has(&self, call: &str) -> bool {
        self.table.has(call)
    }

    /// The devices of this process, by ordinal.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let mut count = 0;
        // SAFETY: the driver stores one number.
        unsafe { self.table.cuDeviceGetCount(&raw mut count) }?;
        (0..count).map(|ordinal| Device::new(self, ordinal)).collect()
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("version", &self.version()).finish_non_exhaustive()
    }
}

fn open(path: &Path) -> std::result::Result<Table, Absent> {
    let library = path.display().to_string();
    // SAFETY: loading runs the library's initialisers; it is NVIDIA's driver, or what the caller puts in its place.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let opened =
        opened.map_err(|error| Absent::Library { library: library.clone(), reason: reason(&error) })?;
    // Never unloaded: the driver has threads of its own, and the table points into it.
    let opened = ManuallyDrop::new(libloading::Library::from(opened));
    let missing = |Missing { name }| Absent::MissingSymbol { library: library.clone(), symbol: name };
    // Version 0 finds only what every driver has, which is enough to ask for the version.
    let first = Table::find(&opened, 0).map_err(missing)?;
    let version = initialise(&first, &library)?;
    Table::find(&opened, version).map_err(missing)
}

/// What the dynamic loader said.
pub(crate) fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Initialises the driver, and says its version.
fn initialise(table: &Table, library: &str) -> std::result::Result<u32, Absent> {
    // SAFETY: 0 is the one value of the flags.
    unsafe { table.cuInit(0) }.map_err(|error| match error.code() {
        Some(code::STUB_LIBRARY) => Absent::Stub { library: library.to_owned() },
        Some(code::NO_DEVICE) => Absent::NoDevice { library: library.to_owned() },
        _ => Absent::Failed(error),
    })?;
    let mut version = 0;
    // SAFETY: the driver stores one number.
    unsafe { table.cuDriverGetVersion(&raw mut version) }.map_err(Absent::Failed)?;
    let version = version.cast_unsigned();
    if version < MINIMUM_VERSION {
        return Err(Absent::TooOld { found: version });
    }
    let mut count = 0;
    // SAFETY: the driver stores one number.
    unsafe { table.cuDeviceGetCount(&raw mut count) }.map_err(Absent::Failed)?;
    if count == 0 { Err(Absent::NoDevice { library: library.to_owned() }) } else { Ok(version) }
}

/// What the driver is called. Not `libcuda.so`, under which toolkits install a stub.
const LIBRARY: &str = "libcuda.so.1";

/// Every library that was tried. A process has one driver, as it has one table of loaded plugins.
static LOADED: Mutex<Vec<(PathBuf, std::result::Result<Driver, Absent>)>> = Mutex::new(Vec::new());
